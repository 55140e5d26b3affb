//! Going on with a run: what may change, what may not, and folders that are not what they should be.

use std::fs;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, on};
use crate::typed::{BAD_INPUT, DOES_NOT_FIT, DONE, holdall, start, start_after};

const TWO_EPOCHS: &str = "--effective-batch 8 --epochs 2 --lr 1e-3";
const THREE_EPOCHS: &str = "--effective-batch 8 --epochs 3 --lr 1e-3";

fn journal(run: &RunFiles) -> String {
    fs::read_to_string(run.file("metrics.jsonl")).unwrap()
}

/// The steps that are done stay as they are; those to come follow the longer schedule, so their learning rates are those
/// of a run that was longer from the start, and their losses are not.
#[test]
fn more_epochs_make_a_finished_run_longer() {
    let home = Home::with_cars(40);
    let run = home.trained("run", TWO_EPOCHS);
    let short = journal(&run);
    let short_rates = run.of_steps("lr");
    let resumed = run.resume("--epochs 3").exits(DONE);
    assert!(
        resumed.stderr.contains("Changed: train.epochs 2 -> 3\n"),
        "{}",
        resumed.stderr
    );
    assert!(journal(&run).starts_with(&short));
    let num_steps = short_rates.len() / 2 * 3;
    let steps: Vec<u64> = run
        .lines("step")
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=num_steps as u64).collect::<Vec<u64>>());
    assert_eq!(run.json("summary.json")["steps"], num_steps);
    let long_rates = home.trained("long", THREE_EPOCHS).of_steps("lr");
    let done = short_rates.len();
    assert_eq!(run.of_steps("lr")[done..], long_rates[done..]);
    assert_ne!(
        short_rates[done - 1],
        long_rates[done - 1],
        "the cosine of two epochs is not that of three"
    );
}

/// Without a schedule that knows the end, a run made longer is the longer run.
#[test]
fn a_longer_run_at_a_constant_rate_is_the_same_run() {
    let home = Home::with_cars(40);
    let constant = "--set train.schedule=constant --set train.warmup=0";
    let run = home.trained("run", &format!("{TWO_EPOCHS} {constant}"));
    run.resume("--epochs 3").exits(DONE);
    let long = home.trained("long", &format!("{THREE_EPOCHS} {constant}"));
    assert_same_lines(&run, &long);
    assert_same_model(&run, &long);
    // What was changed is part of the run from then on.
    assert!(
        fs::read_to_string(run.file("config.yml"))
            .unwrap()
            .contains("epochs: 3")
    );
}

/// How it is computed may change, and changes no bit.
#[test]
fn threads_and_memory_may_change() {
    let home = Home::with_cars(40);
    let [run, other] = ["run", "other"].map(|name| home.trained(name, TWO_EPOCHS));
    let resumed = run
        .resume("--epochs 3 --num-threads 1 --memory 90MiB --recompute blocks")
        .exits(DONE);
    for changed in [
        "Changed: num_threads none -> 1\n",
        "Changed: memory auto -> 90.0 MiB\n",
        "Changed: train.recompute auto -> blocks\n",
    ] {
        assert!(
            resumed.stderr.contains(changed),
            "{changed}: {}",
            resumed.stderr
        );
    }
    other.resume("--epochs 3").exits(DONE);
    assert_same_lines(&run, &other);
}

#[test]
fn another_run_is_not_gone_on_with() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let before = journal(&run);
    for (options, parts) in [
        ("--seed 7", ["seed: 7", "has 0"].as_slice()),
        ("--effective-batch 4", &["effective_batch: 4", "has 8"]),
        ("--batch-size 2", &["with train.batch_size: 2", "has none"]),
        (
            "--set data.validation=20%",
            &["data.validation: 0.2", "has auto"],
        ),
        ("--set losses.label=1", &["losses.label: 1", "has 0.5"]),
        ("--model openai/clip-vit-base-patch32", &["has small"]),
        (
            "--set data.augment.flip=true",
            &["data.augment.flip: true", "has false"],
        ),
    ] {
        let mut parts = parts.to_vec();
        parts.extend(["cannot resume with", "--out"]);
        run.resume(&format!("--epochs 2 {options}"))
            .refused_with(&parts);
    }
    assert_eq!(journal(&run), before);
}

