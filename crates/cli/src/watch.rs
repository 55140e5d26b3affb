//! Live output of a run: a bar on a terminal, and the log lines that people look for.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdall_files::{counted, show_bytes, thousands};
use holdall_train::config::Subset;
use holdall_train::config::budget::show_time;
use holdall_train::engine::task::Task;
use holdall_train::run::progress::StepProgress;
use holdall_train::run::report::{
    EpochReport, EvaluationLine, Event, MemoryUse, Outcome, ProcessesOfRun, StepLine, Summary,
    TotalLoss,
};
use holdall_train::run::trainer::Trainer;
use holdall_train::run_folder::skipped::SkippedLine;
use indicatif::{ProgressBar, ProgressStyle};

use crate::processes;
use crate::run_log;
use crate::screen::{tell, watch_for};

/// Interval of step lines without a terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(20);

/// A first step longer than this gets a progress line before its end.
const FIRST_LINE_SECONDS: f64 = 2.0;

/// Templates of the bar, between steps and within a long step.
const STEPS: &str = "{bar:12} {pos}/{len} steps  {elapsed}, {eta} left  {wide_msg}";
const WITHIN_STEP: &str = "{pos}/{len} steps  {wide_msg}";

/// Number of skipped pictures that are reported with a line each.
const TOLD_ONE_BY_ONE: usize = 10;

/// Prints the events of a run to stderr.
pub struct Watcher {
    task: Arc<dyn Task>,
    bar: ProgressBar,
    last_line: Instant,
    total: u64,
    has_told_losses: bool,
    has_told_progress: bool,
    is_within_step: bool,
    peak_bytes: Option<u64>,
    /// Last memory figures printed.
    told_memory: Option<MemoryUse>,
    /// Name of the memory that the figures are about.
    memory: &'static str,
    /// Subsets whose size has been printed.
    has_told_size: Vec<Subset>,
    /// Smoothed for readability.
    samples_per_s: Option<f64>,
    /// Last loss shown on the bar.
    loss: String,
}

