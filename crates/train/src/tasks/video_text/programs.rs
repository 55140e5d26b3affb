//! Forward programs beside the step: encoders, the caption loss, one token of a decoder.

use holdall_graph::Graph;

use super::VideoTextTask;

/// Writes the forward programs for `batch` samples at a time.
pub(super) fn write_programs(_task: &VideoTextTask, _graph: &mut Graph, _batch: usize) {}
