//! The sections of a config and their defaults.

use holdall_data::samples::Sampling;
use serde::{Deserialize, Serialize};

use super::choices::{
    EvalEvery, GradientFormat, OptimizerState, RecomputeChoice, SaveEvery, Schedule, Shard, Subset,
    Warmup,
};
use super::freeze::Freeze;
use super::lora_section::LoraSection;
use super::optimizer_config::{Averaging, OptimizerConfig};
use super::rates::RatesByName;
use super::training_defaults::FINE_TUNING;
use super::word_or_number::{count_or_none, real_or_none};

/// The `train` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSection {
    /// Samples per optimizer step.
    pub effective_batch: Option<usize>,
    /// Samples per micro-batch.
    pub batch_size: Option<usize>,
    /// Micro-batches per optimizer step.
    #[serde(alias = "gradient_accumulation_steps")]
    pub gradient_accumulation: Option<usize>,
    pub recompute: RecomputeChoice,
    /// Passes over the data; by default a number for the task and the weights.
    pub epochs: Option<usize>,
    /// Optimizer steps of the run, instead of `epochs`.
    pub max_steps: Option<usize>,
    /// Learning rate of the model; by default a number for the task and the weights.
    pub lr: Option<f64>,
    /// Learning rate of heads and classifiers, with the same default.
    pub lr_head: Option<f64>,
    /// Learning rates of parameters by name, instead of `lr` and `lr_head`; 0 keeps the parameters unchanged.
    pub lr_by: RatesByName,
    /// Parameters that are not trained.
    pub freeze: Freeze,
    /// Course of the learning rate after the warmup.
    #[serde(alias = "scheduler", alias = "lr_scheduler_type")]
    pub schedule: Schedule,
    /// Length of the linear rise of the learning rate at the start.
    pub warmup: Warmup,
    /// Final learning rate of a cosine or linear schedule, as a share of `lr`.
    pub lr_end: f64,
    /// Bound of the global gradient norm.
    #[serde(with = "real_or_none")]
    pub clip_norm: Option<f64>,
    pub optimizer: OptimizerSection,
    pub optimizer_state: OptimizerState,
    pub gradients: GradientFormat,
    /// State that is divided among the processes.
    pub shard: Shard,
    /// Decay of a moving average of the weights, which is evaluated and exported.
    #[serde(with = "real_or_none")]
    pub ema: Option<f64>,
    /// Interpolation for evaluation and export: share of the trained weights; the rest is the starting weights.
    #[serde(with = "real_or_none")]
    pub interpolate: Option<f64>,
    /// Dropout probability of the residual branches of transformer blocks.
    pub dropout: f64,
    /// Probability that the last block of a classifier is skipped for a sample; lower for earlier blocks.
    pub stochastic_depth: f64,
    /// Low-rank adapters, trained instead of the whole weights.
    pub lora: Option<LoraSection>,
    /// Order of the samples within an epoch.
    pub sampling: Sampling,
    pub eval_every: EvalEvery,
    /// Subsets to evaluate.
    pub eval_on: Vec<Subset>,
    /// Samples per batch of an evaluation; the micro-batch by default.
    pub eval_batch_size: Option<usize>,
    pub save_every: SaveEvery,
    /// Number of evaluations without improvement after which the run ends.
    #[serde(with = "count_or_none")]
    pub early_stop: Option<usize>,
    /// Metric that selects the best model.
    pub best_metric: Option<String>,
}

impl TrainSection {
    /// Passes over the data.
    pub fn num_epochs(&self) -> usize {
        self.epochs.unwrap_or(FINE_TUNING.epochs)
    }

    pub fn rate(&self) -> f64 {
        self.lr.unwrap_or(FINE_TUNING.lr)
    }

    pub fn head_rate(&self) -> f64 {
        self.lr_head.unwrap_or(FINE_TUNING.lr_head)
    }

    /// Optimizer steps of the run.
    pub fn total_steps(&self, steps_per_epoch: u64) -> u64 {
        match self.max_steps {
            Some(steps) => steps as u64,
            None => steps_per_epoch * self.num_epochs() as u64,
        }
    }

    /// Epochs that the run begins.
    pub fn epochs_begun(&self, steps_per_epoch: u64) -> u64 {
        self.total_steps(steps_per_epoch)
            .div_ceil(steps_per_epoch.max(1))
    }
}

impl Default for TrainSection {
    fn default() -> TrainSection {
        TrainSection {
            effective_batch: None,
            batch_size: None,
            gradient_accumulation: None,
            recompute: RecomputeChoice::Auto,
            epochs: None,
            max_steps: None,
            lr: None,
            lr_head: None,
            lr_by: RatesByName::default(),
            freeze: Freeze::default(),
            schedule: Schedule::Cosine,
            warmup: Warmup::default(),
            lr_end: 0.0,
            clip_norm: Some(1.0),
            optimizer: OptimizerSection::default(),
            optimizer_state: OptimizerState::F32,
            gradients: GradientFormat::F32,
            shard: Shard::None,
            ema: None,
            interpolate: None,
            dropout: 0.0,
            stochastic_depth: 0.0,
            lora: None,
            sampling: Sampling::Shuffle,
            eval_every: EvalEvery::Epoch,
            eval_on: vec![Subset::Validation],
            eval_batch_size: None,
            save_every: SaveEvery::Epoch,
            early_stop: None,
            best_metric: None,
        }
    }
}

impl TrainSection {
    /// Constants of the optimizer.
    pub fn optimizer_config(&self) -> OptimizerConfig {
        OptimizerConfig {
            beta1: self.optimizer.beta1,
            beta2: self.optimizer.beta2,
            eps: self.optimizer.eps,
            weight_decay: self.optimizer.weight_decay,
            clip_norm: self.clip_norm,
            moments: self.optimizer_state.moments(),
            averaging: match (self.ema, self.interpolate) {
                (Some(decay), _) => Averaging::OverSteps { decay },
                (None, Some(share)) => Averaging::WithStart { share },
                (None, None) => Averaging::None,
            },
        }
    }
}

/// The `train: optimizer:` section: constants of AdamW.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSection {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Constant added to the root of the second moment.
    pub eps: f64,
    /// Weight decay of matrices and embeddings.
    pub weight_decay: f64,
}

impl Default for OptimizerSection {
    fn default() -> OptimizerSection {
        let config = OptimizerConfig::default();
        OptimizerSection {
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            weight_decay: config.weight_decay,
        }
    }
}
