//! `RUN/train.log`: everything that a run printed, appended to on a resume. Lines printed before the folder existed come first.
//!
//! On a terminal a bar replaces the lines of steps; the log has these lines all the same.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// File name in a run's folder.
pub const FILE_NAME: &str = "train.log";

/// Most lines buffered until the folder exists; earlier ones are dropped.
const MOST_WAITING: usize = 1000;

enum RunLog {
    Closed,
    /// Lines printed before the folder exists.
    Waiting(Vec<String>),
    Open(File),
}

static LOG: Mutex<RunLog> = Mutex::new(RunLog::Closed);

fn log() -> MutexGuard<'static, RunLog> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts buffering lines, with the command as the first, unless a log is active.
pub fn begin() {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let command: Vec<String> = words.collect();
    let mut log = log();
    if matches!(*log, RunLog::Closed) {
        *log = RunLog::Waiting(vec![format!("$ {}", command.join(" "))]);
    }
}

/// Opens the folder's log, appends the buffered lines, and logs there from now on. If it cannot be opened, there is no log.
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

/// Appends a line.
pub fn add(line: &str) {
    write(&mut log(), line);
}

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
            // One write per line, so that a reader never sees an incomplete line. A full disk does not end a run.
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }
}
