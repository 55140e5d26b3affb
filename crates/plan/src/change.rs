//! A change of options that would make a run fit.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Options to type.
    pub change: String,
    #[serde(skip)]
    pub kind: ChangeKind,
    /// Memory of the process after the change.
    pub process_bytes: u64,
    /// Predicted time of a step after the change.
    pub step_ms: f64,
}

/// The setting that a change touches most: one of another split may recompute more too, one of a smaller batch may be split again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Memory,
    Recompute,
    Split,
    EffectiveBatch,
    /// A variant of the run with other numerics.
    Numerics,
}
