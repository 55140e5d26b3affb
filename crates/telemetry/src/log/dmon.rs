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

use super::columns::{Column, Meaning};
use super::csv::Read;
use super::record::Raw;
use super::values::{is_unknown, number_and_unit, timestamp, unit_bytes};

#[derive(Clone, Debug)]
pub(super) struct DmonReader {
    columns: Vec<Dmon>,
    /// Midnights passed so far, for logs that have the time of day only.
    days: f64,
    last_time: Option<f64>,
    /// Whether any header so far had a column of used memory.
    has_memory: bool,
}

/// A column.
#[derive(Clone, Debug)]
struct Dmon {
    name: String,
    meaning: Option<DmonMeaning>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum DmonMeaning {
    Date,
    TimeOfDay,
    Gpu,
    Pid,
    Busy,
    /// Used memory; bytes per unit.
    Memory(f64),
}

const MIB: f64 = 1_048_576.0;

impl DmonReader {
    /// A reader from a header line; `None` for other lines.
    pub fn of_header(line: &str) -> Option<DmonReader> {
        let names = line.strip_prefix('#')?;
        let columns: Vec<Dmon> = cells(names).map(Dmon::named).collect();
        let has = |meaning: DmonMeaning| columns.iter().any(|c| c.meaning == Some(meaning));
        let has_gpu = has(DmonMeaning::Gpu);
        let has_memory = has(DmonMeaning::Memory(MIB));
        (has_gpu && (has_memory || has(DmonMeaning::Busy))).then_some(DmonReader {
            columns,
            days: 0.0,
            last_time: None,
            has_memory,
        })
    }

    /// Whether a header had a column of used memory, which `dmon` shows with `-s m`.
    pub fn has_memory(&self) -> bool {
        self.has_memory
    }

    pub fn read(&mut self, line: &str, raw: &mut Raw) -> Result<Read, String> {
        if line.starts_with('#') {
            if let Some(other) = DmonReader::of_header(line) {
                self.columns = other.columns;
                self.has_memory |= other.has_memory;
            } else {
                self.take_units(line);
            }
            return Ok(Read::Header);
        }
        let num_cells = cells(line).count();
        if num_cells != self.columns.len() {
            let expected = self.columns.len();
            return Err(format!("{expected} cells expected, {num_cells} found"));
        }
        let (mut date, mut time) = (None, None);
        for (column, cell) in self.columns.iter().zip(cells(line)) {
            let Some(meaning) = column.meaning.filter(|_| !is_unknown(cell)) else {
                continue;
            };
            let number = || {
                let number = number_and_unit(cell).map(|(number, _)| number);
                number.ok_or_else(|| {
                    let cell: String = cell.chars().take(24).collect();
                    format!("`{cell}` is no {}", column.name)
                })
            };
            let of = |meaning, scale| Column {
                meaning,
                scale: Some(scale),
            };
            match meaning {
                DmonMeaning::Date => date = Some(cell),
                DmonMeaning::TimeOfDay => time = Some(cell),
                DmonMeaning::Gpu => raw.set_number(of(Meaning::Device(2), 1.0), number()?),
                // With `pmon`, the memory belongs to this process; the id separates the processes.
                DmonMeaning::Pid => raw.set_number(of(Meaning::Device(4), 1.0), number()?),
                DmonMeaning::Busy => raw.set_number(of(Meaning::Utilization, 1.0), number()?),
                DmonMeaning::Memory(scale) => raw.set_number(of(Meaning::Used, scale), number()?),
            }
        }
        if let Some(seconds) = time.and_then(|time| self.seconds(date, time)) {
            let column = Column {
                meaning: Meaning::Time,
                scale: Some(1.0),
            };
            raw.set_number(column, seconds);
        }
        Ok(Read::Cells)
    }

    /// Takes the unit of the memory column from a line of units, such as `#Idx W C MB`.
    fn take_units(&mut self, line: &str) {
        let units = cells(line.trim_start_matches('#'));
        for (column, unit) in self.columns.iter_mut().zip(units) {
            let bytes = unit_bytes(&unit.to_ascii_lowercase());
            if let (Some(DmonMeaning::Memory(scale)), Some(bytes)) = (&mut column.meaning, bytes) {
                *scale = bytes;
            }
        }
    }

