//! `metrics.jsonl`: one line per step and per evaluation, none lost, none doubled.
//!
//! A checkpoint stores the length and the checksum of the file. Resuming cuts off the lines after it; the run writes them
//! again with the same numbers.

use std::path::Path;

use serde::Serialize;

use crate::error::TrainError;
use crate::run_folder::appended_file::{AppendedFile, Prefix};

pub struct Journal {
    file: AppendedFile,
    lines: Vec<u8>,
}

impl Journal {
    /// Opens the file behind the prefix that a checkpoint stored.
    pub fn open(path: &Path, prefix: &Prefix) -> Result<Journal, TrainError> {
        let file = AppendedFile::open(path, prefix)?;
        let lines = Vec::new();
        Ok(Journal { file, lines })
    }

    /// Appends lines in one write: a checkpoint contains all of them or none.
    pub fn add(&mut self, records: &[impl Serialize]) -> Result<(), TrainError> {
        self.lines.clear();
        for record in records {
            serde_json::to_writer(&mut self.lines, record).expect("a line is plain data");
            self.lines.push(b'\n');
        }
        self.file.add(&self.lines)
    }

    /// Flushes the file to disk and returns the prefix for a checkpoint.
    pub fn sync(&mut self) -> Result<Prefix, TrainError> {
        self.file.sync()
    }
}
