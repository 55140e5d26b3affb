//! Video-text: a contrastive loss over clips and texts, and a decoder that writes captions; one encoder pass feeds both.
//!
//! ```text
//! contrastive   coupled through features: all clips of the effective batch are negatives of each other
//! caption       separable: the sum over tokens, divided by the tokens of the effective batch; padding is no target
//! heads         separable: labels and numbers on the clip's normalised features, as in `classify`
//! ```
//!
//! Samples of an effective batch are sorted by the length of their texts, so that a micro-batch of short texts is padded to a
//! short length: see `batch`.

mod batch;
mod cacheable;
mod captions;
#[cfg(test)]
mod decoding_tests;
mod evaluate;
mod examples;
mod export;
mod frame_cache;
mod frame_encoder;
mod lengths;
pub(crate) mod onnx;
mod opened_model;
mod predict;
mod prepare;
mod programs;
mod random_batch;
mod saved_model;
mod scores;
mod step;
mod tokenizers;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use holdall_data::loader::{Loaded, RowFormat};
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_graph::ops::contrastive::CONTRASTIVE_TILE;
use holdall_graph::ops::vocabulary_loss::vocabulary_tile;
use holdall_graph::{DType, Graph, ValueId};
use holdall_models::video_text::Clips;
use holdall_models::video_text::config::{DecoderConfig, TextTower, VideoTextConfig};

pub use batch::{Texts, batch_of};
pub use predict::{ClipReader, EncodedClips};
pub use prepare::{prepare, setup};
pub use saved_model::SavedVideoText;
pub use tokens::{TokenizedTexts, VideoTextData};

use self::frame_cache::FrameCache;
use self::opened_model::StartingPoint;
use super::classify::{self, Head};
use crate::config::{EvaluationSection, GenerationSection, SameText, Subset};
use crate::engine::batch::{Batch, MicroBatch};
use crate::engine::scores::{Direction, Scores};
use crate::engine::step::Step;
use crate::engine::step_graph::StepWriter;
use crate::engine::task::{
    Chance, Evaluated, Evaluation, FillWeights, Loss, Storing, Task, Unfinished,
};
use crate::error::TrainError;

/// Loss numbers: the caption loss exists only with a decoder; heads follow.
const CONTRASTIVE: usize = 0;
const CAPTION: usize = 1;

/// Length that the texts of a micro-batch are padded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// The shortest of a few lengths that holds the longest text of the micro-batch.
    ToTheLongest,
    /// The longest text of the run.
    Full,
}

/// Form of clips in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipInput {
    /// Frames as pixels, encoded by the vision tower in every step.
    Pixels,
    /// Frame tokens from the vision tower, computed once and stored in this number format.
    FrameTokens(DType),
}

/// Contrastive loss and caption loss.
#[derive(Clone)]
pub struct LossSettings {
    pub contrastive_weight: f64,
    /// Tile size of the contrastive loss; the batch size or more computes it in one piece.
    pub contrastive_tile: usize,
    /// Role of clips with equal texts in the contrastive loss.
    pub same_text: SameText,
    pub caption_weight: f64,
    /// Label smoothing of caption tokens.
    pub caption_smoothing: f64,
    /// Weight of each vocabulary token as a target; empty if all are 1.
    pub token_weights: Vec<f32>,
    /// Rows of logits computed at a time in the caption loss.
    pub vocabulary_tile: usize,
}

