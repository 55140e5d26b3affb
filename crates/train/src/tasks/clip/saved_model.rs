//! A trained CLIP, opened for prediction, evaluation and export.

use std::path::Path;
use std::sync::Arc;

use holdall_data::DataConfig;
use holdall_data::config::LABEL;
use holdall_data::decode::ImageProcessor;
use holdall_data::loader::RowFormat;
use holdall_data::media::Media;
use holdall_data::samples::{self, Captions};
use holdall_data::text::{TextEncoder, bucket};
use holdall_onnx::Precision;

use super::super::opened_model::OpenedModel;
use super::prepare::open_model;
use super::{ClipData, ClipTask, LabelNames, TokenTable, onnx};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::export::onnx::OnnxFile;
use crate::export::saved_model::{Evaluated, EvaluationData, SavedModel, not_trained, resolve};
use crate::planning::site::Site;
use crate::tasks::weights_folder;

/// A trained CLIP with its picture preprocessing and its label names.
pub struct SavedClip {
    task: ClipTask,
    processor: ImageProcessor,
    /// Names of the label head's outputs; empty without a label head.
    pub labels: Vec<String>,
    /// Name of the label head's target.
    pub target: String,
    /// Memory limit for reading the tokenizer.
    most_bytes: u64,
}

impl SavedClip {
    /// Opens a model folder, the folder of a run, or a name in the local Hugging Face cache. Reading its tokenizer may take up to
    /// `most_bytes`.
    pub fn open(name: &str, most_bytes: u64) -> Result<SavedClip, TrainError> {
        let named = resolve(name)?;
        let OpenedModel {
            config: model,
            weights,
            processor,
        } = open_model(name, weights_folder(&named.to_string_lossy()))?;
        let Some(folder) = weights.folder() else {
            return Err(not_trained(name));
        };
        let names = LabelNames::read(folder.path())?;
        let head = folder.read_head()?;
        let labels = match (&head, &names) {
            (Some(head), Some(names)) if names.labels.len() == head.num_labels => {
                names.labels.clone()
            }
            (Some(head), _) => (0..head.num_labels)
                .map(|label| format!("label {label}"))
                .collect(),
            (None, _) => Vec::new(),
        };
        let mut task = ClipTask::new(model, head.map(|head| head.num_labels));
        task.weights = Arc::new(weights);
        Ok(SavedClip {
            task,
            processor,
            labels,
            target: names.map_or_else(|| LABEL.to_owned(), |names| names.target),
            most_bytes,
        })
    }

    pub fn text(&self) -> Result<TextEncoder, TrainError> {
        let text = &self.task.model.text;
        let tokenizer = self.path().join("tokenizer.json");
        let (vocabulary, positions) = (text.vocab_size, text.max_positions);
        Ok(TextEncoder::open(
            &tokenizer,
            vocabulary,
            positions,
            self.most_bytes,
        )?)
    }

    pub fn tokens(&self, captions: &[String]) -> Result<TokenTable, TrainError> {
        TokenTable::new(&self.text()?, captions, self.task.model.text.max_positions)
    }

    /// Length of a feature vector.
    pub fn projection(&self) -> usize {
        self.task.model.projection_dim
    }

    /// Factor of the similarities in the contrastive loss.
    pub fn logit_scale(&self) -> Result<f32, TrainError> {
        let mut value = [0.0];
        if let Some(folder) = self.task.weights.folder() {
            folder.read_f32("logit_scale", &mut value)?;
        }
        Ok(value[0].exp())
    }

    pub(in crate::tasks) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        let mut files = onnx::programs(&self.task, precision)?;
        let scale = self.logit_scale()?;
        for file in &mut files {
            file.say("logit_scale", scale.to_string());
        }
        Ok(files)
    }

    /// The task, for captions of up to `longest` tokens.
    pub fn task(&self, longest: usize) -> ClipTask {
        ClipTask {
            num_tokens: bucket(longest.max(1), self.task.model.text.max_positions),
            ..self.task.clone()
        }
    }
}

impl SavedModel for SavedClip {
    fn path(&self) -> &Path {
        let folder = self.task.weights.folder();
        folder.expect("opened from a folder").path()
    }

    fn describe_pictures(&self) -> String {
        self.processor.describe()
    }

    fn rows(&self, _data: &DataConfig) -> RowFormat {
        self.processor.framing.into()
    }

    fn read(
        &self,
        config: &RunConfig,
        site: Site<'_>,
        evaluated: Evaluated,
    ) -> Result<EvaluationData, TrainError> {
        let data = site.listed(|| {
            if self.labels.is_empty() {
                samples::read(&config.data, Captions::Required, config.seed)
            } else {
                samples::read_with_labels(&config.data, &self.labels, evaluated.side(), config.seed)
            }
        })?;
        let mut notes = data.notes;
        let (train, validation) = (data.train, data.validation);
        let samples = evaluated.choose(&data.csv, train, validation, data.test, &mut notes)?;
        let text = self.text()?;
        let positions = self.task.model.text.max_positions;
        let tokens = TokenTable::new(&text, samples.captions(), positions)?;
        let mut task = self.task(tokens.longest());
        let samples = Arc::new(samples);
        task.data = Some(Arc::new(ClipData {
            train: Arc::clone(&samples),
            train_tokens: tokens,
            validation_tokens: None,
            labels: self.labels.clone(),
            target: self.target.clone(),
            caption_template: data.caption_template,
            text,
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
        let kind = (Media::Pictures, Captions::Required);
        Ok(samples::visit_trained_files(
            &run.data, kind, run.seed, visit,
        )?)
    }

    fn describe_data(&self, config: &mut RunConfig) -> Result<(), TrainError> {
        if self.labels.is_empty() {
            Ok(())
        } else {
            crate::tasks::take_label_column(config)
        }
    }
}