/// Advice can be followed: a run that resumes keeps its batch, so a smaller one is not offered.
#[test]
fn a_budget_too_small_to_resume_offers_no_other_run() {
    let home = Home::with_cars(24);
    let options = "--effective-batch 16 --epochs 1 --num-threads 1 --memory 600MiB";
    let run = home.trained("run", options);
    // Half a batch would fit, and so would adapters.
    let smaller = "--epochs 2 --memory 67MiB";
    let refused = run.resume(smaller).exits(DOES_NOT_FIT).stderr;
    let hints: Vec<&str> = refused
        .lines()
        .filter_map(|line| line.strip_prefix("hint: "))
        .collect();
    let [more] = &hints[..] else {
        panic!("{refused}");
    };
    let (memory, _) = more
        .strip_prefix("--memory ")
        .unwrap()
        .split_once(':')
        .unwrap();
    run.resume(&format!("--epochs 2 --memory {memory}"))
        .exits(DONE);
}

#[test]
fn other_rows_are_another_run() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let rows = fs::read_to_string(home.csv()).unwrap();
    let last_row = rows.trim_end().rfind('\n').unwrap();
    for changed in [rows.replacen("a ", "one ", 1), rows[..=last_row].to_owned()] {
        fs::write(home.csv(), changed).unwrap();
        run.resume("--epochs 2")
            .refused_with(&["image_labels.csv", "rows", "restore the file"]);
    }
    fs::write(home.csv(), rows).unwrap();
    run.resume("--epochs 2").exits(DONE);
}

/// Nothing is left to do: nothing changes.
#[test]
fn a_finished_run_stays_as_it_is() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let files = [
        "metrics.jsonl",
        "model/model.safetensors",
        "config.yml",
        "plan.json",
        "operations.json",
    ];
    let before = files.map(|file| fs::read(run.file(file)).unwrap());
    for options in ["", "--lr 0.5 --set train.eval_every=7"] {
        let resumed = run.resume(options).exits(DONE);
        assert!(resumed.stderr.contains("2 of 2"), "{}", resumed.stderr);
        let after = files.map(|file| fs::read(run.file(file)).unwrap());
        assert!(after == before, "{options}");
    }
    // Fewer epochs than are done cannot be asked for.
    let run = home.trained("longer", "--effective-batch 8 --epochs 2");
    run.resume("--epochs 1")
        .refused_with(&["train.epochs: 1", "expected at least 2"]);
    assert_eq!(run.lines("step").len(), 4);
}

#[test]
fn a_finished_run_keeps_its_summary_and_is_said_to_be_complete() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let before = run.json("summary.json");
    let resumed = run.resume("").exits(DONE);
    assert!(resumed.stderr.contains("complete"), "{}", resumed.stderr);
    assert!(!resumed.stderr.contains("Going on"), "{}", resumed.stderr);
    let after = run.json("summary.json");
    for key in ["samples_per_s", "seconds"] {
        assert_eq!(after[key], before[key], "{key}");
    }
}

#[test]
fn a_run_that_stopped_early_stays_as_it_is() {
    let home = Home::with_cars(24);
    // Nothing is learnt, so nothing improves.
    let run = home.trained(
        "run",
        "--effective-batch 4 --epochs 3 --lr 1e-12 --set train.lr_head=1e-12 \
                                   --set train.eval_every=1 --set train.early_stop=1",
    );
    let before = journal(&run);
    run.resume("").exits(DONE);
    assert_eq!(journal(&run), before);
    // It goes on where that was the reason, and the reason is gone.
    run.resume("--set train.early_stop=none").exits(DONE);
    assert!(journal(&run).len() > before.len());
}

#[test]
fn a_folder_without_a_run_is_refused() {
    let home = Home::with_cars(1);
    home.run()
        .resume("")
        .refused_with(&["run", "no run to resume", "no config.yml"]);
    assert!(!home.path("run").exists());
    home.run_named("cars")
        .resume("")
        .refused_with(&["cars", "no config.yml", "--resume"]);
    holdall("train --resume").refused_with(&["--resume needs the folder of a run", "--out RUN"]);
}

