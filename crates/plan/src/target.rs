//! What the planner asks of a device: sizes and times, nothing else.

use holdall_graph::NodeView;

use crate::pack::Spacing;

/// A device as the planner sees it.
pub trait Target: Sync {
    /// Whether inputs arrive beside those in use, while a program runs: a second place for them.
    fn has_landing(&self) -> bool {
        false
    }

    /// Whether lanes can run beside each other.
    fn has_lanes(&self) -> bool {
        false
    }

    /// Share of the device that a node keeps busy while it runs.
    fn busy(&self, _node: NodeView<'_>) -> f64 {
        1.0
    }

    /// How tensors lie in the arena.
    fn spacing(&self) -> Spacing;

    /// Scratch that the node's kernel needs while it runs.
    fn workspace_bytes(&self, node: NodeView<'_>) -> u64;

    /// Predicted time of one run of the node.
    fn seconds(&self, node: NodeView<'_>) -> f64;

    /// Bytes a second that operations move from pinned host memory and back to it at the same time, each; `None` where there is no
    /// other memory than the device's.
    fn host_bytes_per_second(&self) -> Option<f64> {
        None
    }

    /// What reaching so many bytes of pinned host memory takes on the device.
    fn pinned_bytes(&self, _host_bytes: u64) -> u64 {
        0
    }

    /// What the process holds beside the arena: code, context, the product library's own buffers.
    fn overhead_bytes(&self, largest_packing_bytes: u64) -> u64;

    /// What programs over so many shorter lengths of text make the device load beside what the full ones do.
    fn shorter_bytes(&self, _num_lengths: usize) -> u64 {
        0
    }

    /// What the node costs outside the arena for each time that its program is made ready to replay.
    fn replay_bytes(&self, _node: NodeView<'_>) -> u64 {
        0
    }

    /// What a program costs outside the arena beside its nodes, likewise.
    fn replay_program_bytes(&self) -> u64 {
        0
    }

    /// Size of the pages in which the arena is reserved.
    fn page_bytes(&self) -> u64;

    /// What the product library keeps outside the arena once the node has run.
    fn packing_bytes(&self, node: NodeView<'_>) -> u64;
}
