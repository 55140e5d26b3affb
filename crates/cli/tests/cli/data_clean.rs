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
        "    same picture, two labels            2    8.3%",
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

    // What is there stays, unless the user says otherwise: it may have been edited by hand.
    let taken = data("clean", &home.path("cars"), "");
    taken.refused_with(&[
        "image_labels_cleaned.csv",
        "found one that exists",
        "--overwrite",
    ]);
    // Again: from the source, though a cleaner one is there now.
    let again = data("clean", &home.path("cars"), "--json --overwrite").exits(DONE);
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
        let options = format!("--json --overwrite {options}");
        let json = data("clean", &home.csv(), &options).exits(DONE);
        json.json()["filtered"]["rows"].as_u64().unwrap()
    };
    // Three of each make; then two of one, and one of these is the picture of another make.
    assert_eq!(rows("--min-per-label 3"), 24);
    fs::copy(
        home.path("cars/images/000000.jpg"),
        home.path("cars/images/000001.jpg"),
    )
    .unwrap();
    // Nobody knows which of the two makes is right: both rows go, unless one is chosen.
    assert_eq!(rows(""), 22);
    assert_eq!(rows("--conflicts keep-first"), 23);
    assert_eq!(rows("--conflicts keep-first --duplicates keep"), 23);
    assert_eq!(rows("--conflicts keep --duplicates keep"), 24);
    // Both makes are down to two pictures.
    assert_eq!(rows("--min-per-label 3"), 18);
    data("clean", &home.csv(), "--overwrite --min-size 33")
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

/// The line that is printed trains on the same rows: config, captions and split are all in it.
#[test]
fn hints_repeat_what_was_typed() {
    let home = Home::with_cars(20);
    let csv = fs::read_to_string(home.csv()).unwrap();
    let sides = ["train", "train", "val", "test"];
    let rows = csv.lines().enumerate().map(|(at, line)| match at {
        0 => format!("{line},Side"),
        _ => format!("{line},{}", sides[at % 4]),
    });
    fs::write(home.csv(), rows.collect::<Vec<String>>().join("\n")).unwrap();
    let config = home.path("cars.yml");
    let text =
        "data: {train: cars/image_labels.csv, caption: 'a {make}', validation: {column: Side}}\n";
    fs::write(&config, text).unwrap();
    let cleaned = data("clean", &config, "").exits(DONE);
    let line = format!(
        " train {} --set data.train={}",
        config.display(),
        home.path("cars/image_labels_filtered.csv").display()
    );
    assert!(cleaned.stderr.contains(&line), "{}", cleaned.stderr);
    let shards = home.path("shards");
    let out = format!("--out {} --set data.bad_pictures=skip", shards.display());
    let packed = data("pack", &config, &out).exits(DONE);
    let line = format!(
        " train {} --set data.train={} --set data.bad_pictures=skip",
        config.display(),
        shards.display()
    );
    assert!(packed.stderr.contains(&line), "{}", packed.stderr);
    // The shards have the split, and `check` sees it as training does.
    let options = format!("--set data.train={}", shards.display());
    let checked = data("check", &config, &options);
    let sides = "20 rows (5 to validate on, 5 to test on)";
    assert!(
        checked.stdout.contains(sides),
        "{}\n{}",
        checked.stdout,
        checked.stderr
    );
}