    /// Seconds since 1970; without a date, since the log's first midnight.
    fn seconds(&mut self, date: Option<&str>, time: &str) -> Option<f64> {
        let date = match date {
            Some(date) if date.len() == 8 && date.is_ascii() => {
                format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..])
            }
            Some(date) => date.replace('/', "-"),
            None => "1970-01-01".to_owned(),
        };
        let mut seconds = timestamp(&format!("{date} {time}"))?;
        if date.starts_with("1970-01-01") {
            seconds += self.days * 86_400.0;
            // A jump back by more than 12 hours is midnight; a smaller one is a clock adjustment.
            if self.last_time.is_some_and(|last| seconds < last - 43_200.0) {
                self.days += 1.0;
                seconds += 86_400.0;
            }
            self.last_time = Some(seconds);
        }
        Some(seconds)
    }

    /// Names and meanings of the recognised columns.
    pub fn understood(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.columns.iter().filter_map(|column| {
            let words = match column.meaning? {
                DmonMeaning::Date | DmonMeaning::TimeOfDay => "time",
                DmonMeaning::Gpu | DmonMeaning::Pid => "device",
                DmonMeaning::Busy => "GPU utilization",
                DmonMeaning::Memory(_) => "used memory",
            };
            Some((column.name.as_str(), words))
        })
    }
}

impl Dmon {
    fn named(name: &str) -> Dmon {
        let meaning = match name.to_ascii_lowercase().as_str() {
            "date" => Some(DmonMeaning::Date),
            "time" => Some(DmonMeaning::TimeOfDay),
            "gpu" => Some(DmonMeaning::Gpu),
            "pid" => Some(DmonMeaning::Pid),
            "sm" => Some(DmonMeaning::Busy),
            "fb" => Some(DmonMeaning::Memory(MIB)),
            _ => None,
        };
        Dmon {
            name: name.to_owned(),
            meaning,
        }
    }
}

/// Cells between blanks, or between commas if the line has any.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    let has_commas = line.contains(',');
    line.split(move |c: char| {
        if has_commas {
            c == ','
        } else {
            c.is_whitespace()
        }
    })
    .map(str::trim)
    .filter(|cell| !cell.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::record::{Guess, Sample};
    use super::*;

    fn samples(text: &str) -> Vec<Result<(Sample, String), String>> {
        let mut lines = text.lines().map(str::trim);
        let mut reader = DmonReader::of_header(lines.next().unwrap()).unwrap();
        let mut raw = Raw::new(Guess::default());
        let mut out = Vec::new();
        for line in lines {
            raw.clear();
            match reader.read(line, &mut raw) {
                Ok(Read::Header) => {}
                Ok(Read::Cells) => out.push(Ok((raw.sample(1).unwrap(), raw.device.clone()))),
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
                (first.used, first.utilization),
                (Some(61_284.0 * MIB), Some(98.0))
            );
            assert_eq!((first.time, device.as_str()), (None, "0"));
            let (second, device) = found[1].as_ref().unwrap();
            assert_eq!((second.used, second.utilization), (Some(7.0 * MIB), None));
            assert_eq!(device, "1");
        }
        let timed = "#Time        gpu     sm     fb\n#HH:MM:SS    Idx      %     MB\n 23:59:59      0     98  61284\n \
                     00:00:01      0     97  61284\n";
        let times: Vec<f64> = samples(timed)
            .into_iter()
            .map(|s| s.unwrap().0.time.unwrap())
            .collect();
        assert_eq!(times[1] - times[0], 2.0);
        let dated = "#Date       Time        gpu     sm     fb\n#YYYYMMDD   HH:MM:SS    Idx      %     MB\n \
                     20260102   03:04:05      0     98  61284\n";
        assert_eq!(
            samples(dated)[0].as_ref().unwrap().0.time,
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
