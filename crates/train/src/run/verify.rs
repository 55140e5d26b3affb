//! Certifies, parameter by parameter, that the gradient of a split batch is the full-batch gradient.
//!
//! The reference is one pass over the whole batch by plain backward, nothing recomputed, the loss in one dense tile. For a
//! parameter's gradient `g` against the reference `r`, in 2-norms,
//! `error = |g - r| / max(|r|, 1e-3 |r_all| / sqrt(P))`, `r_all` all gradients together and `P` the number of tensors:
//! a key bias has a true gradient of zero, and an error relative to its rounding would mean nothing.
//!
//! A gradient may be the small difference of large numbers, and rounding a large share of it. So if an error is above the tolerance `t`,
//! the reference is computed again with the samples in other orders, which mathematically changes nothing: with `n` the
//! largest of the resulting differences to `r`, the denominator becomes `max(|r|, 1e-3 |r_all| / sqrt(P), 8 n / t)`
//! (docs/decisions/0032-rounding-is-measured.md).
//!
//! Both are computed in the number format of the setup: the certificate covers the split, not the format.

use std::sync::Arc;

use holdall_device::{Arithmetic, Device};
use holdall_files::SplitMix64;
use holdall_graph::ops::collective::Processes;
use holdall_plan::{Change, ChangeKind, PlanError, Recompute, Request, StepShape, plan};
use serde::Serialize;

use crate::config::GradientFormat;
use crate::engine::batch::Batch;
use crate::engine::step::{Step, processes_of};
use crate::engine::step_graph::{StepConfig, write_step};
use crate::engine::task::Task;
use crate::error::TrainError;
use crate::planning::setup::Setup;

/// Largest error that counts as rounding. Products of other shapes add their terms in another order, and round each term to
/// the format's digits: 24 bits in f32, 11 in tf32 and fp16, 8 in bf16. The CPU adds in the same order for any shape of the
/// batch.
pub fn tolerance(device: &Device, arithmetic: Arithmetic) -> f64 {
    match (device.is_gpu(), arithmetic) {
        (false, _) => 1e-5,
        (true, Arithmetic::F32) => 5e-5,
        (true, Arithmetic::Tf32) => 5e-3,
        (true, Arithmetic::F16) => 4e-3,
        (true, Arithmetic::Bf16) => 3e-2,
    }
}

/// Factor of the loss, by which gradients are divided again: without it most fp16 gradients would be zero.
fn loss_scale(arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::F16 => 1024.0,
        Arithmetic::F32 | Arithmetic::Tf32 | Arithmetic::Bf16 => 1.0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Recomputation policy.
    pub recompute: Recompute,
    /// Micro-batches that keep their activations; capped at the number of micro-batches.
    pub kept_micro_batches: usize,
}

/// Result of one split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitResult {
    #[serde(flatten)]
    pub split: Split,
    /// Number of micro-batches.
    pub gradient_accumulation: usize,
    /// Largest error of any parameter.
    pub max_relative_error: f64,
    /// Parameter with this error.
    pub worst_parameter: String,
    /// Relative difference of the loss.
    pub loss_difference: f64,
}

/// Results of all splits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Certificate {
    /// Whether every error is within the tolerance.
    pub exact: bool,
    /// Largest error.
    pub max_relative_error: f64,
    /// Parameter with this error.
    pub worst_parameter: String,
    /// Largest relative difference of the loss.
    pub loss_difference: f64,
    /// Largest error that counts as rounding.
    pub tolerance: f64,
    pub precision: &'static str,
    /// Result of each split.
    pub splits: Vec<SplitResult>,
}

/// Splits that together cover a micro-batch of one, uneven tails, every recompute policy, and all, some or no activations
/// kept.
pub fn usual_splits(effective_batch: usize) -> Vec<Split> {
    let uneven = (effective_batch * 3 / 8).max(1);
    let mut splits = Vec::new();
    for (batch_size, recompute, kept_micro_batches) in [
        (1, Recompute::None, usize::MAX),
        (uneven, Recompute::Cheap, 1),
        (effective_batch.div_ceil(2), Recompute::Blocks, 1),
        (uneven, Recompute::Blocks, 0),
        (effective_batch, Recompute::Cheap, 0),
        (effective_batch.div_ceil(3), Recompute::None, usize::MAX),
    ] {
        let accumulation = effective_batch.div_ceil(batch_size);
        let split = Split {
            batch_size,
            recompute,
            kept_micro_batches: kept_micro_batches.min(accumulation),
        };
        if !splits.contains(&split) {
            splits.push(split);
        }
    }
    splits
}

