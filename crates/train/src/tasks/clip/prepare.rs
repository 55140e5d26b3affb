//! Opens a CLIP run: samples, tokens and model, before memory is planned.

use std::path::PathBuf;
use std::sync::Arc;

use holdall_data::DataConfig;
use holdall_data::config::{LABEL, TargetConfig, TokenizerChoice};
use holdall_data::decode::ImageProcessor;
use holdall_data::samples::{self, Captions, DataSet, Samples, balanced_class_weights};
use holdall_data::text::{TextEncoder, bucket};
use holdall_models::config::{ClipConfig, TextPooling};
use holdall_models::folder::ModelFolder;
use holdall_models::vit::config::VisionTransformerConfig;

use super::super::opened_model::{OpenedModel, no_such_model, normalization_of, open_folder};
use super::{ClipData, ClipTask, LabelNames, TokenTable};
use crate::config::{ClassWeights, RunConfig};
use crate::error::TrainError;
use crate::planning::prepare::Prepared;
use crate::planning::setup::{Setup, Weights, resolve_budget, room_to_open};
use crate::planning::site::Site;
use crate::tasks::{LABEL_LOSSES, starting_folder, warnings_without_labels};

/// Opens the model in `folder`, or the preset called `name`.
pub(super) fn open_model(
    name: &str,
    folder: Option<PathBuf>,
) -> Result<OpenedModel<ClipConfig>, TrainError> {
    let (mut config, weights, processor) = match folder {
        Some(path) => {
            let folder = open_folder(&path)?;
            let config = folder.clip_config()?.clone();
            let processor = ImageProcessor::read(&path, config.vision.image_size as u32)?;
            (config, Weights::Folder(Box::new(folder)), processor)
        }
        None => {
            let config = preset(name)?;
            let processor = ImageProcessor::clip(config.vision.image_size as u32);
            let preset = Some(name.to_owned());
            (config, Weights::Random { preset }, processor)
        }
    };
    config.vision.normalization = normalization_of(&processor);
    Ok(OpenedModel {
        config,
        weights,
        processor,
    })
}

fn preset(name: &str) -> Result<ClipConfig, TrainError> {
    ClipConfig::preset(name).ok_or_else(|| {
        let presets = ClipConfig::PRESETS.join(", ");
        if VisionTransformerConfig::preset(name).is_some() {
            TrainError::Config(format!(
                "model `{name}`: expected a CLIP model for task clip, found a vision transformer\n\
                 hint: --task classify trains it on labels; presets of CLIP are {presets}"
            ))
        } else {
            no_such_model(name, &presets)
        }
    })
}

/// Opens the model without data, with `labels` and `tokens` from the config.
pub fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    let opened = open_model(&config.model, starting_folder(config))?;
    let tokens = config.tokens.unwrap_or(opened.config.text.max_positions);
    let mut notes = Vec::new();
    let processor = opened.processor.clone();
    let task = task(config, site, opened, config.labels, tokens, &mut notes)?;
    Setup::new(config, site, Arc::new(task), processor, None, notes)
}

fn task(
    config: &RunConfig,
    site: Site<'_>,
    opened: OpenedModel<ClipConfig>,
    labels: Option<usize>,
    tokens: usize,
    notes: &mut Vec<String>,
) -> Result<ClipTask, TrainError> {
    let OpenedModel {
        config: model,
        weights,
        processor,
    } = opened;
    if config.data.mixing.is_on() || config.train.dropout + config.train.stochastic_depth > 0.0 {
        return Err(TrainError::Config(
            "task clip: expected neither `data.mixing` nor `train.dropout` nor `train.stochastic_depth`: a caption belongs to \
             one picture, and CLIP is trained without dropout\nhint: leave them out, or `task: classify`"
                .to_owned(),
        ));
    }
    let positions = model.text.max_positions;
    if tokens == 0 || tokens > positions {
        return Err(TrainError::Config(format!(
            "tokens: {tokens}, expected 1 to {positions}, the model's positions\nhint: leave `tokens` out"
        )));
    }
    if let Some(folder) = weights.folder() {
        notes.push(processor.describe());
        if let Some(labels) = labels {
            match folder.read_head()? {
                Some(head) if head.num_labels == labels => {}
                Some(head) => notes.push(format!(
                    "Label head: RANDOM (the folder's head has {} classes, {labels} were asked for)",
                    head.num_labels
                )),
                None => notes.push("Label head: RANDOM (the folder has none)".to_owned()),
            }
        }
    }
    Ok(ClipTask {
        num_tokens: tokens,
        contrastive_weight: config.losses.contrastive,
        label_weight: config.losses.label,
        label_smoothing: config.losses.label_smoothing,
        sorted_ids: site.wants_sorted_ids(),
        weights: Arc::new(weights),
        ..ClipTask::new(model, labels)
    })
}

