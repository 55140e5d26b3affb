//! A run from data to a model folder: what it writes, what it says, and what its numbers do not depend on.

use std::fs;

use serde_json::Value;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, draw, on};
use crate::typed::{DONE, bytes, holdall_words, start_after};

const SPLIT_IN_TWO: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 1 --lr 1e-3";

#[test]
fn a_run_leaves_everything_that_its_use_takes() {
    let home = Home::with_cars(24);
    let run = home.trained("run", SPLIT_IN_TWO);
    for file in [
        "config.yml",
        "plan.json",
        "metrics.jsonl",
        "memory.jsonl",
        "summary.json",
        "report.html",
        "checkpoints/last.safetensors",
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
        "model/preprocessor_config.json",
        "model/labels.json",
        "model/head.safetensors",
        "model/holdall.json",
    ] {
        let length = fs::metadata(run.file(file)).map_or(0, |file| file.len());
        assert!(length > 0, "{file}");
    }
    let names: Vec<String> = fs::read_dir(&run.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("partial"))
        .collect();
    assert!(names.is_empty(), "{names:?}");
    let labels = run.json("model/labels.json");
    let makes = labels["labels"].as_array().unwrap();
    assert!(makes.len() > 1 && makes.is_sorted_by_key(|make| make.as_str().unwrap().to_owned()));
    assert_eq!(labels["caption"], "{caption}");
    let preprocessor = run.json("model/preprocessor_config.json");
    assert_eq!(preprocessor["crop_size"]["height"], 64);
    assert_eq!(run.json("plan.json")["chosen"]["batch_size"], 4);
}

#[test]
fn the_log_has_the_lines_that_people_look_for() {
    let home = Home::with_cars(24);
    let typed = format!("train cars --model small --out run {SPLIT_IN_TWO}");
    let here = format!("cd '{}'", home.path("").display());
    let log = start_after(&here, typed.split(' ')).answer().exits(DONE);
    assert_eq!(log.stdout, "");
    for line in [
        "Weights: RANDOM (preset small); ",
        "Effective batch size: 8 (4 x 2); Batch size: 4 (as asked)\n",
        "Losses at step 1: contrastive ",
        "(chance 2.079 = ln 8)",
        "Memory: planned ",
        "Epoch 1/1: ",
        "; train loss ",
        ", validation loss ",
        "validation after step ",
        "  losses        contrastive ",
        "always the most frequent: ",
        "Done: ",
        "Model: ",
    ] {
        assert!(log.stderr.contains(line), "lacks `{line}`\n{}", log.stderr);
    }
    // Few lines before the first step; bytes of the arena are in summary.json.
    let before: Vec<&str> = log
        .stderr
        .split("Losses at step 1")
        .next()
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with("hint: "))
        .collect();
    assert!(before.len() <= 8, "{before:#?}");
    assert!(!log.stderr.contains("Arena: "), "{}", log.stderr);
    let lines = log.stderr.lines();
    let mut memory: Vec<&str> = lines.filter(|line| line.starts_with("Memory: ")).collect();
    let num_lines = memory.len();
    memory.dedup();
    assert_eq!(memory.len(), num_lines, "{}", log.stderr);
    let kept = fs::read_to_string(home.run().file("train.log")).unwrap();
    let (command, told) = kept.split_once('\n').unwrap();
    assert!(
        command.starts_with("$ ") && command.contains(" train "),
        "{command}"
    );
    let mut kept = told.lines();
    assert!(
        log.stderr.lines().all(|line| kept.any(|kept| kept == line)),
        "{told}"
    );
    for detail in [
        "Label column: `make`",
        "Caption column: ",
        "Tokens per caption: ",
        "Loader: ",
    ] {
        assert!(told.contains(detail), "lacks `{detail}`\n{told}");
        assert!(!log.stderr.contains(detail), "{}", log.stderr);
    }
    assert!(!log.stderr.contains("NaN"), "{}", log.stderr);
}

