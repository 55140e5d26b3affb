//! Every key of a config has an effect in every task, or is refused, or gets a warning.
//!
//! ```text
//! seen in the plan    another fingerprint of the prepared run: samples, rows, losses, rates, optimizer, request, model
//! seen in the run     other losses, scores, files or lines of a run of two steps
//! seen in the step    another fingerprint of what `plan` and `verify` compute without data
//! ```
//!
//! What `eval` and `predict` read is walked by the command line's `every_key_changes_what_eval_and_predict_do_or_is_answered`.
//!
//! Keys that only a command reads, or that need a second process, a GPU or a broken picture, are in [`READ_ELSEWHERE`], each with
//! the test that covers it.

use std::path::Path;

use holdall_data::DataConfig;
use holdall_data::config::Validation;
use holdall_graph::Copies;
use holdall_plan::StepShape;
use holdall_sample_data::moving_shapes::{self, MovingShapesConfig};
use holdall_sample_data::vessels::{self, VesselsConfig};
use serde_json::{Value, json};

use super::*;
use crate::config::budget::Memory;
use crate::config::{TaskName, is_within};
use crate::engine::schedule::LearningRates;
use crate::engine::step_graph::write_step;
use crate::planning::digest::data_digest;
use crate::planning::prepare::Prepared;
use crate::planning::setup::Setup;
use crate::run_folder::folder::RunFolder;

/// Keys without a visible effect in a run of one process on intact pictures, and the tests that cover them.
const READ_ELSEWHERE: &[(&str, &str)] = &[
    ("out", "cli: out_folder"),
    ("run_name", "cli: config"),
    (
        "num_threads",
        "the device is opened by the command; cli: config",
    ),
    (
        "train.shard",
        "one process has all state; several_processes",
    ),
    (
        "data.bad_pictures",
        "tests of broken pictures in this folder",
    ),
    (
        "data.max_skipped",
        "tests of broken pictures in this folder",
    ),
    (
        "data.replaced_pictures",
        "tests of resumed runs in this folder",
    ),
    ("data.picture_check", "tests of resumed runs in this folder"),
    (
        "host_memory",
        "loader_budget: host_memory_bounds_rows_and_workers",
    ),
    (
        "data.unseen_labels",
        "an evaluation of labels that were not trained on; cli: evaluating",
    ),
    (
        "generation.min_tokens",
        "captions of random weights do not end before it; generation: tests",
    ),
    ("prefetch", "loader_budget"),
    ("num_workers", "loader_budget"),
    (
        "random_weights",
        "tasks: a_name_of_the_hub_means_its_weights",
    ),
    (
        "train.early_stop",
        "a run of one evaluation has no patience to lose; trainer: evaluation",
    ),
];

