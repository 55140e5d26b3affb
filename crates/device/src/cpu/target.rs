//! The CPU as a target of the planner.

use holdall_graph::ops::attention::Attention;
use holdall_graph::{NodeView, Op, Shape};
use holdall_plan::{Spacing, Target};

use super::attention::{self, QUERY_TILE};
use super::packing::{self, Form, Packed, Threads};
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
/// Code that the first step loads, of this program and of the system's libraries: measured as 1.8 to 2.2 MiB in three plans, depending
/// on the linker's layout and on how much of the file was in the page cache.
pub const CODE_BYTES: u64 = 14 << 18;
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

    /// The products of a node: the threads of each, its form, and `m x k` by `k x n`.
    fn products(&self, node: NodeView<'_>, part: Part) -> (Threads, Vec<(Form, [usize; 3])>) {
        let products = match &node.node.op {
            Op::Linear(op) => {
                let (x, weight) = (node.input(0), node.input(1));
                let rows = strip_rows(x.rows(), weight.rows(), part);
                let terms = op.low_rank_terms().map(|(columns, h)| {
                    let rows = rows.max(product::least_rows(columns.len()));
                    (
                        Form::RightTransposed,
                        [rows, node.input(h).width(), columns.len()],
                    )
                });
                let wide = (Form::RightTransposed, [rows, x.width(), weight.rows()]);
                [wide].into_iter().chain(terms).collect()
            }
            Op::LinearInputGrad(_) => {
                let (dz, weight) = (node.input(0), node.input(1));
                let rows = strip_rows(dz.rows(), weight.width(), part);
                vec![(Form::Plain, [rows, dz.width(), weight.width()])]
            }
            Op::LinearWeightGrad(_) => {
                let (dz, x) = (node.input(0), node.input(1));
                vec![(Form::LeftTransposed, [dz.width(), dz.rows(), x.width()])]
            }
            Op::Contrastive(op) => {
                let image = node.input(0);
                let tiles = tile_sizes(image.rows(), op.tile, part).into_iter();
                let product = |(i, j)| (Form::RightTransposed, [i, image.width(), j]);
                tiles.map(product).collect()
            }
            Op::ContrastiveGrad(op) => {
                let image = node.input(1);
                let tiles = tile_sizes(image.rows(), op.tile, part).into_iter();
                let products = |(i, j)| {
                    [
                        (Form::RightTransposed, [i, image.width(), j]),
                        (Form::Plain, [i, j, image.width()]),
                        (Form::LeftTransposed, [j, i, image.width()]),
                    ]
                };
                tiles.flat_map(products).collect()
            }
            Op::VocabularyLoss(op) => {
                let shapes = [node.input(0), node.input(1)];
                vocabulary_products(shapes, op.tile, false, part)
            }
            Op::VocabularyLossGrad(op) => {
                let shapes = [node.input(1), node.input(2)];
                vocabulary_products(shapes, op.tile, true, part)
            }
            Op::Attention(op) => {
                let shapes = [node.input(0), node.input(1)];
                return attention_products(op, shapes, part);
            }
            Op::AttentionGrad(op) => {
                let shapes = [node.input(1), node.input(2)];
                return attention_products(&op.forward, shapes, part);
            }
            plain_operations!()
            | Op::LayerNormGrad(_)
            | Op::EmbeddingGrad(_)
            | Op::CachedAttention(_)
            | Op::TopTokens(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::ClassTokenGrad(_)
            | Op::CrossEntropy(_)
            | Op::CrossEntropyGrad(_)
            | Op::PointwiseLoss(_)
            | Op::PointwiseLossGrad(_)
            | Op::ScaleColumnsGrad(_)
            | Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_)
            | Op::GroupStatistics(_)
            | Op::GroupNormGrad(_)
            | Op::PixelLoss(_)
            | Op::OverlapSums(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_)
            | Op::Fill(_)
            | Op::Collective(_)
            | Op::GradientNorm(_) => Vec::new(),
        };
        (Threads::All, products)
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

    /// Bytes that the node's products pack, and how many threads pack panels at a time.
    fn packed(&self, node: NodeView<'_>) -> (Packed, usize) {
        let element = node.graph.compute().bytes();
        let parts = [Part::Whole, Part::Last].map(|part| self.products(node, part));
        let at_a_time = match parts[0].0 {
            Threads::One => self.num_threads,
            Threads::All => 1,
        };
        let each = parts.into_iter().flat_map(|(threads, products)| {
            let packed = move |(kind, shape)| Packed::new(kind, shape, element, threads);
            products.into_iter().map(packed)
        });
        (each.fold(Packed::default(), Packed::max), at_a_time)
    }
}

/// Which strip or tile of rows is meant: more rows do not always mean more bytes that `gemm` packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Last,
}

/// Rows of a strip; the last strip may be filled up if it has few.
fn strip_rows(rows: usize, width: usize, part: Part) -> usize {
    let strip = linear::strip_rows(rows, width);
    match part {
        Part::Whole => strip,
        Part::Last => (rows % strip.max(1)).max(product::least_rows(width)),
    }
}

/// Rows and columns of a tile of scores.
fn tile_sizes(rows: usize, tile: usize, part: Part) -> Vec<(usize, usize)> {
    let tile = tile.min(rows).max(1);
    let last = rows % tile;
    match part {
        Part::Whole => vec![(tile, tile)],
        Part::Last => vec![(tile, last), (last, tile), (last, last)],
    }
}

