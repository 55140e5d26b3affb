//! Text: what training scripts print, and the table that `nvidia-smi -l 1` repeats.
//!
//! ```text
//! 2026-01-02 03:04:05 INFO Epoch [3/20] Step [40/100]
//! 2026-01-02 03:04:05 INFO GPU Memory - Allocated: 2.15GB / Peak: 3.01GB
//! [GPU] memory: 3.50 GB / 24.00 GB
//!
//! Mon Nov 16 02:57:09 2026
//! |   0  NVIDIA H200                    On  |   00000000:1B:00.0 Off |                    0 |
//! | N/A   34C    P0             77W /  700W |   61284MiB / 143771MiB |     98%      Default |
//! ```
//!
//! A number is read if it has a unit of bytes, and a name with a known meaning, by itself or after the subject of its line. Epoch, step,
//! the table's time and the index of its GPU are remembered from earlier lines.

use super::LineKind;
use super::columns::{Meaning, column};
use super::sample::SampleReader;
use super::values::{number_and_unit, timestamp, unit_bytes};

#[derive(Clone, Debug, Default)]
pub(super) struct TextReader {
    /// Whether it is the table of nvidia-smi.
    pub is_table: bool,
    counters: [Option<f64>; COUNTERS.len()],
    time: Option<f64>,
    gpu: Option<f64>,
}

/// Counters of a script, and their meanings.
const COUNTERS: [(&[&str], Meaning); 3] = [
    (&["epoch"], Meaning::Epoch),
    (&["step", "iter", "iteration"], Meaning::Step),
    (&["batch"], Meaning::BatchIndex),
];

impl TextReader {
    /// A reader of nvidia-smi's table, if one of the lines is its head.
    pub fn of_table(lines: &[&str]) -> Option<TextReader> {
        let is_table = lines.iter().any(|line| line.starts_with("| NVIDIA-SMI"));
        is_table.then(|| TextReader {
            is_table,
            ..TextReader::default()
        })
    }

    /// Whether a line has a recognised amount of memory.
    pub fn has_memory(line: &str) -> bool {
        memory(line).next().is_some()
    }

    pub fn read(&mut self, line: &str, sample: &mut SampleReader) -> LineKind {
        let is_sample = if self.is_table {
            self.read_table(line, sample)
        } else {
            self.read_prose(line, sample)
        };
        if is_sample.is_some() {
            LineKind::Sample
        } else {
            LineKind::Header
        }
    }

    fn read_prose(&mut self, line: &str, sample: &mut SampleReader) -> Option<()> {
        for (slot, (words, _)) in self.counters.iter_mut().zip(COUNTERS) {
            *slot = counter(line, words).or(*slot);
        }
        let amounts: Vec<(Meaning, f64)> = memory(line).collect();
        amounts.first()?;
        amounts
            .into_iter()
            .for_each(|(meaning, bytes)| sample.set(meaning, bytes));
        let begin = line.trim_start_matches('[');
        let mut ends = [23, 19].into_iter();
        let time = ends.find_map(|end| timestamp(begin.get(..end)?));
        let counters = self
            .counters
            .into_iter()
            .zip(COUNTERS.map(|(_, meaning)| meaning));
        for (number, meaning) in counters.chain([(time, Meaning::Time)]) {
            number
                .into_iter()
                .for_each(|number| sample.set(meaning, number));
        }
        Some(())
    }

    /// Two rows per GPU: the first has its index, the second its memory. Other lines are borders and processes.
    fn read_table(&mut self, line: &str, sample: &mut SampleReader) -> Option<()> {
        self.time = date(line).or(self.time);
        let cells: Vec<&str> = line
            .strip_prefix('|')?
            .trim_end_matches('|')
            .split('|')
            .collect();
        let [first, second, third] = cells[..] else {
            return None;
        };
        let word = |cell: &str| cell.split_whitespace().next().map(str::to_owned);
        let bytes = |text: &str| amount(&[text.trim()]).map(|(bytes, _)| bytes);
        let amounts = second.split_once('/');
        let amounts = amounts.and_then(|(used, total)| Some((bytes(used)?, bytes(total)?)));
        let Some((used, total)) = amounts else {
            let index = word(first).and_then(|word| word.parse().ok());
            self.gpu = index.or(self.gpu);
            return None;
        };
        sample.set(Meaning::Used, used);
        sample.set(Meaning::Total, total);
        let busy = word(third).and_then(|word| word.strip_suffix('%')?.parse().ok());
        let optional = [
            (Meaning::Utilization, busy),
            (Meaning::DeviceIndex, self.gpu.take()),
            (Meaning::Time, self.time),
        ];
        for (meaning, number) in optional {
            number
                .into_iter()
                .for_each(|number| sample.set(meaning, number));
        }
        Some(())
    }
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

/// Time of a line such as `Mon Nov 16 02:57:09 2026`.
fn date(line: &str) -> Option<f64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let words: Vec<&str> = line.split_whitespace().take(6).collect();
    let [_, month, day, time, year] = words[..] else {
        return None;
    };
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let (day, year): (u32, u32) = (day.parse().ok()?, year.parse().ok()?);
    timestamp(&format!("{year:04}-{month:02}-{day:02} {time}"))
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    fn samples(text: &str) -> Vec<Sample> {
        let mut reader = TextReader::default();
        let mut raw = SampleReader::default();
        let lines = text.lines().filter_map(|line| {
            raw.clear();
            match reader.read(line, &mut raw) {
                LineKind::Sample => raw.sample(1),
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
            assert!(!TextReader::has_memory(line), "{line}");
        }
    }

    const MIB: f64 = 1_048_576.0;

    #[test]
    fn a_table_of_two_gpus() {
        let text = "\
Mon Nov 16 02:57:09 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             77W /  700W |   61284MiB / 143771MiB |     98%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H200                    On  |   00000000:1C:00.0 Off |                    0 |
| N/A   34C    P0            ERR! /  700W |       4MiB / 143771MiB |     N/A      Default |
+-----------------------------------------------------------------------------------------+
|    0   N/A  N/A      1234      C   python                                    61280MiB |";
        let mut reader = TextReader::of_table(&["| NVIDIA-SMI 550.54.15 |"]).unwrap();
        let mut raw = SampleReader::default();
        let mut found: Vec<(Sample, String)> = Vec::new();
        for line in text.lines() {
            raw.clear();
            if reader.read(line, &mut raw) == LineKind::Sample {
                found.push((raw.sample(1).unwrap(), raw.device.clone()));
            }
        }
        assert_eq!(found.len(), 2);
        let (first, device) = &found[0];
        assert_eq!(
            (first.get(Meaning::Used), first.get(Meaning::Total)),
            (Some(61_284.0 * MIB), Some(143_771.0 * MIB))
        );
        assert_eq!(
            (first.get(Meaning::Utilization), device.as_str()),
            (Some(98.0), "0")
        );
        assert_eq!(first.time(), timestamp("2026-11-16 02:57:09"));
        assert_eq!(
            (found[1].0.get(Meaning::Utilization), found[1].1.as_str()),
            (None, "1")
        );
    }
}
