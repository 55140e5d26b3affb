//! Arguments as typed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdall_data::check::{MAX_ASPECT, MIN_PER_LABEL, MIN_SIZE};
use holdall_device::DeviceChoice;
use holdall_train::budget::Memory;
use holdall_train::config::{Count, Precision, RecomputeChoice, RunConfig, lay_batch_numbers};

/// Trains vision and vision-language models inside a memory budget.
#[derive(Parser)]
#[command(
    name = "holdall",
    version,
    after_help = "Examples:\n  \
                  holdall demo\n  \
                  holdall train photos.csv --memory 8GiB\n  \
                  holdall plan openai/clip-vit-base-patch32 --effective-batch 128 --memory 6GiB"
)]
pub struct Holdall {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// A complete small run on pictures that it draws itself: under four minutes on two cores
    Demo(DemoArguments),
    /// Trains on a CSV of pictures inside a memory budget
    Train(TrainArguments),
    /// What fits, what it costs, what is chosen and why
    Plan(PlanArguments),
    /// Is the split gradient the full-batch gradient? A certificate, parameter by parameter
    Verify(VerifyArguments),
    /// A trained model on data: retrieval both ways, and labels
    Eval(EvalArguments),
    /// Labels and features of pictures, by a trained model
    Predict(PredictArguments),
    /// Exact ranks of features from any framework, at any scale, inside a memory limit
    Retrieval(RetrievalArguments),
    /// A run, or several side by side, as one HTML file: curves, memory, predictions
    Report(ReportArguments),
    /// Looks for bad pictures and rows, cleans a CSV, draws data to try things on
    Data(DataArguments),
    /// Verdicts on a log of GPU memory: leak, spike, fragmentation, starvation, idle or underused GPU
    Analyze(AnalyzeArguments),
    /// GPUs, memory and who uses it, live, beside the loss and speed of a run
    Monitor(MonitorArguments),
    /// What this machine has for training, what is missing, and how to get it
    Doctor(DoctorArguments),
    /// Measures one job and prints a JSON line
    Bench(BenchArguments),
    /// A script that lets the Tab key complete commands and options
    Completions(CompletionsArguments),
    /// The manual page, for `man`
    #[command(
        after_help = "Examples:\n  holdall man | man -l -\n  holdall man > ~/.local/share/man/man1/holdall.1"
    )]
    Man,
}

/// What `train`, `plan`, `verify` and `bench` share.
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
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = wish)]
    pub device: DeviceChoice,
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
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Any key of the config, such as train.lr=1e-4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

/// What `train` takes beside [`RunOptions`].
#[derive(Args, Clone)]
pub struct TrainOptions {
    /// Times that the data is seen
    #[arg(long, aliases = ["num-epochs", "num_epochs"], value_name = "N")]
    pub epochs: Option<usize>,
    /// Learning rate of the towers
    #[arg(
        long,
        aliases = ["learning-rate", "learning_rate"],
        value_name = "RATE",
        allow_negative_numbers = true
    )]
    pub lr: Option<f64>,
    /// Threads that decode pictures: a number, or auto
    #[arg(long, alias = "num_workers", value_name = "N")]
    pub num_workers: Option<Count>,
    /// Micro-batches that wait, decoded: a number, or auto
    #[arg(long, value_name = "N")]
    pub prefetch: Option<Count>,
    /// The run's folder
    #[arg(long, aliases = ["output-dir", "output_dir"], value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Go on where the run in that folder was ended
    #[arg(long)]
    pub resume: bool,
    /// Write RUN/tensorboard too: every number as TensorBoard reads it
    #[arg(long)]
    pub tensorboard: bool,
    /// A model folder or a preset, instead of the config's
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The same as --precision f32
    #[arg(long, alias = "no_mixed_precision")]
    pub no_mixed_precision: bool,
}

impl TrainOptions {
    /// Lays what was typed over the config.
    pub fn lay_over(&self, config: &mut RunConfig) {
        set(&mut config.train.epochs, self.epochs);
        set(&mut config.train.lr, self.lr);
        set(&mut config.num_workers, self.num_workers);
        set(&mut config.prefetch, self.prefetch);
        set(&mut config.model, self.model.clone());
        config.out = self.out.clone().or(config.out.take());
        if self.no_mixed_precision {
            config.precision = Precision::F32;
        }
    }
}

