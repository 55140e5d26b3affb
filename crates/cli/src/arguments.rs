//! Arguments as typed.

use std::path::Path;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdall_train::budget::Memory;
use holdall_train::config::{Precision, RecomputeChoice, RunConfig};

/// Trains vision and vision-language models inside a memory budget.
#[derive(Parser)]
#[command(
    name = "holdall",
    version,
    after_help = "Example: what would CLIP ViT-B/32 with an effective batch of 128 take in 6 GiB?\n  \
                  holdall plan openai/clip-vit-base-patch32 --effective-batch 128 --memory 6GiB"
)]
pub struct Holdall {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// What fits, what it costs, what is chosen and why
    Plan(PlanArguments),
    /// Is the split gradient the full-batch gradient? A certificate, parameter by parameter
    Verify(VerifyArguments),
    /// Measures one job and prints a JSON line
    Bench(BenchArguments),
}

/// What `plan`, `verify` and `bench` share.
#[derive(Args, Clone)]
pub struct RunOptions {
    /// Samples per optimizer step [default: 128]
    #[arg(long, alias = "effective_batch", value_name = "N")]
    pub effective_batch: Option<usize>,
    /// Samples per micro-batch; never changed, a better one is suggested
    #[arg(long, aliases = ["batch_size", "micro-batch"], value_name = "N")]
    pub batch_size: Option<usize>,
    /// Micro-batches per optimizer step; the gradient is that of the whole
    #[arg(
        long,
        aliases = ["gradient_accumulation", "gradient-accumulation-steps", "gradient_accumulation_steps", "accum"],
        value_name = "N"
    )]
    pub gradient_accumulation: Option<usize>,
    /// What the process may hold: 8GiB, 8GB, 80%, auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Memory>,
    /// What to make again in the backward pass instead of keeping it
    #[arg(long, value_name = "POLICY")]
    pub recompute: Option<RecomputeArgument>,
    /// Number format; the CPU computes in f32
    #[arg(long, aliases = ["dtype"], value_name = "FORMAT")]
    pub precision: Option<PrecisionArgument>,
    /// Where to run
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: DeviceArgument,
    /// Threads [default: one per core]
    #[arg(long, aliases = ["num_threads", "threads"], value_name = "N")]
    pub num_threads: Option<usize>,
    /// Classes of the label head beside the contrastive loss
    #[arg(long, value_name = "N")]
    pub labels: Option<usize>,
    /// Tokens per caption [default: the model's positions]
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Seed of everything random
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DeviceArgument {
    /// This machine's cores
    Cpu,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RecomputeArgument {
    /// What the budget asks for
    Auto,
    /// Keep everything
    None,
    /// Norms and activation functions again
    Cheap,
    /// Whole blocks again
    Blocks,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PrecisionArgument {
    /// What suits the device
    Auto,
    /// 32-bit
    F32,
    /// 16-bit IEEE with loss scaling
    Fp16,
    /// 16-bit brain float
    Bf16,
    /// 32-bit with 10-bit products
    Tf32,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall plan small --effective-batch 128 --memory 400MiB\n  \
                  holdall plan run.yml --batch-size 8 --json"
)]
pub struct PlanArguments {
    /// CONFIG.yml, a model folder, or a preset such as `small` or `openai/clip-vit-base-patch32`
    #[arg(value_name = "CONFIG", default_value = "openai/clip-vit-base-patch32")]
    pub target: String,
    #[command(flatten)]
    pub options: RunOptions,
}

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| argument.help("Samples in the batch [default: 24]")),
    after_help = "Examples:\n  holdall verify small --effective-batch 24 --labels 10\n  \
                  holdall verify small --split 5 --recompute blocks --json\n\n\
                  Exit code 0: exact; 1: a split changed the gradient."
)]
pub struct VerifyArguments {
    /// CONFIG.yml, a model folder, or a preset
    #[arg(value_name = "CONFIG", default_value = "small")]
    pub target: String,
    /// Only micro-batches of these sizes, instead of the usual choice of splits
    #[arg(long = "split", value_name = "N", value_delimiter = ',')]
    pub splits: Vec<usize>,
    /// Wrong on purpose: contrast only within micro-batches, to see that the certificate can say no
    #[arg(long)]
    pub plain_accumulation: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

#[derive(Args)]
#[command(after_help = "Example:\n  holdall bench clip --small --steps 5")]
pub struct BenchArguments {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// One CLIP training step over random data, exact whatever the split
    Clip(BenchClipArguments),
}

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| {
        argument.help("Samples per optimizer step [default: 32 x 4 with --small, else 8 x 16]")
    }),
    after_help = "Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench clip --small --batch-size 32 --gradient-accumulation 4"
)]
pub struct BenchClipArguments {
    /// A model folder or a preset
    #[arg(
        long,
        default_value = "openai/clip-vit-base-patch32",
        value_name = "MODEL"
    )]
    pub model: String,
    /// The preset for CPUs: 64 px, patch 8, width 128, 4 + 4 layers
    #[arg(long, conflicts_with = "model")]
    pub small: bool,
    /// Timed steps
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Print where the time of a step goes, operation by operation
    #[arg(long)]
    pub profile: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

