//! Tables: comma-separated lines of nvidia-smi (`--query-gpu=... --format=csv`, with or without header and units) or of a script, and
//! `nvidia-smi dmon`, with columns between blanks:
//!
//! ```text
//! #Date       Time        gpu    pwr  gtemp     sm    mem     fb   bar1
//! #YYYYMMDD   HH:MM:SS    Idx      W      C      %      %     MB     MB
//!  20260102   03:04:05      0    297     61     98     72  61284      5
//! ```
//!
//! A header may recur in the middle, after one capture was appended to another, and on every screen of `dmon`.

use super::LineKind;
use super::columns::{Column, Meaning, column};
use super::sample::SampleReader;
use super::values::{number_and_unit, timestamp, unit_bytes};

/// Names of columns in their order, with their meanings.
pub(super) type Columns = Vec<(String, Option<Column>)>;

const MIB: f64 = 1_048_576.0;

#[derive(Clone, Debug)]
pub(super) struct TableReader {
    pub columns: Columns,
    /// Whether it was written by `nvidia-smi dmon`.
    pub is_dmon: bool,
}

impl TableReader {
    /// A reader for these column names, from a header or from the user.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> TableReader {
        let names = names.into_iter();
        let columns = names.map(|name| (name.trim().to_owned(), column(name)));
        TableReader {
            columns: columns.collect(),
            is_dmon: false,
        }
    }

    /// A reader from a header; `None` for other lines.
    pub fn of_header(line: &str) -> Option<TableReader> {
        if let Some(names) = line.strip_prefix('#') {
            return TableReader::of_dmon(names);
        }
        let is_number = |cell: &str| number_and_unit(cell).is_some() || timestamp(cell).is_some();
        let mut cells = cells(line).into_iter();
        // Tests for numbers first: most lines have one and are excluded at once.
        let is_header = !cells.clone().any(is_number) && cells.any(|cell| column(cell).is_some());
        is_header.then(|| TableReader::named(self::cells(line)))
    }

    /// A reader from a header of `dmon`, or of `pmon`, whose memory belongs to a process. `mem` is the utilization of the memory.
    fn of_dmon(names: &str) -> Option<TableReader> {
        let known = |name: &str| {
            let (meaning, scale) = match name.to_ascii_lowercase().as_str() {
                "date" | "time" => (Meaning::Time, 1.0),
                "gpu" => (Meaning::DeviceIndex, 1.0),
                "pid" => (Meaning::Pid, 1.0),
                "sm" => (Meaning::Utilization, 1.0),
                "fb" => (Meaning::Used, MIB),
                _ => return None,
            };
            let scale = Some(scale);
            Some(Column { meaning, scale })
        };
        let columns = dmon_cells(names)
            .into_iter()
            .map(|name| (name.to_owned(), known(name)));
        let reader = TableReader {
            columns: columns.collect(),
            is_dmon: true,
        };
        let is_header = reader.has(Meaning::DeviceIndex)
            && (reader.has(Meaning::Used) || reader.has(Meaning::Utilization));
        is_header.then_some(reader)
    }

    /// A reader for lines without a header, guessed from the units in the first; `None` without units.
    pub fn guessed(line: &str) -> Option<TableReader> {
        let cells = cells(line);
        let bytes = |cell: &str| {
            let (number, unit) = number_and_unit(cell)?;
            Some(number * unit_bytes(&unit)?)
        };
        let amounts = cells.iter().enumerate();
        let amounts = amounts.filter_map(|(at, cell)| Some((at, bytes(cell)?)));
        let amounts: Vec<(usize, f64)> = amounts.collect();
        // Of two amounts or more, the largest is the total.
        let total = amounts.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let total = total.filter(|_| amounts.len() > 1).map(|(at, _)| *at);
        let (used, _) = *amounts.iter().find(|(at, _)| Some(*at) != total)?;
        // In nvidia-smi's own order, the first percentage is the GPU's and the memory's follows.
        let utilization = cells.iter().position(|cell| cell.ends_with('%'));
        let names = cells.iter().enumerate().map(|(at, cell)| match cell {
            _ if at == used => "memory.used",
            _ if Some(at) == total => "memory.total",
            _ if Some(at) == utilization => "utilization.gpu",
            _ if timestamp(cell).is_some() => "timestamp",
            _ if cell.starts_with("GPU-") => "uuid",
            _ => "",
        });
        Some(TableReader::named(names))
    }

    /// Sets MiB for columns without a unit, as nvidia-smi counts with `nounits`.
    pub fn in_mebibytes(mut self) -> TableReader {
        for column in self
            .columns
            .iter_mut()
            .filter_map(|(_, column)| column.as_mut())
        {
            column.scale = column.scale.or(Some(MIB));
        }
        self
    }

    pub fn has(&self, meaning: Meaning) -> bool {
        let mut known = self.columns.iter().filter_map(|(_, column)| *column);
        known.any(|column| column.meaning == meaning)
    }

    pub fn has_name(&self, beginning: &str) -> bool {
        let known = |(name, column): &(String, Option<Column>)| {
            column.is_some() && name.starts_with(beginning)
        };
        self.columns.iter().any(known)
    }

    pub fn read(&mut self, line: &str, sample: &mut SampleReader) -> Result<LineKind, String> {
        let mut cells = if self.is_dmon {
            dmon_cells(line)
        } else {
            cells(line)
        };
        // Headers begin with a letter or `#`; few other lines do.
        let is_header_like = line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '#');
        if is_header_like || cells.len() != self.columns.len() {
            if let Some(other) = TableReader::of_header(line) {
                *self = other;
                return Ok(LineKind::Header);
            }
            if self.is_dmon && line.starts_with('#') {
                return Ok(LineKind::Header);
            }
        }
        let (expected, found) = (self.columns.len(), cells.len());
        if expected != found {
            return Err(format!("{expected} cells expected, {found} found"));
        }
        let date_and_time = format!("{} {}", cells[0], cells.get(1).unwrap_or(&""));
        if self.is_dmon && self.columns[0].0.eq_ignore_ascii_case("date") {
            cells[0] = &date_and_time;
        }
        let mut wrong = None;
        for ((name, column), cell) in self.columns.iter().zip(cells) {
            let Some(column) = *column else { continue };
            if !sample.set_text(column, cell) {
                let shortened: String = cell.trim().chars().take(24).collect();
                wrong = wrong.or(Some(format!("`{shortened}` is no {name}")));
            }
        }
        wrong.map_or(Ok(LineKind::Sample), Err)
    }
}

