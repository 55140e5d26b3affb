//! Text logs of training scripts.
//!
//! ```text
//! 2026-01-02 03:04:05 INFO Epoch [3/20] Step [40/100]
//! 2026-01-02 03:04:05 INFO GPU Memory - Allocated: 2.15GB / Peak: 3.01GB
//! [GPU] memory: 3.50 GB / 24.00 GB
//! ```
//!
//! A number is read if it has a unit of bytes, and a name with a known meaning, by itself or after the subject of its line. Epoch
//! and step are remembered from earlier lines.

use super::columns::{Column, Meaning, column};
use super::csv::Read;
use super::record::Raw;
use super::values::{number_and_unit, timestamp, unit_bytes};

#[derive(Clone, Debug, Default)]
pub(super) struct ProseReader {
    counters: [Option<f64>; COUNTERS.len()],
}

/// Counters of a script, and their meanings.
const COUNTERS: [(&[&str], Meaning); 3] = [
    (&["epoch"], Meaning::Epoch),
    (&["step", "iter", "iteration"], Meaning::Step),
    (&["batch"], Meaning::BatchIndex),
];

impl ProseReader {
    /// Whether a line has a recognised amount of memory.
    pub fn has_memory(line: &str) -> bool {
        memory(line).any(|(meaning, _)| meaning.is_bytes())
    }

    pub fn read(&mut self, line: &str, raw: &mut Raw) -> Result<Read, String> {
        for (slot, (words, _)) in self.counters.iter_mut().zip(COUNTERS) {
            *slot = counter(line, words).or(*slot);
        }
        let mut is_of_memory = false;
        for (meaning, bytes) in memory(line) {
            is_of_memory = true;
            raw.set_number(of(meaning), bytes);
        }
        if !is_of_memory {
            return Ok(Read::Header);
        }
        let counters = self.counters.iter().zip(COUNTERS);
        for (number, (_, meaning)) in counters {
            if let Some(number) = number {
                raw.set_number(of(meaning), *number);
            }
        }
        let begin = line.trim_start_matches('[');
        let time = [23, 19]
            .iter()
            .find_map(|end| timestamp(begin.get(..*end)?));
        if let Some(time) = time {
            raw.set_number(of(Meaning::Time), time);
        }
        Ok(Read::Cells)
    }
}

fn of(meaning: Meaning) -> Column {
    let scale = Some(1.0);
    Column { meaning, scale }
}

/// All amounts of memory in a line, with their meanings.
fn memory(line: &str) -> impl Iterator<Item = (Meaning, f64)> {
    let mut subject = String::new();
    let mut last: Option<Meaning> = None;
    let pieces = line.split([',', ';', '|', '/', '(', ')', '[', ']']);
    pieces
        .flat_map(|piece| piece.split(" - "))
        .filter_map(move |piece| {
            let name_and_value = piece.rfind([':', '=']).map(|at| {
                let (name, value) = piece.split_at(at);
                (name.trim(), value[1..].trim())
            });
            let (name, value) = match name_and_value {
                // `GPU memory: allocated 2.1 GB`
                Some((name, value)) if !begins_with_digit(value) => {
                    subject = name.to_owned();
                    split_before_number(value)?
                }
                Some(found) => found,
                None => match split_before_number(piece.trim()) {
                    Some(found) => found,
                    None => {
                        subject = piece.trim().to_owned();
                        return None;
                    }
                },
            };
            let words = first_words(value);
            let behind = value[words.len()..].trim();
            let Some(bytes) = bytes_of(words) else {
                // `step 5 GPU Memory - Allocated: 14 GB`
                subject = value
                    .trim_start_matches(|c: char| !c.is_ascii_alphabetic())
                    .to_owned();
                return None;
            };
            let named = |name: &str| {
                let whole = column(&format!("{subject} {name}"));
                // Behind an amount of memory in its line, `peak` is one of memory too.
                let after = || last.and_then(|_| column(&format!("memory {name}")));
                let meaning = whole.or_else(|| column(name)).or_else(after)?.meaning;
                meaning.is_bytes().then_some(meaning)
            };
            let meaning = match (name, behind) {
                // `3.5 GB / 24 GB`
                ("", "") if last == Some(Meaning::Used) => Meaning::Total,
                // `GPU memory: 14000MB allocated, 58212MB peak`
                _ if !behind.is_empty() && named(behind).is_some() => named(behind)?,
                ("", _) => return None,
                _ => named(name)?,
            };
            last = Some(meaning);
            Some((meaning, bytes))
        })
}

fn bytes_of(amount: &str) -> Option<f64> {
    let (number, unit) = number_and_unit(amount)?;
    Some(number * unit_bytes(unit.split(' ').next()?)?)
}

fn begins_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Splits `allocated 2.15 GB` into name and value.
fn split_before_number(text: &str) -> Option<(&str, &str)> {
    let at = text.find(|c: char| c.is_ascii_digit())?;
    let (name, value) = text.split_at(at);
    let is_word_end = name.is_empty() || name.ends_with([' ', ':', '=', '~']);
    is_word_end.then(|| (name.trim_end_matches([' ', ':', '=', '~']), value))
}

