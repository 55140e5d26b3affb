//! The training loop; `begin`, `evaluation`, `saving` and `finish` hold its rarer parts.
//!
//! ```text
//! for each step:
//!     load the batch            a function of (seed, epoch, sample); with a GPU, read while the previous step runs
//!     run the step              forward, loss, backward, update
//!     write a line              metrics.jsonl
//!     evaluate, if it is due    the best model goes to checkpoints/best-STEP, then the lines are written
//!     save, if it is due        checkpoints/last.safetensors, by an atomic rename
//! finish                        model/, then summary.json, which names the checkpoint it belongs to
//! ```
//!
//! Files are written before the state changes: after a failed write, the state is unchanged and the files are written again.
//!
//! A stop takes effect between the micro-batches of a step and between the batches of an evaluation: the state is saved and the run
//! can be resumed. A step that is stopped before its update is repeated.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdall_telemetry::memory_log::Phase;
use serde::Serialize;

use crate::engine::divergence;
use crate::engine::operations::operations_json;
use crate::engine::optimizer::StepScalars;
use crate::engine::schedule::LearningRates;
use crate::engine::scores::Direction;
use crate::engine::step::{Advance, Step, StepReport};
use crate::engine::task::{Loss, Unfinished};
use crate::error::StepNorm;
use crate::error::TrainError;
use crate::planning::planned_run::PlannedRun;
use crate::planning::processes;
use crate::run::progress::Passes;
use crate::run::report::{EpochReport, Event, LossLine, MemoryUse, Outcome, StepLine};
use crate::run::requests::Requests;
use crate::run_folder::checkpoint::{Clock, Next, RunState};
use crate::run_folder::skipped::{SkippedFile, SkippedPicture, refused};

mod agreement;
mod begin;
mod evaluation;
mod finish;
mod records;
mod saving;

use agreement::{Load, Processes};
use records::Records;

pub use finish::End;

/// Step whose operations are timed: caches are warm by then.
const TIMED_STEP: u64 = 3;
/// Shortest run whose operations are timed, because timing takes as long as a step.
const LEAST_STEPS_TO_TIME: u64 = 20;

/// Interval of progress reports within a step.
const BETWEEN_PROGRESS: Duration = Duration::from_millis(500);
/// Steps expected to take longer than this report progress from their beginning.
const LONG_STEP_SECONDS: f64 = 3.0;

/// Mean losses of an epoch, for TensorBoard.
#[derive(Serialize)]
struct EpochMeans {
    train_loss: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation_loss: Option<f64>,
}

pub struct Trainer {
    planned: PlannedRun,
    /// `None` in all processes but the first.
    records: Option<Records>,
    step: Step,
    state: RunState,
    /// Whether weights, state and journal belong to the same step, so that they may be saved together.
    is_between_steps: bool,
    rates: LearningRates,
    skipped: SkippedFile,
    best_metric: (String, Direction),
    losses: Vec<Loss>,
    /// Number of passes of a step and their expected duration.
    passes: Passes,
    /// Step and next action of the checkpoint on disk.
    saved: Option<(u64, Next)>,
    last_norm: Option<StepNorm>,
    time: TimeOfProcess,
    planned_bytes: PlannedBytes,
    /// Times and memory of a step on each process.
    processes: Processes,
}

/// Time that this process has spent on the run.
struct TimeOfProcess {
    clock: Clock,
    resumed_at: Instant,
    /// Seconds that earlier processes spent.
    seconds_before: f64,
}

/// Bytes of the plan that runs.
#[derive(Clone, Copy, Debug)]
struct PlannedBytes {
    process: u64,
    arena: u64,
}

/// How the evaluation of all subsets ended.
enum EvaluationEnd {
    Done,
    Stopped,
    /// Interrupted by a save request: it starts over after saving, and a second request does not interrupt it.
    SaveFirst,
}

impl Trainer {
    /// Also writes every number to `tensorboard/` in the run folder, in a new file each time that the run resumes.
    pub fn write_tensorboard(&self) -> Result<(), TrainError> {
        let Some(records) = &self.records else {
            return Ok(());
        };
        let opened = self.planned.recorder.open_events(records.folder.path());
        opened.map_err(|error| TrainError::Run(error.to_string()))
    }

