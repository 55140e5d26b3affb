//! `holdall eval`: the scores of a run are those that it had when it was trained.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use holdall_train::config::{RunConfig, TaskName};
use holdall_train::export::saved_inputs::{Reader, check_sets};
use serde_json::Value;

use crate::training::{Home, RunFiles, on};
use crate::typed::{Answer, DOES_NOT_FIT, DONE, bytes, holdall_words};

/// What an evaluation found, whoever tells it.
const SCORES: [&str; 9] = [
    "pictures",
    "captions",
    "image_to_text",
    "text_to_image",
    "chance_r1",
    "label_top1",
    "label_top5",
    "chance_top1",
    "labelled",
];

/// `holdall eval RUN DATA OPTIONS`.
fn eval(run: &Path, data: &Path, options: &str) -> Answer {
    let words: [OsString; 3] = ["eval".into(), run.into(), data.into()];
    let options = options.split_whitespace().map(OsString::from);
    holdall_words(words.into_iter().chain(options))
}

#[track_caller]
fn assert_same_scores(found: &Value, expected: &Value) {
    for key in SCORES {
        assert_eq!(found[key], expected[key], "{key}");
    }
}

fn trained(home: &Home) -> RunFiles {
    // One evaluation: the best is the last.
    home.trained(
        "run",
        "--effective-batch 8 --epochs 1 --lr 1e-3 --set data.validation=40%",
    )
}

#[test]
fn a_run_is_evaluated_on_what_it_held_out() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    let line = &run.lines("evaluation")[0];
    for options in ["--json", "--json --batch-size 5", "--json --num-threads 1"] {
        let answer = on("eval", &run.path, options).exits(DONE);
        let scores = answer.json();
        assert_same_scores(&scores, line);
        assert_eq!(scores["model"], run.file("model").to_str().unwrap());
        let told = &answer.stderr;
        assert!(told.contains("unique texts out of 12"), "{told}");
        // The run has said how it read its data; of a small matrix nobody needs to hear.
        for part in ["The similarity matrix ", "(found by its name)"] {
            assert!(!told.contains(part), "{told}");
        }
        assert!(
            answer.stderr.contains("Weights: pretrained from "),
            "{}",
            answer.stderr
        );
    }
    let single = on("eval", &run.path, "--json --num-threads 1").json();
    assert!(
        bytes(&single, "process_bytes") <= bytes(&single, "planned_bytes"),
        "{single}"
    );
    let shown = on("eval", &run.path, "").exits(DONE).stdout;
    let pictures = format!("{} pictures of ", line["pictures"]);
    assert!(
        shown.starts_with(&pictures) && shown.contains("  labels        top-1 "),
        "{shown}"
    );
}

/// A run that is not finished has the best model so far.
/// A row for each picture, under the path of its table: the ranks are those that the figures are made of.
#[test]
fn every_row_has_its_ranks() {
    let home = Home::with_cars(24);
    let run = trained(&home);
    let file = home.path("ranks.csv");
    let options = format!("--json --ranks {}", file.display());
    let scores = eval(&run.path, &home.csv(), &options).exits(DONE).json();
    let read = |path: &Path| -> Vec<csv::StringRecord> {
        csv::Reader::from_path(path)
            .unwrap()
            .records()
            .map(Result::unwrap)
            .collect()
    };
    let (ranked, listed) = (read(&file), read(&home.csv()));
    assert_eq!(ranked.len(), 24);
    let mut firsts = 0;
    for (ranked, listed) in ranked.iter().zip(&listed) {
        assert_eq!((&ranked[0], &ranked[1]), (&listed[0], &listed[1]));
        firsts += usize::from(ranked[2].parse::<f64>().unwrap() <= 1.0);
    }
    let r1 = scores["image_to_text"]["r1"].as_f64().unwrap();
    assert!((firsts as f64 / 24.0 - r1).abs() < 1e-9, "{firsts} {r1}");
    let again = eval(&run.path, &home.csv(), &options);
    again.refused_with(&["--ranks", "found one that exists", "--overwrite"]);
}

#[test]
fn a_run_is_evaluated_before_it_is_finished() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    fs::remove_dir_all(run.file("model")).unwrap();
    let scores = on("eval", &run.path, "--json").exits(DONE).json();
    assert_same_scores(&scores, &run.lines("evaluation")[0]);
    assert!(
        scores["model"]
            .as_str()
            .unwrap()
            .contains("checkpoints/best-0000")
    );
}

