//! Opens a video-text run: clips, tokens and model, before memory is planned.

use std::path::Path;
use std::sync::Arc;

use holdall_data::config::{LABEL, ShortClips};
use holdall_data::loader::{ClipFraming, RowFormat};
use holdall_data::samples::{self, Captions, DataSet, Samples, Target, TargetKind};
use holdall_data::text::TextEncoder;
use holdall_models::video_text::config::{Pooling, TextTower, VideoTextConfig};

use super::super::classify::{self, Head};
use super::frame_cache::FrameCache;
use super::opened_model::{OpenedVideoText, open_model};
use super::{ClipInput, LossSettings, TokenizedTexts, VideoTextData, VideoTextTask, tokenizers};
use crate::config::{FrameCacheChoice, RunConfig, SameText};
use crate::engine::similarity::unique_texts;
use crate::error::TrainError;
use crate::planning::prepare::Prepared;
use crate::planning::setup::{Setup, resolve_budget, room_to_open};
use crate::planning::site::Site;
use crate::tasks::{LABEL_LOSSES, warnings_without_labels};

/// Default weight of the caption loss.
const USUAL_CAPTION_WEIGHT: f64 = 0.5;

/// Names of losses and metrics, which heads may not have.
const RESERVED_NAMES: [&str; 12] = [
    "contrastive",
    "caption",
    "clips",
    "texts",
    "video_to_text",
    "text_to_video",
    "chance_r1",
    "caption_loss",
    "caption_loss_chance",
    "perplexity",
    "caption_tokens",
    "written",
];

/// Opens the model without data, with `labels` and `tokens` from the config.
pub fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    let opened = open_model(config)?;
    let target = config.labels.map(|labels| Target {
        name: "label".to_owned(),
        kind: TargetKind::Class {
            names: (0..labels).map(|label| format!("label {label}")).collect(),
        },
    });
    let mut heads: Vec<Head> = target.iter().map(Head::new).collect();
    weigh_label(config, &mut heads);
    let tokens = config.tokens.unwrap_or(opened.model.max_text_tokens());
    let mut notes = warnings_without_data(config);
    let processor = opened.processor.clone();
    let task = task(config, site, opened, heads, tokens, &mut notes)?;
    Setup::new(config, site, Arc::new(task), processor, None, notes)
}

/// Settings of the model that only data make a difference to.
fn warnings_without_data(config: &RunConfig) -> Vec<String> {
    let section = &config.video_text;
    let keys = [
        ("tokenizer", section.tokenizer.is_some()),
        ("cache", section.cache != FrameCacheChoice::None),
    ];
    let set = keys.iter().filter(|(_, is_set)| *is_set);
    set.map(|(key, _)| format!("warning: video_text.{key}: no effect without data"))
        .collect()
}

/// Weighs a head called `label` by `losses.label`, as in CLIP; other heads by `losses.targets`.
fn weigh_label(config: &RunConfig, heads: &mut [Head]) {
    for head in heads.iter_mut().filter(|head| head.name == "label") {
        if !config.losses.targets.contains_key("label") {
            head.weight = config.losses.label;
        }
    }
}

fn task(
    config: &RunConfig,
    site: Site<'_>,
    opened: OpenedVideoText,
    heads: Vec<Head>,
    tokens: usize,
    notes: &mut Vec<String>,
) -> Result<VideoTextTask, TrainError> {
    let OpenedVideoText {
        model,
        weights,
        processor,
        ..
    } = opened;
    if config.data.mixing.is_on() || config.train.stochastic_depth > 0.0 {
        return Err(TrainError::Config(
            "task video-text: expected neither `data.mixing` nor `train.stochastic_depth`: a text belongs to one clip, and towers \
             are trained whole\nhint: leave them out"
                .to_owned(),
        ));
    }
    let positions = model.max_text_tokens();
    if tokens == 0 || tokens > positions {
        return Err(TrainError::Config(format!(
            "tokens: {tokens}, expected 1 to {positions}, the text tower's positions\nhint: leave `tokens` out"
        )));
    }
    if !weights.are_random() {
        notes.push(processor.describe());
    }
    let dropout = dropout(config, &model.text, notes)?;
    let task = VideoTextTask::new(model, heads);
    Ok(VideoTextTask {
        num_text_tokens: tokens,
        masks_frames: config.data.short_clips == ShortClips::Mask,
        loss: LossSettings {
            contrastive_weight: config.losses.contrastive,
            caption_weight: config.losses.caption.unwrap_or(USUAL_CAPTION_WEIGHT),
            caption_smoothing: config.losses.caption_smoothing,
            same_text: config.video_text.same_text,
            ..task.loss
        },
        sorted_ids: site.wants_sorted_ids(),
        dropout,
        seed: config.seed,
        generation: config.generation.clone(),
        evaluation: config.evaluation.clone(),
        weights: Arc::new(weights),
        ..task
    })
}