/// The command that began a run resumes it with `--resume` behind it: data and folders relative to where it is typed, the task and the label
/// found by the data, `out:` in a config.
#[test]
fn a_run_is_resumed_as_it_was_typed() {
    let home = Home::with_cars(16);
    let config = "model: small\ndata: {train: ../cars}\nout: ../runs/by-config\n\
                  train: {effective_batch: 8, epochs: 1}\nnum_threads: 2\n";
    fs::create_dir(home.path("configs")).unwrap();
    fs::write(home.path("configs/cars.yml"), config).unwrap();
    let typed = |line: &str| {
        let shell = format!("cd '{}'", home.path("").display());
        start_after(&shell, line.split_whitespace())
            .answer()
            .exits(DONE)
    };
    let without_epochs = |line: &str| line.replace(" --epochs 1", "");
    let by_data =
        "train cars/image_labels.csv --model small --effective-batch 8 --epochs 1 --num-threads 2";
    for (line, folder) in [
        (by_data, "runs/image_labels"),
        (&format!("{by_data} --out runs/named"), "runs/named"),
        ("train configs/cars.yml", "runs/by-config"),
        ("train configs/cars.yml --out runs/other", "runs/other"),
    ] {
        typed(line);
        let run = home.run_named(folder);
        let begun = fs::read_to_string(run.file("train.log")).unwrap();
        let resumed = typed(&format!("{line} --resume"));
        assert!(
            resumed.stderr.contains("The run is complete"),
            "{}",
            resumed.stderr
        );
        let longer = typed(&format!("{} --resume --epochs 2", without_epochs(line)));
        assert_eq!(run.lines("step").len(), 4, "{line}");
        let told = &longer.stderr;
        assert!(told.contains("Changed: train.epochs 1 -> 2\n"), "{told}");
        assert!(
            told.contains("Weights: from the run's checkpoint of step 2\n"),
            "{told}"
        );
        for part in ["RANDOM", "hint: a new run with --batch-size"] {
            assert!(!told.contains(part), "{part}: {told}");
        }
        // What was printed is appended to what was printed before.
        let kept = fs::read_to_string(run.file("train.log")).unwrap();
        assert!(kept.starts_with(&begun), "{kept}");
        assert!(kept.contains("--resume --epochs 2\n"), "{kept}");
    }
    // The last of several runs of that name.
    typed(by_data);
    typed(&format!("{} --resume --epochs 3", without_epochs(by_data)));
    let steps = |folder: &str| home.run_named(folder).lines("step").len();
    assert_eq!(
        (steps("runs/image_labels"), steps("runs/image_labels-2")),
        (4, 6)
    );
    // Other data is another run.
    fs::copy(home.csv(), home.path("cars/other.csv")).unwrap();
    let shell = format!("cd '{}'", home.path("").display());
    let other = "train cars/other.csv --out runs/named --resume";
    start_after(&shell, other.split_whitespace())
        .answer()
        .refused_with(&["data.train", "other.csv", "hint:"]);
}

/// The folder of a run may be named instead of `--out`.
#[test]
fn a_run_is_found_by_its_folder() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let words = [
        "train".into(),
        run.path.clone().into_os_string(),
        "--resume".into(),
    ];
    let epochs = ["--epochs", "2"].map(Into::into);
    start(words.into_iter().chain(epochs)).answer().exits(DONE);
    assert_eq!(run.lines("step").len(), 4);
}

/// Paths are what they lead to, from wherever they are typed.
#[test]
fn the_same_words_resume_a_run_from_another_folder() {
    let home = Home::with_cars(8);
    fs::create_dir(home.path("configs")).unwrap();
    let there = format!("cd '{}'", home.path("configs").display());
    let typed = "train ../cars/image_labels.csv --model small --out ../run --effective-batch 8";
    let typed = |more: &str| {
        let words = typed.split(' ').chain(more.split(' ')).map(str::to_owned);
        start_after(&there, words.collect::<Vec<String>>())
            .answer()
            .exits(DONE)
    };
    typed("--epochs 1");
    typed("--epochs 2 --resume");
    assert_eq!(home.run().lines("step").len(), 2);
    let config = fs::read_to_string(home.run().file("config.yml")).unwrap();
    assert!(!config.contains(".."), "{config}");
}

/// As every other path of a config.
#[test]
fn the_run_folder_of_a_config_is_relative_to_it() {
    let home = Home::with_cars(8);
    fs::create_dir(home.path("configs")).unwrap();
    let config = "model: small\nout: ../run\ndata: {train: ../cars}\ntrain: {effective_batch: 8, epochs: 1}\n";
    fs::write(home.path("configs/run.yml"), config).unwrap();
    let config = home.path("configs/run.yml");
    on("train", &config, "").exits(DONE);
    assert_eq!(home.run().lines("step").len(), 1);
    on("train", &config, "--resume --epochs 2").exits(DONE);
    assert_eq!(home.run().lines("step").len(), 2);
}

#[test]
fn a_run_belongs_to_one_process() {
    let home = Home::with_cars(16);
    let run = home.run();
    let mut first = home.start("run", "--effective-batch 8 --epochs 1000");
    run.wait_until(&mut first, |run| run.num_lines() > 0);
    run.resume("")
        .refused_with(&["run", "another process", "--out"]);
    // A new run is refused for what is there, whoever trains.
    let answer = home
        .train("--effective-batch 8 --epochs 1")
        .exits(BAD_INPUT);
    assert!(answer.stderr.contains("another run"), "{}", answer.stderr);
    assert!(first.goes_on());
    assert!(first.kill());
    // A killed process holds nothing.
    run.resume("--epochs 1").exits(DONE);
}
