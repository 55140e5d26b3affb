//! CLIP: a contrastive loss over pictures and captions, and an optional label head.
//!
//! The contrastive loss couples all samples of the effective batch: they are negatives of each other, however the batch is split.
//! The label head's cross-entropy is separable.

mod batch;
mod encoder;
mod evaluate;
mod examples;
mod export;
pub(crate) mod onnx;
mod prepare;
mod saved_model;
mod step;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use holdall_data::loader::Loaded;
use holdall_data::samples::Samples;
use holdall_data::text::TextEncoder;
use holdall_device::HostRow;
use holdall_graph::ops::contrastive::CONTRASTIVE_TILE;
use holdall_graph::{DType, Graph};
use holdall_models::clip::init;
use holdall_models::config::ClipConfig;

pub use batch::batch_of;
pub(super) use batch::sort_places;
pub use encoder::{EncodedPictures, Encoder};
pub use evaluate::{METRICS, encode_captions, encode_pictures};
pub use export::{LabelNames, save_weights};
pub use prepare::{prepare, setup};
pub use saved_model::SavedClip;
pub use tokens::TokenTable;

use crate::config::Subset;
use crate::engine::batch::{Batch, MicroBatch};
use crate::engine::scores::{Direction, Scores};
use crate::engine::step::Step;
use crate::engine::step_graph::StepWriter;
use crate::engine::task::{Chance, Evaluated, Evaluation, FillWeights, Loss, Task, Unfinished};
use crate::error::TrainError;
use crate::planning::setup::Weights;

/// Loss numbers.
const CONTRASTIVE: usize = 0;
const LABEL: usize = 1;

/// A CLIP with its loss settings.
#[derive(Clone)]
pub struct ClipTask {
    pub model: ClipConfig,
    /// Classes of the label head; `None` leaves it out.
    pub num_labels: Option<usize>,
    /// Tokens per caption.
    pub num_tokens: usize,
    /// Number format of the pictures in the batch.
    pub pixels: DType,
    /// Weight of the contrastive loss.
    pub contrastive_weight: f64,
    /// Weight of the label loss.
    pub label_weight: f64,
    /// Share of a label that is spread over all classes.
    pub label_smoothing: f64,
    /// Weight of each class in the label loss; empty if all are 1.
    pub class_weights: Vec<f32>,
    /// Tile size of the contrastive loss; the batch size or more computes it in one piece.
    pub contrastive_tile: usize,
    /// Whether the device adds gradients of equal token ids in sorted order.
    pub sorted_ids: bool,
    weights: Arc<Weights>,
    /// Whether to keep the folder's label head because its labels are the data's.
    keep_head: bool,
    /// Captions and labels of the data, if it was read.
    data: Option<Arc<ClipData>>,
}

/// The data of a run, and its preprocessing.
pub(super) struct ClipData {
    train: Arc<Samples>,
    train_tokens: TokenTable,
    validation_tokens: Option<TokenTable>,
    labels: Vec<String>,
    /// Name of the label target.
    target: String,
    caption_template: String,
    text: TextEncoder,
    /// Contents of `preprocessor_config.json`.
    processor: String,
}

impl ClipTask {
    /// A task with random weights; loss weights are 1 for contrastive and 0.5 for label.
    pub fn new(model: ClipConfig, num_labels: Option<usize>) -> ClipTask {
        ClipTask {
            num_tokens: model.text.max_positions,
            model,
            num_labels,
            pixels: DType::U8,
            contrastive_weight: 1.0,
            label_weight: 0.5,
            label_smoothing: 0.0,
            class_weights: Vec::new(),
            contrastive_tile: CONTRASTIVE_TILE,
            sorted_ids: false,
            weights: Arc::default(),
            keep_head: true,
            data: None,
        }
    }

    /// Weight of a class in the label loss; 0 for a negative label.
    pub fn class_weight(&self, label: i64) -> f32 {
        match usize::try_from(label) {
            Err(_) => 0.0,
            Ok(label) => self.class_weights.get(label).copied().unwrap_or(1.0),
        }
    }

    fn data(&self) -> &ClipData {
        let data = self.data.as_ref();
        data.expect("a task that was prepared with data")
    }

    fn tokens(&self, subset: Subset) -> &TokenTable {
        let data = self.data();
        match subset {
            Subset::Train => &data.train_tokens,
            Subset::Validation => {
                let tokens = data.validation_tokens.as_ref();
                tokens.expect("samples that are held out have captions")
            }
        }
    }
}

