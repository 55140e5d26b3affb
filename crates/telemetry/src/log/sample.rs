//! A line's numbers in bytes and seconds, without implausible values.

use super::columns::{Column, Meaning};
use super::values::{is_not_finite, is_unknown, number_and_unit, timestamp, unit_bytes};
use crate::memory_log::Phase;

/// A sample of one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Line number in the log, from 1.
    pub line: u64,
    pub phase: Option<Phase>,
    numbers: [Option<f64>; Meaning::NUM_QUANTITIES],
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            line: 0,
            phase: None,
            numbers: [None; Meaning::NUM_QUANTITIES],
        }
    }
}

impl Sample {
    pub fn get(&self, meaning: Meaning) -> Option<f64> {
        self.numbers[meaning as usize]
    }

    /// The first known of several quantities.
    pub fn first_of(&self, meanings: &[Meaning]) -> Option<f64> {
        meanings.iter().find_map(|meaning| self.get(*meaning))
    }

    /// The largest known of several quantities.
    pub fn largest_of(&self, meanings: &[Meaning]) -> Option<f64> {
        let known = meanings.iter().filter_map(|meaning| self.get(*meaning));
        known.reduce(f64::max)
    }

    pub fn time(&self) -> Option<f64> {
        self.get(Meaning::Time)
    }

    pub fn step(&self) -> Option<u64> {
        let step = self.first_of(&[Meaning::Step, Meaning::BatchIndex]);
        step.map(|step| step as u64)
    }

    pub fn epoch(&self) -> Option<u64> {
        self.get(Meaning::Epoch).map(|epoch| epoch as u64)
    }

    pub fn set(&mut self, meaning: Meaning, number: Option<f64>) {
        self.numbers[meaning as usize] = number;
    }

    /// Combines each number with another sample's; this sample keeps its place in the log.
    pub fn merge(&mut self, other: &Sample, combine: impl Fn(f64, f64) -> f64) {
        let is_place = |index| (Meaning::Time as usize..=Meaning::Epoch as usize).contains(&index);
        for (index, (own, other)) in self.numbers.iter_mut().zip(other.numbers).enumerate() {
            if let (Some(one), Some(two), false) = (*own, other, is_place(index)) {
                *own = Some(combine(one, two));
            } else {
                *own = own.or(other);
            }
        }
    }

    #[cfg(test)]
    pub fn with(mut self, meaning: Meaning, number: f64) -> Sample {
        self.numbers[meaning as usize] = Some(number);
        self
    }
}

/// Reads the numbers of one line at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct SampleReader {
    sample: Sample,
    pub device: String,
    device_rank: usize,
    pub guess: UnitGuess,
}

/// Guess of the unit of names without one, from the largest number.
#[derive(Clone, Debug, Default)]
pub(super) struct UnitGuess {
    /// Name and bytes of the unit, once it is decided.
    pub unit: Option<(&'static str, f64)>,
    largest: f64,
    has_fraction: bool,
}

impl UnitGuess {
    fn scaled(&mut self, number: f64) -> f64 {
        self.largest = self.largest.max(number);
        self.has_fraction |= number.fract() != 0.0;
        number * self.unit.unwrap_or_else(|| self.best()).1
    }

    /// No GPU has 4 TiB, so a number that would be more in MiB is in bytes; none has 512 GiB, so a number above 512 is not in GiB.
    fn best(&self) -> (&'static str, f64) {
        match self.largest {
            n if n > 4_194_304.0 => ("bytes", 1.0),
            n if n > 512.0 || !self.has_fraction => ("MiB", 1_048_576.0),
            _ => ("GiB", 1_073_741_824.0),
        }
    }

    /// Decides by the numbers so far, if there were any.
    pub fn decide(&mut self) {
        self.unit = (self.largest > 0.0).then(|| self.best());
    }
}

impl SampleReader {
    /// Forgets the line before.
    pub fn clear(&mut self) {
        self.sample = Sample::default();
        self.device.clear();
        self.device_rank = 0;
    }

