//! `holdall data clean`: two CSVs beside the one that was read, which stays as it is, and training takes the better one.

use std::fs;

use crate::data_check::{data, with_defects};
use crate::training::{Home, on};
use crate::typed::DONE;

#[test]
fn two_csvs_and_what_went() {
    let home = with_defects();
    let before = fs::read_to_string(home.csv()).unwrap();
    let answer = data("clean", &home.path("cars"), "").exits(DONE);
    for line in [
        "image_labels.csv: 24 rows, not touched",
        "  cannot be used                        7     29%",
        "    cut short                           1    4.2%",
        "  filtered out                ",
        "    duplicate                           1    4.2%",
        "image_labels_cleaned.csv: 17 rows",
    ] {
        assert!(answer.stdout.contains(line), "{line}\n{}", answer.stdout);
    }
    assert_eq!(fs::read_to_string(home.csv()).unwrap(), before);
    let cleaned = fs::read_to_string(home.path("cars/image_labels_cleaned.csv")).unwrap();
    let kept: Vec<&str> = before
        .lines()
        .take(2)
        .chain(before.lines().skip(6).take(3))
        .collect();
    let kept = [kept, before.lines().skip(12).collect()].concat();
    assert_eq!(cleaned, kept.join("\r\n") + "\r\n");

    // Again: from the source, though a cleaner one is there now.
    let again = data("clean", &home.path("cars"), "--json").exits(DONE);
    assert!(
        again
            .stderr
            .contains("image_labels_cleaned.csv was there and is replaced")
    );
    let json = again.json();
    assert_eq!(json["rows"], 24);
    assert_eq!(json["cleaned"]["rows"], 17);
    let gone = |file: &str| -> u64 {
        let gone = json[file]["gone"].as_array().unwrap().iter();
        gone.map(|gone| gone["count"].as_u64().unwrap()).sum()
    };
    assert_eq!(gone("cleaned"), 24 - 17);
    let filtered = json["filtered"]["rows"].as_u64().unwrap();
    assert_eq!(gone("filtered"), 17 - filtered);
    // What is left is good, and is what training takes.
    data("check", &home.path("cars"), "").exits(DONE);
    let left = fs::read_dir(home.path("cars")).unwrap().count();
    assert_eq!(left, 4, "nothing but two CSVs came");
}

#[test]
fn filters_are_as_asked() {
    let home = Home::with_cars(24);
    let rows = |options: &str| {
        let json = data("clean", &home.csv(), &format!("--json {options}")).exits(DONE);
        json.json()["filtered"]["rows"].as_u64().unwrap()
    };
    // Three of each make; then two of one, and one of these is the picture of another make.
    assert_eq!(rows("--min-per-label 3"), 24);
    fs::copy(
        home.path("cars/images/000000.jpg"),
        home.path("cars/images/000001.jpg"),
    )
    .unwrap();
    assert_eq!(rows(""), 23);
    assert_eq!(rows("--duplicates keep"), 24);
    assert_eq!(rows("--min-per-label 3"), 21);
    data("clean", &home.csv(), "--min-size 33")
        .refused_with(&["cleaning would remove every one of 24: too small"]);
}

#[test]
fn what_was_cleaned_is_not_cleaned_again() {
    let home = Home::with_cars(24);
    data("clean", &home.csv(), "").exits(DONE);
    let cleaned = home.path("cars/image_labels_cleaned.csv");
    let parts = [
        "image_labels_cleaned.csv: expected a CSV to clean",
        "image_labels.csv instead",
    ];
    data("clean", &cleaned, "").refused_with(&parts);
}

/// A CSV with bad rows trains once it is cleaned.
#[test]
fn a_cleaned_folder_trains() {
    let home = with_defects();
    on(
        "train",
        &home.csv(),
        "--model small --epochs 1 --effective-batch 8 --out /nowhere",
    )
    .refused_with(&["row "]);
    data("clean", &home.csv(), "").exits(DONE);
    let answer = home.train("--epochs 1 --effective-batch 8").exits(DONE);
    assert!(answer.stderr.contains("Data: "), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("image_labels_filtered.csv"),
        "{}",
        answer.stderr
    );
}