/// A value for each key that differs from the default.
const EXAMPLES: &[(&str, &str)] = &[
    ("task", "\"clip\""),
    ("model", "\"video-text-small\""),
    ("random_weights", "true"),
    ("data.train", "\"nowhere.csv\""),
    ("data.validation", "0.4"),
    ("data.image_root", "\"nowhere\""),
    ("data.image", "\"body\""),
    ("data.video", "\"shape\""),
    ("data.group", "\"shape\""),
    ("data.num_videos", "2"),
    ("data.frames", "2"),
    ("data.stride", "1"),
    ("data.start", "\"centred\""),
    ("data.short_clips", "\"mask\""),
    ("data.separator", "\";\""),
    ("data.caption", "\"a {color}{colour} thing\""),
    ("data.label", "\"color\""),
    ("data.targets", "{\"colour\": \"colour\"}"),
    ("data.tokenizer", "\"nowhere.json\""),
    ("data.mask", "\"other\""),
    ("data.image_subdir", "\"nowhere\""),
    ("data.label_subdir", "\"nowhere\""),
    ("data.classes", "[\"background\", \"vein\"]"),
    (
        "data.colours",
        "{\"background\": \"#000000\", \"vein\": \"#0000ff\"}",
    ),
    ("data.binarize", "3"),
    ("data.ignore", "7"),
    ("data.field_of_view", "\"nowhere\""),
    ("data.image_size", "48"),
    ("data.patch", "16"),
    ("data.foreground", "0.5"),
    ("data.augment.crop", "0.5"),
    ("data.augment.flip", "true"),
    ("data.augment.brightness", "0.3"),
    ("data.augment.contrast", "0.3"),
    ("data.augment.saturation", "0.3"),
    ("data.augment.hue", "0.3"),
    ("data.pair_augment.flip", "false"),
    ("data.pair_augment.vertical_flip", "false"),
    ("data.pair_augment.quarter_turns", "false"),
    ("data.pair_augment.rotation", "10"),
    ("data.pair_augment.scale", "0.2"),
    ("data.pair_augment.brightness", "0.3"),
    ("data.pair_augment.contrast", "0.3"),
    ("data.pair_augment.gamma", "0.3"),
    ("data.pair_augment.noise", "0.1"),
    ("data.pair_augment.blur", "1"),
    ("data.pair_augment.low_resolution", "0.5"),
    ("data.mixing.mixup", "0.4"),
    ("data.mixing.cutmix", "0.4"),
    ("data.mixing.probability", "0.5"),
    ("data.mixing.switch", "0.7"),
    ("data.decode", "\"fast\""),
    ("data.bad_pictures", "\"fail\""),
    ("data.unseen_labels", "\"skip\""),
    ("data.max_skipped", "0.5"),
    ("data.replaced_pictures", "\"warn\""),
    ("data.picture_check", "\"hash\""),
    ("labels", "7"),
    ("tokens", "5"),
    ("unet.kind", "\"residual-encoder\""),
    ("unet.channels", "[8, 16]"),
    ("unet.encoder_blocks", "[1, 1, 1]"),
    ("unet.decoder_blocks", "1"),
    ("unet.norm", "\"instance\""),
    ("unet.groups", "4"),
    ("unet.activation", "\"gelu\""),
    ("unet.upsampling", "\"nearest\""),
    ("unet.downsampling", "\"strided\""),
    ("unet.deep_supervision", "true"),
    ("unet.input_channels", "1"),
    ("unet.bits", "16"),
    ("unet.mean", "[0.1, 0.2, 0.3]"),
    ("unet.std", "[0.1, 0.2, 0.3]"),
    ("video_text.text_model", "\"nowhere\""),
    ("video_text.pooling", "\"mean\""),
    ("video_text.temporal_layers", "1"),
    ("video_text.queries", "3"),
    ("video_text.decoder.layers", "1"),
    ("video_text.decoder.width", "32"),
    ("video_text.decoder.heads", "1"),
    ("video_text.decoder.inner", "32"),
    ("video_text.decoder.tied", "true"),
    ("video_text.decoder.tokens", "7"),
    ("video_text.tokenizer", "\"nowhere\""),
    ("video_text.same_text", "\"positive\""),
    ("video_text.cache", "\"features\""),
    ("video_text.cache_folder", "\"nowhere\""),
    ("generation.method", "\"sample\""),
    ("generation.beams", "2"),
    ("generation.max_tokens", "3"),
    ("generation.min_tokens", "6"),
    ("generation.length_penalty", "0.5"),
    ("generation.early_stopping", "true"),
    ("generation.no_repeat_ngram", "1"),
    ("generation.top_k", "2"),
    ("generation.top_p", "0.1"),
    ("generation.temperature", "0.01"),
    ("generation.seed", "9"),
    ("evaluation.captions", "1"),
    ("evaluation.seed", "3"),
    ("losses.contrastive", "0.25"),
    ("losses.label", "0.25"),
    ("losses.caption", "0.25"),
    ("losses.caption_smoothing", "0.1"),
    ("losses.caption_weights", "{\"[a-z]+\": 3}"),
    ("losses.label_smoothing", "0.1"),
    ("losses.class_weights", "\"balanced\""),
    ("losses.targets", "{\"label\": 3}"),
    ("losses.bce", "0.5"),
    ("losses.cross_entropy", "0.5"),
    ("losses.dice", "0.5"),
    ("losses.focal", "{\"gamma\": 1}"),
    ("losses.tversky", "{\"alpha\": 0.1}"),
    ("losses.dice_over", "\"image\""),
    ("train.effective_batch", "3"),
    ("train.batch_size", "1"),
    ("train.gradient_accumulation", "2"),
    ("train.recompute", "\"blocks\""),
    ("train.epochs", "2"),
    ("train.max_steps", "1"),
    ("train.lr", "0.01"),
    ("train.lr_head", "0.01"),
    ("train.lr_by", "{\"*bias\": 0.01}"),
    ("train.freeze", "[\"*bias\"]"),
    ("train.schedule", "\"linear\""),
    ("train.warmup", "3"),
    ("train.lr_end", "0.5"),
    ("train.clip_norm", "0.001"),
    ("train.optimizer.beta1", "0.5"),
    ("train.optimizer.beta2", "0.5"),
    ("train.optimizer.eps", "0.01"),
    ("train.optimizer.weight_decay", "0.5"),
    ("train.optimizer_state", "\"8bit\""),
    ("train.gradients", "\"bf16\""),
    ("train.shard", "\"optimizer\""),
    ("train.ema", "0.5"),
    ("train.interpolate", "0.5"),
    ("train.dropout", "0.5"),
    ("train.stochastic_depth", "0.5"),
    ("train.lora", "{\"rank\": 2}"),
    ("train.sampling", "\"balanced\""),
    ("train.eval_every", "\"none\""),
    ("train.eval_on", "[\"train\"]"),
    ("train.eval_batch_size", "1"),
    ("train.save_every", "1"),
    ("train.early_stop", "1"),
    ("train.best_metric", "\"no such metric\""),
    ("memory", "\"1GiB\""),
    ("host_memory", "\"1GiB\""),
    ("precision", "\"bf16\""),
    ("num_threads", "1"),
    ("num_workers", "1"),
    ("prefetch", "1"),
    ("seed", "5"),
    ("out", "\"elsewhere\""),
    ("run_name", "\"other\""),
];

