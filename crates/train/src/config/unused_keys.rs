//! Settings without effect: keys that another task reads, and keys that another key switches off.
//!
//! A key that the user sets and that changes nothing gets a warning. This module covers what follows from the config alone;
//! warnings that depend on the data (labels, the heads of a model) are given where the data is known.

use std::path::Path;

use holdall_data::config::{BadPictures, ReplacedPictures, Stride, TargetConfig, Validation};
use holdall_data::table::find;
use holdall_models::hub_cache::ModelName;
use serde_json::Value;

use super::choices::{EvalEvery, Schedule, Subset};
use super::generation_section::GenerationMethod;
use super::keys::defaults;
use super::video_text_section::{DecoderChoice, FrameCacheChoice, PoolingName};
use super::{AUTO_MODEL, RunConfig, TaskName};

use TaskName::{Classify, Clip, Segment, VideoText};

/// Keys, or sections, that only some tasks read. Every task reads all other keys.
const READERS: &[(&str, &[TaskName])] = &[
    ("tokens", &[Clip, VideoText]),
    ("unet", &[Segment]),
    ("video_text", &[VideoText]),
    ("generation", &[VideoText]),
    ("evaluation", &[VideoText]),
    ("data.image", &[Clip, Classify, Segment]),
    ("data.video", &[VideoText]),
    ("data.group", &[VideoText]),
    ("data.num_videos", &[VideoText]),
    ("data.frames", &[VideoText]),
    ("data.stride", &[VideoText]),
    ("data.start", &[VideoText]),
    ("data.short_clips", &[VideoText]),
    ("data.caption", &[Clip, VideoText]),
    ("data.label", &[Clip, Classify, VideoText]),
    ("data.targets", &[Clip, Classify, VideoText]),
    ("data.unseen_labels", &[Clip, Classify, VideoText]),
    ("data.tokenizer", &[Clip, VideoText]),
    ("data.mask", &[Segment]),
    ("data.image_subdir", &[Segment]),
    ("data.label_subdir", &[Segment]),
    ("data.classes", &[Segment]),
    ("data.colours", &[Segment]),
    ("data.binarize", &[Segment]),
    ("data.ignore", &[Segment]),
    ("data.field_of_view", &[Segment]),
    ("data.image_size", &[Segment]),
    ("data.patch", &[Segment]),
    ("data.foreground", &[Segment]),
    ("data.pair_augment", &[Segment]),
    ("data.augment", &[Clip, Classify, VideoText]),
    ("data.decode", &[Clip, Classify, VideoText]),
    ("data.mixing", &[Classify]),
    ("losses.contrastive", &[Clip, VideoText]),
    ("losses.label", &[Clip, VideoText]),
    ("losses.caption", &[VideoText]),
    ("losses.caption_smoothing", &[VideoText]),
    ("losses.caption_weights", &[VideoText]),
    ("losses.label_smoothing", &[Clip, Classify, VideoText]),
    ("losses.targets", &[Classify, VideoText]),
    ("losses.bce", &[Segment]),
    ("losses.cross_entropy", &[Segment]),
    ("losses.dice", &[Segment]),
    ("losses.focal", &[Segment]),
    ("losses.tversky", &[Segment]),
    ("losses.dice_over", &[Segment]),
    ("train.dropout", &[Classify, VideoText]),
    ("train.stochastic_depth", &[Classify]),
    ("train.sampling", &[Clip, Classify, VideoText]),
    // Convolutions always accumulate their weight gradients in f32.
    ("train.gradients", &[Clip, Classify, VideoText]),
];

/// A key that other keys may switch off.
struct Idle {
    /// The key, or a section.
    key: &'static str,
    is_idle: fn(&RunConfig, TaskName) -> bool,
    /// The cause, for the warning.
    because: &'static str,
}

fn has_no_decoder(config: &RunConfig, _task: TaskName) -> bool {
    config.video_text.decoder == DecoderChoice::None
}

fn is_not_sampled(config: &RunConfig, _task: TaskName) -> bool {
    config.generation.method != GenerationMethod::Sample
}

fn is_never_evaluated(config: &RunConfig, _task: TaskName) -> bool {
    config.train.eval_every == EvalEvery::Never
}

/// Whether neither the validation nor any other subset is evaluated.
fn has_no_validation(config: &RunConfig, _task: TaskName) -> bool {
    let evaluates_more = config
        .train
        .eval_on
        .iter()
        .any(|&on| on != Subset::Validation);
    config.data.validation == Validation::None && !evaluates_more
}

