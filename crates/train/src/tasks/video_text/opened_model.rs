//! The model of a run, before memory is planned: the one that `model:` names, with the changes of `video_text:`.
//!
//! ```text
//! a preset                    its sizes, random weights
//! a CLIP folder or preset     its towers over frames; pooling and decoder are new
//! a video-text folder         as it was saved; tensors of another size are new, and the log says so
//! text_model: a BERT          replaces the text tower
//! ```

use std::path::Path;

use holdall_data::decode::ImageProcessor;
use holdall_data::loader::ClipFraming;
use holdall_files::counted;
use holdall_models::ModelError;
use holdall_models::clip::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache;
use holdall_models::init::Start;
use holdall_models::model_config::ModelConfig;
use holdall_models::video_text::config::{
    DecoderConfig, Pooling, TemporalInput, TextTower, VideoTextConfig,
};
use holdall_models::video_text::weights::{Origin, WeightSources};

use super::super::classify;
use super::super::opened_model::{no_such_model, normalization_of, open_folder};
use super::VideoTextTask;
use crate::config::{DecoderChoice, DecoderSection, PoolingName, RunConfig, VideoTextSection};
use crate::engine::task::FillWeights;
use crate::error::TrainError;
use crate::planning::setup::describe_random;
use crate::tasks::{starting_folder, weights_folder};

/// Default layers of a temporal transformer, as in CLIP4Clip.
const USUAL_TEMPORAL_LAYERS: usize = 4;
/// Default queries of attention pooling.
const USUAL_QUERIES: usize = 64;

/// Sources of the initial weights; without a folder, they are random.
#[derive(Default)]
pub(super) struct StartingPoint {
    /// A checked model folder.
    pub model: Option<ModelFolder>,
    /// A checked BERT folder for the text tower.
    pub text_model: Option<ModelFolder>,
    /// Without a folder: the preset that the sizes are from.
    preset: Option<String>,
    /// Log lines about the source of each part.
    summary: Vec<String>,
    /// Whether the folder's heads are for other targets.
    pub new_heads: bool,
}

impl StartingPoint {
    /// Log lines about the weights.
    pub fn describe(&self) -> String {
        if self.are_random() {
            describe_random(self.preset.as_deref())
        } else {
            self.summary.join("\n")
        }
    }

    /// Whether all weights are random.
    pub fn are_random(&self) -> bool {
        self.model.is_none() && self.text_model.is_none()
    }

    /// The source of every tensor of a model.
    fn sources<'a>(
        &'a self,
        model: &'a VideoTextConfig,
        seed: u64,
    ) -> Result<WeightSources<'a>, ModelError> {
        WeightSources::new(model, self.model.as_ref(), self.text_model.as_ref(), seed)
    }

    /// Folder of the text tower's tokenizer.
    pub fn tokenizer_folder(&self) -> Option<&Path> {
        let folder = self.text_model.as_ref().or(self.model.as_ref());
        folder.map(ModelFolder::path)
    }
}

/// A model from folders or a preset.
pub(super) struct OpenedVideoText {
    /// Sizes, and the mean and deviation that normalise frames. The token ids of a new decoder are set later, from its tokenizer.
    pub model: VideoTextConfig,
    pub weights: StartingPoint,
    pub processor: ImageProcessor,
    /// Whether the decoder, if any, is not the one of a saved folder.
    pub has_new_decoder: bool,
}

impl OpenedVideoText {
    /// Warns that the config's sizes discard trained layers, and about the random layers in their place.
    pub fn warning_of_lost_layers(&self, section: &VideoTextSection) -> Option<String> {
        let folder = self.weights.model.as_ref()?;
        let ModelConfig::VideoText(saved) = folder.config() else {
            return None;
        };
        let set: Vec<&str> = [
            ("pooling", section.pooling.is_some()),
            ("temporal_layers", section.temporal_layers.is_some()),
            ("queries", section.queries.is_some()),
            ("decoder", section.decoder != DecoderChoice::default()),
        ]
        .into_iter()
        .filter_map(|(key, is_set)| is_set.then_some(key))
        .collect();
        let (before, now) = (saved.tensors(), self.model.tensors());
        let lost = before.iter().filter(|tensor| !now.contains(tensor)).count();
        let new = now.iter().filter(|tensor| !before.contains(tensor)).count();
        if set.is_empty() || lost + new == 0 {
            return None;
        }
        let keys = set.join(", ");
        Some(format!(
            "warning: video_text.{keys}: {} of {} left behind, {} random\n\
             hint: leave {keys} out to keep the model as it was trained",
            counted(lost, "trained tensor"),
            folder.path().display(),
            counted(new, "new tensor")
        ))
    }

    /// Updates the summary of weight sources after a change of sizes.
    pub fn summarize(&mut self) -> Result<(), TrainError> {
        self.weights.summary = self.weights.sources(&self.model, 0)?.summary();
        Ok(())
    }
}

