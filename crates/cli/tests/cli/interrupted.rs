//! Ctrl-C: the run saves, says how to go on, and goes on as if nothing had happened.

use std::fs;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model};
use crate::typed::{Answer, DONE, INTERRUPTED, Running, holdall_words};

const SIXTEEN_STEPS: &str = "--effective-batch 8 --epochs 2 --lr 1e-3";

/// Sends a signal once `is_there`; the answer must be that everything is saved.
fn interrupted(
    mut running: Running,
    run: &RunFiles,
    signal: &str,
    is_there: impl Fn(&RunFiles) -> bool,
) -> Answer {
    run.wait_until(&mut running, is_there);
    running.signal(signal);
    let answer = running.answer().exits(INTERRUPTED);
    assert!(
        answer.stderr.contains("everything is saved"),
        "{}",
        answer.stderr
    );
    assert_eq!(answer.stdout, "", "nothing but a summary goes there");
    assert!(!run.file("summary.json").exists());
    answer
}

/// Types what the last hint says.
fn type_hint(answer: &Answer) -> Answer {
    let (_, command) = answer.stderr.rsplit_once("hint: holdall ").unwrap();
    holdall_words(command.trim_end().split(' '))
}

#[test]
fn ctrl_c_saves_and_says_how_to_go_on() {
    let home = Home::with_cars(64);
    let whole = home.trained("whole", SIXTEEN_STEPS);
    for signal in ["INT", "TERM"] {
        let run = home.run_named(signal);
        let running = home.start(signal, &format!("{SIXTEEN_STEPS} --json"));
        let answer = interrupted(running, &run, signal, |run| run.num_lines() >= 3);
        let command = format!("hint: holdall train --resume --out {}", run.path.display());
        assert_eq!(answer.stderr.lines().last(), Some(command.as_str()));
        let report = format!("Report: {}", run.file("report.html").display());
        assert!(answer.stderr.contains(&report), "{}", answer.stderr);
        assert!(run.file("report.html").exists());
        // Saved where it stopped, not where a checkpoint was due.
        let num_steps = run.lines("step").len();
        let stopped = format!("Stopped after step {num_steps} of 16");
        assert!(answer.stderr.contains(&stopped), "{}", answer.stderr);
        let resumed = type_hint(&answer).exits(DONE);
        let going_on = format!("Going on after step {num_steps} of 16");
        assert!(resumed.stderr.contains(&going_on), "{}", resumed.stderr);
        assert_same_lines(&run, &whole);
        assert_same_model(&run, &whole);
    }
}

/// An evaluation that was interrupted leaves no line, and is the first thing that is done when the run goes on.
#[test]
fn ctrl_c_in_an_evaluation_leaves_it_for_later() {
    let home = Home::with_cars(48);
    // Picture by picture, of all: slow enough to be interrupted in.
    let options = "--effective-batch 16 --epochs 1 --lr 1e-3 --set data.validation=25% \
                   --set train.eval_every=1 --set train.eval_on=[train,validation] --set train.eval_batch_size=1";
    let whole = home.trained("whole", options);
    assert_eq!(
        whole.lines("evaluation").len(),
        2 * whole.lines("step").len()
    );
    let run = home.run();
    // Two lines for each evaluation that is done, then the line of a step: the next evaluation has begun.
    let answer = interrupted(home.start("run", options), &run, "INT", |run| {
        run.num_lines() == 4
    });
    assert_eq!(run.num_lines(), 4, "the evaluation came to its end first");
    let checkpoint = fs::read(run.last()).unwrap();
    let next = b"\\\"next\\\":\\\"evaluate\\\"";
    assert!(checkpoint.windows(next.len()).any(|bytes| bytes == next));
    type_hint(&answer).exits(DONE);
    assert_same_lines(&run, &whole);
    assert_same_model(&run, &whole);
}

/// The last evaluation of an epoch, interrupted: what is said of the epoch later is a number.
#[test]
fn an_epoch_that_only_had_to_be_evaluated_has_a_speed() {
    let home = Home::with_cars(48);
    let options = "--effective-batch 24 --epochs 1 --set data.validation=none \
                   --set train.eval_on=[train] --set train.eval_batch_size=1";
    let running = home.start("run", options);
    let answer = interrupted(running, &home.run(), "INT", |run| run.num_lines() == 2);
    let resumed = type_hint(&answer).exits(DONE);
    assert!(!resumed.stderr.contains("NaN"), "{}", resumed.stderr);
}
