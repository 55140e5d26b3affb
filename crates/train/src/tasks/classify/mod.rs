//! Image classification: a vision transformer, and one linear layer whose outputs are split among heads.
//!
//! ```text
//! one label        cross-entropy          counts the samples' class weights
//! several labels   binary cross-entropy   counts the labels that are known
//! a number         squared error          of the number standardised by the training rows' mean and deviation
//! ```
//!
//! Every loss is separable, so no pass over features comes first: each micro-batch runs forward once.

mod answers;
mod batch;
mod evaluate;
mod examples;
mod export;
mod head_losses;
mod head_scores;
mod heads;
pub(crate) mod onnx;
mod prepare;
mod saved_model;
mod step;

use std::path::Path;
use std::sync::Arc;

use holdall_data::config::Mixing;
use holdall_data::loader::Loaded;
use holdall_data::samples::{Samples, TargetValues};
use holdall_device::HostRow;
use holdall_graph::{DType, Graph};
use holdall_models::vit::config::{ClassifierConfig, VisionTransformerConfig};
use holdall_models::vit::init;

pub use answers::{Answer, answers_of};
pub(super) use batch::{OwnedTargets, count_heads, fill_targets, random_targets, set_targets};
pub use batch::{Targets, batch_of};
pub(super) use export::{save_targets, saved_targets};
pub(super) use head_losses::{cross_entropy, evaluated};
pub(super) use head_scores::{Tallies, describe_metrics, metrics_of, tally_bytes};
pub use heads::{Head, labels_of};
pub(super) use heads::{losses_of, restore, standardize};
pub(super) use prepare::{describe_head, heads_of};
pub use prepare::{prepare, setup};
pub use saved_model::SavedClassifier;
pub(super) use step::write_head_losses;

use crate::config::Subset;
use crate::engine::batch::Batch;
use crate::engine::scores::{Direction, Scores};
use crate::engine::step::Step;
use crate::engine::step_graph::StepWriter;
use crate::engine::task::{Evaluated, Evaluation, FillWeights, Loss, Task, Unfinished};
use crate::error::TrainError;
use crate::planning::setup::Weights;

/// Parameters of the linear layer.
pub(super) const CLASSIFIER: [&str; 2] = ["classifier.weight", "classifier.bias"];

/// A vision transformer with classification and regression heads.
#[derive(Clone)]
pub struct ClassifyTask {
    /// Sizes of the backbone, and names of the outputs.
    pub model: ClassifierConfig,
    /// Heads, in the order of their outputs.
    pub heads: Vec<Head>,
    /// The head whose metric chooses the best model, unless the config names one.
    pub leading_head: usize,
    /// Number format of the pictures in the batch.
    pub pixels: DType,
    /// Mixup and cutmix.
    pub mixing: Mixing,
    /// Dropout probability of the outputs of residual branches.
    pub dropout: f64,
    /// Probability that a sample skips the last block.
    pub stochastic_depth: f64,
    /// Seed of mixing and dropout.
    pub seed: u64,
    weights: Arc<Weights>,
    /// Whether the classifier layer starts from random weights because the folder's has other labels.
    is_new_classifier: bool,
    /// Training samples, if data was read.
    train: Option<Arc<Samples>>,
    /// Contents of `preprocessor_config.json`.
    processor: String,
}

impl ClassifyTask {
    /// A task with random weights.
    pub fn new(backbone: VisionTransformerConfig, heads: Vec<Head>) -> ClassifyTask {
        ClassifyTask {
            model: heads::classifier_config(backbone, &heads),
            heads,
            leading_head: 0,
            pixels: DType::U8,
            mixing: Mixing::default(),
            dropout: 0.0,
            stochastic_depth: 0.0,
            seed: 0,
            weights: Arc::default(),
            is_new_classifier: false,
            train: None,
            processor: String::new(),
        }
    }

    fn num_outputs(&self) -> usize {
        self.model.labels.len()
    }

    fn image_size(&self) -> usize {
        self.model.backbone.vision.image_size
    }

    fn has_dropout(&self) -> bool {
        self.dropout > 0.0 || self.stochastic_depth > 0.0
    }
}

