//! Files that changed since they were written: one bit, a page of zeros, a digit. None is used: it is named, and an older state
//! that is sound goes on to the same end.

use std::fs;
use std::path::Path;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, copy_folder, on};
use crate::typed::{BAD_INPUT, DONE, FOUND};

/// Two steps, a checkpoint after each. The rate is constant, so that a longer run repeats what a shorter one did.
const TWO_STEPS: &str = "--effective-batch 8 --epochs 1 --lr 1e-3 --set train.save_every=1 \
                         --set train.schedule=constant --set train.warmup=0";

/// A copy of a run, which goes on by itself.
fn copy(run: &RunFiles, home: &Home, name: &str) -> RunFiles {
    let twin = home.run_named(name);
    copy_folder(&run.path, &twin.path);
    twin
}

fn flip(path: &Path, at: impl Fn(&[u8]) -> usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at(&bytes);
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn find(bytes: &[u8], text: &str) -> usize {
    let mut windows = bytes.windows(text.len());
    windows.position(|at| at == text.as_bytes()).unwrap()
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_goes_on_to_the_same_end() {
    let home = Home::with_cars(16);
    let run = home.trained("run", TWO_STEPS);
    let whole = copy(&run, &home, "whole");
    whole.resume("--epochs 2").exits(DONE);
    type Damage<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Damage, &str); 5] = [
        (
            "a bit of a moment",
            &|path| flip(path, |bytes| bytes.len() - 5),
            "tensor `optimizer.v.",
        ),
        (
            "a bit of a weight",
            &|path| {
                flip(path, |bytes| {
                    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
                })
            },
            "tensor `",
        ),
        (
            "256 KiB of zeros",
            &|path| {
                let mut bytes = fs::read(path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle..middle + (256 << 10)].fill(0);
                fs::write(path, bytes).unwrap();
            },
            "tensor `optimizer.",
        ),
        (
            "a digit of the state",
            &|path| flip(path, |bytes| find(bytes, "\\\"samples\\\":") + 12),
            "its header",
        ),
        (
            "half of it",
            &|path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            "found",
        ),
    ];
    for (number, (what, damage, named)) in cases.into_iter().enumerate() {
        let run = copy(&run, &home, &format!("damaged-{number}"));
        damage(&run.last());
        let resumed = run.resume("--epochs 2").exits(DONE);
        for part in [
            "Warning: ",
            "last.safetensors: damaged: ",
            named,
            "previous.safetensors, step 1",
            "Resuming after step 1 of 4",
        ] {
            assert!(
                resumed.stderr.contains(part),
                "{what}, {part}: {}",
                resumed.stderr
            );
        }
        assert_same_lines(&run, &whole);
        assert_same_model(&run, &whole);
        fs::remove_dir_all(&run.path).unwrap();
    }
    // Nothing is left to fall back to: nothing is touched.
    let previous = run.file("checkpoints/previous.safetensors");
    flip(&run.last(), |bytes| bytes.len() - 5);
    flip(&previous, |bytes| bytes.len() - 9);
    let before = [run.last(), previous.clone(), run.file("metrics.jsonl")]
        .map(|path| fs::read(path).unwrap());
    let parts = ["last.safetensors: damaged", "previous.safetensors: damaged"];
    let answer = run.resume("--epochs 2");
    assert!(!answer.stderr.contains("cut short"), "{}", answer.stderr);
    answer.ends_with(FOUND, &parts);
    let after = [run.last(), previous, run.file("metrics.jsonl")];
    assert!(before == after.map(|path| fs::read(path).unwrap()));
}

/// The last line differs in one digit: it is written again from the checkpoint before it.
#[test]
fn a_journal_that_was_changed_is_named() {
    let home = Home::with_cars(16);
    let run = home.trained("run", TWO_STEPS);
    let whole = copy(&run, &home, "whole");
    whole.resume("--epochs 2").exits(DONE);
    let journal = run.file("metrics.jsonl");
    flip(&journal, |bytes| bytes.len() - 20);
    let resumed = run.resume("--epochs 2").exits(DONE);
    let parts = ["metrics.jsonl", "checksum", "previous.safetensors, step 1"];
    for part in parts {
        assert!(resumed.stderr.contains(part), "{part}: {}", resumed.stderr);
    }
    assert_same_lines(&run, &whole);
    assert_same_model(&run, &whole);
    // The first line is in the past of every checkpoint.
    flip(&journal, |_| 20);
    run.resume("--epochs 3")
        .ends_with(FOUND, &["metrics.jsonl", "checksum"]);
}

