//! The CPU device: rayon for threads, products of our own (`product`), kernels that the compiler vectorises.
//!
//! The result has the same bits for any number of threads: work is cut into pieces whose number depends on shapes alone, each piece is
//! computed by one thread, and partial sums are added in a fixed order.

mod arena;
mod attention;
mod cached_attention;
mod collective;
mod contrastive;
mod convolution;
mod cross_attention;
pub mod dot_products;
mod dropout;
mod elements;
mod embedding;
mod group_norm;
mod layer_norm;
mod limits;
mod linear;
mod losses;
mod memory;
mod operands;
mod overlap;
mod pictures;
mod pixel_loss;
mod positions;
mod product;
mod real;
mod target;
mod tokens;
mod top_tokens;
mod update;
mod vectors;
mod vocabulary_loss;

use holdall_graph::{DType, Op};
use holdall_plan::{Instruction, Program};
use holdall_processes::Group;

pub use arena::{Arena, ArenaError};
pub use limits::{Bound, HostMemory, available_bytes, host_memory, total_bytes};
pub use memory::{
    MAX_KEPT_BUFFER_BYTES, give_back_freed, peak_resident_bytes, resident_bytes,
    resident_bytes_exactly, steady_allocator,
};
pub use target::{CODE_BYTES, CpuTarget};

pub use real::Element;

use operands::Operands;
use real::Real;

/// A thread pool that replays programs.
pub struct Cpu {
    pool: rayon::ThreadPool,
    /// The processes that collectives exchange with.
    group: Group,
}

impl Cpu {
    /// A pool of `num_threads`; `None`: one per core that affinity and container limits leave.
    pub fn open(num_threads: Option<usize>) -> Result<Cpu, rayon::ThreadPoolBuildError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(num_threads.unwrap_or(0))
            .thread_name(|index| format!("holdall-cpu-{index}"))
            .build()?;
        Ok(Cpu {
            pool,
            group: Group::alone(),
        })
    }

    /// Like [`Cpu::open`], for tests.
    ///
    /// # Panics
    /// If the system refuses the threads.
    pub fn new(num_threads: Option<usize>) -> Cpu {
        Cpu::open(num_threads).expect("the system gives a process its threads")
    }

    /// The same pool as a member of a group of processes.
    pub fn with_group(self, group: Group) -> Cpu {
        Cpu { group, ..self }
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    pub fn num_threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `work` on the pool. Programs inside `work` do not pass through the pool's queue again, so they allocate nothing.
    pub fn scope<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// Runs a program for a micro-batch; `slot` selects the activations.
    pub fn run(&self, program: &Program, arena: &mut Arena, micro_batch: usize, slot: usize) {
        let base = arena.pointer();
        self.scope(|| {
            for instruction in &program.instructions {
                let operands = Operands::new(instruction, base, micro_batch, slot);
                execute(instruction, &operands, &self.group);
                self.group.goes_on();
            }
        });
    }
}

