//! Numbers of a log line: first as written, then as a sample in bytes and seconds without implausible values.

use super::columns::{Column, Meaning};
use super::values::{is_not_finite, is_unknown, number_and_unit, timestamp, unit_bytes};
use crate::memory_log::Phase;

/// A sample of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Line number in the log, from 1.
    pub line: u64,
    /// Seconds, since 1970 or another fixed instant.
    pub time: Option<f64>,
    pub step: Option<u64>,
    pub epoch: Option<u64>,
    pub phase: Option<Phase>,
    pub used: Option<f64>,
    pub total: Option<f64>,
    pub process: Option<f64>,
    /// High-water mark of the process.
    pub process_peak: Option<f64>,
    /// Memory budget of the process.
    pub budget: Option<f64>,
    pub allocated: Option<f64>,
    pub allocated_peak: Option<f64>,
    pub reserved: Option<f64>,
    pub planned: Option<f64>,
    pub host_rss: Option<f64>,
    /// Percent, 0 to 100.
    pub utilization: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub step_seconds: Option<f64>,
    /// Seconds of the step spent waiting for data.
    pub data_seconds: Option<f64>,
    /// Share of the time, 0 to 1.
    pub waited: Option<f64>,
    pub batch_size: Option<f64>,
}

/// The numbers of a line as written.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    numbers: [Option<f64>; Meaning::COUNT],
    phase: Option<Phase>,
    pub device: String,
    device_rank: u8,
    guess: Guess,
    has_odd_loss: bool,
}

/// Guess of the unit of names without one, from the largest number.
#[derive(Clone, Debug, Default)]
pub(super) struct Guess {
    scale: Option<f64>,
    largest: f64,
    has_fraction: bool,
}

impl Guess {
    fn scaled(&mut self, number: f64) -> f64 {
        self.largest = self.largest.max(number);
        self.has_fraction |= number.fract() != 0.0;
        let scale = match self.scale {
            Some(scale) => scale,
            // The window had no such number: guesses from this one.
            None => *self.scale.insert(guessed_scale(number, self.has_fraction)),
        };
        number * scale
    }

    /// The guess from all numbers so far.
    pub fn decided(&self) -> Guess {
        Guess {
            scale: (self.largest > 0.0).then(|| guessed_scale(self.largest, self.has_fraction)),
            ..Guess::default()
        }
    }

    /// Name of the guessed unit.
    pub fn unit(&self) -> Option<&'static str> {
        self.scale.map(|scale| match scale {
            s if s > 1e9 => "GiB",
            s if s > 1e6 => "MiB",
            _ => "bytes",
        })
    }
}

/// No GPU has 4 TiB, so a number that would be more in MiB is in bytes; none has 512 GiB, so a number above 512 is not in GiB.
fn guessed_scale(largest: f64, has_fraction: bool) -> f64 {
    match largest {
        n if n > 4_194_304.0 => 1.0,
        n if n > 512.0 || !has_fraction => 1_048_576.0,
        _ => 1_073_741_824.0,
    }
}

impl Raw {
    pub fn new(guess: Guess) -> Raw {
        Raw {
            numbers: [None; Meaning::COUNT],
            phase: None,
            device: String::new(),
            device_rank: 0,
            guess,
            has_odd_loss: false,
        }
    }

    pub fn clear(&mut self) {
        self.numbers = [None; Meaning::COUNT];
        self.phase = None;
        self.device.clear();
        self.device_rank = 0;
        self.has_odd_loss = false;
    }

    /// Whether the line's losses are finite; `None` without losses.
    pub fn has_finite_loss(&self) -> Option<bool> {
        if self.has_odd_loss {
            Some(false)
        } else {
            self.is_known(Meaning::Loss.index()).then_some(true)
        }
    }

    pub fn step(&self) -> Option<u64> {
        self.count(Meaning::Step)
            .or_else(|| self.count(Meaning::BatchIndex))
    }

    fn count(&self, meaning: Meaning) -> Option<u64> {
        self.numbers[meaning.index()]
            .filter(|n| (0.0..1e15).contains(n))
            .map(|n| n as u64)
    }

    pub fn guess(&self) -> &Guess {
        &self.guess
    }

    /// Whether the line has a number of this meaning.
    pub fn is_known(&self, index: usize) -> bool {
        self.numbers[index].is_some()
    }

    pub fn set_number(&mut self, column: Column, number: f64) {
        match column.meaning {
            Meaning::Loss if !number.is_finite() => self.has_odd_loss = true,
            _ if !number.is_finite() => {}
            Meaning::Device(rank) if (0.0..1e9).contains(&number) => {
                self.set_device(rank, &format!("{}", number.trunc()));
            }
            Meaning::Device(_) | Meaning::Phase => {}
            Meaning::Time => self.set(Meaning::Time, seconds(number)),
            meaning => {
                let number = match column.scale {
                    Some(scale) => number * scale,
                    None => self.guess.scaled(number),
                };
                self.set(meaning, number);
            }
        }
    }

