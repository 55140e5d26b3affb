//! What can be wrong with a log. Every message names the log, what was expected and what was found, and ends with a hint.

use std::io;

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
}

/// Names the log in what the system said.
pub(crate) fn failed(log: &str, action: &'static str) -> impl FnOnce(io::Error) -> TelemetryError {
    let log = log.to_owned();
    move |cause| TelemetryError::Io { log, action, cause }
}
