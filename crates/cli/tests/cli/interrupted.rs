//! Ctrl-C and other signals: the run saves, says how to go on, and goes on as if nothing had happened.

use std::fs;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model};
use crate::typed::{
    Answer, DONE, HUNG_UP, INTERRUPTED, Running, TERMINATED, holdall_words, start, start_after,
};

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
    saved_by(running, run, code_of(signal))
}

fn code_of(signal: &str) -> i32 {
    match signal {
        "INT" => INTERRUPTED,
        "TERM" => TERMINATED,
        "HUP" => HUNG_UP,
        other => panic!("SIG{other} ends no run"),
    }
}

/// The answer of a run that was asked to end: everything is saved.
fn saved_by(running: Running, run: &RunFiles, code: i32) -> Answer {
    let answer = running.answer().exits(code);
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
    for signal in ["INT", "TERM", "HUP"] {
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
        let going_on = format!("Resuming after step {num_steps} of 16");
        assert!(resumed.stderr.contains(&going_on), "{}", resumed.stderr);
        assert_same_lines(&run, &whole);
        assert_same_model(&run, &whole);
    }
}

/// A step of many micro-batches is not waited for: it is dropped, and done again when the run goes on.
#[test]
fn ctrl_c_in_a_step_of_many_micro_batches_drops_it() {
    let home = Home::with_cars(64);
    let options = "--effective-batch 32 --batch-size 1 --epochs 2 --lr 1e-3";
    let whole = home.trained("whole", options);
    let run = home.run();
    // The first step is done; sixty-four runs of programs follow.
    let answer = interrupted(home.start("run", options), &run, "INT", |run| {
        run.num_lines() == 1
    });
    let said = "Saving and stopping at the next micro-batch";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    type_hint(&answer).exits(DONE);
    assert_same_lines(&run, &whole);
    assert_same_model(&run, &whole);
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

/// Batch systems send a signal more than once: to the process and to its group, and again later.
#[test]
fn a_signal_that_comes_twice_is_one_request() {
    let home = Home::with_cars(64);
    for signal in ["TERM", "INT"] {
        let run = home.run_named(signal);
        let mut running = home.start(signal, SIXTEEN_STEPS);
        run.wait_until(&mut running, |run| run.num_lines() >= 3);
        running.signal(signal);
        std::thread::sleep(std::time::Duration::from_millis(20));
        // It may have ended by now.
        let _ = running.try_signal(signal);
        saved_by(running, &run, code_of(signal));
        run.resume("").exits(DONE);
    }
}

/// `nohup` ignores SIGHUP, a shell without job control SIGINT in what it runs in the background: so does the run.
#[test]
fn what_was_ignored_at_the_start_stays_ignored() {
    let home = Home::with_cars(32);
    let run = home.run();
    let words = home.words("run", "--effective-batch 8 --epochs 2 --lr 1e-3");
    let mut running = start_after("trap '' HUP INT", words);
    run.wait_until(&mut running, |run| run.num_lines() >= 1);
    running.signal("HUP");
    running.signal("INT");
    let answer = running.answer().exits(DONE);
    assert!(!answer.stderr.contains("topping"), "{}", answer.stderr);
    assert_eq!(run.lines("step").len(), 8);
}

/// Slurm's warning: a checkpoint is written at once, the run goes on, and its numbers are what they would have been.
#[test]
fn sigusr1_saves_and_goes_on() {
    let home = Home::with_cars(64);
    // No checkpoint is due before the end.
    let options = format!("{SIXTEEN_STEPS} --set train.save_every=1000");
    let whole = home.trained("whole", &options);
    let run = home.run();
    let mut running = home.start("run", &options);
    run.wait_until(&mut running, |run| run.num_lines() >= 2);
    running.signal("USR1");
    running.until_said(", as SIGUSR1 asked; going on");
    assert!(run.last().exists());
    running.answer().exits(DONE);
    assert_same_lines(&run, &whole);
    assert_same_model(&run, &whole);
}

/// An evaluation in the middle of which a checkpoint is asked for has the same result, once.
#[test]
fn sigusr1_in_an_evaluation_saves_before_its_end() {
    let home = Home::with_cars(96);
    let options = "--effective-batch 48 --epochs 1 --lr 1e-3 --set data.validation=none \
                   --set train.eval_on=[train] --set train.eval_batch_size=1";
    let whole = home.trained("whole", options);
    let run = home.run();
    let mut running = home.start("run", options);
    run.wait_until(&mut running, |run| run.num_lines() == 2);
    for _ in 0..3 {
        running.signal("USR1");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.until_said("Saved after step 2, as SIGUSR1 asked");
    let checkpoint = fs::read(run.last()).unwrap();
    assert!(checkpoint.len() > 1000);
    running.answer().exits(DONE);
    assert_same_lines(&run, &whole);
    assert_same_model(&run, &whole);
}

/// Before anything is written a signal ends the process at once, whatever it does; what it leaves does not stop the next run.
#[test]
fn a_signal_in_the_first_moments_leaves_nothing_half_made() {
    use std::os::unix::process::ExitStatusExt;
    let home = Home::with_cars(16);
    let options = "--effective-batch 8 --epochs 1 --set train.eval_every=none";
    for milliseconds in [0, 2, 8, 32, 128] {
        let running = home.start("run", options);
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        let _ = running.try_signal("TERM");
        let status = running.ends();
        // Before `main` there is no handler: the system ends the process, and a shell calls that 143 as well.
        let by_system = status.signal() == Some(15);
        let code = status.code();
        assert!(
            by_system || matches!(code, Some(TERMINATED | DONE)),
            "{status}"
        );
        let run = home.run();
        if !run.file("config.yml").exists() {
            home.train(options).exits(DONE);
        } else if code != Some(DONE) {
            run.resume("").exits(DONE);
        }
        assert!(run.file("summary.json").exists());
        fs::remove_dir_all(&run.path).unwrap();
    }
}

/// Commands that have nothing to save end at once, whatever they compute; SIGUSR1 means nothing to them.
#[test]
fn other_commands_end_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let cars = folder.path().join("cars");
    // Minutes of work each.
    let ranking =
        "bench retrieval --queries 200000 --gallery 200000 --dim 64 --threads 1 --device cpu";
    let verifying = "verify small --effective-batch 1024";
    let drawing = format!("data sample cars {} --count 500000", cars.display());
    let is_drawn = || fs::read_dir(cars.join("images")).is_ok_and(|all| all.count() > 2);
    for line in [ranking, verifying, &drawing] {
        let mut running = start(line.split_whitespace());
        if line == drawing {
            while !is_drawn() && running.goes_on() {}
        } else {
            running.until_said("Device: ")
        }
        running.signal("USR1");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(running.goes_on(), "{}", running.said());
        running.signal("TERM");
        let answer = running.answer().exits(TERMINATED);
        assert_eq!(answer.stdout, "", "{line}");
    }
    // Pictures are whole, and without labels nobody takes them for a set.
    assert!(!cars.join("image_labels.csv").exists());
    for entry in fs::read_dir(cars.join("images")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.ends_with(".jpg"), "half a picture: {name}");
    }
}

/// A log that nobody reads any more, closed or gone, ends no run.
#[test]
fn a_run_goes_on_without_stderr() {
    use std::process::{Command, Stdio};
    let home = Home::with_cars(16);
    let options = "--effective-batch 8 --epochs 1 --lr 1e-3";
    let closed = start_after("exec 2>&-", home.words("closed", options));
    closed.answer().exits(DONE);
    let mut gone = Command::new(crate::typed::program())
        .args(home.words("gone", options))
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Whoever read along has ended.
    drop(gone.stdout.take());
    drop(gone.stderr.take());
    assert!(gone.wait().unwrap().success());
    for name in ["closed", "gone"] {
        assert!(home.run_named(name).file("summary.json").exists(), "{name}");
    }
}
