//! What can go wrong before step 0.

use crate::advice::Change;

/// Why there is no plan.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// Nothing that the user left open fits.
    #[error(
        "the run does not fit: the budget is {budget_bytes} bytes, the smallest that would do is {smallest_bytes} bytes"
    )]
    DoesNotFit {
        /// What was given.
        budget_bytes: u64,
        /// What the thriftiest plan needs, with everything the user fixed as it is.
        smallest_bytes: u64,
        /// The cheapest changes that would make it fit.
        changes: Vec<Change>,
        /// Largest budget that can be had where the run is planned for; `None` where nobody knows.
        available_bytes: Option<u64>,
        /// Why the budget is not the number that the user gave, where it is not.
        note: Option<String>,
    },
    /// Batch size, accumulation and effective batch contradict each other or are zero.
    #[error("{0}")]
    Contradiction(String),
}
