//! The CPU as a target of the planner.

use holdall_graph::ops::attention::Attention;
use holdall_graph::{NodeView, Op, Shape};
use holdall_plan::{Spacing, Target};

use super::attention::{self, QUERY_TILE};
use super::{
    cached_attention, contrastive, convolution, cross_attention, elements, group_norm, layer_norm,
    linear, memory, overlap, pixel_loss, product, update, vocabulary_loss,
};

/// Memory and time of operations on this machine's cores.
#[derive(Clone, Debug)]
pub struct CpuTarget {
    num_threads: usize,
    /// Resident memory outside the arena when the plan is made.
    baseline_bytes: u64,
    /// Speed of products, per thread.
    flops_per_second: f64,
    /// Speed of element-wise arithmetic, per thread.
    element_flops_per_second: f64,
    /// Memory bandwidth of all threads.
    bytes_per_second: f64,
}

/// Time to start one operation on all threads and wait for the last thread.
const SECONDS_PER_NODE: f64 = 12e-6;
/// Number of rows at which a product reaches half of its full speed.
const HALF_SPEED_ROWS: f64 = 24.0;
/// Code that the first step loads, of this program and of the system's libraries: measured as 1.8 to 2.2 MiB in twenty plans, depending
/// on the linker's layout and on how much of the file was in the page cache.
pub const CODE_BYTES: u64 = 11 << 18;
/// Growth of a thread's stack and heap when it first computes: measured over 16 threads.
const THREAD_BYTES: u64 = 8 << 10;

impl CpuTarget {
    /// A target for a pool of `num_threads`, with the memory that the process holds now as a baseline.
    pub fn new(num_threads: usize) -> CpuTarget {
        let wide = super::real::has_wide_vectors();
        CpuTarget {
            num_threads,
            baseline_bytes: memory::resident_bytes_exactly().unwrap_or(32 << 20),
            flops_per_second: if wide { 95e9 } else { 45e9 },
            element_flops_per_second: if wide { 12e9 } else { 6e9 },
            bytes_per_second: 8e9 * num_threads.min(4) as f64,
        }
    }

    /// The same target with a given baseline, for plans that must be reproducible.
    pub fn with_baseline(mut self, baseline_bytes: u64) -> CpuTarget {
        self.baseline_bytes = baseline_bytes;
        self
    }

    /// Adds memory that the run will hold outside the arena, such as the batch on the host.
    pub fn with_host_bytes(mut self, bytes: u64) -> CpuTarget {
        self.baseline_bytes += bytes;
        self
    }

    /// Scratch and products of a node. One match answers for every operation.
    fn demand(&self, node: NodeView<'_>) -> Demand {
        let element = node.graph.compute().bytes();
        match &node.node.op {
            Op::Linear(op) => {
                let (x, weight) = (node.input(0), node.input(1));
                let wide = [x.rows(), x.width(), weight.rows()];
                let terms = op
                    .low_rank_terms()
                    .map(|(columns, h)| [x.rows(), node.input(h).width(), columns.len()]);
                Demand::scratch(0).with_products(std::iter::once(wide).chain(terms))
            }
            Op::LinearInputGrad(_) => {
                let (dz, weight) = (node.input(0), node.input(1));
                Demand::scratch(0).with_products([[dz.rows(), dz.width(), weight.width()]])
            }
            Op::LinearWeightGrad(op) => {
                let (dz, x) = (node.input(0), node.input(1));
                Demand::scratch(linear::bias_parts_bytes(op.bias, dz.width())).with_products([[
                    dz.width(),
                    dz.rows(),
                    x.width(),
                ]])
            }
            Op::Contrastive(op) => {
                let image = node.input(0);
                let (rows, tile) = (image.rows(), op.tile.min(image.rows()));
                Demand::scratch(contrastive::scratch_elements(rows, op.tile) * element)
                    .with_products([[tile, image.width(), tile]])
            }
            Op::ContrastiveGrad(op) => {
                let image = node.input(1);
                let (rows, tile) = (image.rows(), op.tile.min(image.rows()));
                Demand::scratch(contrastive::scratch_elements(rows, op.tile) * element)
                    .with_products([[tile, image.width(), tile], [tile, tile, image.width()]])
            }
            Op::VocabularyLoss(op) => {
                let sizes = vocabulary_sizes(node.input(0), node.input(1));
                Demand::scratch(vocabulary_loss::scratch_bytes(sizes, op.tile, element))
                    .with_products(vocabulary_loss::products(sizes, op.tile, false))
            }
            Op::VocabularyLossGrad(op) => {
                let sizes = vocabulary_sizes(node.input(1), node.input(2));
                Demand::scratch(vocabulary_loss::scratch_bytes(sizes, op.tile, element))
                    .with_products(vocabulary_loss::products(sizes, op.tile, true))
            }
            Op::Attention(op) => {
                let shapes = [node.input(0), node.input(1)];
                Demand::scratch(self.attention_elements(op, shapes, 1) * element)
                    .with_products(attention_products(op, shapes))
            }
            Op::AttentionGrad(op) => {
                let (op, shapes) = (&op.forward, [node.input(1), node.input(2)]);
                let matrices = attention::backward_matrices(op);
                Demand::scratch(self.attention_elements(op, shapes, matrices) * element)
                    .with_products(attention_products(op, shapes))
            }
            Op::CachedAttention(op) => {
                let ancestors = node.input(3);
                let (rows, longest) = (ancestors.rows(), ancestors.width());
                let scratch = cached_attention::scratch_elements(rows, op.num_heads, longest);
                Demand::scratch(scratch * element)
            }
            Op::LayerNormGrad(_) => {
                Demand::scratch(layer_norm::PARTS * 3 * node.input(0).width() * element)
            }
            Op::CrossEntropy(_) => {
                let logits = node.input(0);
                Demand::scratch(logits.rows() * (logits.width() + 1) * element)
            }
            Op::CrossEntropyGrad(_) => Demand::scratch(node.input(1).num_elements() * element),
            Op::PointwiseLoss(_) => Demand::scratch(node.input(0).rows() * size_of::<f64>()),
            Op::ScaleColumnsGrad(op) if op.gamma => {
                Demand::scratch(elements::SCALE_PARTS * node.input(0).width() * element)
            }
            Op::GradientNorm(_) => {
                let elements = |index| node.input(index).num_elements();
                let widest = (0..node.node.inputs.len()).map(elements).max();
                let tasks = widest.unwrap_or(0).div_ceil(update::TASK_ELEMENTS);
                Demand::scratch(tasks * size_of::<f64>())
            }
            Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_) => {
                Demand::scratch(convolution::scratch_bytes(node, self.num_threads))
            }
            Op::GroupStatistics(_) => Demand::scratch(group_norm::sum_bytes(node.input(0))),
            Op::GroupNormGrad(op) => {
                Demand::scratch(group_norm::gradient_bytes(node.input(1), op.groups))
            }
            Op::PixelLoss(_) => Demand::scratch(pixel_loss::line_bytes(node.input(0))),
            Op::OverlapSums(_) => Demand::scratch(overlap::line_bytes(node.input(0))),
            plain_operations!()
            | Op::EmbeddingGrad(_)
            | Op::TopTokens(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::ClassTokenGrad(_)
            | Op::PointwiseLossGrad(_)
            | Op::ScaleColumnsGrad(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_)
            | Op::Fill(_)
            | Op::Collective(_) => Demand::scratch(0),
        }
    }

