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

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;

use holdall_device::{Device, DeviceError, Machine};
use holdall_graph::{Parameter, ValueId};
use holdall_models::clip;
use holdall_models::folder::Values;
use holdall_plan::{Phase, Place, StepPlan, Variant};

use crate::batch::{Batch, Pixels};
use crate::encoder::Encoder;
use crate::error::TrainError;
use crate::operations::Times;
use crate::optimizer::StepScalars;
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

/// What the sums of a launched step are divided by.
struct Launched {
    samples: f64,
    labelled: f64,
    loss_scale: f64,
}

/// A planned step with its memory.
pub struct Step {
    config: StepConfig,
    reach: Reach,
    plan: StepPlan,
    batch_size: usize,
    accumulation: usize,
    machine: Machine,
    /// The micro-batch whose inputs are in place.
    loaded: Option<usize>,
    /// It is of the step to come.
    preloaded: bool,
    launched: Option<Launched>,
    sorting: Option<Sorting>,
}

/// Token ids and ends of a micro-batch, for devices that need the order of its ids.
struct Sorting {
    order: Place,
    ids: Vec<i64>,
    ends: Vec<i64>,
}

/// A tensor that outlives programs, read when it is asked for: from a GPU, that is a copy.
pub struct Stored<'a> {
    machine: &'a Machine,
    place: Place,
}

impl<'a> Stored<'a> {
    /// Its elements.
    pub fn read(&self) -> Result<Cow<'a, [f32]>, DeviceError> {
        self.machine.read(&self.place)
    }
}

impl Values for Stored<'_> {
    fn num_values(&self) -> usize {
        self.place.shape.num_elements()
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        self.read().map_err(io::Error::other)
    }
}

impl Step {
    /// Reserves the arena. `plan` must come from the same config and variant.
    pub fn new(
        device: &Device,
        config: StepConfig,
        plan: StepPlan,
        variant: &Variant,
    ) -> Result<Step, TrainError> {
        let reach = write_step(&config, variant).reach;
        let machine = Machine::new(device, &plan, config.arithmetic)?;
        let sorting = reach.inputs.order.map(|order| {
            let order = plan.place(order);
            Sorting {
                ids: vec![0; order.shape.num_elements()],
                ends: vec![0; variant.batch_size],
                order,
            }
        });
        Ok(Step {
            config,
            reach,
            plan,
            batch_size: variant.batch_size,
            accumulation: variant.gradient_accumulation,
            machine,
            loaded: None,
            preloaded: false,
            launched: None,
            sorting,
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
        self.machine.arena_bytes()
    }

    /// Every parameter's name and extent, in the order of the graph.
    pub fn parameters(&self) -> &[Parameter] {
        self.plan.graph.parameters()
    }

    /// Fills every parameter: `fill` gets its name and its elements.
    pub fn set_weights<E>(
        &mut self,
        device: &Device,
        fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        fill_parameters(device, &self.plan, &mut self.machine, fill)
    }

    /// A parameter's elements.
    pub fn weight(&self, parameter: &Parameter) -> Result<Cow<'_, [f32]>, DeviceError> {
        self.stored_weight(parameter).read()
    }

    /// The same, not read yet.
    pub fn stored_weight(&self, parameter: &Parameter) -> Stored<'_> {
        self.stored(parameter.value)
    }

