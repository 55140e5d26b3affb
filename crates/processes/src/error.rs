//! Errors between processes.

/// Why processes cannot start together or cannot continue. The same on every process, except for details that each saw itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The variables of the launcher are incomplete or contradict each other.
    #[error("{0}")]
    Launch(String),
    /// The processes could not find each other.
    #[error("{0}")]
    Start(String),
    /// A process ended, stopped or was disconnected.
    #[error(
        "lost rank {rank} on {host}: {seen}\n\
         hint: what it printed last says more; `--resume` goes on from the last checkpoint, also with another number of processes"
    )]
    Lost {
        rank: usize,
        host: String,
        /// This process's observation.
        seen: String,
    },
    /// A process reported that it cannot continue.
    #[error("rank {rank} on {host} failed: {message}")]
    Failed {
        rank: usize,
        host: String,
        /// Its own message.
        message: String,
    },
    /// Processes made different calls at the same point: a bug.
    #[error("{0}")]
    Mismatch(String),
}

impl GroupError {
    /// Whether the user's input is at fault; nothing has started then.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, GroupError::Launch(_))
    }
}
