use crate::change::Change;

/// Reason why there is no plan.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// No choice of the open settings fits.
    #[error(
        "the run does not fit: the budget is {budget_bytes} bytes, the smallest that would do is {smallest_bytes} bytes"
    )]
    DoesNotFit {
        budget_bytes: u64,
        /// Memory of the smallest plan with the user's settings.
        smallest_bytes: u64,
        /// The cheapest changes that would make the run fit.
        changes: Vec<Change>,
        /// Largest budget that is available on the target; `None` if unknown.
        available_bytes: Option<u64>,
        /// Reason why the budget is smaller than the requested one, if it is.
        note: Option<String>,
    },
    /// Batch size, accumulation and effective batch contradict each other or are zero.
    #[error("{0}")]
    Contradiction(String),
}
