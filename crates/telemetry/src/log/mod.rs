//! Memory logs of any origin: our `memory.jsonl`, captures of `nvidia-smi`, and JSON lines, CSVs and text logs of training
//! scripts.
//!
//! The first lines determine the format, and the units of names without one. Then lines are read one at a time; unreadable lines
//! are counted, and the first reason is kept.

mod columns;
mod format;
mod json;
mod lines;
mod sample;
mod table;
mod text;
mod trouble;
mod values;

use std::io::{Chain, Cursor, Read};

use serde::Serialize;

use self::format::LogReader;
use self::lines::{LONGEST_LINE, Line, LogLines};
use self::sample::SampleReader;
use crate::error::{TelemetryError, failed};

pub(crate) use self::columns::Meaning;
pub use self::format::Format;
pub(crate) use self::sample::Sample;
pub(crate) use self::trouble::{Trouble, TroubleLines};

/// Bytes that are inspected to determine the format.
const WINDOW_BYTES: u64 = 1 << 17;
/// A file with this many lines and no sample is not a log.
const LINES_TO_GIVE_UP_AFTER: u64 = 100_000;

/// Kind of a readable line.
#[derive(Debug, PartialEq, Eq)]
enum LineKind {
    /// Its numbers may be a sample.
    Sample,
    /// A header, a border or prose.
    Header,
}

/// Unreadable lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Number of unreadable lines.
    pub lines: u64,
    /// Number of the first unreadable line, from 1.
    pub first_line: Option<u64>,
    /// Reason why that line is unreadable.
    pub first_reason: Option<String>,
}

impl Skipped {
    fn add(&mut self, line: u64, reason: impl FnOnce() -> String) {
        self.lines += 1;
        if self.first_line.is_none() {
            self.first_line = Some(line);
            self.first_reason = Some(reason());
        }
    }
}

/// Counts of finite and non-finite losses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OddLosses {
    pub count: u64,
    /// Line and step at which the latest sequence of non-finite losses began.
    pub first: Option<(u64, Option<u64>)>,
    pub num_finite: u64,
    /// Whether the last loss of the log is not finite.
    pub is_last: bool,
}

impl OddLosses {
    pub fn add(&mut self, is_finite: bool, line: u64, step: Option<u64>) {
        if is_finite {
            self.num_finite += 1;
        } else {
            self.count += 1;
            if !self.is_last {
                self.first = Some((line, step));
            }
        }
        self.is_last = !is_finite;
    }
}

/// A log, read sample by sample.
pub(crate) struct Log<R> {
    name: String,
    lines: LogLines<Chain<Cursor<Vec<u8>>, R>>,
    reader: LogReader,
    sample: SampleReader,
    num_samples: u64,
    last_step: Option<u64>,
    pub num_lines: u64,
    pub skipped: Skipped,
    /// Guesses that were made.
    pub notes: Vec<String>,
    /// Recognised columns of the first sample, as `name: meaning`.
    pub columns: Vec<String>,
    /// Error messages in the log, one entry per kind.
    pub troubles: Vec<TroubleLines>,
    pub losses: OddLosses,
}

