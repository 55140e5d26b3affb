//! A card as a target of the planner: scratch, times, and memory outside the arena.

use holdall_graph::{DType, NodeView, Op, Shape};
use holdall_plan::{Spacing, Target};

use super::cards::Card;
use super::launch::{conv, images};
use super::profile::Profile;
use crate::Arithmetic;

/// Maximum workspace of a product.
pub(super) const PRODUCT_BYTES: u64 = 8 << 20;

/// Maximum workspace of a convolution: the fastest engines for the shapes of a U-Net, at 1024 x 1024 and 64 channels and at every level
/// below, need at most 16.5 MiB (split sums of weight gradients).
pub(super) const CONVOLUTION_BYTES: u64 = 17 << 20;

/// Memory in addition to what is held when everything is loaded: tables, streams, and the product library's kernels, which the driver
/// loads at their first use. Over 27 plans on an H200 the memory outside the arena is, by least squares, 5.6 MiB, 4.44 KiB for each
/// captured
/// instruction and 124 KiB for each captured program, plus or minus 3.5 MiB: the driver allocates pages of 2 MiB.
const RESERVE_BYTES: u64 = (5.6 * MIB + 3.4 * MIB) as u64;
const REPLAY_BYTES: u64 = 4545;

/// Corrections fitted to twenty plans of video-text models on an H200: the product library loads fewer kernels for plain f32, and
/// further kernels for products of shorter texts.
const F32_LESS_BYTES: u64 = (1.5 * MIB) as u64;
const SHORTER_BYTES: u64 = (0.9 * MIB) as u64;
const LENGTH_BYTES: u64 = (1.75 * MIB) as u64;
const TF32_LENGTH_BYTES: u64 = 11 << 20;
const REPLAY_PROGRAM_BYTES: u64 = 124 << 10;
const MIB: f64 = 1024.0 * 1024.0;

/// cuDNN's memory outside the arena: after it is opened, and after the engines are timed. Fitted to twenty plans of four U-Nets on an
/// H200. A process that reuses engines chosen by an earlier process holds up to [`CUDNN_ENGINES_BYTES`] less.
const CUDNN_OPEN_BYTES: u64 = (6.5 * MIB) as u64;
const CUDNN_ENGINES_BYTES: u64 = 6 << 20;

pub(super) fn cudnn_bytes(arithmetic: Arithmetic, is_open: bool) -> u64 {
    let open = if is_open { 0 } else { CUDNN_OPEN_BYTES };
    open + match arithmetic {
        // Engines for plain f32 are few and small.
        Arithmetic::F32 => 0,
        Arithmetic::Tf32 | Arithmetic::F16 | Arithmetic::Bf16 => CUDNN_ENGINES_BYTES,
    }
}

/// Pinned host memory per byte of the card's page tables: eight bytes for each page of 4 KiB. On an H200 2 MiB, one page of the card,
/// were taken for each of three allocations of 572 MiB.
const PINNED_PER_BYTE: u64 = 512;

/// The update's rate of reading host memory while it writes as much back, as a share of the rate of copies to the card: 39.3 of
/// 51.7 GiB/s on an H200.
const UPDATES_REACH: f64 = 0.76;

/// The driver reserves whole pages.
const PAGE_BYTES: u64 = 2 << 20;

/// Minimum rows and columns of a tile of the contrastive loss: a card needs more work at a time than a CPU.
const LEAST_TILE: usize = 2048;

/// Alignment of offsets that vector accesses and the product library need.
const ALIGNMENT: u64 = 256;

/// Side of the tile of a product that one multiprocessor computes at a time.
const PRODUCT_TILE: usize = 128;

/// Number of partial sums of a layer norm's parameter gradients.
pub(super) fn norm_parts(rows: usize, processors: usize) -> usize {
    rows.div_ceil(8).clamp(1, 2 * processors)
}