/// Opens the model of the config.
pub(super) fn open_model(config: &RunConfig) -> Result<OpenedVideoText, TrainError> {
    let name = config.model.as_str();
    let folder = starting_folder(config)
        .map(|path| open_folder(&path))
        .transpose()?;
    let mut model = match &folder {
        Some(folder) => model_of_folder(config, folder.config())?,
        None => model_of_preset(config)?,
    };
    let saved = folder
        .as_ref()
        .filter(|folder| matches!(folder.config(), ModelConfig::VideoText(_)));
    let text_model = open_text_model(&config.video_text)?;
    if let (Some(saved), Some(text_model)) = (saved, &text_model) {
        return Err(TrainError::Config(format!(
            "video_text.text_model: {}, expected nothing beside {}: its trained text tower would be replaced\n\
             hint: leave `text_model` out; `model: CLIP` begins with a new text tower",
            text_model.path().display(),
            saved.path().display()
        )));
    }
    if let Some(ModelConfig::Bert(bert)) = text_model.as_ref().map(ModelFolder::config) {
        model.text = TextTower::Bert(bert.clone());
    }
    set_frames(&mut model, config, saved)?;
    set_pooling(&mut model, &config.video_text);
    let had_decoder = model.decoder.clone();
    set_decoder(&mut model, &config.video_text.decoder);
    let has_new_decoder = saved.is_none() || had_decoder != model.decoder;
    let size = model.vision.image_size as u32;
    let processor = match &folder {
        Some(folder) => ImageProcessor::read(folder.path(), size)?,
        None => ImageProcessor::clip(size),
    };
    model.vision.normalization = normalization_of(&processor);
    model
        .validate(Path::new("video_text"))
        .map_err(TrainError::from)?;
    let mut opened = OpenedVideoText {
        weights: StartingPoint {
            model: folder,
            text_model,
            preset: Some(name.to_owned()),
            summary: Vec::new(),
            new_heads: true,
        },
        model,
        processor,
        has_new_decoder,
    };
    opened.summarize()?;
    Ok(opened)
}

/// A CLIP over the frames that the config asks for.
fn model_of_clip(config: &RunConfig, clip: &ClipConfig) -> VideoTextConfig {
    let frames = config.data.frames.map(|frames| frames as usize);
    VideoTextConfig::of_clip(clip, frames.unwrap_or(ClipFraming::DEFAULT_FRAMES))
}

fn model_of_folder(config: &RunConfig, found: &ModelConfig) -> Result<VideoTextConfig, TrainError> {
    let name = config.model.as_str();
    let hint = match found {
        ModelConfig::VideoText(model) => return Ok(model.clone()),
        ModelConfig::Clip(clip) => return Ok(model_of_clip(config, clip)),
        ModelConfig::Bert(_) => format!(
            "a BERT reads text, not pictures: beside a CLIP it is the text tower, --set video_text.text_model={name}"
        ),
        _ => format!(
            "a CLIP folder, a folder that `holdall train --task video-text` wrote, or a preset: {}",
            VideoTextConfig::PRESETS.join(", ")
        ),
    };
    Err(TrainError::Config(format!(
        "model `{name}`: expected a CLIP or a video-text model, found {}\nhint: {hint}",
        found.describe()
    )))
}

fn model_of_preset(config: &RunConfig) -> Result<VideoTextConfig, TrainError> {
    let name = config.model.as_str();
    let of_clip = || Some(model_of_clip(config, &ClipConfig::preset(name)?));
    VideoTextConfig::preset(name)
        .or_else(of_clip)
        .ok_or_else(|| {
            let own = VideoTextConfig::PRESETS.join(", ");
            let of_clip = ClipConfig::PRESETS.join(", ");
            no_such_model(name, &format!("{own}, and those of CLIP: {of_clip}"))
        })
}

fn open_text_model(section: &VideoTextSection) -> Result<Option<ModelFolder>, TrainError> {
    let Some(name) = &section.text_model else {
        return Ok(None);
    };
    let Some(path) = weights_folder(name) else {
        return Err(TrainError::Config(format!(
            "video_text.text_model: `{name}`, expected a folder of a BERT, or a name in the local Hugging Face cache; found none\n\
             hint: {}",
            hub_cache::command_for(name).map_or_else(
                || {
                    "holdall model get google-bert/bert-base-uncased downloads a BERT of that name, owner and all; leave `text_model` \
                     out for the text tower of `model:`"
                        .to_owned()
                },
                |command| format!("{command} downloads it"),
            )
        )));
    };
    let folder = open_folder(&path)?;
    match folder.config() {
        ModelConfig::Bert(_) => Ok(Some(folder)),
        other => Err(TrainError::Config(format!(
            "video_text.text_model: {}, expected a BERT, found {}\nhint: CLIP's text tower comes with `model:`",
            path.display(),
            other.describe()
        ))),
    }
}

