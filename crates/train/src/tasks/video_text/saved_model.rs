//! A trained model, opened to be used: its folder, its tokenizers, what its heads call things.

use std::path::Path;
use std::sync::Arc;

use holdall_data::image_processor::ImageProcessor;
use holdall_data::loader::RowFormat;
use holdall_data::target::Target;
use holdall_data::text::TextEncoder;

use super::super::classify::{self, Head};
use super::VideoTextTask;
use super::export::{CAPTION_TOKENIZER, SavedTexts};
use super::opened_model::{OpenedModel, open_model};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::generation::read_generation_config;
use crate::saved_model::{EvaluationData, HeldOut, SavedModel, not_trained, resolve};

/// A model with all that lies beside it.
pub struct SavedVideoText {
    task: VideoTextTask,
    processor: ImageProcessor,
    /// What its heads were trained on.
    targets: Vec<Target>,
    texts: Option<SavedTexts>,
    /// What reading a tokenizer may take.
    most_bytes: u64,
}

impl SavedVideoText {
    /// Opens a model folder, or the folder of a run; its tokenizers in at most so many bytes.
    pub fn open(name: &str, most_bytes: u64) -> Result<SavedVideoText, TrainError> {
        let config = RunConfig {
            model: resolve(name)?.to_string_lossy().into_owned(),
            ..RunConfig::default()
        };
        let OpenedModel {
            model,
            mut weights,
            processor,
            ..
        } = open_model(&config)?;
        let Some(folder) = &weights.model else {
            return Err(not_trained(name));
        };
        let targets = classify::saved_targets(folder.path())?.unwrap_or_default();
        let texts = SavedTexts::read(folder.path())?;
        weights.new_heads = false;
        let heads = targets.iter().map(Head::new).collect();
        let mut task = VideoTextTask::new(model, heads);
        task.generation = read_generation_config(folder.path())?.unwrap_or_default();
        task.weights = Some(Arc::new(weights));
        Ok(SavedVideoText {
            task,
            processor,
            targets,
            texts,
            most_bytes,
        })
    }

    /// What is computed.
    pub fn task(&self) -> &VideoTextTask {
        &self.task
    }

    /// What a contrastive similarity is multiplied by.
    pub fn logit_scale(&self) -> Result<f32, TrainError> {
        let mut value = [0.0];
        let weights = self.task.weights.as_deref();
        if let Some(folder) = weights.and_then(|weights| weights.model.as_ref()) {
            folder.read_f32("logit_scale", &mut value)?;
        }
        Ok(value[0].exp())
    }

    /// The text tower's tokenizer.
    pub fn text(&self) -> Result<TextEncoder, TrainError> {
        let model = &self.task.model;
        let path = self.path().join("tokenizer.json");
        let (vocabulary, positions) = (model.text_vocab_size(), model.max_text_tokens());
        Ok(TextEncoder::open(
            &path,
            vocabulary,
            positions,
            self.most_bytes,
        )?)
    }

    /// The decoder's tokenizer, where it has one of its own.
    pub fn own_caption_text(&self) -> Result<Option<TextEncoder>, TrainError> {
        let path = self.path().join(CAPTION_TOKENIZER).join("tokenizer.json");
        let Some(decoder) = self.task.decoder().filter(|_| path.is_file()) else {
            return Ok(None);
        };
        let positions = decoder.max_positions;
        let opened = TextEncoder::open(&path, decoder.vocab_size, positions, self.most_bytes)?;
        Ok(Some(opened))
    }
}

impl SavedModel for SavedVideoText {
    fn path(&self) -> &Path {
        let weights = self.task.weights.as_deref();
        let folder = weights.and_then(|weights| weights.model.as_ref());
        folder.expect("opened from a folder").path()
    }

    fn describe_pictures(&self) -> String {
        self.processor.describe()
    }

    fn rows(&self) -> RowFormat {
        self.processor.framing.into()
    }

    fn read(&self, _config: &RunConfig, _held_out: HeldOut) -> Result<EvaluationData, TrainError> {
        Err(TrainError::Config("no clips yet".to_owned()))
    }

    fn describe_data(&self, config: &mut RunConfig) -> Result<(), TrainError> {
        match self.targets.is_empty() {
            true => Ok(()),
            false => crate::tasks::take_label_column(config),
        }
    }
}