/// Dropout of the text tower: the config's, or the BERT folder's.
fn dropout(
    config: &RunConfig,
    text: &TextTower,
    notes: &mut Vec<String>,
) -> Result<f64, TrainError> {
    let asked = config.train.dropout;
    match text {
        TextTower::Clip(_) if asked > 0.0 => Err(TrainError::Config(
            "train.dropout: expected none beside CLIP's text tower, which is trained without\n\
             hint: leave it out; a BERT (`video_text: {text_model: FOLDER}`) has what its folder asks for"
                .to_owned(),
        )),
        TextTower::Clip(_) => Ok(0.0),
        TextTower::Bert(bert) => {
            let dropout = if asked > 0.0 { asked } else { bert.hidden_dropout };
            if dropout > 0.0 || bert.attention_dropout > 0.0 {
                notes.push(format!(
                    "Dropout of the text tower: {dropout}, of its attention {}",
                    bert.attention_dropout
                ));
            }
            Ok(dropout)
        }
    }
}

/// Reads the data, opens the model, and opens or trains the tokenizers.
pub fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    let data =
        site.listed(|| samples::read_clips(&config.data, Captions::Required, config.seed))?;
    let mut notes = data.notes.clone();
    let heads = heads(config, &data)?;
    notes.extend(heads.iter().map(classify::describe_head));
    if heads.is_empty() {
        notes.extend(warnings_without_labels(config, &LABEL_LOSSES));
    } else if heads.iter().all(|head| head.name != LABEL) {
        notes.extend(warnings_without_labels(config, &LABEL_LOSSES[..1]));
    }
    let mut opened = open_model(config)?;
    opened.weights.new_heads = !has_heads_for(&opened, &data.targets, &mut notes)?;
    let room = room_to_open(site, resolve_budget(config.memory, site)?);
    let texts = data.train.captions();
    let text = tokenizers::text_encoder(config, &mut opened, texts, room, &mut notes)?;
    let own_caption_text = tokenizers::caption_encoder(config, &mut opened, &text, room)?;
    opened.model.validate(Path::new("video_text"))?;
    opened.summarize()?;
    notes.extend(warning_of_layers(config, &opened.model));
    notes.extend(opened.warning_of_lost_layers(&config.video_text));

    let caption_text = own_caption_text.as_ref().unwrap_or(&text);
    let tokenized = tokenize(
        config,
        &opened.model,
        &data,
        [&text, caption_text],
        &mut notes,
    )?;
    notes.extend(note_on_equal_texts(config, &data.train));

    let mut setup_notes = Vec::new();
    let processor = opened.processor.clone();
    let framing = ClipFraming::new(&config.data, processor.framing, opened.model.num_frames);
    let tokens = tokenized.num_text_tokens;
    let mut task = task(config, site, opened, heads, tokens, &mut setup_notes)?;
    task.num_caption_tokens = tokenized.num_caption_tokens;
    tokenizers::weigh_tokens(&mut task, config, caption_text, &mut notes)?;
    let train = Arc::new(data.train);
    let validation = data.validation.map(Arc::new);
    task.data = Some(Arc::new(VideoTextData {
        train: Arc::clone(&train),
        train_texts: tokenized.train,
        validation_texts: tokenized.validation,
        text,
        own_caption_text,
        caption_template: data.caption_template,
        processor: processor.text().to_string(),
    }));
    let num_samples = Some(train.len());
    let planned_task = Arc::new(task.clone());
    let mut setup = Setup::new(
        config,
        site,
        planned_task,
        processor,
        num_samples,
        setup_notes,
    )?;
    let lists = (&train, validation.as_ref());
    match FrameCache::new(config, &setup, &task, &framing, lists, &data.csv)? {
        None => setup.rows = RowFormat::from(framing),
        Some(cache) => {
            // The step's graph starts after the vision tower.
            task.clip_input = ClipInput::FrameTokens(setup.step.arithmetic.compute());
            notes.push(format!(
                "{}; the vision tower runs once for each clip, before the first step, and not in training",
                cache.forecast(&task)
            ));
            setup.rows = cache.not_opened();
            task.frame_cache = Some(Arc::new(cache));
            setup.step.task = Arc::new(task);
        }
    }
    Ok(Prepared {
        setup,
        train,
        validation,
        csv: data.csv,
        bad_rows: data.bad_rows,
        notes,
    })
}

/// Texts and captions of both sides as token ids, and the lengths that the run is planned for.
struct TokenizedSides {
    train: TokenizedTexts,
    validation: Option<TokenizedTexts>,
    num_text_tokens: usize,
    /// 0 without a decoder.
    num_caption_tokens: usize,
}

