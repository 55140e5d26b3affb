//! `metrics.jsonl`: a line per step and per evaluation, none lost, none doubled.
//!
//! A checkpoint remembers how long the file was, and its checksum. Going on from it cuts off what came later, which the run then
//! writes again: the same numbers, since the same losses follow.

use std::path::Path;

use serde::Serialize;

use crate::error::TrainError;
use crate::run_folder::appended_file::{AppendedFile, Prefix};

/// The open file.
pub struct Journal {
    file: AppendedFile,
    lines: Vec<u8>,
}

impl Journal {
    /// Opens the file and goes on behind what a checkpoint remembers of it.
    pub fn open(path: &Path, prefix: &Prefix) -> Result<Journal, TrainError> {
        let file = AppendedFile::open(path, prefix)?;
        let lines = Vec::new();
        Ok(Journal { file, lines })
    }

    /// Appends lines, in one write: all of them, or none as far as a checkpoint is concerned.
    pub fn add(&mut self, records: &[impl Serialize]) -> Result<(), TrainError> {
        self.lines.clear();
        for record in records {
            serde_json::to_writer(&mut self.lines, record).expect("a line is plain data");
            self.lines.push(b'\n');
        }
        self.file.add(&self.lines)
    }

    /// Brings the file to disk and says what a checkpoint remembers of it.
    pub fn sync(&mut self) -> Result<Prefix, TrainError> {
        self.file.sync()
    }
}
