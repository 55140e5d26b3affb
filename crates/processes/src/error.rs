//! What can go wrong between processes.

/// Why processes cannot start together, or cannot go on. The same on every process, but for what each saw itself.
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
        /// Which process.
        rank: usize,
        /// Its machine.
        host: String,
        /// What was seen of it.
        seen: String,
    },
    /// A process said that it cannot go on.
    #[error("rank {rank} on {host} failed: {message}")]
    Failed {
        /// Which process.
        rank: usize,
        /// Its machine.
        host: String,
        /// What it said.
        message: String,
    },
    /// Processes called for different things at the same point: a bug.
    #[error("{0}")]
    Mismatch(String),
}

impl GroupError {
    /// Whether the user's input is at fault, and nothing has begun.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, GroupError::Launch(_))
    }
}
