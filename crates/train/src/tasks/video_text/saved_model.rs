//! A trained video-text model, opened for prediction, evaluation and export.

use std::path::Path;
use std::sync::Arc;

use holdall_data::DataConfig;
use holdall_data::config::ShortClips;
use holdall_data::decode::ImageProcessor;
use holdall_data::loader::{ClipFraming, RowFormat};
use holdall_data::media::Media;
use holdall_data::samples::{self, Captions, Target, TrainedTargets};
use holdall_data::text::TextEncoder;
use holdall_models::video_text::config::Pooling;
use holdall_onnx::Precision;

use super::super::classify::{self, Head};
use super::export::{CAPTION_TOKENIZER, SavedTexts};
use super::opened_model::{OpenedVideoText, open_model};
use super::{TokenizedTexts, VideoTextData, VideoTextTask, onnx};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::export::onnx::OnnxFile;
use crate::export::saved_model::{Evaluated, EvaluationData, SavedModel, not_trained, resolve};
use crate::planning::site::Site;
use crate::tasks::generation::read_generation_config;

/// A trained video-text model with its frame preprocessing and its targets.
pub struct SavedVideoText {
    task: VideoTextTask,
    processor: ImageProcessor,
    /// Targets of its heads.
    targets: Vec<Target>,
    /// Memory limit for reading a tokenizer.
    most_bytes: u64,
}

impl SavedVideoText {
    /// Opens a model folder, or the folder of a run. Reading its tokenizers may take up to `most_bytes`.
    pub fn open(name: &str, most_bytes: u64) -> Result<SavedVideoText, TrainError> {
        let config = RunConfig {
            model: resolve(name)?.to_string_lossy().into_owned(),
            ..RunConfig::default()
        };
        let OpenedVideoText {
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
        task.weights = Arc::new(weights);
        if let Some(texts) = &texts {
            task.num_text_tokens = texts.text_tokens.clamp(1, task.num_text_tokens);
            task.num_caption_tokens = texts.caption_tokens.min(task.num_caption_tokens);
        }
        Ok(SavedVideoText {
            task,
            processor,
            targets,
            most_bytes,
        })
    }

    pub(in crate::tasks) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        let mut files = onnx::programs(&self.task, precision)?;
        let scale = self.logit_scale()?;
        for file in &mut files {
            file.say("logit_scale", scale.to_string());
        }
        Ok(files)
    }

    pub fn task(&self) -> &VideoTextTask {
        &self.task
    }

    fn framing(&self, data: &DataConfig) -> ClipFraming {
        let model = &self.task.model;
        let data = DataConfig {
            num_videos: data.num_videos.or(Some(model.num_videos as u32)),
            ..data.clone()
        };
        ClipFraming::new(&data, self.processor.framing, model.num_frames)
    }

    /// The task for clips that are read with these settings.
    pub fn task_for(&self, data: &DataConfig) -> Result<VideoTextTask, TrainError> {
        let framing = self.framing(data);
        let mut task = self.task.clone();
        let model = &mut task.model;
        if framing.num_frames() != model.frames() {
            let is_open =
                model.pooling == Pooling::Mean && model.num_videos == 1 && !model.frame_positions;
            if !is_open {
                return Err(TrainError::Config(format!(
                    "data.frames: {}, expected {}: the model has learnt places of frames\nhint: leave `frames` and `num_videos` out",
                    framing.num_frames(),
                    model.frames()
                )));
            }
            model.num_frames = framing.num_frames();
        }
        task.masks_frames = data.short_clips == ShortClips::Mask;
        Ok(task)
    }

    /// Factor of the similarities in the contrastive loss.
    pub fn logit_scale(&self) -> Result<f32, TrainError> {
        let mut value = [0.0];
        if let Some(folder) = &self.task.weights.model {
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

    /// The decoder's tokenizer, if it differs from the text tower's.
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
        let folder = self.task.weights.model.as_ref();
        folder.expect("opened from a folder").path()
    }

    fn describe_pictures(&self) -> String {
        self.processor.describe()
    }

    fn rows(&self, data: &DataConfig) -> RowFormat {
        self.framing(data).into()
    }

    fn read(
        &self,
        config: &RunConfig,
        site: Site<'_>,
        evaluated: Evaluated,
    ) -> Result<EvaluationData, TrainError> {
        let data = site.listed(|| {
            let (data, seed) = (&config.data, config.seed);
            let trained = TrainedTargets {
                targets: &self.targets,
                side: evaluated.side(),
            };
            samples::read_clips_with_targets(data, Captions::Required, trained, seed)
        })?;
        let mut notes = data.notes;
        let (train, validation) = (data.train, data.validation);
        let samples = evaluated.choose(&data.csv, train, validation, data.test, &mut notes)?;
        let samples = Arc::new(samples);
        let (text, own_caption_text) = (self.text()?, self.own_caption_text()?);
        let model = &self.task.model;
        let decoder = model.decoder.as_ref().map(|decoder| {
            let caption_text = own_caption_text.as_ref().unwrap_or(&text);
            (caption_text, decoder.max_positions)
        });
        let tokens = model.max_text_tokens();
        let texts = TokenizedTexts::new(samples.captions(), &text, tokens, decoder)?;
        let mut task = self.task_for(&config.data)?;
        task.evaluation = config.evaluation.clone();
        task.num_text_tokens = texts.texts.longest().max(1);
        if let Some(captions) = &texts.captions {
            let longest = captions.longest().max(2) - 1;
            task.num_caption_tokens = longest.max(task.num_caption_tokens);
        }
        task.data = Some(Arc::new(VideoTextData {
            train: Arc::clone(&samples),
            train_texts: texts,
            validation_texts: None,
            text,
            own_caption_text,
            caption_template: data.caption_template,
            processor: String::new(),
        }));
        Ok(EvaluationData {
            task: Arc::new(task),
            samples,
            csv: data.csv,
            notes,
            rows: self.rows(&config.data),
        })
    }

    fn visit_trained_files(
        &self,
        run: &RunConfig,
        visit: &mut dyn FnMut(&Path),
    ) -> Result<(), TrainError> {
        let kind = (Media::Clips, Captions::Required);
        Ok(samples::visit_trained_files(
            &run.data, kind, run.seed, visit,
        )?)
    }

    fn describe_data(&self, config: &mut RunConfig) -> Result<(), TrainError> {
        if self.targets.is_empty() {
            Ok(())
        } else {
            crate::tasks::take_label_column(config)
        }
    }
}
