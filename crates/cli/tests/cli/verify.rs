//! The certificate: yes to every split that Holdall makes, no to plain accumulation.

use serde_json::Value;

use crate::typed::{BAD_INPUT, DONE, FOUND, holdall};

const TOLERANCE: f64 = 1e-5;

fn keys(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn splits(certificate: &Value) -> &[Value] {
    certificate["splits"].as_array().unwrap()
}

/// Everything within the tolerance, in sum and split by split.
#[track_caller]
fn assert_exact(certificate: &Value) {
    assert_eq!(certificate["exact"], true, "{certificate}");
    assert!(!splits(certificate).is_empty());
    for object in splits(certificate).iter().chain([certificate]) {
        for key in ["max_relative_error", "loss_difference"] {
            let error = object[key].as_f64().unwrap();
            assert!((0.0..TOLERANCE).contains(&error), "{key} of {object}");
        }
        // Where nothing differs, nobody is worst.
        let named = !object["worst_parameter"].as_str().unwrap().is_empty();
        assert!(named || object["max_relative_error"] == 0.0, "{object}");
    }
}

#[test]
fn the_usual_splits_are_exact() {
    let answer = holdall("verify small --effective-batch 10 --labels 5 --json").exits(DONE);
    let certificate = answer.json();
    assert_exact(&certificate);
    assert_eq!(
        keys(&certificate),
        [
            "exact",
            "max_relative_error",
            "worst_parameter",
            "loss_difference",
            "tolerance",
            "precision",
            "splits"
        ]
    );
    assert_eq!(certificate["tolerance"], TOLERANCE);
    assert_eq!(certificate["precision"], "f32");
    let has = |key: &str, value: Value| splits(&certificate).iter().any(|of| of[key] == value);
    assert!(has("batch_size", 1.into()), "one sample at a time");
    assert!(has("batch_size", 3.into()), "an uneven tail");
    for recompute in ["none", "cheap", "blocks"] {
        assert!(has("recompute", recompute.into()), "{recompute}");
    }
}

#[test]
fn every_policy_is_exact() {
    for recompute in ["none", "cheap", "blocks", "auto"] {
        let options = "--effective-batch 6 --labels 3 --split 4,1";
        let answer = holdall(&format!(
            "verify small {options} --recompute {recompute} --json"
        ));
        let certificate = answer.exits(DONE).json();
        assert_exact(&certificate);
        let all_of_it = splits(&certificate)
            .iter()
            .all(|split| split["recompute"] == recompute);
        assert!(all_of_it || recompute == "auto", "{certificate}");
    }
}

#[test]
fn a_split_with_an_uneven_tail_is_exact() {
    let options = "--effective-batch 10 --labels 5 --split 3 --num-threads 3";
    let certificate = holdall(&format!("verify small {options} --json")).exits(DONE);
    let certificate = certificate.json();
    assert_exact(&certificate);
    for split in splits(&certificate) {
        assert_eq!(split["batch_size"], 3);
        assert_eq!(split["gradient_accumulation"], 4);
    }
}

/// Gradients of very small batches nearly cancel, and rounding shows: the seeds are those where it once did.
#[test]
fn the_smallest_batches_are_exact_too() {
    let mut wrong = Vec::new();
    for (effective_batch, seed) in [(2, 0), (2, 2), (4, 9)] {
        let options = format!("--effective-batch {effective_batch} --seed {seed}");
        let typed = format!("verify small {options} --labels 5 --split 1 --recompute none --json");
        let certificate = holdall(&typed).json();
        if certificate["exact"] != true {
            let error = &certificate["max_relative_error"];
            wrong.push(format!(
                "{options}: {error} of {}",
                certificate["worst_parameter"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_batch_size_is_verified_as_asked() {
    let options = "--batch-size 3 --gradient-accumulation 2 --recompute cheap --tokens 8";
    let certificate = holdall(&format!("verify small {options} --json")).exits(DONE);
    let certificate = certificate.json();
    assert_exact(&certificate);
    for split in splits(&certificate) {
        assert_eq!(split["batch_size"], 3);
        assert_eq!(split["gradient_accumulation"], 2);
    }
}

#[test]
fn the_certificate_can_say_no() {
    let options = "--effective-batch 10 --labels 5 --split 4 --plain-accumulation";
    let answer = holdall(&format!("verify small {options} --json")).exits(FOUND);
    let certificate = answer.json();
    assert_eq!(certificate["exact"], false);
    assert!(certificate["max_relative_error"].as_f64().unwrap() > 1e-2);
    let shown = holdall(&format!("verify small {options}")).exits(FOUND);
    assert!(shown.stdout.contains("NOT EXACT: "), "{}", shown.stdout);
}

#[test]
fn people_get_a_table_and_a_verdict() {
    let answer = holdall("verify small --effective-batch 8 --split 4,3 --recompute cheap");
    let answer = answer.exits(DONE);
    assert!(answer.stderr.contains("Weights: RANDOM"));
    let lines: Vec<&str> = answer.stdout.lines().collect();
    let heading: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        heading.join(" "),
        "split recompute kept largest error parameter"
    );
    assert!(lines[1].trim_start().starts_with("4 x 2"), "{}", lines[1]);
    assert!(lines.last().unwrap().starts_with("EXACT: every split of 8"));
}

#[test]
fn splits_that_make_no_sense_are_refused() {
    for (options, part) in [
        ("--split 0", "0"),
        ("--split 100 --effective-batch 6", "100"),
        ("--split three", "three"),
    ] {
        let answer = holdall(&format!("verify small {options}")).exits(BAD_INPUT);
        assert!(answer.stderr.contains(part), "{}", answer.stderr);
        assert_eq!(answer.stdout, "");
    }
}

/// The same bits whatever the number of threads: the certificate as a whole is equal.
#[test]
fn threads_do_not_change_the_certificate() {
    let certificate = |threads: usize| {
        let options = "--effective-batch 6 --labels 3 --split 4 --recompute blocks";
        holdall(&format!(
            "verify small {options} --num-threads {threads} --json"
        ))
        .exits(DONE)
        .json()
    };
    assert_eq!(certificate(1), certificate(4));
}
