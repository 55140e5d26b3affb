//! The loop; `evaluation`, `saving` and `finish` are what it comes to now and then.
//!
//! ```text
//! for each step:
//!     bring the batch           a function of (seed, epoch, sample); behind a GPU, read while the step before runs
//!     run the step              forward, loss, backward, update
//!     write a line              metrics.jsonl
//!     evaluate, if it is due    the best model goes to checkpoints/best-STEP, then the lines are written
//!     save, if it is due        checkpoints/last.safetensors, in one rename
//! finish                        model/, then summary.json, which says which checkpoint it belongs to
//! ```
//!
//! Files first, state after: when a write fails, the state is still that before it, and what was written is written again.
//!
//! A stop is heeded between the micro-batches of a step and between the batches of an evaluation: the state is saved and the run
//! can go on. A step that was stopped before its update has not happened, and is done again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdall_data::loader::Skipped;
use holdall_telemetry::memory_log::Phase;

use crate::checkpoint::{Checkpoints, Clock, Next, State};
use crate::config::Subset;
use crate::diverged::{self, StepNorm};
use crate::error::TrainError;
use crate::journal::Journal;
use crate::operations::{operations_json, tensors_json};
use crate::optimizer::{Averaging, StepScalars};
use crate::picture_changes::{compare_pictures, record_pictures};
use crate::planned_run::{PlanReport, PlannedRun};
use crate::progress::Passes;
use crate::recorder::{Promise, Sampler};
use crate::report::{EpochReport, Event, LossLine, MemoryUse, Outcome, StepLine};
use crate::requests::Requests;
use crate::run_folder::{RunFolder, before_it_began};
use crate::scaler::LossScaler;
use crate::schedule::LearningRates;
use crate::scores::Direction;
use crate::sealed_config::seal;
use crate::skipped::{SkippedFile, refused};
use crate::step::{Advance, Step, StepReport};
use crate::task::{Loss, Unfinished, nothing_readable};

mod digest;
mod evaluation;
mod finish;
mod saving;

use digest::{data_digest, digest};
use evaluation::put_back_best_files;

pub use finish::End;

/// The step whose operations are timed: caches are warm by then.
const TIMED_STEP: u64 = 3;
/// Timing takes as long as a step does: shorter runs are spared it.
const LEAST_STEPS_TO_TIME: u64 = 20;

/// How often a step tells where it is.
const BETWEEN_PROGRESS: Duration = Duration::from_millis(500);
/// Steps that will take longer than this say so as they begin.
const LONG_STEP_SECONDS: f64 = 3.0;

/// A run with its memory reserved.
pub struct Trainer {
    planned: PlannedRun,
    folder: RunFolder,
    step: Step,
    journal: Journal,
    state: State,
    /// Whether weights, state and journal are of the same step: what may be saved.
    is_between_steps: bool,
    checkpoints: Checkpoints,
    rates: LearningRates,
    skipped: SkippedFile,
    best_metric: (String, Direction),
    losses: Vec<Loss>,
    /// What a step runs, and how long that takes.
    passes: Passes,
    /// What the checkpoint on disk holds.
    saved: Option<(u64, Next)>,
    /// Of the last step of this process.
    last_norm: Option<StepNorm>,
    /// Of this process.
    process_clock: Clock,
    resumed_at: Instant,
    /// Seconds that earlier processes spent on the run.
    seconds_before: f64,
    /// Process bytes that the plan promised, and the arena's.
    planned_bytes: [u64; 2],
    /// Looks at the memory as long as this is there.
    _sampler: Sampler,
}

