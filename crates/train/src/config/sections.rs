//! The sections of a config and their defaults.

use holdall_data::order::Sampling;
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

/// The `train` section: batch, rates, and what happens when.
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
    /// What to keep for the backward pass.
    pub recompute: RecomputeChoice,
    /// Times that the data is seen; by task and data where nobody says.
    pub epochs: Option<usize>,
    /// Optimizer steps of the run, instead of `epochs`.
    pub max_steps: Option<usize>,
    /// Learning rate of the model; by task and weights where nobody says.
    pub lr: Option<f64>,
    /// Learning rate of heads and classifiers, likewise.
    pub lr_head: Option<f64>,
    /// Learning rates of parameters by name, instead of `lr` and `lr_head`; 0 holds them still.
    pub lr_by: RatesByName,
    /// What is not trained.
    pub freeze: Freeze,
    /// How the learning rate moves after the warmup.
    #[serde(alias = "scheduler", alias = "lr_scheduler_type")]
    pub schedule: Schedule,
    /// How long the learning rate rises at the start.
    pub warmup: Warmup,
    /// Share of the learning rate that is left at the end of a cosine or a line.
    pub lr_end: f64,
    /// Bound on the global gradient norm.
    #[serde(with = "real_or_none")]
    pub clip_norm: Option<f64>,
    /// The optimizer's fixed numbers.
    pub optimizer: OptimizerSection,
    /// Number format of the optimizer's moments.
    pub optimizer_state: OptimizerState,
    /// Number format of accumulated weight gradients.
    pub gradients: GradientFormat,
    /// What several processes have a part of each.
    pub shard: Shard,
    /// Decay of an average of the weights over the steps, which is evaluated and exported.
    #[serde(with = "real_or_none")]
    pub ema: Option<f64>,
    /// Share of the trained weights in what is evaluated and exported; the rest is the weights that the run began with.
    #[serde(with = "real_or_none")]
    pub interpolate: Option<f64>,
    /// Share of the numbers that are dropped of what a classifier's blocks add.
    pub dropout: f64,
    /// Share of the samples for which a classifier's last block adds nothing; fewer for those before it.
    pub stochastic_depth: f64,
    /// Low-rank adapters instead of whole weights.
    pub lora: Option<LoraSection>,
    /// In which order an epoch draws its samples.
    pub sampling: Sampling,
    /// When to evaluate.
    pub eval_every: EvalEvery,
    /// What to evaluate.
    pub eval_on: Vec<Subset>,
    /// Samples per batch of an evaluation; the micro-batch by default.
    pub eval_batch_size: Option<usize>,
    /// When to write a checkpoint.
    pub save_every: SaveEvery,
    /// Evaluations without improvement after which a run ends.
    #[serde(with = "count_or_none")]
    pub early_stop: Option<usize>,
    /// The metric that says which checkpoint is the best.
    pub best_metric: Option<String>,
}

impl TrainSection {
    /// Times that the data is seen.
    pub fn num_epochs(&self) -> usize {
        self.epochs.unwrap_or(FINE_TUNING.epochs)
    }

    /// Learning rate of the model.
    pub fn rate(&self) -> f64 {
        self.lr.unwrap_or(FINE_TUNING.lr)
    }

    /// Learning rate of heads and classifiers.
    pub fn head_rate(&self) -> f64 {
        self.lr_head.unwrap_or(FINE_TUNING.lr_head)
    }

    /// Optimizer steps of a run whose epochs have so many.
    pub fn total_steps(&self, steps_per_epoch: u64) -> u64 {
        match self.max_steps {
            Some(steps) => steps as u64,
            None => steps_per_epoch * self.num_epochs() as u64,
        }
    }

    /// Epochs that such a run begins.
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
    /// All that the update needs to know.
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

/// The `train: optimizer:` section: AdamW's fixed numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSection {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of matrices and embeddings.
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
