//! `nvidia-smi dmon`: columns between blanks, below a header line of names and one of units, which recur on every screen.
//!
//! ```text
//! #Date       Time        gpu    pwr  gtemp     sm    mem     fb   bar1
//! #YYYYMMDD   HH:MM:SS    Idx      W      C      %      %     MB     MB
//!  20260102   03:04:05      0    297     61     98     72  61284      5
//! ```
//!
//! `--format csv` puts commas between the cells. `-` means unknown. `mem` is the utilization of the memory; `fb` is the used
//! memory.

use super::LineKind;
use super::columns::{Column, Meaning};
use super::sample::SampleReader;
use super::table::{Columns, read_cells};
use super::values::{timestamp, unit_bytes};

#[derive(Clone, Debug)]
pub(super) struct DmonReader {
    pub columns: Columns,
    /// Midnights passed so far, for logs that have the time of day only.
    days: f64,
    last_time: Option<f64>,
    /// Whether any header so far had a column of used memory, which `dmon` shows with `-s m`.
    pub has_memory: bool,
}

const MIB: f64 = 1_048_576.0;

/// Meaning of a header's name. With `pmon` the memory belongs to a process, and its id separates the processes.
fn column(name: &str) -> Option<Column> {
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
}

impl DmonReader {
    /// A reader from a header line; `None` for other lines.
    pub fn of_header(line: &str) -> Option<DmonReader> {
        let names = cells(line.strip_prefix('#')?);
        let columns: Columns = names.map(|name| (name.to_owned(), column(name))).collect();
        let has = |meaning: Meaning| {
            let mut known = columns.iter().filter_map(|(_, column)| *column);
            known.any(|column| column.meaning == meaning)
        };
        let has_memory = has(Meaning::Used);
        let is_header = has(Meaning::DeviceIndex) && (has_memory || has(Meaning::Utilization));
        is_header.then_some(DmonReader {
            columns,
            days: 0.0,
            last_time: None,
            has_memory,
        })
    }

    pub fn read(&mut self, line: &str, sample: &mut SampleReader) -> Result<LineKind, String> {
        if line.starts_with('#') {
            if let Some(other) = DmonReader::of_header(line) {
                self.columns = other.columns;
                self.has_memory |= other.has_memory;
            } else {
                self.take_units(line);
            }
            return Ok(LineKind::Header);
        }
        // Date and time are two columns, and the time may lack its date.
        let (mut date, mut time) = (None, None);
        for ((name, _), cell) in self.columns.iter().zip(cells(line)) {
            match name.to_ascii_lowercase().as_str() {
                "date" => date = Some(cell),
                "time" => time = Some(cell),
                _ => {}
            }
        }
        if let Some(seconds) = time.and_then(|time| self.seconds(date, time)) {
            let meaning = Meaning::Time;
            sample.set_number(
                Column {
                    meaning,
                    scale: None,
                },
                seconds,
            );
        }
        read_cells(&self.columns, cells(line), sample).map(|()| LineKind::Sample)
    }

    /// Takes the unit of the memory column from a line of units, such as `#Idx W C MB`.
    fn take_units(&mut self, line: &str) {
        let units = cells(line.trim_start_matches('#'));
        for ((_, column), unit) in self.columns.iter_mut().zip(units) {
            if let (Some(column), Some(bytes)) = (column, unit_bytes(&unit.to_ascii_lowercase()))
                && column.meaning == Meaning::Used
            {
                column.scale = Some(bytes);
            }
        }
    }

    /// Seconds since 1970; without a date, since the log's first midnight.
    fn seconds(&mut self, date: Option<&str>, time: &str) -> Option<f64> {
        if let Some(date) = date {
            let is_plain = date.len() == 8 && date.is_ascii();
            return timestamp(&if is_plain {
                format!("{}-{}-{} {time}", &date[..4], &date[4..6], &date[6..])
            } else {
                format!("{} {time}", date.replace('/', "-"))
            });
        }
        let mut seconds = timestamp(&format!("1970-01-01 {time}"))? + self.days * 86_400.0;
        // A jump back by more than 12 hours is midnight; a smaller one is a clock adjustment.
        if self.last_time.is_some_and(|last| seconds < last - 43_200.0) {
            self.days += 1.0;
            seconds += 86_400.0;
        }
        self.last_time = Some(seconds);
        Some(seconds)
    }
}

/// Cells between blanks, or between commas if the line has any.
fn cells(line: &str) -> impl Iterator<Item = &str> + Clone {
    let has_commas = line.contains(',');
    let is_separator = move |c: char| {
        if has_commas {
            c == ','
        } else {
            c.is_whitespace()
        }
    };
    let cells = line.split(is_separator).map(str::trim);
    cells.filter(|cell| !cell.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    fn samples(text: &str) -> Vec<Result<(Sample, String), String>> {
        let mut lines = text.lines().map(str::trim);
        let mut reader = DmonReader::of_header(lines.next().unwrap()).unwrap();
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
        let timed = "#Time        gpu     sm     fb\n#HH:MM:SS    Idx      %     MB\n 23:59:59      0     98  61284\n \
                     00:00:01      0     97  61284\n";
        let times: Vec<f64> = samples(timed)
            .into_iter()
            .map(|s| s.unwrap().0.time().unwrap())
            .collect();
        assert_eq!(times[1] - times[0], 2.0);
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
            assert!(DmonReader::of_header(header).is_none(), "{header}");
        }
        let found = samples("# gpu sm fb\n0 98\n0 98 lots\n0 98 3\n");
        assert_eq!(found[0], Err("3 cells expected, 2 found".to_owned()));
        assert_eq!(found[1], Err("`lots` is no fb".to_owned()));
        assert!(found[2].is_ok());
    }
}
