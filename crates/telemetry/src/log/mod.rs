//! Memory logs of any origin: our `memory.jsonl`, captures of `nvidia-smi`, and JSON lines, CSVs and text logs of training
//! scripts.
//!
//! The first lines determine the format, and the units of names without one. Then lines are read one at a time; unreadable lines
//! are counted, and the first reason is kept.

mod columns;
mod csv;
mod dmon;
mod json;
mod lines;
mod prose;
mod record;
mod screen;
mod trouble;
mod values;

use std::io::{Chain, Cursor, Read};

use serde::Serialize;

use self::columns::Meaning;
use self::csv::CsvReader;
use self::dmon::DmonReader;
use self::json::JsonReader;
use self::lines::Lines;
use self::prose::ProseReader;
use self::record::{Guess, Raw};
use self::screen::ScreenReader;
use crate::error::{TelemetryError, failed};

pub(crate) use self::record::Sample;
pub(crate) use self::trouble::{Trouble, TroubleLines};

/// Bytes that are inspected to determine the format.
const WINDOW_BYTES: u64 = 1 << 17;
/// A file with this many lines and no sample is not a log.
const LINES_TO_GIVE_UP_AFTER: u64 = 100_000;

/// Format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `memory.jsonl` of a Holdall run.
    Holdall,
    /// `nvidia-smi --query-gpu=... --format=csv`.
    NvidiaSmi,
    /// Repeated tables of `nvidia-smi -l 1`.
    NvidiaSmiTable,
    /// `nvidia-smi dmon`.
    NvidiaSmiDmon,
    /// JSON lines of a training script.
    JsonLines,
    /// A CSV of a training script.
    Csv,
    /// Text that a training script prints: `GPU Memory - Allocated: 2.15GB / Peak: 3.01GB`.
    TrainingLog,
    /// Text without samples, but with an error message.
    Text,
}

impl Format {
    /// Name in messages.
    pub fn words(self) -> &'static str {
        match self {
            Format::Holdall => "memory.jsonl of a Holdall run",
            Format::NvidiaSmi => "nvidia-smi CSV",
            Format::NvidiaSmiTable => "nvidia-smi tables",
            Format::NvidiaSmiDmon => "nvidia-smi dmon",
            Format::JsonLines => "JSON lines",
            Format::Csv => "CSV",
            Format::TrainingLog => "lines of a training log",
            Format::Text => "text",
        }
    }
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

enum Parser {
    Json(JsonReader),
    Csv(CsvReader),
    Dmon(DmonReader),
    Screen(ScreenReader),
    Prose(ProseReader),
    /// Text without samples, but with an error message.
    Text,
}

impl Parser {
    fn read(&mut self, line: &[u8], raw: &mut Raw) -> Result<csv::Read, String> {
        let text = || std::str::from_utf8(line).map_err(|_| "no UTF-8".to_owned());
        match self {
            Parser::Json(json) => json.read(line, raw).map(|()| csv::Read::Cells),
            Parser::Csv(csv) => csv.read(text()?, raw),
            Parser::Dmon(dmon) => dmon.read(text()?, raw),
            Parser::Screen(screen) => screen.read(text()?, raw),
            Parser::Prose(prose) => prose.read(text()?, raw),
            Parser::Text => Err("no numbers in it".to_owned()),
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
    lines: Lines<Chain<Cursor<Vec<u8>>, R>>,
    parser: Parser,
    raw: Raw,
    num_lines: u64,
    num_samples: u64,
    skipped: Skipped,
    notes: Vec<String>,
    columns: Vec<String>,
    troubles: Vec<TroubleLines>,
    losses: OddLosses,
    last_step: Option<u64>,
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
            troubles: Vec::new(),
            losses: OddLosses::default(),
            last_step: None,
        };
        log.guess_units(&window);
        log.lines.restart(window);
        Ok(log)
    }