#[test]
fn a_run_is_evaluated_on_other_data() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    let all = eval(&run.path, &home.csv(), "--json").exits(DONE).json();
    assert_eq!(
        (&all["pictures"], &all["labelled"]),
        (&30.into(), &30.into())
    );
    assert_eq!(all["data"], home.csv().to_str().unwrap());
    // The model folder alone knows its labels too.
    let alone = eval(&run.file("model"), &home.csv(), "--json")
        .exits(DONE)
        .json();
    assert_same_scores(&alone, &all);
    let folder = eval(&run.path, &home.path("cars"), "--json")
        .exits(DONE)
        .json();
    assert_same_scores(&folder, &all);
}

/// A list that lies elsewhere says where its pictures are.
#[test]
fn pictures_may_lie_elsewhere() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    let list = home.path("list.csv");
    fs::copy(home.csv(), &list).unwrap();
    let options = format!(
        "--json --set data.image_root={}",
        home.path("cars").display()
    );
    let scores = eval(&run.path, &list, &options).exits(DONE).json();
    assert_same_scores(&scores, &eval(&run.path, &home.csv(), "--json").json());
}

#[test]
fn what_cannot_be_evaluated_is_refused() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    let parts = [
        "model",
        "expected the folder of a run",
        "found a model alone",
        "DATA.csv",
    ];
    on("eval", &run.file("model"), "").refused_with(&parts);
    let parts = ["small", "expected a trained model", "found a preset"];
    holdall_words(["eval", "small"]).refused_with(&parts);
    eval(&run.path, &home.path("absent.csv"), "").refused_with(&["absent.csv", "found nothing"]);
    let answer = on("eval", &run.path, "--memory 5MiB").exits(DOES_NOT_FIT);
    assert!(
        answer.stderr.contains("the budget leaves"),
        "{}",
        answer.stderr
    );
}

#[test]
fn what_does_not_fit_is_refused_with_a_hint() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    on("eval", &run.path, "--memory 5MiB")
        .ends_with(DOES_NOT_FIT, &["the budget leaves", "--memory"]);
}

/// Rows that a column marks as test are read by `--part test` alone, and rows that were trained on are counted.
#[test]
fn test_rows_are_evaluated_by_their_part_and_trained_rows_are_named() {
    let home = Home::with_cars(30);
    let csv = fs::read_to_string(home.csv()).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    let side = |at: usize| match at % 10 {
        1 | 2 => "dev",
        3..=5 => "test",
        _ => "train",
    };
    let rows = lines.iter().enumerate().map(|(at, line)| match at {
        0 => format!("{line},Split"),
        _ => format!("{line},{}", side(at)),
    });
    fs::write(home.csv(), rows.collect::<Vec<String>>().join("\n")).unwrap();
    let words = home.words("run", "--effective-batch 8 --epochs 1 --lr 1e-3");
    let log = &holdall_words(words).exits(DONE).stderr;
    let run = home.run_named("run");
    for line in [
        "Validation: 6 of 30 rows, those that `Split` says (found by its name)",
        "Test: 9 rows set apart by `Split`",
    ] {
        assert!(log.contains(line), "{log}");
    }
    let pictures =
        |options: &str| on("eval", &run.path, options).exits(DONE).json()["pictures"].clone();
    assert_eq!(pictures("--json"), 6);
    assert_eq!(pictures("--json --part val"), 6);
    assert_eq!(pictures("--json --part train"), 15);
    assert_eq!(pictures("--json --part all"), 30);
    let test = on("eval", &run.path, "--json --part test").exits(DONE);
    let json = test.json();
    assert_eq!(json["pictures"], 9);
    assert_eq!(json["trained_on"]["by_path"], 0);
    assert!(!test.stderr.contains("trained on ("), "{}", test.stderr);
    let told = on("eval", &run.path, "--part test").exits(DONE).stdout;
    assert!(
        told.starts_with("9 pictures of ") && told.contains("image_labels.csv (test)\n"),
        "{told}"
    );
    // Three rows by their paths, and one picture under another name.
    let copied = home.path("cars/images/copy.jpg");
    fs::copy(home.path("cars/images/000009.jpg"), &copied).unwrap();
    let other: Vec<String> = [&lines[..1], &lines[7..10], &lines[3..6]]
        .concat()
        .iter()
        .map(|line| (*line).to_owned())
        .chain([lines[1].replace("images/000000.jpg", "images/copy.jpg")])
        .collect();
    let other_csv = home.path("cars/other.csv");
    fs::write(&other_csv, other.join("\n")).unwrap();
    let answer = eval(&run.path, &other_csv, "--json").exits(DONE);
    assert_eq!(
        answer.json()["trained_on"],
        serde_json::json!({"by_path": 3, "by_contents": 1, "by_pixels": 0, "near_copies": 0})
    );
    let careful = "Careful: 4 of 7 rows were trained on (3 by path, 1 by contents)";
    assert!(answer.stderr.contains(careful), "{}", answer.stderr);
    eval(&run.path, &other_csv, "--part test").refused_with(&["expected test rows", "found none"]);
}