    /// Whether the line's losses are finite; `None` without losses.
    pub fn has_finite_loss(&self) -> Option<bool> {
        self.sample.get(Meaning::Loss).map(f64::is_finite)
    }

    pub fn step(&self) -> Option<u64> {
        self.sample.step()
    }

    /// Sets a number in the base unit.
    pub fn set(&mut self, meaning: Meaning, number: f64) {
        let scale = Some(1.0);
        self.set_number(Column { meaning, scale }, number);
    }

    pub fn set_number(&mut self, column: Column, number: f64) {
        let meaning = column.meaning;
        if !number.is_finite() {
            if meaning == Meaning::Loss {
                // One loss that is not finite counts more than others that are.
                self.sample.set(meaning, Some(f64::NAN));
            }
            return;
        }
        if meaning.is_device() && meaning.may_be(number) {
            self.set_device(meaning, &number.trunc().to_string());
        }
        // Of several columns with the same meaning, the first counts.
        if meaning as usize >= Meaning::NUM_QUANTITIES || self.sample.get(meaning).is_some() {
            return;
        }
        let number = match (meaning, column.scale) {
            (Meaning::Time, _) => seconds(number),
            (_, Some(scale)) => number * scale,
            (_, None) => self.guess.scaled(number),
        };
        let number = Some(number).filter(|number| meaning.may_be(*number));
        self.sample.set(meaning, number);
    }

    /// Sets the text of a cell; false if it cannot be read.
    pub fn set_text(&mut self, column: Column, text: &str) -> bool {
        let meaning = column.meaning;
        if meaning == Meaning::Loss && is_not_finite(text) {
            self.set_number(column, f64::NAN);
        } else if is_unknown(text) {
        } else if meaning == Meaning::Phase {
            self.sample.phase = self.sample.phase.or(phase(text));
        } else if meaning.is_device() {
            self.set_device(meaning, text.trim());
        } else if let Some(time) = timestamp(text).filter(|_| meaning == Meaning::Time) {
            self.set_number(column, time);
        } else if let Some((number, unit)) = number_and_unit(text) {
            // A unit beside the number takes precedence over a unit in the name.
            let of_number = unit_bytes(&unit).filter(|_| meaning.is_bytes());
            let scale = of_number.or(column.scale);
            self.set_number(Column { meaning, scale }, number);
        } else {
            return false;
        }
        true
    }

    fn set_device(&mut self, meaning: Meaning, name: &str) {
        const LONGEST: usize = 64;
        if meaning as usize > self.device_rank && name.len() <= LONGEST {
            self.device_rank = meaning as usize;
            name.clone_into(&mut self.device);
        }
    }