/// A number and the word after it.
fn first_words(value: &str) -> &str {
    let mut ends = value.match_indices(' ').map(|(at, _)| at);
    let begin = value.split(' ').next().unwrap_or(value);
    let has_unit = begin.ends_with(|c: char| c.is_ascii_alphabetic());
    let end = if has_unit { ends.next() } else { ends.nth(1) };
    &value[..end.unwrap_or(value.len())]
}

/// The number after one of the words, as in `Epoch [3/20]`, `epoch: 3` and `Epoch 3`.
fn counter(line: &str, words: &[&str]) -> Option<f64> {
    let lower = line.to_ascii_lowercase();
    words.iter().find_map(|word| {
        let (at, _) = lower.match_indices(word).find(|(at, _)| {
            let before = lower[..*at].chars().next_back();
            before.is_none_or(|c| !c.is_ascii_alphanumeric())
        })?;
        let behind = lower[at + word.len()..].trim_start_matches([' ', ':', '=', '[', '(', '#']);
        let end = behind
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(behind.len());
        behind[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::super::record::{Guess, Sample};
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    fn samples(text: &str) -> Vec<Sample> {
        let mut reader = ProseReader::default();
        let mut raw = Raw::new(Guess::default());
        let lines = text.lines().filter_map(|line| {
            raw.clear();
            match reader.read(line, &mut raw) {
                Ok(Read::Cells) => raw.sample(1),
                _ => None,
            }
        });
        lines.collect()
    }

    #[test]
    fn memory_as_scripts_print_it() {
        for (line, allocated, peak, reserved) in [
            (
                "GPU Memory - Allocated: 2.15GB / Peak: 3.01GB",
                Some(2.15),
                Some(3.01),
                None,
            ),
            (
                "GPU Memory - Allocated: 3.50 GB, Peak: 4.20 GB",
                Some(3.5),
                Some(4.2),
                None,
            ),
            (
                "2026-01-02 03:04:05,678 INFO GPU memory: allocated=2.5GB, reserved=4GB, max allocated=3GB",
                Some(2.5),
                Some(3.0),
                Some(4.0),
            ),
            (
                "CUDA memory allocated 1.5 GiB | reserved 2.0 GiB",
                Some(1.5),
                None,
                Some(2.0),
            ),
            (
                "step 5 GPU Memory - Allocated: 14.00GB / Peak: 56.85GB",
                Some(14.0),
                Some(56.85),
                None,
            ),
            (
                "[Epoch 0][Step 5] loss=1.0 GPU Memory - Allocated: 14.00GB / Peak: 56.85GB",
                Some(14.0),
                Some(56.85),
                None,
            ),
            (
                "Step 5: GPU memory allocated 14.00 GB, peak 56.85 GB",
                Some(14.0),
                Some(56.85),
                None,
            ),
            (
                "GPU memory: 14.00GB allocated, 56.85GB peak, 60 GB reserved",
                Some(14.0),
                Some(56.85),
                Some(60.0),
            ),
        ] {
            let found = samples(line);
            assert_eq!(found.len(), 1, "{line}");
            let bytes = |gib: Option<f64>| gib.map(|gib| gib * GIB);
            let sample = &found[0];
            let numbers = (sample.allocated, sample.allocated_peak, sample.reserved);
            assert_eq!(
                numbers,
                (bytes(allocated), bytes(peak), bytes(reserved)),
                "{line}"
            );
        }
        let found = &samples("GPU memory: 3.50 GB / 24.00 GB")[0];
        assert_eq!(
            (found.used, found.total),
            (Some(3.5 * GIB), Some(24.0 * GIB))
        );
    }

    #[test]
    fn epochs_steps_and_times_are_of_the_lines_before() {
        let found = samples(
            "2026-01-02 03:04:05 Epoch [3/20] Step [40/100] loss: 0.25\n\
             2026-01-02 03:04:05 GPU Memory - Allocated: 2.15GB / Peak: 3.01GB\n\
             Epoch 4\nGPU Memory - Allocated: 2.15GB / Peak: 3.01GB\n",
        );
        assert_eq!((found[0].epoch, found[0].step), (Some(3), Some(40)));
        assert_eq!(found[0].time, timestamp("2026-01-02 03:04:05"));
        assert_eq!((found[1].epoch, found[1].time), (Some(4), None));
    }

    #[test]
    fn other_lines_have_no_memory() {
        for line in [
            "",
            "Epoch 3: loss 0.25, lr 1e-4",
            "2026/01/02 03:04:05.678, 1234 MiB, 98 %",
            "timestamp, memory.used [MiB], memory.total [MiB]",
            "Downloading model.safetensors: 605MB",
            "dataset: 2.5GB",
            "https://example.org:8080/a 3GB",
        ] {
            assert!(!ProseReader::has_memory(line), "{line}");
        }
    }
}