/// A value for every key of the data section, and for what `eval` reads beside it, that differs from the default.
const KEYS: &[(&str, &str)] = &[
    ("seed", "5"),
    ("evaluation.captions", "1"),
    ("evaluation.seed", "3"),
    ("data.train", "nowhere.csv"),
    ("data.validation", "0.4"),
    ("data.image_root", "nowhere"),
    ("data.image", "body"),
    ("data.video", "shape"),
    ("data.group", "shape"),
    ("data.num_videos", "2"),
    ("data.frames", "2"),
    ("data.stride", "1"),
    ("data.start", "centred"),
    ("data.short_clips", "mask"),
    ("data.separator", ";"),
    ("data.caption", "a {colour}{color}"),
    ("data.label", "colour"),
    ("data.targets", "{colour: colour}"),
    ("data.tokenizer", "nowhere.json"),
    ("data.mask", "other"),
    ("data.image_subdir", "nowhere"),
    ("data.label_subdir", "nowhere"),
    ("data.classes", "[background, vein]"),
    (
        "data.colours",
        "{background: \"#000000\", vein: \"#0000ff\"}",
    ),
    ("data.binarize", "3"),
    ("data.ignore", "7"),
    ("data.field_of_view", "nowhere"),
    ("data.image_size", "48"),
    ("data.patch", "16"),
    ("data.foreground", "0.5"),
    ("data.augment", "{flip: true}"),
    ("data.pair_augment", "{flip: false}"),
    ("data.mixing", "{mixup: 0.4}"),
    ("data.decode", "fast"),
    ("data.bad_pictures", "fail"),
    ("data.unseen_labels", "skip"),
    ("data.max_skipped", "0"),
    ("data.replaced_pictures", "warn"),
    ("data.picture_check", "hash"),
];

/// A model of a task, the drawn data it was trained on, and other data with a broken row and a label that was not trained.
struct Case {
    task: TaskName,
    model: &'static str,
    drawn: &'static str,
    train: &'static str,
    other: &'static str,
    options: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        task: TaskName::Clip,
        model: "small",
        drawn: "cars",
        train: "image_labels.csv",
        other: "other.csv",
        options: "--set data.label=make",
    },
    Case {
        task: TaskName::Classify,
        model: "vit-demo",
        drawn: "cars",
        train: "image_labels.csv",
        other: "other.csv",
        options: "--set data.label=make",
    },
    Case {
        task: TaskName::Segment,
        model: "unet-demo",
        drawn: "vessels",
        train: "train",
        other: "test",
        options: "",
    },
    Case {
        task: TaskName::VideoText,
        model: "video-text-demo",
        drawn: "clips --frames 3",
        train: "clips.csv",
        other: "other.csv",
        options: "--set data.label=direction --set data.validation=0.3 --set evaluation.captions=4",
    },
];

/// Draws data, and a table of a third of it with a file that is missing and a label that nothing was trained on.
fn draw_of(case: &Case, folder: &Path) {
    let (count, size) = match case.model {
        "unet-demo" => (8, 64),
        _ => (36, 32),
    };
    let options = format!("{} --count {count} --size {size}", case.drawn);
    let words = ["data".into(), "sample".into()].into_iter();
    let options = options.split(' ').map(OsString::from);
    holdall_words(words.chain(options).chain([folder.into()])).exits(DONE);
    if case.other != "other.csv" {
        return;
    }
    let table = fs::read_to_string(folder.join(case.train)).unwrap();
    let lines: Vec<&str> = table.lines().take(14).collect();
    let path = lines[1].split(',').next().unwrap();
    let missing = lines[1].replacen(path, "nowhere", 1);
    let mut unseen = format!("{}\n", lines[2]);
    for label in [
        "Brixel", "Corvane", "Dunmora", "Halvik", "Lumino", "Pellaro", "Quarzon", "Tavinor",
    ] {
        unseen = unseen.replace(&format!(",{label},"), ",unseen,");
    }
    for label in ["up", "down", "left", "right"] {
        unseen = unseen.replace(&format!(",{label},"), ",unseen,");
    }
    let other = format!("{}\n{unseen}{missing}\n", lines.join("\n"));
    assert!(other.contains(",unseen,"));
    fs::write(folder.join(case.other), other).unwrap();
}

