//! Numbers that nobody means, typed all the same: an answer, never a panic or a hang.

use crate::typed::{BAD_INPUT, DOES_NOT_FIT, holdall};

#[test]
fn numbers_out_of_range_are_refused_with_a_hint() {
    for (options, part) in [
        ("--tokens 0", "tokens"),
        ("--tokens 33", "tokens"),
        ("--labels 0", "labels"),
        ("--num-threads 0", "threads"),
        ("--num-threads 100000", "threads"),
    ] {
        for command in ["plan small", "verify small", "bench clip --small --steps 1"] {
            holdall(&format!("{command} {options}")).refused_with(&[part]);
        }
    }
}

#[test]
fn numbers_beyond_all_memory_are_refused() {
    let most = u64::MAX;
    for options in [
        format!("--effective-batch {most}"),
        format!("--batch-size {most}"),
        format!("--gradient-accumulation {most}"),
        format!("--batch-size {most} --gradient-accumulation 2"),
        "--batch-size 4294967296 --gradient-accumulation 4294967296".to_owned(),
        format!("--labels {most}"),
        "--labels 1000000000 --effective-batch 2".to_owned(),
        "--batch-size 100000000 --effective-batch 100000000".to_owned(),
        "--effective-batch 100000000000".to_owned(),
    ] {
        for command in ["plan small", "verify small", "bench clip --small --steps 1"] {
            let answer = holdall(&format!("{command} {options} --memory 500MiB"));
            assert!(
                [BAD_INPUT, DOES_NOT_FIT].contains(&answer.code),
                "{command} {options}: {}",
                answer.stdout
            );
            assert!(answer.stderr.contains("hint: "), "{}", answer.stderr);
            // A product that went round would speak of numbers that nobody typed.
            assert!(
                !answer.stderr.contains("effective batch 0")
                    && !answer
                        .stderr
                        .contains("effective batch 18446744073709551614"),
                "{command} {options}: {}",
                answer.stderr
            );
        }
    }
}

#[test]
fn what_is_no_number_is_refused() {
    for options in [
        "--seed -1",
        "--seed x",
        "--batch-size 3.5",
        "--batch-size -3",
        "--batch-size 18446744073709551616",
        "--memory -1GiB",
        "--memory 8",
        "--memory 0GiB",
        "--memory 101%",
        "--recompute all",
        "--precision f8",
        "--device abacus",
        "--batch 8",
    ] {
        let answer = holdall(&format!("plan small {options}")).exits(BAD_INPUT);
        assert!(answer.stderr.starts_with("error: "), "{}", answer.stderr);
        assert_eq!(answer.stdout, "");
    }
}

#[test]
fn a_budget_of_nothing_does_not_fit() {
    for memory in ["1B", "0.1B", "0.0001%"] {
        holdall(&format!("plan small --memory {memory}")).exits(DOES_NOT_FIT);
    }
}

/// A time of nothing is no measurement.
#[test]
fn a_benchmark_of_no_steps_is_refused() {
    holdall("bench clip --small --steps 0 --effective-batch 2").exits(BAD_INPUT);
}

#[test]
fn two_models_at_once_are_refused() {
    holdall("bench clip --small --model openai/clip-vit-base-patch32 --steps 1").exits(BAD_INPUT);
}

#[cfg(unix)]
#[test]
fn names_that_are_no_text_are_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    crate::typed::holdall_words([OsStr::new("plan"), OsStr::from_bytes(b"\xff")]).exits(BAD_INPUT);
}

#[test]
fn no_command_shows_help() {
    let answer = holdall("").exits(BAD_INPUT);
    assert!(answer.stderr.contains("Usage: holdall"));
}