/// A step for one split with its weights, and the number of micro-batches.
fn split_step(
    setup: &Setup,
    device: &Device,
    config: &StepConfig,
    effective_batch: usize,
    split: Split,
) -> Result<(Step, usize), TrainError> {
    let request = Request {
        effective_batch: Some(effective_batch),
        batch_size: Some(split.batch_size),
        gradient_accumulation: None,
        recompute: Some(split.recompute),
        kept: Some(split.kept_micro_batches),
        budget_bytes: setup.budget_bytes,
        ..setup.request.clone()
    };
    let build = |shape: &StepShape| write_step(config, shape);
    let plan = plan(&request, &build, &*device.target(config.arithmetic, 0)?)?;
    let choice = plan.chosen.choice;
    let mut step = Step::new(device, config.clone(), plan.step, choice.batch_size)?;
    setup.fill(device, &mut step)?;
    Ok((step, choice.gradient_accumulation))
}

/// Gradients by parameter, in the order of the graph, and the loss.
struct Gradients {
    loss: f64,
    tensors: Vec<(String, Vec<f32>)>,
}

impl Gradients {
    /// Zero tensors of the same shapes.
    fn zeros(&self) -> Gradients {
        let tensors = self.tensors.iter();
        let zeros = |(name, tensor): &(String, Vec<f32>)| (name.clone(), vec![0.0; tensor.len()]);
        Gradients {
            loss: 0.0,
            tensors: tensors.map(zeros).collect(),
        }
    }

    /// Adds other gradients, times a factor.
    fn add(&mut self, others: &Gradients, share: f64) {
        self.loss += share * others.loss;
        for ((_, own), (_, other)) in self.tensors.iter_mut().zip(&others.tensors) {
            for (own, other) in own.iter_mut().zip(other) {
                *own += share as f32 * other;
            }
        }
    }
}

fn gradients(
    step: &mut Step,
    device: &Device,
    config: &StepConfig,
    batch: &Batch,
) -> Result<Gradients, TrainError> {
    let scale = loss_scale(config.arithmetic);
    step.gradients(device, batch, scale)?;
    let unscaled = (1.0 / scale) as f32;
    let mut tensors = Vec::new();
    for parameter in step.parameters() {
        let Some(gradient) = step.gradient(parameter)? else {
            continue;
        };
        let mut gradient = gradient.into_owned();
        if scale != 1.0 {
            gradient.iter_mut().for_each(|value| *value *= unscaled);
        }
        tensors.push((parameter.name.clone(), gradient));
    }
    Ok(Gradients {
        loss: step.total_loss(),
        tensors,
    })
}

/// Number of orders for the reference's samples.
const REORDERINGS: u64 = 4;
/// An error of up to this many times the largest difference between orders is rounding.
const ROUNDING_FACTOR: f64 = 8.0;

/// One pass over the whole batch, and the means to compute it again.
struct Reference<'a> {
    setup: &'a Setup,
    device: &'a Device,
    config: StepConfig,
    batch: &'a Batch,
    gradients: Gradients,
    /// Largest difference between orders per tensor, once measured.
    rounding: Option<Vec<f64>>,
}

