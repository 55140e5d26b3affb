//! `RUN/train.log`: all that a run printed, appended when it is resumed. What was said before the folder was there comes first.
//!
//! On a terminal a bar shows how steps go; the log has their lines all the same.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file's name in a run's folder.
pub const FILE_NAME: &str = "train.log";

/// Lines that wait for the folder, at most: a run that says more before it begins loses the first ones.
const MOST_WAITING: usize = 1000;

enum RunLog {
    Closed,
    /// Lines that were told before there was a folder.
    Waiting(Vec<String>),
    Open(File),
}

static LOG: Mutex<RunLog> = Mutex::new(RunLog::Closed);

fn log() -> MutexGuard<'static, RunLog> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run begins with this command: what is told from here on is kept, unless it is already.
pub fn begin() {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let command: Vec<String> = words.collect();
    let mut log = log();
    if matches!(*log, RunLog::Closed) {
        *log = RunLog::Waiting(vec![format!("$ {}", command.join(" "))]);
    }
}

/// Writes what was kept behind what is in the folder's log, and goes on there. A log that cannot be written is done without.
pub fn open(folder: &Path) {
    let path = folder.join(FILE_NAME);
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let mut log = log();
    let waiting = match std::mem::replace(&mut *log, RunLog::Closed) {
        RunLog::Waiting(lines) => lines,
        other => {
            *log = other;
            return;
        }
    };
    if let Ok(file) = opened {
        *log = RunLog::Open(file);
        waiting.iter().for_each(|line| write(&mut log, line));
    }
}

/// Keeps a line.
pub fn add(line: &str) {
    write(&mut log(), line);
}

/// The run has ended.
pub fn close() {
    *log() = RunLog::Closed;
}

fn write(log: &mut RunLog, line: &str) {
    match log {
        RunLog::Closed => {}
        RunLog::Waiting(lines) => {
            if lines.len() == MOST_WAITING {
                lines.remove(0);
            }
            lines.push(line.to_owned());
        }
        RunLog::Open(file) => {
            // One write for a line, so that a reader never sees half of one. A full disk ends no run.
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }
}
