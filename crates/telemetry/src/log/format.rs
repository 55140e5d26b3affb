//! The format of a log, from its first lines.

use serde::Serialize;

use super::LineKind;
use super::columns::{Column, Meaning};
use super::json::JsonReader;
use super::lines::LONGEST_LINE;
use super::sample::SampleReader;
use super::table::TableReader;
use super::text::TextReader;
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
#[derive(Clone)]
pub(super) enum LogReader {
    Json(JsonReader),
    Table(TableReader),
    Text(TextReader),
    /// Text without samples, but with an error message.
    Errors,
}

impl LogReader {
    pub fn read(&mut self, line: &[u8], sample: &mut SampleReader) -> Result<LineKind, String> {
        let text = || std::str::from_utf8(line).map_err(|_| "no UTF-8".to_owned());
        match self {
            LogReader::Json(json) => json.read(line, sample).map(|()| LineKind::Sample),
            LogReader::Table(table) => table.read(text()?, sample),
            LogReader::Text(reader) => Ok(reader.read(text()?, sample)),
            LogReader::Errors => Err("no numbers in it".to_owned()),
        }
    }

    /// Names and meanings of the recognised columns.
    pub fn recognised_columns(&self) -> Vec<String> {
        let columns = match self {
            LogReader::Json(json) => json.columns.as_slice(),
            LogReader::Table(table) => &table.columns,
            LogReader::Text(_) | LogReader::Errors => &[],
        };
        let show = |(name, column): &(String, Option<Column>)| {
            Some(format!("{name}: {}", (*column)?.meaning.words()))
        };
        columns.iter().filter_map(show).collect()
    }

    pub fn format(&self) -> Format {
        const OURS: [&str; 5] = [
            "time",
            "phase",
            "used_bytes",
            "process_bytes",
            "arena_bytes",
        ];
        match self {
            LogReader::Json(json) if OURS.iter().all(|name| json.has(name)) => Format::Holdall,
            LogReader::Json(_) => Format::JsonLines,
            LogReader::Table(table) if table.is_dmon => Format::NvidiaSmiDmon,
            LogReader::Table(table) if is_of_nvidia_smi(table) => Format::NvidiaSmi,
            LogReader::Table(_) => Format::Csv,
            LogReader::Text(text) if text.is_table => Format::NvidiaSmiTable,
            LogReader::Text(_) => Format::TrainingLog,
            LogReader::Errors => Format::Text,
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
        if let Some(table) = TableReader::guessed(first) {
            let found = table.columns.iter().map(|(name, _)| name.as_str());
            let found: Vec<&str> = found.filter(|name| !name.is_empty()).collect();
            notes.push(format!(
                "no header: columns taken for {}, by the units beside their numbers; --columns says them",
                found.join(", ")
            ));
            return Ok(LogReader::Table(table));
        }
        if lines.iter().any(|line| trouble(line.as_bytes()).is_some()) {
            return Ok(LogReader::Errors);
        }
        let found = first.chars().take(60).collect();
        Err(TelemetryError::NoHeader { log, found })
    }

    /// A CSV with the user's column names.
    fn with_names(log: String, names: &[String]) -> Result<LogReader, TelemetryError> {
        let table = TableReader::named(names.iter().map(String::as_str));
        let mut meanings = table
            .columns
            .iter()
            .filter_map(|(_, column)| Some((*column)?.meaning));
        if meanings.any(|meaning| meaning.is_bytes() || meaning == Meaning::Utilization) {
            return Ok(LogReader::Table(table.in_mebibytes()));
        }
        let found = names.join(",");
        Err(TelemetryError::Columns { log, found })
    }

    /// A reader for a format that its first lines show.
    fn by_its_head(lines: &[&str], window: &[u8], notes: &mut Vec<String>) -> Option<LogReader> {
        let head = &lines[..lines.len().min(16)];
        if let Some(text) = TextReader::of_table(head) {
            return Some(LogReader::Text(text));
        }
        let begins = |line: &&str| line.starts_with('{') || line.starts_with("[{");
        let has_json = lines.iter().any(begins);
        let mut tables = head.iter().filter_map(|line| TableReader::of_header(line));
        let table = tables.find(|table| table.is_dmon || !has_json);
        let window = String::from_utf8_lossy(window);
        let is_dmon = table.as_ref().is_some_and(|table| table.is_dmon);
        if !has_json && !is_dmon && window.lines().any(TextReader::has_memory) {
            return Some(LogReader::Text(TextReader::default()));
        }
        let Some(table) = table else {
            let has_braces = lines.iter().any(|line| line.contains('{'));
            return has_braces.then(|| LogReader::Json(JsonReader::default()));
        };
        if table.is_dmon && !table.has(Meaning::Used) {
            notes.push(
                "dmon shows memory with -s m (`nvidia-smi dmon -s pucm`): without it only how busy the GPU is can be judged"
                    .to_owned(),
            );
        }
        let is_smi = table.has_name("memory.");
        Some(LogReader::Table(if is_smi {
            table.in_mebibytes()
        } else {
            table
        }))
    }
}

fn is_of_nvidia_smi(table: &TableReader) -> bool {
    table.has_name("memory.") || table.has_name("utilization.")
}