fn has_no_labels(config: &RunConfig, _task: TaskName) -> bool {
    let is_none = config.data.label == Some(TargetConfig::Class("none".to_owned()));
    is_none && config.data.targets.is_empty()
}

/// Whether losses are named, and which of the two kinds have a weight: of single pixels, and of overlap.
fn named_losses(config: &RunConfig) -> Option<(bool, bool)> {
    let losses = &config.losses;
    let focal = losses.focal.as_ref().map(|focal| focal.weight);
    let tversky = losses.tversky.as_ref().map(|tversky| tversky.weight);
    let of_pixels = [losses.bce, losses.cross_entropy, focal];
    let of_overlap = [losses.dice, tversky];
    let counts = |weights: &[Option<f64>]| weights.iter().flatten().any(|weight| *weight > 0.0);
    let mut named = of_pixels.iter().chain(&of_overlap).flatten();
    named.next()?;
    Some((counts(&of_pixels), counts(&of_overlap)))
}

fn is_table(config: &RunConfig, _task: TaskName) -> bool {
    config.data.train.as_deref().is_some_and(Path::is_file)
}

/// Whether the files of a folder are the rows: class folders, pictures with captions, shards.
fn is_folder_of_rows(config: &RunConfig, task: TaskName) -> bool {
    let folder = config.data.train.as_deref().filter(|path| path.is_dir());
    let found = folder.map(|folder| find(Some(folder)));
    task != Segment && matches!(found, Some(Ok(found)) if found.csv.is_dir())
}

/// Whether the model is a preset, which has no pretrained weights; a hub name has them.
fn is_preset(config: &RunConfig, task: TaskName) -> bool {
    match config.model.as_str() {
        AUTO_MODEL => task == Segment,
        name => ModelName::parse(name).is_none(),
    }
}

/// Whether the data is a folder of images and masks, without a table.
fn is_folder_of_masks(config: &RunConfig, task: TaskName) -> bool {
    let folder = config.data.train.as_deref().filter(|path| path.is_dir());
    let entries = folder.and_then(|folder| folder.read_dir().ok());
    let mut entries = entries.into_iter().flatten().flatten();
    let has_shards = entries.any(|entry| entry.path().extension().is_some_and(|end| end == "tar"));
    task == Segment && folder.is_some() && !has_shards
}

const NOT_VALIDATED: &str = "`data: {validation: none}` leaves nothing to evaluate";
const NO_TABLE: &str = "the data is a folder of images and masks, not a table";
const NO_DECODER: &str = "`video_text: {decoder: none}` writes no captions";
const NOT_SAMPLED: &str = "only `generation: {method: sample}` reads it";
const NOT_BEAMS: &str = "only `generation: {method: beam}` reads it";
const NEVER_EVALUATED: &str = "`train: {eval_every: none}` evaluates nothing";