impl Watcher {
    /// A watcher for a run that is about to start or resume.
    pub fn new(trainer: &Trainer) -> Watcher {
        let total = trainer.planned().total_steps();
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(total).with_style(style(STEPS))
        } else {
            ProgressBar::hidden()
        };
        bar.set_position(trainer.steps_done());
        bar.reset_eta();
        watch_for(&bar);
        Watcher {
            task: Arc::clone(&trainer.planned().prepared.setup.step.task),
            bar,
            last_line: Instant::now(),
            total,
            has_told_losses: false,
            has_told_progress: false,
            is_within_step: false,
            peak_bytes: None,
            told_memory: None,
            memory: if trainer.planned().device.is_gpu() {
                "GPU memory"
            } else {
                "Memory"
            },
            has_told_size: Vec::new(),
            samples_per_s: None,
            loss: String::new(),
        }
    }

    /// Prints one event.
    pub fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Step(line) => self.tell_step(line),
            Event::InStep(progress) => self.tell_progress(progress),
            Event::Memory(memory) => {
                self.peak_bytes = memory.peak_bytes;
                if has_changed(self.told_memory.as_ref(), &memory) {
                    self.told_memory = Some(memory);
                    self.line(&show_memory(self.memory, &memory));
                }
            }
            Event::Evaluating { on, done, total } => {
                self.bar
                    .set_message(format!("evaluating {} {done}/{total}", name(on)));
            }
            Event::Evaluated { line, is_best } => {
                if !self.has_told_size.contains(&line.on) {
                    self.has_told_size.push(line.on);
                    if let Some(size) = self.task.describe_size(&line.scores) {
                        self.line(&format!("{}: {size}", name(line.on)));
                    }
                }
                let scores = self.task.describe_scores(&line.scores);
                self.line(&show_evaluation(line, is_best, &scores));
            }
            Event::Skipped { line, total } => self.tell_skipped(line, total),
            Event::Notice(text) => self.line(text),
            Event::Epoch(epoch) => self.line(&show_epoch(epoch)),
            // Automatic saves are silent: the bar stays in place.
            Event::Saved {
                is_asked: false, ..
            } => {}
            Event::Saved { step, .. } => self.line(&format!(
                "Saved after step {step}, as SIGUSR1 asked; going on"
            )),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows progress within a step: on a terminal always; in a log once during a slow first step, then at the interval of step lines.
    fn tell_progress(&mut self, progress: &StepProgress) {
        if !self.bar.is_hidden() {
            if !std::mem::replace(&mut self.is_within_step, true) {
                self.bar.set_style(style(WITHIN_STEP));
            }
            self.bar.set_message(show_progress_briefly(progress));
        }
        let is_slow = progress.step_seconds.max(progress.elapsed) > FIRST_LINE_SECONDS;
        let is_first = !self.has_told_progress && !self.has_told_losses && is_slow;
        if is_first || self.last_line.elapsed() > BETWEEN_LINES {
            self.has_told_progress = true;
            let text = show_progress(progress);
            self.step_line(&format!("Step {}/{}: {text}", progress.step, self.total));
        }
    }

    fn tell_step(&mut self, line: &StepLine) {
        if std::mem::take(&mut self.is_within_step) {
            self.bar.set_style(style(STEPS));
        }
        let speed = line.samples as f64 / line.seconds;
        let smooth = self
            .samples_per_s
            .map_or(speed, |before| 0.9 * before + 0.1 * speed);
        self.samples_per_s = Some(smooth);
        let memory = self
            .peak_bytes
            .map_or(String::new(), |bytes| format!("  {}", show_bytes(bytes)));
        // A short step's contrastive loss has fewer candidates: keep the previous one.
        if !line.is_short {
            self.loss = format!("loss {:.3}", line.loss);
        }
        self.bar
            .set_message(format!("{}  {smooth:.0} samples/s{memory}", self.loss));
        self.bar.set_position(line.step);
        if !self.has_told_losses {
            self.has_told_losses = true;
            self.line(&show_losses(line));
        } else if self.last_line.elapsed() > BETWEEN_LINES {
            self.step_line(&format!(
                "Step {}/{}: {}, {smooth:.0} samples/s",
                line.step,
                self.total,
                losses(line) + &short(line)
            ));
        }
    }

    /// Reports the first skipped pictures one by one; thousands of lines would hide everything else.
    fn tell_skipped(&mut self, line: &SkippedLine, total: usize) {
        if total <= TOLD_ONE_BY_ONE {
            self.line(&format!(
                "Skipped: {} row {}, {}: {}",
                name(line.part),
                line.row,
                line.image,
                line.reason
            ));
        } else if total.is_power_of_two() {
            self.line(&format!(
                "Skipped: {total} pictures so far, see skipped.csv"
            ));
        }
    }

    fn line(&mut self, text: &str) {
        self.last_line = Instant::now();
        tell(text);
    }

    /// Prints a step line; with a bar, to the log only.
    fn step_line(&mut self, text: &str) {
        self.last_line = Instant::now();
        if self.bar.is_hidden() {
            tell(text);
        } else {
            run_log::add(text);
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the templates are constants");
    style.progress_chars("=> ")
}

/// Name of the current pass over the micro-batches, if there are several.
fn pass_of(progress: &StepProgress) -> &'static str {
    match (progress.passes, progress.pass) {
        (1, _) => "",
        (_, 1) => "first pass, ",
        _ => "second pass, ",
    }
}

/// `first pass, 312 of 4,096 micro-batches, 61 samples/s; left: 8 min of the step, 3.0 h of the epoch`.
fn show_progress(progress: &StepProgress) -> String {
    format!(
        "{}{} of {} micro-batches, {:.0} samples/s; left: {} of the step, {} of the epoch",
        pass_of(progress),
        thousands(progress.done),
        thousands(progress.total),
        progress.samples_per_s,
        show_time(1e3 * progress.step_seconds_left()),
        show_time(1e3 * progress.epoch_seconds_left),
    )
}

/// Short form beside the number of steps, for a terminal of 80 columns.
fn show_progress_briefly(progress: &StepProgress) -> String {
    format!(
        "{}{}/{}, {:.0} samples/s, left: step {}, epoch {}",
        pass_of(progress),
        thousands(progress.done),
        thousands(progress.total),
        progress.samples_per_s,
        show_time(1e3 * progress.step_seconds_left()),
        show_time(1e3 * progress.epoch_seconds_left),
    )
}

fn name(on: Subset) -> &'static str {
    match on {
        Subset::Validation => "validation",
        Subset::Train => "train",
    }
}

fn losses(line: &StepLine) -> String {
    let total = format!("loss {:.3}", line.loss);
    if let [_] = line.losses.as_slice() {
        return total;
    }
    let each = line.losses.iter();
    let each: Vec<String> = each
        .map(|loss| format!("{} {:.3}", loss.name, loss.mean))
        .collect();
    format!("{total} ({})", each.join(", "))
}

