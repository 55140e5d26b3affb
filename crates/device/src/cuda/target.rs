//! A card as a target of the planner: scratch, times, and memory outside the arena.

use holdall_graph::{DType, NodeView};
use holdall_plan::{Spacing, Target};

use super::cards::Card;
use super::demand::{Demand, OwnTime};
use super::launch::conv;
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

/// Alignment of offsets that vector accesses and the product library need.
pub(super) const ALIGNMENT: u64 = 256;

/// Side of the tile of a product that one multiprocessor computes at a time.
const PRODUCT_TILE: usize = 128;

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

    fn demand(&self, node: NodeView<'_>) -> Demand {
        let input = |index: usize| node.input(index);
        let num_inputs = node.node.inputs.len();
        Demand::of(&node.node.op, &input, num_inputs, self.processors)
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
        let tiles = self
            .demand(node)
            .products
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
        let demand = self.demand(node);
        if demand.is_convolution() {
            conv::workspace_bytes(node)
        } else if demand.products.is_empty() {
            demand.scratch_bytes
        } else {
            demand.scratch_bytes + PRODUCT_BYTES
        }
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        let cost = node.graph.cost(node.node);
        let demand = self.demand(node);
        let operand = node.node.inputs.get(demand.product_operand);
        let full = self.arithmetic.compute() != DType::F32
            && operand.is_some_and(|&operand| node.graph.dtype(operand) == DType::F32);
        let profile = &self.profile;
        let of_kernels = |kernels: f64| kernels * profile.seconds_per_kernel;
        let pass_seconds = cost.bytes as f64 / profile.bytes_per_second;
        let arithmetic_seconds = cost.product_flops as f64 / profile.flops_per_second;
        // Large results are bound by memory as well as arithmetic.
        let product_seconds = if demand.products.is_empty() {
            0.0
        } else {
            let each = |&sizes| {
                let seconds = self.product_seconds(sizes, full) + of_kernels(1.0);
                seconds.max(LEAST_PRODUCT_SECONDS)
            };
            let all: f64 = demand.products.iter().map(each).sum();
            all.max(pass_seconds)
        };
        let own = match demand.own_time {
            OwnTime::OnePass => pass_seconds,
            OwnTime::AfterProducts {
                bytes,
                elements,
                launches,
            } => {
                let bytes = bytes + elements * self.arithmetic.compute().bytes() as f64;
                bytes / profile.bytes_per_second + of_kernels(launches)
            }
            OwnTime::Attention => pass_seconds + 4.0 * arithmetic_seconds,
            OwnTime::Convolution => pass_seconds.max(arithmetic_seconds),
        };
        product_seconds
            + (own + of_kernels(demand.kernels)).max(demand.kernels * LEAST_KERNEL_SECONDS)
    }

    fn host_bytes_per_second(&self) -> Option<f64> {
        Some(self.profile.link_bytes_per_second * UPDATES_REACH)
    }

    fn pinned_bytes(&self, host_bytes: u64) -> u64 {
        host_bytes / PINNED_PER_BYTE
    }

    fn overhead_bytes(&self, largest_library_bytes: u64) -> u64 {
        let less = match self.arithmetic {
            Arithmetic::F32 => F32_LESS_BYTES,
            _ => 0,
        };
        self.held_bytes + RESERVE_BYTES - less + largest_library_bytes
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
        let demand = self.demand(node);
        let launches = if demand.is_convolution() {
            conv::launches(node)
        } else {
            demand.launches
        };
        launches * REPLAY_BYTES
    }

    fn library_bytes(&self, node: NodeView<'_>) -> u64 {
        if self.demand(node).is_convolution() {
            self.cudnn_bytes
        } else {
            0
        }
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
