//! The loop.
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
//! A stop is heeded between steps and between the batches of an evaluation: the state is saved and the run can go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdall_data::loader::Skipped;
use holdall_telemetry::memory_log::Phase;

use crate::checkpoint::{Best, Checkpoints, Clock, Next, State};
use crate::config::{EvalEvery, SaveEvery, Subset};
use crate::diverged::{self, Diverged, StepNorm};
use crate::error::TrainError;
use crate::export::save_model;
use crate::journal::Journal;
use crate::operations::{operations_json, tensors_json};
use crate::optimizer::StepScalars;
use crate::picture_changes::{compare_pictures, record_pictures};
use crate::ready::{PlanReport, Ready};
use crate::recorder::{Promise, Sampler};
use crate::report::{
    EpochReport, EvaluationLine, Event, LossLine, MemoryUse, Outcome, StepLine, SummaryMetrics,
};
use crate::requests::Requests;
use crate::run_folder::{RunFolder, before_it_began, failed, write_whole};
use crate::scaler::LossScaler;
use crate::schedule::LearningRates;
use crate::scores::Direction;
use crate::sealed_config::seal;
use crate::skipped::{SkippedFile, refused};
use crate::step::{Step, StepReport};
use crate::task::{BEST_FILES, Evaluation, Loss, Unfinished, nothing_readable};

mod finish;

pub use finish::End;

/// The step whose operations are timed: caches are warm by then.
const TIMED_STEP: u64 = 3;
/// Timing takes as long as a step does: shorter runs are spared it.
const LEAST_STEPS_TO_TIME: u64 = 20;

/// A run with its memory reserved.
pub struct Trainer {
    ready: Ready,
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
    planned: [u64; 2],
    /// Looks at the memory as long as this is there.
    _sampler: Sampler,
}