    /// A parameter's gradient, as the last [`Step::gradients`] left it; `None` where it is frozen.
    pub fn gradient(&self, parameter: &Parameter) -> Result<Option<Cow<'_, [f32]>>, DeviceError> {
        let value = self.plan.graph.parameter_gradient(parameter);
        value
            .map(|value| self.machine.read(&self.plan.place_of(&value)))
            .transpose()
    }

    /// Features of the last batch: pictures, captions; rows as in the batch.
    pub fn features(&self) -> Result<[Cow<'_, [f32]>; 2], DeviceError> {
        let [pictures, captions] = self.reach.features.map(|value| self.stored(value).read());
        Ok([pictures?, captions?])
    }

    fn stored(&self, value: ValueId) -> Stored<'_> {
        Stored {
            machine: &self.machine,
            place: self.plan.place(value),
        }
    }

    /// Gradients of `batch`, without an update.
    pub fn gradients(
        &mut self,
        device: &Device,
        batch: &Batch,
        loss_scale: f64,
    ) -> Result<(LossSum, LossSum), DeviceError> {
        self.begin(batch, loss_scale);
        on_its_threads(device, || self.run_passes(device, batch));
        let launched = self.wait()?;
        self.losses(&launched)
    }

    /// Gradients of `batch`, and the update.
    pub fn run(
        &mut self,
        device: &Device,
        batch: &Batch,
        moment: &StepScalars<'_>,
    ) -> Result<StepReport, DeviceError> {
        self.launch(device, batch, moment);
        self.finish()
    }

    /// Loads `batch` and runs every program; on a GPU, returns before they are done.
    pub fn launch(&mut self, device: &Device, batch: &Batch, moment: &StepScalars<'_>) {
        self.begin(batch, moment.loss_scale);
        let (place, optimizer) = (self.plan.place(self.reach.schedule), &self.config.optimizer);
        self.machine.input(&place, |schedule: &mut [f32]| {
            optimizer.write_schedule(moment, schedule);
        });
        on_its_threads(device, || {
            self.run_passes(device, batch);
            self.machine.run(device, &self.plan, Phase::Update, 0, 0);
        });
    }

    /// Waits for what [`Step::launch`] began, and tells what became of it.
    pub fn finish(&mut self) -> Result<StepReport, DeviceError> {
        let launched = self.wait()?;
        let (contrastive, label) = self.losses(&launched)?;
        let norm = self.stored(self.reach.norm).read()?;
        Ok(StepReport {
            contrastive,
            label,
            loss: self.config.contrastive_weight * contrastive.mean()
                + self.config.label_weight * label.mean(),
            gradient_norm: f64::from(norm[0]) / launched.loss_scale,
            gradients: if norm[1] == 1.0 {
                Gradients::Finite
            } else {
                Gradients::Overflowed
            },
        })
    }

    /// Lets the first inputs of the next step's batch travel to a GPU that still computes this one. The next launch must
    /// be of the same batch.
    pub fn preload(&mut self, device: &Device, batch: &Batch) {
        if !device.is_gpu() {
            return;
        }
        let first = self
            .schedule()
            .find(|(phase, ..)| !matches!(phase, Phase::Begin | Phase::Loss));
        let (phase, micro, _) = first.expect("a step has a micro-batch");
        self.loaded = None;
        self.load(batch, phase, micro);
        self.machine.send();
        self.preloaded = true;
    }

    fn begin(&mut self, batch: &Batch, loss_scale: f64) {
        assert!(
            batch.num_samples <= self.batch_size * self.accumulation && batch.num_samples > 0,
            "{} samples for {} micro-batches of {}",
            batch.num_samples,
            self.accumulation,
            self.batch_size
        );
        let vocabulary = 0..self.config.model.text.vocab_size as i64;
        assert!(
            batch.ids.iter().all(|id| vocabulary.contains(id)),
            "token ids are those of the model's vocabulary"
        );
        if !std::mem::take(&mut self.preloaded) {
            self.loaded = None;
        }
        self.load_whole(batch, loss_scale);
        self.launched = Some(Launched {
            samples: batch.num_samples as f64,
            labelled: match self.config.num_labels {
                Some(_) => self.label_count(batch),
                None => 0.0,
            },
            loss_scale,
        });
    }

    /// The one synchronisation of a step.
    fn wait(&mut self) -> Result<Launched, DeviceError> {
        self.machine.wait()?;
        Ok(self
            .launched
            .take()
            .expect("a step is launched before it is finished"))
    }

    fn losses(&self, launched: &Launched) -> Result<(LossSum, LossSum), DeviceError> {
        let sums = self.stored(self.reach.sums).read()?;
        let loss = |index: usize, count: f64| LossSum {
            sum: f64::from(sums[index]),
            count,
        };
        Ok((
            loss(CONTRASTIVE, launched.samples),
            loss(LABEL, launched.labelled),
        ))
    }

    fn run_passes(&mut self, device: &Device, batch: &Batch) {
        for (phase, micro, slot) in self.schedule() {
            self.load(batch, phase, micro);
            self.machine.run(device, &self.plan, phase, micro, slot);
        }
    }

    /// Programs in the order in which they run, each with its micro-batch and slot.
    fn schedule(&self) -> impl Iterator<Item = (Phase, usize, usize)> + use<> {
        let (kept, all) = (self.plan.kept, self.accumulation);
        let first_pass = if self.plan.coupled { all } else { kept };
        let once = |phase: Phase| std::iter::once((phase, 0, 0));
        let features = (kept..first_pass).map(|micro| (Phase::Features, micro, 0));
        let kept_features = (0..kept).map(|micro| (Phase::KeptFeatures, micro, micro));
        let kept_pull_back = (0..kept).rev();
        let kept_pull_back = kept_pull_back.map(|micro| (Phase::KeptPullBack, micro, micro));
        let pull_back = (kept..all).map(|micro| (Phase::PullBack, micro, 0));
        once(Phase::Begin)
            .chain(features)
            .chain(kept_features)
            .chain(once(Phase::Loss))
            .chain(kept_pull_back)
            .chain(pull_back)
    }

    /// One step without an update, timed: (operation, seconds, runs), slowest first.
    pub fn profile(
        &mut self,
        device: &Device,
        batch: &Batch,
    ) -> Result<Vec<(&'static str, f64, usize)>, DeviceError> {
        (self.loaded, self.preloaded) = (None, false);
        self.load_whole(batch, 1.0);
        let mut times: HashMap<&'static str, (f64, usize)> = HashMap::new();
        for (phase, micro, slot) in self.schedule() {
            self.load(batch, phase, micro);
            let mut told = |name, seconds| {
                let entry = times.entry(name).or_default();
                entry.0 += seconds;
                entry.1 += 1;
            };
            self.machine
                .profile(device, &self.plan, phase, [micro, slot], &mut told)?;
        }
        let mut times: Vec<_> = times
            .into_iter()
            .map(|(name, (s, n))| (name, s, n))
            .collect();
        times.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(times)
    }

    /// One step without an update: seconds of every instruction, all runs of its program together. The next step computes
    /// what it would have.
    pub(crate) fn time_instructions(
        &mut self,
        device: &Device,
        batch: &Batch,
    ) -> Result<Times, DeviceError> {
        (self.loaded, self.preloaded) = (None, false);
        self.load_whole(batch, 1.0);
        let mut times = Times::new();
        for (phase, micro, slot) in self.schedule() {
            self.load(batch, phase, micro);
            let instructions = self.plan.programs[phase].instructions.len();
            let of_phase = times
                .entry(phase)
                .or_insert_with(|| vec![0.0; instructions]);
            let mut next = of_phase.iter_mut();
            let mut told = |_, seconds| {
                if let Some(time) = next.next() {
                    *time += seconds;
                }
            };
            self.machine
                .profile(device, &self.plan, phase, [micro, slot], &mut told)?;
        }
        Ok(times)
    }

    /// One step without an update, program by program: (program, seconds, runs). The host waits for each.
    pub fn profile_programs(
        &mut self,
        device: &Device,
        batch: &Batch,
    ) -> Result<Vec<(&'static str, f64, usize)>, DeviceError> {
        (self.loaded, self.preloaded) = (None, false);
        self.load_whole(batch, 1.0);
        let mut times = Phase::ALL.map(|phase| (phase.name(), 0.0, 0));
        for (phase, micro, slot) in self.schedule() {
            self.load(batch, phase, micro);
            self.machine.wait()?;
            let started = std::time::Instant::now();
            self.machine.run(device, &self.plan, phase, micro, slot);
            self.machine.wait()?;
            let entry = &mut times[phase as usize];
            entry.1 += started.elapsed().as_secs_f64();
            entry.2 += 1;
        }
        Ok(times.into_iter().filter(|(_, _, runs)| *runs > 0).collect())
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
        (self.loaded, self.preloaded) = (None, false);
        Encoder {
            model: &self.config.model,
            plan: &self.plan,
            machine: &mut self.machine,
            reach: self.reach.encoder,
        }
    }

    /// Every trainable parameter with its first and second moment, not read yet, in the order of the graph.
    pub fn moments(&self) -> impl Iterator<Item = (&Parameter, [Stored<'_>; 2])> {
        let trainable = self.parameters().iter().filter(|one| one.trainable);
        let moments = self.reach.moments.iter();
        trainable.zip(moments.map(|pair| pair.map(|value| self.stored(value))))
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
                self.machine
                    .write(&place, |values| fill(&parameter.name, moment, values))?;
            }
        }
        Ok(())
    }

    /// What the whole step reads: weights of rows, labels, seeds.
    fn load_whole(&mut self, batch: &Batch, loss_scale: f64) {
        let label_count = self.label_count(batch);
        let (num_samples, config) = (batch.num_samples, &self.config);
        let (machine, reach) = (&mut self.machine, &self.reach);
        let place = |value| self.plan.place(value);
        machine.input(&place(reach.weights), |weights: &mut [f32]| {
            weights[..num_samples].fill(1.0);
            weights[num_samples..].fill(0.0);
        });
        machine.input(&place(reach.labels), |labels: &mut [i64]| {
            labels[..num_samples].copy_from_slice(&batch.labels);
            labels[num_samples..].fill(crate::batch::IGNORED);
        });
        machine.input(&place(reach.label_weights), |weights: &mut [f32]| {
            for (to, &label) in weights.iter_mut().zip(&batch.labels) {
                *to = config.class_weight(label);
            }
            weights[num_samples..].fill(0.0);
        });
        let seed = |weight: f64, count: f64| match count {
            0.0 => 0.0,
            count => (weight * loss_scale / count) as f32,
        };
        machine.input(&place(reach.seeds), |seeds: &mut [f32]| {
            seeds[CONTRASTIVE] = seed(config.contrastive_weight, num_samples as f64);
            seeds[LABEL] = seed(config.label_weight, label_count);
        });
    }

    /// Brings a micro-batch's inputs into place. A tail is filled up with copies of the first sample: finite
    /// numbers, whose weight is zero.
    fn load(&mut self, batch: &Batch, phase: Phase, micro: usize) {
        let is_once = matches!(phase, Phase::Begin | Phase::Loss);
        if is_once || self.loaded == Some(micro) {
            return;
        }
        self.loaded = Some(micro);
        let rows = Micro {
            start: micro * self.batch_size,
            num_samples: batch.num_samples,
        };
        let (machine, inputs) = (&mut self.machine, self.reach.inputs);
        let place = |value| self.plan.place(value);
        match &batch.pixels {
            Pixels::Bytes(bytes) => {
                machine.input(&place(inputs.pixels), |to: &mut [u8]| rows.copy(bytes, to));
            }
            Pixels::Rows(all) => {
                machine.input_rows(&place(inputs.pixels), rows.of(all, self.batch_size))
            }
            Pixels::Floats(floats) => {
                machine.input(&place(inputs.pixels), |to: &mut [f32]| {
                    rows.copy(floats, to)
                });
            }
        }
        machine.input(&place(inputs.ids), |to| rows.copy(&batch.ids, to));
        machine.input(&place(inputs.end), |to| rows.copy(&batch.ends, to));
        machine.input(&place(inputs.lengths), |lengths| {
            rows.copy(&batch.ends, lengths);
            for length in lengths {
                *length += 1;
            }
        });
        if let Some(Sorting { order, ids, ends }) = &mut self.sorting {
            rows.copy(&batch.ids, ids);
            rows.copy(&batch.ends, ends);
            machine.input(order, |to| {
                clip::sort_places(ids, ends, batch.num_tokens, to);
            });
        }
    }

    /// Copies of all parameters by name: for comparing and saving.
    pub fn named_weights(&self) -> Result<HashMap<String, Vec<f32>>, DeviceError> {
        let named = self.parameters().iter().map(|parameter| {
            let weight = self.weight(parameter)?;
            Ok((parameter.name.clone(), weight.into_owned()))
        });
        named.collect()
    }
}

