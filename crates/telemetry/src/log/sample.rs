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
    numbers: [Option<f64>; Meaning::COUNT],
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            line: 0,
            phase: None,
            numbers: [None; Meaning::COUNT],
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

/// Reads the numbers of one line at a time, and guesses the unit of names without one.
#[derive(Clone, Debug, Default)]
pub(super) struct SampleReader {
    sample: Sample,
    pub device: String,
    device_rank: usize,
    guess: UnitGuess,
}

/// Guess of the unit of names without one, from the largest number.
#[derive(Clone, Debug, Default)]
pub(super) struct UnitGuess {
    scale: Option<f64>,
    largest: f64,
    has_fraction: bool,
}

impl UnitGuess {
    fn scaled(&mut self, number: f64) -> f64 {
        self.largest = self.largest.max(number);
        self.has_fraction |= number.fract() != 0.0;
        // Where the window had no such number, the first one decides.
        number
            * *self
                .scale
                .get_or_insert_with(|| guessed_scale(number, self.has_fraction))
    }

    /// The guess from all numbers so far.
    pub fn decided(&self) -> UnitGuess {
        UnitGuess {
            scale: (self.largest > 0.0).then(|| guessed_scale(self.largest, self.has_fraction)),
            ..UnitGuess::default()
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

impl SampleReader {
    pub fn new(guess: UnitGuess) -> SampleReader {
        SampleReader {
            guess,
            ..SampleReader::default()
        }
    }

    pub fn guess(&self) -> &UnitGuess {
        &self.guess
    }

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
        self.checked().step()
    }

    /// Whether the line has a number of this meaning.
    pub fn is_known(&self, meaning: Meaning) -> bool {
        self.sample.get(meaning).is_some()
    }

    pub fn set_number(&mut self, column: Column, number: f64) {
        let slot = &mut self.sample.numbers[column.meaning as usize];
        match column.meaning {
            // One loss that is not finite counts more than others that are.
            Meaning::Loss if !number.is_finite() => *slot = Some(f64::NAN),
            _ if !number.is_finite() => {}
            meaning if meaning.is_device() => {
                if (0.0..1e9).contains(&number) {
                    self.set_device(meaning, &format!("{}", number.trunc()));
                }
            }
            Meaning::Phase => {}
            // Of several columns with the same meaning, the first counts.
            _ if slot.is_some() => {}
            Meaning::Time => *slot = Some(seconds(number)),
            _ => {
                *slot = Some(match column.scale {
                    Some(scale) => number * scale,
                    None => self.guess.scaled(number),
                });
            }
        }
    }

    pub fn set_text(&mut self, column: Column, text: &str) {
        match column.meaning {
            Meaning::Loss if is_not_finite(text) => self.set_number(column, f64::NAN),
            _ if is_unknown(text) => {}
            Meaning::Phase => self.sample.phase = self.sample.phase.or(phase(text)),
            meaning if meaning.is_device() => self.set_device(meaning, text.trim()),
            _ => {
                let time = timestamp(text).filter(|_| column.meaning == Meaning::Time);
                if let Some(time) = time {
                    self.set_number(column, time);
                } else if let Some((number, unit)) = number_and_unit(text) {
                    // A unit beside the number takes precedence over a unit in the name.
                    let of_number = unit_bytes(&unit).filter(|_| column.meaning.is_bytes());
                    let scale = of_number.or(column.scale);
                    self.set_number(Column { scale, ..column }, number);
                }
            }
        }
    }

    fn set_device(&mut self, meaning: Meaning, name: &str) {
        const LONGEST: usize = 64;
        if meaning as usize > self.device_rank && name.len() <= LONGEST {
            self.device_rank = meaning as usize;
            name.clone_into(&mut self.device);
        }
    }

    /// The numbers that make sense.
    fn checked(&self) -> Sample {
        /// More than any machine has.
        const MOST_BYTES: f64 = 1e15;
        let mut sample = self.sample;
        for (index, slot) in sample.numbers.iter_mut().enumerate() {
            let is = |meaning: Meaning| index == meaning as usize;
            *slot = slot.filter(|number| match *number {
                n if is(Meaning::Total) || is(Meaning::Budget) || is(Meaning::Planned) => {
                    0.0 < n && n < MOST_BYTES
                }
                n if index <= Meaning::Planned as usize => (0.0..MOST_BYTES).contains(&n),
                n if is(Meaning::Time) => n.abs() < 1e12,
                n if is(Meaning::Step) || is(Meaning::BatchIndex) || is(Meaning::Epoch) => {
                    (0.0..1e15).contains(&n)
                }
                n if is(Meaning::Utilization) => (0.0..=100.0).contains(&n),
                n if is(Meaning::DataTime) => (0.0..1e12).contains(&n),
                n if is(Meaning::Waited) => (0.0..=1.0).contains(&n),
                n => (1e-9..1e12).contains(&n),
            });
        }
        sample
    }

    /// The sample; `None` without memory and utilization.
    pub fn sample(&self, line: u64) -> Option<Sample> {
        let mut sample = Sample {
            line,
            ..self.checked()
        };
        let get = |meaning| sample.get(meaning);
        let used = get(Meaning::Used).or_else(|| {
            let total = get(Meaning::Total)?;
            Some((total - get(Meaning::Free)?).max(0.0))
        });
        // Scripts report allocated memory as used and the rest as free, but reserved memory is in use too.
        let used = used.map(|used| used.max(get(Meaning::Reserved).unwrap_or(0.0)));
        let others = || Some((used? - get(Meaning::Process)?).max(0.0));
        let waited = get(Meaning::Waited)
            .or_else(|| waited_share(get(Meaning::DataTime)?, get(Meaning::StepTime)?));
        let others = others();
        sample.numbers[Meaning::Used as usize] = used;
        sample.numbers[Meaning::Others as usize] = others;
        sample.numbers[Meaning::Waited as usize] = waited;
        let is_sample = sample.get(Meaning::Utilization).is_some()
            || sample.first_of(&Meaning::CHANNELS).is_some();
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
            let guess = UnitGuess {
                largest,
                has_fraction,
                scale: None,
            };
            assert_eq!(guess.decided().unit(), Some(unit), "{largest}");
        }
        assert_eq!(UnitGuess::default().decided().unit(), None);
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
