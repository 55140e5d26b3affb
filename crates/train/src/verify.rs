//! Is the split gradient the full-batch gradient? A certificate, parameter by parameter.
//!
//! The reference is one pass over the whole batch by plain backward, nothing recomputed, the loss in one dense tile. For a
//! parameter's gradient `g` against the reference `r`, in 2-norms,
//! `error = |g - r| / max(|r|, 1e-3 |r_all| / sqrt(P))`, `r_all` all gradients together and `P` the number of tensors:
//! a key bias has a true gradient of zero, and dividing by its rounding would say nothing.
//!
//! Both are computed in the number format of the setup: what is certified is the split, not the format.

use std::sync::Arc;

use holdall_device::{Arithmetic, Device};
use holdall_graph::ops::collective::Processes;
use holdall_plan::{Change, PlanError, Recompute, Request, StepShape, plan};
use serde::Serialize;

use crate::batch::Batch;
use crate::config::GradientFormat;
use crate::error::TrainError;
use crate::setup::Setup;
use crate::step::{Step, processes_of};
use crate::step_graph::{StepConfig, write_step};
use crate::task::Task;

/// Errors up to this are rounding. Products of other shapes add their terms in another order, and round each term to the
/// format's digits: 24 bits in f32, 11 in tf32 and fp16, 8 in bf16. The CPU adds in one order whatever the shape of the batch.
pub fn tolerance(device: &Device, arithmetic: Arithmetic) -> f64 {
    match (device.is_gpu(), arithmetic) {
        (false, _) => 1e-5,
        (true, Arithmetic::F32) => 5e-5,
        (true, Arithmetic::Tf32) => 5e-3,
        (true, Arithmetic::F16) => 4e-3,
        (true, Arithmetic::Bf16) => 3e-2,
    }
}

/// What the loss is multiplied by, and gradients divided by again: without it most gradients of fp16 would be zero.
fn loss_scale(arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::F16 => 1024.0,
        Arithmetic::F32 | Arithmetic::Tf32 | Arithmetic::Bf16 => 1.0,
    }
}

/// One way to split the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// What is recomputed.
    pub recompute: Recompute,
    /// Micro-batches that keep their activations; as many as there are, if more.
    pub kept_micro_batches: usize,
}

/// What one split gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitResult {
    /// The split.
    #[serde(flatten)]
    pub split: Split,
    /// Micro-batches.
    pub gradient_accumulation: usize,
    /// Largest error of any parameter.
    pub max_relative_error: f64,
    /// Whose it is.
    pub worst_parameter: String,
    /// Relative difference of the loss.
    pub loss_difference: f64,
}

/// All splits together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Certificate {
    /// Every error is within the tolerance.
    pub exact: bool,
    /// Largest error.
    pub max_relative_error: f64,
    /// Whose it is.
    pub worst_parameter: String,
    /// Largest relative difference of the loss.
    pub loss_difference: f64,
    /// Errors up to this are rounding.
    pub tolerance: f64,
    /// Number format of the arithmetic.
    pub precision: &'static str,
    /// Split by split.
    pub splits: Vec<SplitResult>,
}

/// Splits that between them have a micro-batch of one, uneven tails, every recompute policy, and all, some or no
/// activations kept.
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

/// A step for one split, its weights filled.
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

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// No difference is no error, whatever the scale; what is not a number is an error beyond all bounds.
fn relative(difference: f64, scale: f64) -> f64 {
    let ratio = difference / scale;
    match difference {
        0.0 => 0.0,
        _ if ratio.is_finite() => ratio,
        _ => f64::MAX,
    }
}

/// The largest error and whose it is.
fn worst(found: &Gradients, reference: &Gradients) -> (f64, String) {
    let tensor_norm = |tensor: &[f32]| norm(tensor.iter().map(|&value| f64::from(value)));
    let all = norm(
        reference
            .tensors
            .iter()
            .map(|(_, tensor)| tensor_norm(tensor)),
    );
    let floor = 1e-3 * all / (reference.tensors.len() as f64).sqrt();
    let mut worst = (0.0, String::new());
    for ((name, found), (_, reference)) in found.tensors.iter().zip(&reference.tensors) {
        let pairs = found.iter().zip(reference);
        let difference = norm(pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
        let error = relative(difference, tensor_norm(reference).max(floor));
        if error > worst.0 {
            worst = (error, name.clone());
        }
    }
    worst
}

/// The reference holds the whole batch at once: nothing that is typed about the split makes it smaller.
fn reference_does_not_fit(error: TrainError) -> TrainError {
    match error {
        TrainError::Plan(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes,
            changes,
        }) => {
            let helps = |change: &Change| {
                change.change.starts_with("--memory") || change.change.starts_with("--effective")
            };
            TrainError::Plan(PlanError::DoesNotFit {
                budget_bytes,
                smallest_bytes,
                changes: changes.into_iter().filter(helps).collect(),
            })
        }
        other => other,
    }
}

/// Compares each split of `batch`, as `task` computes it, with one pass over the whole of it. `progress` hears of every result. Of
/// several processes, each brings the whole batch and computes its share; the certificate is that of the first, the others compare
/// nothing.
pub fn verify(
    setup: &Setup,
    device: &Device,
    batch: &Batch,
    splits: &[Split],
    task: Arc<dyn Task>,
    mut progress: impl FnMut(&SplitResult),
) -> Result<Certificate, TrainError> {
    let effective_batch = batch.num_samples;
    let processes = processes_of(device.group());
    // One process computes the reference, and compares.
    let reference = if processes.rank > 0 {
        None
    } else {
        let config = StepConfig {
            task: setup.step.task.as_reference(),
            // What is certified is the split; that gradients are rounded was asked for.
            gradients: GradientFormat::F32,
            processes: Processes::default(),
            ..setup.step.clone()
        };
        let whole = Split {
            batch_size: effective_batch,
            recompute: Recompute::None,
            kept_micro_batches: 1,
        };
        let (mut step, _) = split_step(setup, device, &config, effective_batch, whole)
            .map_err(reference_does_not_fit)?;
        Some(gradients(&mut step, device, &config, batch)?)
    };
    let config = StepConfig {
        task,
        gradients: GradientFormat::F32,
        processes,
        ..setup.step.clone()
    };
    let own = batch.part(processes.share(effective_batch));
    let most_own = effective_batch.div_ceil(processes.count);
    let mut results: Vec<SplitResult> = Vec::new();
    for &split in splits {
        let (mut step, gradient_accumulation) =
            split_step(setup, device, &config, most_own, split)?;
        let found = gradients(&mut step, device, &config, &own)?;
        let reference = reference.as_ref().unwrap_or(&found);
        let (max_relative_error, worst_parameter) = worst(&found, reference);
        let result = SplitResult {
            split,
            gradient_accumulation,
            max_relative_error,
            worst_parameter,
            loss_difference: relative((found.loss - reference.loss).abs(), reference.loss.abs()),
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
    let arithmetic = config.arithmetic;
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
