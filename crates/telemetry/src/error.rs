//! What can be wrong with a log. Every message names the log, what was expected and what was found, and ends with a hint.

use std::io;

use crate::words::counted;

/// A log cannot be written, or not be read.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The operating system refused.
    #[error(
        "{log}: could not be {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room"
    )]
    Io {
        /// The log, as the user named it.
        log: String,
        /// What was attempted.
        action: &'static str,
        /// What the system said. Not a `source`: it is already in the message.
        cause: io::Error,
    },

    /// There is nothing in it.
    #[error(
        "{log}: expected lines of memory, found {found}\n\
         hint: check that the run got as far as its first step; `nvidia-smi --query-gpu=timestamp,memory.used,memory.total,\
         utilization.gpu --format=csv -l 1 > gpu.csv` writes a log of any run"
    )]
    Empty {
        /// The log.
        log: String,
        /// What is there.
        found: &'static str,
    },

    /// No line of it is a sample.
    #[error(
        "{log}: expected JSON lines or a CSV with a column of memory, found none in {}; line {line}: {reason}\n\
         hint: names such as used_bytes, allocated_mb, memory.used [MiB] are understood; `holdall analyze --help` has examples",
        counted(*lines, "line")
    )]
    NoSamples {
        /// The log.
        log: String,
        /// Its lines, as far as they were read.
        lines: u64,
        /// The first that could not be read.
        line: u64,
        /// What is wrong with that one.
        reason: String,
    },

    /// Numbers without names or units.
    #[error(
        "{log}: expected JSON lines, or a CSV with a header or with units, found `{found}`\n\
         hint: say what the columns are, as --query-gpu had them: --columns timestamp,memory.used,memory.total,utilization.gpu"
    )]
    NoHeader {
        /// The log.
        log: String,
        /// How it begins.
        found: String,
    },

    /// Names that the user gave say nothing.
    #[error(
        "--columns: expected a column of memory or utilization among the names for {log}, found `{found}`\n\
         hint: --columns timestamp,memory.used,memory.total,utilization.gpu"
    )]
    Columns {
        /// The log.
        log: String,
        /// The names.
        found: String,
    },

    /// What PowerShell makes of `>`.
    #[error(
        "{log}: expected UTF-8, found UTF-16, as PowerShell writes it\n\
         hint: Get-Content LOG | Set-Content -Encoding utf8 gpu.csv, or let nvidia-smi write the file: -f gpu.csv"
    )]
    Utf16 {
        /// The log.
        log: String,
    },
}

/// Names the log in what the system said.
pub(crate) fn failed(log: &str, action: &'static str) -> impl FnOnce(io::Error) -> TelemetryError {
    let log = log.to_owned();
    move |cause| TelemetryError::Io { log, action, cause }
}