#[test]
fn a_damaged_model_is_not_used() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let model = run.file("model");
    for (file, named) in [
        ("model.safetensors", "tensor `"),
        ("head.safetensors", "tensor `"),
        ("config.json", "checksum"),
        ("tokenizer.json", "checksum"),
        ("labels.json", "checksum"),
    ] {
        let path = model.join(file);
        let sound = fs::read(&path).unwrap();
        flip(&path, |bytes| bytes.len() - 9);
        let answer = on("eval", &run.path, "");
        answer.ends_with(
            BAD_INPUT,
            &[file, "damaged", named, "expected", "as Holdall wrote it"],
        );
        fs::write(&path, sound).unwrap();
    }
    on("eval", &run.path, "").exits(DONE);
    // Who changes a file on purpose says so.
    let labels = fs::read_to_string(model.join("labels.json")).unwrap();
    fs::write(model.join("labels.json"), labels + "\n").unwrap();
    on("eval", &run.path, "").ends_with(BAD_INPUT, &["labels.json", "holdall.json"]);
    fs::remove_file(model.join("holdall.json")).unwrap();
    on("eval", &run.path, "").exits(DONE);
}

/// The best model was damaged while the run went on: it is not published.
#[test]
fn a_damaged_best_model_is_not_published() {
    let home = Home::with_cars(24);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let best = run.json("summary.json")["best"]["folder"].clone();
    let best = run.file(&format!("checkpoints/{}", best.as_str().unwrap()));
    flip(&best.join("model.safetensors"), |bytes| bytes.len() - 9);
    fs::remove_file(run.file("summary.json")).unwrap();
    let before = fs::read(run.file("model/model.safetensors")).unwrap();
    let folder = best.display().to_string();
    run.resume("")
        .ends_with(FOUND, &["model.safetensors: damaged", "tensor `", &folder]);
    assert!(fs::read(run.file("model/model.safetensors")).unwrap() == before);
    // As the hint says: the model of the last step, which is the best one here.
    fs::remove_dir_all(&best).unwrap();
    let resumed = run.resume("").exits(DONE);
    assert!(
        resumed.stderr.contains("is not there"),
        "{}",
        resumed.stderr
    );
    assert!(fs::read(run.file("model/model.safetensors")).unwrap() == before);
}

/// A run that was extended and killed while it finished: the summary and the model are still those of the shorter run.
#[test]
fn a_run_killed_while_it_finished_finishes_again() {
    let home = Home::with_cars(24);
    let run = home.trained(
        "run",
        "--effective-batch 8 --epochs 1 --lr 1e-3 --set train.eval_every=none",
    );
    let short = copy(&run, &home, "short");
    run.resume("--epochs 2").exits(DONE);
    let whole = copy(&run, &home, "whole");
    let finishes_again = |why: &str| {
        let resumed = run.resume("").exits(DONE);
        assert!(
            resumed.stderr.contains("finishing again"),
            "{why}: {}",
            resumed.stderr
        );
        assert_same_model(&run, &whole);
        assert_same_lines(&run, &whole);
        let resumed = run.resume("").exits(DONE);
        assert!(
            resumed.stderr.contains("The run is complete"),
            "{why}: {}",
            resumed.stderr
        );
    };
    fs::remove_dir_all(run.file("model")).unwrap();
    copy_folder(&short.file("model"), &run.file("model"));
    fs::copy(short.file("summary.json"), run.file("summary.json")).unwrap();
    finishes_again("neither was written");
    fs::copy(short.file("summary.json"), run.file("summary.json")).unwrap();
    finishes_again("the model was written");
    fs::remove_dir_all(run.file("model")).unwrap();
    finishes_again("somebody removed the model");
    fs::remove_file(run.file("summary.json")).unwrap();
    finishes_again("somebody removed the summary");
    flip(&run.file("model/model.safetensors"), |bytes| {
        bytes.len() - 9
    });
    finishes_again("the model is damaged");
}