/// Runs `work` on the pool where that is what computes: programs that run inside do not pass through its queue again, so
/// they allocate nothing. A GPU is driven from where we are.
pub(crate) fn on_its_threads<R: Send>(device: &Device, work: impl FnOnce() -> R + Send) -> R {
    match device.is_gpu() {
        true => work(),
        false => device.cpu().scope(work),
    }
}

/// Fills every parameter of a plan, then their copies in the compute format: `fill` gets the name and the elements.
pub(crate) fn fill_parameters<E>(
    device: &Device,
    plan: &StepPlan,
    machine: &mut Machine,
    mut fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    for parameter in plan.graph.parameters() {
        let place = plan.place(parameter.value);
        machine.write(&place, |values| fill(&parameter.name, values))?;
    }
    if !plan.programs.refresh.instructions.is_empty() {
        machine.run(device, plan, Phase::Refresh, 0, 0);
    }
    Ok(())
}

/// Which samples a micro-batch has.
struct Micro {
    start: usize,
    num_samples: usize,
}

impl Micro {
    /// The rows of a micro-batch of `count`, filled up with the first of all.
    fn of<'a, T>(&self, all: &'a [T], count: usize) -> impl Iterator<Item = &'a T> {
        let there = &all[self.start.min(all.len())..];
        let padding = std::iter::repeat(&all[0]);
        there.iter().chain(padding).take(count)
    }

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
