//! Opens a classification run: samples, targets and model, before memory is planned.

use std::path::PathBuf;
use std::sync::Arc;

use holdall_data::decode::ImageProcessor;
use holdall_data::samples::{
    self, Captions, Samples, Target, TargetKind, TargetValues, balanced_weights,
};
use holdall_models::clip::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::model_config::ModelConfig;
use holdall_models::vit::config::{Family, VisionTransformerConfig};

use super::super::opened_model::{OpenedModel, no_such_model, normalization_of, open_folder};
use super::{ClassifyTask, Head, labels_of, metrics_of};
use crate::config::{ClassWeights, RunConfig};
use crate::error::TrainError;
use crate::planning::prepare::Prepared;
use crate::planning::setup::{Setup, Weights};
use crate::planning::site::Site;
use crate::tasks::{LABEL_LOSSES, starting_folder, warnings_without_labels};

/// Keys of `metrics.jsonl` and of an evaluation's JSON besides losses and scores. A target of the same name would hide one.
const RESERVED_NAMES: [&str; 20] = [
    "kind",
    "step",
    "epoch",
    "loss",
    "gradient_norm",
    "lr",
    "lr_head",
    "loss_scale",
    "samples",
    "samples_digest",
    "seconds",
    "waited_for_data",
    "on",
    "pictures",
    "skipped",
    "model",
    "data",
    "device",
    "planned_bytes",
    "process_bytes",
];

/// Opens the model in `folder`, or the preset called `name`.
pub(super) fn open_model(
    name: &str,
    folder: Option<PathBuf>,
) -> Result<OpenedModel<VisionTransformerConfig>, TrainError> {
    let (mut backbone, weights, processor) = match folder {
        Some(path) => {
            let folder = open_folder(&path)?;
            let backbone = backbone_of(name, &folder)?;
            let size = backbone.vision.image_size as u32;
            let processor = ImageProcessor::read_or(&path, size, default_processor(&backbone))?;
            (backbone, Weights::Folder(Box::new(folder)), processor)
        }
        None => {
            let preset = VisionTransformerConfig::preset(name)
                .or_else(|| ClipConfig::preset(name).map(|config| config.backbone()));
            let Some(backbone) = preset else {
                let own = VisionTransformerConfig::PRESETS.join(", ");
                let of_clip = ClipConfig::PRESETS.join(", ");
                return Err(no_such_model(
                    name,
                    &format!("{own}, and those of CLIP: {of_clip}"),
                ));
            };
            let processor = default_processor(&backbone)(backbone.vision.image_size as u32);
            let preset = Some(name.to_owned());
            (backbone, Weights::Random { preset }, processor)
        }
    };
    backbone.vision.normalization = normalization_of(&processor);
    Ok(OpenedModel {
        config: backbone,
        weights,
        processor,
    })
}

/// The vision transformer of a folder.
fn backbone_of(name: &str, folder: &ModelFolder) -> Result<VisionTransformerConfig, TrainError> {
    let config = folder.config();
    config.backbone().ok_or_else(|| {
        let hint = match config {
            ModelConfig::Unet(_) => "a U-Net learns masks: --task segment",
            ModelConfig::Bert(_) => {
                "a BERT reads text, not pictures; a classifier begins from a ViT, DeiT, DINOv2 or CLIP, such as \
                 --model google/vit-base-patch16-224"
            }
            _ => "it learns clips and texts: --task video-text",
        };
        TrainError::Config(format!(
            "model `{name}`: expected a vision transformer, found {}\nhint: {hint}",
            config.describe()
        ))
    })
}

fn default_processor(backbone: &VisionTransformerConfig) -> fn(u32) -> ImageProcessor {
    match backbone.family {
        Family::Clip => ImageProcessor::clip,
        Family::Vit | Family::Deit | Family::Dinov2 => ImageProcessor::vit,
    }
}

/// Opens the model without data; the config's `labels` is the number of classes.
pub fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    let opened = open_model(&config.model, starting_folder(config))?;
    let folder = opened.weights.folder();
    let classifier = folder.and_then(|folder| folder.config().classifier());
    let names = match (config.labels, classifier) {
        (Some(labels), _) => (0..labels).map(|label| format!("label {label}")).collect(),
        (None, Some(classifier)) => classifier.labels.clone(),
        (None, None) => Vec::new(),
    };
    let names = if names.is_empty() {
        ["label 0", "label 1"].map(str::to_owned).to_vec()
    } else {
        names
    };
    let target = Target {
        name: "label".to_owned(),
        kind: TargetKind::Class { names },
    };
    let mut notes = Vec::new();
    let processor = opened.processor.clone();
    let task = task(config, opened, vec![Head::new(&target)], &mut notes);
    Setup::new(config, site, Arc::new(task), processor, None, notes)
}