/// Reads the data, opens the model, and opens or trains the tokenizer.
pub fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    let target = label_target(&config.data)?;
    let data = site.listed(|| samples::read(&config.data, Captions::Required, config.seed))?;
    let mut opened = open_model(&config.model, starting_folder(config))?;
    let mut notes = data.notes.clone();
    let room = room_to_open(site, resolve_budget(config.memory, site)?);
    let text = text_encoder(config, &mut opened, &data, room, &mut notes)?;
    let positions = opened.config.text.max_positions;
    let tokens_of = |samples: &Samples| TokenTable::new(&text, samples.captions(), positions);
    let train_tokens = tokens_of(&data.train)?;
    let validation_tokens = data.validation.as_ref().map(tokens_of).transpose()?;
    let tables = [Some(&train_tokens), validation_tokens.as_ref()];
    let longest = tables.iter().flatten().map(|tokens| tokens.longest());
    let tokens = match config.tokens {
        Some(tokens) => tokens,
        None => bucket(longest.max().unwrap_or(1), positions),
    };
    notes.push(format!(
        "Tokens per caption: {tokens} of the model's {positions}"
    ));
    let labels = num_labels(config, &data.labels, data.label_column.is_some())?;
    if labels.is_none() {
        notes.extend(warnings_without_labels(config, &LABEL_LOSSES));
    }
    let mut setup_notes = Vec::new();
    let processor = opened.processor.clone();
    let mut task = task(config, site, opened, labels, tokens, &mut setup_notes)?;
    if let (Some(folder), Some(_)) = (task.weights.folder(), labels) {
        let names = LabelNames::read(folder.path())?.map(|names| names.labels);
        let same_number = names
            .as_ref()
            .is_some_and(|names| names.len() == data.labels.len());
        task.keep_head = names.as_ref() == Some(&data.labels);
        if same_number && !task.keep_head {
            notes.push("Label head: RANDOM (the folder's head is for other labels)".to_owned());
        }
    }
    if let (Some(labels), ClassWeights::Balanced) = (labels, &config.losses.class_weights) {
        task.class_weights = balanced_class_weights(data.train.labels(), labels);
    }
    let train = Arc::new(data.train);
    let validation = data.validation.map(Arc::new);
    let parts = [
        Some((&train, &train_tokens)),
        validation.as_ref().zip(validation_tokens.as_ref()),
    ];
    notes.extend(note_on_long_captions(&text, parts, positions)?);
    task.data = Some(Arc::new(ClipData {
        train: Arc::clone(&train),
        train_tokens,
        validation_tokens,
        labels: data.labels,
        target,
        caption_template: data.caption_template,
        text,
        processor: processor.text().to_string(),
    }));
    let num_samples = Some(train.len());
    let task = Arc::new(task);
    Ok(Prepared {
        setup: Setup::new(config, site, task, processor, num_samples, setup_notes)?,
        train,
        validation,
        csv: data.csv,
        bad_rows: data.bad_rows,
        notes,
    })
}

/// Name of the label head's target; an error if the config has another kind of target, or several.
fn label_target(data: &DataConfig) -> Result<String, TrainError> {
    let mut label = None;
    for (name, target) in data.targets() {
        if !matches!(target, TargetConfig::Class(_)) {
            return Err(TrainError::Config(format!(
                "data.targets.{name}: expected a column with one label per picture, the label head of `task: clip`; \
                 found {}\n\
                 hint: `task: classify` trains several labels and numbers; `data: {{label: COLUMN}}` names the label of clip",
                target.describe()
            )));
        }
        if let Some(first) = label.replace(name) {
            return Err(TrainError::Config(format!(
                "data.targets: expected one label, which the label head of `task: clip` learns; found {first} and {name}\n\
                 hint: `task: classify` trains several; `data: {{label: {first}}}` keeps one"
            )));
        }
    }
    Ok(label.unwrap_or(LABEL).to_owned())
}