impl<'a> Reference<'a> {
    fn new(
        setup: &'a Setup,
        device: &'a Device,
        batch: &'a Batch,
    ) -> Result<Reference<'a>, TrainError> {
        let config = one_pass(setup);
        let (mut step, _) = whole_step(setup, device, &config, batch.num_samples)
            .map_err(reference_does_not_fit)?;
        Ok(Reference {
            gradients: gradients(&mut step, device, &config, batch)?,
            setup,
            device,
            config,
            batch,
            rounding: None,
        })
    }

    /// The largest error and its parameter.
    fn worst(&mut self, found: &Gradients) -> Result<(f64, String), TrainError> {
        let tolerance = tolerance(self.device, self.config.arithmetic);
        let worst = worst(found, &self.gradients, None);
        if worst.0 <= tolerance {
            return Ok(worst);
        }
        if self.rounding.is_none() {
            self.rounding = Some(self.measure_rounding()?);
        }
        let rounding = self.rounding.iter().flatten();
        let scales: Vec<f64> = rounding
            .map(|difference| ROUNDING_FACTOR * difference / tolerance)
            .collect();
        Ok(self::worst(found, &self.gradients, Some(&scales)))
    }

    /// Largest difference per tensor between orders of the samples.
    fn measure_rounding(&self) -> Result<Vec<f64>, TrainError> {
        let count = self.batch.num_samples;
        let (mut step, _) = whole_step(self.setup, self.device, &self.config, count)?;
        let mut largest = vec![0.0_f64; self.gradients.tensors.len()];
        for seed in 0..REORDERINGS {
            let mut order: Vec<usize> = (0..count).collect();
            let mut random = SplitMix64(seed);
            for last in (1..count).rev() {
                order.swap(last, (random.bits() % (last as u64 + 1)) as usize);
            }
            let mut batch = self.batch.reordered(&order);
            self.config.task.fill_whole_batch_columns(&mut batch);
            let found = gradients(&mut step, self.device, &self.config, &batch)?;
            let pairs = found.tensors.iter().zip(&self.gradients.tensors);
            for (largest, ((_, found), (_, reference))) in largest.iter_mut().zip(pairs) {
                *largest = largest.max(difference(found, reference));
            }
        }
        Ok(largest)
    }
}

/// Config of a single process and a single pass. Gradients stay in f32, because the certificate covers the split and not the
/// rounding that the user chose.
fn one_pass(setup: &Setup) -> StepConfig {
    StepConfig {
        task: setup.step.task.as_reference(),
        gradients: GradientFormat::F32,
        processes: Processes::default(),
        ..setup.step.clone()
    }
}

/// A step on the whole batch, with its weights.
fn whole_step(
    setup: &Setup,
    device: &Device,
    config: &StepConfig,
    num_samples: usize,
) -> Result<(Step, usize), TrainError> {
    let whole = Split {
        batch_size: num_samples,
        recompute: Recompute::None,
        kept_micro_batches: 1,
    };
    split_step(setup, device, config, num_samples, whole)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Relative difference: zero if there is no difference, the largest number if it is not finite.
fn relative(difference: f64, scale: f64) -> f64 {
    let ratio = difference / scale;
    match difference {
        0.0 => 0.0,
        _ if ratio.is_finite() => ratio,
        _ => f64::MAX,
    }
}

fn difference(found: &[f32], reference: &[f32]) -> f64 {
    let pairs = found.iter().zip(reference);
    norm(pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)))
}

/// The largest error and its parameter. `scales` are further denominators, by tensor.
fn worst(found: &Gradients, reference: &Gradients, scales: Option<&[f64]>) -> (f64, String) {
    let tensor_norm = |tensor: &[f32]| norm(tensor.iter().map(|&value| f64::from(value)));
    let all = norm(
        reference
            .tensors
            .iter()
            .map(|(_, tensor)| tensor_norm(tensor)),
    );
    let floor = 1e-3 * all / (reference.tensors.len() as f64).sqrt();
    let mut worst = (0.0, String::new());
    let pairs = found.tensors.iter().zip(&reference.tensors);
    for (index, ((name, found), (_, reference))) in pairs.enumerate() {
        let further = scales.map_or(0.0, |scales| scales[index]);
        let scale = tensor_norm(reference).max(floor).max(further);
        let error = relative(difference(found, reference), scale);
        if error > worst.0 {
            worst = (error, name.clone());
        }
    }
    worst
}

/// Error if the reference does not fit. The reference holds the whole batch at once, so changes of the split do not help.
fn reference_does_not_fit(error: TrainError) -> TrainError {
    match error {
        TrainError::Plan(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes,
            changes,
            available_bytes,
            note,
        }) => {
            let helps = |change: &Change| {
                matches!(change.kind, ChangeKind::Memory | ChangeKind::EffectiveBatch)
            };
            TrainError::Plan(PlanError::DoesNotFit {
                budget_bytes,
                smallest_bytes,
                changes: changes.into_iter().filter(helps).collect(),
                available_bytes,
                note,
            })
        }
        other => other,
    }
}

