//! What is wrong with data, configs and numbers is said before anything is trained: what it is about, what was expected
//! and found, and what to do.

use std::ffi::OsString;
use std::fs;

use crate::training::{Home, on};
use crate::typed::{Answer, BAD_INPUT, DOES_NOT_FIT, DONE, holdall_words};

const ONE_EPOCH: &str = "--effective-batch 8 --epochs 1";

/// `holdall train HOME/run.yml --out HOME/run`, with this text in the file.
fn train_config(home: &Home, text: &str) -> Answer {
    let config = home.path("run.yml");
    fs::write(&config, text).unwrap();
    on(
        "train",
        &config,
        &format!("--out {}", home.path("run").display()),
    )
}

/// One epoch with `--set SET`, which may have spaces.
fn train_with(home: &Home, set: &str) -> Answer {
    let mut words = home.words("run", ONE_EPOCH);
    words.extend(["--set".into(), set.into()]);
    holdall_words(words)
}

/// Refused, and nothing was begun.
#[track_caller]
fn refused(home: &Home, answer: Answer, parts: &[&str]) {
    answer.refused_with(parts);
    assert!(!home.path("run").exists(), "a refused run left a folder");
}

fn change_csv(home: &Home, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(home.csv()).unwrap();
    fs::write(home.csv(), change(text)).unwrap();
}

#[test]
fn keys_and_values_of_a_config() {
    let home = Home::with_cars(8);
    let text = |more: &str| format!("model: small\ndata: {{train: cars}}\n{more}");
    for (more, parts) in [
        (
            "train:\n  batch_sise: 8\n",
            ["line 4", "batch_sise", "did you mean `batch_size`?"].as_slice(),
        ),
        ("trian: {}\n", &["line 3", "trian", "did you mean `train`?"]),
        (
            "train:\n  epochs: many\n",
            &["line 4", "epochs", "expected a whole number", "many"],
        ),
        (
            "train: {lr: fast}\n",
            &["line 3", "train.lr", "expected a number", "fast"],
        ),
        (
            "seed: abc\n",
            &["line 3", "seed", "expected a whole number", "abc"],
        ),
        (
            "seed: 1.5\n",
            &["line 3", "seed", "expected a whole number", "1.5"],
        ),
        (
            "seed: [1]\n",
            &["line 3", "seed", "expected a single value", "[1]"],
        ),
        (
            "train: {early_stop: 3, eval_every: none}\n",
            &["early_stop", "eval_every"],
        ),
    ] {
        let mut parts = parts.to_vec();
        parts.push("run.yml");
        refused(&home, train_config(&home, &text(more)), &parts);
    }
    let below_data = "model: small\ndata:\n  train: cars\n  validation: 150%\n";
    let parts = ["run.yml", "line 4", "150%", "less than 100%"];
    refused(&home, train_config(&home, below_data), &parts);
}

#[test]
fn values_that_are_set() {
    let home = Home::with_cars(8);
    for (set, parts) in [
        (
            "seed=abc",
            ["--set seed=abc", "expected a whole number"].as_slice(),
        ),
        (
            "seed=-1",
            &["--set seed=-1", "expected a whole number of at least 0"],
        ),
        (
            "data.validation=150%",
            &["150%", "expected more than 0% and less than 100%"],
        ),
        (
            "data.validation=1.5",
            &["1.5", "expected more than 0% and less than 100%"],
        ),
        ("data.validation=0%", &["0%", "expected more than 0%"]),
        ("data.augment.crop=0", &["crop", "expected", "above 0"]),
        ("train.eval_on=[test]", &["eval_on", "test", "validation"]),
    ] {
        refused(&home, train_with(&home, set), parts);
    }
}

#[test]
fn a_seed_that_is_typed_wrongly_is_named() {
    let home = Home::with_cars(8);
    for seed in ["abc", "1.5", "-1"] {
        let answer = home
            .train(&format!("{ONE_EPOCH} --seed {seed}"))
            .exits(BAD_INPUT);
        let named = format!("invalid value '{seed}' for '--seed <SEED>'");
        assert!(answer.stderr.contains(&named), "{}", answer.stderr);
        assert!(!home.path("run").exists());
    }
}

#[test]
fn a_seed_that_is_typed_wrongly_is_explained() {
    let home = Home::with_cars(8);
    let answer = home.train(&format!("{ONE_EPOCH} --seed abc"));
    answer.refused_with(&["--seed", "abc", "expected a whole number"]);
}

#[test]
fn a_metric_that_does_not_exist() {
    let home = Home::with_cars(8);
    let parts = ["best_metric", "labl_top1", "label_top1"];
    refused(
        &home,
        train_with(&home, "train.best_metric=labl_top1"),
        &parts,
    );
}