impl RunOptions {
    /// The config that `target` names, with these options laid over it.
    pub fn config(&self, target: &str) -> Result<RunConfig> {
        let path = Path::new(target);
        let is_config = path
            .extension()
            .is_some_and(|extension| extension == "yml" || extension == "yaml");
        let mut config = if is_config {
            RunConfig::read(path)?
        } else {
            RunConfig {
                model: target.to_owned(),
                ..RunConfig::default()
            }
        };
        self.lay_over(&mut config);
        Ok(config)
    }

    fn lay_over(&self, config: &mut RunConfig) {
        fn set<T: Clone>(target: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *target = given;
            }
        }
        // Two of the three batch numbers fix the third. What is typed binds; of the file's numbers, those that
        // can stand beside it do, the effective batch first.
        let batch = &mut config.train;
        let typed = [
            self.effective_batch,
            self.batch_size,
            self.gradient_accumulation,
        ];
        if typed.iter().any(Option::is_some) {
            let file = [
                batch.effective_batch,
                batch.batch_size,
                batch.gradient_accumulation,
            ];
            let mut numbers = typed;
            for (number, from_file) in numbers.iter_mut().zip(file) {
                let bound = typed.iter().flatten().count();
                if number.is_none() && bound < 2 {
                    *number = from_file;
                }
            }
            // Where the file has all three, its accumulation gives way.
            if numbers.iter().all(Option::is_some) && typed[2].is_none() {
                numbers[2] = None;
            } else if numbers.iter().all(Option::is_some) && typed[1].is_none() {
                numbers[1] = None;
            }
            [
                batch.effective_batch,
                batch.batch_size,
                batch.gradient_accumulation,
            ] = numbers;
        }
        set(
            &mut batch.recompute,
            self.recompute.map(|recompute| match recompute {
                RecomputeArgument::Auto => RecomputeChoice::Auto,
                RecomputeArgument::None => RecomputeChoice::None,
                RecomputeArgument::Cheap => RecomputeChoice::Cheap,
                RecomputeArgument::Blocks => RecomputeChoice::Blocks,
            }),
        );
        set(&mut config.memory, self.memory);
        set(
            &mut config.precision,
            self.precision.map(|precision| match precision {
                PrecisionArgument::Auto => Precision::Auto,
                PrecisionArgument::F32 => Precision::F32,
                PrecisionArgument::Fp16 => Precision::Fp16,
                PrecisionArgument::Bf16 => Precision::Bf16,
                PrecisionArgument::Tf32 => Precision::Tf32,
            }),
        );
        set(&mut config.seed, self.seed);
        config.labels = self.labels.or(config.labels);
        config.tokens = self.tokens.or(config.tokens);
        config.num_threads = self.num_threads.or(config.num_threads);
        let DeviceArgument::Cpu = self.device;
    }
}
