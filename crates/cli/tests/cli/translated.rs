//! Configs and options of PyTorch projects, as their owners type them: they train, or say what would be another thing.

use std::fs;
use std::path::Path;

use crate::training::Home;
use crate::typed::{Answer, BAD_INPUT, DONE, holdall, holdall_with};
use crate::video_text::with_clips;

const SEGMENTATION: &str = include_str!("../../../train/tests/fixtures/foreign/segmentation.yml");
const MULTITASK: &str = include_str!("../../../train/tests/fixtures/foreign/multitask_config.yaml");

/// A folder with drawn vessels as its `FIVES`, and this as its config.yml.
fn with_vessels(config: &str) -> Home {
    let home = Home::empty();
    let set = home.path("FIVES");
    holdall(&format!(
        "data sample vessels {} --count 8 --size 64",
        set.display()
    ))
    .exits(DONE);
    fs::write(home.path("config.yml"), config).unwrap();
    home
}

fn train(config: &Path, out: &Path, options: &str) -> Answer {
    holdall(&format!(
        "train {} --out {} --device cpu --num-threads 2 {options}",
        config.display(),
        out.display()
    ))
}

const SMALL_UNET: &str = "--model unet-demo --set data.image_size=64 --set train.max_steps=1";

#[test]
fn sections_of_a_segmentation_project_train_as_they_are() {
    let home = with_vessels(
        "trainer: {gradient_accumulation_steps: 4, mixed_precision: fp16}\n\
         dataset: {FIVES: {batch_size: 1, image_size: 1024, num_workers: 0}}\n",
    );
    let run = home.run_named("run");
    let log = train(&home.path("config.yml"), &run.path, SMALL_UNET).exits(DONE);
    for line in [
        "config.yml is a config of another tool. Translated:",
        "trainer.mixed_precision: fp16           -> precision: fp16",
        "Task: segment",
    ] {
        assert!(log.stderr.contains(line), "lacks `{line}`\n{}", log.stderr);
    }
    let resolved = fs::read_to_string(run.path.join("config.yml")).unwrap();
    for line in ["batch_size: 1\n", "gradient_accumulation: 4\n"] {
        assert!(resolved.contains(line), "{resolved}");
    }
}

#[test]
fn what_differs_stops_a_run_unless_it_is_accepted() {
    let home = with_vessels(SEGMENTATION);
    let (config, run) = (home.path("config.yml"), home.run_named("run"));
    train(&config, &run.path, SMALL_UNET).refused_with(&[
        "2 settings of this file have another effect here",
        "finetune.model_choose: MambaNet: `model: unet`",
        "hint: --accept",
    ]);
    assert!(!run.path.exists());
    let log = train(&config, &run.path, &format!("{SMALL_UNET} --accept")).exits(DONE);
    assert!(log.stderr.contains("Differs in effect:"), "{}", log.stderr);
}

#[test]
fn a_config_is_translated_into_a_file_that_runs() {
    let home = with_vessels(SEGMENTATION);
    let [old, new] = ["config.yml", "holdall.yml"].map(|name| home.path(name));
    let translate = |options: &str| {
        let line = format!("config translate {} {options}", old.display());
        holdall(&line)
    };
    let to_screen = translate("").exits(DONE).stdout;
    let out = format!("--out {}", new.display());
    let answer = translate(&out).exits(DONE);
    assert_eq!(answer.stdout, "");
    let written = fs::read_to_string(&new).unwrap();
    assert_eq!(written, to_screen);
    for line in [
        "# Differs in effect:\n",
        "#   finetune.model_choose: MambaNet",
        "precision: fp16\n",
    ] {
        assert!(written.contains(line), "{written}");
    }
    // The next line that it prints works, with smaller pictures.
    assert!(answer.stderr.contains(&format!("train {}", new.display())));
    train(&new, &home.run().path, SMALL_UNET).exits(DONE);
    // Nothing is written over without a word.
    fs::write(&new, "mine").unwrap();
    translate(&out).refused_with(&["holdall.yml: expected a new file", "--overwrite"]);
    assert_eq!(fs::read_to_string(&new).unwrap(), "mine");
    translate(&format!("{out} --overwrite")).exits(DONE);
    assert_eq!(fs::read_to_string(&new).unwrap(), written);
    let over = format!("--out {} --overwrite", old.display());
    translate(&over).refused_with(&["--out", "one that this command reads"]);
    let check = holdall(&format!("data check {}", old.display())).stderr;
    let told = check.matches("is a config of another tool").count();
    assert_eq!(told, 1, "{check}");
    holdall(&format!("config translate {}", new.display()))
        .refused_with(&["a config of Holdall, nothing to translate"]);
}

