//! Writes `memory.jsonl` during a run, from two sources.
//!
//! ```text
//! the loop      a line at a change of phase, after the first batch, at an epoch's end with its peak,
//!               and after a step if there was none for a second
//! a thread      a line if there was none for a second
//! ```
//!
//! Both share the `Book`: the loop's state (phase, step, speed) and the device's reading at that instant. A reading takes tens of
//! microseconds on the host and a few hundred on a GPU, outside of the lock; a line is one write. So steps of a millisecond and steps of a
//! minute both leave a line a second.
//!
//! The recorder never ends a run: if the log cannot be written, the run prints one message and continues.

mod warnings;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdall_device::gauge::{Gauge, Reading};
use holdall_telemetry::TelemetryError;
use holdall_telemetry::memory_log::{self, MemoryLog, MemorySample, Phase};
use holdall_telemetry::tensorboard::{self, EventFile};
use serde::Serialize;

use self::warnings::Warnings;
use crate::error::without_hint;
use crate::run::report::StepLine;

/// Longest time between two lines.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Number of recent samples that are kept for a failure report.
const NUM_KEPT: usize = 50;

/// Stack of the sampling thread; the driver's library needs this much.
const STACK_BYTES: usize = 512 << 10;

/// Figures of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub planned_bytes: u64,
    pub arena_bytes: u64,
    pub batch_size: usize,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
}

/// Records a run's memory. Clones share the same recorder.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    gauge: Gauge,
    book: Mutex<Book>,
    /// Signalled at the end of the run.
    over: Condvar,
}

/// State between two readings.
struct Book {
    /// The next line; the loop keeps its fields up to date.
    sample: MemorySample,
    steps: StepsSinceLine,
    last_line: Instant,
    /// The last samples; all samples until the log is open.
    kept: VecDeque<MemorySample>,
    log: Option<MemoryLog>,
    events: Option<EventFile>,
    epoch_peak_bytes: Option<u64>,
    epoch_use: GpuUse,
    /// High-water mark of the process before this epoch.
    high_water_bytes: Option<u64>,
    warnings: Warnings,
    notices: Vec<String>,
    has_failed: bool,
    is_over: bool,
}

/// GPU utilisation at readings within steps.
#[derive(Default)]
struct GpuUse {
    percent: f64,
    looks: u32,
}

impl GpuUse {
    fn add(&mut self, percent: u32) {
        self.percent += f64::from(percent);
        self.looks += 1;
    }

    /// Mean share of busy time; `None` without readings, or if the driver does not report utilisation.
    fn mean(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.percent / f64::from(self.looks) / 100.0)
    }
}

/// Steps since the last line with a speed.
#[derive(Default)]
struct StepsSinceLine {
    samples: usize,
    seconds: f64,
    waited: f64,
}

impl Recorder {
    pub(crate) fn new(gauge: Gauge) -> Recorder {
        let mut notices = Vec::new();
        if gauge.is_by_difference() {
            notices.push(format!(
                "GPU memory of this process: the driver does not tell it; {} has the change in what is in use on the card",
                memory_log::FILE_NAME
            ));
        }
        let recorder = Recorder {
            shared: Arc::new(Shared {
                book: Mutex::new(Book {
                    sample: MemorySample {
                        device: Some(gauge.name().to_owned()),
                        ..MemorySample::default()
                    },
                    steps: StepsSinceLine::default(),
                    last_line: Instant::now(),
                    kept: VecDeque::with_capacity(NUM_KEPT),
                    log: None,
                    events: None,
                    epoch_peak_bytes: None,
                    epoch_use: GpuUse::default(),
                    high_water_bytes: None,
                    warnings: Warnings::default(),
                    notices,
                    has_failed: false,
                    is_over: false,
                }),
                gauge,
                over: Condvar::new(),
            }),
        };
        recorder.enter(Phase::Start);
        recorder
    }