/// Exit code, scores or predictions, and what was said, without bytes.
fn outcome(words: &[OsString], set: Option<&str>) -> (i32, Value, String) {
    let set = set.map(|set| ["--set".into(), set.into()]);
    let answer = holdall_words(words.iter().cloned().chain(set.into_iter().flatten()));
    let mut json: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
    if let Some(keys) = json.as_object_mut() {
        keys.retain(|key, _| !key.ends_with("_bytes"));
    }
    (answer.code, json, answer.stderr)
}

/// Keys that matter where a row is broken, or has a label that was not trained on: rows of the other tables alone.
const OF_BROKEN_ROWS: [&str; 3] = [
    "data.bad_pictures",
    "data.unseen_labels",
    "data.max_skipped",
];

/// The settings without a trace in what a model's commands do.
fn silent_sets(case: &Case) -> Vec<String> {
    let home = Home::empty();
    let (data, run) = (home.path("data"), home.path("run"));
    draw_of(case, &data);
    let words: [OsString; 2] = ["train".into(), data.join(case.train).into()];
    let options = format!(
        "--task {} --model {} --max-steps 1 {}",
        case.task.name(),
        case.model,
        case.options
    );
    let options = options.split_whitespace().map(OsString::from);
    let out: [OsString; 2] = ["--out".into(), run.clone().into()];
    holdall_words(words.into_iter().chain(options).chain(out)).exits(DONE);
    let other = data.join(case.other);
    let mut commands: [(Reader, Vec<OsString>); 3] = [
        (Reader::Eval, vec!["eval".into(), run.clone().into()]),
        (
            Reader::EvalOfData,
            vec!["eval".into(), run.clone().into(), other.clone().into()],
        ),
        (
            Reader::Predict,
            vec!["predict".into(), run.into(), other.into()],
        ),
    ];
    if case.task == TaskName::Segment {
        commands[2].0 = Reader::PredictFiles;
        let masks = home.path("masks").into();
        commands[2]
            .1
            .extend(["--out".into(), masks, "--overwrite".into()]);
    }
    let mut silent = Vec::new();
    for (reader, mut words) in commands {
        words.push("--json".into());
        let usual = outcome(&words, None);
        assert!(usual.0 < 2, "{words:?}: {}", usual.2);
        let has_broken_rows = reader != Reader::Eval && case.task != TaskName::Segment;
        for (key, value) in KEYS {
            let set = format!("{key}={value}");
            let is_refused = check_sets(std::slice::from_ref(&set), case.task, reader).is_err();
            let needs_broken_rows = OF_BROKEN_ROWS.contains(key) && !has_broken_rows;
            if !is_refused && !needs_broken_rows && outcome(&words, Some(&set)) == usual {
                silent.push(format!("{reader:?} of {}: {set}", case.model));
            }
        }
    }
    silent
}

/// Keys x tasks x `eval RUN`, `eval RUN DATA`, `predict RUN DATA`: each `--set` changes the outcome, gets a warning or is refused.
/// Training, plans and certificates have the same test in `key_effects`.
#[test]
fn every_key_changes_what_eval_and_predict_do_or_is_answered() {
    let defaults = serde_json::to_value(RunConfig::default()).unwrap();
    for key in defaults["data"].as_object().unwrap().keys() {
        assert!(
            KEYS.iter()
                .any(|(known, _)| *known == format!("data.{key}")),
            "data.{key}"
        );
    }
    let silent: Vec<String> = std::thread::scope(|scope| {
        let cases: Vec<_> = CASES
            .iter()
            .map(|case| scope.spawn(|| silent_sets(case)))
            .collect();
        cases
            .into_iter()
            .flat_map(|case| case.join().unwrap())
            .collect()
    });
    assert!(silent.is_empty(), "{silent:#?}");
}

/// A terminal is no place for half words.
#[cfg(unix)]
#[test]
fn on_a_terminal_lines_break_between_words() {
    use crate::terminal::Terminal;

    let home = Home::with_cars(24);
    home.trained("run", "--effective-batch 8 --epochs 1 --num-threads 2");
    let script = "\"$HOLDALL\" eval \"$FOLDER/run\" --device cpu; echo \"ended with $?\"";
    let Some(terminal) = Terminal::running("eval", [80, 40], home.folder(), script) else {
        return;
    };
    let screen = terminal.shows(|screen| screen.contains("ended with"));
    assert!(screen.contains("\n    top-5 "), "{screen}");
}
