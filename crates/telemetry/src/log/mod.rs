//! Logs of memory, whoever wrote them: our `memory.jsonl`, captures of `nvidia-smi`, JSON lines and CSVs of training scripts.
//!
//! The first lines say which it is and in which units names without one count; then lines are read one at a time, and what
//! cannot be read is counted, with the first reason kept.

mod columns;
mod csv;
mod json;
mod lines;
mod record;
mod values;

use std::io::{Chain, Cursor, Read};

use serde::Serialize;

use self::columns::Meaning;
use self::csv::CsvReader;
use self::json::JsonReader;
use self::lines::Lines;
use self::record::{Guess, Raw};
use crate::error::{TelemetryError, failed};

pub(crate) use self::record::Sample;

/// How much is looked at before the first line is read for good.
const WINDOW_BYTES: u64 = 1 << 17;
/// A larger beginning without one line that can be read is no log.
const LINES_TO_GIVE_UP_AFTER: u64 = 100_000;

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `memory.jsonl` of a run.
    Holdall,
    /// `nvidia-smi --query-gpu=... --format=csv`.
    NvidiaSmi,
    /// JSON lines of a script.
    JsonLines,
    /// A CSV of a script.
    Csv,
}

impl Format {
    /// As messages name it.
    pub fn words(self) -> &'static str {
        match self {
            Format::Holdall => "memory.jsonl of a Holdall run",
            Format::NvidiaSmi => "nvidia-smi CSV",
            Format::JsonLines => "JSON lines",
            Format::Csv => "CSV",
        }
    }
}

/// Lines that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// How many.
    pub lines: u64,
    /// The first of them, from 1.
    pub first_line: Option<u64>,
    /// What was wrong with that one.
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

enum Parser {
    Json(JsonReader),
    Csv(CsvReader),
}

/// A log that is read sample by sample.
pub(crate) struct Log<R> {
    name: String,
    lines: Lines<Chain<Cursor<Vec<u8>>, R>>,
    parser: Parser,
    raw: Raw,
    num_lines: u64,
    num_samples: u64,
    skipped: Skipped,
    notes: Vec<String>,
    columns: Vec<String>,
}

impl<R: Read> Log<R> {
    /// Looks at the beginning; `names` are the columns of a CSV without a header, as the user gives them.
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
        let parser = sniff(name, &window, names, &mut notes)?;
        let mut log = Log {
            name: name.to_owned(),
            lines: Lines::new(Cursor::new(Vec::new()).chain(reader)),
            parser,
            raw: Raw::new(Guess::default()),
            num_lines: 0,
            num_samples: 0,
            skipped: Skipped::default(),
            notes,
            columns: Vec::new(),
        };
        log.guess_units(&window);
        log.lines.restart(window);
        Ok(log)
    }

    /// Reads the window once for the size of numbers whose names have no unit.
    fn guess_units(&mut self, window: &[u8]) {
        let mut raw = Raw::new(Guess::default());
        let mut csv = match &self.parser {
            Parser::Csv(csv) => Some(csv.clone()),
            Parser::Json(_) => None,
        };
        let mut json = JsonReader::default();
        for line in window.split(|&byte| byte == b'\n').take(512) {
            raw.clear();
            let line = line.trim_ascii();
            if line.len() > lines::LONGEST_LINE {
                continue;
            }
            // What cannot be read is counted when it is read for good.
            match &mut csv {
                Some(csv) => {
                    let _ = std::str::from_utf8(line).map(|line| csv.read(line, &mut raw));
                }
                None => {
                    let _ = json.read(line, &mut raw);
                }
            }
        }
        let guess = raw.guess().decided();
        if let Some(unit) = guess.unit() {
            self.notes.push(format!(
                "names without a unit are read as {unit}, by the size of their numbers; a name such as `allocated_mib` says it"
            ));
        }
        self.raw = Raw::new(guess);
    }

    /// The next sample and the device it is of; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(Sample, &str)>, TelemetryError> {
        loop {
            let line = self.lines.next().map_err(failed(&self.name, "read"))?;
            let Some(line) = line else { return Ok(None) };
            self.num_lines = line.number;
            if self.num_samples == 0 && line.number > LINES_TO_GIVE_UP_AFTER {
                return Err(self.nothing());
            }
            if line.is_too_long {
                self.skipped
                    .add(line.number, || "longer than 64 KiB".to_owned());
                continue;
            }
            if line.bytes.is_empty() || matches!(line.bytes, b"[" | b"]") {
                continue;
            }
            self.raw.clear();
            let read = match &mut self.parser {
                Parser::Json(json) => json
                    .read(line.bytes, &mut self.raw)
                    .map(|()| csv::Read::Cells),
                // A number may have lost its last digits, and nothing would show it.
                Parser::Csv(_) if !line.is_ended && self.num_samples > 0 => {
                    Err("cut off: no line end".to_owned())
                }
                Parser::Csv(csv) => match std::str::from_utf8(line.bytes) {
                    Ok(text) => csv.read(text, &mut self.raw),
                    Err(_) => Err("no UTF-8".to_owned()),
                },
            };
            match read {
                Err(reason) => self.skipped.add(line.number, || reason),
                Ok(csv::Read::Header) => {}
                Ok(csv::Read::Cells) => match self.raw.sample(line.number) {
                    None => self.skipped.add(line.number, || {
                        "no memory and no utilization in it".to_owned()
                    }),
                    Some(sample) => {
                        self.num_samples += 1;
                        if self.num_samples == 1 {
                            self.columns = self.understood();
                        }
                        return Ok(Some((sample, &self.raw.device)));
                    }
                },
            }
        }
    }

    /// What a log without one sample is answered with.
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

    /// Whose log it is.
    pub fn format(&self) -> Format {
        match &self.parser {
            Parser::Json(json) => {
                let ours = [
                    "time",
                    "phase",
                    "used_bytes",
                    "process_bytes",
                    "arena_bytes",
                ];
                match ours.iter().all(|name| json.has(name)) {
                    true => Format::Holdall,
                    false => Format::JsonLines,
                }
            }
            Parser::Csv(csv) => {
                let is_dotted =
                    |name: &str| name.starts_with("memory.") || name.starts_with("utilization.");
                match csv.understood().any(|(name, _)| is_dotted(name)) {
                    true => Format::NvidiaSmi,
                    false => Format::Csv,
                }
            }
        }
    }

    /// Columns of the first sample that are understood, as `name: meaning`.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    fn understood(&self) -> Vec<String> {
        let show =
            |(name, column): (&str, columns::Column)| format!("{name}: {}", column.meaning.words());
        match &self.parser {
            Parser::Json(json) => json.understood().map(show).collect(),
            Parser::Csv(csv) => csv.understood().map(show).collect(),
        }
    }

    /// Lines until now.
    pub fn num_lines(&self) -> u64 {
        self.num_lines
    }

    /// Lines that could not be read.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// What was guessed.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Which parser the beginning asks for.