fn set<T>(target: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *target = given;
    }
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
#[command(after_help = "Example:\n  holdall demo --out /tmp/holdall-demo\n\n\
                  What it writes: DIR/data (pictures, image_labels.csv) and DIR/run (losses, summary, model).")]
pub struct DemoArguments {
    /// Where pictures and the run go; must not hold a run yet
    #[arg(long, value_name = "DIR", default_value = "holdall-demo")]
    pub out: PathBuf,
    /// Pictures to draw; a tenth is held out
    #[arg(long, value_name = "N", default_value_t = 5600, value_parser = clap::value_parser!(u64).range(32..1_000_000))]
    count: u64,
    /// Times that the pictures are seen
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub epochs: usize,
    /// What the process may hold: 1GiB, 80%, auto [default: 512MiB, on a GPU 2GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Memory>,
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = wish)]
    pub device: DeviceChoice,
    /// Another seed, other cars
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
    /// The summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

impl DemoArguments {
    /// Pictures to draw.
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall train data/image_labels.csv --memory 8GiB\n  \
                  holdall train cars.yml --batch-size 8 --gradient-accumulation 16 --out runs/cars\n  \
                  holdall train photos.csv --model ./clip-vit-base-patch32 --set data.caption=\"a photo of a {make}\"\n  \
                  holdall train --resume --out runs/cars --epochs 30\n\n\
                  Ctrl-C and SIGTERM save and stop; SIGUSR1 saves and goes on.\n\
                  Exit code 0: done; 1: failed; 3: does not fit; 130, 143: stopped by Ctrl-C, SIGTERM: go on with --resume.")]
pub struct TrainArguments {
    /// CONFIG.yml, DATA.csv, or a folder with image_labels.csv
    #[arg(value_name = "CONFIG|DATA")]
    pub target: Option<String>,
    #[command(flatten)]
    pub train: TrainOptions,
    #[command(flatten)]
    pub options: RunOptions,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall eval runs/cars\n  holdall eval runs/cars test.csv --json"
)]
pub struct EvalArguments {
    /// The folder of a run, or a model folder
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// A CSV, every row of which is evaluated; without it, what the run held out
    #[arg(value_name = "DATA.csv")]
    pub data: Option<String>,
    /// Pictures at a time
    #[arg(long, aliases = ["batch_size", "eval-batch-size", "eval_batch_size"], value_name = "N", value_parser = batch)]
    pub batch_size: Option<usize>,
    /// What the process may hold: 8GiB, 80%, auto
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub memory: Memory,
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = wish)]
    pub device: DeviceChoice,
    /// Threads [default: one per core]
    #[arg(long, aliases = ["num_threads", "threads"], value_name = "N", value_parser = batch)]
    pub num_threads: Option<usize>,
    /// Keys of the data section, such as data.caption=COLUMN; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall predict runs/cars photo.jpg folder-of-photos\n  \
                  holdall predict runs/cars photo.jpg --labels \"red car,blue car\" --template \"a photo of a {}\"\n  \
                  holdall predict runs/cars photos --features features.npy\n\n\
                  Exit code 1: some pictures could not be read; the others were predicted.")]