/// Number of labels: the data's, if it has labels; a different `labels:` is an error.
fn num_labels(
    config: &RunConfig,
    names: &[String],
    labelled: bool,
) -> Result<Option<usize>, TrainError> {
    match (config.labels, labelled) {
        (Some(asked), true) if asked != names.len() => Err(TrainError::Config(format!(
            "labels: {asked}, expected {}: the data has that many\nhint: leave `labels` out",
            names.len()
        ))),
        (Some(asked), false) => Err(TrainError::Config(format!(
            "labels: {asked}, found no column of labels\nhint: `data: {{label: COLUMN}}` says where labels are"
        ))),
        (_, true) => Ok(Some(names.len())),
        (None, false) => Ok(None),
    }
}

/// Opens the tokenizer of the config or of the model's folder, or trains one on the captions.
fn text_encoder(
    config: &RunConfig,
    opened: &mut OpenedModel<ClipConfig>,
    data: &DataSet,
    room: u64,
    notes: &mut Vec<String>,
) -> Result<TextEncoder, TrainError> {
    let text = &mut opened.config.text;
    let (vocabulary, positions) = (text.vocab_size, text.max_positions);
    let folder = opened.weights.folder().map(ModelFolder::path);
    let in_folder = folder.map(|folder| folder.join("tokenizer.json"));
    let encoder = match (&config.data.tokenizer, in_folder) {
        (TokenizerChoice::File(path), _) => TextEncoder::open(path, vocabulary, positions, room)?,
        (TokenizerChoice::Auto, Some(path)) if path.is_file() => {
            TextEncoder::open(&path, vocabulary, positions, room)?
        }
        (TokenizerChoice::Auto, Some(path)) => {
            return Err(TrainError::Config(format!(
                "{}: expected the tokenizer that the weights were trained with, found nothing\n\
                 hint: `data: {{tokenizer: FILE}}` names one; `tokenizer: train` makes a new one, and the text tower \
                 has to learn its tokens from the beginning",
                path.display()
            )));
        }
        (TokenizerChoice::Train, _) | (TokenizerChoice::Auto, None) => {
            let captions = data.train.captions();
            let encoder =
                TextEncoder::train(captions.iter().map(String::as_str), vocabulary, positions)?;
            notes.push(format!(
                "Tokenizer: trained on {} captions, {} tokens",
                captions.len(),
                encoder.vocab_size()
            ));
            encoder
        }
    };
    let end = encoder.eos_id();
    match &opened.weights {
        // Random weights may pool at this tokenizer's end token.
        Weights::Random { .. } => text.pooling = TextPooling::FirstEos(end),
        Weights::Folder(folder) => {
            let pooled = match text.pooling {
                TextPooling::FirstEos(id) => id,
                TextPooling::HighestId => vocabulary as i64 - 1,
            };
            if pooled != end {
                return Err(TrainError::Config(format!(
                    "{}: captions end with token {end}, expected {pooled}, where the model reads them\n\
                     hint: use the tokenizer.json that belongs to the model",
                    folder.path().display()
                )));
            }
        }
    }
    Ok(encoder)
}

/// Log line about captions that are cut to the model's positions.
fn note_on_long_captions(
    text: &TextEncoder,
    parts: [Option<(&Arc<Samples>, &TokenTable)>; 2],
    positions: usize,
) -> Result<Option<String>, TrainError> {
    let mut cut = 0;
    for (samples, tokens) in parts.into_iter().flatten() {
        for (index, caption) in samples.captions().iter().enumerate() {
            // Only captions that fill all positions may have been cut.
            let full = tokens.caption(index).len() == positions;
            cut += usize::from(full && text.num_tokens(caption)? > positions);
        }
    }
    Ok((cut > 0).then(|| {
        format!("Captions longer than the model's {positions} tokens: {cut}, cut at the end")
    }))
}

#[cfg(test)]
mod tests {
    use holdall_models::clip::NORMALIZATION;
    use holdall_models::config::Normalization;

    use super::*;

    /// The normalisation is written down twice, for pictures and for graphs; a difference of one bit would change every loss.
    #[test]
    fn the_image_processor_of_a_preset_has_the_bits_of_clip() {
        let opened = open_model("small", None).unwrap();
        let Normalization { mean, std } = NORMALIZATION;
        assert_eq!(
            opened.processor.mean.map(f32::to_bits),
            mean.map(f32::to_bits)
        );
        assert_eq!(
            opened.processor.std.map(f32::to_bits),
            std.map(f32::to_bits)
        );
        assert_eq!(opened.processor.digest_text(), None);
    }
}