/// Five steps an epoch: the second ends after two of them, with an evaluation and a line as all others.
#[test]
fn a_run_ends_with_an_evaluation_wherever_it_ends() {
    let home = Home::with_cars(22);
    let options = "--batch-size 4 --gradient-accumulation 1 --set train.max_steps=7";
    let said = home.train(options).exits(DONE).stderr;
    let evaluated = |run: &RunFiles| -> Vec<u64> {
        let lines = run.lines("evaluation").into_iter();
        lines.map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(evaluated(&home.run()), [5, 7]);
    for line in [
        "Epoch 1/2: ",
        "validation after step 7",
        "Epoch 2/2 (2 of 5 steps): ",
    ] {
        assert!(said.contains(line), "lacks `{line}`\n{said}");
    }
    let again = home.run().resume("").exits(DONE).stderr;
    assert!(
        again.contains("hint: --set train.max_steps=STEPS asks for more"),
        "{again}"
    );
    let short = home.trained("short", "--effective-batch 4 --set train.max_steps=2");
    assert_eq!(evaluated(&short), [2]);
}

#[test]
fn the_summary_says_what_was_planned_and_what_was_used() {
    let home = Home::with_cars(24);
    let answer = home
        .train(&format!("{SPLIT_IN_TWO} --num-threads 1 --json"))
        .exits(DONE);
    let summary = answer.json();
    assert_eq!(summary, home.run().json("summary.json"));
    for key in [
        "effective_batch",
        "batch_size",
        "gradient_accumulation",
        "precision",
        "recompute",
        "steps",
        "samples_per_s",
        "planned_bytes",
        "arena_bytes",
        "process_bytes",
        "metrics",
    ] {
        assert!(!summary[key].is_null(), "{key}: {summary}");
    }
    assert_eq!(summary["effective_batch"], 8);
    assert_eq!(summary["batch_size"], 4);
    assert_eq!(summary["gradient_accumulation"], 2);
    assert_eq!(summary["steps"], home.run().lines("step").len());
    assert!(summary["samples_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(summary["arena_bytes"], summary["planned_arena_bytes"]);
    assert!(
        bytes(&summary, "process_bytes") <= bytes(&summary, "planned_bytes"),
        "{summary}"
    );
    assert_eq!(summary["metrics"][0]["on"], "validation");
}

/// Each thread that decodes keeps what it freed, in an arena of its own.
#[test]
fn many_threads_stay_within_the_plan() {
    let home = Home::with_cars(48);
    let options =
        "--effective-batch 2 --epochs 2 --num-threads 8 --set data.validation=none --json";
    let summary = home.train(options).exits(DONE).json();
    assert!(
        bytes(&summary, "process_bytes") <= bytes(&summary, "planned_bytes"),
        "{summary}"
    );
}

/// The config of a run, alone, is the run.
#[test]
fn the_config_that_a_run_writes_runs_again() {
    let home = Home::with_cars(24);
    let options =
        format!("{SPLIT_IN_TWO} --seed 5 --set losses.label=0.3 --set data.validation=25%");
    let run = home.trained("run", &options);
    let again = home.run_named("again");
    let answer = on(
        "train",
        &run.file("config.yml"),
        &format!("--out {}", again.path.display()),
    );
    answer.exits(DONE);
    assert_same_lines(&again, &run);
    assert_same_model(&again, &run);
    // Without another folder it would be the same run, which is there.
    on("train", &run.file("config.yml"), "").refused_with(&["found another run", "--resume"]);
}

#[test]
fn threads_change_no_loss() {
    let home = Home::with_cars(40);
    let [one, two] = [1, 2].map(|threads| {
        let options = format!("{SPLIT_IN_TWO} --num-threads {threads}");
        home.trained(&format!("threads-{threads}"), &options)
    });
    assert_same_lines(&one, &two);
    assert_same_model(&one, &two);
}

#[test]
fn seeds_change_losses() {
    let home = Home::with_cars(16);
    let [first, again, other] = [("first", 0), ("again", 0), ("other", 1)].map(|(name, seed)| {
        home.trained(
            name,
            &format!("--effective-batch 8 --epochs 1 --seed {seed}"),
        )
    });
    assert_same_lines(&again, &first);
    assert_ne!(other.of_steps("loss"), first.of_steps("loss"));
}

/// The gradient of the whole batch, however it is split: ten steps stay together within 1e-4.
#[test]
fn splitting_changes_no_loss() {
    let home = Home::with_cars(80);
    let [split, whole] = [
        ("split", "4 --gradient-accumulation 2"),
        ("whole", "8 --gradient-accumulation 1"),
    ]
    .map(|(name, size)| {
        let options = "--epochs 1 --lr 1e-3 --set data.validation=none";
        home.trained(name, &format!("--batch-size {size} {options}"))
    });
    for key in ["loss", "contrastive", "label"] {
        let [split, whole] = [&split, &whole].map(|run| run.of_steps(key));
        assert_eq!(whole.len(), 10);
        for (step, (split, whole)) in split.iter().zip(&whole).enumerate() {
            assert!(
                (split - whole).abs() < 1e-4,
                "{key} of step {}: {split}, {whole}",
                step + 1
            );
        }
    }
}

#[test]
fn a_run_without_improvement_stops_early() {
    let home = Home::with_cars(24);
    let options = "--effective-batch 4 --epochs 3 --lr 1e-12 --set train.lr_head=1e-12 \
                   --set train.eval_every=2 --set train.early_stop=2";
    let answer = home.train(options).exits(DONE);
    assert!(
        answer.stderr.contains("Stopped early: no improvement\n"),
        "{}",
        answer.stderr
    );
    let summary = home.run().json("summary.json");
    assert_eq!(summary["stopped_early"], true);
    // The first evaluation is the best there is, and two more are not better.
    assert_eq!(
        (&summary["steps"], &summary["best"]["step"]),
        (&6.into(), &2.into())
    );
    assert_eq!(home.run().lines("evaluation").len(), 3);
}

#[test]
fn both_parts_are_evaluated_where_both_are_asked_for() {
    let home = Home::with_cars(24);
    let run = home.trained(
        "run",
        "--effective-batch 8 --epochs 2 --set train.eval_on=[validation,train]",
    );
    let parts = |lines: &[Value]| -> Vec<String> {
        lines
            .iter()
            .map(|line| format!("{} {}", line["on"], line["pictures"]))
            .collect()
    };
    let lines = run.lines("evaluation");
    let one_epoch = parts(&lines[..2]);
    assert!(one_epoch[0].starts_with("\"validation\"") && one_epoch[1].starts_with("\"train\""));
    assert_eq!(parts(&lines[2..]), one_epoch);
    let pictures: u64 = lines[..2]
        .iter()
        .map(|line| line["pictures"].as_u64().unwrap())
        .sum();
    assert_eq!(pictures, 24);
    assert_eq!(
        parts(run.json("summary.json")["metrics"].as_array().unwrap()),
        one_epoch
    );
}

#[test]
fn the_batch_of_an_evaluation_changes_no_score() {
    let home = Home::with_cars(40);
    let lines = ["", "1", "3", "64"].map(|size| {
        let set = match size {
            "" => String::new(),
            size => format!("--set train.eval_batch_size={size}"),
        };
        let options = format!("--effective-batch 16 --epochs 1 --set data.validation=50% {set}");
        home.trained(&format!("by-{size}"), &options)
            .untimed_lines()
    });
    for others in &lines[1..] {
        assert_eq!(others, &lines[0]);
    }
}

/// What differs from the run beside it: the losses of the first step, before anything was learnt.
#[test]
fn weights_and_smoothing_change_the_label_loss_alone() {
    let home = Home::with_cars(40);
    let first = |run: RunFiles| run.lines("step")[0].clone();
    let options = "--effective-batch 16 --epochs 1";
    let plain = first(home.trained("plain", options));
    for set in [
        "losses.class_weights=balanced",
        "losses.label_smoothing=0.1",
    ] {
        let line = first(home.trained(set, &format!("{options} --set {set}")));
        assert_eq!(line["contrastive"], plain["contrastive"], "{set}");
        assert_ne!(line["label"], plain["label"], "{set}");
        assert!(line["label"].as_f64().unwrap().is_finite(), "{set}");
    }
    let set = "train.sampling=balanced";
    let balanced = first(home.trained("balanced", &format!("{options} --set {set}")));
    assert_ne!(balanced["label"], plain["label"], "{set}");
    assert_eq!(balanced["samples"], 16);
}

#[test]
fn the_cleanest_list_of_a_folder_is_taken() {
    let home = Home::with_cars(24);
    let text = fs::read_to_string(home.csv()).unwrap();
    let [cleaned, filtered] = [20, 16].map(|rows| {
        let lines: Vec<&str> = text.lines().take(rows + 1).collect();
        lines.join("\n")
    });
    let options = "--effective-batch 8 --epochs 1 --set data.validation=none";
    for (name, rows, pictures) in [
        ("image_labels.csv", &text, " (24 pictures;"),
        ("image_labels_cleaned.csv", &cleaned, " (20 pictures;"),
        ("image_labels_filtered.csv", &filtered, " (16 pictures;"),
    ] {
        let csv = home.path("cars").join(name);
        fs::write(&csv, rows).unwrap();
        let answer = holdall_words(home.words(name, options)).exits(DONE);
        let found = format!("Data: {} (found by its name)", csv.display());
        assert!(answer.stderr.contains(&found), "{}", answer.stderr);
        assert!(answer.stderr.contains(pictures), "{}", answer.stderr);
    }
}

#[test]
fn cars_are_drawn_the_same_every_time() {
    let home = Home::with_cars(12);
    draw(&home.path("again"), 12);
    let mut names = vec!["image_labels.csv".to_owned()];
    names.extend((0..12).map(|number| format!("images/{number:06}.jpg")));
    for name in names {
        let [first, again] =
            ["cars", "again"].map(|folder| fs::read(home.path(folder).join(&name)).unwrap());
        assert!(first == again, "{name}");
    }
}

/// Nobody reads along any more: a training run is not a reason to lose.
#[cfg(unix)]
#[test]
fn a_log_that_nobody_reads_does_not_end_a_run() {
    use std::process::{Command, Stdio};
    let home = Home::with_cars(16);
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let log = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let mut command = Command::new(crate::typed::program());
    command
        .args(home.words("run", "--effective-batch 8 --epochs 1"))
        .stderr(log);
    assert_eq!(command.status().unwrap().code(), Some(DONE));
    assert!(home.run().file("summary.json").exists());
}

/// A name that means pretrained weights does not train random ones, unless that is asked for; plans need no weights.
#[test]
fn a_model_of_the_hub_without_its_weights_is_refused() {
    let home = Home::with_cars(8);
    let out = home.run().path;
    let model = format!(
        "--model openai/clip-vit-base-patch16 --out {}",
        out.display()
    );
    on("train", &home.csv(), &model).refused_with(&[
        "model `openai/clip-vit-base-patch16`: expected its pretrained weights",
        "hint: holdall model get openai/clip-vit-base-patch16 downloads them; --random-weights",
    ]);
    assert!(!out.exists());
    let unnamed = on("train", &home.csv(), "--set data.label=none");
    unnamed.refused_with(&["no model is named", "--model small"]);
    let options = "--random-weights --epochs 1 --effective-batch 8 --freeze text_model";
    let trained = home.train(options).exits(DONE);
    for words in [
        " parameters at random weights, which never learn: text_model.",
        "Defaults: lr 5e-4, lr_head 5e-3 (clip, random weights, 8 samples)",
    ] {
        assert!(
            trained.stderr.contains(words),
            "{words}: {}",
            trained.stderr
        );
    }
}