pub struct PredictArguments {
    /// The folder of a run, or a model folder
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// Pictures, or folders of pictures
    #[arg(value_name = "IMAGES", required = true)]
    pub images: Vec<PathBuf>,
    /// Labels that need no training: pictures are compared with captions made of them
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// The caption of a label
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "a photo of a {}",
        requires = "labels"
    )]
    pub template: String,
    /// Labels to print for each picture
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub top: usize,
    /// Writes the pictures' features to FILE.npy or FILE.safetensors
    #[arg(long, value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// Pictures at a time
    #[arg(long, alias = "batch_size", value_name = "N", value_parser = batch)]
    pub batch_size: Option<usize>,
    /// What the process may hold: 8GiB, 80%, auto
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub memory: Memory,
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = wish)]
    pub device: DeviceChoice,
    /// Threads [default: one per core]
    #[arg(long, aliases = ["num_threads", "threads"], value_name = "N", value_parser = batch)]
    pub num_threads: Option<usize>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall retrieval --queries images.npy --gallery texts.npy\n  \
                  holdall retrieval --queries images.npy --gallery texts.npy --pairs pairs.csv --at 1,5,10,50 --json\n  \
                  holdall retrieval --queries rank0.npy rank1.npy --gallery texts.safetensors:text --captions photos.csv:caption\n  \
                  holdall retrieval --queries images.npy --gallery texts.npy --memory 256MiB --ranks ranks.csv\n  \
                  holdall retrieval --queries images.npy --gallery texts.npy --top 10 --neighbours nearest.npy\n\n\
                  Features are rows of f32, f16 or bf16; a score is the dot product of two rows, so normalise them for cosines.\n\
                  From PyTorch:\n  \
                  np.save(\"images.npy\", torch.nn.functional.normalize(features, dim=1).cpu().numpy())\n  \
                  safetensors.torch.save_file({\"text\": features.contiguous()}, \"texts.safetensors\")\n\n\
                  Who belongs to whom: --pairs has lines `query,gallery`, counted from 0, several per item if there are; --captions\n\
                  has the caption of each query, and equal ones are one gallery item; without either, row i belongs to row i.\n\
                  Of several positives the best counts, and the others are in nobody's way; --positives recall counts each.\n\
                  Ranks are those of exact arithmetic: they depend on the features alone, not on tiles, threads or device.\n\
                  Exit code 0: done; 130: stopped, nothing was written; 3: does not fit --memory.")]
pub struct RetrievalArguments {
    /// Features of those that look: FILE.npy, FILE.safetensors or FILE.safetensors:TENSOR; several are joined in this order
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub queries: Vec<PathBuf>,
    /// Features of those that are looked through, likewise
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub gallery: Vec<PathBuf>,
    /// Who belongs to whom: FILE.csv with lines query,gallery, or FILE.npy of N x 2 whole numbers
    #[arg(long, value_name = "FILE", conflicts_with = "captions")]
    pub pairs: Option<PathBuf>,
    /// The caption of each query: FILE.csv, FILE.csv:COLUMN, or a text with one per line. The gallery has a row per caption, or
    /// per unique text in order of first appearance
    #[arg(long, value_name = "FILE")]
    pub captions: Option<PathBuf>,
    /// Which R@k to print
    #[arg(long, value_name = "K,K", value_delimiter = ',', default_value = "1,5,10", value_parser = clap::value_parser!(u64).range(1..))]
    pub at: Vec<u64>,
    /// What those on a level with a positive do to its rank
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = TiesArgument::Mean)]
    pub ties: TiesArgument,
    /// What counts where an item has several positives
    #[arg(long, value_enum, value_name = "RULE", default_value_t = PositivesArgument::Best)]
    pub positives: PositivesArgument,
    /// What to do about items that have no positive
    #[arg(long, value_enum, value_name = "RULE", default_value_t = UnpairedArgument::Error)]
    pub unpaired: UnpairedArgument,
    /// What the process may hold, features included: 256MiB, 8GB, 80% [default: what is useful]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Memory>,
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = wish)]
    pub device: DeviceChoice,
    /// Threads [default: one per core]
    #[arg(long, aliases = ["num-threads", "num_threads"], value_name = "N", value_parser = batch)]
    pub threads: Option<usize>,
    /// Writes the rank of every item, both ways, to FILE.csv
    #[arg(long, value_name = "FILE")]
    pub ranks: Option<PathBuf>,
    /// Writes each query's nearest gallery items to FILE.npy (their numbers) or FILE.csv (with scores)
    #[arg(long, alias = "neighbors", value_name = "FILE")]
    pub neighbours: Option<PathBuf>,
    /// How many nearest [default: 10]
    #[arg(long, value_name = "K", requires = "neighbours", value_parser = batch)]
    pub top: Option<usize>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall report runs/cars\n  \
                  holdall report runs/cars runs/cars-2 --out compared.html\n\n\
                  What it shows: losses, metrics, learning rate, throughput and waiting for data; memory over time beside the plan's line,\n\
                  and every tensor of the plan as a box over time and address; the slowest operations; predictions on held-out\n\
                  pictures; verdicts; the configuration. Several runs are drawn over each other.\n\
                  `holdall train` writes RUN/report.html when it ends and on Ctrl-C; a run that still trains can be reported on too.\n\
                  The file needs no network and nothing beside it.")]