const TASKS: [TaskName; 4] = [
    TaskName::Clip,
    TaskName::Classify,
    TaskName::Segment,
    TaskName::VideoText,
];

/// Draws a few small samples for every task.
fn draw_all(folder: &Path) {
    let cars = CarsConfig {
        count: 16,
        size: 32,
        ..CarsConfig::default()
    };
    cars::write(&folder.join("cars"), &cars, |_| true).unwrap();
    let pictures = VesselsConfig {
        count: 8,
        size: 32,
        seed: 1,
    };
    vessels::write(&folder.join("vessels"), &pictures, |_| true).unwrap();
    let clips = MovingShapesConfig {
        count: 8,
        size: 32,
        frames: 5,
        ..MovingShapesConfig::default()
    };
    moving_shapes::write(&folder.join("clips"), &clips, |_| true).unwrap();
}

/// A run of a few steps from random weights, with one evaluation.
fn base(folder: &Path, task: TaskName) -> RunConfig {
    let (model, data) = match task {
        TaskName::Clip => ("small", "cars/image_labels.csv"),
        TaskName::Classify => ("vit-demo", "cars/image_labels.csv"),
        TaskName::Segment => ("unet-demo", "vessels/train"),
        TaskName::VideoText => ("video-text-demo", "clips/clips.csv"),
    };
    let mut config = RunConfig {
        task: Some(task),
        model: model.to_owned(),
        ..RunConfig::default()
    };
    config.data.train = Some(folder.join(data));
    config.data.validation = Validation::share(0.5);
    config.data.label = match task {
        TaskName::Clip | TaskName::Classify => Some("body".into()),
        TaskName::Segment => None,
        TaskName::VideoText => Some("direction".into()),
    };
    config.train.effective_batch = Some(2);
    config.train.epochs = Some(1);
    config.evaluation.captions = 2;
    // Fixed, because the free memory varies.
    config.memory = Memory::Bytes(2 << 30);
    config
}