/// A video-text model with its losses.
#[derive(Clone)]
pub struct VideoTextTask {
    /// Sizes of the towers, the pooling and the decoder.
    pub model: VideoTextConfig,
    /// Classification and regression heads, in the order of their outputs.
    pub heads: Vec<Head>,
    /// Tokens per text of the text tower, start and end included.
    pub num_text_tokens: usize,
    /// Input tokens per caption of the decoder: the start token and the words. 0 without a decoder.
    pub num_caption_tokens: usize,
    /// Number format of the frames in the batch.
    pub pixels: DType,
    /// Form of clips in the batch.
    pub clip_input: ClipInput,
    /// Whether clips may lack frames, which are then masked.
    pub masks_frames: bool,
    pub loss: LossSettings,
    /// Length that the texts of a micro-batch are padded to.
    pub padding: Padding,
    /// Whether the device adds gradients of equal token ids in sorted order.
    pub sorted_ids: bool,
    /// Dropout rate of the text tower.
    pub dropout: f64,
    /// Seed of dropout.
    pub seed: u64,
    /// Settings of caption generation.
    pub generation: GenerationSection,
    /// Number of captions that an evaluation generates, and the seed of their selection.
    pub evaluation: EvaluationSection,
    weights: Arc<StartingPoint>,
    /// Texts and labels of the data, if it was read.
    data: Option<Arc<VideoTextData>>,
    /// Cache of frame tokens, if enabled.
    frame_cache: Option<Arc<FrameCache>>,
}

impl VideoTextTask {
    pub const PRESETS: &[&str] = VideoTextConfig::PRESETS;

    /// A preset by its name, without heads.
    pub fn preset(name: &str) -> Option<VideoTextTask> {
        VideoTextConfig::preset(name).map(|model| VideoTextTask::new(model, Vec::new()))
    }

    /// A task with random weights; loss weights are 1 for contrastive and 0.5 for captions.
    pub fn new(model: VideoTextConfig, heads: Vec<Head>) -> VideoTextTask {
        let decoder = model.decoder.as_ref();
        VideoTextTask {
            loss: LossSettings {
                contrastive_weight: 1.0,
                contrastive_tile: CONTRASTIVE_TILE,
                same_text: SameText::Negative,
                caption_weight: 0.5,
                caption_smoothing: 0.0,
                token_weights: Vec::new(),
                vocabulary_tile: vocabulary_tile(decoder.map_or(1, |one| one.vocab_size)),
            },
            num_text_tokens: model.max_text_tokens(),
            num_caption_tokens: decoder.map_or(0, |one| one.max_positions),
            model,
            heads,
            pixels: DType::U8,
            clip_input: ClipInput::Pixels,
            masks_frames: false,
            padding: Padding::ToTheLongest,
            sorted_ids: false,
            dropout: 0.0,
            seed: 0,
            generation: GenerationSection::default(),
            evaluation: EvaluationSection::default(),
            weights: Arc::default(),
            data: None,
            frame_cache: None,
        }
    }

    pub fn decoder(&self) -> Option<&DecoderConfig> {
        self.model.decoder.as_ref()
    }

    /// Whether training uses dropout.
    pub(super) fn drops(&self) -> bool {
        let of_attention = match &self.model.text {
            TextTower::Clip(_) => 0.0,
            TextTower::Bert(bert) => bert.attention_dropout,
        };
        self.dropout > 0.0 || of_attention > 0.0
    }

    /// Weight of a token as a target of captions.
    pub fn token_weight(&self, id: i64) -> f32 {
        let weight = usize::try_from(id).map(|id| self.loss.token_weights.get(id));
        match weight {
            Err(_) => 0.0,
            Ok(weight) => weight.copied().unwrap_or(1.0),
        }
    }

    pub fn data(&self) -> &VideoTextData {
        let data = self.data.as_ref();
        data.expect("a task that was prepared with data")
    }

    /// Loss number of the first head.
    fn first_head(&self) -> usize {
        match self.model.decoder {
            Some(_) => CAPTION + 1,
            None => CONTRASTIVE + 1,
        }
    }

