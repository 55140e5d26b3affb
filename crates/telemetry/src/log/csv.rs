//! Comma-separated lines, as `nvidia-smi --query-gpu=... --format=csv` prints them, with or without header and units. A header may
//! recur in the middle, after one capture was appended to another.

use super::columns::{Column, Meaning, column};
use super::record::Raw;
use super::values::{is_unknown, number_and_unit, timestamp, unit_bytes};

#[derive(Clone, Debug)]
pub(super) struct CsvReader {
    /// Name and meaning of each cell.
    columns: Vec<(String, Option<Column>)>,
}

/// Kind of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    Cells,
    Header,
}

impl CsvReader {
    /// A reader for these column names, from a header or from the user.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> CsvReader {
        let columns = names
            .into_iter()
            .map(|name| (name.trim().to_owned(), column(name)))
            .collect();
        CsvReader { columns }
    }

    /// A reader from a header; `None` for other lines.
    pub fn of_header(line: &str) -> Option<CsvReader> {
        let cells: Vec<&str> = cells(line).collect();
        let is_number = |cell: &&str| number_and_unit(cell).is_some() || timestamp(cell).is_some();
        // Tests for numbers first: most lines have one and are excluded at once.
        let is_header =
            !cells.iter().any(is_number) && cells.iter().any(|cell| column(cell).is_some());
        is_header.then(|| CsvReader::named(cells))
    }

    /// A reader for lines without a header, guessed from the units of the cells; `None` without units.
    pub fn guessed(lines: &[&str]) -> Option<CsvReader> {
        let first: Vec<&str> = cells(lines.first()?).collect();
        let rows: Vec<Vec<&str>> = lines
            .iter()
            .map(|line| cells(line).collect::<Vec<_>>())
            .filter(|row| row.len() == first.len())
            .collect();
        let largest = |at: usize| -> Option<f64> {
            let bytes = rows.iter().filter_map(|row| {
                let (number, unit) = number_and_unit(row[at])?;
                Some(number * unit_bytes(&unit)?)
            });
            bytes.reduce(f64::max)
        };
        let memory: Vec<(usize, f64)> = (0..first.len())
            .filter_map(|at| Some((at, largest(at)?)))
            .collect();
        let total = match memory.len() {
            0 | 1 => None,
            _ => memory
                .iter()
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(at, _)| *at),
        };
        let used = memory
            .iter()
            .map(|(at, _)| *at)
            .find(|at| Some(*at) != total)?;
        let mut has_utilization = false;
        let names = first.iter().enumerate().map(|(at, cell)| match cell {
            _ if at == used => "memory.used",
            _ if Some(at) == total => "memory.total",
            _ if timestamp(cell).is_some() => "timestamp",
            _ if cell.starts_with("GPU-") => "uuid",
            // In nvidia-smi's own order, the first percentage is the GPU's and the memory's follows.
            _ if cell.ends_with('%') && !std::mem::replace(&mut has_utilization, true) => {
                "utilization.gpu"
            }
            _ => "",
        });
        Some(CsvReader::named(names))
    }

    /// Sets MiB for columns without a unit, as nvidia-smi counts with `nounits`.
    pub fn in_mebibytes(mut self) -> CsvReader {
        for (_, column) in &mut self.columns {
            if let Some(column) = column {
                column.scale = column.scale.or(Some(1_048_576.0));
            }
        }
        self
    }

    pub fn read(&mut self, line: &str, raw: &mut Raw) -> Result<Read, String> {
        let num_cells = cells(line).count();
        if num_cells != self.columns.len() || is_header_like(line) {
            if let Some(other) = CsvReader::of_header(line) {
                *self = other;
                return Ok(Read::Header);
            }
            if num_cells != self.columns.len() {
                let expected = self.columns.len();
                return Err(format!("{expected} cells expected, {num_cells} found"));
            }
        }
        let mut wrong = None;
        for ((name, column), cell) in self.columns.iter().zip(cells(line)) {
            let Some(column) = column else { continue };
            raw.set_text(*column, cell);
            let is_number = !matches!(column.meaning, Meaning::Phase | Meaning::Device(_));
            if is_number && !is_unknown(cell) && !raw.is_known(column.meaning.index()) {
                wrong = wrong.or(Some(format!("`{}` is no {name}", shortened(cell))));
            }
        }
        wrong.map_or(Ok(Read::Cells), Err)
    }

    /// Names and meanings of the recognised columns.
    pub fn understood(&self) -> impl Iterator<Item = (&str, Column)> {
        self.columns
            .iter()
            .filter_map(|(name, column)| Some((name.as_str(), (*column)?)))
    }
}

