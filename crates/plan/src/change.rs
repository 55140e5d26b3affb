//! A change of options that would make a run fit.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Options to type.
    pub change: String,
    /// Memory of the process after the change.
    pub process_bytes: u64,
    /// Predicted time of a step after the change.
    pub step_ms: f64,
}
