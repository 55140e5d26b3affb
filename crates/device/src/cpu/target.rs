//! The CPU as the planner sees it.

use holdall_graph::{NodeView, Op};
use holdall_plan::Target;

use super::attention::QUERY_TILE;
use super::{contrastive, layer_norm, linear, memory, product, update};

/// Sizes and times on this machine's cores.
#[derive(Clone, Debug)]
pub struct CpuTarget {
    num_threads: usize,
    /// Resident memory outside the arena when the plan is made.
    baseline_bytes: u64,
    /// Products, per thread.
    flops_per_second: f64,
    /// Element-wise arithmetic, per thread.
    element_flops_per_second: f64,
    /// Memory traffic, all threads.
    bytes_per_second: f64,
}

/// Starting one operation on all threads and waiting for the last.
const SECONDS_PER_NODE: f64 = 12e-6;
/// Rows at which a product reaches half of its full speed.
const HALF_SPEED_ROWS: f64 = 24.0;
/// Stacks, the allocator's own pages and what the run itself needs for its records.
const RESERVE_BYTES: u64 = 2 << 20;

impl CpuTarget {
    /// A target for a pool of `num_threads`, with the memory that the process holds now as a baseline.
    pub fn new(num_threads: usize) -> CpuTarget {
        let wide = gemm_common::cache::CACHE_INFO[1].cache_bytes > 0
            && matches!(pulp::Arch::new(), arch if format!("{arch:?}").starts_with("V4"));
        CpuTarget {
            num_threads,
            baseline_bytes: memory::resident_bytes().unwrap_or(32 << 20),
            flops_per_second: if wide { 95e9 } else { 45e9 },
            element_flops_per_second: if wide { 12e9 } else { 6e9 },
            bytes_per_second: 8e9 * num_threads.min(4) as f64,
        }
    }

    /// The same with a given baseline, for plans that must not depend on the moment.
    pub fn with_baseline(mut self, baseline_bytes: u64) -> CpuTarget {
        self.baseline_bytes = baseline_bytes;
        self
    }

    /// Adds memory that the run will hold outside the arena, such as the batch on the host.
    pub fn with_host_bytes(mut self, bytes: u64) -> CpuTarget {
        self.baseline_bytes += bytes;
        self
    }

    fn product_shape(node: NodeView<'_>) -> Option<(usize, usize, usize)> {
        match &node.node.op {
            Op::Linear(_) => {
                let (x, weight) = (node.input(0), node.input(1));
                let rows = linear::strip_rows(x.rows(), weight.rows());
                Some((rows, x.width(), weight.rows()))
            }
            Op::LinearInputGrad(_) => {
                let (dz, weight) = (node.input(0), node.input(1));
                let rows = linear::strip_rows(dz.rows(), weight.width());
                Some((rows, dz.width(), weight.width()))
            }
            Op::LinearWeightGrad(_) => {
                let (dz, x) = (node.input(0), node.input(1));
                Some((dz.width(), dz.rows(), x.width()))
            }
            Op::Contrastive(op) => {
                let image = node.input(0);
                Some((
                    op.tile.min(image.rows()),
                    image.width(),
                    op.tile.min(image.rows()),
                ))
            }
            Op::ContrastiveGrad(op) => {
                let tile = op.tile.min(node.input(1).rows());
                Some((tile, tile, node.input(1).width()))
            }
            _ => None,
        }
    }
}

impl Target for CpuTarget {
    fn alignment(&self) -> u64 {
        64
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        let element = node.graph.compute().bytes();
        let bytes = match &node.node.op {
            Op::LinearWeightGrad(op) if op.bias => {
                linear::BIAS_PARTS * node.input(0).width() * size_of::<f64>()
            }
            Op::LayerNormGrad(_) => layer_norm::PARTS * 3 * node.input(0).width() * element,
            Op::Attention(_) => self.num_threads * QUERY_TILE * node.input(1).dims()[1] * element,
            Op::AttentionGrad(_) => {
                2 * self.num_threads * QUERY_TILE * node.input(2).dims()[1] * element
            }
            Op::CrossEntropy(_) => {
                let logits = node.input(0);
                logits.rows() * (logits.width() + 1) * element
            }
            Op::CrossEntropyGrad(_) => node.input(1).num_elements() * element,
            Op::Contrastive(op) => {
                contrastive::scratch_elements(node.input(0).rows(), op.tile) * element
            }
            Op::ContrastiveGrad(op) => {
                contrastive::scratch_elements(node.input(1).rows(), op.tile) * element
            }
            Op::GradientNorm(_) => {
                let widest = (0..node.node.inputs.len())
                    .map(|input| node.input(input).num_elements())
                    .max();
                widest.unwrap_or(0).div_ceil(update::TASK_ELEMENTS) * size_of::<f64>()
            }
            _ => 0,
        };
        bytes as u64
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        let cost = node.graph.cost(node.node);
        let threads = self.num_threads as f64;
        let smallest = Self::product_shape(node).map_or(64, |(m, k, n)| m.min(k).min(n)) as f64;
        let speed = self.flops_per_second * smallest / (smallest + HALF_SPEED_ROWS);
        cost.product_flops as f64 / (speed * threads)
            + cost.element_flops as f64 / (self.element_flops_per_second * threads)
            + cost.bytes as f64 / self.bytes_per_second
            + SECONDS_PER_NODE
    }

    fn overhead_bytes(&self, largest_packing_bytes: u64) -> u64 {
        self.baseline_bytes
            + largest_packing_bytes
            + product::slab_bytes() * self.num_threads as u64
            + RESERVE_BYTES
    }

    fn packing_bytes(&self, node: NodeView<'_>) -> u64 {
        let element = node.graph.compute().bytes();
        match &node.node.op {
            Op::Attention(_) | Op::AttentionGrad(_) => {
                let (q, k) = match &node.node.op {
                    Op::Attention(_) => (node.input(0), node.input(1)),
                    _ => (node.input(1), node.input(2)),
                };
                let queries = q.dims()[1].min(QUERY_TILE);
                let keys = k.dims()[1];
                let largest = queries.max(keys);
                self.num_threads as u64 * product::packing_bytes(largest, largest, largest, element)
            }
            _ => Self::product_shape(node)
                .map_or(0, |(m, k, n)| product::packing_bytes(m, k, n, element)),
        }
    }
}
