//! Drawn vessels as people type them: the pictures, and the demo that learns to find them.

use std::fs;

use crate::typed::{DONE, holdall, holdall_words, start_after};

#[test]
fn vessels_are_drawn_in_the_layout_of_fives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vessels");
    let drawing = format!("data sample vessels {} --count 8 --size 64", path.display());
    let answer = holdall(&drawing).exits(DONE);
    assert!(
        answer
            .stderr
            .contains("6 pictures to train on and 2 to test with")
            && answer.stderr.contains("--task segment"),
        "{}",
        answer.stderr
    );
    for (part, count) in [("train", 6), ("test", 2)] {
        for kind in ["Original", "Ground truth"] {
            let files = fs::read_dir(path.join(part).join(kind)).unwrap();
            assert_eq!(files.count(), count, "{part}/{kind}");
        }
    }
    // What it is for is seen by its folders, and said in few lines.
    let here = format!("cd '{}'", folder.path().display());
    let training = "train vessels --model unet-demo --epochs 1 --effective-batch 4 --device cpu --num-threads 2";
    let log = start_after(&here, training.split(' ')).answer().exits(DONE);
    let log = log.stderr;
    assert!(log.contains("Task: segment ("), "{log}");
    let (before, _) = log.split_once("Losses at step 1").unwrap();
    assert!(before.lines().count() <= 8, "{before}");
    // Another set does not take its place.
    holdall(&format!("{drawing} --seed 1")).refused_with(&["another set", "hint:"]);
    let small = format!("data sample vessels {} --size 32", path.display());
    holdall(&small).refused_with(&["--size 32", "64 to 2048", "hint: --size 64"]);
}

/// A run of seconds: what the demo says and leaves behind, not how much it learns.
#[test]
fn the_demo_of_segmentation_says_what_a_threshold_finds() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("demo");
    let mut words: Vec<std::ffi::OsString> =
        "demo --task segment --count 16 --size 64 --epochs 1 --device cpu --out"
            .split(' ')
            .map(Into::into)
            .collect();
    words.push(out.clone().into());
    let answer = holdall_words(words).exits(DONE);
    for part in [
        "A small U-Net learns to find blood vessels",
        "On pictures it has never seen",
        "the best single threshold of the same pictures (",
        "): Dice ",
        "report.html",
        " predict ",
    ] {
        assert!(answer.stderr.contains(part), "{part}\n{}", answer.stderr);
    }
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(out.join("run").join(name)).unwrap()).unwrap()
    };
    assert!(json("summary.json")["best"]["value"].is_number());
    let pictures = json("segmentation.json")["images"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(pictures, 4, "a quarter is unseen");
    let report = fs::read_to_string(out.join("run/report.html")).unwrap();
    assert!(report.contains("threshold_curve"));
}
