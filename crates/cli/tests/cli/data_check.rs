//! `holdall data check`: a row of each defect is found, on stdout, with an exit code that scripts can use.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::training::Home;
use crate::typed::{Answer, BAD_INPUT, DONE, FOUND, holdall_words};

/// `holdall data COMMAND PATH OPTIONS`.
pub fn data(command: &str, path: &Path, options: &str) -> Answer {
    let words = ["data".into(), command.into(), path.as_os_str().to_owned()];
    holdall_words(
        words
            .into_iter()
            .chain(options.split_whitespace().map(Into::into)),
    )
}

/// Drawn cars, with a row of each of these defects from line 3 on.
pub fn with_defects() -> Home {
    let home = Home::with_cars(24);
    let image = |number: usize| home.path(&format!("cars/images/{number:06}.jpg"));
    fs::remove_file(image(1)).unwrap();
    fs::write(image(2), "").unwrap();
    fs::write(image(3), "<!DOCTYPE html>").unwrap();
    let whole = fs::read(image(4)).unwrap();
    fs::write(image(4), &whole[..whole.len() - 100]).unwrap();
    fs::copy(image(0), image(5)).unwrap();
    fs::write(image(6), bitmap(4, 40)).unwrap();
    fs::write(image(7), bitmap(20, 500)).unwrap();
    let mut promises = bitmap(1, 1);
    promises[18..26].copy_from_slice(&[0x60, 0xea, 0, 0, 0x60, 0xea, 0, 0]);
    fs::write(image(8), promises).unwrap();
    let csv = fs::read_to_string(home.csv()).unwrap();
    let mut lines: Vec<String> = csv.lines().map(str::to_owned).collect();
    lines[10] = lines[10].replace("images/000009.jpg", "");
    let header: Vec<&str> = lines[0].split(',').collect();
    assert_eq!(header[..3], ["image", "caption", "make"]);
    lines[11] = format!("images/000010.jpg,,{}", "Corvane,x,x,x,x,x,x");
    fs::write(home.csv(), lines.join("\r\n")).unwrap();
    home
}

/// A BMP of one colour.
pub fn bitmap(width: u32, height: u32) -> Vec<u8> {
    let row_bytes = (width * 3).div_ceil(4) * 4;
    let mut bytes = b"BM".to_vec();
    for number in [54 + row_bytes * height, 0, 54, 40, width, height] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.resize(54, 0);
    bytes.resize((54 + row_bytes * height) as usize, 77);
    bytes
}

#[test]
fn good_data_is_said_to_be_good() {
    let home = Home::with_cars(24);
    let answer = data("check", &home.path("cars"), "").exits(DONE);
    assert!(
        answer.stdout.contains("image_labels.csv: 24 rows"),
        "{}",
        answer.stdout
    );
    assert!(
        answer.stdout.contains("Nothing wrong in 24 rows"),
        "{}",
        answer.stdout
    );
    assert!(
        answer.stderr.contains("Label column: `make`"),
        "{}",
        answer.stderr
    );
    let json = data("check", &home.csv(), "--json").exits(DONE).json();
    assert_eq!(json["verdict"], "clean");
    assert_eq!(json["findings"], Value::Array(Vec::new()));
}

