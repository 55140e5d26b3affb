//! Pictures that take more to decode than all the rest of a run: they wait for their turn inside the budget, or are left out by name before
//! the first step. And names in the place of pictures that are no files: a FIFO, a device, a folder.

use std::fs;
use std::path::{Path, PathBuf};

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};
use serde_json::Value;

use crate::training::{Home, on, unseal};
use crate::typed::{Answer, DOES_NOT_FIT, DONE, FOUND, bytes};

const MIB: u64 = 1 << 20;
const OPTIONS: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 1 --num-threads 2 \
                       --set data.validation=none --json";

/// The picture of a row, counted from 1.
fn picture(home: &Home, number: usize) -> PathBuf {
    home.path("cars/images").join(format!("{number:06}.jpg"))
}

fn jpeg(path: &Path, (width, height): (usize, usize), is_progressive: bool) {
    let pixels = vec![120; width * height * 3];
    let jpeg = Encoder::new(&pixels, width, height, PixelFormat::Rgb)
        .subsampling(Subsampling::S420)
        .progressive(is_progressive)
        .encode();
    fs::write(path, jpeg.unwrap()).unwrap();
}

fn png(path: &Path, (width, height): (u32, u32)) {
    let pixels = vec![120; (width * height * 3) as usize];
    let file = fs::File::create(path).unwrap();
    PngEncoder::new_with_quality(file, CompressionType::Fast, FilterType::Sub)
        .write_image(&pixels, width, height, ExtendedColorType::Rgb8)
        .unwrap();
}

/// By the system's high-water mark, in the summary and in every line of the log.
#[track_caller]
fn assert_within(home: &Home, answer: Answer, budget: u64) -> Value {
    let answer = answer.exits(DONE);
    let summary = answer.json();
    let (process, planned) = (
        bytes(&summary, "process_bytes"),
        bytes(&summary, "planned_bytes"),
    );
    assert!(
        process <= planned && planned <= budget,
        "{process} held, {planned} planned, {budget} allowed\n{}",
        answer.stderr
    );
    assert!(!answer.stderr.contains("above the"), "{}", answer.stderr);
    let log = fs::read_to_string(home.run().file("memory.jsonl")).unwrap();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(bytes(&line, "process_peak_bytes") <= budget, "{line}");
    }
    summary
}

/// As in the wild: many small ones, a few from a camera. Not a bit depends on who had to wait.
#[test]
fn photos_of_12_megapixels_wait_for_their_turn() {
    let home = Home::with_cars(40);
    for number in [3, 4, 17] {
        jpeg(&picture(&home, number), (4000, 3000), false);
    }
    let roomy = home.train(&format!("{OPTIONS} --memory 1GiB"));
    assert_within(&home, roomy, 1024 * MIB);
    let expected = home.run().untimed_lines();
    fs::remove_dir_all(home.run().path).unwrap();
    let tight = home.train(&format!("{OPTIONS} --memory 140MiB"));
    let summary = assert_within(&home, tight, 140 * MIB);
    assert_eq!(summary["skipped"], 0);
    assert_eq!(home.run().untimed_lines(), expected);
}

#[test]
fn every_kind_of_picture_stays_within_the_budget() {
    let home = Home::with_cars(32);
    let fixtures =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/pictures/large");
    let mut number = 1;
    for file in fs::read_dir(fixtures).unwrap() {
        fs::copy(file.unwrap().path(), picture(&home, number)).unwrap();
        number += 1;
    }
    assert!(number > 6, "fixtures are there");
    jpeg(&picture(&home, number), (2000, 1500), true);
    png(&picture(&home, number + 1), (2000, 1500));
    let summary = home.train(&format!("{OPTIONS} --memory 100MiB"));
    let summary = assert_within(&home, summary, 100 * MIB);
    assert_eq!(summary["skipped"], 0);
}

