//! A run as it goes: a bar on a terminal, and the lines that people look for in a log.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdall_files::{show_bytes, thousands};
use holdall_train::budget::show_time;
use holdall_train::config::Subset;
use holdall_train::progress::StepProgress;
use holdall_train::report::{
    EpochReport, EvaluationLine, Event, MemoryUse, Outcome, ProcessesOfRun, StepLine, Summary,
};
use holdall_train::skipped::SkippedLine;
use holdall_train::task::Task;
use holdall_train::trainer::Trainer;
use indicatif::{ProgressBar, ProgressStyle};

use crate::processes;
use crate::screen::tell;

/// Without a terminal, steps are told this often.
const BETWEEN_LINES: Duration = Duration::from_secs(20);

/// A first step that takes longer than this has a line before its end, and those that will, as they begin.
const FIRST_LINE_SECONDS: f64 = 2.0;

/// The bar between steps, and within a step that takes a while.
const STEPS: &str = "{bar:24} {pos}/{len} steps  {msg}  {elapsed} done, {eta} left";
const WITHIN_STEP: &str = "{pos}/{len} steps  {wide_msg}";

/// Pictures that are left out with a line each.
const TOLD_ONE_BY_ONE: usize = 10;

/// Tells a run on stderr.
pub struct Watcher {
    task: Arc<dyn Task>,
    bar: ProgressBar,
    last_line: Instant,
    total: u64,
    has_told_losses: bool,
    has_told_progress: bool,
    is_within_step: bool,
    peak_bytes: Option<u64>,
    /// Whose it is.
    memory: &'static str,
    /// What was evaluated: how large it is has been told.
    has_told_size: Vec<Subset>,
    /// Smoothed, so that the figure can be read.
    samples_per_s: Option<f64>,
}

impl Watcher {
    /// For a run that is about to begin, or to go on.
    pub fn new(trainer: &Trainer) -> Watcher {
        let total = trainer.planned().total_steps();
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(total).with_style(style(STEPS))
        } else {
            ProgressBar::hidden()
        };
        bar.set_position(trainer.steps_done());
        bar.reset_eta();
        Watcher {
            task: Arc::clone(&trainer.planned().prepared.setup.step.task),
            bar,
            last_line: Instant::now(),
            total,
            has_told_losses: false,
            has_told_progress: false,
            is_within_step: false,
            peak_bytes: None,
            memory: match trainer.planned().device.is_gpu() {
                true => "GPU memory",
                false => "Memory",
            },
            has_told_size: Vec::new(),
            samples_per_s: None,
        }
    }

    /// Tells one event.
    pub fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Step(line) => self.tell_step(line),
            Event::InStep(progress) => self.tell_progress(progress),
            Event::Memory(memory) => {
                self.peak_bytes = memory.peak_bytes;
                self.line(&show_memory(self.memory, &memory));
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
            // Saving is silent while all is well: the bar stays where it is.
            Event::Saved {
                is_asked: false, ..
            } => {}
            Event::Saved { step, .. } => self.line(&format!(
                "Saved after step {step}, as SIGUSR1 asked; going on"
            )),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// On a terminal always; in a log before the first step is done, then as rarely as steps are told.
    fn tell_progress(&mut self, progress: &StepProgress) {
        if !self.bar.is_hidden() {
            if !std::mem::replace(&mut self.is_within_step, true) {
                self.bar.set_style(style(WITHIN_STEP));
            }
            self.bar.set_message(show_progress_briefly(progress));
            return;
        }
        let is_slow = progress.step_seconds.max(progress.elapsed) > FIRST_LINE_SECONDS;
        let is_first = !self.has_told_progress && !self.has_told_losses && is_slow;
        if is_first || self.last_line.elapsed() > BETWEEN_LINES {
            self.has_told_progress = true;
            let text = show_progress(progress);
            self.line(&format!("Step {}/{}: {text}", progress.step, self.total));
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
        self.bar.set_message(format!(
            "loss {:.3}  {smooth:.0} samples/s{memory}",
            line.loss
        ));
        self.bar.set_position(line.step);
        if !self.has_told_losses {
            self.has_told_losses = true;
            self.line(&show_losses(line));
        } else if self.bar.is_hidden() && self.last_line.elapsed() > BETWEEN_LINES {
            self.line(&format!(
                "Step {}/{}: {}, {smooth:.0} samples/s",
                line.step,
                self.total,
                losses(line)
            ));
        }
    }

    /// The first ones one by one; a thousand lines would hide everything else.
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
        if self.bar.is_hidden() {
            tell(text);
        } else {
            self.bar.println(text);
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the templates are constants");
    style.progress_chars("=> ")
}

/// Which pass over the micro-batches, where there are several.
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

/// The same beside the number of steps, on a terminal of 80 columns.
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

/// Each loss beside what guessing gives: where a run starts, and whether it moved.
fn show_losses(line: &StepLine) -> String {
    let each = line.losses.iter().map(|loss| {
        let chance = loss.chance.map_or(String::new(), |chance| {
            // Of a choice among so many, where it is one.
            let choices = chance.exp();
            let is_whole = choices > 1.5 && (choices - choices.round()).abs() < 1e-6 * choices;
            let logarithm = match is_whole {
                true => format!(" = ln {choices:.0}"),
                false => String::new(),
            };
            format!(" (chance {chance:.3}{logarithm})")
        });
        format!("{} {:.3}{chance}", loss.name, loss.mean)
    });
    let each: Vec<String> = each.collect();
    format!("Losses at step {}: {}", line.step, each.join(", "))
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
    format!(
        "Epoch {}/{}: {:.0} s ({:.0} samples/s, {:.1} batches/s), waited for data {:.1}%",
        epoch.epoch,
        epoch.epochs,
        epoch.seconds,
        epoch.samples_per_s,
        epoch.batches_per_s,
        100.0 * epoch.waited_for_data
    ) + &busy
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
    format!(
        "{} after step {}{best}:\n{scores}",
        name(line.on),
        line.step
    )
}

/// How it ended, and what to type next.
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

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn show_summary(summary: &Summary, out: &Path) -> String {
    let mut text = String::new();
    if summary.stopped_early {
        text.push_str("Stopped early: no improvement\n");
    }
    text.push_str(&format!(
        "Done: {} steps in {:.0} s, {:.0} samples/s, waited for data {:.1}%\n",
        summary.steps,
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
    text.push_str(&format!(
        "Arena: planned {} bytes, reserved {} bytes\n",
        summary.planned_arena_bytes, summary.arena_bytes
    ));
    if let Some(best) = &summary.best {
        text.push_str(&format!(
            "Best: {} {:.4} after step {}\n",
            best.metric, best.value, best.step
        ));
    }
    text.push_str(&format!("Model: {}\n", out.join("model").display()));
    text
}