/// Number of partial sums of a bias gradient; one: a single launch computes it. Measured on an H200 at widths of 2304 and 3072:
/// one launch is faster up to 6,400 rows, 64 parts reach the memory's bandwidth at 51,200.
pub(super) fn column_parts(rows: usize) -> usize {
    match rows {
        0..=8192 => 1,
        _ => 64,
    }
}

/// Number of partial sums of a bias gradient that is summed in the backward pass of an activation; a single one adds to the gradient
/// directly.
pub(super) fn activation_parts(rows: usize) -> usize {
    match rows {
        0..=1024 => 1,
        1025..=16_384 => 8,
        _ => 32,
    }
}

pub(super) fn contrastive_tile(rows: usize, asked: usize) -> usize {
    asked.max(LEAST_TILE).min(rows)
}

/// Tiles of the logits of a loss over a vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct VocabularyTiles {
    num_rows: usize,
    /// Rows per tile.
    pub rows: usize,
    /// Floats between consecutive rows of logits.
    pub pitch: usize,
}

impl VocabularyTiles {
    pub fn new(num_rows: usize, vocabulary: usize, tile: usize) -> VocabularyTiles {
        VocabularyTiles {
            num_rows,
            rows: tile.min(num_rows),
            pitch: vocabulary.next_multiple_of(ALIGNMENT as usize / 4),
        }
    }

    /// First row and number of rows of every tile.
    pub fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        let starts = (0..self.num_rows).step_by(self.rows.max(1));
        starts.map(move |first| (first, self.rows.min(self.num_rows - first)))
    }

    fn of(node: NodeView<'_>) -> Option<VocabularyTiles> {
        let (first, tile) = match &node.node.op {
            Op::VocabularyLoss(op) => (0, op.tile),
            Op::VocabularyLossGrad(op) => (1, op.tile),
            _ => return None,
        };
        let (x, weight) = (node.input(first), node.input(first + 1));
        Some(VocabularyTiles::new(x.rows(), weight.rows(), tile))
    }
}

/// Elements per block of the update.
pub(super) const UPDATE_CHUNK: usize = 8192;

/// Entries of an embedding's order per block.
pub(super) const EMBEDDING_CHUNK: usize = 64;