/// [`Part::Whole`]: the products of a whole tile of rows. [`Part::Last`]: also those of shorter tiles, whose size depends on data.
fn vocabulary_products(
    [x, weight]: [Shape; 2],
    tile: usize,
    is_backward: bool,
    part: Part,
) -> Vec<(Form, [usize; 3])> {
    let sizes = [x.rows(), x.width(), weight.rows()];
    let mut products = vocabulary_loss::products(sizes, tile, is_backward);
    if part == Part::Whole {
        products.truncate(if is_backward { 3 } else { 1 });
    }
    products
}

/// The small products of an attention, one per thread at a time.
fn attention_products(
    op: &Attention,
    [q, k]: [Shape; 2],
    part: Part,
) -> (Threads, Vec<(Form, [usize; 3])>) {
    if cross_attention::takes(op, [q, k]) {
        return (Threads::One, Vec::new());
    }
    let (queries, keys) = (q.dims()[1], k.dims()[1]);
    let queries = match part {
        Part::Whole => queries.min(QUERY_TILE),
        Part::Last => queries % QUERY_TILE,
    };
    let width = q.width() / op.num_heads;
    let products = vec![
        (Form::RightTransposed, [queries, width, keys]),
        (Form::Plain, [queries, keys, width]),
        (Form::LeftTransposed, [keys, queries, width]),
    ];
    (Threads::One, products)
}

impl Target for CpuTarget {
    fn spacing(&self) -> Spacing {
        Spacing::dense(64)
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        let element = node.graph.compute().bytes();
        let bytes = match &node.node.op {
            Op::Linear(op) => {
                linear::forward_scratch_elements(op, &|index| node.input(index)) * element
            }
            Op::LinearInputGrad(_) => {
                let weight = node.input(1);
                product::row_scratch_elements(weight.rows(), weight.width()) * element
            }
            Op::LinearWeightGrad(op) => linear::bias_parts_bytes(op.bias, node.input(0).width()),
            Op::LayerNormGrad(_) => layer_norm::PARTS * 3 * node.input(0).width() * element,
            Op::Attention(op) => {
                let shapes = [node.input(0), node.input(1)];
                self.attention_elements(op, shapes, 1) * element
            }
            Op::AttentionGrad(op) => {
                let shapes = [node.input(1), node.input(2)];
                let matrices = attention::backward_matrices(&op.forward);
                self.attention_elements(&op.forward, shapes, matrices) * element
            }
            Op::CachedAttention(op) => {
                let ancestors = node.input(3);
                let (rows, longest) = (ancestors.rows(), ancestors.width());
                cached_attention::scratch_elements(rows, op.num_heads, longest) * element
            }
            Op::VocabularyLoss(op) => {
                let (x, weight) = (node.input(0), node.input(1));
                let sizes = [x.rows(), x.width(), weight.rows()];
                vocabulary_loss::scratch_bytes(sizes, op.tile, element)
            }
            Op::VocabularyLossGrad(op) => {
                let (x, weight) = (node.input(1), node.input(2));
                let sizes = [x.rows(), x.width(), weight.rows()];
                vocabulary_loss::scratch_bytes(sizes, op.tile, element)
            }
            Op::CrossEntropy(_) => {
                let logits = node.input(0);
                logits.rows() * (logits.width() + 1) * element
            }
            Op::CrossEntropyGrad(_) => node.input(1).num_elements() * element,
            Op::PointwiseLoss(_) => node.input(0).rows() * size_of::<f64>(),
            Op::ScaleColumnsGrad(op) => {
                if op.gamma {
                    elements::SCALE_PARTS * node.input(0).width() * element
                } else {
                    0
                }
            }
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
            Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_) => {
                convolution::scratch_bytes(node, self.num_threads)
            }
            Op::GroupStatistics(_) => group_norm::sum_bytes(node.input(0)),
            Op::GroupNormGrad(op) => group_norm::gradient_bytes(node.input(1), op.groups),
            Op::PixelLoss(_) => pixel_loss::line_bytes(node.input(0)),
            Op::OverlapSums(_) => overlap::line_bytes(node.input(0)),
            plain_operations!()
            | Op::EmbeddingGrad(_)
            | Op::TopTokens(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::ClassTokenGrad(_)
            | Op::PointwiseLossGrad(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_)
            | Op::Fill(_)
            | Op::Collective(_) => 0,
        };
        let panels = match self.packed(node) {
            (Packed { panel_bytes: 0, .. }, _) => 0,
            // Scratch may begin at any address: aligning it skips up to one alignment.
            (packed, at_a_time) => packed.panel_bytes * at_a_time + packing::ALIGNMENT,
        };
        (bytes + panels) as u64
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        let cost = node.graph.cost(node.node);
        let threads = self.num_threads as f64;
        let (_, products) = self.products(node, Part::Whole);
        let smallest = products.iter().flat_map(|(_, shape)| shape).min();
        let smallest = smallest.copied().unwrap_or(64) as f64;
        let speed = self.flops_per_second * smallest / (smallest + HALF_SPEED_ROWS);
        cost.product_flops as f64 / (speed * threads)
            + cost.element_flops as f64 / (self.element_flops_per_second * threads)
            + cost.bytes as f64 / self.bytes_per_second
            + SECONDS_PER_NODE
    }

    fn overhead_bytes(&self, largest_packing_bytes: u64) -> u64 {
        let threads = self.num_threads as u64 * THREAD_BYTES;
        self.baseline_bytes + largest_packing_bytes + CODE_BYTES + threads
    }

    fn page_bytes(&self) -> u64 {
        4096
    }

    fn packing_bytes(&self, node: NodeView<'_>) -> u64 {
        let (packed, _) = self.packed(node);
        // The allocator may place a slab anywhere in a page.
        let pages = match packed.slab_bytes {
            0 => 0,
            bytes => bytes.next_multiple_of(4096) + 4096,
        };
        (pages * self.num_threads) as u64
    }
}
