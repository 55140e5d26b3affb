//! Image classification as people type it: from labels to a model folder, and what that is good for.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, on};
use crate::typed::{Answer, DONE, bytes, holdall, holdall_words, start};

/// A tiny vision transformer that transformers wrote, with a classifier of five labels.
pub fn tiny_vit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/fixtures/classify_vit")
}

/// Cars, and beside their list one that has labels alone.
pub fn with_labels(count: usize) -> (Home, PathBuf) {
    let home = Home::with_cars(count);
    let mut lines = vec!["image,make".to_owned()];
    let rows = rows_of(&home);
    lines.extend(rows.iter().map(|row| {
        format!(
            "{},{}",
            row["image"].as_str().unwrap(),
            row["make"].as_str().unwrap()
        )
    }));
    let csv = home.path("cars/labels.csv");
    fs::write(&csv, lines.join("\n")).unwrap();
    (home, csv)
}

/// Rows of the list of cars, by column.
fn rows_of(home: &Home) -> Vec<Value> {
    let mut reader = csv::Reader::from_path(home.csv()).unwrap();
    let columns = reader.headers().unwrap().clone();
    let rows = reader.records().map(|row| {
        let row = row.unwrap();
        let cells = columns.iter().zip(row.iter());
        cells
            .map(|(column, cell)| (column.to_owned(), json!(cell)))
            .collect()
    });
    rows.collect()
}

/// `holdall COMMAND DATA --model MODEL --out OUT OPTIONS`.
fn words(data: &Path, model: &Path, out: &Path, options: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["train".into(), data.into()];
    words.extend(["--model".into(), model.into(), "--out".into(), out.into()]);
    words.extend(options.split_whitespace().map(OsString::from));
    words
}

pub fn train(data: &Path, model: &Path, out: &Path, options: &str) -> Answer {
    holdall_words(words(data, model, out, options))
}

#[track_caller]
fn trained(home: &Home, data: &Path, model: &Path, name: &str, options: &str) -> RunFiles {
    train(data, model, &home.path(name), options).exits(DONE);
    home.run_named(name)
}

/// `holdall predict RUN IMAGES OPTIONS`.
pub fn predict(model: &Path, images: &Path, options: &str) -> Answer {
    let words: [OsString; 3] = ["predict".into(), model.into(), images.into()];
    let options = options.split_whitespace().map(OsString::from);
    holdall_words(words.into_iter().chain(options))
}

/// The cells of a CSV, its header first.
fn csv_rows(path: &Path) -> Vec<Vec<String>> {
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_path(path)
        .unwrap();
    rows.records()
        .map(|row| row.unwrap().iter().map(str::to_owned).collect())
        .collect()
}

/// `holdall eval MODEL DATA --json OPTIONS`.
fn scores_on(model: &Path, data: &Path, options: &str) -> Value {
    let words: [OsString; 4] = ["eval".into(), model.into(), data.into(), "--json".into()];
    let options = options.split_whitespace().map(OsString::from);
    holdall_words(words.into_iter().chain(options))
        .exits(DONE)
        .json()
}

#[track_caller]
fn says(answer: &Answer, lines: &[&str]) {
    for line in lines {
        assert!(
            answer.stderr.contains(line),
            "lacks `{line}`\n{}",
            answer.stderr
        );
    }
}

#[track_caller]
fn near(found: &Value, expected: &Value, what: &str) {
    let [found, expected] = [found, expected].map(|value| value.as_f64().unwrap());
    let apart = (found - expected).abs();
    assert!(
        apart <= 2e-4 * expected.abs(),
        "{what}: {found}, {expected}"
    );
}

/// What evaluations of a head with one label per picture say, whoever tells it.
const SCORES: [&str; 6] = [
    "accuracy",
    "top5",
    "macro_f1",
    "auroc",
    "chance_accuracy",
    "labelled",
];

/// A classifier learns labels: a config that names none means the column that is called so, as without a config.
#[test]
fn a_config_finds_the_label_by_its_name_too() {
    let (home, _) = with_labels(8);
    let config = home.path("run.yml");
    let text = "task: classify\nmodel: vit-demo\ndata: {train: cars/labels.csv}\nout: run\n\
                train: {effective_batch: 8, max_steps: 1}\n";
    fs::write(&config, text).unwrap();
    let log = on("train", &config, "").exits(DONE).stderr;
    for line in [
        "Head label: one of ",
        "; 1 step an epoch, 1 in all)",
        "Done: 1 step in ",
    ] {
        assert!(log.contains(line), "lacks `{line}`\n{log}");
    }
    on("plan", &config, "--json").exits(DONE).json();
}