impl<R: Read> Log<R> {
    /// Determines the format from the beginning; `names` are the user's column names for a CSV without a header.
    pub fn open(
        name: &str,
        mut reader: R,
        names: Option<&[String]>,
    ) -> Result<Log<R>, TelemetryError> {
        let mut window = Vec::new();
        let read = (&mut reader).take(WINDOW_BYTES).read_to_end(&mut window);
        read.map_err(failed(name, "read"))?;
        if window.starts_with(&[0xef, 0xbb, 0xbf]) {
            window.drain(..3);
        }
        let mut notes = Vec::new();
        let log_reader = LogReader::detect(name, &window, names, &mut notes)?;
        let mut sample = SampleReader::default();
        // Reads the window once to guess the unit of numbers whose names have none. Unreadable lines are counted in the main pass.
        let mut rehearsal = log_reader.clone();
        for line in window.split(|&byte| byte == b'\n').take(512) {
            sample.clear();
            if line.len() <= LONGEST_LINE {
                let _ = rehearsal.read(line.trim_ascii(), &mut sample);
            }
        }
        sample.guess.decide();
        if let Some((unit, _)) = sample.guess.unit {
            notes.push(format!(
                "names without a unit are read as {unit}, by the size of their numbers; a name such as `allocated_mib` says it"
            ));
        }
        Ok(Log {
            name: name.to_owned(),
            lines: LogLines::new(Cursor::new(window).chain(reader)),
            reader: log_reader,
            sample,
            num_samples: 0,
            last_step: None,
            num_lines: 0,
            skipped: Skipped::default(),
            notes,
            columns: Vec::new(),
            troubles: Vec::new(),
            losses: OddLosses::default(),
        })
    }

    /// The next sample and its device; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(Sample, &str)>, TelemetryError> {
        loop {
            let line = self.lines.next().map_err(failed(&self.name, "read"))?;
            let Some(line) = line else { return Ok(None) };
            self.num_lines = line.number;
            if self.num_samples == 0 && line.number > LINES_TO_GIVE_UP_AFTER {
                return Err(self.nothing());
            }
            if line.bytes.is_empty() || matches!(line.bytes, b"[" | b"]") {
                continue;
            }
            if let Some(kind) = trouble::trouble(line.bytes).filter(|_| !line.is_too_long) {
                match self.troubles.iter_mut().find(|known| known.kind == kind) {
                    Some(known) => known.count += 1,
                    None => self.troubles.push(TroubleLines {
                        kind,
                        first_line: line.number,
                        text: trouble::excerpt(line.bytes),
                        count: 1,
                        step: self.last_step,
                    }),
                }
            }
            self.sample.clear();
            match read_line(&line, &mut self.reader, &mut self.sample, self.num_samples) {
                Err(reason) => self.skipped.add(line.number, || reason),
                Ok(LineKind::Header) => {}
                Ok(LineKind::Sample) => {
                    self.last_step = self.sample.step().or(self.last_step);
                    if let Some(is_finite) = self.sample.has_finite_loss() {
                        self.losses.add(is_finite, line.number, self.last_step);
                    }
                    if let Some(sample) = self.sample.sample(line.number) {
                        self.num_samples += 1;
                        if self.num_samples == 1 {
                            self.columns = self.reader.recognised_columns();
                        }
                        return Ok(Some((sample, &self.sample.device)));
                    }
                    self.skipped.add(line.number, || {
                        "no memory and no utilization in it".to_owned()
                    });
                }
            }
        }
    }

    /// The error for a log without samples.
    pub fn nothing(&self) -> TelemetryError {
        match (&self.skipped.first_reason, self.skipped.first_line) {
            (Some(reason), Some(line)) => TelemetryError::NoSamples {
                log: self.name.clone(),
                lines: self.num_lines,
                line,
                reason: reason.clone(),
            },
            _ => TelemetryError::Empty {
                log: self.name.clone(),
                found: match self.num_lines {
                    0 => "an empty file",
                    _ => "a header and no lines after it",
                },
            },
        }
    }

    pub fn format(&self) -> Format {
        self.reader.format()
    }
}

fn read_line(
    line: &Line<'_>,
    reader: &mut LogReader,
    sample: &mut SampleReader,
    num_samples: u64,
) -> Result<LineKind, String> {
    if line.is_too_long {
        return Err("longer than 64 KiB".to_owned());
    }
    // A last line without a line end is incomplete; its last number may have lost digits. Of JSON, the brace shows that it is whole.
    if !line.is_ended && num_samples > 0 && !matches!(reader, LogReader::Json(_)) {
        return Err("cut off: no line end".to_owned());
    }
    reader.read(line.bytes, sample)
}