/// Scratch of the operation's own kernels; the workspace of its product follows it.
pub(super) fn own_scratch(
    op: &Op,
    input: &dyn Fn(usize) -> Shape,
    inputs: usize,
    processors: usize,
) -> u64 {
    let bytes = match op {
        Op::LinearWeightGrad(op) if op.bias => {
            let dz = input(0);
            column_parts(dz.rows()) * dz.width() * 4
        }
        Op::LinearInputGrad(op) if op.activation.is_some() => {
            activation_parts(input(0).rows()) * input(1).width() * 4
        }
        Op::LayerNormGrad(_) => {
            let dy = input(0);
            norm_parts(dy.rows(), processors) * 2 * dy.width() * 4
        }
        Op::EmbeddingGrad(_) => {
            let dx = input(0);
            dx.rows().div_ceil(EMBEDDING_CHUNK) * 2 * dx.width() * 4
        }
        Op::CrossEntropy(_) | Op::PointwiseLoss(_) => input(0).rows() * 4,
        Op::ScaleColumnsGrad(op) if op.gamma => {
            let dy = input(0);
            norm_parts(dy.rows(), processors) * dy.width() * 4
        }
        Op::Contrastive(op) => {
            let rows = input(0).rows();
            let tile = contrastive_tile(rows, op.tile);
            (tile * tile + 5 * rows) * 4
        }
        Op::ContrastiveGrad(op) => {
            let rows = input(1).rows();
            let tile = contrastive_tile(rows, op.tile);
            // Tiles are cut at the borders of each process's rows, and one extra tile is allocated.
            let processes = op.processes.count;
            let along = rows.div_ceil(tile) + if processes > 1 { 2 } else { 0 };
            let tiles = along * along + usize::from(processes > 1);
            (tile * tile + tiles * tile.div_ceil(8) * tile.div_ceil(128)) * 4
        }
        Op::VocabularyLoss(op) => {
            let (x, weight) = (input(0), input(1));
            let tiles = VocabularyTiles::new(x.rows(), weight.rows(), op.tile);
            (tiles.rows * tiles.pitch + x.rows()) * 4
        }
        Op::VocabularyLossGrad(op) => {
            let (x, weight) = (input(1), input(2));
            let tiles = VocabularyTiles::new(x.rows(), weight.rows(), op.tile);
            tiles.rows * tiles.pitch * 4
        }
        Op::AddPositionsGrad(op) if op.repeat > 1 => {
            let dy = input(0);
            dy.dims()[1] * dy.width() * 4
        }
        Op::GradientNorm(_) => {
            let chunks: usize = (0..inputs)
                .map(|index| input(index).num_elements().div_ceil(UPDATE_CHUNK))
                .sum();
            chunks * 8
        }
        Op::Conv2d(_)
        | Op::Conv2dInputGrad(_)
        | Op::Conv2dWeightGrad(_)
        | Op::TransposedConv2d(_)
        | Op::TransposedConv2dInputGrad(_)
        // The workspace of these depends on strides too: `conv::workspace_bytes`.
        | Op::TransposedConv2dWeightGrad(_) => 0,
        Op::GroupStatistics(_) => images::statistics_bytes(input(0)),
        Op::GroupNormGrad(op) => images::gradient_bytes(input(0), op.groups),
        Op::PixelLoss(_) => images::pixel_loss_bytes(input(0)),
        Op::OverlapSums(_) => images::overlap_bytes(input(0)),
        Op::OverlapLoss(_) | Op::OverlapLossGrad(_) => 0,
        plain_operations!()
        | Op::Linear(_)
        | Op::LinearInputGrad(_)
        | Op::LinearWeightGrad(_)
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::ClassTokenGrad(_)
        | Op::CrossEntropyGrad(_)
        | Op::PointwiseLossGrad(_)
        | Op::ScaleColumnsGrad(_)
        | Op::AddPositionsGrad(_)
        | Op::RepeatGrad(_)
        | Op::CachedAttention(_)
        | Op::TopTokens(_)
        | Op::Fill(_)
        | Op::Collective(_) => 0,
    };
    (bytes as u64).div_ceil(ALIGNMENT) * ALIGNMENT
}

/// The products of a node, as `[rows, outputs, inner]`.
fn products(node: NodeView<'_>) -> Vec<[usize; 3]> {
    match &node.node.op {
        Op::Linear(op) => {
            let (x, weight) = (node.input(0), node.input(1));
            let terms = op.low_rank_terms().map(|(columns, h)| {
                let h = node.input(h);
                [h.rows(), columns.len(), h.width()]
            });
            let mut products = vec![[x.rows(), weight.rows(), x.width()]];
            products.extend(terms);
            products
        }
        Op::LinearInputGrad(_) => {
            let (dz, weight) = (node.input(0), node.input(1));
            vec![[dz.rows(), weight.width(), dz.width()]]
        }
        Op::LinearWeightGrad(op) if op.weight => {
            let (dz, x) = (node.input(0), node.input(1));
            vec![[dz.width(), x.width(), dz.rows()]]
        }
        Op::Contrastive(_) => {
            let image = node.input(0);
            vec![[image.rows(), image.rows(), image.width()]]
        }
        Op::ContrastiveGrad(_) => {
            let image = node.input(1);
            let (rows, width) = (image.rows(), image.width());
            vec![
                [rows, rows, width],
                [rows, width, rows],
                [rows, width, rows],
            ]
        }
        Op::VocabularyLoss(_) => {
            let (x, weight) = (node.input(0), node.input(1));
            vec![[x.rows(), weight.rows(), x.width()]]
        }
        Op::VocabularyLossGrad(op) => {
            let (x, weight) = (node.input(1), node.input(2));
            let sizes = [x.rows(), weight.rows(), x.width()];
            let mut all = vec![sizes];
            if op.x {
                all.push([sizes[0], sizes[2], sizes[1]]);
            }
            if op.weight {
                all.push([sizes[1], sizes[2], sizes[0]]);
            }
            all
        }
        // The kernels of attention multiply without the product library.
        plain_operations!()
        | Op::LinearWeightGrad(_)
        | Op::LayerNormGrad(_)
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::EmbeddingGrad(_)
        | Op::ClassTokenGrad(_)
        | Op::CrossEntropy(_)
        | Op::CrossEntropyGrad(_)
        | Op::PointwiseLoss(_)
        | Op::PointwiseLossGrad(_)
        | Op::ScaleColumnsGrad(_)
        | Op::AddPositionsGrad(_)
        | Op::RepeatGrad(_)
        | Op::CachedAttention(_)
        | Op::TopTokens(_)
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
    }
}

