//! The format of a log, from its first lines.

use serde::Serialize;

use super::LineKind;
use super::columns::{Column, Meaning};
use super::dmon::DmonReader;
use super::json::JsonReader;
use super::lines::LONGEST_LINE;
use super::prose::ProseReader;
use super::sample::{SampleReader, UnitGuess};
use super::screen::ScreenReader;
use super::table::CsvReader;
use super::trouble::trouble;
use crate::error::TelemetryError;

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

/// Reader of the lines of one format.
pub(super) enum LogReader {
    Json(JsonReader),
    Csv(CsvReader),
    Dmon(DmonReader),
    Screen(ScreenReader),
    Prose(ProseReader),
    /// Text without samples, but with an error message.
    Text,
}

impl LogReader {
    pub fn read(&mut self, line: &[u8], sample: &mut SampleReader) -> Result<LineKind, String> {
        let text = || std::str::from_utf8(line).map_err(|_| "no UTF-8".to_owned());
        match self {
            LogReader::Json(json) => json.read(line, sample).map(|()| LineKind::Sample),
            LogReader::Csv(csv) => csv.read(text()?, sample),
            LogReader::Dmon(dmon) => dmon.read(text()?, sample),
            LogReader::Screen(screen) => screen.read(text()?, sample),
            LogReader::Prose(prose) => prose.read(text()?, sample),
            LogReader::Text => Err("no numbers in it".to_owned()),
        }
    }

    /// Reads the window once to guess the unit of numbers whose names have none.
    pub fn unit_guess(&self, window: &[u8]) -> UnitGuess {
        let mut sample = SampleReader::default();
        let mut reader = match self {
            LogReader::Json(_) => LogReader::Json(JsonReader::default()),
            LogReader::Csv(csv) => LogReader::Csv(csv.clone()),
            // These formats have units of their own.
            _ => return UnitGuess::default(),
        };
        for line in window.split(|&byte| byte == b'\n').take(512) {
            sample.clear();
            if line.len() <= LONGEST_LINE {
                // Unreadable lines are counted in the main pass.
                let _ = reader.read(line.trim_ascii(), &mut sample);
            }
        }
        sample.guess().decided()
    }

    /// Names and meanings of the recognised columns.
    pub fn recognised_columns(&self) -> Vec<String> {
        let columns = match self {
            LogReader::Json(json) => &json.columns,
            LogReader::Csv(csv) => &csv.columns,
            LogReader::Dmon(dmon) => &dmon.columns,
            LogReader::Screen(_) | LogReader::Prose(_) | LogReader::Text => return Vec::new(),
        };
        let show = |(name, column): &(String, Option<Column>)| {
            Some(format!("{name}: {}", (*column)?.meaning.words()))
        };
        columns.iter().filter_map(show).collect()
    }

    pub fn format(&self) -> Format {
        match self {
            LogReader::Json(json) => {
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
            LogReader::Csv(csv) => {
                let is_dotted =
                    |name: &str| name.starts_with("memory.") || name.starts_with("utilization.");
                if csv.has(|name, _| is_dotted(name)) {
                    Format::NvidiaSmi
                } else {
                    Format::Csv
                }
            }
            LogReader::Dmon(_) => Format::NvidiaSmiDmon,
            LogReader::Screen(_) => Format::NvidiaSmiTable,
            LogReader::Prose(_) => Format::TrainingLog,
            LogReader::Text => Format::Text,
        }
    }

    /// Chooses the reader from the beginning of the log.
    pub fn detect(
        name: &str,
        window: &[u8],
        names: Option<&[String]>,
        notes: &mut Vec<String>,
    ) -> Result<LogReader, TelemetryError> {
        let log = name.to_owned();
        if window.starts_with(&[0xff, 0xfe]) || window.starts_with(&[0xfe, 0xff]) {
            return Err(TelemetryError::Utf16 { log });
        }
        let text = String::from_utf8_lossy(&window[..window.len().min(LONGEST_LINE)]);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines: Vec<&str> = lines.take(256).collect();
        let Some(first) = lines.first() else {
            let found = "an empty file";
            return Err(TelemetryError::Empty { log, found });
        };
        if let Some(names) = names {
            return LogReader::with_names(log, names);
        }
        if let Some(reader) = LogReader::by_its_head(&lines, window, notes) {
            return Ok(reader);
        }
        if let Some(csv) = CsvReader::guessed(&lines) {
            let found: Vec<&str> = csv.columns.iter().map(|(name, _)| name.as_str()).collect();
            let found: Vec<&str> = found.into_iter().filter(|name| !name.is_empty()).collect();
            notes.push(format!(
                "no header: columns taken for {}, by the units beside their numbers; --columns says them",
                found.join(", ")
            ));
            return Ok(LogReader::Csv(csv));
        }
        if lines.iter().any(|line| trouble(line.as_bytes()).is_some()) {
            return Ok(LogReader::Text);
        }
        let found = first.chars().take(60).collect();
        Err(TelemetryError::NoHeader { log, found })
    }

    /// A CSV with the user's column names.
    fn with_names(log: String, names: &[String]) -> Result<LogReader, TelemetryError> {
        let csv = CsvReader::named(names.iter().map(String::as_str));
        if csv.has(|_, meaning| meaning.is_bytes() || meaning == Meaning::Utilization) {
            return Ok(LogReader::Csv(csv.in_mebibytes()));
        }
        let found = names.join(",");
        Err(TelemetryError::Columns { log, found })
    }

    /// A reader for a format that its first lines show.
    fn by_its_head(lines: &[&str], window: &[u8], notes: &mut Vec<String>) -> Option<LogReader> {
        let head = &lines[..lines.len().min(16)];
        if let Some(dmon) = head.iter().find_map(|line| DmonReader::of_header(line)) {
            if !dmon.has_memory {
                notes.push(
                    "dmon shows memory with -s m (`nvidia-smi dmon -s pucm`): without it only how busy the GPU is can be judged"
                        .to_owned(),
                );
            }
            return Some(LogReader::Dmon(dmon));
        }
        if head.iter().any(|line| ScreenReader::is_head(line)) {
            return Some(LogReader::Screen(ScreenReader::default()));
        }
        let has_json = lines
            .iter()
            .any(|line| line.starts_with('{') || line.starts_with("[{"));
        if !has_json {
            let window = String::from_utf8_lossy(window);
            if window.lines().any(ProseReader::has_memory) {
                return Some(LogReader::Prose(ProseReader::default()));
            }
            if let Some(csv) = head.iter().find_map(|line| CsvReader::of_header(line)) {
                let is_smi = csv.has(|name, _| name.starts_with("memory."));
                return Some(LogReader::Csv(if is_smi {
                    csv.in_mebibytes()
                } else {
                    csv
                }));
            }
        }
        let has_braces = has_json || lines.iter().any(|line| line.contains('{'));
        has_braces.then(|| LogReader::Json(JsonReader::default()))
    }
}