    /// The sample; `None` without memory and utilization.
    pub fn sample(&self, line: u64) -> Option<Sample> {
        let mut sample = self.sample;
        sample.line = line;
        let get = |meaning| self.sample.get(meaning);
        let rest = || Some((get(Meaning::Total)? - get(Meaning::Free)?).max(0.0));
        let used = get(Meaning::Used).or_else(rest);
        // Scripts report allocated memory as used and the rest as free, but reserved memory is in use too.
        let used = used.map(|used| used.max(get(Meaning::Reserved).unwrap_or(0.0)));
        let process = get(Meaning::Process);
        let others = used
            .zip(process)
            .map(|(used, process)| (used - process).max(0.0));
        let waited = || waited_share(get(Meaning::DataTime)?, get(Meaning::StepTime)?);
        sample.set(Meaning::Used, used);
        sample.set(Meaning::Others, others);
        sample.set(Meaning::Waited, get(Meaning::Waited).or_else(waited));
        let is_sample = get(Meaning::Utilization).is_some()
            || sample.numbers[..Meaning::Total as usize]
                .iter()
                .any(Option::is_some);
        is_sample.then_some(sample)
    }
}

/// Share of the time spent waiting. Most scripts include the wait in the step time; a wait longer than the step was measured
/// separately.
fn waited_share(data: f64, step: f64) -> Option<f64> {
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

/// Beginnings of the words that scripts name phases with: `train`, `val_epoch`, `after_backward`, `checkpoint saved`.
const PHASES: [(Phase, &str); 6] = [
    (Phase::Evaluate, "eval val test infer"),
    (Phase::Save, "save saving checkpoint ckpt"),
    (Phase::Warmup, "warm"),
    (Phase::Plan, "plan"),
    (
        Phase::Train,
        "train epoch fit step batch forward backward optim zero loss",
    ),
    (Phase::Start, "start init load setup baseline model"),
];

fn phase(text: &str) -> Option<Phase> {
    const LONGEST: usize = 48;
    let text = text.to_ascii_lowercase();
    let begins = |beginning: &str| {
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| word.starts_with(beginning))
    };
    let is_it = |(_, beginnings): &&(Phase, &str)| beginnings.split(' ').any(begins);
    let found = PHASES.iter().find(is_it);
    found
        .filter(|_| text.len() <= LONGEST)
        .map(|(phase, _)| *phase)
}

#[cfg(test)]
mod tests {
    use super::super::columns::column;
    use super::*;

    fn read(numbers: &[(&str, f64)]) -> SampleReader {
        let mut reader = SampleReader::default();
        for (name, number) in numbers {
            reader.set_number(column(name).unwrap(), *number);
        }
        reader
    }

    #[test]
    fn units_are_guessed_from_the_largest_number() {
        for (largest, has_fraction, unit) in [
            (150_109_880_320.0, false, "bytes"),
            (143_771.0, false, "MiB"),
            (9_343.5, true, "MiB"),
            (11.7, true, "GiB"),
            (200.0, false, "MiB"),
        ] {
            let mut guess = UnitGuess {
                largest,
                has_fraction,
                unit: None,
            };
            guess.decide();
            assert_eq!(guess.unit.unwrap().0, unit, "{largest}");
        }
        let mut none = UnitGuess::default();
        none.decide();
        assert_eq!(none.unit, None);
    }

    #[test]
    fn numbers_that_make_no_sense_are_unknown() {
        let reader = read(&[
            ("used_bytes", 5.0),
            ("total_bytes", -1.0),
            ("gpu_util", 250.0),
            ("step", -3.0),
            ("process_bytes", f64::INFINITY),
            ("time", 1e300),
        ]);
        let expected = Sample {
            line: 7,
            ..Sample::default().with(Meaning::Used, 5.0)
        };
        assert_eq!(reader.sample(7), Some(expected));
        assert_eq!(read(&[("step", 3.0)]).sample(7), None);
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
        for numbers in [
            [("batch_idx", 7.0), ("global_step", 207.0)],
            [("global_step", 207.0), ("batch_idx", 7.0)],
        ] {
            let mut reader = read(&[("allocated_mb", 1.0), numbers[0], numbers[1]]);
            reader.set_text(column("phase").unwrap(), "train");
            let sample = reader.sample(1).unwrap();
            assert_eq!(
                (sample.step(), sample.phase),
                (Some(207), Some(Phase::Train))
            );
        }
        let reader = read(&[("allocated_mb", 1.0), ("batch_idx", 7.0)]);
        assert_eq!(reader.sample(1).unwrap().step(), Some(7));
    }

    #[test]
    fn the_wait_is_part_of_the_step_or_beside_it() {
        for (data, step, share) in [(0.63, 1.0, 0.63), (1.5, 0.5, 0.75), (0.0, 1.0, 0.0)] {
            let reader = read(&[("used_mb", 1.0), ("data_time", data), ("step_time", step)]);
            let sample = reader.sample(1).unwrap();
            assert_eq!(sample.get(Meaning::Waited), Some(share), "{data} {step}");
        }
    }
}