impl Trainer {
    /// Reserves the arena, fills it from the weights or the checkpoint, and writes the config and the plan. `tell` hears
    /// of a plan that had to change because memory has gone.
    pub fn begin(
        mut planned: PlannedRun,
        folder: RunFolder,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Trainer, TrainError> {
        let task = &planned.prepared.setup.step.task;
        let best_metric = task.best_metric(planned.config.train.best_metric.as_deref())?;
        let losses = task.losses();
        let digest = format!("{:016x}", data_digest(&planned));
        if let Some(algorithms) = planned
            .checkpoint
            .as_ref()
            .and_then(|checkpoint| checkpoint.state.algorithms.as_ref())
        {
            planned.device.prefer_algorithms(algorithms);
        }
        let is_resumed = planned.is_resumed();
        planned.recorder.enter(Phase::Warmup);
        let mut step = planned.reserve(tell)?;
        let report = PlanReport::new(
            &planned.plan,
            &planned.device,
            planned.prepared.setup.budget_bytes,
        );
        let plan_json = serde_json::to_string_pretty(&report).expect("a plan is plain data");
        let planned_bytes = [
            planned.plan.step.process_bytes,
            planned.plan.step.arena_bytes,
        ];
        planned.recorder.promise(Promise {
            planned_bytes: planned_bytes[0],
            arena_bytes: step.arena_bytes(),
            batch_size: planned.split.batch_size,
            budget_bytes: planned.prepared.setup.budget_bytes,
        });
        let mut checkpoints = Checkpoints::new(&folder);
        let mut saved = None;
        let state = match planned.checkpoint.take() {
            Some(checkpoint) => {
                if checkpoint.state.data_digest != digest {
                    return Err(TrainError::Config(format!(
                        "{}: the rows, or the model's preprocessor_config.json, are not those that the run began with\n\
                         hint: restore the files to go on, or begin a new run",
                        planned.prepared.csv.display()
                    )));
                }
                checkpoint.restore(&planned.device, &mut step)?;
                checkpoints = checkpoint.checkpoints();
                saved = Some((checkpoint.state.step, checkpoint.state.next));
                checkpoint.state
            }
            None => {
                planned.prepared.setup.fill(&planned.device, &mut step)?;
                let scaler = LossScaler::suiting(step.config().arithmetic);
                let mut state = State::new(scaler, planned.split, digest);
                state.algorithms = planned.device.algorithms();
                match step.averaging() {
                    Averaging::None => {}
                    Averaging::OverSteps { .. } => step.restart_averages(&planned.device)?,
                    Averaging::WithStart { .. } => {
                        state.starting_weights = Some(step.checksum_of_weights()?);
                    }
                }
                state
            }
        };
        let mut skipped = SkippedFile::open(&folder.skipped(), state.skipped.as_ref())?;
        let data = &planned.config.data;
        if is_resumed {
            compare_pictures(&folder, &planned.prepared, data, &skipped, tell)?;
        }
        let steps = planned.steps_per_epoch();
        if state.step > planned.total_steps() {
            let (key, asked, done) = match planned.config.train.max_steps {
                Some(asked) => ("max_steps", asked, state.step),
                None => (
                    "epochs",
                    planned.config.train.epochs,
                    state.step.div_ceil(steps),
                ),
            };
            return Err(TrainError::Config(format!(
                "train.{key}: {asked}, expected at least {done}, which are done\nhint: leave it out, or ask for more"
            )));
        }
        let config = folder.write("config.yml", &seal(&planned.config.resolved()));
        config.map_err(|error| match folder.path().join("config.yml").exists() {
            true => error,
            false => before_it_began(error),
        })?;
        if !is_resumed {
            record_pictures(&folder, &planned.prepared, &planned.config.data)?;
        }
        folder.write("plan.json", &plan_json)?;
        folder.write("plan-tensors.json", &tensors_json(&planned.plan.step))?;
        let operations = operations_json(&planned.plan.step.memory_map, &planned.plan.step, None);
        folder.write("operations.json", &operations)?;
        let journal = Journal::open(&folder.journal(), &state.journal)?;
        skipped.add_rows(&planned.prepared.bad_rows)?;
        put_back_best_files(&folder, state.best.as_ref())?;
        let sampler = planned
            .recorder
            .open(folder.path(), state.step, state.step / steps);
        for (subset, samples) in planned.prepared.subsets() {
            let broken = skipped.samples(subset, samples);
            planned.feed.leave_out(samples, broken);
        }
        let rates = LearningRates::new(&planned.config, planned.total_steps() as usize);
        let passes = Passes::new(
            &planned.plan.step,
            &planned.plan.step.memory_map,
            planned.plan.chosen.step_ms / 1e3,
        );
        Ok(Trainer {
            planned,
            folder,
            step,
            journal,
            state,
            is_between_steps: true,
            checkpoints,
            rates,
            skipped,
            best_metric,
            losses,
            passes,
            saved,
            last_norm: None,
            process_clock: Clock::default(),
            resumed_at: Instant::now(),
            seconds_before: 0.0,
            planned_bytes,
            _sampler: sampler,
        })
    }

    /// Writes every number to `tensorboard/` in the run's folder too, in a new file for each process.
    pub fn write_tensorboard(&self) -> Result<(), TrainError> {
        let opened = self.planned.recorder.open_events(self.folder.path());
        opened.map_err(|error| TrainError::Run(error.to_string()))
    }

    /// What it was made from.
    pub fn planned(&self) -> &PlannedRun {
        &self.planned
    }

    /// Optimizer steps done, in earlier processes too.
    pub fn steps_done(&self) -> u64 {
        self.state.step
    }

    /// Runs to the end, or until it is asked to stop.
    pub fn run(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, TrainError> {
        self.planned.feed.begin_waits();
        self.resumed_at = Instant::now();
        self.seconds_before = self.state.clock.all;
        let mut epoch_clock = Clock::default();
        let mut epoch_started = Instant::now();
        let mut first = true;
        while !self.has_ended() {
            if self.state.next == Next::Step {
                if requests.stop.load(Ordering::Relaxed) {
                    return self.interrupted(watch);
                }
                let line = match self.one_step(&mut epoch_clock, requests, watch) {
                    Ok(Some(line)) => line,
                    Ok(None) => return self.interrupted(watch),
                    Err(error) => return Err(self.failed(error, watch)),
                };
                watch(Event::Step(&line));
                self.record_step(&line, watch);
                if std::mem::take(&mut first) {
                    watch(Event::Memory(self.memory()));
                }
                if self.evaluation_is_due() {
                    self.state.next = Next::Evaluate;
                    // An evaluation may take longer than whoever asks will wait.
                    self.save_if_asked(requests, watch)?;
                }
            }
            if self.state.next == Next::Evaluate {
                self.planned.recorder.enter(Phase::Evaluate);
                match self.evaluate_all(requests, watch) {
                    Ok(()) => {
                        self.planned.recorder.enter(Phase::Train);
                    }
                    Err(Unfinished::Stopped) if requests.stop.load(Ordering::Relaxed) => {
                        return self.interrupted(watch);
                    }
                    // Asked to save meanwhile: the evaluation begins again, and is not interrupted for that a second time.
                    Err(Unfinished::Stopped) => {
                        self.save_if_asked(requests, watch)?;
                        continue;
                    }
                    Err(Unfinished::NotFinite(found)) => {
                        return Err(self.diverged(self.state.step, found));
                    }
                    Err(Unfinished::Failed(error)) => return Err(self.failed(*error, watch)),
                }
            }
            let ends = self
                .state
                .step
                .is_multiple_of(self.planned.steps_per_epoch());
            if ends {
                let seconds = epoch_started.elapsed().as_secs_f64();
                self.tell_epoch(&std::mem::take(&mut epoch_clock), seconds, watch);
                epoch_started = Instant::now();
            }
            if !self.save_if_asked(requests, watch)? && (self.save_is_due(ends) || self.has_ended())
            {
                self.save(watch)?;
            }
            if !self.has_ended() {
                self.planned.recorder.enter(Phase::Train);
            }
        }
        if self.checkpoints.checksum().is_none() {
            // A checkpoint of a format that had none cannot be referred to.
            self.save(watch)?;
        }
        let finished = self.finish();
        self.tell_notices(watch);
        finished
    }

    /// Steps are warm after the first: from there on the run trains.
    fn record_step(&self, line: &StepLine, watch: &mut dyn FnMut(Event<'_>)) {
        let recorder = &self.planned.recorder;
        recorder.add_step(line, line.step / self.planned.steps_per_epoch());
        recorder.enter(Phase::Train);
        self.tell_notices(watch);
    }

    fn tell_notices(&self, watch: &mut dyn FnMut(Event<'_>)) {
        for notice in self.planned.recorder.take_notices() {
            watch(Event::Notice(&notice));
        }
    }

    fn one_step(
        &mut self,
        epoch_clock: &mut Clock,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<StepLine>, TrainError> {
        let began = Instant::now();
        let number = self.state.step + 1;
        if !self.bring_batch(number, &requests.stop, watch)? {
            return Ok(None);
        }
        let waited = began.elapsed().as_secs_f64();
        let mut rates = Vec::new();
        self.rates.write(number, &mut rates);
        let scalars = StepScalars {
            step: number - self.state.scaler.skipped_steps(),
            rates: &rates,
            loss_scale: self.state.scaler.scale(),
        };
        let samples = self.planned.feed.batch().num_samples;
        let timing = self.time_operations(number)?;
        let Some(report) = self.compute(number, &scalars, requests, watch)? else {
            return Ok(None);
        };
        let mut scaler = self.state.scaler;
        if let Some(found) =
            diverged::in_report(&self.losses, self.step.losses(), &report, &mut scaler)
        {
            return Err(self.diverged(number, found));
        }
        if report.gradient_norm.is_finite() {
            self.last_norm = Some(StepNorm {
                step: number,
                gradient_norm: report.gradient_norm,
            });
        }
        let (chosen, end) = self.planned.feed.samples();
        let samples_digest = format!("{:016x}", digest(chosen));
        let seconds = (began.elapsed() - timing).as_secs_f64();
        let each = self.losses.iter().zip(self.step.losses());
        let line = StepLine {
            step: number,
            epoch: (number - 1) / self.planned.steps_per_epoch() + 1,
            loss: report.loss,
            losses: each
                .map(|(loss, sum)| LossLine {
                    name: loss.name.clone(),
                    mean: sum.mean(),
                    chance: loss.chance.of(samples),
                })
                .collect(),
            gradient_norm: report.gradient_norm,
            rates: self.named_rates(&rates),
            loss_scale: scaler.scale(),
            samples,
            samples_digest,
            seconds,
            waited_for_data: waited,
        };
        self.journal.add(std::slice::from_ref(&line))?;
        self.state.step = number;
        self.state.scaler = scaler;
        self.state.cursor = Some(end);
        for clock in [&mut self.state.clock, &mut self.process_clock, epoch_clock] {
            clock.samples += samples as u64;
            clock.micro_batches += samples.div_ceil(self.planned.split.batch_size) as u64;
            clock.waited += waited;
            clock.computed += seconds - waited;
        }
        self.is_between_steps = true;
        self.planned.recorder.add_scalars("train", number, &line);
        Ok(Some(line))
    }

    /// The rates that have a key of their own: that of all, and that of new heads where there are any.
    fn named_rates(&self, rates: &[f64]) -> Vec<(&'static str, f64)> {
        let has_head = self.step.parameters().iter().any(|one| one.rate == 1);
        let head = has_head.then_some(("lr_head", rates[1]));
        [("lr", rates[0])].into_iter().chain(head).collect()
    }

    /// The batch of a step: read ahead, or now.
    fn bring_batch(
        &mut self,
        number: u64,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<bool, TrainError> {
        let PlannedRun { feed, prepared, .. } = &mut self.planned;
        if !feed.bring(number, prepared, stop) {
            return Ok(false);
        }
        let skipped = feed.take_skipped();
        let is_empty = feed.batch().num_samples == 0;
        self.tell_skipped(Subset::Train, &skipped, watch)?;
        if is_empty {
            let samples = &self.planned.prepared.train;
            return Err(nothing_readable(samples, &skipped));
        }
        Ok(true)
    }

    /// Lists what was left out; an error where nothing may be, or not as much.
    fn tell_skipped(
        &mut self,
        split: Subset,
        skipped: &[Skipped],
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        if skipped.is_empty() {
            return Ok(());
        }
        let PlannedRun {
            prepared, config, ..
        } = &self.planned;
        let samples = prepared.samples(split).expect("it was read");
        if let Some(error) = refused(&prepared.csv, samples, skipped, &config.data) {
            return Err(error);
        }
        for one in skipped {
            let line = self.skipped.add(split, samples, one)?;
            let total = self.skipped.total();
            if let Some(line) = line {
                watch(Event::Skipped { line: &line, total });
            }
        }
        let samples = prepared.subsets().map(|(_, samples)| samples.len());
        let all = samples.sum::<usize>() + prepared.bad_rows.len();
        self.skipped.check(&prepared.csv, all, &config.data)
    }

    /// Runs a step; `None` where it was stopped before its update, which leaves everything as it was. Behind a GPU the next
    /// one's batch, if it has been read, begins to travel meanwhile.
    fn compute(
        &mut self,
        number: u64,
        scalars: &StepScalars<'_>,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<StepReport>, TrainError> {
        let began = Instant::now();
        self.step.start(self.planned.feed.batch(), scalars);
        if self.passes.step_seconds() >= LONG_STEP_SECONDS {
            self.tell_progress(number, began, watch);
        }
        loop {
            let told = Instant::now();
            let is_to_pause = || {
                let mut flags = [&requests.stop, &requests.save].into_iter();
                flags.any(|flag| flag.load(Ordering::Relaxed)) || told.elapsed() >= BETWEEN_PROGRESS
            };
            let PlannedRun { feed, device, .. } = &self.planned;
            match self.step.advance(device, feed.batch(), &is_to_pause) {
                Advance::Launched => break,
                Advance::Paused if requests.stop.load(Ordering::Relaxed) => {
                    self.step.abandon()?;
                    return Ok(None);
                }
                Advance::Paused => {}
            }
            // Weights and state are still those of the step before.
            if self.save_if_asked(requests, watch)? {
                self.planned.recorder.enter(Phase::Train);
            }
            self.tell_progress(number, began, watch);
        }
        self.is_between_steps = false;
        let is_last = number == self.planned.total_steps();
        let PlannedRun {
            feed,
            prepared,
            device,
            ..
        } = &mut self.planned;
        let step = &mut self.step;
        if device.is_gpu() && !is_last {
            feed.read_ahead(number + 1, prepared);
            if let Some(next) = feed.next_batch().filter(|next| next.num_samples > 0) {
                step.preload(device, next);
            }
        }
        let report = step.finish()?;
        self.passes.finished(began.elapsed().as_secs_f64());
        Ok(Some(report))
    }

    fn tell_progress(&self, number: u64, began: Instant, watch: &mut dyn FnMut(Event<'_>)) {
        let per_epoch = self.planned.steps_per_epoch();
        watch(Event::InStep(&self.passes.progress(
            number,
            self.step.passes_done(),
            began.elapsed().as_secs_f64(),
            self.planned.feed.batch().num_samples,
            (per_epoch - number % per_epoch) % per_epoch,
        )));
    }

    /// Times every operation once, for people; says how long that took. A GPU replays whole programs: its operations keep their
    /// predicted times.
    fn time_operations(&mut self, number: u64) -> Result<Duration, TrainError> {
        let is_due = number == TIMED_STEP && self.planned.total_steps() >= LEAST_STEPS_TO_TIME;
        if !is_due || self.planned.device.is_gpu() {
            return Ok(Duration::ZERO);
        }
        let began = Instant::now();
        let PlannedRun {
            feed, device, plan, ..
        } = &mut self.planned;
        let times = self.step.time_instructions(device, feed.batch())?;
        // Nobody looks at the map after this.
        let map = std::mem::take(&mut plan.step.memory_map);
        let json = operations_json(&map, &plan.step, Some((number, &times)));
        self.folder.write("operations.json", &json)?;
        Ok(began.elapsed())
    }

    fn has_ended(&self) -> bool {
        let all_steps = self.state.step >= self.planned.total_steps();
        self.state.next == Next::Step && (all_steps || self.has_stopped_improving())
    }

    fn has_stopped_improving(&self) -> bool {
        let patience = self.planned.config.train.early_stop;
        patience.is_some_and(|patience| self.state.without_improvement >= patience)
    }

    fn interrupted(&mut self, watch: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, TrainError> {
        self.save(watch)?;
        Ok(Outcome::Interrupted {
            step: self.state.step,
            total: self.planned.total_steps(),
        })
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            planned_bytes: self.planned_bytes[0],
            peak_bytes: self.planned.device.peak_bytes(),
            budget_bytes: self.planned.prepared.setup.budget_bytes,
        }
    }

    fn tell_epoch(&self, clock: &Clock, seconds: f64, watch: &mut dyn FnMut(Event<'_>)) {
        // Going on with the evaluation of an epoch whose steps an earlier process has run.
        if clock.samples == 0 {
            return;
        }
        let train = &self.planned.config.train;
        watch(Event::Epoch(&EpochReport {
            epoch: self.state.step / self.planned.steps_per_epoch(),
            epochs: train.epochs_begun(self.planned.steps_per_epoch()),
            seconds,
            samples_per_s: clock.samples_per_s(),
            batches_per_s: clock.batches_per_s(),
            waited_for_data: clock.waiting(),
        }));
        watch(Event::Memory(self.memory()));
        self.planned.recorder.end_epoch();
        self.tell_notices(watch);
    }
}

#[cfg(test)]
mod tests;