impl Trainer {
    /// Reserves the arena, fills it from the weights or the checkpoint, and writes the config and the plan. `tell` hears
    /// of a plan that had to change because memory has gone.
    pub fn begin(
        mut ready: Ready,
        folder: RunFolder,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Trainer, TrainError> {
        let task = &ready.prepared.setup.step.task;
        let best_metric = task.best_metric(ready.config.train.best_metric.as_deref())?;
        let losses = task.losses();
        let digest = format!("{:016x}", data_digest(&ready));
        if let Some(algorithms) = ready
            .checkpoint
            .as_ref()
            .and_then(|checkpoint| checkpoint.state.algorithms.as_ref())
        {
            ready.device.prefer_algorithms(algorithms);
        }
        let is_resumed = ready.is_resumed();
        ready.recorder.enter(Phase::Warmup);
        let mut step = ready.reserve(tell)?;
        let report = PlanReport::new(
            &ready.plan,
            &ready.device,
            ready.prepared.setup.budget_bytes,
        );
        let plan_json = serde_json::to_string_pretty(&report).expect("a plan is plain data");
        let planned = [ready.plan.step.process_bytes, ready.plan.step.arena_bytes];
        ready.recorder.promise(Promise {
            planned_bytes: planned[0],
            arena_bytes: step.arena_bytes(),
            batch_size: ready.split.batch_size,
            budget_bytes: ready.prepared.setup.budget_bytes,
        });
        let mut checkpoints = Checkpoints::new(&folder);
        let mut saved = None;
        let state = match ready.checkpoint.take() {
            Some(checkpoint) => {
                if checkpoint.state.data_digest != digest {
                    return Err(TrainError::Config(format!(
                        "{}: the rows, or the model's preprocessor_config.json, are not those that the run began with\n\
                         hint: restore the files to go on, or begin a new run",
                        ready.prepared.csv.display()
                    )));
                }
                checkpoint.restore(&ready.device, &mut step)?;
                checkpoints = checkpoint.checkpoints();
                saved = Some((checkpoint.state.step, checkpoint.state.next));
                checkpoint.state
            }
            None => {
                ready.prepared.setup.fill(&ready.device, &mut step)?;
                let scaler = LossScaler::suiting(step.config().arithmetic);
                let mut state = State::new(scaler, ready.split, digest);
                state.algorithms = ready.device.algorithms();
                state
            }
        };
        let mut skipped = SkippedFile::open(&folder.skipped(), state.skipped.as_ref())?;
        let data = &ready.config.data;
        if is_resumed {
            compare_pictures(&folder, &ready.prepared, data, &skipped, tell)?;
        }
        let steps = ready.steps_per_epoch();
        if state.step > ready.total_steps() {
            return Err(TrainError::Config(format!(
                "train.epochs: {}, expected at least {}: so many are done\nhint: leave it out, or ask for more",
                ready.config.train.epochs,
                state.step.div_ceil(steps)
            )));
        }
        let config = folder.write("config.yml", &seal(&ready.config.resolved()));
        config.map_err(|error| match folder.path().join("config.yml").exists() {
            true => error,
            false => before_it_began(error),
        })?;
        if !is_resumed {
            record_pictures(&folder, &ready.prepared, &ready.config.data)?;
        }
        folder.write("plan.json", &plan_json)?;
        folder.write("plan-tensors.json", &tensors_json(&ready.plan.step))?;
        let operations = operations_json(&ready.plan.step.memory_map, &ready.plan.step, None);
        folder.write("operations.json", &operations)?;
        let journal = Journal::open(&folder.journal(), &state.journal)?;
        skipped.add_rows(&ready.prepared.bad_rows)?;
        put_back_best_files(&folder, state.best.as_ref())?;
        let sampler = ready
            .recorder
            .open(folder.path(), state.step, state.step / steps);
        for (subset, samples) in ready.prepared.subsets() {
            let broken = skipped.samples(subset, samples);
            ready.feed.leave_out(samples, broken);
        }
        let rates = LearningRates::new(&ready.config, ready.total_steps() as usize);
        Ok(Trainer {
            ready,
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
            saved,
            last_norm: None,
            process_clock: Clock::default(),
            resumed_at: Instant::now(),
            seconds_before: 0.0,
            planned,
            _sampler: sampler,
        })
    }

    /// Writes every number to `tensorboard/` in the run's folder too, in a new file for each process.
    pub fn write_tensorboard(&self) -> Result<(), TrainError> {
        let opened = self.ready.recorder.open_events(self.folder.path());
        opened.map_err(|error| TrainError::Run(error.to_string()))
    }

    /// What it was made from.
    pub fn ready(&self) -> &Ready {
        &self.ready
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
        self.ready.feed.begin_waits();
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
                let line = match self.one_step(&mut epoch_clock, &requests.stop, watch) {
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
                self.ready.recorder.enter(Phase::Evaluate);
                match self.evaluate_all(requests, watch) {
                    Ok(()) => {
                        self.ready.recorder.enter(Phase::Train);
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
            let ends = self.state.step.is_multiple_of(self.ready.steps_per_epoch());
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
                self.ready.recorder.enter(Phase::Train);
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
        let recorder = &self.ready.recorder;
        recorder.add_step(line, line.step / self.ready.steps_per_epoch());
        recorder.enter(Phase::Train);
        self.tell_notices(watch);
    }

    fn tell_notices(&self, watch: &mut dyn FnMut(Event<'_>)) {
        for notice in self.ready.recorder.take_notices() {
            watch(Event::Notice(&notice));
        }
    }

    fn one_step(
        &mut self,
        epoch_clock: &mut Clock,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<StepLine>, TrainError> {
        let began = Instant::now();
        let number = self.state.step + 1;
        if !self.bring_batch(number, stop, watch)? {
            return Ok(None);
        }
        let waited = began.elapsed().as_secs_f64();
        let mut rates = Vec::new();
        self.rates.write(number, &mut rates);
        let moment = StepScalars {
            step: number - self.state.scaler.skipped_steps(),
            rates: &rates,
            loss_scale: self.state.scaler.scale(),
        };
        let samples = self.ready.feed.batch().num_samples;
        let timing = self.time_operations(number)?;
        self.is_between_steps = false;
        let report = self.compute(number, &moment)?;
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
        let (chosen, end) = self.ready.feed.samples();
        let samples_digest = format!("{:016x}", digest(chosen));
        let seconds = (began.elapsed() - timing).as_secs_f64();
        let each = self.losses.iter().zip(self.step.losses());
        let line = StepLine {
            step: number,
            epoch: (number - 1) / self.ready.steps_per_epoch() + 1,
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
            clock.micro_batches += samples.div_ceil(self.ready.split.batch_size) as u64;
            clock.waited += waited;
            clock.computed += seconds - waited;
        }
        self.is_between_steps = true;
        self.ready.recorder.add_scalars("train", number, &line);
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
        let Ready { feed, prepared, .. } = &mut self.ready;
        if !feed.bring(number, prepared, stop) {
            return Ok(false);
        }
        let skipped = feed.take_skipped();
        let is_empty = feed.batch().num_samples == 0;
        self.tell_skipped(Subset::Train, &skipped, watch)?;
        if is_empty {
            let samples = &self.ready.prepared.train;
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
        let Ready {
            prepared, config, ..
        } = &self.ready;
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

    /// Runs a step. Behind a GPU the next one's batch, if it has been read, begins to travel meanwhile.
    fn compute(&mut self, number: u64, moment: &StepScalars<'_>) -> Result<StepReport, TrainError> {
        let is_last = number == self.ready.total_steps();
        let Ready {
            feed,
            prepared,
            device,
            ..
        } = &mut self.ready;
        let step = &mut self.step;
        step.launch(device, feed.batch(), moment);
        if device.is_gpu() && !is_last {
            feed.read_ahead(number + 1, prepared);
            if let Some(next) = feed.next_batch().filter(|next| next.num_samples > 0) {
                step.preload(device, next);
            }
        }
        Ok(step.finish()?)
    }

    /// Times every operation once, for people; says how long that took. A GPU replays whole programs: its operations keep their
    /// predicted times.
    fn time_operations(&mut self, number: u64) -> Result<Duration, TrainError> {
        let is_due = number == TIMED_STEP && self.ready.total_steps() >= LEAST_STEPS_TO_TIME;
        if !is_due || self.ready.device.is_gpu() {
            return Ok(Duration::ZERO);
        }
        let began = Instant::now();
        let Ready {
            feed, device, plan, ..
        } = &mut self.ready;
        let times = self.step.time_instructions(device, feed.batch())?;
        // Nobody looks at the map after this.
        let map = std::mem::take(&mut plan.step.memory_map);
        let json = operations_json(&map, &plan.step, Some((number, &times)));
        self.folder.write("operations.json", &json)?;
        Ok(began.elapsed())
    }

    fn evaluation_is_due(&self) -> bool {
        let step = self.state.step;
        let due = match self.ready.config.train.eval_every {
            EvalEvery::Never => false,
            EvalEvery::Epoch => step.is_multiple_of(self.ready.steps_per_epoch()),
            EvalEvery::Steps(steps) => {
                step.is_multiple_of(steps as u64) || step == self.ready.total_steps()
            }
        };
        due && self.evaluated().next().is_some()
    }

    fn evaluated(&self) -> impl Iterator<Item = Subset> {
        let wanted = self.ready.config.train.eval_on.iter().copied();
        wanted.filter(|&subset| self.ready.prepared.samples(subset).is_some())
    }

    fn evaluate_all(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Unfinished> {
        let is_saved = self.saved == Some((self.state.step, self.state.next));
        let is_wanted = || {
            let is_asked_to_save = !is_saved && requests.save.load(Ordering::Relaxed);
            !requests.stop.load(Ordering::Relaxed) && !is_asked_to_save
        };
        let mut lines = Vec::new();
        let mut files = Vec::new();
        let subsets: Vec<Subset> = self.evaluated().collect();
        for on in subsets {
            let began = Instant::now();
            let Ready {
                prepared,
                device,
                feed,
                config,
                ..
            } = &mut self.ready;
            let task = &prepared.setup.step.task;
            let evaluated = task.evaluate(Evaluation {
                device,
                forward: self.step.forward(device),
                pictures: feed.lend(self.state.step),
                subset: on,
                samples: prepared.samples(on).expect("there: filtered above"),
                step: Some(self.state.step),
                stop: &requests.stop,
                is_wanted: &is_wanted,
                tell: &mut |done, total| watch(Event::Evaluating { on, done, total }),
            });
            feed.train(config, prepared);
            let evaluated = evaluated?;
            files.push((on, evaluated.files));
            self.tell_skipped(on, &evaluated.skipped, watch)?;
            let scores = evaluated.scores;
            lines.push(EvaluationLine {
                kind: "evaluation",
                step: self.state.step,
                epoch: self.state.step.div_ceil(self.ready.steps_per_epoch()),
                on,
                scores,
                seconds: began.elapsed().as_secs_f64(),
            });
        }
        // Files first, then the lines in one write, then the state: a failure or a stop in between leaves an evaluation that is
        // due, and is done again.
        let better = self.better(&lines);
        let best = match better {
            Some(value) => Some(self.save_best(value, &files)?),
            None => None,
        };
        self.journal.add(&lines)?;
        let is_best = best.is_some();
        match best {
            Some(best) => {
                self.state.best = Some(best);
                self.state.without_improvement = 0;
            }
            None if self.decisive(&lines).is_some() => self.state.without_improvement += 1,
            None => {}
        }
        self.state.last_scores = lines.iter().map(SummaryMetrics::from).collect();
        self.state.next = Next::Step;
        for line in &lines {
            let name = match line.on {
                Subset::Validation => "validation",
                Subset::Train => "evaluation_on_train",
            };
            self.ready.recorder.add_scalars(name, line.step, line);
            let decides = line.on == Subset::Validation || lines.len() == 1;
            watch(Event::Evaluated {
                line,
                is_best: is_best && decides,
            });
        }
        Ok(())
    }

    /// The number that decides which model is the best: what was held out counts, whatever else is evaluated.
    fn decisive(&self, lines: &[EvaluationLine]) -> Option<f64> {
        let held_out = lines.iter().find(|line| line.on == Subset::Validation);
        let decisive = held_out.or(lines.first())?;
        let task = &self.step.config().task;
        task.metric(&decisive.scores, &self.best_metric.0)
    }

    /// The same where it is better than the best so far.
    fn better(&self, lines: &[EvaluationLine]) -> Option<f64> {
        let best = self.state.best.as_ref().map(|best| best.value);
        let (_, direction) = self.best_metric;
        let value = self.decisive(lines);
        value.filter(|&value| direction.is_better(value, best))
    }

    /// Saves the model as the best one, with what it makes of a few samples. No checkpoint names it yet.
    fn save_best(&self, value: f64, files: &[(Subset, BestFiles)]) -> Result<Best, TrainError> {
        let step = self.state.step;
        let name = format!("best-{step:06}");
        let path = self.folder.checkpoints().join(&name);
        let checksum = save_model(&self.step, &path)?;
        let held_out = files.iter().find(|(on, _)| *on == Subset::Validation);
        let shown = held_out.or(files.first());
        for (name, json) in shown.into_iter().flat_map(|(_, files)| files) {
            // Beside the model's files and no part of them: a resumed run finds those of the best that it goes on from.
            write_whole(&path.join(name), json.as_bytes())?;
            self.folder.write(name, json)?;
        }
        Ok(Best {
            metric: self.best_metric.0.clone(),
            value,
            step,
            folder: name,
            checksum: Some(checksum.to_string()),
        })
    }

    fn has_ended(&self) -> bool {
        let all_steps = self.state.step >= self.ready.total_steps();
        self.state.next == Next::Step && (all_steps || self.has_stopped_improving())
    }

    fn has_stopped_improving(&self) -> bool {
        let patience = self.ready.config.train.early_stop;
        patience.is_some_and(|patience| self.state.without_improvement >= patience)
    }

    fn save_is_due(&self, epoch_ends: bool) -> bool {
        match self.ready.config.train.save_every {
            SaveEvery::Epoch => epoch_ends,
            SaveEvery::Steps(steps) => self.state.step.is_multiple_of(steps as u64),
        }
    }

    fn save(&mut self, watch: &mut dyn FnMut(Event<'_>)) -> Result<(), TrainError> {
        self.save_state()?;
        watch(Event::Saved {
            step: self.state.step,
            is_asked: false,
        });
        Ok(())
    }

    /// Whether someone asked for a checkpoint, which is on disk then.
    fn save_if_asked(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<bool, TrainError> {
        let is_asked = requests.save.swap(false, Ordering::Relaxed);
        if is_asked {
            self.save_state()?;
            watch(Event::Saved {
                step: self.state.step,
                is_asked,
            });
        }
        Ok(is_asked)
    }

    /// A state that is not finite does not replace one that is.
    fn save_state(&mut self) -> Result<(), TrainError> {
        self.ready.recorder.enter(Phase::Save);
        if let Some(found) = diverged::in_state(&self.step)? {
            return Err(self.diverged(self.state.step, found));
        }
        self.state.journal = self.journal.sync()?;
        self.state.skipped = Some(self.skipped.sync()?);
        self.state.clock.all = self.seconds_before + self.resumed_at.elapsed().as_secs_f64();
        self.checkpoints.save(&self.state, &self.step)?;
        self.saved = Some((self.state.step, self.state.next));
        Ok(())
    }

    /// Says what was found at which step, and what to go on from.
    fn diverged(&self, step: u64, found: String) -> TrainError {
        let config = &self.ready.config;
        let lower = format!("{:.1e}", config.train.lr / 10.0).replace(".0e", "e");
        let hint = match self.saved {
            Some((step, _)) => format!(
                "the checkpoint of step {step} is untouched: holdall train --resume --out {} --lr {lower} goes on from \
                 there; or begin again with a lower `lr`, a longer `warmup` or a smaller `clip_norm`",
                self.folder.path().display()
            ),
            None => format!(
                "no checkpoint was written before; begin again with a lower `lr` (--lr {lower}), a longer `warmup` or a \
                 smaller `clip_norm`"
            ),
        };
        TrainError::from(Box::new(Diverged {
            step,
            found,
            last_norm: self.last_norm,
            checkpoint_step: self.saved.map(|(step, _)| step),
            hint,
        }))
    }

    /// What was done before a failure is kept: steps fail as a whole, so the state is that after the last one.
    fn failed(&mut self, error: TrainError, watch: &mut dyn FnMut(Event<'_>)) -> TrainError {
        if let TrainError::Device(error) = error {
            // Nobody knows what is in the memory of a device that failed: the last checkpoint stands.
            return TrainError::Run(format!("after step {}: {error}", self.state.step));
        }
        if let TrainError::Diverged(_) = error {
            // The weights may have been on their way for some steps: an earlier state is the better one to go on from.
            return error;
        }
        // A step whose line could not be written is not done: the last checkpoint stands.
        if self.is_between_steps {
            // If that fails as well, the first failure is the one to tell.
            let _ = self.save(watch);
        }
        error
    }

    fn interrupted(&mut self, watch: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, TrainError> {
        self.save(watch)?;
        Ok(Outcome::Interrupted {
            step: self.state.step,
            total: self.ready.total_steps(),
        })
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            planned_bytes: self.planned[0],
            peak_bytes: self.ready.device.peak_bytes(),
            budget_bytes: self.ready.prepared.setup.budget_bytes,
        }
    }

    fn tell_epoch(&self, clock: &Clock, seconds: f64, watch: &mut dyn FnMut(Event<'_>)) {
        // Going on with the evaluation of an epoch whose steps an earlier process has run.
        if clock.samples == 0 {
            return;
        }
        watch(Event::Epoch(&EpochReport {
            epoch: self.state.step / self.ready.steps_per_epoch(),
            epochs: self.ready.config.train.epochs as u64,
            seconds,
            samples_per_s: clock.samples_per_s(),
            batches_per_s: clock.batches_per_s(),
            waited_for_data: clock.waiting(),
        }));
        watch(Event::Memory(self.memory()));
        self.ready.recorder.end_epoch();
        self.tell_notices(watch);
    }
}

/// Name and contents of files to look at.
type BestFiles = Vec<(&'static str, String)>;

/// The files of the best model that a checkpoint names; those of a later one, which is no part of the run any more, are removed.
fn put_back_best_files(folder: &RunFolder, best: Option<&Best>) -> Result<(), TrainError> {
    if best.is_some_and(|best| best.checksum.is_none()) {
        // Written before best models had files of their own.
        return Ok(());
    }
    for name in BEST_FILES {
        let kept = best.map(|best| folder.checkpoints().join(&best.folder).join(name));
        if let Some(kept) = kept.filter(|kept| kept.is_file()) {
            let json = std::fs::read_to_string(&kept).map_err(failed(&kept, "read"))?;
            folder.write(name, &json)?;
            continue;
        }
        let path = folder.path().join(name);
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(&path, "removed")(cause));
            }
            _ => {}
        }
    }
    Ok(())
}

/// FNV-1a.
struct Digest(u64);

impl Digest {
    fn new() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Of the samples of a step.
fn digest(samples: &[u32]) -> u64 {
    let mut digest = Digest::new();
    for sample in samples {
        digest.add(&sample.to_le_bytes());
    }
    digest.0
}

/// Of all that decides which samples a run sees.
fn data_digest(ready: &Ready) -> u64 {
    let mut digest = Digest::new();
    let mut add = |bytes: &[u8]| digest.add(bytes);
    let task = &ready.prepared.setup.step.task;
    for (_, samples) in ready.prepared.subsets() {
        task.add_to_digest(samples, &mut add);
        add(b"end of part");
    }
    if let Some(processor) = ready.prepared.setup.processor.digest_text() {
        add(processor.as_bytes());
    }
    digest.0
}

#[cfg(test)]
mod tests;