/// Keys that other keys switch off, independent of the data.
const IDLE: &[Idle] = &[
    Idle {
        key: "train.epochs",
        is_idle: |config, _| config.train.max_steps.is_some(),
        because: "`train: {max_steps: ...}` says how long the run is",
    },
    Idle {
        key: "train.lr_end",
        is_idle: |config, _| config.train.schedule == Schedule::Constant,
        because: "`train: {schedule: constant}` keeps the rate",
    },
    Idle {
        key: "train.eval_on",
        is_idle: is_never_evaluated,
        because: NEVER_EVALUATED,
    },
    Idle {
        key: "train.eval_batch_size",
        is_idle: is_never_evaluated,
        because: NEVER_EVALUATED,
    },
    Idle {
        key: "train.best_metric",
        is_idle: is_never_evaluated,
        because: NEVER_EVALUATED,
    },
    Idle {
        key: "train.eval_every",
        is_idle: |config, task| {
            has_no_validation(config, task) && !is_never_evaluated(config, task)
        },
        because: NOT_VALIDATED,
    },
    Idle {
        key: "train.eval_batch_size",
        is_idle: has_no_validation,
        because: NOT_VALIDATED,
    },
    Idle {
        key: "train.best_metric",
        is_idle: has_no_validation,
        because: NOT_VALIDATED,
    },
    Idle {
        key: "train.early_stop",
        is_idle: has_no_validation,
        because: NOT_VALIDATED,
    },
    Idle {
        key: "data.unseen_labels",
        is_idle: has_no_labels,
        because: "`data: {label: none}` reads no labels",
    },
    Idle {
        key: "data.separator",
        is_idle: is_folder_of_rows,
        because: "the data is a folder whose files are the rows, not a text table",
    },
    Idle {
        key: "random_weights",
        is_idle: is_preset,
        because: "it is about models of the hub: a preset always begins from random weights",
    },
    Idle {
        key: "run_name",
        is_idle: |config, _| config.out.is_some(),
        because: "`out:` names the folder",
    },
    Idle {
        key: "data.mixing.probability",
        is_idle: |config, _| !config.data.mixing.is_on(),
        because: "neither `mixup` nor `cutmix` is above 0",
    },
    Idle {
        key: "data.mixing.switch",
        is_idle: |config, _| config.data.mixing.mixup == 0.0 || config.data.mixing.cutmix == 0.0,
        because: "it chooses between `mixup` and `cutmix`, and not both are above 0",
    },
    Idle {
        key: "data.foreground",
        is_idle: |config, _| config.data.patch.is_none(),
        because: "it is about `data: {patch: ...}`, which is not set",
    },
    Idle {
        key: "data.max_skipped",
        is_idle: |config, _| config.data.bad_pictures == BadPictures::Fail,
        because: "`data: {bad_pictures: fail}` skips none",
    },
    Idle {
        key: "data.picture_check",
        is_idle: |config, _| config.data.replaced_pictures == ReplacedPictures::Ignore,
        because: "`data: {replaced_pictures: ignore}` compares nothing",
    },
    Idle {
        key: "data.start",
        is_idle: |config, _| config.data.stride == Stride::Spread,
        because: "`data: {stride: spread}` sees clips from their first to their last frame",
    },
    Idle {
        key: "data.image_subdir",
        is_idle: is_table,
        because: "the data is a table, whose columns say where pictures are",
    },
    Idle {
        key: "data.label_subdir",
        is_idle: is_table,
        because: "the data is a table, whose columns say where masks are",
    },
    Idle {
        key: "data.image",
        is_idle: is_folder_of_masks,
        because: NO_TABLE,
    },
    Idle {
        key: "data.mask",
        is_idle: is_folder_of_masks,
        because: NO_TABLE,
    },
    Idle {
        key: "data.image_root",
        is_idle: is_folder_of_masks,
        because: NO_TABLE,
    },
    Idle {
        key: "data.separator",
        is_idle: is_folder_of_masks,
        because: NO_TABLE,
    },
    Idle {
        key: "losses.dice_over",
        is_idle: |config, _| matches!(named_losses(config), Some((_, false))),
        because: "neither `dice` nor `tversky` is among the losses",
    },
    Idle {
        key: "losses.class_weights",
        is_idle: |config, task| task == Segment && matches!(named_losses(config), Some((false, _))),
        because: "only `bce`, `cross_entropy` and `focal` weigh classes, and none of them is among the losses",
    },
    Idle {
        key: "unet.groups",
        is_idle: |config, _| config.unet.norm.as_deref() == Some("instance"),
        because: "`unet: {norm: instance}` has no groups",
    },
    Idle {
        key: "video_text.temporal_layers",
        is_idle: |config, _| {
            let pooling = config.video_text.pooling;
            pooling.is_some_and(|pooling| pooling != PoolingName::Temporal)
        },
        because: "only `pooling: temporal` has such layers",
    },
    Idle {
        key: "video_text.queries",
        is_idle: |config, _| config.video_text.pooling != Some(PoolingName::Attention),
        because: "only `pooling: attention` has queries",
    },
    Idle {
        key: "video_text.cache_folder",
        is_idle: |config, _| config.video_text.cache == FrameCacheChoice::None,
        because: "`video_text: {cache: none}` keeps nothing",
    },
    Idle {
        key: "video_text.tokenizer",
        is_idle: has_no_decoder,
        because: NO_DECODER,
    },
    Idle {
        key: "losses.caption",
        is_idle: has_no_decoder,
        because: NO_DECODER,
    },
    Idle {
        key: "losses.caption_smoothing",
        is_idle: has_no_decoder,
        because: NO_DECODER,
    },
    Idle {
        key: "losses.caption_weights",
        is_idle: has_no_decoder,
        because: NO_DECODER,
    },
    Idle {
        key: "evaluation",
        is_idle: has_no_decoder,
        because: NO_DECODER,
    },
    Idle {
        key: "generation",
        is_idle: has_no_decoder,
        because: NO_DECODER,
    },
    Idle {
        key: "generation.beams",
        is_idle: |config, _| config.generation.method != GenerationMethod::Beam,
        because: NOT_BEAMS,
    },
    Idle {
        key: "generation.length_penalty",
        is_idle: |config, _| config.generation.method != GenerationMethod::Beam,
        because: NOT_BEAMS,
    },
    Idle {
        key: "generation.early_stopping",
        is_idle: |config, _| config.generation.method != GenerationMethod::Beam,
        because: NOT_BEAMS,
    },
    Idle {
        key: "generation.top_k",
        is_idle: is_not_sampled,
        because: NOT_SAMPLED,
    },
    Idle {
        key: "generation.top_p",
        is_idle: is_not_sampled,
        because: NOT_SAMPLED,
    },
    Idle {
        key: "generation.temperature",
        is_idle: is_not_sampled,
        because: NOT_SAMPLED,
    },
    Idle {
        key: "generation.seed",
        is_idle: is_not_sampled,
        because: NOT_SAMPLED,
    },
];

