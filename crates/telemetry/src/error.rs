//! Errors of writing and reading logs. Every message names the log, the expectation and the finding, and ends with a hint.

use std::io;

use crate::words::counted;

/// A log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The operating system reported an error.
    #[error(
        "{log}: could not be {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room"
    )]
    Io {
        /// The log, as the user named it.
        log: String,
        /// The attempt, such as `read`.
        action: &'static str,
        /// The system's error. Not a `source`, because the message contains it.
        cause: io::Error,
    },

    /// An empty log.
    #[error(
        "{log}: expected lines of memory, found {found}\n\
         hint: check that the run got as far as its first step; `nvidia-smi --query-gpu=timestamp,memory.used,memory.total,\
         utilization.gpu --format=csv -l 1 > gpu.csv` writes a log of any run"
    )]
    Empty {
        log: String,
        /// Description of the file's contents.
        found: &'static str,
    },

    /// A log without a single sample.
    #[error(
        "{log}: expected JSON lines or a CSV with a column of memory, found none in {}; line {line}: {reason}\n\
         hint: names such as used_bytes, allocated_mb, memory.used [MiB] are understood; `holdall analyze --help` has examples",
        counted(*lines, "line")
    )]
    NoSamples {
        log: String,
        /// Lines that were read.
        lines: u64,
        /// Number of the first unreadable line.
        line: u64,
        /// Reason why that line is unreadable.
        reason: String,
    },

    /// A CSV without names or units.
    #[error(
        "{log}: expected JSON lines, or a CSV with a header or with units, found `{found}`\n\
         hint: say what the columns are, as --query-gpu had them: --columns timestamp,memory.used,memory.total,utilization.gpu"
    )]
    NoHeader {
        log: String,
        /// Beginning of the first line.
        found: String,
    },

    /// Column names from the command line without memory or utilization.
    #[error(
        "--columns: expected a column of memory or utilization among the names for {log}, found `{found}`\n\
         hint: --columns timestamp,memory.used,memory.total,utilization.gpu"
    )]
    Columns {
        log: String,
        /// The names.
        found: String,
    },

    /// UTF-16, which PowerShell writes for `>`.
    #[error(
        "{log}: expected UTF-8, found UTF-16, as PowerShell writes it\n\
         hint: Get-Content LOG | Set-Content -Encoding utf8 gpu.csv, or let nvidia-smi write the file: -f gpu.csv"
    )]
    Utf16 { log: String },
}

/// Wraps an I/O error with the log's name.
pub(crate) fn failed(log: &str, action: &'static str) -> impl FnOnce(io::Error) -> TelemetryError {
    let log = log.to_owned();
    move |cause| TelemetryError::Io { log, action, cause }
}
