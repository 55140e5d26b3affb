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

    /// Scratch and products of a node. One match answers for every operation.
    fn demand(&self, node: NodeView<'_>, strip: Strip) -> Demand {
        let element = node.graph.compute().bytes();
        match &node.node.op {
            Op::Linear(op) => {
                let (x, weight) = (node.input(0), node.input(1));
                let rows = strip_rows(x.rows(), weight.rows(), strip);
                let wide = [rows, x.width(), weight.rows()];
                let terms = op.low_rank_terms().map(|(columns, h)| {
                    let rows = rows.max(product::least_rows(columns.len()));
                    [rows, node.input(h).width(), columns.len()]
                });
                let sizes = std::iter::once(wide).chain(terms);
                let scratch = linear::forward_scratch_elements(op, &|index| node.input(index));
                Demand::scratch(scratch * element)
                    .with_products(sizes.map(|sizes| (Form::RightTransposed, sizes)))
            }
            Op::LinearInputGrad(_) => {
                let (dz, weight) = (node.input(0), node.input(1));
                let rows = strip_rows(dz.rows(), weight.width(), strip);
                let scratch = product::row_scratch_elements(weight.rows(), weight.width());
                Demand::scratch(scratch * element)
                    .with_products([(Form::Plain, [rows, dz.width(), weight.width()])])
            }
            Op::LinearWeightGrad(op) => {
                let (dz, x) = (node.input(0), node.input(1));
                Demand::scratch(linear::bias_parts_bytes(op.bias, dz.width()))
                    .with_products([(Form::LeftTransposed, [dz.width(), dz.rows(), x.width()])])
            }
            Op::Contrastive(op) => {
                let image = node.input(0);
                let scratch = contrastive::scratch_elements(image.rows(), op.tile);
                let tiles = tile_sizes(image.rows(), op.tile, strip).into_iter();
                let product = |(i, j)| (Form::RightTransposed, [i, image.width(), j]);
                Demand::scratch(scratch * element).with_products(tiles.map(product))
            }
            Op::ContrastiveGrad(op) => {
                let image = node.input(1);
                let scratch = contrastive::scratch_elements(image.rows(), op.tile);
                let tiles = tile_sizes(image.rows(), op.tile, strip).into_iter();
                let products = |(i, j)| {
                    [
                        (Form::RightTransposed, [i, image.width(), j]),
                        (Form::Plain, [i, j, image.width()]),
                        (Form::LeftTransposed, [j, i, image.width()]),
                    ]
                };
                Demand::scratch(scratch * element).with_products(tiles.flat_map(products))
            }
            Op::VocabularyLoss(op) => {
                let sizes = vocabulary_sizes(node.input(0), node.input(1));
                Demand::scratch(vocabulary_loss::scratch_bytes(sizes, op.tile, element))
                    .with_products(vocabulary_products(sizes, op.tile, false, strip))
            }
            Op::VocabularyLossGrad(op) => {
                let sizes = vocabulary_sizes(node.input(1), node.input(2));
                Demand::scratch(vocabulary_loss::scratch_bytes(sizes, op.tile, element))
                    .with_products(vocabulary_products(sizes, op.tile, true, strip))
            }
            Op::Attention(op) => {
                let shapes = [node.input(0), node.input(1)];
                Demand {
                    threads: Threads::One,
                    ..Demand::scratch(self.attention_elements(op, shapes, 1) * element)
                        .with_products(attention_products(op, shapes, strip))
                }
            }
            Op::AttentionGrad(op) => {
                let (op, shapes) = (&op.forward, [node.input(1), node.input(2)]);
                let matrices = attention::backward_matrices(op);
                Demand {
                    threads: Threads::One,
                    ..Demand::scratch(self.attention_elements(op, shapes, matrices) * element)
                        .with_products(attention_products(op, shapes, strip))
                }
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

    /// Bytes that the node's products pack, and how many threads pack panels at a time.
    fn packed(&self, node: NodeView<'_>) -> (Packed, usize) {
        let element = node.graph.compute().bytes();
        let strips = [Strip::Whole, Strip::Last].map(|strip| self.demand(node, strip));
        let threads = strips[0].threads;
        let at_a_time = match threads {
            Threads::One => self.num_threads,
            Threads::All => 1,
        };
        let products = strips.iter().flat_map(|demand| &demand.products);
        let each = products.map(|&(form, sizes)| Packed::new(form, sizes, element, threads));
        (each.fold(Packed::default(), Packed::max), at_a_time)
    }
}

/// Scratch and products of one operation.
struct Demand {
    scratch_bytes: usize,
    /// Threads that compute one product together.
    threads: Threads,
    /// Form and sizes of the products, `m x k` by `k x n`.
    products: Vec<(Form, [usize; 3])>,
}

impl Demand {
    fn scratch(bytes: usize) -> Demand {
        Demand {
            scratch_bytes: bytes,
            threads: Threads::All,
            products: Vec::new(),
        }
    }

    fn with_products(self, products: impl IntoIterator<Item = (Form, [usize; 3])>) -> Demand {
        Demand {
            products: products.into_iter().collect(),
            ..self
        }
    }
}

/// Which strip or tile of rows is meant: more rows do not always mean more bytes that `gemm` packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strip {
    Whole,
    Last,
}

/// Rows of a strip; the last strip may be filled up if it has few.
fn strip_rows(rows: usize, width: usize, strip: Strip) -> usize {
    let whole = linear::strip_rows(rows, width);
    match strip {
        Strip::Whole => whole,
        Strip::Last => (rows % whole.max(1)).max(product::least_rows(width)),
    }
}

/// Rows and columns of a tile of scores.
fn tile_sizes(rows: usize, tile: usize, strip: Strip) -> Vec<(usize, usize)> {
    let tile = tile.min(rows).max(1);
    let last = rows % tile;
    match strip {
        Strip::Whole => vec![(tile, tile)],
        Strip::Last => vec![(tile, last), (last, tile), (last, last)],
    }
}

/// Rows, width and vocabulary of a loss over a vocabulary.
fn vocabulary_sizes(x: Shape, weight: Shape) -> [usize; 3] {
    [x.rows(), x.width(), weight.rows()]
}

/// [`Strip::Whole`]: the products of a whole tile of rows. [`Strip::Last`]: also those of shorter tiles, whose size depends on data.
fn vocabulary_products(
    sizes: [usize; 3],
    tile: usize,
    is_backward: bool,
    strip: Strip,
) -> Vec<(Form, [usize; 3])> {
    let mut products = vocabulary_loss::products(sizes, tile, is_backward);
    if strip == Strip::Whole {
        products.truncate(if is_backward { 3 } else { 1 });
    }
    products
}

/// The small products of an attention, one per thread at a time.
fn attention_products(op: &Attention, [q, k]: [Shape; 2], strip: Strip) -> Vec<(Form, [usize; 3])> {
    if cross_attention::takes(op, [q, k]) {
        return Vec::new();
    }
    let (queries, keys) = (q.dims()[1], k.dims()[1]);
    let queries = match strip {
        Strip::Whole => queries.min(QUERY_TILE),
        Strip::Last => queries % QUERY_TILE,
    };
    let width = q.width() / op.num_heads;
    vec![
        (Form::RightTransposed, [queries, width, keys]),
        (Form::Plain, [queries, keys, width]),
        (Form::LeftTransposed, [keys, queries, width]),
    ]
}

impl Target for CpuTarget {
    fn spacing(&self) -> Spacing {
        Spacing::dense(64)
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        let bytes = self.demand(node, Strip::Whole).scratch_bytes;
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
        let Demand { products, .. } = self.demand(node, Strip::Whole);
        let smallest = products.iter().flat_map(|(_, sizes)| sizes).min();
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