/// Reports of clips in the columns that such projects have.
fn with_reports() -> Home {
    let (home, csv) = with_clips(16);
    let drawn = fs::read_to_string(&csv).unwrap();
    let mut reports = String::from("FileName,Report,Split,StudyInstanceUID\n");
    for (row, line) in drawn.lines().skip(1).enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        let (clip, caption, split) = (cells[0], cells[1], cells[2]);
        reports += &format!("{clip},{caption} {row}%,{split},study{}\n", row / 2);
    }
    let folder = csv.parent().unwrap();
    fs::write(folder.join("reports.csv"), reports).unwrap();
    fs::write(folder.join("multitask_config.yaml"), MULTITASK).unwrap();
    home
}

#[test]
fn a_multitask_config_says_what_differs_and_trains_on_request() {
    let home = with_reports();
    let config = home.path("clips/multitask_config.yaml");
    let run = home.run_named("run");
    let refused = train(&config, &run.path, "").exits(BAD_INPUT).stderr;
    for part in [
        "numeric_token_weight_multiplier: 5",
        "model_name: mvit: became model: openai/clip-vit-base-patch32",
        "contrastive_loss_type: sigmoid: ",
        "video_text.text_model: microsoft/BiomedNLP",
        "loss_weights: {contrastive: 2.0",
        "hint: --accept",
    ] {
        assert!(refused.contains(part), "lacks `{part}`\n{refused}");
    }
    // Its towers are not on this machine: a clear stop, before anything is written.
    let nowhere = home.path("nowhere").display().to_string();
    let line = format!(
        "train {} --accept --out {}",
        config.display(),
        run.path.display()
    );
    holdall_with(&[("HF_HOME", &nowhere)], &line).refused_with(&["BiomedNLP"]);
    assert!(!run.path.exists());
    // With towers that are, it trains.
    let options = "--accept --model video-text-demo --set video_text.text_model= --set tokens= --set train.dropout=0 \
                   --set train.freeze=none --set data.frames=2 --set train.max_steps=2 --set evaluation.captions=2 \
                   --set data.validation.column=Split";
    let log = train(&config, &run.path, options).exits(DONE);
    assert!(log.stderr.contains("each counts 5"), "{}", log.stderr);
    assert_eq!(run.of_steps("caption").len(), 2);
}

#[test]
fn options_of_scripts_are_taken_for_what_they_mean() {
    let home = Home::with_cars(8);
    let log = home
        .train(
            "--effective-batch 4 --num_train_epochs 1 --weight_decay 0.05 --patience 3 --pin_memory --mixed_precision fp16",
        )
        .exits(DONE)
        .stderr;
    for line in [
        "--weight_decay 0.05 is --set train.optimizer.weight_decay=0.05",
        "--patience 3 is --set train.early_stop=3",
        "--pin_memory: not needed, ignored",
    ] {
        assert!(log.contains(line), "lacks `{line}`\n{log}");
    }
    let resolved = fs::read_to_string(home.run().path.join("config.yml")).unwrap();
    assert!(resolved.contains("weight_decay: 0.05\n"), "{resolved}");
    for (options, parts) in [
        (
            "--optim sgd",
            ["--optim: no such option", "hint: the optimizer is AdamW"],
        ),
        (
            "--lr -1e-4",
            ["train.lr: -0.0001, expected a number above 0", "hint: "],
        ),
        (
            "--set memory=8192",
            ["a size needs its unit", "`memory: 8192MiB`"],
        ),
    ] {
        let words = home.words("other", options);
        crate::typed::holdall_words(words).refused_with(&parts);
    }
}

/// Hints that are made from the keys of a config can be pasted.
#[test]
fn generated_hints_work_when_pasted() {
    let home = Home::with_cars(8);
    for (options, pasted) in [
        ("--set max_steps=1", "--set train.max_steps=1"),
        (
            "--set weight_decay=0.1",
            "--set train.optimizer.weight_decay=0.1",
        ),
        ("--set mixed_precision=bf16", "--set precision=bf16"),
        ("--set learning_rate=0.5", "--set train.lr=0.5"),
    ] {
        let answer = crate::typed::holdall_words(home.words("run", options)).exits(BAD_INPUT);
        let line = format!("on the command line: {pasted}");
        assert!(answer.stderr.contains(&line), "{}", answer.stderr);
        holdall(&format!("plan small --effective-batch 4 {pasted}")).exits(DONE);
    }
}

#[test]
fn a_run_that_is_not_there_is_no_model_of_the_hub() {
    let home = Home::empty();
    let path = home.path("runs/nope").display().to_string();
    for path in [path.as_str(), "runs/nope"] {
        for command in [format!("eval {path}"), format!("predict {path} 1.jpg")] {
            let answer = holdall(&command).exits(BAD_INPUT);
            let error = &answer.stderr;
            assert!(error.contains("found nothing there"), "{error}");
            assert!(!error.contains("model get"), "{error}");
        }
    }
}