/// The config with one key changed, or the reason why it is refused.
fn with_key(config: &RunConfig, key: &str, value: &Value) -> Result<RunConfig, String> {
    let mut tree = serde_json::to_value(config).unwrap();
    let mut at = &mut tree;
    for part in key.split('.') {
        at = &mut at[part];
    }
    *at = value.clone();
    let changed: RunConfig = serde_json::from_value(tree).map_err(|error| error.to_string())?;
    changed.validate().map_err(|error| error.to_string())?;
    Ok(changed)
}

/// Everything that is known before planning, as text.
fn fingerprint(prepared: &Prepared) -> String {
    let setup = &prepared.setup;
    let lists = prepared.subsets().map(|(subset, samples)| {
        let rows = (0..samples.len()).map(|sample| samples.image(sample).to_owned());
        (subset, rows.collect::<Vec<_>>(), samples.targets().to_vec())
    });
    let metric = setup.config.train.best_metric.as_deref();
    format!(
        "{:?} {} {:?} {:?} {:x} {:?}",
        prepared.notes,
        step_fingerprint(setup),
        lists.collect::<Vec<_>>(),
        setup.rows,
        data_digest(prepared),
        setup.step.task.best_metric(metric).ok()
    )
}

/// What plans and certificates depend on, as text.
fn step_fingerprint(setup: &Setup) -> String {
    let task = &setup.step.task;
    let rates = LearningRates::new(&setup.config, 100);
    let length = setup.config.train.total_steps(7);
    let learnt = (task.losses(), task.parameter_names(), rates, length);
    let of_step = (
        &setup.step,
        &setup.step.optimizer,
        &setup.request,
        setup.seed,
    );
    let shape = StepShape {
        batch_size: 2,
        gradient_accumulation: 1,
        copies: Copies::default(),
    };
    let graph = write_step(&setup.step, &shape);
    format!(
        "{:?} {of_step:?} {learnt:?} {:?}",
        setup.notes,
        graph.nodes()
    )
}

/// Events, losses and files of a run, as text.
fn traces(config: RunConfig, folder: &Path) -> Result<String, TrainError> {
    let device = Device::on_cpu(Cpu::new(Some(1)));
    let planned = PlannedRun::new(config, device, None, Choosing::Predicted)?;
    let files = RunFolder::create(folder)?;
    let mut trainer = Trainer::begin(planned, files, &mut |_| ())?;
    let (steps, _, outcome) = run(&mut trainer);
    outcome?;
    drop(trainer);
    let mut text = format!("{steps:?}");
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    for line in metrics.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        for timed in ["seconds", "waited_for_data"] {
            line[timed] = json!(null);
        }
        text += &line.to_string();
    }
    for name in ["captions.json", "checkpoints"] {
        let path = folder.join(name);
        if let Ok(entries) = std::fs::read_dir(&path) {
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            text += &format!("{names:?}");
        } else if let Ok(contents) = std::fs::read_to_string(&path) {
            text += &contents;
        }
    }
    Ok(text)
}

/// Dotted names of all leaves of the default config.
fn documented_keys() -> Vec<String> {
    fn collect(path: &str, value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(entries) if !entries.is_empty() => {
                for (key, value) in entries {
                    let below = match path {
                        "" => key.clone(),
                        _ => format!("{path}.{key}"),
                    };
                    collect(&below, value, keys);
                }
            }
            _ => keys.push(path.to_owned()),
        }
    }
    let mut keys = Vec::new();
    let defaults = serde_json::to_value(RunConfig::default()).unwrap();
    collect("", &defaults, &mut keys);
    keys
}

#[test]
fn every_key_has_an_example() {
    let mut expected = documented_keys();
    let mut found: Vec<String> = EXAMPLES.iter().map(|(key, _)| (*key).to_owned()).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    for (key, _) in READ_ELSEWHERE {
        assert!(found.iter().any(|known| known == key), "{key}");
    }
}