#[test]
fn columns_that_are_not_there() {
    let home = Home::with_cars(8);
    let [csv, found] = ["image_labels.csv", "found image, caption, make"];
    for (set, parts) in [
        (
            "data.label=mak",
            [
                "expected a column `mak` for `label`",
                "did you mean `make`?",
            ],
        ),
        (
            "data.image=picture",
            ["expected a column `picture` for `image`", "columns found"],
        ),
        (
            "data.caption=captoin",
            ["expected caption `captoin`", "did you mean `caption`?"],
        ),
        (
            "data.caption=a photo of a car",
            ["expected caption `a photo of a car`", "braces"],
        ),
        (
            "data.caption=a photo of a {maker}",
            ["expected {maker} to be a column", "did you mean `make`?"],
        ),
        (
            "data.validation={column: fold}",
            ["expected a column `fold` for `validation`", "found"],
        ),
    ] {
        let answer = train_with(&home, set);
        refused(&home, answer, &[csv, found, parts[0], parts[1]]);
    }
    let answer = train_with(&home, "data.caption=a photo of a {make");
    refused(
        &home,
        answer,
        &["a photo of a {make", "expected a closing brace"],
    );
    change_csv(&home, |text| {
        text.replacen("image,caption", "photo,words", 1)
    });
    let parts = [
        csv,
        "expected a column of images named image",
        "found photo, words",
        "image: photo",
    ];
    refused(&home, home.train(ONE_EPOCH), &parts);
}

#[test]
fn a_missing_image_is_named_with_its_row() {
    let home = Home::with_cars(8);
    fs::remove_file(home.path("cars/images/000005.jpg")).unwrap();
    let parts = [
        "image_labels.csv, row 7",
        "cars/images/000005.jpg",
        "1 of 8 images",
        "image_root",
    ];
    refused(&home, home.train(ONE_EPOCH), &parts);
}

/// A broken picture is met when its turn comes, and named then; the run can go on once it is mended.
#[test]
fn a_broken_image_is_named_when_it_is_met() {
    let home = Home::with_cars(24);
    // Behind the first batch, which is read before the run begins.
    let broken = home.path("cars/images/000020.jpg");
    let whole = fs::read(&broken).unwrap();
    let options = format!("{ONE_EPOCH} --set data.validation=none --set data.bad_pictures=fail");
    let cases: [(&[u8], &str); 4] = [
        (b"<html>not found</html>", "begins with `<html>"),
        (&whole[..whole.len() / 2], "cut short"),
        (b"", "expected a picture"),
        (&whole[..2], "expected"),
    ];
    for (bytes, part) in cases {
        fs::write(&broken, bytes).unwrap();
        let answer = home.train(&options);
        answer.refused_with(&["000020.jpg", "expected", part]);
        fs::remove_dir_all(home.path("run")).unwrap();
    }
    fs::write(&broken, &whole[..100]).unwrap();
    home.train(&options).refused_with(&["000020.jpg"]);
    fs::write(&broken, &whole).unwrap();
    home.run().resume("").exits(DONE);
    // Gone since the run began.
    fs::remove_file(&broken).unwrap();
    home.run()
        .resume("--epochs 2")
        .refused_with(&["image_labels.csv, row 22", "000020.jpg"]);
}

#[test]
fn data_that_is_not_there() {
    let home = Home::with_cars(8);
    let whole = fs::read_to_string(home.csv()).unwrap();
    let header = whole.lines().next().unwrap();
    fs::write(home.csv(), format!("{header}\n")).unwrap();
    let parts = [
        "image_labels.csv",
        "expected rows after the header",
        "found none",
    ];
    refused(&home, home.train(ONE_EPOCH), &parts);
    fs::write(home.csv(), "").unwrap();
    let parts = [
        "image_labels.csv",
        "expected a header",
        "found an empty file",
    ];
    refused(&home, home.train(ONE_EPOCH), &parts);
    fs::remove_file(home.csv()).unwrap();
    refused(
        &home,
        home.train(ONE_EPOCH),
        &[
            "cars",
            "expected something to learn",
            "found pictures alone",
        ],
    );
    fs::remove_dir_all(home.path("cars")).unwrap();
    refused(
        &home,
        home.train(ONE_EPOCH),
        &[
            "cars",
            "expected a CSV, JSON lines, Parquet",
            "found nothing",
        ],
    );
}

fn with_one_make() -> Home {
    let home = Home::with_cars(24);
    change_csv(&home, |text| {
        let mut lines = text.lines();
        let header = lines.next().unwrap();
        let make = text
            .lines()
            .nth(1)
            .unwrap()
            .split(',')
            .rev()
            .nth(6)
            .unwrap();
        let of_make = lines.filter(|line| line.contains(&format!(",{make},")));
        let rows: Vec<&str> = [header].into_iter().chain(of_make).collect();
        format!("{}\n", rows.join("\n"))
    });
    home
}