    /// Sets the phase of the run, with a line if it changed.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut book = self.shared.book();
        if book.sample.phase.replace(phase) != Some(phase) {
            drop(book);
            self.shared.add_reading();
        }
    }

    /// Sets the figures of the plan.
    pub(crate) fn promise(&self, promise: Promise) {
        let mut book = self.shared.book();
        book.sample.planned_bytes = Some(promise.planned_bytes);
        book.sample.arena_bytes = Some(promise.arena_bytes);
        book.sample.batch_size = Some(promise.batch_size as u64);
        book.sample.budget_bytes = promise.budget_bytes;
    }

    /// Opens the log in the run folder, appends the samples so far, and records until the [`Sampler`] is dropped.
    pub(crate) fn open(&self, folder: &Path, step: u64, epoch: u64) -> Sampler {
        let opened = MemoryLog::open(&folder.join(memory_log::FILE_NAME));
        let mut book = self.shared.book();
        match opened {
            Ok(mut log) => {
                let written = book.kept.iter().try_for_each(|sample| log.add(sample));
                book.log = Some(log);
                book.note_failure(written);
            }
            Err(error) => book.note_failure(Err(error)),
        }
        (book.sample.step, book.sample.epoch) = (Some(step), Some(epoch));
        book.high_water_bytes = self.shared.gauge.high_water_bytes();
        drop(book);
        Sampler::start(self.shared.clone())
    }

    /// Also writes every line to TensorBoard from now on, in a new file.
    pub(crate) fn open_events(&self, folder: &Path) -> Result<(), TelemetryError> {
        let folder = folder.join(tensorboard::FOLDER_NAME);
        let events = EventFile::create(&folder, MemorySample::now().time)?;
        self.shared.book().events = Some(events);
        Ok(())
    }

    /// Writes the numbers of a line of `metrics.jsonl` to TensorBoard, if it is open.
    pub(crate) fn add_scalars(&self, name: &str, step: u64, line: &impl Serialize) {
        self.shared.book().add_scalars(name, step, line);
    }

    /// Records a finished step.
    pub(crate) fn add_step(&self, line: &StepLine, epochs_done: u64) {
        let mut book = self.shared.book();
        book.sample.step = Some(line.step);
        book.sample.epoch = Some(epochs_done);
        book.steps.samples += line.samples;
        book.steps.seconds += line.seconds;
        book.steps.waited += line.waited_for_data;
        if book.last_line.elapsed() >= BETWEEN_LINES {
            drop(book);
            self.shared.add_working_reading();
        }
    }

    /// Records a finished epoch with its peak. Returns the share of its steps' time in which the GPU was busy, if the driver
    /// reports it.
    pub(crate) fn end_epoch(&self) -> Option<f64> {
        let mut reading = self.shared.gauge.read();
        let high_water = self.shared.gauge.high_water_bytes();
        let mut book = self.shared.book();
        // The system's high-water mark covers the whole process: it belongs to this epoch only if it has risen within it.
        let has_risen = high_water > book.high_water_bytes;
        let risen = high_water.filter(|_| has_risen);
        book.high_water_bytes = high_water;
        let peak = book.epoch_peak_bytes.max(risen);
        reading.process_bytes = reading.process_bytes.max(peak);
        book.add_line(&self.shared.gauge, reading);
        book.epoch_peak_bytes = None;
        std::mem::take(&mut book.epoch_use).mean()
    }

    /// Takes the messages for the user; each is returned once.
    pub(crate) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.book().notices)
    }

    /// The last samples, oldest first.
    pub fn last_samples(&self) -> Vec<MemorySample> {
        self.shared.book().kept.iter().cloned().collect()
    }
}

impl Shared {
    /// A panic of another holder does no harm: the fields of the book are independent.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add_reading(&self) {
        let reading = self.gauge.read();
        self.book().add_line(&self.gauge, reading);
    }

    /// Like `add_reading`, but within steps it also records the GPU utilisation.
    fn add_working_reading(&self) {
        let reading = self.gauge.read();
        let mut book = self.book();
        if let (Some(Phase::Train), Some(percent)) = (book.sample.phase, reading.gpu_utilization) {
            book.epoch_use.add(percent);
        }
        book.add_line(&self.gauge, reading);
    }
}

impl Book {
    fn add_line(&mut self, gauge: &Gauge, reading: Reading) {
        self.last_line = Instant::now();
        self.epoch_peak_bytes = self.epoch_peak_bytes.max(reading.process_bytes);
        let sample = &mut self.sample;
        sample.time = MemorySample::now().time;
        sample.used_bytes = reading.used_bytes;
        sample.total_bytes = reading.total_bytes;
        sample.process_bytes = reading.process_bytes;
        sample.host_rss_bytes = reading.host_rss_bytes;
        let so_far = sample.process_peak_bytes.max(reading.process_bytes);
        sample.process_peak_bytes = so_far.max(gauge.high_water_bytes());
        sample.gpu_utilization = reading.gpu_utilization.map(f64::from);
        let steps = std::mem::take(&mut self.steps);
        let of_steps = |value: f64| (steps.seconds > 0.0).then(|| value / steps.seconds);
        sample.samples_per_s = of_steps(steps.samples as f64);
        sample.waited_for_data = of_steps(steps.waited);
        if self.kept.len() == NUM_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(self.sample.clone());
        let warning = self.warnings.judge(&self.sample, || gauge.others());
        self.notices.extend(warning);
        let written = match &mut self.log {
            Some(log) => log.add(&self.sample),
            None => Ok(()),
        };
        self.note_failure(written);
        if self.events.is_some() {
            let (step, line) = (self.sample.step.unwrap_or(0), self.sample.clone());
            self.add_scalars("memory", step, &line);
        }
    }

