//! Comma-separated lines, as `nvidia-smi --query-gpu=... --format=csv` prints them, with or without header and units. A header may
//! recur in the middle, after one capture was appended to another.

use super::LineKind;
use super::columns::{Column, Meaning, column};
use super::sample::SampleReader;
use super::values::{is_unknown, number_and_unit, timestamp, unit_bytes};

/// Names of columns in their order, with their meanings.
pub(super) type Columns = Vec<(String, Option<Column>)>;

#[derive(Clone, Debug)]
pub(super) struct CsvReader {
    pub columns: Columns,
}

/// Reads the cells of a line; the error names the first that has no number.
pub(super) fn read_cells<'a>(
    columns: &Columns,
    cells: impl Iterator<Item = &'a str> + Clone,
    sample: &mut SampleReader,
) -> Result<(), String> {
    let (expected, found) = (columns.len(), cells.clone().count());
    if expected != found {
        return Err(format!("{expected} cells expected, {found} found"));
    }
    let mut wrong = None;
    for ((name, column), cell) in columns.iter().zip(cells) {
        let Some(column) = *column else { continue };
        sample.set_text(column, cell);
        let is_number = column.meaning != Meaning::Phase && !column.meaning.is_device();
        if is_number && !is_unknown(cell) && !sample.is_known(column.meaning) {
            let shortened: String = cell.trim().chars().take(24).collect();
            wrong = wrong.or(Some(format!("`{shortened}` is no {name}")));
        }
    }
    wrong.map_or(Ok(()), Err)
}

impl CsvReader {
    /// A reader for these column names, from a header or from the user.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> CsvReader {
        let names = names.into_iter();
        let columns = names.map(|name| (name.trim().to_owned(), column(name)));
        CsvReader {
            columns: columns.collect(),
        }
    }

    /// A reader from a header; `None` for other lines.
    pub fn of_header(line: &str) -> Option<CsvReader> {
        let is_number = |cell: &str| number_and_unit(cell).is_some() || timestamp(cell).is_some();
        // Tests for numbers first: most lines have one and are excluded at once.
        let is_header =
            !cells(line).any(is_number) && cells(line).any(|cell| column(cell).is_some());
        is_header.then(|| CsvReader::named(cells(line)))
    }

    /// A reader for lines without a header, guessed from the units of the cells; `None` without units.
    pub fn guessed(lines: &[&str]) -> Option<CsvReader> {
        let first: Vec<&str> = cells(lines.first()?).collect();
        let mut largest = vec![None::<f64>; first.len()];
        for line in lines
            .iter()
            .filter(|line| cells(line).count() == first.len())
        {
            for (largest, cell) in largest.iter_mut().zip(cells(line)) {
                let bytes = || {
                    let (number, unit) = number_and_unit(cell)?;
                    Some(number * unit_bytes(&unit)?)
                };
                let both = largest.iter().copied().chain(bytes());
                *largest = both.reduce(f64::max);
            }
        }
        let memory = || (0..first.len()).filter(|at| largest[*at].is_some());
        // Of two amounts or more, the largest is the total.
        let total = memory()
            .max_by(|a, b| largest[*a].partial_cmp(&largest[*b]).expect("numbers"))
            .filter(|_| memory().count() > 1);
        let used = memory().find(|at| Some(*at) != total)?;
        // In nvidia-smi's own order, the first percentage is the GPU's and the memory's follows.
        let utilization = first.iter().position(|cell| cell.ends_with('%'));
        let names = first.iter().enumerate().map(|(at, cell)| match cell {
            _ if at == used => "memory.used",
            _ if Some(at) == total => "memory.total",
            _ if Some(at) == utilization => "utilization.gpu",
            _ if timestamp(cell).is_some() => "timestamp",
            _ if cell.starts_with("GPU-") => "uuid",
            _ => "",
        });
        Some(CsvReader::named(names))
    }

    /// Sets MiB for columns without a unit, as nvidia-smi counts with `nounits`.
    pub fn in_mebibytes(mut self) -> CsvReader {
        for column in self
            .columns
            .iter_mut()
            .filter_map(|(_, column)| column.as_mut())
        {
            column.scale = column.scale.or(Some(1_048_576.0));
        }
        self
    }

    pub fn has(&self, is_it: impl Fn(&str, Meaning) -> bool) -> bool {
        let known = self
            .columns
            .iter()
            .filter_map(|(name, column)| Some((name, (*column)?)));
        known
            .into_iter()
            .any(|(name, column)| is_it(name, column.meaning))
    }

    pub fn read(&mut self, line: &str, sample: &mut SampleReader) -> Result<LineKind, String> {
        // Headers begin with a letter; few other lines do.
        let is_header_like = line.starts_with(|c: char| c.is_ascii_alphabetic());
        if (is_header_like || cells(line).count() != self.columns.len())
            && let Some(other) = CsvReader::of_header(line)
        {
            *self = other;
            return Ok(LineKind::Header);
        }
        read_cells(&self.columns, cells(line), sample).map(|()| LineKind::Sample)
    }
}

/// Splits at commas, or at tabs in a line without commas. A comma within quotes is part of its cell.
fn cells(line: &str) -> impl Iterator<Item = &str> + Clone {
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
    use super::super::sample::Sample;
    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn sample(reader: &mut CsvReader, line: &str) -> Result<Sample, String> {
        let mut raw = SampleReader::default();
        assert_eq!(reader.read(line, &mut raw)?, LineKind::Sample);
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
            assert_eq!(sample.get(Meaning::Used), Some(1234.0 * MIB));
            assert_eq!(sample.get(Meaning::Total), Some(143_771.0 * MIB));
            assert_eq!(sample.get(Meaning::Utilization), Some(45.0));
            assert!(sample.time().is_some());
        }
        let unknown = sample(&mut reader, "[N/A], x, 0, 12 MiB, [Not Supported], [N/A]").unwrap();
        assert_eq!(
            (
                unknown.get(Meaning::Total),
                unknown.get(Meaning::Utilization)
            ),
            (None, None)
        );
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
        let mut raw = SampleReader::default();
        assert_eq!(
            reader.read("memory.used [MiB], index", &mut raw),
            Ok(LineKind::Header)
        );
        assert_eq!(
            sample(&mut reader, "3 MiB, 7").unwrap().get(Meaning::Used),
            Some(3.0 * MIB)
        );
        assert_eq!(
            reader.read("memory.free [MiB]", &mut raw),
            Ok(LineKind::Header)
        );
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
            (sample.get(Meaning::Used), sample.get(Meaning::Total)),
            (Some(9.0 * MIB), Some(143_771.0 * MIB))
        );
        assert_eq!(sample.get(Meaning::Utilization), Some(3.0));
        assert!(CsvReader::guessed(&["1, 2, 3"]).is_none());
        assert!(CsvReader::guessed(&[]).is_none());
    }
}
