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
        for part in ["unique texts out of 12", "The similarity matrix "] {
            assert!(answer.stderr.contains(part), "{}", answer.stderr);
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
        answer.stderr.contains("error: the run does not fit"),
        "{}",
        answer.stderr
    );
}

#[test]
fn what_does_not_fit_is_refused_with_a_hint() {
    let home = Home::with_cars(30);
    let run = trained(&home);
    on("eval", &run.path, "--memory 5MiB").ends_with(DOES_NOT_FIT, &["5.0 MiB", "--memory"]);
}
