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

use super::LineKind;
use super::columns::{Column, Meaning, column};
use super::sample::SampleReader;
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

    pub fn read(&mut self, line: &str, sample: &mut SampleReader) -> Result<LineKind, String> {
        for (slot, (words, _)) in self.counters.iter_mut().zip(COUNTERS) {
            *slot = counter(line, words).or(*slot);
        }
        let mut is_of_memory = false;
        for (meaning, bytes) in memory(line) {
            is_of_memory = true;
            sample.set_number(of(meaning), bytes);
        }
        if !is_of_memory {
            return Ok(LineKind::Header);
        }
        let counters = self.counters.iter().zip(COUNTERS);
        for (number, (_, meaning)) in counters {
            if let Some(number) = number {
                sample.set_number(of(meaning), *number);
            }
        }
        let begin = line.trim_start_matches('[');
        let time = [23, 19]
            .iter()
            .find_map(|end| timestamp(begin.get(..*end)?));
        if let Some(time) = time {
            sample.set_number(of(Meaning::Time), time);
        }
        Ok(LineKind::Sample)
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
    let pieces = pieces.flat_map(|piece| piece.split(" - "));
    pieces.filter_map(move |piece| {
        let words: Vec<&str> = piece
            .split([' ', ':', '=', '~'])
            .filter(|word| !word.is_empty())
            .collect();
        let amount = (0..words.len()).find_map(|at| Some((at, amount(&words[at..])?)));
        let end = amount.map_or(words.len(), |(at, _)| at);
        // Names are behind other numbers: `step 5 GPU memory allocated 14 GB`.
        let is_number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        let begin = words[..end].iter().rposition(is_number);
        let name = words[begin.map_or(0, |at| at + 1)..end].join(" ");
        let Some((at, (bytes, length))) = amount else {
            subject = name;
            return None;
        };
        let behind = words[at + length..].join(" ");
        let named = |name: &str| {
            let whole = column(&format!("{subject} {name}"));
            // Behind an amount of memory in its line, `peak` is one of memory too.
            let after = || last.and_then(|_| column(&format!("memory {name}")));
            let meaning = whole.or_else(|| column(name)).or_else(after)?.meaning;
            meaning.is_bytes().then_some(meaning)
        };
        let meaning = match (name.as_str(), behind.as_str()) {
            // `3.5 GB / 24 GB`
            ("", "") if last == Some(Meaning::Used) => Meaning::Total,
            ("", "") => return None,
            ("", behind) => named(behind)?,
            (name, "") => named(name)?,
            // `GPU memory: 14000MB allocated, 58212MB peak`
            (name, behind) => named(behind).or_else(|| named(name))?,
        };
        last = Some(meaning);
        Some((meaning, bytes))
    })
}

/// An amount of memory at the beginning of `words`, and how many of them it has: `2.15GB`, `2.15 GB`.
fn amount(words: &[&str]) -> Option<(f64, usize)> {
    let (number, unit) = number_and_unit(words[0])?;
    let (unit, length) = if unit.is_empty() {
        (words.get(1)?.to_ascii_lowercase(), 2)
    } else {
        (unit, 1)
    };
    Some((number * unit_bytes(&unit)?, length))
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
    use super::super::sample::Sample;
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    fn samples(text: &str) -> Vec<Sample> {
        let mut reader = ProseReader::default();
        let mut raw = SampleReader::default();
        let lines = text.lines().filter_map(|line| {
            raw.clear();
            match reader.read(line, &mut raw) {
                Ok(LineKind::Sample) => raw.sample(1),
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
            let numbers = (
                sample.get(Meaning::Allocated),
                sample.get(Meaning::AllocatedPeak),
                sample.get(Meaning::Reserved),
            );
            assert_eq!(
                numbers,
                (bytes(allocated), bytes(peak), bytes(reserved)),
                "{line}"
            );
        }
        let found = &samples("GPU memory: 3.50 GB / 24.00 GB")[0];
        assert_eq!(
            (found.get(Meaning::Used), found.get(Meaning::Total)),
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
        assert_eq!((found[0].epoch(), found[0].step()), (Some(3), Some(40)));
        assert_eq!(found[0].time(), timestamp("2026-01-02 03:04:05"));
        assert_eq!((found[1].epoch(), found[1].time()), (Some(4), None));
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