#[test]
fn a_list_of_labels_is_a_classification() {
    let (home, csv) = with_labels(40);
    let options = "--batch-size 4 --gradient-accumulation 4 --epochs 1 --set data.validation=40%";
    let log = train(&csv, Path::new("vit-demo"), &home.path("run"), options).exits(DONE);
    assert_eq!(log.stdout, "");
    let lines = [
        "Task: classify (",
        "Head label: one of 8 labels",
        "Weights: RANDOM (preset vit-demo); ",
        "Effective batch size: 16 (4 x 4); Batch size: 4 (as asked)\n",
        "forward runs once",
        "Losses at step 1: label ",
        "(chance 2.079 = ln 8)",
        "validation after step 2 (best so far):\n  losses        label ",
        "\n  label         accuracy ",
        "always the most frequent label: ",
        "Best: accuracy ",
    ];
    says(&log, &lines);
    let run = home.run();
    for file in [
        "config.yml",
        "metrics.jsonl",
        "confusion.json",
        "samples.json",
        "report.html",
        "checkpoints/last.safetensors",
        "model/model.safetensors",
        "model/preprocessor_config.json",
        "model/holdall.json",
    ] {
        let length = fs::metadata(run.file(file)).map_or(0, |file| file.len());
        assert!(length > 0, "{file}");
    }
    // What transformers reads.
    let config = run.json("model/config.json");
    assert_eq!(
        config["architectures"],
        json!(["ViTForImageClassification"])
    );
    assert_eq!(config["id2label"]["3"], "Halvik");
    assert_eq!(config["label2id"]["Halvik"], 3);
    assert_eq!(config["problem_type"], "single_label_classification");
    let targets = run.json("model/targets.json");
    assert_eq!(
        (&targets[0]["kind"], &targets[0]["labels"][3]),
        (&json!("class"), &json!("Halvik"))
    );
    let step = &run.lines("step")[0];
    assert_eq!(step["loss"], step["label"]);
    assert_eq!(step["contrastive"], Value::Null);
    let summary = run.json("summary.json");
    assert_eq!(summary["arena_bytes"], summary["planned_arena_bytes"]);
    assert!(
        bytes(&summary, "process_bytes") <= bytes(&summary, "planned_bytes"),
        "{summary}"
    );
    // The report shows who is taken for whom.
    let confusion = run.json("confusion.json");
    let target = &confusion["targets"][0];
    assert_eq!(target["labels"].as_array().unwrap().len(), 8);
    let counts = target["counts"].as_array().unwrap();
    let all: u64 = counts.iter().map(|entry| entry[2].as_u64().unwrap()).sum();
    assert_eq!(all, 16);
    let mistakes = target["mistakes"].as_array().unwrap();
    assert!(!mistakes.is_empty() && mistakes.len() <= 12);
    on("report", &run.path, "").exits(DONE);
    let page = fs::read_to_string(run.file("report.html")).unwrap();
    assert!(page.contains("\"mistakes\"") && page.contains("Pellaro"));

    // What was said while training is said again, in words and in JSON.
    let scores = on("eval", &run.path, "--json").exits(DONE).json();
    let line = &run.lines("evaluation")[0];
    for key in SCORES {
        assert_eq!(scores[key], line[key], "{key}");
    }
    assert_eq!(
        (&scores["pictures"], &scores["skipped"]),
        (&16.into(), &0.into())
    );
    assert_eq!(scores["classes"].as_array().unwrap().len(), 8);
    let supports = scores["classes"].as_array().unwrap().iter();
    let supports: u64 = supports
        .map(|class| class["support"].as_u64().unwrap())
        .sum();
    assert_eq!(supports, 16);
    assert_eq!(scores["confusion"], target["counts"]);
    assert_eq!(scores["auroc_is_approximate"], false);
    let shown = on("eval", &run.path, "").exits(DONE).stdout;
    for part in [
        "16 pictures of ",
        "  label         accuracy ",
        "    label    support  precision  recall      F1\n",
        "    Brixel         2  ",
        "most frequent mistakes: ",
    ] {
        assert!(shown.contains(part), "lacks `{part}`\n{shown}");
    }
    // The model folder alone, on every row, by its own labels.
    let all = scores_on(&run.file("model"), &csv, "");
    assert_eq!(
        (&all["pictures"], &all["labelled"]),
        (&40.into(), &40.into())
    );
}