fn task(
    config: &RunConfig,
    opened: OpenedModel<VisionTransformerConfig>,
    heads: Vec<Head>,
    notes: &mut Vec<String>,
) -> ClassifyTask {
    let OpenedModel {
        config: backbone,
        weights,
        processor,
    } = opened;
    let labels = labels_of(&heads);
    let mut is_new_classifier = false;
    if let Some(folder) = weights.folder() {
        notes.push(processor.describe());
        notes.extend(folder.notes().iter().cloned());
        if let Some(reason) = folder.new_classifier_reason(&labels) {
            notes.push(format!("Classifier: RANDOM ({reason})"));
            is_new_classifier = true;
        }
    }
    ClassifyTask {
        mixing: config.data.mixing,
        dropout: config.train.dropout,
        stochastic_depth: config.train.stochastic_depth,
        seed: config.seed,
        weights: Arc::new(weights),
        is_new_classifier,
        processor: processor.text().to_owned(),
        ..ClassifyTask::new(backbone, heads)
    }
}

/// Reads the data and opens the model.
pub fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    let data = site.listed(|| samples::read(&config.data, Captions::None, config.seed))?;
    if data.targets.is_empty() {
        return Err(TrainError::Config(format!(
            "{}: expected labels to learn, found none\n\
             hint: `data: {{label: COLUMN}}` (--set data.label=COLUMN) says where they are; a folder per class needs no columns",
            data.csv.display()
        )));
    }
    let mut notes = data.notes;
    let heads = heads_of(config, &data.targets, &data.train)?;
    notes.extend(heads.iter().map(describe_head));
    // Heads are sorted by name. The target that the config lists first is the leading one.
    let listed = config.data.targets.iter().map(|(name, _)| name);
    let leading_head = listed
        .flat_map(|name| heads.iter().position(|head| head.name == name))
        .next()
        .unwrap_or(0);
    if let (None, [_, _, ..]) = (&config.train.best_metric, heads.as_slice()) {
        let first = &heads[leading_head];
        let (metric, _) = metrics_of(first)[0];
        notes.push(format!(
            "Best model: by {}.{metric}, the first target (`best_metric` names another)",
            first.name
        ));
    }
    let is_number = |head: &Head| matches!(head.kind, TargetKind::Number { .. });
    if heads.iter().all(is_number) {
        notes.extend(warnings_without_labels(config, &LABEL_LOSSES[1..]));
    }
    if let (Some(asked), [head]) = (config.labels, heads.as_slice())
        && asked != head.num_outputs()
    {
        return Err(TrainError::Config(format!(
            "labels: {asked}, expected {}: the data has that many\nhint: leave `labels` out",
            head.num_outputs()
        )));
    }
    let opened = open_model(&config.model, starting_folder(config))?;
    let mut setup_notes = Vec::new();
    let processor = opened.processor.clone();
    let mut task = task(config, opened, heads, &mut setup_notes);
    task.leading_head = leading_head;
    let train = Arc::new(data.train);
    task.train = Some(Arc::clone(&train));
    let num_samples = Some(train.len());
    let task = Arc::new(task);
    Ok(Prepared {
        setup: Setup::new(config, site, task, processor, num_samples, setup_notes)?,
        train,
        validation: data.validation.map(Arc::new),
        csv: data.csv,
        bad_rows: data.bad_rows,
        notes,
    })
}

/// A head for each target of the data, with its weights from the config.
pub(in crate::tasks) fn heads_of(
    config: &RunConfig,
    targets: &[Target],
    train: &Samples,
) -> Result<Vec<Head>, TrainError> {
    let mut known = targets.iter();
    let reserved = known.find(|target| RESERVED_NAMES.contains(&target.name.as_str()));
    if let Some(Target { name, .. }) = reserved {
        return Err(TrainError::Config(format!(
            "data.targets: `{name}`, expected another name: metrics.jsonl has something else under this one\n\
             hint: a target need not be called as its column: `targets: {{the_{name}: {name}}}`"
        )));
    }
    let mut heads: Vec<Head> = targets.iter().map(Head::new).collect();
    for (head, values) in heads.iter_mut().zip(train.targets()) {
        let weights = &config.losses.targets;
        head.weight = weights.get(&head.name).copied().unwrap_or(1.0);
        if let TargetKind::Class { .. } = head.kind {
            head.smoothing = config.losses.label_smoothing;
        }
        let is_labels = !matches!(values, TargetValues::Number(_));
        if is_labels && config.losses.class_weights == ClassWeights::Balanced {
            head.class_weights = balanced_weights(values, head.num_outputs());
        }
    }
    let unknown = config.losses.targets.keys();
    if let Some(name) = unknown.into_iter().find(|name| {
        let mut heads = heads.iter();
        !heads.any(|head| head.name == **name)
    }) {
        let names: Vec<&str> = heads.iter().map(|head| head.name.as_str()).collect();
        return Err(TrainError::Config(format!(
            "losses.targets: `{name}`, expected a target of the data: {}\nhint: names are the keys of `data: targets:`, or `label`",
            names.join(", ")
        )));
    }
    Ok(heads)
}

/// Log line of a head: `Head make: one of 40 labels`.
pub(in crate::tasks) fn describe_head(head: &Head) -> String {
    let what = match &head.kind {
        TargetKind::Class { names } => format!("one of {} labels", names.len()),
        TargetKind::Classes { names } => format!("any of {} labels", names.len()),
        TargetKind::Number { mean, std } => format!("a number, {mean:.3} +- {std:.3}"),
    };
    format!("Head {}: {what}", head.name)
}
