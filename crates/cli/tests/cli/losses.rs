//! Losses of training and validation, as metrics.jsonl and the log have them, for every task.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::segment::with_disks;
use crate::training::{Home, RunFiles};
use crate::typed::{Answer, DONE, holdall_words};
use crate::video_text::with_clips;

fn train(data: &Path, out: &Path, options: &str) -> Answer {
    let mut words: Vec<OsString> = vec!["train".into(), data.into(), "--out".into(), out.into()];
    words.extend(options.split_whitespace().map(OsString::from));
    holdall_words(words).exits(DONE)
}

/// All samples in one step whose update is nothing: evaluated on the same samples, the model has the same losses.
const SAME_SAMPLES: &str = "--epochs 1 --lr 1e-12 --set train.lr_head=1e-12 --num-threads 2 \
                            --set data.validation=none --set train.eval_on=[train]";

/// Cars at the size that models see, so that nothing is resized.
fn with_sized_cars(count: usize) -> (Home, PathBuf) {
    let home = Home::empty();
    let folder = home.path("cars");
    let mut words: Vec<OsString> = ["data", "sample", "cars"].map(Into::into).into();
    words.push(folder.clone().into());
    let options = format!("--size 64 --count {count}");
    words.extend(options.split_whitespace().map(OsString::from));
    holdall_words(words).exits(DONE);
    (home, folder)
}

#[track_caller]
fn assert_evaluation_repeats_the_step(run: &RunFiles, losses: &[&str]) {
    let (step, evaluation) = (&run.lines("step")[0], &run.lines("evaluation")[0]);
    let near = |found: &Value, expected: &Value, what: &str| {
        let [found, expected] = [found, expected].map(|value| value.as_f64().unwrap());
        let apart = (found - expected).abs();
        assert!(apart <= 1e-4 * expected, "{what}: {found}, {expected}");
    };
    near(&evaluation["loss"], &step["loss"], "all");
    for loss in losses {
        near(&evaluation["losses"][loss], &step[loss], loss);
        let chance = &step[format!("{loss}_chance")];
        if !chance.is_null() {
            near(
                &evaluation["losses"][format!("{loss}_chance")],
                chance,
                loss,
            );
        }
    }
}

#[test]
fn captions_and_labels() {
    let (home, cars) = with_sized_cars(12);
    let run = home.run_named("run");
    let options = "--model small --effective-batch 12 --batch-size 4 --set data.label=make --set data.augment.crop=1 \
                   --set losses.label_smoothing=0.1 --set losses.class_weights=balanced";
    train(&cars, &run.path, &format!("{options} {SAME_SAMPLES}"));
    assert_evaluation_repeats_the_step(&run, &["contrastive", "label"]);
}

#[test]
fn labels_alone() {
    let (home, cars) = with_sized_cars(12);
    let run = home.run_named("run");
    let options = "--task classify --model vit-demo --effective-batch 12 --batch-size 4 --set data.label=make \
                   --set data.augment.crop=1 --set losses.label_smoothing=0.1 --set losses.class_weights=balanced";
    train(&cars, &run.path, &format!("{options} {SAME_SAMPLES}"));
    assert_evaluation_repeats_the_step(&run, &["label"]);
}

#[test]
fn masks() {
    let (home, folder) = with_disks(6, [32, 32]);
    let config = home.path("masks.yml");
    let text = format!(
        "task: segment\nmodel: unet-demo\nunet: {{channels: [8, 8], groups: 2}}\n\
         data: {{train: {}, image_size: 32, pair_augment: {{flip: false, vertical_flip: false, quarter_turns: false, \
         brightness: 0, contrast: 0, gamma: 0}}}}\n\
         losses: {{bce: 1, dice: 0.5, focal: {{gamma: 2}}, class_weights: [1, 3]}}\n\
         train: {{effective_batch: 6, batch_size: 2}}\n",
        folder.display()
    );
    fs::write(&config, text).unwrap();
    for over in ["batch", "image"] {
        let run = home.run_named(over);
        let options = format!("--set losses.dice_over={over} {SAME_SAMPLES}");
        train(&config, &run.path, &options);
        assert_evaluation_repeats_the_step(&run, &["bce", "focal", "dice"]);
    }
}

#[test]
fn clips() {
    let (home, csv) = with_clips(10);
    let run = home.run_named("run");
    let options = "--model video-text-demo --set video_text.temporal_layers=1 --set video_text.decoder.layers=1 \
                   --set data.frames=2 --set data.start=center --set data.label=direction --effective-batch 10 \
                   --batch-size 4 --set data.augment.crop=1 --set evaluation.captions=0";
    train(&csv, &run.path, &format!("{options} {SAME_SAMPLES}"));
    assert_evaluation_repeats_the_step(&run, &["contrastive", "caption", "label"]);
}

/// The last step of an epoch has 5 of 8 samples: it is left out of the mean, and told as what it is.
#[test]
fn both_losses_are_in_the_epochs_line_and_the_lower_one_is_the_best() {
    let home = Home::with_cars(26);
    let run = home.run_named("run");
    let options = "--model small --effective-batch 8 --epochs 3 --lr 1e-3 --set data.label=none \
                   --set data.validation=20% --set train.best_metric=loss --num-threads 2";
    let log = train(&home.csv(), &run.path, options);
    let steps = run.lines("step");
    let evaluations = run.lines("evaluation");
    assert_eq!((steps.len(), evaluations.len()), (9, 3));
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap();
    let lowest = evaluations.iter().map(|line| number(line, "loss"));
    let lowest = lowest.fold(f64::INFINITY, f64::min);
    let best = run.json("summary.json")["best"].clone();
    assert_eq!(
        (best["metric"].as_str(), best["value"].as_f64()),
        (Some("loss"), Some(lowest))
    );
    for (epoch, (steps, line)) in steps.chunks(3).zip(&evaluations).enumerate() {
        assert_eq!(steps[2]["samples"], 5, "{steps:?}");
        let whole = (number(&steps[0], "loss") + number(&steps[1], "loss")) / 2.0;
        assert!((number(line, "train_loss") - whole).abs() < 1e-9, "{line}");
        // Five candidates: among all that are held out.
        let chance = line["losses"]["contrastive_chance"].as_f64().unwrap();
        assert!((chance - 5f64.ln()).abs() < 1e-9, "{line}");
        let told = format!(
            "; train loss {whole:.4} (chance 2.079 = ln 8), validation loss {:.4} (chance 1.609 = ln 5)",
            number(line, "loss")
        );
        let start = format!("Epoch {}/3: ", epoch + 1);
        let found = log.stderr.lines().find(|line| line.starts_with(&start));
        assert!(
            found.is_some_and(|line| line.ends_with(&told)),
            "{told}\n{}",
            log.stderr
        );
    }
}