#[test]
fn what_cannot_fit_is_named_before_the_first_step() {
    let home = Home::with_cars(24);
    png(&picture(&home, 5), (6000, 6000));
    let answer = home.train(&format!("{OPTIONS} --memory 140MiB"));
    let told = answer.stderr.clone();
    let summary = assert_within(&home, answer, 140 * MIB);
    assert_eq!(summary["skipped"], 1);
    let at = told.find("000005.jpg: 6000 x 6000 takes ").expect(&told);
    assert!(at < told.find("Run folder: ").unwrap(), "{told}");
    let skipped = fs::read_to_string(home.run().file("skipped.csv")).unwrap();
    assert!(
        skipped.contains("000005.jpg,\"6000 x 6000 pixels take "),
        "{skipped}"
    );
    // A larger budget later does not change what was trained on.
    let resumed = home.run().resume("--epochs 2 --memory 1GiB --json");
    assert_eq!(resumed.exits(DONE).json()["skipped"], 1);
    fs::remove_dir_all(home.run().path).unwrap();
    let failing = format!("{OPTIONS} --memory 140MiB --set data.bad_pictures=fail");
    let parts = ["000005.jpg: 6000 x 6000 pixels take ", "hint: --memory "];
    home.train(&failing).ends_with(DOES_NOT_FIT, &parts);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_left_out() {
    let home = Home::with_cars(24);
    let [fifo, device, folder] = [2, 9, 11].map(|number| picture(&home, number));
    for path in [&fifo, &device, &folder] {
        fs::remove_file(path).unwrap();
    }
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    fs::create_dir(&folder).unwrap();
    let options = format!("{OPTIONS} --memory 140MiB --set data.max_skipped=50%");
    let summary = assert_within(&home, home.train(&options), 140 * MIB);
    assert_eq!(summary["skipped"], 3);
    let skipped = fs::read_to_string(home.run().file("skipped.csv")).unwrap();
    for found in ["a FIFO", "a device", "a folder"] {
        let reason = format!("found {found}");
        assert!(skipped.contains(&reason), "{skipped}");
    }
    let checked = on("data", Path::new("check"), &home.csv().to_string_lossy());
    assert!(checked.exits(FOUND).stdout.contains("3"));
}

#[test]
fn predictions_and_evaluations_stay_within_the_budget() {
    let home = Home::with_cars(24);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    jpeg(&picture(&home, 3), (4000, 3000), false);
    jpeg(&picture(&home, 4), (4000, 3000), true);
    let options = format!(
        "{} --memory 100MiB --num-threads 2 --json",
        home.path("cars/images").display()
    );
    let answer = on("predict", &run.path, &options).exits(FOUND);
    let json = answer.json();
    assert!(
        bytes(&json, "process_bytes") <= 100 * MIB,
        "{}",
        json["process_bytes"]
    );
    // The progressive one holds its coefficients too.
    assert_eq!(
        json["skipped"].as_array().unwrap().len(),
        1,
        "{}",
        answer.stderr
    );
    assert_eq!(json["predictions"].as_array().unwrap().len(), 23);
    let options = format!(
        "{} --memory 100MiB --num-threads 2 --json",
        home.csv().display()
    );
    let json = on("eval", &run.path, &options).exits(DONE).json();
    assert!(bytes(&json, "process_bytes") <= 100 * MIB, "{json}");
    assert_eq!(json["skipped"], 1);
}

#[test]
fn a_tokenizer_that_takes_more_than_the_budget_is_refused_by_name() {
    let home = Home::with_cars(24);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let path = run.file("model/tokenizer.json");
    let tokenizer = fs::read_to_string(&path).unwrap();
    // As valid as before, and 20 MB longer.
    fs::write(&path, tokenizer + &" ".repeat(20_000_000)).unwrap();
    unseal(&run.file("model"));
    // Only zero-shot labels are tokenized: a label head needs no tokenizer.
    let images = home.path("cars/images");
    let options = format!("{} --labels ford,bmw --memory 100MiB", images.display());
    let refused = on("predict", &run.path, &options);
    refused.ends_with(DOES_NOT_FIT, &["tokenizer.json: a tokenizer of ", "hint: "]);
}