    /// Declares the input of clips; `input` takes its name, the shape of a sample and the number format.
    fn clips(&self, mut input: impl FnMut(&'static str, &[usize], DType) -> ValueId) -> Clips {
        let model = &self.model;
        match self.clip_input {
            ClipInput::Pixels => {
                let size = model.vision.image_size;
                let dims = [model.frames(), size, size, 3];
                Clips::Pixels(input(batch::PIXELS, &dims, self.pixels))
            }
            ClipInput::FrameTokens(dtype) => {
                let tokens = model.frames() * model.encoded_tokens_per_frame();
                let dims = [tokens, model.vision.hidden_size];
                Clips::FrameTokens(input(batch::FRAME_TOKENS, &dims, dtype))
            }
        }
    }

    /// Name of the input of clips.
    fn clip_endpoint(&self) -> &'static str {
        match self.clip_input {
            ClipInput::Pixels => batch::PIXELS,
            ClipInput::FrameTokens(_) => batch::FRAME_TOKENS,
        }
    }

    fn num_outputs(&self) -> usize {
        self.heads.iter().map(Head::num_outputs).sum()
    }
}

impl Task for VideoTextTask {
    fn fill_whole_batch_columns(&self, columns: &mut Batch) {
        if self.loss.same_text == SameText::Positive {
            batch::set_shares(columns);
        }
    }

