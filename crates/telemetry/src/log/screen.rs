//! Repeated tables of `nvidia-smi` in a file: `nvidia-smi -l 1 > gpu.txt`.
//!
//! ```text
//! Mon Nov 16 02:57:09 2026
//! |   0  NVIDIA H200                    On  |   00000000:1B:00.0 Off |                    0 |
//! | N/A   34C    P0             77W /  700W |   61284MiB / 143771MiB |     98%      Default |
//! ```
//!
//! Two rows per GPU: the first has its index, the second its memory. Other lines are borders and processes.

use super::LineKind;
use super::columns::{Column, Meaning};
use super::sample::SampleReader;
use super::values::{number_and_unit, timestamp, unit_bytes};

#[derive(Clone, Debug, Default)]
pub(super) struct ScreenReader {
    time: Option<f64>,
    gpu: Option<f64>,
}

impl ScreenReader {
    /// Whether a line is the head of the table.
    pub fn is_head(line: &str) -> bool {
        line.starts_with("| NVIDIA-SMI")
    }

    pub fn read(&mut self, line: &str, sample: &mut SampleReader) -> Result<LineKind, String> {
        if let Some(time) = date(line) {
            self.time = Some(time);
            return Ok(LineKind::Header);
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if !line.starts_with('|') || cells.len() != 3 {
            return Ok(LineKind::Header);
        }
        let Some((used, total)) = memory(cells[1]) else {
            let first = cells[0].split_whitespace().next();
            self.gpu = first.and_then(|word| word.parse().ok()).or(self.gpu);
            return Ok(LineKind::Header);
        };
        let busy = cells[2].split_whitespace().next();
        let busy = busy.and_then(|word| word.strip_suffix('%')?.parse().ok());
        let numbers = [
            (Meaning::Used, Some(used)),
            (Meaning::Total, Some(total)),
            (Meaning::Utilization, busy),
            (Meaning::DeviceIndex, self.gpu.take()),
            (Meaning::Time, self.time),
        ];
        for (meaning, number) in numbers {
            if let Some(number) = number {
                let scale = Some(1.0);
                sample.set_number(Column { meaning, scale }, number);
            }
        }
        Ok(LineKind::Sample)
    }
}

/// Used and total bytes from `61284MiB / 143771MiB`.
fn memory(cell: &str) -> Option<(f64, f64)> {
    let bytes = |text: &str| {
        let (number, unit) = number_and_unit(text)?;
        Some(number * unit_bytes(&unit)?)
    };
    let (used, total) = cell.split_once('/')?;
    Some((bytes(used)?, bytes(total)?))
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
        let mut reader = ScreenReader::default();
        let mut raw = SampleReader::default();
        let mut found: Vec<(Sample, String)> = Vec::new();
        for line in text.lines() {
            raw.clear();
            if reader.read(line, &mut raw) == Ok(LineKind::Sample) {
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
