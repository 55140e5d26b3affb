//! One optimizer step, top to bottom.
//!
//! ```text
//! begin
//! features of the micro-batches without a slot      first pass
//! features of the micro-batches with a slot         first pass, activations kept
//! loss over all features, and their gradients
//! pull back those with a slot                       last in, first out
//! pull back the others                              forward again
//! update                                            the commit point
//! ```

use std::collections::HashMap;

use holdall_device::cpu::{self, Arena, Cpu};
use holdall_graph::Parameter;
use holdall_plan::{Place, Program, Programs, StepPlan};

use crate::batch::{Batch, Pixels};
use crate::encoder::Encoder;
use crate::error::TrainError;
use crate::optimizer::Moment;
use crate::scaler::Gradients;
use crate::step_graph::{CONTRASTIVE, LABEL, Reach, StepConfig, write_step};

/// A loss as sum and count; whoever wants the mean divides, once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSum {
    /// Over all samples that count.
    pub sum: f64,
    /// What they count together: samples, or their class weights.
    pub count: f64,
}

impl LossSum {
    /// The mean; zero where nothing counted.
    pub fn mean(&self) -> f64 {
        if self.count == 0.0 {
            0.0
        } else {
            self.sum / self.count
        }
    }
}

/// What a step tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Over all pairs of the effective batch.
    pub contrastive: LossSum,
    /// Over the labelled samples.
    pub label: LossSum,
    /// The weighted mean losses together.
    pub loss: f64,
    /// Norm of all gradients, before clipping.
    pub gradient_norm: f64,
    /// Whether the update was made.
    pub gradients: Gradients,
}

/// Picks a program.
type Phase = fn(&Programs) -> &Program;

/// A planned step with its memory.
pub struct Step {
    config: StepConfig,
    reach: Reach,
    plan: StepPlan,
    batch_size: usize,
    accumulation: usize,
    arena: Arena,
    /// The micro-batch whose inputs are in the arena.
    loaded: Option<usize>,
}

impl Step {
    /// Reserves the arena. `plan` must come from the same config, batch size and accumulation.
    pub fn new(
        config: StepConfig,
        plan: StepPlan,
        batch_size: usize,
        accumulation: usize,
    ) -> Result<Step, TrainError> {
        let reach = write_step(&config, batch_size, accumulation).reach;
        cpu::give_back_freed();
        let arena = Arena::new(plan.arena_bytes)?;
        Ok(Step {
            config,
            reach,
            plan,
            batch_size,
            accumulation,
            arena,
            loaded: None,
        })
    }

    /// What is trained.
    pub fn config(&self) -> &StepConfig {
        &self.config
    }

    /// The plan at work.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Size of the arena, as reserved.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Every parameter's name and extent, in the order of the graph.
    pub fn parameters(&self) -> &[Parameter] {
        self.plan.graph.parameters()
    }

    /// Fills every parameter: `fill` gets its name and its elements.
    pub fn set_weights<E>(
        &mut self,
        fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        fill_parameters(&self.plan, &mut self.arena, fill)
    }

    /// A parameter's elements.
    pub fn weight(&self, parameter: &Parameter) -> &[f32] {
        self.arena.read(&self.plan.place(parameter.value), 0)
    }

    /// A parameter's gradient, as the last [`Step::gradients`] left it; `None` where it is frozen.
    pub fn gradient(&self, parameter: &Parameter) -> Option<&[f32]> {
        let value = self.plan.graph.parameter_gradient(parameter)?;
        Some(self.arena.read(&self.plan.place_of(&value), 0))
    }

    /// Features of the last batch: pictures, captions; rows as in the batch.
    pub fn features(&self) -> [&[f32]; 2] {
        self.reach
            .features
            .map(|value| self.arena.read(&self.plan.place(value), 0))
    }

    /// Gradients of `batch`, without an update.
    pub fn gradients(&mut self, cpu: &Cpu, batch: &Batch, loss_scale: f64) -> (LossSum, LossSum) {
        assert!(
            batch.num_samples <= self.batch_size * self.accumulation && batch.num_samples > 0,
            "{} samples for {} micro-batches of {}",
            batch.num_samples,
            self.accumulation,
            self.batch_size
        );
        self.loaded = None;
        self.load_whole(batch, loss_scale);
        cpu.scope(|| self.run_passes(cpu, batch));
        let sums: &[f32] = self.arena.read(&self.plan.place(self.reach.sums), 0);
        let loss = |index: usize, count: f64| LossSum {
            sum: f64::from(sums[index]),
            count,
        };
        let labelled = match self.config.num_labels {
            Some(_) => self.label_count(batch),
            None => 0.0,
        };
        (
            loss(CONTRASTIVE, batch.num_samples as f64),
            loss(LABEL, labelled),
        )
    }