/// Note on a step with fewer samples than usual: its contrastive loss has fewer candidates.
fn short(line: &StepLine) -> String {
    if line.is_short {
        format!(" (of {} samples)", line.samples)
    } else {
        String::new()
    }
}

/// Loss of guessing, if known: ` (chance 4.852 = ln 128)`.
fn show_chance(chance: Option<f64>) -> String {
    let Some(chance) = chance else {
        return String::new();
    };
    // If it is the logarithm of an integer, the number of choices.
    let choices = chance.exp();
    let is_whole = choices > 1.5 && (choices - choices.round()).abs() < 1e-6 * choices;
    let logarithm = if is_whole {
        format!(" = ln {choices:.0}")
    } else {
        String::new()
    };
    format!(" (chance {chance:.3}{logarithm})")
}

/// Each loss with the loss of guessing.
fn show_each<'a>(losses: impl IntoIterator<Item = (&'a str, f64, Option<f64>)>) -> String {
    let each = losses.into_iter();
    let each = each.map(|(name, mean, chance)| format!("{name} {mean:.3}{}", show_chance(chance)));
    each.collect::<Vec<_>>().join(", ")
}

/// Line on the individual losses at a step, compared with guessing.
fn show_losses(line: &StepLine) -> String {
    let each = line.losses.iter();
    let each = each.map(|loss| (loss.name.as_str(), loss.mean, loss.chance));
    format!("Losses at step {}: {}", line.step, show_each(each))
}

/// `; train loss 2.310 (chance 4.852 = ln 128), validation loss 2.540 (chance 4.111 = ln 61)`.
fn show_epoch_losses(epoch: &EpochReport) -> String {
    let show = |loss: &TotalLoss| format!("{:.4}{}", loss.value, show_chance(loss.chance));
    let validation = epoch.validation_loss.as_ref().map(|(step, loss)| {
        let after = if *step == epoch.step {
            String::new()
        } else {
            format!(" after step {step}")
        };
        format!(", validation loss {}{after}", show(loss))
    });
    format!(
        "; train loss {}{}",
        show(&epoch.train_loss),
        validation.unwrap_or_default()
    )
}

/// Whether memory is worth printing again: the plan changed, or the peak rose by a percent.
fn has_changed(told: Option<&MemoryUse>, memory: &MemoryUse) -> bool {
    told.is_none_or(|told| {
        let rise = told.peak_bytes.zip(memory.peak_bytes);
        told.planned_bytes != memory.planned_bytes
            || told.budget_bytes != memory.budget_bytes
            || rise.is_some_and(|(before, now)| now > before + before / 100)
    })
}

fn show_memory(name: &str, memory: &MemoryUse) -> String {
    let planned = show_bytes(memory.planned_bytes);
    let Some(peak) = memory.peak_bytes else {
        return format!("{name}: planned {planned}; this system does not tell the peak");
    };
    let share = memory.budget_bytes.map_or(String::new(), |budget| {
        format!(
            " ({:.0}% of {})",
            100.0 * peak as f64 / budget as f64,
            show_bytes(budget)
        )
    });
    format!(
        "{name}: planned {planned}, peak {}{share}",
        show_bytes(peak)
    )
}

fn show_epoch(epoch: &EpochReport) -> String {
    let busy = epoch.gpu_busy.map_or(String::new(), |share| {
        format!(", GPU busy {:.0}%", 100.0 * share)
    });
    let part = if epoch.num_steps < epoch.steps_per_epoch {
        format!(" ({} of {} steps)", epoch.num_steps, epoch.steps_per_epoch)
    } else {
        String::new()
    };
    format!(
        "Epoch {}/{}{part}: {:.0} s ({:.0} samples/s, {:.1} batches/s), waited for data {:.1}%",
        epoch.epoch,
        epoch.epochs,
        epoch.seconds,
        epoch.samples_per_s,
        epoch.batches_per_s,
        100.0 * epoch.waited_for_data
    ) + &busy
        + &show_epoch_losses(epoch)
        + &epoch
            .processes
            .as_ref()
            .map_or(String::new(), show_processes)
}