pub struct ReportArguments {
    /// Folders of runs
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Where the page goes [default: RUN/report.html; of several runs, report.html here]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// One JSON object on stdout: path, bytes, runs, notes
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TiesArgument {
    /// They come after it
    Optimistic,
    /// They come before it
    Pessimistic,
    /// Half of them come before it
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PositivesArgument {
    /// The best of them; the others are in nobody's way
    Best,
    /// Each by itself: R@k is the share of an item's positives among the first k
    Recall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnpairedArgument {
    /// Refuse
    Error,
    /// They have no rank, and are in the way of others all the same
    Ignore,
}

#[derive(Args)]
#[command(
    after_help = "Features are drawn at random and normalised, each query's match too. After a warm-up, `ms` is the best of \
                  --repeat. One JSON line on stdout.\n\n\
                  Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench retrieval --queries 2000 --gallery 500 --dim 512 --threads 2"
)]
pub struct BenchRetrievalArguments {
    /// Those that look
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = at_least_one)]
    pub queries: usize,
    /// Those that are looked through
    #[arg(long, default_value_t = 5_000, value_name = "N", value_parser = at_least_one)]
    pub gallery: usize,
    /// Values of a row
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = at_least_one)]
    pub dim: usize,
    /// How values are stored
    #[arg(long, value_enum, default_value_t = ElementArgument::F32, value_name = "FORMAT")]
    pub element: ElementArgument,
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = wish)]
    pub device: DeviceChoice,
    /// Threads [default: one per core]
    #[arg(long, aliases = ["num-threads", "num_threads"], value_name = "N", value_parser = batch)]
    pub threads: Option<usize>,
    /// Another seed, other features
    #[arg(long, default_value_t = 0, value_name = "SEED", value_parser = seed)]
    pub seed: u64,
    /// Times that it is timed
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = at_least_one)]
    pub repeat: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ElementArgument {
    /// 32-bit
    F32,
    /// 16-bit IEEE
    F16,
    /// 16-bit brain float
    Bf16,
}

fn wish(text: &str) -> Result<DeviceChoice, String> {
    let number = |text: &str| text.strip_prefix("cuda:")?.parse().ok();
    match text {
        "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        "cuda" => Ok(DeviceChoice::Cuda(0)),
        _ => number(text).map(DeviceChoice::Cuda).ok_or_else(|| {
            "expected auto, cpu, cuda or cuda:N\nhint: --device cuda:1 is the second GPU".to_owned()
        }),
    }
}

fn seed(text: &str) -> Result<u64, String> {
    let expected = "expected a whole number of at least 0\nhint: --seed 7";
    text.parse().map_err(|_| expected.to_owned())
}

fn batch(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=65_536) => Ok(number),
        _ => Err("expected a whole number from 1 to 65536".to_owned()),
    }
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall data check photos.csv\n  holdall data clean photos.csv\n  \
                  holdall data sample cars /tmp/cars --count 500"
)]
pub struct DataArguments {
    #[command(subcommand)]
    pub command: DataCommand,
}

#[derive(Subcommand)]
pub enum DataCommand {
    /// Decodes every picture and says what is wrong with which row
    Check(DataCheckArguments),
    /// Writes the CSV again without the rows that are no use
    Clean(DataCleanArguments),
    /// Draws pictures with captions and labels, the same for the same seed
    Sample(DataSampleArguments),
}