    /// Gradients of `batch`, and the update.
    pub fn run(&mut self, cpu: &Cpu, batch: &Batch, moment: &Moment<'_>) -> StepReport {
        let (contrastive, label) = self.gradients(cpu, batch, moment.loss_scale);
        let place = self.plan.place(self.reach.schedule);
        let schedule = self.arena.write(&place, 0);
        self.config.optimizer.write_schedule(moment, schedule);
        cpu.run(&self.plan.programs.update, &mut self.arena, 0, 0);
        let norm: &[f32] = self.arena.read(&self.plan.place(self.reach.norm), 0);
        StepReport {
            contrastive,
            label,
            loss: self.config.contrastive_weight * contrastive.mean()
                + self.config.label_weight * label.mean(),
            gradient_norm: f64::from(norm[0]) / moment.loss_scale,
            gradients: if norm[1] == 1.0 {
                Gradients::Finite
            } else {
                Gradients::Overflowed
            },
        }
    }

    fn run_passes(&mut self, cpu: &Cpu, batch: &Batch) {
        for (phase, micro, slot) in self.schedule() {
            self.load(batch, micro);
            let program = phase(&self.plan.programs);
            cpu.run(program, &mut self.arena, micro, slot);
        }
    }

    /// Programs in the order in which they run, each with its micro-batch and slot.
    fn schedule(&self) -> impl Iterator<Item = (Phase, usize, usize)> + use<> {
        let (kept, all) = (self.plan.kept, self.accumulation);
        let first_pass = if self.plan.coupled { all } else { kept };
        let once = |phase: Phase| std::iter::once((phase, 0, 0));
        let begin = once(|programs| &programs.begin);
        let features = (kept..first_pass)
            .map(|micro| -> (Phase, usize, usize) { (|programs| &programs.features, micro, 0) });
        let kept_features = (0..kept).map(|micro| -> (Phase, usize, usize) {
            (|programs| &programs.kept_features, micro, micro)
        });
        let loss = once(|programs| &programs.loss);
        let kept_pull_back = (0..kept).rev().map(|micro| -> (Phase, usize, usize) {
            (|programs| &programs.kept_pull_back, micro, micro)
        });
        let pull_back = (kept..all)
            .map(|micro| -> (Phase, usize, usize) { (|programs| &programs.pull_back, micro, 0) });
        begin
            .chain(features)
            .chain(kept_features)
            .chain(loss)
            .chain(kept_pull_back)
            .chain(pull_back)
    }

    /// One step without an update, timed: (operation, seconds, runs), slowest first.
    pub fn profile(&mut self, cpu: &Cpu, batch: &Batch) -> Vec<(&'static str, f64, usize)> {
        self.loaded = None;
        self.load_whole(batch, 1.0);
        let mut times: HashMap<&'static str, (f64, usize)> = HashMap::new();
        for (phase, micro, slot) in self.schedule() {
            self.load(batch, micro);
            let program = phase(&self.plan.programs);
            cpu.profile(program, &mut self.arena, micro, slot, |name, seconds| {
                let entry = times.entry(name).or_default();
                entry.0 += seconds;
                entry.1 += 1;
            });
        }
        let mut times: Vec<_> = times
            .into_iter()
            .map(|(name, (s, n))| (name, s, n))
            .collect();
        times.sort_by(|a, b| b.1.total_cmp(&a.1));
        times
    }

    /// What the labelled samples of a batch count together.
    fn label_count(&self, batch: &Batch) -> f64 {
        let weights = batch.labels.iter();
        weights
            .map(|&label| f64::from(self.config.class_weight(label)))
            .sum()
    }

