//! A disk that is full, as far as a process can tell: files may not grow beyond a limit. What was saved before stays.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::training::{Home, assert_same_lines, assert_same_model};
use crate::typed::{Answer, DONE, FOUND, program};

/// Types a command where files may grow to so many blocks (of 512 or 1024 bytes, as the shell has it), and writing more
/// fails; by default the system would end the process instead.
fn with_small_files(blocks: u32, words: Vec<OsString>) -> Answer {
    let mut command = Command::new("sh");
    command.arg("-c");
    command.arg(format!("ulimit -f {blocks}; exec \"$@\""));
    command.arg("sh").arg(program()).args(words);
    // Pipes, not files: what is said does not count.
    let output = command.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(!stderr.contains("panicked"), "{command:?}\n{stderr}");
    Answer {
        typed: format!("{command:?}"),
        code: output.status.code().unwrap(),
        stdout,
        stderr,
    }
}

/// More than the small files of a run, less than half of its checkpoint.
const BELOW_A_CHECKPOINT: u32 = 16_000;
/// Less than the weights alone.
const BELOW_A_MODEL: u32 = 2_000;

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
    let home = Home::with_cars(16);
    let options = "--effective-batch 8 --epochs 1 --set train.eval_every=none";
    let [run, spared] = ["run", "spared"].map(|name| home.trained(name, options));
    let before = fs::read(run.last()).unwrap();
    let answer = with_small_files(BELOW_A_CHECKPOINT, run.resume_words("--epochs 2"));
    answer.ends_with(
        FOUND,
        &["checkpoint of step 4", "last.safetensors", "--resume"],
    );
    assert!(fs::read(run.last()).unwrap() == before);
    assert!(!run.file("checkpoints/last.safetensors.partial").exists());
    for run in [&run, &spared] {
        run.resume("--epochs 2").exits(DONE);
    }
    assert_same_lines(&run, &spared);
    assert_same_model(&run, &spared);
}

#[test]
fn a_first_checkpoint_that_cannot_be_written() {
    let home = Home::with_cars(16);
    let words = home.words(
        "run",
        "--effective-batch 8 --epochs 1 --set train.eval_every=none",
    );
    let answer = with_small_files(BELOW_A_CHECKPOINT, words);
    answer.ends_with(
        FOUND,
        &[
            "checkpoint of step 2",
            "last.safetensors",
            "free some space",
        ],
    );
    home.run().resume("").exits(DONE);
}

/// The best model is written within a run that has begun: the exit code says so, and so does the hint.
#[test]
fn a_best_model_that_cannot_be_written() {
    let home = Home::with_cars(24);
    let words = home.words("run", "--effective-batch 8 --epochs 1");
    let answer = with_small_files(BELOW_A_MODEL, words);
    answer.ends_with(
        FOUND,
        &["checkpoints/best-0000", "model.safetensors", "--resume"],
    );
    let left = fs::read_dir(home.run().file("checkpoints")).unwrap();
    assert_eq!(left.count(), 0, "half a model is removed");
    home.run().resume("").exits(DONE);
}

/// Not even the config could be written. The hint is typed.
#[test]
fn a_config_that_cannot_be_written() {
    let home = Home::with_cars(16);
    let options = "--effective-batch 8 --epochs 1";
    let answer = with_small_files(0, home.words("run", options));
    let hints_at_resume = answer.stderr.contains("--resume");
    answer.ends_with(FOUND, &["config.yml"]);
    let again = if hints_at_resume {
        home.run().resume("")
    } else {
        home.train(options)
    };
    again.exits(DONE);
}
