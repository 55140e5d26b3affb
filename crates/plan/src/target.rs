//! The planner's interface to a device: sizes and times.

use holdall_graph::NodeView;

use crate::pack::Spacing;

/// A device as the planner sees it.
pub trait Target: Sync {
    /// Whether the next inputs arrive while a program runs, in a second area.
    fn has_landing(&self) -> bool {
        false
    }

    /// Whether lanes can run at the same time.
    fn has_lanes(&self) -> bool {
        false
    }

    /// Share of the device that a node keeps busy while it runs.
    fn busy(&self, _node: NodeView<'_>) -> f64 {
        1.0
    }

    /// How tensors lie in the arena.
    fn spacing(&self) -> Spacing;

    /// Scratch of the node's kernel.
    fn workspace_bytes(&self, node: NodeView<'_>) -> u64;

    /// Predicted time of one run of the node.
    fn seconds(&self, node: NodeView<'_>) -> f64;

    /// Bytes per second of simultaneous transfers from pinned host memory and back, in each direction; `None` if there is no
    /// memory beside the device's.
    fn host_bytes_per_second(&self) -> Option<f64> {
        None
    }

    /// Device memory for access to so many bytes of pinned host memory.
    fn pinned_bytes(&self, _host_bytes: u64) -> u64 {
        0
    }

    /// Memory of the process beside the arena: code, context, the product library's own buffers.
    fn overhead_bytes(&self, largest_library_bytes: u64) -> u64;

    /// Memory that the device loads for programs over shorter texts, beside the full programs.
    fn shorter_bytes(&self, _num_lengths: usize) -> u64 {
        0
    }

    /// Memory outside of the arena for each capture of a node.
    fn replay_bytes(&self, _node: NodeView<'_>) -> u64 {
        0
    }

    /// Memory outside of the arena for each capture of a program, beside its nodes.
    fn replay_program_bytes(&self) -> u64 {
        0
    }

    /// Page size of the arena.
    fn page_bytes(&self) -> u64;

    /// Memory that the product library keeps outside of the arena after the node has run.
    fn library_bytes(&self, node: NodeView<'_>) -> u64;
}