fn is_convolution(op: &Op) -> bool {
    matches!(
        op,
        Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_)
    )
}

/// Number of kernels that a node launches in addition to its products.
fn kernels(op: &Op) -> f64 {
    match op {
        Op::Linear(op) if op.activation.is_some() => 1.0,
        Op::LinearInputGrad(op) if op.activation.is_some() => 1.0,
        Op::Linear(_) | Op::LinearInputGrad(_) | Op::Collective(_) => 0.0,
        Op::LinearWeightGrad(op) if op.bias => 1.5,
        Op::LinearWeightGrad(_) => 0.0,
        Op::LayerNormGrad(_) | Op::EmbeddingGrad(_) | Op::ClassTokenGrad(_) => 2.0,
        Op::GradientNorm(_) | Op::CrossEntropy(_) | Op::PointwiseLoss(_) => 2.0,
        Op::ScaleColumnsGrad(op) if op.gamma => 2.0,
        Op::Contrastive(_) => 4.0,
        Op::AddPositionsGrad(op) if op.repeat > 1 => 2.0,
        // Kernels of the tiles are counted with their products.
        Op::VocabularyLoss(_) => 1.0,
        Op::VocabularyLossGrad(_) => 0.0,
        // Neighbouring gradients are cleared by one launch.
        Op::Fill(_) => 0.05,
        Op::Conv2d(_)
        | Op::Conv2dInputGrad(_)
        | Op::Conv2dWeightGrad(_)
        | Op::TransposedConv2d(_)
        | Op::TransposedConv2dInputGrad(_)
        | Op::TransposedConv2dWeightGrad(_) => conv::kernels(op),
        Op::GroupStatistics(_) | Op::PixelLoss(_) | Op::OverlapSums(_) => 2.0,
        Op::GroupNormGrad(_) => 4.0,
        Op::OverlapLoss(_) | Op::OverlapLossGrad(_) => 1.0,
        plain_operations!()
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::CrossEntropyGrad(_)
        | Op::PointwiseLossGrad(_)
        | Op::ScaleColumnsGrad(_)
        | Op::AddPositionsGrad(_)
        | Op::RepeatGrad(_)
        | Op::CachedAttention(_)
        | Op::TopTokens(_)
        | Op::ContrastiveGrad(_) => 1.0,
    }
}

/// A card of this machine, or a card of the table of specifications.
#[derive(Clone, Debug)]
pub struct CudaTarget {
    profile: Profile,
    processors: usize,
    arithmetic: Arithmetic,
    held_bytes: u64,
    cudnn_bytes: u64,
}

impl CudaTarget {
    pub(super) fn new(
        profile: Profile,
        processors: usize,
        arithmetic: Arithmetic,
        held_bytes: u64,
        cudnn_bytes: u64,
    ) -> CudaTarget {
        CudaTarget {
            profile,
            processors,
            arithmetic,
            held_bytes,
            cudnn_bytes,
        }
    }