    pub fn set_text(&mut self, column: Column, text: &str) {
        match column.meaning {
            Meaning::Loss if is_not_finite(text) => self.has_odd_loss = true,
            _ if is_unknown(text) => {}
            Meaning::Phase => self.phase = self.phase.or(phase(text)),
            Meaning::Device(rank) => self.set_device(rank, text.trim()),
            Meaning::Time => match timestamp(text) {
                Some(time) => self.set(Meaning::Time, time),
                None => self.set_plain(column, text),
            },
            _ => self.set_plain(column, text),
        }
    }

    fn set_plain(&mut self, column: Column, text: &str) {
        let Some((number, unit)) = number_and_unit(text) else {
            return;
        };
        // A unit beside the number takes precedence over a unit in the name.
        let of_number = unit_bytes(&unit).filter(|_| column.meaning.is_bytes());
        let scale = of_number.or(column.scale);
        self.set_number(Column { scale, ..column }, number);
    }

    /// Keeps the first of several columns with the same meaning.
    fn set(&mut self, meaning: Meaning, number: f64) {
        let slot = &mut self.numbers[meaning.index()];
        *slot = slot.or(Some(number));
    }

    fn set_device(&mut self, rank: u8, name: &str) {
        const LONGEST: usize = 64;
        if rank > self.device_rank && name.len() <= LONGEST {
            self.device_rank = rank;
            self.device.clear();
            self.device.push_str(name);
        }
    }

    /// The sample; `None` without memory and utilization.
    pub fn sample(&self, line: u64) -> Option<Sample> {
        /// More than any machine has.
        const MOST_BYTES: f64 = 1e15;
        let number = |meaning: Meaning| self.numbers[meaning.index()];
        let bytes = |meaning| number(meaning).filter(|bytes| (0.0..MOST_BYTES).contains(bytes));
        let positive = |meaning| number(meaning).filter(|n| (1e-9..1e12).contains(n));
        let total = bytes(Meaning::Total).filter(|total| *total > 0.0);
        let used = bytes(Meaning::Used).or_else(|| {
            let free = bytes(Meaning::Free)?;
            total.map(|total| (total - free).max(0.0))
        });
        // Scripts report allocated memory as used and the rest as free, but reserved memory is in use too.
        let reserved = bytes(Meaning::Reserved);
        let used = used.map(|used| used.max(reserved.unwrap_or(0.0)));
        let step_seconds = positive(Meaning::StepTime);
        let data_seconds =
            number(Meaning::DataTime).filter(|seconds| (0.0..1e12).contains(seconds));
        let data_share = || data_share(data_seconds?, step_seconds?);
        let sample = Sample {
            line,
            time: number(Meaning::Time).filter(|time| time.abs() < 1e12),
            step: self.step(),
            epoch: self.count(Meaning::Epoch),
            phase: self.phase,
            used,
            total,
            process: bytes(Meaning::Process),
            process_peak: bytes(Meaning::ProcessPeak),
            budget: bytes(Meaning::Budget).filter(|budget| *budget > 0.0),
            allocated: bytes(Meaning::Allocated),
            allocated_peak: bytes(Meaning::AllocatedPeak),
            reserved,
            planned: bytes(Meaning::Planned).filter(|planned| *planned > 0.0),
            host_rss: bytes(Meaning::HostRss),
            utilization: number(Meaning::Utilization).filter(|u| (0.0..=100.0).contains(u)),
            samples_per_second: positive(Meaning::SamplesPerSecond),
            step_seconds,
            data_seconds,
            waited: number(Meaning::Waited)
                .or_else(data_share)
                .filter(|share| (0.0..=1.0).contains(share)),
            batch_size: positive(Meaning::BatchSize),
        };
        let memory = [
            sample.used,
            sample.process,
            sample.allocated,
            sample.allocated_peak,
            sample.reserved,
            sample.host_rss,
            sample.utilization,
        ];
        memory.iter().any(Option::is_some).then_some(sample)
    }
}

/// Share of the time spent waiting. Most scripts include the wait in the step time; a wait longer than the step was measured
/// separately.
fn data_share(data: f64, step: f64) -> Option<f64> {
    let whole = if data <= step { step } else { data + step };
    (whole > 0.0).then(|| data / whole)
}

/// Seconds from a clock in seconds, or in milli-, micro- or nanoseconds since 1970.
fn seconds(number: f64) -> f64 {
    match number.abs() {
        n if n > 1e17 => number / 1e9,
        n if n > 1e14 => number / 1e6,
        n if n > 1e11 => number / 1e3,
        _ => number,
    }
}