#[test]
fn every_key_has_an_effect_in_every_task_or_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    draw_all(folder.path());
    let device = Device::on_cpu(Cpu::new(Some(1)));
    let mut without_effect = Vec::new();
    let mut runs = 0;
    for task in TASKS {
        let base = base(folder.path(), task);
        let prepared = Prepared::new(&base, &device).unwrap();
        let (before, mut run_before) = (fingerprint(&prepared), None);
        let again = Prepared::new(&base, &device).unwrap();
        assert_eq!(
            fingerprint(&again),
            before,
            "the same run is prepared alike"
        );
        for (key, value) in EXAMPLES {
            let value: Value = serde_json::from_str(value).unwrap();
            let elsewhere = READ_ELSEWHERE.iter().any(|(known, _)| known == key);
            let is_same = serde_json::to_value(&base)
                .unwrap()
                .pointer(&format!("/{}", key.replace('.', "/")))
                == Some(&value);
            if elsewhere || is_same {
                continue;
            }
            // The value is refused.
            let Ok(config) = with_key(&base, key, &value) else {
                continue;
            };
            let Ok(prepared) = Prepared::new(&config, &device) else {
                continue;
            };
            let notes = prepared.notes.iter().chain(&prepared.setup.notes);
            let mut warnings = notes.filter(|note| note.starts_with("warning: "));
            if warnings.any(|warning| warning.contains(key)) {
                continue;
            }
            if fingerprint(&prepared) != before {
                continue;
            }
            let out = |name: &str| folder.path().join(format!("{}-{name}", task.name()));
            let run_before =
                run_before.get_or_insert_with(|| traces(base.clone(), &out("base")).unwrap());
            runs += 1;
            match traces(config, &out(key)) {
                Ok(after) if after == *run_before => {
                    without_effect.push(format!("{}: {key}", task.name()));
                }
                _ => {}
            }
        }
    }
    eprintln!("{runs} runs");
    assert!(without_effect.is_empty(), "{without_effect:#?}");
}

/// Keys, or sections, of the step: `plan` and `verify` read them without data too. Heads, masks and captions come from data.
const OF_A_STEP: &[&str] = &[
    "labels",
    "tokens",
    "unet",
    "video_text",
    "data.frames",
    "losses.caption",
    "losses.contrastive",
    "losses.label",
    "train.effective_batch",
    "train.batch_size",
    "train.gradient_accumulation",
    "train.recompute",
    "train.freeze",
    "train.optimizer",
    "train.optimizer_state",
    "train.gradients",
    "train.ema",
    "train.dropout",
    "train.stochastic_depth",
    "train.lora",
    "train.eval_batch_size",
    "precision",
    "memory",
    "seed",
];

#[test]
fn every_key_of_a_step_changes_a_plan_without_data_or_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::on_cpu(Cpu::new(Some(1)));
    let mut without_effect = Vec::new();
    for task in TASKS {
        let mut base = base(folder.path(), task);
        base.data = DataConfig::default();
        base.labels = (task != TaskName::Segment).then_some(5);
        let before = step_fingerprint(&Setup::without_data(&base, &device).unwrap());
        for (key, value) in EXAMPLES {
            if !OF_A_STEP.iter().any(|section| is_within(key, section)) {
                continue;
            }
            let value: Value = serde_json::from_str(value).unwrap();
            // Refused, or of another kind than the default.
            let Ok(config) = with_key(&base, key, &value) else {
                continue;
            };
            let Ok(setup) = Setup::without_data(&config, &device) else {
                continue;
            };
            let mut warnings = setup
                .notes
                .iter()
                .filter(|note| note.starts_with("warning: "));
            let is_same =
                serde_json::to_value(&config).unwrap() == serde_json::to_value(&base).unwrap();
            if !is_same
                && !warnings.any(|warning| warning.contains(key))
                && step_fingerprint(&setup) == before
            {
                without_effect.push(format!("{}: {key}", task.name()));
            }
        }
    }
    assert!(without_effect.is_empty(), "{without_effect:#?}");
}