    /// The same card for a process that holds this much more memory than forecast.
    pub fn with_more_bytes(self, more_bytes: u64) -> CudaTarget {
        CudaTarget {
            held_bytes: self.held_bytes + more_bytes,
            ..self
        }
    }

    /// Seconds of one product. A card computes whole tiles, one per multiprocessor at a time.
    fn product_seconds(&self, [rows, outputs, inner]: [usize; 3], full: bool) -> f64 {
        let tiles = rows.div_ceil(PRODUCT_TILE) * outputs.div_ceil(PRODUCT_TILE);
        let waves = tiles.div_ceil(self.processors) as f64;
        let flops_per_wave = 2.0 * (PRODUCT_TILE * PRODUCT_TILE * inner * self.processors) as f64;
        // Short inner sums are slower: filling and emptying the pipeline takes time.
        let fill = 1.0 + 96.0 / inner as f64;
        let share = if full { FULL_RATE_SHARE } else { 1.0 };
        let arithmetic = waves * flops_per_wave * fill / (self.profile.flops_per_second * share);
        // Splitting the inner sum helps products of few tiles.
        let ideal = 2.0 * (rows * outputs * inner) as f64 / self.profile.flops_per_second / share;
        arithmetic.min(ideal * 3.0 + self.profile.seconds_per_kernel)
    }
}

/// Minimum time of a product and of a kernel within a program: measured on an H200 with 400 rows. Loads and stores take longer than the
/// start of a kernel alone.
const LEAST_PRODUCT_SECONDS: f64 = 5.6e-6;
const LEAST_KERNEL_SECONDS: f64 = 2.7e-6;

/// Rate of f32 products relative to the activations' format: only the losses and the label head use f32 products.
const FULL_RATE_SHARE: f64 = 1.0 / 16.0;

impl Target for CudaTarget {
    fn has_landing(&self) -> bool {
        true
    }

    fn has_lanes(&self) -> bool {
        true
    }

    fn busy(&self, node: NodeView<'_>) -> f64 {
        let tiles = products(node)
            .into_iter()
            .map(|[rows, outputs, _]| rows.div_ceil(PRODUCT_TILE) * outputs.div_ceil(PRODUCT_TILE));
        match tiles.max() {
            Some(tiles) => (tiles as f64 / self.processors as f64).min(1.0),
            None => 0.8,
        }
    }