/// Cells between commas, or between tabs in a line without commas. A comma within quotes is part of its cell.
fn cells(line: &str) -> Vec<&str> {
    let separator = if line.contains(',') { ',' } else { '\t' };
    let mut is_quoted = false;
    let cells = line.split(move |c| {
        is_quoted ^= c == '"';
        c == separator && !is_quoted
    });
    cells.map(|cell| cell.trim().trim_matches('"')).collect()
}

/// Cells between blanks, or with `--format csv` between commas, also behind the last.
fn dmon_cells(line: &str) -> Vec<&str> {
    let has_commas = line.contains(',');
    let is_separator = |c: char| {
        if has_commas {
            c == ','
        } else {
            c.is_whitespace()
        }
    };
    let cells = line.split(is_separator).map(str::trim);
    cells.filter(|cell| !cell.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn sample(reader: &mut TableReader, line: &str) -> Result<Sample, String> {
        let mut raw = SampleReader::default();
        assert_eq!(reader.read(line, &mut raw)?, LineKind::Sample);
        raw.sample(1).ok_or("nothing".to_owned())
    }

    #[test]
    fn headers_with_and_without_units() {
        let header =
            "timestamp, name, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]";
        let mut reader = TableReader::of_header(header).unwrap();
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
        let mut reader = TableReader::of_header("index, memory.used [MiB]").unwrap();
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
        let mut reader = TableReader::guessed(lines[0]).unwrap();
        let sample = sample(&mut reader, lines[1]).unwrap();
        assert_eq!(
            (sample.get(Meaning::Used), sample.get(Meaning::Total)),
            (Some(9.0 * MIB), Some(143_771.0 * MIB))
        );
        assert_eq!(sample.get(Meaning::Utilization), Some(3.0));
        assert!(TableReader::guessed("1, 2, 3").is_none());
        assert!(TableReader::guessed("").is_none());
    }

    fn samples(text: &str) -> Vec<Result<(Sample, String), String>> {
        let mut lines = text.lines().map(str::trim);
        let mut reader = TableReader::of_header(lines.next().unwrap()).unwrap();
        let mut raw = SampleReader::default();
        let mut out = Vec::new();
        for line in lines {
            raw.clear();
            match reader.read(line, &mut raw) {
                Ok(LineKind::Header) => {}
                Ok(LineKind::Sample) => out.push(Ok((raw.sample(1).unwrap(), raw.device.clone()))),
                Err(reason) => out.push(Err(reason)),
            }
        }
        out
    }

    #[test]
    fn every_form_that_dmon_has() {
        let plain = "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk     fb   bar1   ccpm\n\
                     # Idx      W      C      C      %      %      %      %      %      %    MHz    MHz     MB     MB     MB\n    \
                         0    297     61     72     98     72      0      0      0      0   2619   1980  61284      5      0\n    \
                         1      -      -      -      -      -      -      -      -      -      -      -      7      5      0\n";
        let csv =
            "#gpu, pwr, gtemp, sm, fb\n#Idx, W, C, %, MB\n0, 297, 61, 98, 61284,\n1, -, -, -, 7\n";
        for text in [plain, csv] {
            let found = samples(text);
            let (first, device) = found[0].as_ref().unwrap();
            assert_eq!(
                (first.get(Meaning::Used), first.get(Meaning::Utilization)),
                (Some(61_284.0 * MIB), Some(98.0))
            );
            assert_eq!((first.time(), device.as_str()), (None, "0"));
            let (second, device) = found[1].as_ref().unwrap();
            assert_eq!(
                (second.get(Meaning::Used), second.get(Meaning::Utilization)),
                (Some(7.0 * MIB), None)
            );
            assert_eq!(device, "1");
        }
        let dated = "#Date       Time        gpu     sm     fb\n#YYYYMMDD   HH:MM:SS    Idx      %     MB\n \
                     20260102   03:04:05      0     98  61284\n";
        assert_eq!(
            samples(dated)[0].as_ref().unwrap().0.time(),
            Some(1_767_323_045.0)
        );
    }

    #[test]
    fn what_is_no_line_of_dmon() {
        for header in [
            "",
            "#",
            "# Idx W C",
            "gpu sm fb",
            "# pwr gtemp",
            "# a note on the gpu",
        ] {
            assert!(TableReader::of_header(header).is_none(), "{header}");
        }
        let found = samples("# gpu sm fb\n0 98\n0 98 lots\n0 98 3\n");
        assert_eq!(found[0], Err("3 cells expected, 2 found".to_owned()));
        assert_eq!(found[1], Err("`lots` is no fb".to_owned()));
        assert!(found[2].is_ok());
    }
}