    pub fn planned(&self) -> &PlannedRun {
        &self.planned
    }

    /// Optimizer steps done, those of earlier processes included.
    pub fn steps_done(&self) -> u64 {
        self.state.step
    }

    /// Runs to the end, or until a stop is requested.
    pub fn run(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, TrainError> {
        self.planned.feed.begin_waits();
        self.time.resumed_at = Instant::now();
        self.time.seconds_before = self.state.clock.all;
        let mut epoch_clock = Clock::default();
        let mut epoch_started = Instant::now();
        let mut first = true;
        // Several processes act on requests together: they exchange them between steps.
        let (asked, agreed) = (requests, Requests::new());
        let requests = match self.planned.device.group().size() {
            1 => asked,
            _ => &agreed,
        };
        while !self.has_ended() {
            if self.state.next == Next::Step {
                if requests.stop.load(Ordering::Relaxed) {
                    return self.interrupted(asked, watch);
                }
                let line = match self.one_step(&mut epoch_clock, asked, requests, watch) {
                    Ok(Some(line)) => line,
                    Ok(None) => return self.interrupted(asked, watch),
                    Err(error) => return Err(self.failed(error, watch)),
                };
                watch(Event::Step(&line));
                self.record_step(&line, watch);
                if std::mem::take(&mut first) {
                    watch(Event::Memory(self.memory()));
                }
                if self.evaluation_is_due() {
                    self.state.next = Next::Evaluate;
                    // An evaluation may take longer than the sender of a save request waits.
                    self.save_if_asked(requests, watch)?;
                }
            }
            if self.state.next == Next::Evaluate {
                match self.evaluation(asked, watch)? {
                    EvaluationEnd::Done => {}
                    EvaluationEnd::Stopped => return self.interrupted(asked, watch),
                    EvaluationEnd::SaveFirst => {
                        self.save_if_asked(requests, watch)?;
                        continue;
                    }
                }
            }
            // The last epoch ends with the run, complete or not.
            let step = self.state.step;
            let is_epoch = step.is_multiple_of(self.planned.steps_per_epoch());
            if is_epoch || self.has_ended() {
                let seconds = epoch_started.elapsed().as_secs_f64();
                self.tell_epoch(&std::mem::take(&mut epoch_clock), seconds, watch);
                epoch_started = Instant::now();
            }
            if !self.save_if_asked(requests, watch)?
                && (self.save_is_due(is_epoch) || self.has_ended())
            {
                self.save(watch)?;
            }
            if !self.has_ended() {
                self.planned.recorder.enter(Phase::Train);
            }
        }
        let finished = self.finish();
        self.tell_notices(watch);
        finished
    }

    fn evaluation(
        &mut self,
        asked: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<EvaluationEnd, TrainError> {
        self.planned.recorder.enter(Phase::Evaluate);
        match self.evaluate_all(asked, watch) {
            Ok(()) => {
                self.planned.recorder.enter(Phase::Train);
                Ok(EvaluationEnd::Done)
            }
            Err(Unfinished::Stopped) => {
                let is_shared = self.planned.device.group().size() > 1;
                if is_shared || asked.stop.load(Ordering::Relaxed) {
                    Ok(EvaluationEnd::Stopped)
                } else {
                    Ok(EvaluationEnd::SaveFirst)
                }
            }
            Err(Unfinished::NotFinite(found)) => Err(self.diverged(self.state.step, found)),
            Err(Unfinished::Failed(error)) => Err(self.failed(*error, watch)),
        }
    }

    /// Steps are warm after the first: the training phase begins then.
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

    /// `asked` are the requests to this process, `requests` those that all processes agreed on.
    fn one_step(
        &mut self,
        epoch_clock: &mut Clock,
        asked: &Requests,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<StepLine>, TrainError> {
        let began = Instant::now();
        let waited_before = self.planned.device.group().seconds_waited();
        let number = self.state.step + 1;
        let _progressing = self.planned.device.group().expect_progress();
        let PlannedRun { feed, prepared, .. } = &mut self.planned;
        let has_batch = feed.bring(number, prepared, &asked.stop);
        let waited = began.elapsed().as_secs_f64();
        let Some(whole) = self.agree(has_batch, asked, requests, watch)? else {
            return Ok(None);
        };
        if self.planned.device.group().size() > 1 {
            // All processes save here, before any of them enters the step.
            self.save_if_asked(requests, watch)?;
        }
        let mut rates = Vec::new();
        self.rates.write(number, &mut rates);
        let scalars = StepScalars {
            step: number - self.state.scaler.skipped_steps(),
            rates: &rates,
            loss_scale: self.state.scaler.scale(),
        };
        let samples = whole.num_samples;
        let timing = self.time_operations(number)?;
        let Some(report) = self.compute(number, &scalars, requests, watch)? else {
            return Ok(None);
        };
        let mut scaler = self.state.scaler;
        if let Some(found) =
            divergence::in_report(&self.losses, self.step.losses(), &report, &mut scaler)
        {
            return Err(self.diverged(number, found));
        }
        if report.gradient_norm.is_finite() {
            self.last_norm = Some(StepNorm {
                step: number,
                gradient_norm: report.gradient_norm,
            });
        }
        let seconds = (began.elapsed() - timing).as_secs_f64();
        let line = StepLine {
            step: number,
            epoch: (number - 1) / self.planned.steps_per_epoch() + 1,
            loss: report.loss,
            losses: self.loss_lines(samples),
            gradient_norm: report.gradient_norm,
            rates: self.named_rates(&rates),
            loss_scale: scaler.scale(),
            samples,
            is_short: samples < self.planned.split.effective_batch
                && self.losses.iter().any(Loss::depends_on_samples),
            samples_digest: whole.digest,
            seconds,
            waited_for_data: waited,
            processes: whole.processes,
        };
        self.add_lines(std::slice::from_ref(&line))?;
        self.state.scaler = scaler;
        self.count_step(&line, epoch_clock);
        let device = &self.planned.device;
        if device.group().size() > 1 {
            let for_others = device.group().seconds_waited() - waited_before;
            self.processes.own = Some(Load {
                seconds: (seconds - for_others).max(0.0),
                process_bytes: device.peak_bytes(),
            });
        }
        self.planned
            .recorder
            .add_scalars("train", number, &line.comparable());
        Ok(Some(line))
    }

    /// Counts a step as done, once its line is in the journal.
    fn count_step(&mut self, line: &StepLine, epoch_clock: &mut Clock) {
        let epoch = &mut self.state.epoch_losses;
        if (line.step - 1).is_multiple_of(self.planned.steps_per_epoch()) {
            epoch.clear();
        }
        epoch.add(&self.losses, self.step.losses(), line.samples);
        self.state.step = line.step;
        for clock in [&mut self.state.clock, &mut self.time.clock, epoch_clock] {
            clock.samples += line.samples as u64;
            clock.micro_batches += line.samples.div_ceil(self.planned.split.batch_size) as u64;
            clock.waited += line.waited_for_data;
            clock.computed += line.seconds - line.waited_for_data;
        }
        self.is_between_steps = true;
    }

    /// Each loss of the step beside its chance for so many samples.
    fn loss_lines(&self, samples: usize) -> Vec<LossLine> {
        let each = self.losses.iter().zip(self.step.losses());
        each.map(|(loss, sum)| LossLine {
            name: loss.name.clone(),
            mean: sum.mean(),
            chance: loss.chance.of(samples),
        })
        .collect()
    }

    /// Learning rates for the log: the base rate, and the rate of new heads if there are any.
    fn named_rates(&self, rates: &[f64]) -> Vec<(&'static str, f64)> {
        let has_head = self.step.parameters().iter().any(|one| one.rate == 1);
        let head = has_head.then_some(("lr_head", rates[1]));
        [("lr", rates[0])].into_iter().chain(head).collect()
    }

    /// Adds the unreadable samples of all processes to `skipped.csv`; an error if the config allows none, or fewer.
    fn tell_skipped(
        &mut self,
        skipped: &[SkippedPicture],
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        if skipped.is_empty() {
            return Ok(());
        }
        // The receiver of these messages may be slow.
        let _telling = self.planned.device.group().expect_no_progress();
        let PlannedRun {
            prepared, config, ..
        } = &self.planned;
        if let Some(error) = refused(&prepared.csv, skipped, &config.data) {
            return Err(error);
        }
        for one in skipped {
            if self.skipped.add(&one.line)? {
                let (line, total) = (&one.line, self.skipped.total());
                watch(Event::Skipped { line, total });
            }
        }
        let samples = prepared.subsets().map(|(_, samples)| samples.len());
        let all = samples.sum::<usize>() + prepared.bad_rows.len();
        self.skipped.check(&prepared.csv, all, &config.data)
    }

    /// Runs a step; `None` if it was stopped before its update, which leaves everything as it was. With a GPU, the upload of
    /// the next batch starts meanwhile if the batch has been read.
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
        let _telling = self.planned.device.group().expect_no_progress();
        watch(Event::InStep(&self.passes.progress(
            number,
            self.step.passes_done(),
            began.elapsed().as_secs_f64(),
            self.planned.feed.batch().num_samples,
            (per_epoch - number % per_epoch) % per_epoch,
        )));
    }

    /// Measures the time of every operation once, for the report, and returns the time that this took. On a GPU, which
    /// replays whole programs, operations keep their predicted times.
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
        // The memory map is not used after this.
        let map = std::mem::take(&mut plan.step.memory_map);
        let json = operations_json(&map, &plan.step, Some((number, &times)));
        self.write_file("operations.json", &json)?;
        Ok(began.elapsed())
    }

    fn has_ended(&self) -> bool {
        is_over(&self.planned, &self.state)
    }

    /// Saves the state. With several processes, all learn which signal stopped any of them.
    fn interrupted(
        &mut self,
        asked: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, TrainError> {
        self.save(watch)?;
        let group = self.planned.device.group();
        if group.size() > 1 {
            let all = processes::share(group, &asked.stopped_by.load(Ordering::Relaxed))?;
            let first = all.into_iter().find(|&signal| signal != 0);
            asked
                .stopped_by
                .store(first.unwrap_or(0), Ordering::Relaxed);
        }
        Ok(Outcome::Interrupted {
            step: self.state.step,
            total: self.planned.total_steps(),
        })
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            planned_bytes: self.planned_bytes.process,
            peak_bytes: self.planned.device.peak_bytes(),
            budget_bytes: self.planned.prepared.setup.budget_bytes,
        }
    }

    fn tell_epoch(&mut self, clock: &Clock, seconds: f64, watch: &mut dyn FnMut(Event<'_>)) {
        // The resumed run only evaluates an epoch whose steps an earlier process ran.
        if clock.samples == 0 {
            return;
        }
        let gpu_busy = self.planned.recorder.end_epoch();
        let train = &self.planned.config.train;
        let train_loss = self.state.epoch_losses.total(&self.losses);
        let validation_loss = self.validation_loss();
        let step = self.state.step;
        let means = EpochMeans {
            train_loss: train_loss.value,
            validation_loss: validation_loss.map(|(_, loss)| loss.value),
        };
        self.planned.recorder.add_scalars("epoch", step, &means);
        watch(Event::Epoch(&EpochReport {
            step,
            epoch: step.div_ceil(self.planned.steps_per_epoch()),
            num_steps: (step - 1) % self.planned.steps_per_epoch() + 1,
            steps_per_epoch: self.planned.steps_per_epoch(),
            epochs: train.epochs_begun(self.planned.steps_per_epoch()),
            seconds,
            samples_per_s: clock.samples_per_s(),
            batches_per_s: clock.batches_per_s(),
            waited_for_data: clock.waiting(),
            gpu_busy,
            processes: self.processes.end_epoch(self.planned.device.group()),
            train_loss,
            validation_loss,
        }));
        watch(Event::Memory(self.memory()));
        self.tell_notices(watch);
    }
}

/// Whether a run in this state has done all its steps, or has stopped improving.
fn is_over(planned: &PlannedRun, state: &RunState) -> bool {
    let patience = planned.config.train.early_stop;
    let stopped_improving = patience.is_some_and(|most| state.without_improvement >= most);
    state.next == Next::Step && (state.step >= planned.total_steps() || stopped_improving)
}

#[cfg(test)]
mod tests;
