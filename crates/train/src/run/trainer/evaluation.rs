//! Evaluations during a run, and the best model so far.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Trainer;
use crate::config::{EvalEvery, Subset};
use crate::engine::optimizer::Averaging;
use crate::engine::scores::{LOSS, Scores};
use crate::engine::task::{BEST_FILES, Evaluation, Unfinished};
use crate::error::TrainError;
use crate::planning::planned_run::PlannedRun;
use crate::planning::processes;
use crate::run::report::{EvaluationLine, Event, TotalLoss};
use crate::run::requests::Requests;
use crate::run_folder::checkpoint::{Best, Next, SummaryMetrics};
use crate::run_folder::folder::{RunFolder, failed};
use crate::run_folder::skipped::SkippedPicture;

/// Name and contents of example files.
pub(super) type BestFiles = Vec<(&'static str, String)>;

impl Trainer {
    pub(super) fn evaluation_is_due(&self) -> bool {
        let step = self.state.step;
        let every = match self.planned.config.train.eval_every {
            EvalEvery::Never => return false,
            EvalEvery::Epoch => self.planned.steps_per_epoch(),
            EvalEvery::Steps(steps) => steps as u64,
        };
        let due = step.is_multiple_of(every) || step == self.planned.total_steps();
        due && self.evaluated().next().is_some()
    }

    fn evaluated(&self) -> impl Iterator<Item = Subset> {
        let wanted = self.planned.config.train.eval_on.iter().copied();
        wanted.filter(|&subset| self.planned.prepared.samples(subset).is_some())
    }

    /// Evaluates, and saves the model if it is the best so far. If the run averages weights, the averages are evaluated and
    /// saved; the weights are restored in any case.
    pub(super) fn evaluate_all(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Unfinished> {
        self.enter_averages()?;
        let evaluated = self.evaluate_subsets(requests, watch);
        self.leave_averages()?;
        evaluated
    }

    /// Replaces the weights by the averages that are evaluated and exported.
    pub(super) fn enter_averages(&mut self) -> Result<(), TrainError> {
        let device = &self.planned.device;
        match self.step.averaging() {
            Averaging::None => return Ok(()),
            Averaging::OverSteps { .. } => {}
            Averaging::WithStart { .. } => {
                let setup = &self.planned.prepared.setup;
                let start = setup.step.weights(setup.seed)?;
                let checksum = self.step.interpolate(device, start)?;
                if self.state.starting_weights.as_ref() != Some(&checksum) {
                    return Err(other_start(&self.planned.config.model));
                }
            }
        }
        Ok(self.step.exchange_averages(device)?)
    }

    /// Restores the weights.
    pub(super) fn leave_averages(&mut self) -> Result<(), TrainError> {
        if self.step.is_averaged() {
            self.step.exchange_averages(&self.planned.device)?;
        }
        Ok(())
    }

    fn evaluate_subsets(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Unfinished> {
        let is_saved = self.saved == Some((self.state.step, self.state.next));
        // A save request interrupts the evaluation of a single process only; several processes save after the evaluation.
        let is_alone = self.planned.device.group().size() == 1;
        let is_wanted = || {
            let is_asked_to_save = is_alone && !is_saved && requests.save.load(Ordering::Relaxed);
            !requests.stop.load(Ordering::Relaxed) && !is_asked_to_save
        };
        let mut lines = Vec::new();
        let mut files = Vec::new();
        let subsets: Vec<Subset> = self.evaluated().collect();
        for on in subsets {
            let began = Instant::now();
            let (mut scores, skipped, shown) =
                self.evaluate_subset(on, requests, &is_wanted, watch)?;
            if on == Subset::Validation && !self.state.epoch_losses.is_empty() {
                scores.set_train_loss(self.state.epoch_losses.total(&self.losses).value);
            }
            files.push((on, shown));
            self.tell_skipped(&skipped, watch)?;
            lines.push(EvaluationLine {
                kind: "evaluation",
                step: self.state.step,
                epoch: self.state.step.div_ceil(self.planned.steps_per_epoch()),
                on,
                scores,
                seconds: began.elapsed().as_secs_f64(),
            });
        }
        // Files first, then the lines in one write, then the state: after a failure or a stop in between, the evaluation is
        // still due and is repeated. The first process decides which model is the best, because scores may differ between
        // processes in the last digit.
        let group = self.planned.device.group();
        let (better, is_decisive) = processes::from_first(group, || {
            let better = self.better(&lines).map(f64::to_bits);
            Ok((better, self.decisive(&lines).is_some()))
        })?;
        let best = match better.map(f64::from_bits) {
            Some(value) => Some(self.save_best(value, &files)?),
            None => None,
        };
        self.add_lines(&lines)?;
        let is_best = best.is_some();
        match best {
            Some(best) => {
                self.state.best = Some(best);
                self.state.without_improvement = 0;
            }
            None if is_decisive => self.state.without_improvement += 1,
            None => {}
        }
        self.state.last_scores = lines.iter().map(SummaryMetrics::from).collect();
        self.state.next = Next::Step;
        for line in &lines {
            let name = match line.on {
                Subset::Validation => "validation",
                Subset::Train => "evaluation_on_train",
            };
            self.planned.recorder.add_scalars(name, line.step, line);
            let decides = line.on == Subset::Validation || lines.len() == 1;
            watch(Event::Evaluated {
                line,
                is_best: is_best && decides,
            });
        }
        Ok(())
    }

    /// Scores of one subset, the samples that any process failed to read, and example files, which only the first process
    /// has.
    fn evaluate_subset(
        &mut self,
        on: Subset,
        requests: &Requests,
        is_wanted: &(dyn Fn() -> bool + Sync),
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(Scores, Vec<SkippedPicture>, BestFiles), Unfinished> {
        let PlannedRun {
            prepared,
            device,
            feed,
            split,
            ..
        } = &mut self.planned;
        let task = &prepared.setup.step.task;
        let samples = prepared.samples(on).expect("there: filtered above");
        let evaluated = task.evaluate(Evaluation {
            device,
            forward: self.step.forward(device),
            pictures: feed.lend(self.state.step),
            subset: on,
            samples,
            step: Some(self.state.step),
            effective_batch: Some(split.effective_batch),
            stop: &requests.stop,
            is_wanted,
            tell: &mut |done, total| watch(Event::Evaluating { on, done, total }),
        });
        feed.train(prepared);
        let evaluated = evaluated?;
        let own = &evaluated.skipped;
        let skipped = processes::skipped_by_all(device.group(), on, samples, own)?;
        Ok((evaluated.scores, skipped, evaluated.files))
    }

    /// The score that selects the best model: that of the validation subset if it is evaluated, otherwise that of the first
    /// subset.
    fn decisive(&self, lines: &[EvaluationLine]) -> Option<f64> {
        let held_out = lines.iter().find(|line| line.on == Subset::Validation);
        let decisive = held_out.or(lines.first())?;
        match self.best_metric.0.as_str() {
            LOSS => decisive.scores.loss(),
            metric => self.step.config().task.metric(&decisive.scores, metric),
        }
    }

    /// Step and loss of the validation in the epoch that ends.
    pub(super) fn validation_loss(&self) -> Option<(u64, TotalLoss)> {
        let mut last = self.state.last_scores.iter();
        let found = last.find(|found| found.on == Subset::Validation)?;
        let is_of_epoch = found.step + self.planned.steps_per_epoch() > self.state.step;
        let value = found.scores.loss().filter(|_| is_of_epoch)?;
        let losses = found.scores.losses().into_iter();
        let each = losses.filter_map(|(name, mean, chance)| {
            let weight = self.losses.iter().find(|loss| loss.name == name)?.weight;
            Some((weight, mean, chance))
        });
        let chance = TotalLoss::of(each).chance;
        Some((found.step, TotalLoss { value, chance }))
    }

    /// The deciding score, if it is better than the best so far.
    fn better(&self, lines: &[EvaluationLine]) -> Option<f64> {
        let best = self.state.best.as_ref().map(|best| best.value);
        let (_, direction) = self.best_metric;
        let value = self.decisive(lines);
        value.filter(|&value| direction.is_better(value, best))
    }
}

/// Error for changed starting weights: `train.interpolate` reads them again before each evaluation.
fn other_start(model: &str) -> TrainError {
    TrainError::Config(format!(
        "{model}: its weights are not those that the run began with, which `train.interpolate` needs again\n\
         hint: restore the model's files and go on with --resume, or begin a new run"
    ))
}

/// Restores the example files of the best model that a checkpoint names, and removes those of a later best model, which the
/// resumed run does not have.
pub(super) fn put_back_best_files(
    folder: &RunFolder,
    best: Option<&Best>,
) -> Result<(), TrainError> {
    if best.is_some_and(|best| best.checksum.is_none()) {
        // Written before best models kept these files.
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
        match holdall_files::remove_file(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(&path, "removed")(cause));
            }
            _ => {}
        }
    }
    Ok(())
}