/// Whether a dotted key is `section` or lies in it.
pub(crate) fn is_within(key: &str, section: &str) -> bool {
    let rest = key.strip_prefix(section);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The tasks that read a key; `None` if all tasks do.
pub(crate) fn tasks_that_read(key: &str) -> Option<&'static [TaskName]> {
    let mut readers = READERS.iter();
    let (_, tasks) = readers.find(|(section, _)| is_within(key, section))?;
    Some(tasks)
}

pub(crate) fn changed_keys(config: &RunConfig) -> Vec<String> {
    fn collect(path: &str, value: &Value, default: &Value, changed: &mut Vec<String>) {
        match (value, default) {
            (Value::Object(values), Value::Object(defaults)) if !defaults.is_empty() => {
                for (key, value) in values {
                    let below = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    let default = defaults.get(key).unwrap_or(&Value::Null);
                    collect(&below, value, default, changed);
                }
            }
            _ if value != default => changed.push(path.to_owned()),
            _ => {}
        }
    }
    let value = serde_json::to_value(config).unwrap_or_default();
    let mut changed = Vec::new();
    collect("", &value, &defaults(), &mut changed);
    changed
}

/// Warnings for keys that `sets` name and that no command reads which only reads data, such as `holdall data check`.
pub fn warnings_of_sets_for_data(sets: &[String], task: Option<TaskName>) -> Vec<String> {
    const BESIDE_DATA: [&str; 5] = ["data", "task", "seed", "num_workers", "memory"];
    let mut warnings = Vec::new();
    // An invalid `--set` is reported when it is merged into the config.
    let alone = |set: &String| RunConfig::load(None, std::slice::from_ref(set)).ok();
    for key in sets
        .iter()
        .filter_map(alone)
        .flat_map(|config| changed_keys(&config))
    {
        let is_read = BESIDE_DATA.iter().any(|section| is_within(&key, section));
        let tasks =
            tasks_that_read(&key).filter(|tasks| task.is_some_and(|task| !tasks.contains(&task)));
        if !is_read {
            warnings.push(format!("warning: {key}: no effect, only training reads it"));
        } else if let (Some(tasks), Some(task)) = (tasks, task) {
            warnings.push(not_of_task(&key, task, tasks));
        }
    }
    warnings
}

fn not_of_task(key: &str, task: TaskName, tasks: &[TaskName]) -> String {
    let names: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
    format!(
        "warning: {key}: no effect in task {}; {} reads it",
        task.name(),
        names.join(", ")
    )
}

/// A warning for each key that the config sets although the task does not read it or another key switches it off.
pub(crate) fn warnings_of_unused_keys(config: &RunConfig, task: TaskName) -> Vec<String> {
    let mut warnings = Vec::new();
    for key in changed_keys(config) {
        if let Some(tasks) = tasks_that_read(&key)
            && !tasks.contains(&task)
        {
            warnings.push(not_of_task(&key, task, tasks));
            continue;
        }
        let mut idle = IDLE.iter();
        if let Some(idle) =
            idle.find(|idle| is_within(&key, idle.key) && (idle.is_idle)(config, task))
        {
            warnings.push(format!("warning: {key}: no effect, {}", idle.because));
        }
    }
    warnings
}