#[test]
fn one_class_is_nothing_to_tell_apart() {
    let home = with_one_make();
    let parts = [
        "image_labels.csv",
        "column `make`",
        "expected at least two labels",
        "found only `",
    ];
    refused(&home, train_with(&home, "data.label=make"), &parts);
}

/// The hint says to leave `label` out. It was left out: `make` was found by its name.
#[test]
fn one_class_can_be_trained_without_a_head() {
    let home = with_one_make();
    train_with(&home, "data.label=null").exits(DONE);
}

#[test]
fn a_tokenizer_that_cannot_be_read() {
    let home = Home::with_cars(8);
    let tokenizer = home.path("tokenizer.json");
    let set = format!("data.tokenizer={}", tokenizer.display());
    refused(
        &home,
        train_with(&home, &set),
        &["tokenizer.json", "could not read"],
    );
    for garbage in ["garbage", "{}", "{\"version\": \"1.0\", \"model\": 3}", ""] {
        fs::write(&tokenizer, garbage).unwrap();
        let parts = [
            "tokenizer.json",
            "expected a tokenizer.json of Hugging Face",
            "found",
        ];
        refused(&home, train_with(&home, &set), &parts);
    }
}

#[test]
fn a_budget_that_is_too_small() {
    let home = Home::with_cars(16);
    let options = format!("{ONE_EPOCH} --memory 20MiB");
    let parts = [
        "the budget is 20.0 MiB",
        "smallest that would do",
        "--memory",
    ];
    home.train(&options).ends_with(DOES_NOT_FIT, &parts);
    let answer = home.train(&format!("{options} --json")).exits(DOES_NOT_FIT);
    let refusal = answer.json();
    assert_eq!(refusal["budget_bytes"], 20 << 20);
    assert!(!home.path("run").exists());
    // What is offered works.
    let smallest = refusal["smallest_budget_bytes"]
        .as_u64()
        .unwrap()
        .div_ceil(1 << 20);
    let summary = home.train(&format!(
        "{ONE_EPOCH} --memory {smallest}MiB --num-threads 1 --json"
    ));
    assert_eq!(summary.exits(DONE).json()["budget_bytes"], smallest << 20);
}

#[test]
fn half_precision_on_a_cpu_is_answered_and_the_run_goes_on() {
    let home = Home::with_cars(8);
    let answer = home
        .train(&format!("{ONE_EPOCH} --precision fp16"))
        .exits(DONE);
    let note = "Precision: f32 (fp16 was asked for; the CPU computes in f32)\n";
    assert!(answer.stderr.contains(note), "{}", answer.stderr);
    assert_eq!(home.run().json("summary.json")["precision"], "f32");
}

#[test]
fn a_label_that_the_head_does_not_know() {
    let home = Home::with_cars(24);
    let run = home.trained("run", ONE_EPOCH);
    let test = home.path("cars/test.csv");
    let rows =
        "image,caption,make\nimages/000001.jpg,a car,\nimages/000002.jpg,a photo of a Zorg,Zorg\n";
    fs::write(&test, rows).unwrap();
    let eval = |options: &[&str]| {
        let words: [OsString; 3] = ["eval".into(), run.path.clone().into(), test.clone().into()];
        holdall_words(words.into_iter().chain(options.iter().map(OsString::from)))
    };
    let parts = [
        "test.csv, row 3",
        "column `make`",
        "labels of the trained head",
        "found `Zorg`",
    ];
    eval(&[]).refused_with(&parts);

    // Beside labels that it knows: counted, and wrong or left out as the user likes.
    let known = fs::read_to_string(home.csv()).unwrap();
    let make = known.lines().nth(4).unwrap().split(',').nth(2).unwrap();
    let rows = format!("{rows}images/000003.jpg,a photo of a {make},{make}\n");
    fs::write(&test, rows).unwrap();
    let wrong = eval(&["--json"]).exits(DONE);
    let said = "1 row with a `make` that was not trained on (Zorg 1): scored as wrong";
    assert!(wrong.stderr.contains(said), "{}", wrong.stderr);
    assert!(
        wrong.stderr.contains("1 row without a `make`"),
        "{}",
        wrong.stderr
    );
    let skipped = eval(&["--json", "--set", "data.unseen_labels=skip"]).exits(DONE);
    let [wrong, skipped] = [wrong, skipped].map(|answer| answer.json());
    assert_eq!(
        (&wrong["labelled"], &skipped["labelled"]),
        (&2.into(), &1.into())
    );
    let [half, whole] = [&wrong, &skipped].map(|scores| scores["label_top1"].as_f64().unwrap());
    assert_eq!(2.0 * half, whole);
    eval(&["--set", "data.unseen_labels=fail"]).refused_with(&parts);
}
