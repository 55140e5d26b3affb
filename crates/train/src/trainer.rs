//! The loop.
//!
//! ```text
//! for each step:
//!     bring the batch           a function of (seed, epoch, sample); behind a GPU, read while the step before runs
//!     run the step              features, loss, pull back, update
//!     write a line              metrics.jsonl
//!     evaluate, if it is due    a line; the best model goes to checkpoints/best
//!     save, if it is due        checkpoints/last.safetensors, in one rename
//! ```
//!
//! A stop is heeded between steps and between the batches of an evaluation: the state is saved and the run can go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdall_data::loader::Skipped;
use holdall_telemetry::memory_log::Phase;

use crate::checkpoint::{Best, Clock, FORMAT, Next, State, save};
use crate::config::{EvalEvery, SaveEvery, Split};
use crate::error::TrainError;
use crate::evaluate::{Unfinished, evaluate, nothing_readable};
use crate::examples::Examples;
use crate::export::save_model;
use crate::failure_file;
use crate::journal::Journal;
use crate::operations::{operations_json, tensors_json};
use crate::optimizer::Moment;
use crate::picture_changes::{compare_pictures, record_pictures};
use crate::prepare::Prepared;
use crate::ready::{PlanReport, Ready, part};
use crate::recorder::{Promise, Sampler};
use crate::report::{
    EpochReport, EvaluationLine, Event, MemoryUse, Outcome, StepLine, Summary, SummaryMetrics,
};
use crate::run_folder::RunFolder;
use crate::scaler::LossScaler;
use crate::schedule::LearningRates;
use crate::skipped::{SkippedFile, refused};
use crate::step::{Step, StepReport};

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
    rates: LearningRates,
    skipped: SkippedFile,
    best_metric: String,
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
        let best_metric = best_metric(&ready)?;
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
        });
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
                checkpoint.state
            }
            None => {
                ready.prepared.setup.fill(&ready.device, &mut step)?;
                State {
                    format: FORMAT,
                    step: 0,
                    next: Next::Step,
                    scaler: LossScaler::suiting(step.config().arithmetic),
                    best: None,
                    without_improvement: 0,
                    last_scores: Vec::new(),
                    journal_bytes: 0,
                    clock: Clock::default(),
                    split: ready.split,
                    data_digest: digest,
                    cursor: None,
                    algorithms: ready.device.algorithms(),
                }
            }
        };
        let mut skipped = SkippedFile::open(&folder.skipped())?;
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
        let config = folder.write("config.yml", &ready.config.resolved());
        config.map_err(|error| match (error, state.step) {
            (TrainError::Run(text), 0) => {
                TrainError::Run(text.replace("go on with --resume", "begin again"))
            }
            (error, _) => error,
        })?;
        if !is_resumed {
            record_pictures(&folder, &ready.prepared, &ready.config.data)?;
        }
        folder.write("plan.json", &plan_json)?;
        folder.write("plan-tensors.json", &tensors_json(&ready.plan.step))?;
        let operations = operations_json(&ready.plan.step.picture, &ready.plan.step.graph, None);
        folder.write("operations.json", &operations)?;
        let journal = Journal::open(&folder.journal(), state.journal_bytes)?;
        skipped.add_rows(&ready.prepared.bad_rows)?;
        let sampler = ready
            .recorder
            .open(folder.path(), state.step, state.step / steps);
        for split in [Split::Train, Split::Validation] {
            if let Some(part) = part(&ready.prepared, split) {
                let broken = skipped.samples(split, &part.samples);
                ready.feed.leave_out(part, broken);
            }
        }
        let rates = LearningRates::new(&ready.config, ready.total_steps() as usize);
        Ok(Trainer {
            ready,
            folder,
            step,
            journal,
            state,
            rates,
            skipped,
            best_metric,
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

    /// Runs to the end, or until `stop`.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
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
                if stop.load(Ordering::Relaxed) {
                    return self.interrupted(watch);
                }
                let line = match self.one_step(&mut epoch_clock, watch) {
                    Ok(line) => line,
                    Err(error) => return Err(self.failed(error, watch)),
                };
                watch(Event::Step(&line));
                self.record_step(&line, watch);
                if std::mem::take(&mut first) {
                    watch(Event::Memory(self.memory()));
                }
                if self.evaluation_is_due() {
                    self.state.next = Next::Evaluate;
                }
            }
            if self.state.next == Next::Evaluate {
                self.ready.recorder.enter(Phase::Evaluate);
                match self.evaluate_all(stop, watch) {
                    Ok(()) => {
                        self.state.next = Next::Step;
                        self.ready.recorder.enter(Phase::Train);
                    }
                    Err(Unfinished::Stopped) => return self.interrupted(watch),
                    Err(Unfinished::Failed(error)) => return Err(self.failed(*error, watch)),
                }
            }
            let ends = self.state.step.is_multiple_of(self.ready.steps_per_epoch());
            if ends {
                let seconds = epoch_started.elapsed().as_secs_f64();
                self.tell_epoch(&std::mem::take(&mut epoch_clock), seconds, watch);
                epoch_started = Instant::now();
            }
            if self.save_is_due(ends) || self.has_ended() {
                self.save(watch)?;
                if !self.has_ended() {
                    self.ready.recorder.enter(Phase::Train);
                }
            }
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
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<StepLine, TrainError> {
        let began = Instant::now();
        let number = self.state.step + 1;
        self.bring_batch(number, watch)?;
        let waited = began.elapsed().as_secs_f64();
        let mut rates = Vec::new();
        self.rates.write(number, &mut rates);
        let moment = Moment {
            step: number - self.state.scaler.skipped_steps(),
            rates: &rates,
            loss_scale: self.state.scaler.scale(),
        };
        let samples = self.ready.feed.batch().num_samples;
        let timing = self.time_operations(number)?;
        let report = self.compute(number, &moment)?;
        let observed = self.state.scaler.observe(report.gradients);
        observed.map_err(|diverged| TrainError::Run(format!("step {number}: {diverged}")))?;
        self.state.step = number;
        let (chosen, end) = self.ready.feed.samples();
        let samples_digest = format!("{:016x}", digest(chosen));
        self.state.cursor = Some(end);
        let seconds = (began.elapsed() - timing).as_secs_f64();
        for clock in [&mut self.state.clock, &mut self.process_clock, epoch_clock] {
            clock.samples += samples as u64;
            clock.micro_batches += samples.div_ceil(self.ready.split.batch_size) as u64;
            clock.waited += waited;
            clock.computed += seconds - waited;
        }
        let config = self.step.config();
        let has_labels = config.num_labels.is_some();
        let line = StepLine {
            kind: "step",
            step: number,
            epoch: (number - 1) / self.ready.steps_per_epoch() + 1,
            loss: report.loss,
            contrastive: report.contrastive.mean(),
            contrastive_chance: (samples as f64).ln(),
            label: has_labels.then(|| report.label.mean()),
            label_chance: config.num_labels.map(|labels| (labels as f64).ln()),
            gradient_norm: report.gradient_norm,
            lr: rates[0],
            lr_head: has_labels.then_some(rates[1]),
            loss_scale: self.state.scaler.scale(),
            samples,
            samples_digest,
            seconds,
            waited_for_data: waited,
        };
        self.journal.add(&line)?;
        self.ready.recorder.add_scalars("train", number, &line);
        Ok(line)
    }

    /// The batch of a step: read ahead, or now.
    fn bring_batch(
        &mut self,
        number: u64,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        let Ready { feed, prepared, .. } = &mut self.ready;
        feed.bring(number, prepared);
        let skipped = feed.take_skipped();
        let is_empty = feed.batch().num_samples == 0;
        self.tell_skipped(Split::Train, &skipped, watch)?;
        if is_empty {
            let samples = &self.ready.prepared.train.samples;
            return Err(nothing_readable(samples, &skipped));
        }
        Ok(())
    }

    /// Lists what was left out; an error where nothing may be, or not as much.
    fn tell_skipped(
        &mut self,
        split: Split,
        skipped: &[Skipped],
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        if skipped.is_empty() {
            return Ok(());
        }
        let Ready {
            prepared, config, ..
        } = &self.ready;
        let samples = &part(prepared, split).expect("it was read").samples;
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
        let parts = [Some(&prepared.train), prepared.validation.as_ref()];
        let samples = parts.into_iter().flatten().map(|part| part.samples.len());
        let all = samples.sum::<usize>() + prepared.bad_rows.len();
        self.skipped.check(&prepared.csv, all, &config.data)
    }

    /// Runs a step. Behind a GPU the next one's batch, if it has been read, begins to travel meanwhile.
    fn compute(&mut self, number: u64, moment: &Moment<'_>) -> Result<StepReport, TrainError> {
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
        // Nobody looks at the picture after this.
        let picture = std::mem::take(&mut plan.step.picture);
        let json = operations_json(&picture, &plan.step.graph, Some((number, &times)));
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

    fn evaluated(&self) -> impl Iterator<Item = Split> {
        let wanted = self.ready.config.train.eval_on.iter().copied();
        wanted.filter(|&split| part(&self.ready.prepared, split).is_some())
    }

    fn evaluate_all(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Unfinished> {
        let mut lines = Vec::new();
        let mut seen = Vec::new();
        let splits: Vec<Split> = self.evaluated().collect();
        for on in splits {
            let began = Instant::now();
            let Ready {
                prepared,
                device,
                feed,
                config,
                ..
            } = &mut self.ready;
            let part = part(prepared, on).expect("there: filtered above");
            let mut encoder = self.step.encoder();
            let mut examples = Examples::of(&part.samples);
            let scores = evaluate(
                device,
                &mut encoder,
                feed.lend(self.state.step),
                part,
                Some(&mut examples),
                stop,
                |done, total| watch(Event::Evaluating { on, done, total }),
            );
            feed.train(config, prepared);
            let (scores, skipped) = scores?;
            seen.push((on, examples));
            self.tell_skipped(on, &skipped, watch)?;
            lines.push(EvaluationLine {
                kind: "evaluation",
                step: self.state.step,
                epoch: self.state.step.div_ceil(self.ready.steps_per_epoch()),
                on,
                scores,
                seconds: began.elapsed().as_secs_f64(),
            });
        }
        // Lines are written together: a stop in between leaves none of them.
        for line in &lines {
            self.journal.add(line)?;
            let name = match line.on {
                Split::Validation => "validation",
                Split::Train => "evaluation_on_train",
            };
            self.ready.recorder.add_scalars(name, line.step, line);
        }
        let is_best = self.take_note(&lines)?;
        if is_best {
            self.write_examples(&seen)?;
        }
        for line in &lines {
            let decides = line.on == Split::Validation || lines.len() == 1;
            watch(Event::Evaluated {
                line,
                is_best: is_best && decides,
            });
        }
        self.state.last_scores = lines.iter().map(SummaryMetrics::from).collect();
        Ok(())
    }

    /// Pictures with what the best model makes of them: that one will be in `model/`.
    fn write_examples(&self, seen: &[(Split, Examples)]) -> Result<(), TrainError> {
        let held_out = seen.iter().find(|(on, _)| *on == Split::Validation);
        let Some((on, examples)) = held_out.or(seen.first()) else {
            return Ok(());
        };
        let Prepared { labels, .. } = &self.ready.prepared;
        let samples = &part(&self.ready.prepared, *on)
            .expect("it was evaluated")
            .samples;
        match examples.json(self.state.step, *on, samples, labels) {
            Some(json) => self.folder.write("samples.json", &json),
            None => Ok(()),
        }
    }

    /// Compares an evaluation with the best so far, and keeps its model when it is better.
    fn take_note(&mut self, lines: &[EvaluationLine]) -> Result<bool, TrainError> {
        // What was held out decides, whatever else is evaluated.
        let held_out = lines.iter().find(|line| line.on == Split::Validation);
        let value = held_out
            .or(lines.first())
            .and_then(|line| line.scores.metric(&self.best_metric));
        let Some(value) = value else {
            return Ok(false);
        };
        if self
            .state
            .best
            .as_ref()
            .is_some_and(|best| best.value >= value)
        {
            self.state.without_improvement += 1;
            return Ok(false);
        }
        self.state.without_improvement = 0;
        self.state.best = Some(Best {
            metric: self.best_metric.clone(),
            value,
            step: self.state.step,
        });
        save_model(&self.step, &self.ready.prepared, &self.folder.best())?;
        Ok(true)
    }

    /// The summary, where an earlier process has brought the run to its end.
    pub fn summary(&self) -> Option<String> {
        let path = self.folder.path().join("summary.json");
        let ended = self.has_ended().then_some(path)?;
        std::fs::read_to_string(ended).ok()
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
        self.ready.recorder.enter(Phase::Save);
        self.state.journal_bytes = self.journal.sync()?;
        self.state.clock.all = self.seconds_before + self.resumed_at.elapsed().as_secs_f64();
        save(&self.folder.last(), &self.state, &self.step)?;
        watch(Event::Saved {
            step: self.state.step,
        });
        Ok(())
    }

    /// What was done before a failure is kept: steps fail as a whole, so the state is that after the last one.
    fn failed(&mut self, error: TrainError, watch: &mut dyn FnMut(Event<'_>)) -> TrainError {
        if let TrainError::Device(error) = error {
            // Nobody knows what is in the memory of a device that failed: the last checkpoint stands.
            return TrainError::Run(format!("after step {}: {error}", self.state.step));
        }
        // If that fails as well, the first failure is the one to tell.
        let _ = self.save(watch);
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

    /// The model folder and the summary.
    fn finish(&mut self) -> Result<Outcome, TrainError> {
        match &self.state.best {
            Some(_) => self.folder.publish_best()?,
            None => save_model(&self.step, &self.ready.prepared, &self.folder.model())?,
        }
        let chosen = &self.ready.plan.chosen;
        let summary = Summary {
            device: self.ready.device.kind(),
            effective_batch: self.ready.split.effective_batch,
            batch_size: chosen.batch_size,
            gradient_accumulation: chosen.gradient_accumulation,
            precision: chosen.precision,
            recompute: chosen.recompute.clone(),
            epochs: self.state.step as f64 / self.ready.steps_per_epoch() as f64,
            steps: self.state.step,
            stopped_early: self.state.step < self.ready.total_steps(),
            seconds: self.state.clock.all,
            samples_per_s: self.state.clock.samples_per_s(),
            waited_for_data: self.state.clock.waiting(),
            reading: self
                .ready
                .feed
                .report(&self.process_clock, self.ready.device.cpu().num_threads()),
            skipped: self.skipped.total(),
            budget_bytes: self.ready.prepared.setup.budget_bytes,
            planned_bytes: self.planned[0],
            process_bytes: self.ready.device.peak_bytes(),
            planned_arena_bytes: self.planned[1],
            arena_bytes: self.step.arena_bytes(),
            weights: self.ready.prepared.setup.weights.describe(),
            best: self.state.best.clone(),
            metrics: self.state.last_scores.clone(),
        };
        let json = serde_json::to_string_pretty(&summary).expect("a summary is plain data");
        self.folder.write("summary.json", &json)?;
        failure_file::remove(self.folder.path());
        Ok(Outcome::Finished(Box::new(summary)))
    }
}

/// The metric that says which model is the best.
fn best_metric(ready: &Ready) -> Result<String, TrainError> {
    let has_labels = ready.prepared.setup.step.num_labels.is_some();
    match &ready.config.train.best_metric {
        None if has_labels && ready.config.losses.label > 0.0 => Ok("label_top1".to_owned()),
        None => Ok("mean_r1".to_owned()),
        Some(name) if name.starts_with("label_") && !has_labels => {
            Err(TrainError::Config(format!(
                "train.best_metric: {name}, found no column of labels\nhint: `data: {{label: COLUMN}}`, or mean_r1"
            )))
        }
        Some(name) => Ok(name.clone()),
    }
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
    let parts = [
        Some(&ready.prepared.train),
        ready.prepared.validation.as_ref(),
    ];
    for part in parts.into_iter().flatten() {
        for sample in 0..part.samples.len() {
            add(part.samples.image(sample).as_bytes());
            add(part.samples.caption(sample).as_bytes());
            add(&part.samples.label(sample).to_le_bytes());
        }
        add(b"end of part");
    }
    // Those of runs that began before there was one have none either.
    if let Some(processor) = ready.prepared.setup.processor.differing_from_clip() {
        add(processor.as_bytes());
    }
    digest.0
}

#[cfg(test)]
mod tests;