impl Task for ClassifyTask {
    fn name(&self) -> &'static str {
        "classify"
    }

    fn losses(&self) -> Vec<Loss> {
        heads::losses_of(&self.heads).collect()
    }

    fn write_forward(&self, step: &mut StepWriter<'_>) {
        step::write_forward(self, step);
    }

    fn write_programs(&self, graph: &mut Graph, batch: usize) {
        step::write_program(self, graph, batch);
    }

    fn parameter_names(&self) -> Vec<String> {
        let tensors = self.model.tensors().into_iter();
        tensors.map(|(name, _)| name).collect()
    }

    fn new_parameters(&self) -> Vec<String> {
        CLASSIFIER.map(str::to_owned).to_vec()
    }

    fn heads_of_model(&self) -> Vec<&'static str> {
        vec!["classifier"]
    }

    fn timing_key(&self) -> String {
        let kinds: Vec<_> = self.heads.iter().map(Head::num_outputs).collect();
        format!(
            "classify {:?} {kinds:?} {:?} {} {} {}",
            self.model.backbone,
            self.pixels,
            self.mixing.is_on(),
            self.dropout > 0.0,
            self.stochastic_depth > 0.0
        )
    }

    fn weights(&self, seed: u64) -> Result<FillWeights<'_>, TrainError> {
        let Some(folder) = self.weights.folder() else {
            return Ok(Box::new(move |name, values| {
                Ok(init::fill(&self.model, seed, name, values)?)
            }));
        };
        Ok(Box::new(move |name, values| {
            let is_of_classifier = CLASSIFIER.contains(&name);
            if is_of_classifier && self.is_new_classifier {
                init::fill(&self.model, seed, name, values)?;
                return Ok(());
            }
            folder.read_f32(name, values)?;
            if is_of_classifier {
                heads::standardize(&self.heads, name, values);
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

    fn as_reference(&self) -> Arc<dyn Task> {
        Arc::new(self.clone())
    }

    fn picture_bytes(&self) -> usize {
        self.image_size().pow(2) * 3
    }

    fn batch_bytes(&self, num_samples: usize) -> u64 {
        let numbers: usize = self.heads.iter().map(Head::num_inputs).sum();
        num_samples as u64 * (self.picture_bytes() + numbers * size_of::<i64>()) as u64
    }

    fn fill_batch(&self, batch: &mut Batch, loaded: &Loaded<HostRow>, epoch: u64) {
        batch::fill(self, batch, loaded, epoch);
    }

    fn random_batch(&self, num_samples: usize, seed: u64) -> Batch {
        batch::random(self, num_samples, seed)
    }

    fn count_losses(&self, batch: &Batch, counts: &mut [f64]) {
        batch::count_losses(self, batch, counts);
    }

    fn add_to_digest(&self, samples: &Samples, add: &mut dyn FnMut(&[u8])) {
        for sample in 0..samples.len() {
            add(samples.image(sample).as_bytes());
            add_targets_to_digest(samples, sample, add);
        }
    }

    fn evaluation_bytes(&self, _subset: Subset, samples: &Samples, _threads: usize) -> u64 {
        evaluate::host_bytes(self, samples.len())
    }

    fn evaluate(&self, evaluation: Evaluation<'_>) -> Result<Evaluated, Unfinished> {
        evaluate::evaluate(self, evaluation)
    }

    fn metric(&self, scores: &Scores, name: &str) -> Option<f64> {
        scores.number(name)
    }

    fn best_metric(&self, asked: Option<&str>) -> Result<(String, Direction), TrainError> {
        evaluate::best_metric(self, asked)
    }

    fn describe_scores(&self, scores: &Scores) -> String {
        evaluate::describe_scores(self, scores)
    }

    fn save(&self, step: &Step, folder: &Path) -> Result<(), TrainError> {
        export::save(self, step, folder)
    }
}

/// Adds a sample's targets to a digest.
pub(super) fn add_targets_to_digest(samples: &Samples, sample: usize, add: &mut dyn FnMut(&[u8])) {
    for values in samples.targets() {
        match values {
            TargetValues::Class(labels) => add(&labels[sample].to_le_bytes()),
            TargetValues::Number(numbers) => add(&numbers[sample].to_le_bytes()),
            TargetValues::Classes(rows) => match rows.get(sample) {
                Some(labels) => labels.iter().for_each(|one| add(&one.to_le_bytes())),
                None => add(b"unknown"),
            },
        }
    }
}