    fn spacing(&self) -> Spacing {
        Spacing::dense(ALIGNMENT)
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        if is_convolution(&node.node.op) {
            return conv::workspace_bytes(node);
        }
        let input = |index: usize| node.input(index);
        let own = own_scratch(
            &node.node.op,
            &input,
            node.node.inputs.len(),
            self.processors,
        );
        if products(node).is_empty() {
            own
        } else {
            own + PRODUCT_BYTES
        }
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        let cost = node.graph.cost(node.node);
        let op = &node.node.op;
        // The first input of this gradient is the seed; its products have the format of the activations.
        let inputs = match op {
            Op::VocabularyLossGrad(_) => node.node.inputs.get(1),
            _ => node.node.inputs.first(),
        };
        let full = self.arithmetic.compute() != DType::F32
            && inputs.is_some_and(|&input| node.graph.dtype(input) == DType::F32);
        let products = products(node);
        let launches = kernels(op);
        let bandwidth = self.profile.bytes_per_second;
        let bytes = cost.bytes as f64;
        let each = |sizes| {
            let seconds = self.product_seconds(sizes, full) + self.profile.seconds_per_kernel;
            seconds.max(LEAST_PRODUCT_SECONDS)
        };
        let product_seconds: f64 = products.iter().copied().map(each).sum();
        // Large results are bound by memory as well as arithmetic.
        let product_seconds = if products.is_empty() {
            0.0
        } else {
            product_seconds.max(bytes / bandwidth)
        };
        let own = match op {
            Op::Attention(_) | Op::AttentionGrad(_) => {
                bytes / bandwidth + cost.product_flops as f64 * 4.0 / self.profile.flops_per_second
            }
            // Kernels after a product read its result again.
            Op::Linear(op) if op.activation.is_some() => {
                2.0 * node.output(0).num_elements() as f64 * self.width() / bandwidth
            }
            Op::LinearInputGrad(op) if op.activation.is_some() => {
                3.0 * node.output(0).num_elements() as f64 * self.width() / bandwidth
            }
            Op::LinearWeightGrad(op) if op.bias => {
                node.input(0).num_elements() as f64 * self.width() / bandwidth
            }
            Op::Linear(_) | Op::LinearInputGrad(_) | Op::LinearWeightGrad(_) => 0.0,
            Op::VocabularyLoss(_) | Op::VocabularyLossGrad(_) => self.tile_seconds(node),
            Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_) => {
                (bytes / bandwidth).max(cost.product_flops as f64 / self.profile.flops_per_second)
            }
            plain_operations!()
            | Op::LayerNormGrad(_)
            | Op::EmbeddingGrad(_)
            | Op::ClassTokenGrad(_)
            | Op::CrossEntropy(_)
            | Op::CrossEntropyGrad(_)
            | Op::PointwiseLoss(_)
            | Op::PointwiseLossGrad(_)
            | Op::ScaleColumnsGrad(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::CachedAttention(_)
            | Op::TopTokens(_)
            | Op::Contrastive(_)
            | Op::ContrastiveGrad(_)
            | Op::GroupStatistics(_)
            | Op::GroupNormGrad(_)
            | Op::PixelLoss(_)
            | Op::OverlapSums(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_)
            | Op::Fill(_)
            | Op::Collective(_)
            | Op::GradientNorm(_) => bytes / bandwidth,
        };
        let own =
            (own + launches * self.profile.seconds_per_kernel).max(launches * LEAST_KERNEL_SECONDS);
        product_seconds + own
    }

    fn host_bytes_per_second(&self) -> Option<f64> {
        Some(self.profile.link_bytes_per_second * UPDATES_REACH)
    }

    fn pinned_bytes(&self, host_bytes: u64) -> u64 {
        host_bytes / PINNED_PER_BYTE
    }

    fn overhead_bytes(&self, largest_packing_bytes: u64) -> u64 {
        let less = match self.arithmetic {
            Arithmetic::F32 => F32_LESS_BYTES,
            _ => 0,
        };
        self.held_bytes + RESERVE_BYTES - less + largest_packing_bytes
    }

    fn shorter_bytes(&self, num_lengths: usize) -> u64 {
        let further = num_lengths.saturating_sub(1) as u64;
        match (num_lengths, self.arithmetic) {
            (0, _) | (_, Arithmetic::F32) => 0,
            (_, Arithmetic::Tf32) => SHORTER_BYTES + further * TF32_LENGTH_BYTES,
            (_, Arithmetic::Bf16 | Arithmetic::F16) => SHORTER_BYTES + further * LENGTH_BYTES,
        }
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }

    fn replay_program_bytes(&self) -> u64 {
        REPLAY_PROGRAM_BYTES
    }