/// What `data check` and `data clean` share.
#[derive(Args, Clone)]
pub struct CheckOptions {
    /// DATA.csv, CONFIG.yml, or a folder with image_labels.csv; without it, this folder or its `data`
    #[arg(value_name = "CONFIG|DATA")]
    pub target: Option<String>,
    /// A picture is too small if a side has fewer pixels
    #[arg(long, alias = "min_size", value_name = "PIXELS", default_value_t = MIN_SIZE)]
    pub min_size: u32,
    /// A picture is too narrow if a side is so many times longer than the other
    #[arg(long, alias = "max_aspect", value_name = "TIMES", default_value_t = MAX_ASPECT, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_aspect: u32,
    /// A label with fewer pictures has too few
    #[arg(long, alias = "min_per_label", value_name = "N", default_value_t = MIN_PER_LABEL)]
    pub min_per_label: usize,
    /// Threads that decode pictures: a number, or auto
    #[arg(long, alias = "num_workers", value_name = "N")]
    pub num_workers: Option<Count>,
    /// Seed of the run whose validation rows are meant
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Keys of the data section, such as data.image=COLUMN or data.validation=val.csv; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall data check photos.csv\n  \
                  holdall data check cars.yml --min-size 64 --min-per-label 5\n  \
                  holdall data check photos.csv --set data.image_root=pictures --set data.validation=val.csv --json\n\n\
                  What is looked for: pictures that are missing, of zero size, no image, cut short, broken, or of absurd\n\
                  dimensions; the same picture twice, or in train and validation; labels with few pictures; captions that are\n\
                  empty or all the same. Ctrl-C stops; the same command goes on. Exit code 0: nothing found; 1: something.")]
pub struct DataCheckArguments {
    #[command(flatten)]
    pub options: CheckOptions,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall data clean photos.csv\n  \
                  holdall data clean photos.csv --min-size 64 --min-per-label 10 --duplicates keep\n\n\
                  What it writes: photos_cleaned.csv, the rows whose picture can be read and whose caption is not empty, and\n\
                  photos_filtered.csv, those of them that pass the filters: size, shape, duplicates, pictures per label.\n\
                  photos.csv is not touched; rows are copied byte for byte. `holdall train FOLDER` takes the filtered one.")]
pub struct DataCleanArguments {
    /// What becomes of rows that show the same picture
    #[arg(long, value_name = "RULE", default_value = "keep-first")]
    pub duplicates: DuplicatesArgument,
    #[command(flatten)]
    pub options: CheckOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DuplicatesArgument {
    /// The first stays; a picture of a validation file or column is not trained on
    KeepFirst,
    /// All stay
    Keep,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  holdall data sample cars /tmp/cars --count 500\n  \
                  holdall train /tmp/cars --model small --lr 1e-3"
)]
pub struct DataSampleArguments {
    /// What to draw
    pub kind: SampleKind,
    /// Where: pictures in DIR/images, the list in DIR/image_labels.csv
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..10_000_000))]
    count: u64,
    /// Width and height in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 96, value_parser = clap::value_parser!(u32).range(32..=1024))]
    pub size: u32,
    /// Another seed, other pictures
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
}