#[test]
fn a_row_of_each_defect() {
    let home = with_defects();
    let before = fs::read(home.csv()).unwrap();
    let answer = data("check", &home.csv(), "--set data.validation=none").exits(FOUND);
    for line in [
        "no image named                  1    4.2%  removes  row 11",
        "missing                         1    4.2%  removes  row 3 images/000001.jpg",
        "zero size                       1    4.2%  removes  row 4 images/000002.jpg",
        "not an image                    1    4.2%  removes  row 5 images/000003.jpg",
        "cut short                       1    4.2%  removes  row 6 images/000004.jpg",
        "too many pixels                 1    4.2%  removes  row 10 60000 x 60000",
        "empty caption                   1    4.2%  removes  row 12 images/000010.jpg",
        "same picture, two labels        2    8.3%  filters  row 2\n    `",
        " images/000000.jpg\n",
        "too small                       1    4.2%  filters  row 8 4 x 40 ...000006.jpg",
        "too narrow                      1    4.2%  filters  row 9 20 x 500",
        "17 of 24 rows can be used",
    ] {
        assert!(answer.stdout.contains(line), "{line}\n{}", answer.stdout);
    }
    let is_narrow = |line: &str| line.chars().count() <= 80 || line.contains(": 24 rows");
    assert!(answer.stdout.lines().all(is_narrow), "{}", answer.stdout);
    // What was typed, again.
    let hint = format!(
        " data clean {} --set data.validation=none` writes one file",
        home.csv().display()
    );
    assert!(answer.stderr.contains(&hint), "{}", answer.stderr);
    assert_eq!(fs::read(home.csv()).unwrap(), before);
    let left: Vec<_> = fs::read_dir(home.path("cars")).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn json_says_every_row() {
    let home = with_defects();
    let options = "--json --set data.validation=none --min-size 64";
    let json = data("check", &home.path("cars"), options)
        .exits(FOUND)
        .json();
    assert_eq!(json["verdict"], "found");
    assert_eq!(
        (&json["rows"], &json["usable_rows"]),
        (&24.into(), &17.into())
    );
    let findings = json["findings"].as_array().unwrap();
    let finding = |kind: &str| findings.iter().find(|finding| finding["kind"] == kind);
    let missing = finding("missing").unwrap();
    assert_eq!(missing["severity"], "problem");
    assert_eq!(missing["rows"], serde_json::json!([3]));
    assert_eq!(missing["examples"][0]["image"], "images/000001.jpg");
    let conflict = finding("two_labels").unwrap();
    assert_eq!(conflict["rows"], serde_json::json!([2, 7]));
    let details = conflict["examples"].as_array().unwrap();
    let second = details[1]["detail"].as_str().unwrap();
    assert!(second.contains("` as row 2 `"), "{second}");
    // All that were drawn have 32 x 32 pixels.
    let small = finding("too_small").unwrap();
    assert_eq!(small["severity"], "warning");
    assert_eq!(small["count"], 24 - 6);
    assert_eq!(small["examples"].as_array().unwrap().len(), 24 - 6);
}

/// What training refuses or skips, and where it splits, is what is checked.
#[test]
fn a_config_and_the_split_of_its_run() {
    let home = Home::with_cars(16);
    let image = |number: usize| home.path(&format!("cars/images/{number:06}.jpg"));
    fs::copy(image(0), image(1)).unwrap();
    let csv = fs::read_to_string(home.csv()).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    let held = [&[lines[0]], &lines[2..6]].concat().join("\n");
    let kept = [&[lines[0], lines[1]], &lines[6..]].concat().join("\n");
    fs::write(home.csv(), kept).unwrap();
    fs::write(home.path("cars/val.csv"), held).unwrap();
    let config = home.path("run.yml");
    fs::write(
        &config,
        "data: {train: cars/image_labels.csv, validation: cars/val.csv}\n",
    )
    .unwrap();
    let answer = data("check", &config, "").exits(FOUND);
    let line = "in two splits                   1    6.2%  filters  val.csv row 2 as row 2";
    assert!(answer.stdout.contains(line), "{}", answer.stdout);
    let answer = data("check", &config, "--set data.validation=none");
    answer.exits(DONE);
}

#[test]
fn bad_arguments_and_data() {
    let folder = TempDir::new().unwrap();
    data("check", &folder.path().join("no.csv"), "").refused_with(&["no.csv", "found nothing"]);
    let csv = folder.path().join("cars.csv");
    fs::write(&csv, "image,caption\na.jpg\n").unwrap();
    let answer = data("check", &csv, "").exits(FOUND);
    let line = "wrong number of fields          1    100%  removes  row 2 a.jpg";
    assert!(answer.stdout.contains(line), "{}", answer.stdout);
    fs::write(&csv, "photo,caption\na.jpg,a\n").unwrap();
    data("check", &csv, "").refused_with(&["image: photo"]);
    data(
        "check",
        &csv,
        "--set data.image=photo --set data.max_skipped=2",
    )
    .refused_with(&["data.max_skipped: 2, expected"]);
}

/// Stopped by Ctrl-C, it goes on with what it saw, and says the same in the end.
#[cfg(unix)]
#[test]
fn ctrl_c_and_the_same_command_again() {
    use crate::typed::{INTERRUPTED, start};
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("0.bmp");
    fs::write(&first, bitmap(1600, 1600)).unwrap();
    let mut csv = "image,caption\n0.bmp,0\n".to_owned();
    for at in 1..160 {
        fs::hard_link(&first, folder.path().join(format!("{at}.bmp"))).unwrap();
        csv += &format!("{at}.bmp,{at}\n");
    }
    let path = folder.path().join("cars.csv");
    fs::write(&path, csv).unwrap();
    let words = || {
        let path = path.as_os_str().to_owned();
        [
            "data".into(),
            "check".into(),
            path,
            "--num-workers".into(),
            "1".into(),
            "--json".into(),
        ]
    };
    let mut running = start(words());
    let journal = folder.path().join(".cars.csv.check");
    let is_begun = || fs::read(&journal).is_ok_and(|text| text.len() > 1000);
    while !is_begun() {
        assert!(running.goes_on(), "ended before it was seen");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    running.signal("INT");
    let answer = running.answer().exits(INTERRUPTED);
    assert_eq!(answer.stdout, "");
    assert!(
        answer
            .stderr
            .contains(" of 160 rows\nhint: the same command goes on"),
        "{}",
        answer.stderr
    );
    assert!(journal.is_file());
    let again = holdall_words(words()).exits(FOUND);
    assert!(again.stderr.contains("Going on: "), "{}", again.stderr);
    assert!(!journal.exists());
    let whole = holdall_words(words()).exits(FOUND);
    assert!(!whole.stderr.contains("Going on: "), "{}", whole.stderr);
    assert_eq!(again.json(), whole.json());
}

/// A set of eight pairs: one mask of another size, one with a value that is no class, one image that is there twice.
fn pairs(root: &Path) {
    for folder in ["images", "masks"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let filled = |width: u32, value: u8, rows: usize| {
        let mut bytes = bitmap(width, 20);
        bytes[54..].fill(0);
        let row_bytes = (bytes.len() - 54) / 20;
        bytes[54..54 + rows * row_bytes].fill(value);
        bytes
    };
    for number in 0..8_u8 {
        let image = |number: u8| filled(32, 100 + number, 20);
        let (image, mask) = match number {
            1 => (image(1), filled(32, 7, 5)),
            3 => (image(3), filled(31, 255, 5)),
            5 => (image(4), filled(32, 255, 5)),
            _ => (image(number), filled(32, 255, 5)),
        };
        fs::write(root.join(format!("images/{number}.bmp")), image).unwrap();
        fs::write(root.join(format!("masks/{number}.bmp")), mask).unwrap();
    }
}

#[test]
fn pairs_are_checked_and_cleaned() {
    let folder = TempDir::new().unwrap();
    pairs(folder.path());
    let none = "--set data.validation=none";
    let answer = data("check", folder.path(), none);
    assert_eq!(answer.code, FOUND, "{}", answer.stderr);
    for part in [
        "8 pairs (8 to train on)",
        "sizes differ                    1     12%  images/3.bmp",
        "value is no class               1     12%  images/1.bmp",
        "pixel value 7 at (0, 15)",
        "duplicate                       1     12%  images/5.bmp: images/4.bmp of train",
        "6 of 8 pairs can be used",
    ] {
        assert!(answer.stdout.contains(part), "{part} in {}", answer.stdout);
    }
    let json = data("check", folder.path(), &format!("{none} --json"));
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&json["verdict"], &json["usable_pairs"]),
        (&"found".into(), &6.into())
    );
    let answer = data("clean", folder.path(), none);
    assert_eq!(answer.code, DONE, "{}", answer.stderr);
    let csv = fs::read_to_string(folder.path().join("pairs_cleaned.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 5, "{csv}");
    assert!(csv.contains("images/0.bmp,masks/0.bmp,,train\n"), "{csv}");
    let again = data("clean", folder.path(), none);
    assert_eq!(again.code, BAD_INPUT, "{}", again.stderr);
    let times = again.stderr.matches("expected a new file").count();
    assert_eq!(times, 1, "said once: {}", again.stderr);
    let packed = data("pack", folder.path(), "--out shards");
    packed.refused_with(&["expected a CSV that names images and masks", "data clean "]);
}

#[test]
fn shards_without_a_picture_are_no_success() {
    let folder = TempDir::new().unwrap();
    let csv = folder.path().join("none.csv");
    fs::write(&csv, "image,label\na.png,x\nb.png,y\n").unwrap();
    let out = folder.path().join("shards");
    let answer = data("pack", &csv, &format!("--out {}", out.display()));
    assert!(!answer.stderr.contains("train shards"), "{}", answer.stderr);
    answer.refused_with(&["expected rows whose pictures can be read, found none of 2 rows"]);
}

/// The task is told from the data, or typed: labels need no captions.
#[test]
fn a_task_may_be_typed() {
    let home = Home::with_cars(12);
    let csv = fs::read_to_string(home.csv()).unwrap();
    let mut lines: Vec<&str> = csv.lines().collect();
    lines[3] = "images/000002.jpg,,Corvane,x,x,x,x,x,x";
    fs::write(home.csv(), lines.join("\n")).unwrap();
    let answer = data("check", &home.csv(), "--set data.validation=none").exits(FOUND);
    assert!(answer.stdout.contains("empty caption"), "{}", answer.stdout);
    let answer = data("check", &home.csv(), "--task classify --min-per-label 1").exits(DONE);
    assert!(answer.stdout.contains("Nothing wrong"), "{}", answer.stdout);
}

/// Notes are printed while the bar is there, and the table is as wide as the terminal.
#[cfg(unix)]
#[test]
fn on_a_terminal_it_ends_and_is_as_wide() {
    use crate::terminal::Terminal;

    for columns in [80, 140] {
        let home = Home::with_cars(4);
        let afternoon = home.path("cars/images/of/one/afternoon");
        fs::create_dir_all(&afternoon).unwrap();
        fs::copy(
            home.path("cars/images/000000.jpg"),
            afternoon.join("a_copy_of_it.jpg"),
        )
        .unwrap();
        let mut csv = fs::read_to_string(home.csv()).unwrap();
        let first = csv.lines().nth(1).unwrap().to_owned();
        csv += &first.replace("000000.jpg", "of/one/afternoon/a_copy_of_it.jpg");
        fs::write(home.csv(), csv).unwrap();
        let script = "cd \"$FOLDER\"; \"$HOLDALL\" data check cars/image_labels.csv --set data.validation=none; echo \"ended with $?\"";
        let name = format!("check-{columns}");
        let Some(terminal) = Terminal::running(&name, [columns, 40], home.folder(), script) else {
            return;
        };
        let screen = terminal.shows(|screen| screen.contains("ended with"));
        assert!(screen.contains(&format!("ended with {FOUND}")), "{screen}");
        let mut lines = screen.lines();
        let found = lines.find(|line| line.contains("duplicate")).unwrap();
        let has_path = found.contains("images/of/one/afternoon/a_copy_of_it.jpg");
        assert_eq!(has_path, columns == 140, "{screen}");
    }
}