    fn replay_bytes(&self, node: NodeView<'_>) -> u64 {
        match &node.node.op {
            // Neighbouring gradients are cleared by one launch; `Cuda::exchange_bytes` counts exchanges.
            Op::Fill(_) | Op::Collective(_) => 0,
            Op::Linear(op) => (1 + op.low_rank_terms().count() as u64) * REPLAY_BYTES,
            plain_operations!()
            | Op::LinearInputGrad(_)
            | Op::LinearWeightGrad(_)
            | Op::LayerNormGrad(_)
            | Op::Attention(_)
            | Op::AttentionGrad(_)
            | Op::EmbeddingGrad(_)
            | Op::ClassTokenGrad(_)
            | Op::CrossEntropy(_)
            | Op::CrossEntropyGrad(_)
            | Op::PointwiseLoss(_)
            | Op::PointwiseLossGrad(_)
            | Op::ScaleColumnsGrad(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::CachedAttention(_)
            | Op::TopTokens(_)
            | Op::Contrastive(_)
            | Op::ContrastiveGrad(_)
            | Op::GroupStatistics(_)
            | Op::GroupNormGrad(_)
            | Op::PixelLoss(_)
            | Op::OverlapSums(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_)
            | Op::GradientNorm(_) => REPLAY_BYTES,
            Op::VocabularyLoss(_) | Op::VocabularyLossGrad(_) => {
                vocabulary_launches(node) * REPLAY_BYTES
            }
            Op::Conv2d(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2d(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_) => conv::launches(node) * REPLAY_BYTES,
        }
    }

    fn packing_bytes(&self, node: NodeView<'_>) -> u64 {
        if is_convolution(&node.node.op) {
            self.cudnn_bytes
        } else {
            0
        }
    }
}

/// Number of products and kernels of a loss over a vocabulary.
fn vocabulary_launches(node: NodeView<'_>) -> u64 {
    let tiles = VocabularyTiles::of(node).map_or(0, |tiles| tiles.iter().count());
    ((products(node).len() + 1) * tiles) as u64
}

impl CudaTarget {
    /// Time of a loss over a vocabulary in addition to the arithmetic of its products: logits are written and read, and a weight gradient
    /// is read and written for every tile.
    fn tile_seconds(&self, node: NodeView<'_>) -> f64 {
        let Some(tiles) = VocabularyTiles::of(node) else {
            return 0.0;
        };
        let logits = (tiles.num_rows * tiles.pitch) as f64;
        let bytes = match &node.node.op {
            Op::VocabularyLossGrad(op) => {
                let num_products = f64::from(u8::from(op.x) + u8::from(op.weight));
                let dweight = if op.weight {
                    8.0 * node.input(2).num_elements() as f64
                } else {
                    0.0
                };
                logits * (8.0 + (1.0 + num_products) * self.width())
                    + tiles.iter().count() as f64 * dweight
            }
            _ => logits * 8.0,
        };
        let launches = vocabulary_launches(node) as f64;
        bytes / self.profile.bytes_per_second + launches * self.profile.seconds_per_kernel
    }

    fn width(&self) -> f64 {
        self.arithmetic.compute().bytes() as f64
    }
}

/// Share of a published product rate that large products reach, share of a published bandwidth that copies reach, and time of a
/// kernel within a graph: measured on an H200 (775 of 989 TFLOP/s, 4.3 of 4.8 TB/s).
const PRODUCTS_REACH: f64 = 0.78;
const COPIES_REACH: f64 = 0.9;
const SECONDS_PER_KERNEL: f64 = 2.2e-6;

impl CudaTarget {
    /// A card of the table, by its published rates; `None` if it does not support the format.
    pub fn for_card(card: &Card, arithmetic: Arithmetic) -> Option<CudaTarget> {
        let rate = match arithmetic {
            Arithmetic::F32 => card.f32_flops,
            Arithmetic::Tf32 => card.tf32_flops?,
            Arithmetic::Bf16 => card.bf16_flops?,
            Arithmetic::F16 => card.f16_flops,
        };
        let profile = Profile {
            flops_per_second: rate * PRODUCTS_REACH,
            bytes_per_second: card.bytes_per_second * COPIES_REACH,
            seconds_per_kernel: SECONDS_PER_KERNEL,
            link_bytes_per_second: card.link_bytes_per_second(),
        };
        let processors = card.num_sms as usize;
        let context = card.context_bytes();
        Some(CudaTarget::new(
            profile,
            processors,
            arithmetic,
            context,
            cudnn_bytes(arithmetic, false),
        ))
    }
}
