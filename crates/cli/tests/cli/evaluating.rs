//! `holdall eval`: the scores of a run are those that it had when it was trained.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

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