impl DataSampleArguments {
    /// How many.
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum SampleKind {
    /// Cars of several makes, with captions
    Cars,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall plan small --effective-batch 128 --memory 400MiB\n  \
                  holdall plan run.yml --batch-size 8 --json\n  \
                  holdall plan openai/clip-vit-base-patch32 --gpu rtx-4060 --memory 6GiB\n  \
                  holdall plan --gpu list"
)]
pub struct PlanArguments {
    /// CONFIG.yml, a model folder, or a preset such as `small` or `openai/clip-vit-base-patch32`
    #[arg(value_name = "CONFIG", default_value = "openai/clip-vit-base-patch32")]
    pub target: String,
    /// Plans for a card that is not here, such as rtx-4060, by its published rates; `list` prints every card
    #[arg(long, value_name = "CARD", conflicts_with = "device")]
    pub gpu: Option<String>,
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
#[command(after_help = "Examples:\n  \
                  holdall analyze runs/cars\n  \
                  holdall analyze gpu.csv --json\n\n\
                  A log of any run, from outside (with noheader or nounits too; --columns says what cannot be told):\n  \
                  nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total,utilization.gpu --format=csv -l 1 > gpu.csv\n\n\
                  From within a PyTorch script, a line per step; `phase`, `epoch` and `step_time` make verdicts sharper:\n  \
                  log.write(json.dumps({\"step\": step, \"epoch\": epoch,\n      \
                      \"allocated_mib\": torch.cuda.memory_allocated() / 2**20,\n      \
                      \"max_allocated_mib\": torch.cuda.max_memory_allocated() / 2**20,\n      \
                      \"reserved_mib\": torch.cuda.memory_reserved() / 2**20}) + \"\\n\")\n  \
                  holdall analyze memory.jsonl --limit 24GiB\n\n\
                  Exit code 0: healthy; 1: something was found; 2: the log cannot be read.")]
pub struct AnalyzeArguments {
    /// The folder of a run, its memory.jsonl, a CSV or `dmon` of nvidia-smi, JSON lines or a CSV of a script; - reads stdin
    #[arg(value_name = "LOG|RUN|-")]
    pub log: PathBuf,
    /// What counts as full, instead of what the log says the device has; more than it is a problem
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub limit: Option<u64>,
    /// Names of a CSV's columns, where it has no header
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    pub columns: Option<Vec<String>>,
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(Memory::Bytes(bytes)) => Ok(bytes),
        _ => Err("expected a size such as 24GiB or 24GB\nhint: --limit 24GiB".to_owned()),
    }
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall monitor\n  \
                  holdall monitor runs/cars --interval 500ms\n  \
                  holdall monitor --once\n  \
                  holdall monitor --json\n\n\
                  Keys: q, Esc or Ctrl-C ends it; arrows or Tab choose a GPU; + and - change the interval; h shows all keys.\n\
                  Without RUN, the run that trains on this machine is shown, if there is one. GPUs are counted as nvidia-smi counts\n\
                  them. Where stdout is not a terminal, it prints once. What is not known is null in JSON.\n\
                  Keys of the JSON: time host gpus no_gpu run.")]
pub struct MonitorArguments {
    /// The folder of a run to show beside the machine [default: the one that trains here now]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Prints one table and ends
    #[arg(long)]
    pub once: bool,
    /// One JSON object on stdout, once
    #[arg(long)]
    pub json: bool,
    /// Time between two looks: 500ms, 2s, 2
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

/// Shorter than the shortest, a look would take longer than the wait; longer than the longest is no watching.
fn interval(text: &str) -> Result<Duration, String> {
    let lowered = text.trim().to_lowercase();
    let (number, seconds) = match (lowered.strip_suffix("ms"), lowered.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (lowered.as_str(), 1.0),
    };
    let parsed = number.trim().parse::<f64>().ok();
    let meant = parsed.map(|number| number * seconds);
    match meant.filter(|seconds| (0.1..=3600.0).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => {
            Err("expected a time from 100ms to 3600s\nhint: --interval 500ms, 2s or 2".to_owned())
        }
    }
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall doctor\n  \
                  holdall doctor --json\n\n\
                  Each line is ok, a warning, or missing, and says what to do. Nothing is computed and no memory of a GPU is taken.\n\
                  Exit code 0: a run on the CPU has all that it needs, and so has every GPU that is here, warnings or not; 1: something\n\
                  is missing.")]
pub struct DoctorArguments {
    /// One JSON object on stdout: status, checks (name, status, found, advice)
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall completions bash > ~/.local/share/bash-completion/completions/holdall\n  \
                  holdall completions zsh > ~/.zfunc/_holdall       (with fpath+=~/.zfunc before compinit in ~/.zshrc)\n  \
                  holdall completions fish > ~/.config/fish/completions/holdall.fish\n  \
                  holdall completions powershell >> $PROFILE")]
pub struct CompletionsArguments {
    /// Whose script
    #[arg(value_name = "SHELL")]
    pub shell: ShellArgument,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArgument {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
    /// PowerShell
    #[value(name = "powershell")]
    PowerShell,
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
    /// Pictures of a folder into batches, beside decoding alone
    Loader(BenchLoaderArguments),
    /// Exact ranks of random features
    Retrieval(BenchRetrievalArguments),
}

#[derive(Args)]
#[command(
    after_help = "Every picture is read once to warm up, then timed: decoded, a random part of it resized (with --eval its \
                  middle), flipped, written into the batch as bytes; a device normalises them. One JSON line on stdout.\n\n\
                  Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench loader photos/ --workers 2 --batch 64"
)]
pub struct BenchLoaderArguments {
    /// A folder of pictures, searched through and through
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Threads that read
    #[arg(long, alias = "num-workers", alias = "num_workers", default_value_t = 2, value_name = "N", value_parser = at_least_one)]
    pub workers: usize,
    /// Pictures in a batch
    #[arg(long, alias = "batch-size", alias = "batch_size", default_value_t = 64, value_name = "N", value_parser = at_least_one)]
    pub batch: usize,
    /// Width and height in a batch
    #[arg(long, default_value_t = 224, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub size: u32,
    /// Evaluation's resize and centre crop, instead of the random part
    #[arg(long)]
    pub eval: bool,
    /// How much of a JPEG is decoded; evaluation always decodes all of it
    #[arg(long, value_enum, default_value_t = DecodeArgument::Full, conflicts_with = "eval")]
    pub decode: DecodeArgument,
    /// Pictures to time, going round where the folder has fewer [default: each once]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub images: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DecodeArgument {
    /// All of it
    Full,
    /// A half, a quarter or an eighth, where enough pixels are left
    Fast,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".to_owned()),
        Ok(count) => Ok(count),
    }
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
        let mut config = self.over(is_config.then_some(path))?;
        let sets_model = |set: &String| set.split('=').next().map(str::trim) == Some("model");
        if !is_config && !self.sets.iter().any(sets_model) {
            config.model = target.to_owned();
        }
        Ok(config)
    }

    /// The config in `file`, or the defaults, with these options laid over it.
    pub fn over(&self, file: Option<&Path>) -> Result<RunConfig> {
        let mut config = RunConfig::load(file, &self.sets)?;
        self.lay_over(&mut config);
        Ok(config)
    }

    fn lay_over(&self, config: &mut RunConfig) {
        let batch = &mut config.train;
        [
            batch.effective_batch,
            batch.batch_size,
            batch.gradient_accumulation,
        ] = lay_batch_numbers(
            [
                batch.effective_batch,
                batch.batch_size,
                batch.gradient_accumulation,
            ],
            [
                self.effective_batch,
                self.batch_size,
                self.gradient_accumulation,
            ],
        );
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        options: TrainOptions,
    }

    fn lay(line: &str) -> RunConfig {
        let words = ["train"].into_iter().chain(line.split_whitespace());
        let mut config = RunConfig::default();
        Typed::try_parse_from(words)
            .unwrap()
            .options
            .lay_over(&mut config);
        config
    }

    #[test]
    fn intervals_are_taken_as_people_write_them() {
        for (written, milliseconds) in [
            ("500ms", 500),
            ("2s", 2000),
            ("2", 2000),
            ("0.5", 500),
            (" 1.5 S", 1500),
        ] {
            let meant = super::interval(written);
            assert_eq!(meant, Ok(Duration::from_millis(milliseconds)), "{written}");
        }
        for refused in ["", "0", "99ms", "-1", "nan", "inf", "2h", "s", "1e9"] {
            let error = super::interval(refused).unwrap_err();
            assert!(error.contains("hint: --interval"), "{refused}: {error}");
        }
    }

    #[test]
    fn what_is_typed_goes_over_the_config() {
        let config =
            lay("--epochs 3 --lr 1e-4 --num_workers 2 --prefetch auto --out runs/1 --model small");
        assert_eq!((config.train.epochs, config.train.lr), (3, 1e-4));
        assert_eq!(config.num_workers, Count::Exactly(2));
        assert_eq!(config.prefetch, Count::Auto);
        assert_eq!(config.out, Some("runs/1".into()));
        assert_eq!(config.model, "small");
        assert_eq!(lay("--no_mixed_precision").precision, Precision::F32);
        assert_eq!(lay("--learning_rate 1").train.lr, 1.0);
        assert_eq!(lay(""), RunConfig::default());
    }

    #[test]
    fn devices_as_people_write_them() {
        for (text, expected) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!(wish(text), Ok(expected));
        }
        for wrong in ["", "gpu", "CPU ", "cuda:", "cuda:x", "cuda:-1", "cuda1"] {
            assert!(wish(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_count_that_is_none_is_refused() {
        let typed = Typed::try_parse_from(["train", "--num-workers", "many"]);
        let error = typed.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("expected auto, or a whole number"),
            "{error}"
        );
    }
}