/// Phase by the words of a name: scripts write `train`, `val_epoch`, `after_backward`, `checkpoint saved`.
fn phase(text: &str) -> Option<Phase> {
    const LONGEST: usize = 48;
    const WORDS: [(Phase, &[&str]); 6] = [
        (
            Phase::Evaluate,
            &["eval", "val", "valid", "validat", "test", "infer"],
        ),
        (Phase::Save, &["save", "saving", "checkpoint", "ckpt"]),
        (Phase::Warmup, &["warmup", "warm"]),
        (Phase::Plan, &["plan"]),
        (
            Phase::Train,
            &[
                "train",
                "epoch",
                "fit",
                "step",
                "batch",
                "forward",
                "backward",
                "optimizer",
                "optim",
                "zero",
                "loss",
            ],
        ),
        (
            Phase::Start,
            &["start", "init", "load", "setup", "baseline", "model"],
        ),
    ];
    if text.len() > LONGEST {
        return None;
    }
    let text = text.to_ascii_lowercase();
    let words = || text.split(|c: char| !c.is_ascii_alphanumeric());
    // Compares beginnings of words: `validation`, `initial`.
    let has = |beginnings: &[&str]| {
        words().any(|word| {
            beginnings
                .iter()
                .any(|beginning| word.starts_with(beginning))
        })
    };
    let found = WORDS.iter().find(|(_, beginnings)| has(beginnings));
    found.map(|(phase, _)| *phase)
}

#[cfg(test)]
mod tests {
    use super::super::columns::column;
    use super::*;

    #[test]
    fn units_are_guessed_from_the_largest_number() {
        for (largest, has_fraction, unit) in [
            (150_109_880_320.0, false, "bytes"),
            (143_771.0, false, "MiB"),
            (9_343.5, true, "MiB"),
            (11.7, true, "GiB"),
            (200.0, false, "MiB"),
        ] {
            let guess = Guess {
                largest,
                has_fraction,
                scale: None,
            };
            assert_eq!(guess.decided().unit(), Some(unit), "{largest}");
        }
        assert_eq!(Guess::default().decided().unit(), None);
    }

    #[test]
    fn numbers_that_make_no_sense_are_unknown() {
        let mut raw = Raw::new(Guess::default());
        for (name, number) in [
            ("used_bytes", 5.0),
            ("total_bytes", -1.0),
            ("gpu_util", 250.0),
            ("step", -3.0),
            ("process_bytes", f64::INFINITY),
            ("time", 1e300),
        ] {
            raw.set_number(column(name).unwrap(), number);
        }
        let sample = raw.sample(7).unwrap();
        let expected = Sample {
            line: 7,
            used: Some(5.0),
            ..Sample::default()
        };
        assert_eq!(sample, expected);
        raw.clear();
        raw.set_number(column("step").unwrap(), 3.0);
        assert_eq!(raw.sample(7), None);
    }

    #[test]
    fn phases_as_scripts_name_them() {
        for (text, expected) in [
            ("train", Some(Phase::Train)),
            ("after_backward", Some(Phase::Train)),
            ("before_optimizer_step", Some(Phase::Train)),
            ("Validation", Some(Phase::Evaluate)),
            ("val_epoch_end", Some(Phase::Evaluate)),
            ("test", Some(Phase::Evaluate)),
            ("checkpoint", Some(Phase::Save)),
            ("warm-up", Some(Phase::Warmup)),
            ("model_loaded", Some(Phase::Start)),
            ("plan", Some(Phase::Plan)),
            ("3", None),
            ("", None),
        ] {
            assert_eq!(phase(text), expected, "{text}");
        }
    }

    /// A global step and a batch index, in either order; neither removes the phase.
    #[test]
    fn the_global_step_counts_and_the_batch_is_a_position() {
        for names in [["batch_idx", "global_step"], ["global_step", "batch_idx"]] {
            let mut raw = Raw::new(Guess::default());
            raw.set_text(column("phase").unwrap(), "train");
            raw.set_number(column("allocated_mb").unwrap(), 1.0);
            for name in names {
                let number = if name == "batch_idx" { 7.0 } else { 207.0 };
                raw.set_number(column(name).unwrap(), number);
            }
            let sample = raw.sample(1).unwrap();
            assert_eq!((sample.step, sample.phase), (Some(207), Some(Phase::Train)));
        }
        let mut raw = Raw::new(Guess::default());
        raw.set_number(column("allocated_mb").unwrap(), 1.0);
        raw.set_number(column("batch_idx").unwrap(), 7.0);
        assert_eq!(raw.sample(1).unwrap().step, Some(7));
    }

    #[test]
    fn the_wait_is_part_of_the_step_or_beside_it() {
        for (data, step, share) in [(0.63, 1.0, 0.63), (1.5, 0.5, 0.75), (0.0, 1.0, 0.0)] {
            let mut raw = Raw::new(Guess::default());
            raw.set_number(column("used_mb").unwrap(), 1.0);
            raw.set_number(column("data_time").unwrap(), data);
            raw.set_number(column("step_time").unwrap(), step);
            assert_eq!(raw.sample(1).unwrap().waited, Some(share), "{data} {step}");
        }
    }
}