/// Compares each split of `batch`, computed by `task`, with one pass over the whole batch. `progress` receives every result.
/// With several processes, each gets the whole batch and computes its share; only the first compares, and its certificate
/// counts.
pub fn verify(
    setup: &Setup,
    device: &Device,
    batch: &Batch,
    splits: &[Split],
    task: Arc<dyn Task>,
    progress: impl FnMut(&SplitResult),
) -> Result<Certificate, TrainError> {
    let processes = processes_of(device.group());
    let config = StepConfig {
        task,
        gradients: GradientFormat::F32,
        processes,
        ..setup.step.clone()
    };
    let own = batch.part(processes.share(batch.num_samples));
    let most_own = batch.num_samples.div_ceil(processes.count);
    certify(setup, device, batch, splits, progress, |split| {
        let (mut step, num_parts) = split_step(setup, device, &config, most_own, split)?;
        Ok((gradients(&mut step, device, &config, &own)?, num_parts))
    })
}

/// Certifies plain accumulation instead, which is wrong: the mean over micro-batches, each a batch with its own negatives,
/// sums and means. This shows that the certificate can fail. Every process computes it alone, and the first compares.
pub fn verify_plain_accumulation(
    setup: &Setup,
    device: &Device,
    batch: &Batch,
    splits: &[Split],
    progress: impl FnMut(&SplitResult),
) -> Result<Certificate, TrainError> {
    let config = one_pass(setup);
    certify(setup, device, batch, splits, progress, |split| {
        let size = split.batch_size.min(batch.num_samples);
        let num_parts = batch.num_samples.div_ceil(size);
        let mut mean: Option<Gradients> = None;
        for start in (0..batch.num_samples).step_by(size) {
            let mut part = batch.part(start..batch.num_samples.min(start + size));
            config.task.fill_whole_batch_columns(&mut part);
            let (mut step, _) = whole_step(setup, device, &config, part.num_samples)?;
            let found = gradients(&mut step, device, &config, &part)?;
            mean.get_or_insert_with(|| found.zeros())
                .add(&found, 1.0 / num_parts as f64);
        }
        let mean = mean.expect("a batch has samples");
        Ok((mean, num_parts))
    })
}

/// Compares the gradients of each split, given with the number of its micro-batches, with those of one pass.
fn certify(
    setup: &Setup,
    device: &Device,
    batch: &Batch,
    splits: &[Split],
    mut progress: impl FnMut(&SplitResult),
    mut gradients_of: impl FnMut(Split) -> Result<(Gradients, usize), TrainError>,
) -> Result<Certificate, TrainError> {
    // Only the first process computes the reference, and compares.
    let mut reference = match device.group().rank() {
        0 => Some(Reference::new(setup, device, batch)?),
        _ => None,
    };
    let mut results: Vec<SplitResult> = Vec::new();
    for &split in splits {
        let (found, gradient_accumulation) = gradients_of(split)?;
        let (max_relative_error, worst_parameter) = match &mut reference {
            Some(reference) => reference.worst(&found)?,
            None => (0.0, String::new()),
        };
        let loss = reference
            .as_ref()
            .map_or(found.loss, |one| one.gradients.loss);
        let result = SplitResult {
            split,
            gradient_accumulation,
            max_relative_error,
            worst_parameter,
            loss_difference: relative((found.loss - loss).abs(), loss.abs()),
        };
        progress(&result);
        results.push(result);
    }
    let worst = results
        .iter()
        .max_by(|a, b| a.max_relative_error.total_cmp(&b.max_relative_error))
        .ok_or_else(|| {
            TrainError::Config("no split to verify\nhint: leave `--split` out".to_owned())
        })?;
    let loss_difference = results
        .iter()
        .map(|result| result.loss_difference)
        .fold(0.0, f64::max);
    let arithmetic = setup.step.arithmetic;
    let tolerance = tolerance(device, arithmetic);
    Ok(Certificate {
        exact: worst.max_relative_error <= tolerance && loss_difference <= tolerance,
        max_relative_error: worst.max_relative_error,
        worst_parameter: worst.worst_parameter.clone(),
        loss_difference,
        tolerance,
        precision: arithmetic.name(),
        splits: results,
    })
}
