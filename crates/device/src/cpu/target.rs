//! The CPU as the planner sees it.

use holdall_graph::{NodeView, Op, Shape};
use holdall_plan::Target;

use super::attention::QUERY_TILE;
use super::product::Kind;
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
/// Stacks, the allocator's own pages, pages of the binary that are first touched later, and what the run itself needs for its
/// records. What is left of it at the peak varies by about 3 MiB from run to run.
const RESERVE_BYTES: u64 = 5 << 20;

impl CpuTarget {
    /// A target for a pool of `num_threads`, with the memory that the process holds now as a baseline.
    pub fn new(num_threads: usize) -> CpuTarget {
        let wide = super::real::has_wide_vectors();
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

    /// The products of a node: which kind, and `m x k` by `k x n`.
    fn products(&self, node: NodeView<'_>) -> Vec<(Kind, [usize; 3])> {
        match &node.node.op {
            Op::Linear(_) => {
                let (x, weight) = (node.input(0), node.input(1));
                let rows = linear::strip_rows(x.rows(), weight.rows());
                vec![(Kind::RightTransposed, [rows, x.width(), weight.rows()])]
            }
            Op::LinearInputGrad(_) => {
                let (dz, weight) = (node.input(0), node.input(1));
                let rows = linear::strip_rows(dz.rows(), weight.width());
                vec![(Kind::Plain, [rows, dz.width(), weight.width()])]
            }
            Op::LinearWeightGrad(_) => {
                let (dz, x) = (node.input(0), node.input(1));
                vec![(Kind::LeftTransposed, [dz.width(), dz.rows(), x.width()])]
            }
            Op::Contrastive(op) => {
                let (image, tile) = (node.input(0), op.tile.min(node.input(0).rows()));
                vec![(Kind::RightTransposed, [tile, image.width(), tile])]
            }
            Op::ContrastiveGrad(op) => {
                let (image, tile) = (node.input(1), op.tile.min(node.input(1).rows()));
                vec![
                    (Kind::RightTransposed, [tile, image.width(), tile]),
                    (Kind::Plain, [tile, tile, image.width()]),
                    (Kind::LeftTransposed, [tile, tile, image.width()]),
                ]
            }
            Op::Attention(op) => {
                self.attention_products(op.num_heads, node.input(0), node.input(1))
            }
            Op::AttentionGrad(op) => {
                self.attention_products(op.forward.num_heads, node.input(1), node.input(2))
            }
            _ => Vec::new(),
        }
    }

    /// Small products, one per thread at a time.
    fn attention_products(&self, heads: usize, q: Shape, k: Shape) -> Vec<(Kind, [usize; 3])> {
        let (queries, keys) = (q.dims()[1].min(QUERY_TILE), k.dims()[1]);
        let width = q.width() / heads;
        vec![
            (Kind::RightTransposed, [queries, width, keys]),
            (Kind::Plain, [queries, keys, width]),
            (Kind::LeftTransposed, [keys, queries, width]),
        ]
    }
}

impl Target for CpuTarget {
    fn alignment(&self) -> u64 {
        64
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        let element = node.graph.compute().bytes();
        let bytes = match &node.node.op {
            Op::Linear(_) => {
                let weight = node.input(1);
                product::row_scratch_elements(weight.width(), weight.rows()) * element
            }
            Op::LinearInputGrad(_) => {
                let weight = node.input(1);
                product::row_scratch_elements(weight.rows(), weight.width()) * element
            }
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
        let products = self.products(node);
        let smallest = products.iter().flat_map(|(_, shape)| shape).min();
        let smallest = smallest.copied().unwrap_or(64) as f64;
        let speed = self.flops_per_second * smallest / (smallest + HALF_SPEED_ROWS);
        cost.product_flops as f64 / (speed * threads)
            + cost.element_flops as f64 / (self.element_flops_per_second * threads)
            + cost.bytes as f64 / self.bytes_per_second
            + SECONDS_PER_NODE
    }

    fn overhead_bytes(&self, largest_packing_bytes: u64) -> u64 {
        self.baseline_bytes + largest_packing_bytes + RESERVE_BYTES
    }

    fn page_bytes(&self) -> u64 {
        4096
    }

    fn packing_bytes(&self, node: NodeView<'_>) -> u64 {
        let element = node.graph.compute().bytes();
        let (buffers, threads) = match &node.node.op {
            Op::Attention(_) | Op::AttentionGrad(_) => (self.num_threads, self.num_threads),
            _ => (1, self.num_threads),
        };
        let products = self.products(node);
        let each = products.iter().map(|&(kind, shape)| {
            let panels = product::packing_bytes(kind, shape, element);
            let slab = product::slab_bytes(kind, shape, element);
            panels * buffers as u64 + slab * threads as u64
        });
        each.max().unwrap_or(0)
    }
}