/// Sets frames and videos per sample from the config; an error if the model has learnt positions of frames.
fn set_frames(
    model: &mut VideoTextConfig,
    config: &RunConfig,
    saved: Option<&ModelFolder>,
) -> Result<(), TrainError> {
    let frames = config.data.frames.map(|frames| frames as usize);
    let videos = config.data.num_videos.map(|videos| videos as usize);
    let asked = (
        frames.unwrap_or(model.num_frames),
        videos.unwrap_or(model.num_videos),
    );
    let known = (model.num_frames, model.num_videos);
    let has_places =
        model.pooling != Pooling::Mean || model.num_videos > 1 || model.frame_positions;
    if let (true, true, Some(folder)) = (asked != known, has_places, saved) {
        return Err(TrainError::Config(format!(
            "data.frames: {} of {} videos, expected {} of {}, as {} was trained: it has learnt places of frames\n\
             hint: leave `frames` and `num_videos` out",
            asked.0,
            asked.1,
            known.0,
            known.1,
            folder.path().display()
        )));
    }
    (model.num_frames, model.num_videos) = asked;
    Ok(())
}

fn set_pooling(model: &mut VideoTextConfig, section: &VideoTextSection) {
    let layers = section.temporal_layers;
    let heads = |width: usize| match width / 64 {
        0 => 2,
        heads => heads,
    };
    match (section.pooling, model.pooling) {
        (None, Pooling::Temporal { place, .. }) if layers.is_some() => {
            let layers = layers.unwrap_or(USUAL_TEMPORAL_LAYERS);
            model.pooling = model.temporal(layers, place);
        }
        (None, _) => {}
        (Some(PoolingName::Mean), _) => model.pooling = Pooling::Mean,
        (Some(PoolingName::Temporal), before) => {
            let (place, usual) = match before {
                Pooling::Temporal { place, layers, .. } => (place, layers),
                _ => (TemporalInput::Projected, USUAL_TEMPORAL_LAYERS),
            };
            model.pooling = model.temporal(layers.unwrap_or(usual), place);
        }
        (Some(PoolingName::Attention), before) => {
            let usual = match before {
                Pooling::Attention { queries, .. } => queries,
                _ => USUAL_QUERIES,
            };
            model.pooling = Pooling::Attention {
                queries: section.queries.unwrap_or(usual),
                heads: heads(model.vision.hidden_size),
            };
        }
    }
}

/// Sets the decoder from the config. A new decoder has the text tower's vocabulary and ids until a tokenizer sets its own.
fn set_decoder(model: &mut VideoTextConfig, choice: &DecoderChoice) {
    let DecoderChoice::Sizes(section) = choice else {
        model.decoder = None;
        return;
    };
    let (vocabulary, positions) = (model.text_vocab_size(), model.max_text_tokens());
    let last = vocabulary as i64 - 1;
    let usual = || DecoderConfig::new(vocabulary, positions, [last - 1, last, last]);
    // A new decoder gets positions of frames.
    model.frame_positions |= model.decoder.is_none();
    let decoder = model.decoder.take().unwrap_or_else(usual);
    let DecoderSection {
        layers,
        width,
        heads,
        inner,
        tied,
        tokens,
    } = *section;
    model.decoder = Some(DecoderConfig {
        layers: layers.unwrap_or(decoder.layers),
        width: width.unwrap_or(decoder.width),
        heads: heads.unwrap_or(decoder.heads),
        inner: inner.unwrap_or(decoder.inner),
        tied: tied.unwrap_or(decoder.tied),
        max_positions: tokens.unwrap_or(decoder.max_positions),
        ..decoder
    });
}

/// Parameters without pretrained weights: the heads, and tensors that neither folder has. If the whole model is random, the heads
/// only.
pub(super) fn new_parameters(task: &VideoTextTask) -> Vec<String> {
    let mut new = classify::CLASSIFIER.map(str::to_owned).to_vec();
    if task.weights.are_random() {
        return new;
    }
    let Ok(sources) = task.weights.sources(&task.model, 0) else {
        return new;
    };
    let names = task.model.tensors().into_iter().map(|(name, _)| name);
    new.extend(names.filter(|name| sources.origin(name) == Origin::Drawn));
    new
}

/// The function that fills weights: from their sources, or drawn.
pub(super) fn weights(task: &VideoTextTask, seed: u64) -> Result<FillWeights<'_>, TrainError> {
    let start = &task.weights;
    let sources = start.sources(&task.model, seed)?;
    let head = match &start.model {
        Some(folder) if !start.new_heads && !task.heads.is_empty() => folder.read_head()?,
        _ => None,
    };
    // As for CLIP: on random towers, the rows of a new head are as long as the contrastive loss's factor of features, so that the
    // label loss has a noticeable gradient.
    let gain = if start.are_random() {
        task.model.logit_scale_init.exp()
    } else {
        1.0
    };
    let new_head = Start::Normal(gain * (task.model.projection_dim as f64).powf(-0.5));
    let [weight_name, bias_name] = classify::CLASSIFIER;
    Ok(Box::new(move |name, values| {
        match &head {
            Some(head) if name == weight_name => values.copy_from_slice(&head.weight),
            Some(head) if name == bias_name => values.copy_from_slice(&head.bias),
            None if name == weight_name => new_head.fill(seed, name, values),
            None if name == bias_name => values.fill(0.0),
            _ => return Ok(sources.fill(name, values)?),
        }
        // A saved head outputs numbers in the unit of the data.
        if head.is_some() {
            classify::standardize(&task.heads, name, values);
        }
        Ok(())
    }))
}