impl Cpu {
    /// Runs a program and returns the time of each instruction, by operation.
    pub fn profile(
        &self,
        program: &Program,
        arena: &mut Arena,
        micro_batch: usize,
        slot: usize,
        mut told: impl FnMut(&'static str, f64) + Send,
    ) {
        let base = arena.pointer();
        self.scope(|| {
            for instruction in &program.instructions {
                let operands = Operands::new(instruction, base, micro_batch, slot);
                let started = std::time::Instant::now();
                execute(instruction, &operands, &self.group);
                self.group.goes_on();
                told(
                    instruction.op.rules().name(),
                    started.elapsed().as_secs_f64(),
                );
            }
        });
    }
}

/// Runs an instruction in the format of its first floating-point operand.
fn execute(instruction: &Instruction, operands: &Operands<'_>, group: &Group) {
    if let Op::Collective(op) = &instruction.op {
        return collective::run(group, op, operands);
    }
    let double = instruction
        .inputs
        .iter()
        .chain(instruction.outputs.iter().flatten().map(|(place, _)| place))
        .any(|place| place.dtype == DType::F64);
    if double {
        execute_as::<f64>(instruction, operands);
    } else {
        execute_as::<f32>(instruction, operands);
    }
}

fn execute_as<T: Real>(instruction: &Instruction, o: &Operands<'_>) {
    match &instruction.op {
        Op::Linear(op) => linear::forward::<T>(op, o),
        Op::LinearInputGrad(op) => linear::input_grad::<T>(op, o),
        Op::LinearWeightGrad(op) => linear::weight_grad::<T>(op, o),
        Op::Activate(op) => elements::activate::<T>(op.activation, o),
        Op::ActivateGrad(op) => elements::activate_grad::<T>(op.activation, o),
        Op::LayerNorm(op) => layer_norm::forward::<T>(op.eps, o),
        Op::LayerNormGrad(_) => layer_norm::backward::<T>(o),
        Op::Attention(op) => attention::forward::<T>(op, o),
        Op::AttentionGrad(op) => attention::backward::<T>(&op.forward, o),
        Op::CachedAttention(op) => cached_attention::forward::<T>(op, o),
        Op::TopTokens(op) => top_tokens::top_tokens::<T>(op.count, o),
        Op::AddPositions(op) => positions::add_positions::<T>(op.repeat, o),
        Op::AddPositionsGrad(op) => positions::add_positions_grad::<T>(op.repeat, o),
        Op::Repeat(_) => positions::repeat::<T>(o),
        Op::RepeatGrad(_) => positions::repeat_grad::<T>(o),
        Op::VocabularyLoss(op) => vocabulary_loss::forward::<T>(op, o),
        Op::VocabularyLossGrad(op) => vocabulary_loss::backward::<T>(op, o),
        Op::Embedding(_) => embedding::forward::<T>(o),
        Op::EmbeddingGrad(_) => embedding::backward::<T>(o),
        Op::MixPictures(op) => tokens::mix_pictures::<T>(op, o),
        Op::Patchify(op) => tokens::patchify::<T>(op, o),
        Op::ClassToken(_) => tokens::class_token::<T>(o),
        Op::ClassTokenGrad(op) => tokens::class_token_grad::<T>(op.num_prefix, o),
        Op::GatherRows(_) => tokens::gather_rows::<T>(o),
        Op::ScatterRows(_) => tokens::scatter_rows::<T>(o),
        Op::MeanTokens(op) => tokens::mean_tokens::<T>(op.first, o),
        Op::MeanTokensGrad(op) => tokens::mean_tokens_grad::<T>(op.first, o),
        Op::ScaleColumns(_) => elements::scale_columns::<T>(o),
        Op::ScaleColumnsGrad(op) => elements::scale_columns_grad::<T>(op, o),
        Op::Dropout(op) => dropout::dropout::<T>(op, o),
        Op::Normalize(_) => elements::normalize::<T>(o),
        Op::NormalizeGrad(_) => elements::normalize_grad::<T>(o),
        Op::CrossEntropy(op) => losses::cross_entropy::<T>(op, o),
        Op::CrossEntropyGrad(op) => losses::cross_entropy_grad::<T>(op, o),
        Op::PointwiseLoss(op) => losses::pointwise::<T>(op.loss, o),
        Op::PointwiseLossGrad(op) => losses::pointwise_grad::<T>(op.loss, o),
        Op::Contrastive(op) => contrastive::forward::<T>(op, o),
        Op::ContrastiveGrad(op) => contrastive::backward::<T>(op, o),
        Op::Conv2d(op) => convolution::forward::<T>(op, o),
        Op::Conv2dInputGrad(op) => convolution::input_grad::<T>(op, o),
        Op::Conv2dWeightGrad(op) => convolution::weight_grad::<T>(op, o),
        Op::TransposedConv2d(op) => convolution::transposed::<T>(op.stride, o),
        Op::TransposedConv2dInputGrad(op) => convolution::transposed_input_grad::<T>(op.stride, o),
        Op::TransposedConv2dWeightGrad(op) => convolution::transposed_weight_grad::<T>(op, o),
        Op::GroupStatistics(op) => group_norm::statistics::<T>(op, o),
        Op::GroupNorm(op) => group_norm::forward::<T>(op, o),
        Op::GroupNormGrad(op) => group_norm::backward::<T>(op, o),
        Op::Pool2d(op) => pictures::pool::<T>(op, o),
        Op::Pool2dGrad(op) => pictures::pool_grad::<T>(op, o),
        Op::Upsample2d(op) => pictures::upsample::<T>(op, o),
        Op::Upsample2dGrad(op) => pictures::upsample_grad::<T>(op, o),
        Op::NormalizePixels(op) => pictures::normalize_pixels::<T>(op, o),
        Op::PixelLoss(op) => pixel_loss::forward::<T>(op, o),
        Op::PixelLossGrad(op) => pixel_loss::backward::<T>(op, o),
        Op::OverlapSums(op) => overlap::sums::<T>(op.kind, o),
        Op::OverlapSumsGrad(op) => overlap::sums_grad::<T>(op.kind, o),
        Op::OverlapLoss(op) => overlap::loss::<T>(op, o),
        Op::OverlapLossGrad(op) => overlap::loss_grad::<T>(&op.forward, o),
        Op::Fill(op) => elements::fill::<T>(op.value, o),
        Op::Add(_) => elements::add::<T>(o),
        Op::AddInto(_) => elements::add_into::<T>(o),
        Op::AddRounded(_) => elements::add_rounded(o),
        Op::Cast(_) => elements::cast(o),
        Op::Collective(_) => unreachable!("exchanged above, whatever the format"),
        Op::GradientNorm(_) => update::gradient_norm::<T>(o),
        Op::AdamW(op) => update::adamw::<T>(op, o),
        Op::WeightAverages(op) => update::weight_averages::<T>(op.action, o),
    }
}