fn sniff(
    name: &str,
    window: &[u8],
    names: Option<&[String]>,
    notes: &mut Vec<String>,
) -> Result<Parser, TelemetryError> {
    let log = || name.to_owned();
    if window.starts_with(&[0xff, 0xfe]) || window.starts_with(&[0xfe, 0xff]) {
        return Err(TelemetryError::Utf16 { log: log() });
    }
    let text = String::from_utf8_lossy(&window[..window.len().min(lines::LONGEST_LINE)]);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .take(256)
        .collect();
    let Some(first) = lines.first() else {
        return Err(TelemetryError::Empty {
            log: log(),
            found: "an empty file",
        });
    };
    if let Some(names) = names {
        let csv = CsvReader::named(names.iter().map(String::as_str));
        if !csv
            .understood()
            .any(|(_, column)| column.meaning.is_bytes() || column.meaning == Meaning::Utilization)
        {
            return Err(TelemetryError::Columns {
                log: log(),
                found: names.join(","),
            });
        }
        return Ok(Parser::Csv(csv.in_mebibytes()));
    }
    if lines
        .iter()
        .take(8)
        .any(|line| line.starts_with("| NVIDIA-SMI") || line.starts_with("# gpu"))
    {
        return Err(TelemetryError::Screen { log: log() });
    }
    let is_json = |line: &&&str| line.starts_with('{') || line.starts_with("[{");
    let num_json = lines.iter().filter(is_json).count();
    let header = lines
        .iter()
        .take(16)
        .find_map(|line| CsvReader::of_header(line));
    if num_json == 0
        && let Some(csv) = header
    {
        let is_smi = csv
            .understood()
            .any(|(name, _)| name.starts_with("memory."));
        return Ok(Parser::Csv(if is_smi { csv.in_mebibytes() } else { csv }));
    }
    if num_json > 0 || lines.iter().any(|line| line.contains('{')) {
        return Ok(Parser::Json(JsonReader::default()));
    }
    if let Some(csv) = CsvReader::guessed(&lines) {
        let found: Vec<&str> = csv.understood().map(|(name, _)| name).collect();
        notes.push(format!(
            "no header: columns taken for {}, by the units beside their numbers; --columns says them",
            found.join(", ")
        ));
        return Ok(Parser::Csv(csv));
    }
    Err(TelemetryError::NoHeader {
        log: log(),
        found: first.chars().take(60).collect(),
    })
}