    /// Reads the window once to guess the unit of numbers whose names have none.
    fn guess_units(&mut self, window: &[u8]) {
        let mut raw = Raw::new(Guess::default());
        let mut parser = match &self.parser {
            Parser::Json(_) => Parser::Json(JsonReader::default()),
            Parser::Csv(csv) => Parser::Csv(csv.clone()),
            // These formats have units of their own.
            Parser::Dmon(_) | Parser::Screen(_) | Parser::Prose(_) | Parser::Text => return,
        };
        for line in window.split(|&byte| byte == b'\n').take(512) {
            raw.clear();
            let line = line.trim_ascii();
            if line.len() > lines::LONGEST_LINE {
                continue;
            }
            // Unreadable lines are counted in the main pass.
            let _ = parser.read(line, &mut raw);
        }
        let guess = raw.guess().decided();
        if let Some(unit) = guess.unit() {
            self.notes.push(format!(
                "names without a unit are read as {unit}, by the size of their numbers; a name such as `allocated_mib` says it"
            ));
        }
        self.raw = Raw::new(guess);
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
            if line.is_too_long {
                self.skipped
                    .add(line.number, || "longer than 64 KiB".to_owned());
                continue;
            }
            if line.bytes.is_empty() || matches!(line.bytes, b"[" | b"]") {
                continue;
            }
            if let Some(what) = trouble::trouble(line.bytes) {
                add_trouble(&mut self.troubles, what, &line, self.last_step);
            }
            self.raw.clear();
            let is_of_cells = !matches!(self.parser, Parser::Json(_));
            // A last line without a line end is incomplete; its last number may have lost digits.
            let read = if is_of_cells && !line.is_ended && self.num_samples > 0 {
                Err("cut off: no line end".to_owned())
            } else {
                self.parser.read(line.bytes, &mut self.raw)
            };
            match read {
                Err(reason) => self.skipped.add(line.number, || reason),
                Ok(csv::Read::Header) => {}
                Ok(csv::Read::Cells) => {
                    self.last_step = self.raw.step().or(self.last_step);
                    if let Some(is_finite) = self.raw.has_finite_loss() {
                        self.losses.add(is_finite, line.number, self.last_step);
                    }
                    match self.raw.sample(line.number) {
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
                    }
                }
            }
        }
    }

    /// Error messages in the log, one entry per kind.
    pub fn troubles(&self) -> &[TroubleLines] {
        &self.troubles
    }

    pub fn losses(&self) -> &OddLosses {
        &self.losses
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
        match &self.parser {
            Parser::Json(json) => {
                let ours = [
                    "time",
                    "phase",
                    "used_bytes",
                    "process_bytes",
                    "arena_bytes",
                ];
                if ours.iter().all(|name| json.has(name)) {
                    Format::Holdall
                } else {
                    Format::JsonLines
                }
            }
            Parser::Csv(csv) => {
                let is_dotted =
                    |name: &str| name.starts_with("memory.") || name.starts_with("utilization.");
                if csv.understood().any(|(name, _)| is_dotted(name)) {
                    Format::NvidiaSmi
                } else {
                    Format::Csv
                }
            }
            Parser::Dmon(_) => Format::NvidiaSmiDmon,
            Parser::Screen(_) => Format::NvidiaSmiTable,
            Parser::Prose(_) => Format::TrainingLog,
            Parser::Text => Format::Text,
        }
    }

    /// Recognised columns of the first sample, as `name: meaning`.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    fn understood(&self) -> Vec<String> {
        let show =
            |(name, column): (&str, columns::Column)| format!("{name}: {}", column.meaning.words());
        match &self.parser {
            Parser::Json(json) => json.understood().map(show).collect(),
            Parser::Csv(csv) => csv.understood().map(show).collect(),
            Parser::Dmon(dmon) => dmon
                .understood()
                .map(|(name, words)| format!("{name}: {words}"))
                .collect(),
            Parser::Screen(_) | Parser::Prose(_) | Parser::Text => Vec::new(),
        }
    }

    pub fn num_lines(&self) -> u64 {
        self.num_lines
    }

    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Log lines about guesses.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

fn add_trouble(
    troubles: &mut Vec<TroubleLines>,
    what: Trouble,
    line: &lines::Line<'_>,
    step: Option<u64>,
) {
    match troubles.iter_mut().find(|known| known.what == what) {
        Some(known) => known.count += 1,
        None => troubles.push(TroubleLines {
            what,
            first_line: line.number,
            text: trouble::excerpt(line.bytes),
            count: 1,
            step,
        }),
    }
}

/// Chooses the parser from the beginning of the log.
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
    let dmon = lines
        .iter()
        .take(16)
        .find_map(|line| DmonReader::of_header(line));
    if let Some(dmon) = dmon {
        if !dmon.has_memory() {
            notes.push(
                "dmon shows memory with -s m (`nvidia-smi dmon -s pucm`): without it only how busy the GPU is can be judged"
                    .to_owned(),
            );
        }
        return Ok(Parser::Dmon(dmon));
    }
    if lines
        .iter()
        .take(16)
        .any(|line| ScreenReader::is_head(line))
    {
        return Ok(Parser::Screen(ScreenReader::default()));
    }
    let is_json = |line: &&&str| line.starts_with('{') || line.starts_with("[{");
    let num_json = lines.iter().filter(is_json).count();
    if num_json == 0 {
        let window = String::from_utf8_lossy(window);
        if window.lines().any(ProseReader::has_memory) {
            return Ok(Parser::Prose(ProseReader::default()));
        }
    }
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
    let says_what_failed = |line: &&str| trouble::trouble(line.as_bytes()).is_some();
    if lines.iter().any(says_what_failed) {
        return Ok(Parser::Text);
    }
    Err(TelemetryError::NoHeader {
        log: log(),
        found: first.chars().take(60).collect(),
    })
}