#[test]
fn a_folder_per_class_needs_no_list() {
    let home = Home::with_cars(40);
    for (index, row) in rows_of(&home).iter().enumerate() {
        let part = if index % 4 == 0 { "val" } else { "train" };
        let folder = home
            .path("classes")
            .join(part)
            .join(row["body"].as_str().unwrap());
        fs::create_dir_all(&folder).unwrap();
        let picture = home.path("cars").join(row["image"].as_str().unwrap());
        fs::copy(picture, folder.join(format!("{index}.jpg"))).unwrap();
    }
    let data = home.path("classes");
    let options = "--effective-batch 8 --epochs 2 --lr 1e-3 --set losses.label_smoothing=0.1 \
                   --set losses.class_weights=balanced --set train.sampling=balanced";
    let log = train(&data, &tiny_vit(), &home.path("run"), options).exits(DONE);
    let lines = [
        "Task: classify (",
        "has a folder per class)",
        "Validation: 10 of 40 rows, those in `val`",
        "Head label: one of 6 labels",
        "has 5 outputs, 6 are asked for)",
        "Weights: pretrained from ",
    ];
    says(&log, &lines);
    let run = home.run();
    assert_eq!(run.lines("evaluation")[0]["pictures"], 10);
    assert_eq!(on("eval", &run.path, "--json").json()["pictures"], 10);
    let json = predict(&run.path, &data.join("val"), "--json --top 1")
        .exits(DONE)
        .json();
    let predictions = json["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 10);
    for one in predictions {
        assert_eq!(one["labels"].as_array().unwrap().len(), 1);
    }
}

/// Three targets, pictures mixed, dropout on.
const THREE_TARGETS: &str = "
task: classify
data:
  targets:
    make: make
    year: {number: year}
    looks: {column: viewpoint, separator: ' '}
  mixing: {mixup: 0.2, cutmix: 1.0}
losses:
  label_smoothing: 0.1
  class_weights: balanced
  targets: {year: 0.5}
train: {effective_batch: 8, batch_size: 3, lr: 1e-3, dropout: 0.1, stochastic_depth: 0.1}
";

/// A config with three targets of the cars.
pub fn three_targets(home: &Home) -> PathBuf {
    let path = home.path("three.yml");
    let text = THREE_TARGETS.replacen(
        "data:",
        &format!("data:\n  train: {}", home.csv().display()),
        1,
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn several_targets_and_their_numbers() {
    let home = Home::with_cars(40);
    let config = three_targets(&home);
    let options = "--epochs 2 --set train.lr_head=1e-2";
    let log = train(&config, &tiny_vit(), &home.path("run"), options).exits(DONE);
    let lines = [
        "Head looks: any of 3 labels",
        "Head make: one of 8 labels",
        "Best model: by make.accuracy, the first target",
        "Head year: a number, 19",
        "Losses at step 1: looks ",
        "make ",
        "(chance 2.079 = ln 8)",
        "  year          mean absolute error ",
        "Best: make.accuracy ",
    ];
    says(&log, &lines);
    let run = home.run();
    let step = &run.lines("step")[0];
    let sum = ["looks", "make", "year"].map(|name| step[name].as_f64().unwrap());
    let expected = sum[0] + sum[1] + 0.5 * sum[2];
    assert!(
        (step["loss"].as_f64().unwrap() - expected).abs() < 1e-5,
        "{step}"
    );
    let labels = &run.json("model/config.json")["id2label"];
    assert_eq!(
        [&labels["0"], &labels["3"], &labels["11"]],
        ["looks: front", "make: Brixel", "year"]
    );

    // Trained on standardised numbers; the saved model has the scores that the run had.
    let best = &run.json("summary.json")["best"]["step"];
    let lines = run.lines("evaluation");
    let line = lines.iter().find(|line| line["step"] == *best).unwrap();
    let saved = on("eval", &run.path, "--json").exits(DONE).json();
    let metric = "mean_absolute_error";
    near(&saved["year"][metric], &line["year"][metric], metric);

    // Numbers come out of the saved model as the rows have them.
    let rows = rows_of(&home);
    let json = predict(&run.path, &home.path("cars/images"), "--json")
        .exits(DONE)
        .json();
    let predictions = json["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), rows.len());
    let mut error = 0.0;
    for (prediction, row) in predictions.iter().zip(&rows) {
        let image = prediction["image"].as_str().unwrap();
        assert!(image.ends_with(row["image"].as_str().unwrap()), "{image}");
        let targets = prediction["targets"].as_array().unwrap();
        let names = targets
            .iter()
            .map(|target| target["target"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["looks", "make", "year"]);
        // The first target with labels is told where other models tell theirs.
        assert_eq!(prediction["labels"], targets[0]["labels"]);
        let number = targets[2]["number"].as_f64().unwrap();
        assert!((1900.0..2100.0).contains(&number), "{number}");
        error += (number - row["year"].as_str().unwrap().parse::<f64>().unwrap()).abs();
    }
    let scores = scores_on(&run.path, &home.csv(), "");
    near(
        &scores["year"]["mean_absolute_error"],
        &json!(error / rows.len() as f64),
        "mean absolute error",
    );
    assert_eq!(scores["make"]["labelled"], 40);
    assert!(scores["looks"]["mean_average_precision"].as_f64().unwrap() > 0.0);

    let picture = home.path("cars/images/000001.jpg");
    let shown = predict(&run.path, &picture, "").exits(DONE).stdout;
    assert!(
        shown.contains(": looks ") && shown.contains("; make ") && shown.contains("; year "),
        "{shown}"
    );
    let file = home.path("predictions.csv");
    let table = home.path("cars/image_labels.csv");
    let options = format!("--all-probabilities --csv {}", file.display());
    let answer = predict(&run.path, &table, &options).exits(DONE);
    assert_eq!(answer.stdout, "");
    // A row per picture, under the path of the table that was read: the two join.
    let listed = csv_rows(&table);
    let told = csv_rows(&file);
    let images = |rows: &[Vec<String>]| -> Vec<String> {
        rows[1..].iter().map(|row| row[0].clone()).collect()
    };
    assert_eq!(images(&told), images(&listed));
    let column = |name: &str| told[0].iter().position(|column| column == name).unwrap();
    let (make, share) = (column("make"), column("make_probability"));
    let makes: Vec<usize> = (0..told[0].len())
        .filter(|at| told[0][*at].starts_with("make="))
        .collect();
    for row in &told[1..] {
        let shares: Vec<f64> = makes.iter().map(|at| row[*at].parse().unwrap()).collect();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{row:?}");
        assert_eq!(row[column(&format!("make={}", row[make]))], row[share]);
        let most = shares.iter().copied().fold(0.0, f64::max);
        assert_eq!(row[share].parse(), Ok(most));
    }
    assert_eq!(
        predictions[0]["targets"][2]["number"].as_f64(),
        told[1][column("year")].parse().ok()
    );

    let answer = on(
        "verify",
        &config,
        &format!("--set model={}", tiny_vit().display()),
    )
    .exits(DONE);
    assert!(answer.stdout.contains("EXACT"), "{}", answer.stdout);
}

/// Which pictures are mixed and what is dropped are functions of seed, epoch and sample: a run that was killed goes on with
/// the same losses.
#[test]
fn a_killed_run_goes_on_with_the_same_losses() {
    let home = Home::with_cars(40);
    let config = three_targets(&home);
    let options = "--epochs 4 --set train.save_every=3 --set data.validation=25%";
    let model = Path::new("vit-demo");
    let whole = trained(&home, &config, model, "whole", options);
    let killed = home.run_named("killed");
    let mut running = start(words(&config, model, &killed.path, options));
    killed.wait_until(&mut running, |run| {
        run.num_lines() >= 7 && run.last().exists()
    });
    assert!(running.kill(), "it was done before it was killed");
    let lines = killed.num_lines();
    assert!(lines < whole.num_lines());
    killed.resume("").exits(DONE);
    assert_same_lines(&killed, &whole);
    assert_same_model(&killed, &whole);
    // Other masks in every epoch: the losses are none of an unmixed run.
    let plain = "--set train.dropout=0 --set train.stochastic_depth=0";
    let other = trained(
        &home,
        &config,
        model,
        "plain",
        &format!("{options} {plain}"),
    );
    assert_ne!(other.of_steps("loss"), whole.of_steps("loss"));
}

/// However it is split, twelve steps stay together within 1e-4.
#[test]
fn splitting_changes_no_loss() {
    let home = Home::with_cars(40);
    let config = three_targets(&home);
    let [split, whole] = [("split", 3), ("whole", 8)].map(|(name, size)| {
        let options = format!(
            "--epochs 3 --batch-size {size} --num-threads {}",
            1 + size % 2
        );
        trained(&home, &config, &tiny_vit(), name, &options)
    });
    for key in ["loss", "looks", "make", "year"] {
        let [split, whole] = [&split, &whole].map(|run| run.of_steps(key));
        assert!(whole.len() >= 12);
        for (split, whole) in split.iter().zip(&whole) {
            assert!((split - whole).abs() < 1e-4, "{key}: {split}, {whole}");
        }
    }
}

/// A classifier that is trained on with its own labels keeps its outputs; with others it gets new ones.
#[test]
fn a_saved_classifier_goes_on_or_gets_new_outputs() {
    let home = Home::with_cars(40);
    let config = three_targets(&home);
    let first = trained(
        &home,
        &config,
        &tiny_vit(),
        "first",
        "--epochs 2 --set train.lr_head=1e-2",
    );
    let still = "--epochs 1 --lr 1e-12 --set train.lr_head=1e-12";
    let out = home.path("same");
    let log = train(&config, &first.file("model"), &out, still).exits(DONE);
    says(&log, &["Weights: pretrained from ", "first/model"]);
    assert!(!log.stderr.contains("RANDOM"), "{}", log.stderr);
    let [before, after] =
        [&first.path, &out].map(|run| on("eval", run, "--json").exits(DONE).json());
    for (target, metric) in [
        ("year", "mean_absolute_error"),
        ("make", "auroc"),
        ("looks", "mean_average_precision"),
    ] {
        near(&after[target][metric], &before[target][metric], target);
    }
    let (csv, out) = (home.csv(), home.path("other"));
    let options = format!("{still} --task classify --set data.label=color --effective-batch 8");
    let log = train(&csv, &first.file("model"), &out, &options).exits(DONE);
    says(
        &log,
        &[
            "Classifier: RANDOM (the classifier of ",
            "has 12 outputs, ",
            "are asked for)",
        ],
    );
    // As many outputs, other names.
    let options = format!("{still} --task classify --set data.label=make --effective-batch 8");
    let makes = home.run_named("makes");
    train(&csv, &tiny_vit(), &makes.path, &options).exits(DONE);
    let text = fs::read_to_string(&csv).unwrap().replace("Halvik", "Alvik");
    fs::write(&csv, text).unwrap();
    let log = train(&csv, &makes.file("model"), &home.path("renamed"), &options).exits(DONE);
    says(
        &log,
        &[
            "Classifier: RANDOM (the classifier of ",
            "knows other labels: `Brixel` where `Alvik` is asked for)",
        ],
    );
}

#[test]
fn plans_benchmarks_and_certificates_know_no_task() {
    let plan = holdall("plan vit-demo --effective-batch 16 --json")
        .exits(DONE)
        .json();
    assert_eq!(plan["effective_batch"], 16);
    assert_eq!(plan["chosen"]["kept_micro_batches"], 0);
    let shown = holdall("plan vit-demo --effective-batch 16 --gpu t4")
        .exits(DONE)
        .stdout;
    for part in [
        "vit-demo on t4",
        "Effective batch size: 16",
        "forward runs once",
    ] {
        assert!(shown.contains(part), "lacks `{part}`\n{shown}");
    }
    let tiny = tiny_vit();
    for (command, options) in [("plan", "--json"), ("verify", "--effective-batch 5 --json")] {
        on(command, &tiny, options).exits(DONE).json();
    }
    let bench = "bench classify --small --steps 1 --effective-batch 8 --batch-size 3";
    let answer = holdall(bench).exits(DONE).json();
    assert_eq!(answer["job"], "classify-small");
    assert_eq!(
        (&answer["micro_batch"], &answer["accum"]),
        (&3.into(), &3.into())
    );
    assert_eq!(answer["kept_micro_batches"], 0);
    assert!(answer["loss"].as_f64().unwrap().is_finite());
    assert_eq!(answer["arena_bytes"], answer["planned_arena_bytes"]);
    let parts = ["task: classify", "expected clip", "holdall bench classify"];
    holdall("bench clip --small --task classify").refused_with(&parts);
}