impl Task for ClipTask {
    fn name(&self) -> &'static str {
        "clip"
    }

    fn losses(&self) -> Vec<Loss> {
        let mut losses = vec![Loss {
            name: "contrastive".to_owned(),
            weight: self.contrastive_weight,
            chance: Chance::LogSamples,
        }];
        losses.extend(self.num_labels.map(|labels| Loss {
            name: "label".to_owned(),
            weight: self.label_weight,
            chance: Chance::Log(labels),
        }));
        losses
    }

    fn write_forward(&self, step: &mut StepWriter<'_>) {
        step::write_forward(self, step);
    }

    fn write_coupled_losses(&self, step: &mut StepWriter<'_>) {
        step::write_coupled_losses(self, step);
    }

    fn write_programs(&self, graph: &mut Graph, batch: usize) {
        encoder::write_programs(self, graph, batch);
    }

    fn parameter_names(&self) -> Vec<String> {
        let tensors = self.model.tensors().into_iter();
        let mut names: Vec<String> = tensors.map(|(name, _)| name).collect();
        names.extend(["head.weight", "head.bias"].map(str::to_owned));
        names
    }

    fn new_parameters(&self) -> Vec<String> {
        ["head.weight", "head.bias"].map(str::to_owned).to_vec()
    }

    fn timing_key(&self) -> String {
        format!(
            "clip {:?} {:?} {} {:?} {} {}",
            self.model,
            self.num_labels,
            self.num_tokens,
            self.pixels,
            self.contrastive_tile,
            self.sorted_ids
        )
    }

    fn weights(&self, seed: u64) -> Result<FillWeights<'_>, TrainError> {
        let Some(folder) = self.weights.folder() else {
            return Ok(Box::new(move |name, values| {
                Ok(init::fill(&self.model, seed, name, values)?)
            }));
        };
        let head = if self.keep_head {
            folder.read_head()?
        } else {
            None
        };
        Ok(Box::new(move |name, values| {
            match (name, &head) {
                ("head.weight", Some(head)) if head.weight.len() == values.len() => {
                    values.copy_from_slice(&head.weight);
                }
                ("head.bias", Some(head)) if head.bias.len() == values.len() => {
                    values.copy_from_slice(&head.bias);
                }
                ("head.weight" | "head.bias", _) => {
                    init::fill_new_head(&self.model, seed, name, values)?;
                }
                _ => folder.read_f32(name, values)?,
            }
            Ok(())
        }))
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
        Arc::new(ClipTask {
            contrastive_tile: usize::MAX,
            ..self.clone()
        })
    }

    fn picture_bytes(&self) -> usize {
        self.model.vision.image_size.pow(2) * 3
    }

    fn batch_bytes(&self, num_samples: usize) -> u64 {
        let indices = self.num_tokens + 2;
        num_samples as u64 * (self.picture_bytes() + indices * size_of::<i64>()) as u64
    }

    fn fill_batch(&self, batch: &mut Batch, loaded: &Loaded<HostRow>, _epoch: u64) {
        batch::fill(self, batch, loaded);
    }

    fn random_batch(&self, num_samples: usize, seed: u64) -> Batch {
        batch::random(self, num_samples, seed)
    }

    fn derived_inputs(&self) -> &'static [&'static str] {
        &[batch::LENGTHS, batch::ORDER]
    }

    fn derive(&self, name: &str, micro: &MicroBatch<'_>, to: &mut [i64]) {
        batch::derive(name, micro, to);
    }

    fn count_losses(&self, batch: &Batch, counts: &mut [f64]) {
        batch::count_losses(self, batch, counts);
    }

    fn add_to_digest(&self, samples: &Samples, add: &mut dyn FnMut(&[u8])) {
        for sample in 0..samples.len() {
            add(samples.image(sample).as_bytes());
            add(samples.caption(sample).as_bytes());
            add(&samples.label(sample).to_le_bytes());
        }
    }

    fn evaluation_bytes(&self, subset: Subset, samples: &Samples, threads: usize) -> u64 {
        let captions = self.tokens(subset).len();
        evaluate::host_bytes(samples.len(), captions, self.model.projection_dim, threads)
    }

    fn evaluate(&self, evaluation: Evaluation<'_>) -> Result<Evaluated, Unfinished> {
        evaluate::evaluate(self, evaluation)
    }

    fn metric(&self, scores: &Scores, name: &str) -> Option<f64> {
        evaluate::metric(scores, name)
    }

    fn best_metric(&self, asked: Option<&str>) -> Result<(String, Direction), TrainError> {
        let has_labels = self.num_labels.is_some();
        let name = match asked {
            None if has_labels && self.label_weight > 0.0 => "label_top1",
            None => "mean_r1",
            Some(name) if !METRICS.contains(&name) => {
                return Err(TrainError::Config(format!(
                    "train.best_metric: {name}, expected one of {}, loss\n\
                     hint: leave it out for label_top1 with labels, mean_r1 without",
                    METRICS.join(", ")
                )));
            }
            Some(name) if name.starts_with("label_") && !has_labels => {
                return Err(TrainError::Config(format!(
                    "train.best_metric: {name}, found no column of labels\n\
                     hint: `data: {{label: COLUMN}}`, or mean_r1"
                )));
            }
            Some(name) => name,
        };
        Ok((name.to_owned(), Direction::Higher))
    }

    fn describe_size(&self, scores: &Scores) -> Option<String> {
        evaluate::describe_size(scores)
    }

    fn describe_scores(&self, scores: &Scores) -> String {
        evaluate::describe_scores(scores)
    }

    fn save(&self, step: &Step, folder: &Path) -> Result<(), TrainError> {
        export::save(self, step, folder)
    }
}