/// Headers begin with a letter; few other lines do.
fn is_header_like(line: &str) -> bool {
    line.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn shortened(cell: &str) -> String {
    cell.trim().chars().take(24).collect()
}

/// Splits at commas, or at tabs in a line without commas. A comma within quotes is part of its cell.
pub(super) fn cells(line: &str) -> impl Iterator<Item = &str> {
    let separator = if line.contains(',') { ',' } else { '\t' };
    let mut is_quoted = false;
    line.split(move |c| {
        is_quoted ^= c == '"';
        c == separator && !is_quoted
    })
    .map(|cell| cell.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::super::record::{Guess, Sample};
    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn sample(reader: &mut CsvReader, line: &str) -> Result<Sample, String> {
        let mut raw = Raw::new(Guess::default());
        assert_eq!(reader.read(line, &mut raw)?, Read::Cells);
        raw.sample(1).ok_or("nothing".to_owned())
    }

    #[test]
    fn headers_with_and_without_units() {
        let header =
            "timestamp, name, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]";
        let mut reader = CsvReader::of_header(header).unwrap();
        for line in [
            "2026/01/02 03:04:05.678, NVIDIA H200, 0, 1234 MiB, 143771 MiB, 45 %",
            "2026/01/02 03:04:05.678, NVIDIA H200, 0, 1234, 143771, 45",
            "2026/01/02 03:04:05.678, \"NVIDIA, H200\", 0, 1234, 143771, 45",
        ] {
            let sample = sample(&mut reader, line).unwrap();
            assert_eq!(sample.used, Some(1234.0 * MIB));
            assert_eq!(sample.total, Some(143_771.0 * MIB));
            assert_eq!(sample.utilization, Some(45.0));
            assert!(sample.time.is_some());
        }
        let unknown = sample(&mut reader, "[N/A], x, 0, 12 MiB, [Not Supported], [N/A]").unwrap();
        assert_eq!((unknown.total, unknown.utilization), (None, None));
        for wrong in [
            "2026/01/02 03:04:05.678, NVIDIA H200, 0, 12",
            "2026/01/02 03:04:05.678, NVIDIA H200, 0, x MiB, 143771 MiB, 45 %",
            "",
        ] {
            assert!(sample(&mut reader, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_second_header_takes_over() {
        let mut reader = CsvReader::of_header("index, memory.used [MiB]").unwrap();
        let mut raw = Raw::new(Guess::default());
        assert_eq!(
            reader.read("memory.used [MiB], index", &mut raw),
            Ok(Read::Header)
        );
        assert_eq!(
            sample(&mut reader, "3 MiB, 7").unwrap().used,
            Some(3.0 * MIB)
        );
        assert_eq!(reader.read("memory.free [MiB]", &mut raw), Ok(Read::Header));
    }

    #[test]
    fn without_a_header_units_tell() {
        let lines = [
            "2026/01/02 03:04:05.678, GPU-1, 3 %, 1 %, 143771 MiB, 5 MiB",
            "2026/01/02 03:04:06.678, GPU-1, 3 %, 1 %, 143771 MiB, 9 MiB",
        ];
        let mut reader = CsvReader::guessed(&lines).unwrap();
        let sample = sample(&mut reader, lines[1]).unwrap();
        assert_eq!(
            (sample.used, sample.total),
            (Some(9.0 * MIB), Some(143_771.0 * MIB))
        );
        assert_eq!(sample.utilization, Some(3.0));
        assert!(CsvReader::guessed(&["1, 2, 3"]).is_none());
        assert!(CsvReader::guessed(&[]).is_none());
    }
}