    fn name(&self) -> &'static str {
        "video-text"
    }

    fn losses(&self) -> Vec<Loss> {
        let mut losses = vec![Loss {
            name: "contrastive".to_owned(),
            weight: self.loss.contrastive_weight,
            chance: Chance::LogSamples,
        }];
        losses.extend(self.decoder().map(|decoder| Loss {
            name: "caption".to_owned(),
            weight: self.loss.caption_weight,
            chance: Chance::Log(decoder.vocab_size),
        }));
        losses.extend(classify::losses_of(&self.heads));
        losses
    }

    fn write_forward(&self, step: &mut StepWriter<'_>) {
        step::write_forward(self, step);
    }

    fn write_coupled_losses(&self, step: &mut StepWriter<'_>) {
        step::write_coupled_losses(self, step);
    }

    fn write_programs(&self, graph: &mut Graph, batch: usize) {
        programs::write_programs(self, graph, batch);
    }

    fn parameter_names(&self) -> Vec<String> {
        let tensors = self.model.tensors().into_iter();
        let mut names: Vec<String> = tensors.map(|(name, _)| name).collect();
        if !self.heads.is_empty() {
            names.extend(classify::CLASSIFIER.map(str::to_owned));
        }
        names
    }

    fn new_parameters(&self) -> Vec<String> {
        opened_model::new_parameters(self)
    }

    fn timing_key(&self) -> String {
        let outputs: Vec<_> = self.heads.iter().map(Head::num_outputs).collect();
        format!(
            "video-text {:?} {outputs:?} {:?} {} {} {:?} {} {:?} {:?} {} {} {} {}",
            self.model,
            self.clip_input,
            self.num_text_tokens,
            self.num_caption_tokens,
            self.pixels,
            self.masks_frames,
            self.loss.same_text,
            self.padding,
            self.loss.contrastive_tile,
            self.loss.vocabulary_tile,
            self.sorted_ids,
            self.drops(),
        )
    }

    fn weights(&self, seed: u64) -> Result<FillWeights<'_>, TrainError> {
        opened_model::weights(self, seed)
    }

    fn has_random_weights(&self) -> bool {
        self.weights.are_random()
    }

    fn describe_weights(&self) -> String {
        self.weights.describe()
    }

    fn smaller_batch_note(&self) -> &'static str {
        ": fewer negatives"
    }

    fn as_reference(&self) -> Arc<dyn Task> {
        Arc::new(VideoTextTask {
            loss: LossSettings {
                contrastive_tile: usize::MAX,
                vocabulary_tile: usize::MAX,
                ..self.loss.clone()
            },
            padding: Padding::Full,
            ..self.clone()
        })
    }

    fn picture_bytes(&self) -> usize {
        let (model, frames) = (&self.model, self.model.frames());
        match self.clip_input {
            ClipInput::Pixels => frames * model.vision.image_size.pow(2) * 3,
            ClipInput::FrameTokens(dtype) => {
                let tokens = frames * model.encoded_tokens_per_frame();
                tokens * model.vision.hidden_size * dtype.bytes()
            }
        }
    }

    fn stores_rows(&self) -> bool {
        self.frame_cache.is_some()
    }

    fn store_rows(&self, storing: Storing<'_>) -> Result<Option<RowFormat>, TrainError> {
        let cache = self.frame_cache.as_ref();
        let cache = cache.expect("asked only where rows are stored");
        cache.open(self, storing)
    }

    fn batch_bytes(&self, num_samples: usize) -> u64 {
        let of_heads: usize = self.heads.iter().map(Head::num_inputs).sum();
        // Ids and labels of captions, ids of texts; 8 numbers for lengths, frames, group, share and order of the sample.
        let numbers = 2 * self.num_caption_tokens + self.num_text_tokens + of_heads + 8;
        num_samples as u64 * (self.picture_bytes() + numbers * size_of::<i64>()) as u64
    }

    fn fill_batch(&self, batch: &mut Batch, loaded: &Loaded<HostRow>, epoch: u64) {
        batch::fill(self, batch, loaded, epoch);
    }

    fn random_batch(&self, num_samples: usize, seed: u64) -> Batch {
        random_batch::random(self, num_samples, seed)
    }

    fn derived_inputs(&self) -> &'static [&'static str] {
        &batch::DERIVED
    }

    fn derive(&self, name: &str, micro: &MicroBatch<'_>, to: &mut [i64]) {
        batch::derive(self, name, micro, to);
    }

    fn derived_numbers(&self) -> &'static [&'static str] {
        &batch::DERIVED_NUMBERS
    }

    fn derive_numbers(&self, _name: &str, micro: &MicroBatch<'_>, to: &mut [f32]) {
        batch::derive_token_weights(self, micro, to);
    }

    fn lengths(&self) -> Vec<usize> {
        match self.padding {
            Padding::ToTheLongest => {
                lengths::lengths(self.num_text_tokens.max(self.num_caption_tokens))
            }
            Padding::Full => Vec::new(),
        }
    }

    fn longest_text(&self, micro: &MicroBatch<'_>) -> usize {
        batch::longest(self, micro)
    }

    fn count_losses(&self, batch: &Batch, counts: &mut [f64]) {
        batch::count_losses(self, batch, counts);
    }

    fn add_to_digest(&self, samples: &Samples, add: &mut dyn FnMut(&[u8])) {
        for sample in 0..samples.len() {
            add(samples.image(sample).as_bytes());
            for clip in samples.further_image_paths(sample) {
                let name = clip.strip_prefix(samples.root()).unwrap_or(&clip);
                add(name.as_os_str().as_encoded_bytes());
            }
            add(samples.caption(sample).as_bytes());
            classify::add_targets_to_digest(samples, sample, add);
        }
    }

    fn evaluation_bytes(&self, subset: Subset, samples: &Samples, threads: usize) -> u64 {
        evaluate::host_bytes(self, subset, samples, threads)
    }

    fn evaluate(&self, evaluation: Evaluation<'_>) -> Result<Evaluated, Unfinished> {
        evaluate::evaluate(self, evaluation)
    }

    fn metric(&self, scores: &Scores, name: &str) -> Option<f64> {
        scores::metric(scores, name)
    }

    fn best_metric(&self, asked: Option<&str>) -> Result<(String, Direction), TrainError> {
        scores::best_metric(self, asked)
    }

    fn describe_size(&self, scores: &Scores) -> Option<String> {
        scores::describe_size(scores)
    }

    fn describe_scores(&self, scores: &Scores) -> String {
        scores::describe_scores(self, scores)
    }

    fn part_bytes(&self) -> u64 {
        export::part_bytes(&self.model)
    }

    fn save(&self, step: &Step, folder: &Path) -> Result<(), TrainError> {
        export::save(self, step, folder)
    }
}