    /// The evaluation programs, in the arena of the step.
    pub fn encoder(&mut self) -> Encoder<'_> {
        self.loaded = None;
        Encoder {
            model: &self.config.model,
            plan: &self.plan,
            arena: &mut self.arena,
            reach: self.reach.encoder,
        }
    }

    /// Every trainable parameter with its first and second moment, in the order of the graph.
    pub fn moments(&self) -> impl Iterator<Item = (&Parameter, [&[f32]; 2])> {
        let trainable = self.parameters().iter().filter(|one| one.trainable);
        trainable.zip(&self.reach.moments).map(|(parameter, pair)| {
            let read = |value| -> &[f32] { self.arena.read(&self.plan.place(value), 0) };
            (parameter, pair.map(read))
        })
    }

    /// Fills every parameter's optimizer state: `fill` gets the name, which moment (0 or 1), and the elements.
    pub fn set_moments<E>(
        &mut self,
        mut fill: impl FnMut(&str, usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let parameters = self.plan.graph.parameters().iter();
        let trainable = parameters.filter(|parameter| parameter.trainable);
        for (parameter, pair) in trainable.zip(&self.reach.moments) {
            for (moment, &value) in pair.iter().enumerate() {
                let place = self.plan.place(value);
                fill(&parameter.name, moment, self.arena.write(&place, 0))?;
            }
        }
        Ok(())
    }

    /// What the whole step reads: weights of rows, labels, seeds.
    fn load_whole(&mut self, batch: &Batch, loss_scale: f64) {
        let (num_samples, plan, reach) = (batch.num_samples, &self.plan, &self.reach);
        let weights: &mut [f32] = self.arena.write(&plan.place(reach.weights), 0);
        weights[..num_samples].fill(1.0);
        weights[num_samples..].fill(0.0);
        let labels: &mut [i64] = self.arena.write(&plan.place(reach.labels), 0);
        labels[..num_samples].copy_from_slice(&batch.labels);
        labels[num_samples..].fill(crate::batch::IGNORED);
        let label_count = self.label_count(batch);
        let label_weights: &mut [f32] = self.arena.write(&self.plan.place(reach.label_weights), 0);
        for (to, &label) in label_weights.iter_mut().zip(&batch.labels) {
            *to = self.config.class_weight(label);
        }
        label_weights[num_samples..].fill(0.0);
        let seed = |weight: f64, count: f64| match count {
            0.0 => 0.0,
            count => (weight * loss_scale / count) as f32,
        };
        let seeds: &mut [f32] = self.arena.write(&plan.place(reach.seeds), 0);
        seeds[CONTRASTIVE] = seed(self.config.contrastive_weight, num_samples as f64);
        seeds[LABEL] = seed(self.config.label_weight, label_count);
    }

    /// Puts a micro-batch's inputs into the arena. A tail is filled up with copies of the first sample: finite
    /// numbers, whose weight is zero.
    fn load(&mut self, batch: &Batch, micro: usize) {
        if self.loaded == Some(micro) {
            return;
        }
        self.loaded = Some(micro);
        let rows = Micro {
            start: micro * self.batch_size,
            num_samples: batch.num_samples,
        };
        let inputs = self.reach.inputs;
        let place = |value| -> Place { self.plan.place(value) };
        match &batch.pixels {
            Pixels::Bytes(bytes) => rows.copy(bytes, self.arena.write(&place(inputs.pixels), 0)),
            Pixels::Floats(floats) => rows.copy(floats, self.arena.write(&place(inputs.pixels), 0)),
        }
        rows.copy(&batch.ids, self.arena.write(&place(inputs.ids), 0));
        rows.copy(&batch.ends, self.arena.write(&place(inputs.end), 0));
        let lengths: &mut [i64] = self.arena.write(&place(inputs.lengths), 0);
        rows.copy(&batch.ends, lengths);
        for length in lengths {
            *length += 1;
        }
    }

    /// Copies of all parameters by name: for comparing and saving.
    pub fn named_weights(&self) -> HashMap<String, Vec<f32>> {
        self.parameters()
            .iter()
            .map(|parameter| (parameter.name.clone(), self.weight(parameter).to_vec()))
            .collect()
    }
}

/// Fills every parameter of a plan in its arena: `fill` gets the name and the elements.
pub(crate) fn fill_parameters<E>(
    plan: &StepPlan,
    arena: &mut Arena,
    mut fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    for parameter in plan.graph.parameters() {
        let place = plan.place(parameter.value);
        fill(&parameter.name, arena.write(&place, 0))?;
    }
    Ok(())
}

/// Which samples a micro-batch has.
struct Micro {
    start: usize,
    num_samples: usize,
}

impl Micro {
    fn copy<T: Copy>(&self, from: &[T], to: &mut [T]) {
        let each = from.len() / self.num_samples;
        let start = (self.start * each).min(from.len());
        let there = to.len().min(from.len() - start);
        to[..there].copy_from_slice(&from[start..start + there]);
        for padding in to[there..].chunks_mut(each) {
            padding.copy_from_slice(&from[..each]);
        }
    }
}
