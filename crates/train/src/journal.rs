//! `metrics.jsonl`: a line per step and per evaluation, none lost, none doubled.
//!
//! A checkpoint remembers how long the file was. Going on from it cuts off what came later, which the run then writes
//! again: the same numbers, since the same losses follow.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::TrainError;
use crate::run_folder::failed;

/// The open file.
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    line: Vec<u8>,
}

impl Journal {
    /// Opens the file and goes on behind its first `bytes`.
    pub fn open(path: &Path, bytes: u64) -> Result<Journal, TrainError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(failed(path, "opened"))?;
        let found = file.metadata().map_err(failed(path, "read"))?.len();
        let whole = bytes == 0
            || (found >= bytes && ends_a_line(&mut file, bytes).map_err(failed(path, "read"))?);
        if !whole {
            return Err(TrainError::Run(format!(
                "{}: expected the {bytes} bytes that the checkpoint remembers, found {found}\n\
                 hint: the file was changed or cut since; restore it, or begin a new run",
                path.display()
            )));
        }
        file.set_len(bytes)
            .map_err(failed(path, "cut to the checkpoint"))?;
        file.seek(SeekFrom::Start(bytes))
            .map_err(failed(path, "read"))?;
        Ok(Journal {
            path: path.to_owned(),
            file,
            bytes,
            line: Vec::new(),
        })
    }

    /// Appends a line, in one write.
    pub fn add(&mut self, record: &impl Serialize) -> Result<(), TrainError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, record)
            .map_err(|cause| failed(&self.path, "written")(cause.into()))?;
        self.line.push(b'\n');
        self.file
            .write_all(&self.line)
            .map_err(failed(&self.path, "written"))?;
        self.bytes += self.line.len() as u64;
        Ok(())
    }

    /// Brings the file to disk and says how long it is: what a checkpoint remembers.
    pub fn sync(&mut self) -> Result<u64, TrainError> {
        self.file
            .sync_data()
            .map_err(failed(&self.path, "written to disk"))?;
        Ok(self.bytes)
    }
}

fn ends_a_line(file: &mut File, bytes: u64) -> std::io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::Start(bytes - 1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_the_checkpoint_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut journal = Journal::open(&path, 0).unwrap();
        journal.add(&1).unwrap();
        let remembered = journal.sync().unwrap();
        journal.add(&2).unwrap();
        drop(journal);
        // Killed within a line.
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"st")
            .unwrap();
        let mut journal = Journal::open(&path, remembered).unwrap();
        journal.add(&3).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n3\n");
        assert!(Journal::open(&path, 99).is_err());
        assert!(Journal::open(&path, 3).is_err());
    }
}