/// Keys of the table in docs/configuration.md: sections and keys that exist, and every section at the top level.
#[test]
fn the_document_has_the_keys_that_exist() {
    const DOCUMENT: &str = include_str!("../../../../../../docs/configuration.md");
    let (_, table) = DOCUMENT.split_once("\n## Keys\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let first_column = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let named: Vec<&str> = first_column
        .flat_map(|keys| keys.split('`').skip(1).step_by(2))
        .map(|key| key.trim_end_matches(':'))
        .collect();
    let defaults = serde_json::to_value(RunConfig::default()).unwrap();
    for key in &named {
        let pointer = format!("/{}", key.replace('.', "/"));
        assert!(defaults.pointer(&pointer).is_some(), "{key}");
    }
    for key in defaults.as_object().unwrap().keys() {
        // Segmentation has a document of its own.
        let is_named = named.iter().any(|known| is_within(known, key)) || key == "unet";
        assert!(is_named, "{key}");
    }
}

/// Each key that another setting switches off gets a warning.
#[test]
fn settings_that_others_switch_off_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    draw_all(folder.path());
    let device = Device::on_cpu(Cpu::new(Some(1)));
    for (task, others, key, value) in [
        (
            TaskName::Classify,
            [("data.validation", "\"none\"")],
            "train.early_stop",
            "1",
        ),
        (
            TaskName::Classify,
            [("data.validation", "\"none\"")],
            "train.best_metric",
            "\"loss\"",
        ),
        (
            TaskName::Segment,
            [("data.validation", "\"none\"")],
            "train.eval_every",
            "2",
        ),
        (
            TaskName::Segment,
            [("data.validation", "\"none\"")],
            "train.eval_batch_size",
            "1",
        ),
        (
            TaskName::Clip,
            [("seed", "1")],
            "train.shard",
            "\"optimizer\"",
        ),
        (TaskName::Clip, [("seed", "1")], "random_weights", "true"),
        (
            TaskName::Clip,
            [("data.label", "\"none\"")],
            "data.unseen_labels",
            "\"skip\"",
        ),
        (
            TaskName::Segment,
            [("seed", "1")],
            "data.unseen_labels",
            "\"skip\"",
        ),
        (
            TaskName::Segment,
            [("losses.dice", "1")],
            "losses.class_weights",
            "[1, 5]",
        ),
    ] {
        let value: Value = serde_json::from_str(value).unwrap();
        let mut config = with_key(&base(folder.path(), task), key, &value).unwrap();
        for (other, value) in others {
            let value: Value = serde_json::from_str(value).unwrap();
            config = with_key(&config, other, &value).unwrap();
        }
        let prepared = Prepared::new(&config, &device).unwrap();
        let notes = prepared.notes.iter().chain(&prepared.setup.notes);
        let start = format!("warning: {key}: no effect");
        let warnings = notes.filter(|note| note.starts_with(&start)).count();
        assert_eq!(warnings, 1, "{}: {key}", task.name());
    }
    let class_folders = folder.path().join("classes");
    for class in ["one", "two"] {
        std::fs::create_dir_all(class_folders.join(class)).unwrap();
        for number in 1..4 {
            let name = format!("{number:06}.jpg");
            let from = folder.path().join("cars/images").join(&name);
            std::fs::copy(from, class_folders.join(class).join(name)).unwrap();
        }
    }
    let mut config = base(folder.path(), TaskName::Classify);
    config.data.train = Some(class_folders);
    config.data.label = None;
    let config = with_key(&config, "data.separator", &json!(";")).unwrap();
    let notes = Prepared::new(&config, &device).unwrap().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("warning: data.separator: no effect, ")),
        "{notes:?}"
    );
}

/// Frozen layers with random weights get a warning, whichever setting freezes them.
#[test]
fn random_layers_that_are_held_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    draw_all(folder.path());
    let device = Device::on_cpu(Cpu::new(Some(1)));
    let base = base(folder.path(), TaskName::Classify);
    for (key, value) in [
        ("train.freeze", json!(["vit.embeddings"])),
        ("train.lr_by", json!({"vit.embeddings.*": 0})),
    ] {
        let config = with_key(&base, key, &value).unwrap();
        let notes = Prepared::new(&config, &device).unwrap().setup.notes;
        let start = format!("warning: {key}: holds ");
        let warning = notes.iter().find(|note| note.starts_with(&start));
        let warning = warning.unwrap_or_else(|| panic!("{key}: {notes:?}"));
        assert!(
            warning.contains(" parameters at random weights"),
            "{warning}"
        );
        assert!(warning.contains("vit.embeddings."), "{warning}");
    }
}