/// `; slowest: rank 3 on node-b, 12% longer than the others; memory by rank 1.20 GiB, 1.18 GiB`.
fn show_processes(each: &ProcessesOfRun) -> String {
    let bytes = each.process_bytes.iter();
    let bytes: Vec<String> = bytes
        .map(|bytes| bytes.map_or("?".to_owned(), show_bytes))
        .collect();
    format!(
        "; slowest: rank {} on {}, {:.0}% longer than the others; memory by rank {}",
        each.slowest_rank,
        each.hosts[each.slowest_rank],
        100.0 * (each.slowest_ratio - 1.0),
        bytes.join(", ")
    )
}

fn show_evaluation(line: &EvaluationLine, is_best: bool, scores: &str) -> String {
    let best = if is_best { " (best so far)" } else { "" };
    let losses = match line.scores.losses() {
        losses if losses.is_empty() => String::new(),
        losses => format!("  {:13} {}\n", "losses", show_each(losses)),
    };
    format!(
        "{} after step {}{best}:\n{losses}{scores}",
        name(line.on),
        line.step
    )
}

/// Prints how the run ended, and the next commands to type.
pub fn tell_outcome(outcome: &Outcome, out: &Path) {
    match outcome {
        Outcome::Finished(summary) => tell(show_summary(summary, out).trim_end()),
        Outcome::NothingToDo | Outcome::FinishedByFirst => {}
        Outcome::Interrupted { step, total } => tell(&format!(
            "Stopped after step {step} of {total}; everything is saved\n\
             hint: holdall train --resume --out {}{}",
            quoted(out),
            processes::option()
        )),
    }
}

/// A path quoted for the shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=".contains(c);
    if text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn show_summary(summary: &Summary, out: &Path) -> String {
    let mut text = String::new();
    if summary.stopped_early {
        text.push_str("Stopped early: no improvement\n");
    }
    text.push_str(&format!(
        "Done: {} in {:.0} s, {:.0} samples/s, waited for data {:.1}%\n",
        counted(summary.steps, "step"),
        summary.seconds,
        summary.samples_per_s,
        100.0 * summary.waited_for_data
    ));
    text.push_str(&format!("{}\n", summary.reading.advice));
    if summary.skipped > 0 {
        text.push_str(&format!(
            "Skipped: {} pictures that cannot be read, named in {}\n",
            summary.skipped,
            out.join("skipped.csv").display()
        ));
    }
    if let Some(best) = &summary.best {
        text.push_str(&format!(
            "Best: {} {:.4} after step {}\n",
            best.metric, best.value, best.step
        ));
    }
    text.push_str(&format!("Model: {}\n", out.join("model").display()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_again_when_it_has_risen() {
        let memory = |peak_bytes: u64| MemoryUse {
            planned_bytes: 2000,
            peak_bytes: Some(peak_bytes),
            budget_bytes: None,
        };
        assert!(has_changed(None, &memory(1000)));
        assert!(!has_changed(Some(&memory(1000)), &memory(1010)));
        assert!(has_changed(Some(&memory(1000)), &memory(1011)));
        let other = MemoryUse {
            planned_bytes: 3000,
            ..memory(1000)
        };
        assert!(has_changed(Some(&memory(1000)), &other));
    }

    #[test]
    fn an_epoch_has_both_losses_beside_chance() {
        let loss = |value: f64, choices: f64| TotalLoss {
            value,
            chance: Some(choices.ln()),
        };
        let epoch = EpochReport {
            step: 12,
            epoch: 3,
            num_steps: 4,
            steps_per_epoch: 4,
            epochs: 20,
            seconds: 120.0,
            samples_per_s: 412.0,
            batches_per_s: 3.2,
            waited_for_data: 0.004,
            gpu_busy: Some(0.93),
            processes: None,
            train_loss: loss(2.31, 128.0),
            validation_loss: Some((12, loss(2.54, 61.0))),
        };
        assert_eq!(
            show_epoch(&epoch),
            "Epoch 3/20: 120 s (412 samples/s, 3.2 batches/s), waited for data 0.4%, GPU busy 93%; \
             train loss 2.3100 (chance 4.852 = ln 128), validation loss 2.5400 (chance 4.111 = ln 61)"
        );
        let without = EpochReport {
            num_steps: 1,
            validation_loss: Some((8, loss(2.5, 61.0))),
            gpu_busy: None,
            ..epoch
        };
        let shown = show_epoch(&without);
        assert!(
            shown.ends_with("validation loss 2.5000 (chance 4.111 = ln 61) after step 8"),
            "{shown}"
        );
        assert!(shown.starts_with("Epoch 3/20 (1 of 4 steps): "), "{shown}");
    }
}