    fn add_scalars(&mut self, name: &str, step: u64, line: &impl Serialize) {
        let Some(mut events) = self.events.take() else {
            return;
        };
        let scalars = tensorboard::scalars(name, line);
        let written = events.add(MemorySample::now().time, step, &scalars);
        // A record after a truncated one cannot be read: the file ends here.
        self.events = written.is_ok().then_some(events);
        self.note_failure(written);
    }

    /// Reported once, because a full disk stays full for a while.
    fn note_failure(&mut self, written: Result<(), TelemetryError>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_failed, true)
        {
            let reason = without_hint(&error);
            self.notices
                .push(format!("{reason}; the run goes on without"));
        }
    }
}

/// Handle of the sampling thread; dropping it ends the thread.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    fn start(shared: Arc<Shared>) -> Sampler {
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("memory log".to_owned())
            .stack_size(STACK_BYTES);
        // Without a thread, the lines of the loop remain.
        let thread = thread.spawn(move || sample(&theirs)).ok();
        Sampler { shared, thread }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.book().is_over = true;
        self.shared.over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sample(shared: &Shared) {
    loop {
        let mut book = shared.book();
        loop {
            if book.is_over {
                return;
            }
            let left = BETWEEN_LINES.saturating_sub(book.last_line.elapsed());
            if left.is_zero() {
                break;
            }
            book = match shared.over.wait_timeout(book, left) {
                Ok((book, _)) => book,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        drop(book);
        shared.add_working_reading();
    }
}

#[cfg(test)]
mod tests {
    use holdall_device::Device;
    use holdall_device::cpu::Cpu;

    use super::*;

    fn recorder() -> Recorder {
        Recorder::new(Device::on_cpu(Cpu::new(Some(1))).gauge())
    }

    fn step(number: u64) -> StepLine {
        StepLine {
            step: number,
            epoch: 1,
            loss: 1.0,
            losses: Vec::new(),
            gradient_norm: 1.0,
            rates: vec![("lr", 1e-3)],
            loss_scale: 1.0,
            samples: 6,
            is_short: false,
            samples_digest: String::new(),
            seconds: 2.0,
            waited_for_data: 0.5,
            processes: None,
        }
    }

    /// The speed covers the steps since the last line with a speed, whatever the time between lines.
    #[test]
    fn steps_are_told_once() {
        let recorder = recorder();
        recorder.add_step(&step(1), 0);
        recorder.add_step(&step(2), 0);
        recorder.enter(Phase::Train);
        recorder.enter(Phase::Train);
        recorder.enter(Phase::Save);
        let [start, train, save] = &recorder.last_samples()[..] else {
            panic!("a line per phase: {:?}", recorder.last_samples())
        };
        assert_eq!((start.phase, start.step), (Some(Phase::Start), None));
        let told = (train.step, train.samples_per_s, train.waited_for_data);
        assert_eq!(told, (Some(2), Some(3.0), Some(0.25)));
        assert_eq!((save.samples_per_s, save.waited_for_data), (None, None));
    }

    /// The log contains the samples from before it was opened, and dropping the sampler ends the thread.
    #[test]
    fn a_log_begins_with_what_was_seen_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder();
        recorder.enter(Phase::Plan);
        let sampler = recorder.open(folder.path(), 0, 0);
        recorder.enter(Phase::Warmup);
        for _ in 0..2 * NUM_KEPT {
            recorder.end_epoch();
        }
        drop(sampler);
        assert_eq!(Arc::strong_count(&recorder.shared), 1);
        let text = std::fs::read_to_string(folder.path().join(memory_log::FILE_NAME)).unwrap();
        let texts: Vec<&str> = text.lines().collect();
        let lines: Vec<MemorySample> = texts
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(lines.len() >= 2 * NUM_KEPT + 3);
        assert!(lines.is_sorted_by_key(|line| line.phase));
        let kept = recorder.last_samples();
        assert_eq!(kept.len(), NUM_KEPT);
        let kept: Vec<String> = kept
            .iter()
            .map(|sample| serde_json::to_string(sample).unwrap())
            .collect();
        assert_eq!(kept, texts[texts.len() - NUM_KEPT..]);
        assert!(recorder.take_notices().is_empty());
    }
}