fn tokenize(
    config: &RunConfig,
    model: &VideoTextConfig,
    data: &DataSet,
    [text, caption_text]: [&TextEncoder; 2],
    notes: &mut Vec<String>,
) -> Result<TokenizedSides, TrainError> {
    let most_tokens = config.tokens.unwrap_or(model.max_text_tokens());
    let decoder = model.decoder.as_ref();
    let decoder = decoder.map(|decoder| (caption_text, decoder.max_positions));
    let sides = [Some(&data.train), data.validation.as_ref()];
    let texts: Vec<&[String]> = sides.into_iter().flatten().map(Samples::captions).collect();
    let tables: Result<Vec<TokenizedTexts>, TrainError> = texts
        .iter()
        .map(|texts| TokenizedTexts::new(texts, text, most_tokens, decoder))
        .collect();
    let mut tables = tables?;
    notes.extend(tokenizers::note_on_long_texts(
        &texts,
        &tables.iter().collect::<Vec<_>>(),
        (text, most_tokens),
        decoder,
    )?);
    let longest = tables.iter().map(|one| one.texts.longest()).max();
    let longest_caption = tables.iter().filter_map(|one| one.captions.as_ref());
    let longest_caption = longest_caption.map(|table| table.longest() - 1).max();
    let tokens = config.tokens.or(longest).unwrap_or(most_tokens);
    notes.push(note_on_lengths(tokens, longest_caption, model));
    let validation = data.validation.as_ref().and_then(|_| tables.pop());
    Ok(TokenizedSides {
        train: tables.remove(0),
        validation,
        num_text_tokens: tokens,
        num_caption_tokens: longest_caption.unwrap_or(0),
    })
}

/// A head for each target of the data.
fn heads(config: &RunConfig, data: &DataSet) -> Result<Vec<Head>, TrainError> {
    let mut targets = data.targets.iter();
    if let Some(Target { name, .. }) =
        targets.find(|target| RESERVED_NAMES.contains(&target.name.as_str()))
    {
        return Err(TrainError::Config(format!(
            "data.targets: `{name}`, expected another name: a loss or a figure of the task has this one\n\
             hint: a target need not be called as its column: `targets: {{the_{name}: {name}}}`"
        )));
    }
    let mut heads = classify::heads_of(config, &data.targets, &data.train)?;
    weigh_label(config, &mut heads);
    if let (Some(asked), []) = (config.labels, heads.as_slice()) {
        return Err(TrainError::Config(format!(
            "labels: {asked}, found no column of labels\nhint: `data: {{label: COLUMN}}` says where labels are"
        )));
    }
    if let (Some(asked), [head]) = (config.labels, heads.as_slice())
        && asked != head.num_outputs()
    {
        return Err(TrainError::Config(format!(
            "labels: {asked}, expected {}: the data has that many\nhint: leave `labels` out",
            head.num_outputs()
        )));
    }
    Ok(heads)
}

/// Whether the folder's heads are for these targets.
fn has_heads_for(
    opened: &OpenedVideoText,
    targets: &[Target],
    notes: &mut Vec<String>,
) -> Result<bool, TrainError> {
    let Some(folder) = &opened.weights.model else {
        return Ok(false);
    };
    let Some(saved) = classify::saved_targets(folder.path())? else {
        return Ok(false);
    };
    let is_same = |(saved, target): (&Target, &Target)| {
        let kinds = [&saved.kind, &target.kind].map(std::mem::discriminant);
        saved.name == target.name
            && kinds[0] == kinds[1]
            && saved.kind.names() == target.kind.names()
    };
    let same = saved.len() == targets.len() && saved.iter().zip(targets).all(is_same);
    if !same && !targets.is_empty() {
        notes.push("Heads: RANDOM (the folder's heads are for other targets)".to_owned());
    }
    Ok(same)
}

/// Warns about `temporal_layers` for a model without a temporal transformer.
fn warning_of_layers(config: &RunConfig, model: &VideoTextConfig) -> Option<String> {
    let layers = config.video_text.temporal_layers?;
    let has_layers = matches!(model.pooling, Pooling::Temporal { .. });
    // A pooling in the config is checked with the config.
    (!has_layers && config.video_text.pooling.is_none()).then(|| {
        format!(
            "warning: video_text.temporal_layers: {layers} has no effect, the model's pooling has no such layers\n\
             hint: `video_text: {{pooling: temporal, temporal_layers: {layers}}}`"
        )
    })
}

fn note_on_lengths(tokens: usize, captions: Option<usize>, model: &VideoTextConfig) -> String {
    let positions = model.max_text_tokens();
    let texts = format!("Tokens per text: {tokens} of the model's {positions}");
    match (captions, &model.decoder) {
        (Some(captions), Some(decoder)) => format!(
            "{texts}; per caption: {captions} of the decoder's {}",
            decoder.max_positions
        ),
        _ => texts,
    }
}

/// Log line about the number of distinct texts, and the role of equal ones.
fn note_on_equal_texts(config: &RunConfig, train: &Samples) -> Option<String> {
    let (texts, clips) = (train.captions().len(), train.len());
    (texts < clips).then(|| {
        let meaning = match config.video_text.same_text {
            SameText::Negative => {
                "equal ones are negatives of each other (`video_text: {same_text: positive}` makes them positives)"
            }
            SameText::Positive => "equal ones are positives of each other",
        };
        format!("{}; {meaning}", unique_texts(texts, clips))
    })
}