    /// Elements of scratch, with `matrices` matrices of scores per thread.
    fn attention_elements(&self, op: &Attention, shapes: [Shape; 2], matrices: usize) -> usize {
        if cross_attention::takes(op, shapes) {
            cross_attention::scratch_elements(op, shapes, self.num_threads, matrices)
        } else {
            let keys = shapes[1].dims()[1];
            attention::scratch_elements(self.num_threads, matrices, keys)
        }
    }

    /// Bytes of scratch for the panels of a node's products, which follow each other.
    fn panel_bytes(&self, node: NodeView<'_>, demand: &Demand) -> usize {
        let element = node.graph.compute().bytes();
        let products = demand.products.iter();
        let each = products.map(|&sizes| product::scratch_bytes(sizes, element, self.num_threads));
        each.max().unwrap_or(0)
    }
}

/// Scratch and products of one operation.
struct Demand {
    scratch_bytes: usize,
    /// Sizes of the largest product of each form, `m x k` by `k x n`.
    products: Vec<[usize; 3]>,
}

impl Demand {
    fn scratch(bytes: usize) -> Demand {
        Demand {
            scratch_bytes: bytes,
            products: Vec::new(),
        }
    }

    fn with_products(self, products: impl IntoIterator<Item = [usize; 3]>) -> Demand {
        Demand {
            products: products.into_iter().collect(),
            ..self
        }
    }
}

/// Rows, width and vocabulary of a loss over a vocabulary.
fn vocabulary_sizes(x: Shape, weight: Shape) -> [usize; 3] {
    [x.rows(), x.width(), weight.rows()]
}

/// The products of an attention, one per thread at a time.
fn attention_products(op: &Attention, [q, k]: [Shape; 2]) -> Vec<[usize; 3]> {
    if cross_attention::takes(op, [q, k]) {
        return Vec::new();
    }
    let (queries, keys) = (q.dims()[1].min(QUERY_TILE), k.dims()[1]);
    let width = q.width() / op.num_heads;
    vec![
        [queries, width, keys],
        [queries, keys, width],
        [keys, queries, width],
    ]
}

impl Target for CpuTarget {
    fn spacing(&self) -> Spacing {
        Spacing::dense(64)
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        let demand = self.demand(node);
        (demand.scratch_bytes + self.panel_bytes(node, &demand)) as u64
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        let cost = node.graph.cost(node.node);
        let threads = self.num_threads as f64;
        let Demand { products, .. } = self.demand(node);
        let smallest = products.iter().flatten().min();
        let smallest = smallest.copied().unwrap_or(64) as f64;
        let speed = self.flops_per_second * smallest / (smallest + HALF_SPEED_ROWS);
        cost.product_flops as f64 / (speed * threads)
            + cost.element_flops as f64 / (self.element_flops_per_second * threads)
            + cost.bytes as f64 / self.bytes_per_second
            + SECONDS_PER_NODE
    }

    fn overhead_bytes(&self, largest_library_bytes: u64) -> u64 {
        let threads = self.num_threads as u64 * THREAD_BYTES;
        self.baseline_bytes + largest_library_bytes + CODE_BYTES + threads
    }

    fn page_bytes(&self) -> u64 {
        4096
    }

    fn library_bytes(&self, _: NodeView<'_>) -> u64 {
        0
    }
}
