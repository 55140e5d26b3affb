//! The tree of commands, and the options that several of them share; all other options are defined with their command.

mod run_options;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use holdall_files::Existing;
use holdall_train::TrainError;
use holdall_train::config::budget::Memory;

pub use self::run_options::{PrecisionArgument, RunOptions, TaskArgument, set};
use crate::commands::analyze::AnalyzeArguments;
use crate::commands::bench_captions::BenchCaptionsArguments;
use crate::commands::bench_exchange::BenchExchangeArguments;
use crate::commands::bench_loader::BenchLoaderArguments;
use crate::commands::bench_retrieval::BenchRetrievalArguments;
use crate::commands::bench_step::{
    BenchClassifyArguments, BenchClipArguments, BenchSegmentArguments, BenchVideoTextArguments,
};
use crate::commands::caption_scores::CaptionScoresArguments;
use crate::commands::completions::CompletionsArguments;
use crate::commands::config_translate::ConfigTranslateArguments;
use crate::commands::data_check::DataCheckArguments;
use crate::commands::data_clean::DataCleanArguments;
use crate::commands::data_pack::DataPackArguments;
use crate::commands::data_sample::DataSampleArguments;
use crate::commands::demo::DemoArguments;
use crate::commands::doctor::DoctorArguments;
use crate::commands::eval::EvalArguments;
use crate::commands::export::ExportArguments;
use crate::commands::model_get::ModelGetArguments;
use crate::commands::monitor::MonitorArguments;
use crate::commands::plan::PlanArguments;
use crate::commands::predict::PredictArguments;
use crate::commands::report::ReportArguments;
use crate::commands::retrieval::RetrievalArguments;
use crate::commands::train::TrainArguments;
use crate::commands::verify::VerifyArguments;

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
    /// Trains on pictures (a CSV, or a folder per class) inside a memory budget
    Train(TrainArguments),
    /// What fits, what it costs, what is chosen and why
    Plan(PlanArguments),
    /// Is the split gradient the full-batch gradient? A certificate, parameter by parameter
    Verify(VerifyArguments),
    /// A trained model on data: retrieval both ways, labels, confusion, masks
    Eval(EvalArguments),
    /// Labels, features and masks of pictures, by a trained model
    Predict(PredictArguments),
    /// A trained model as ONNX files, or as a model folder in half precision or with an adapter merged
    Export(ExportArguments),
    /// Exact ranks of features from any framework, at any scale, inside a memory limit
    Retrieval(RetrievalArguments),
    /// BLEU, ROUGE-L and CIDEr-D of captions from any framework, as pycocoevalcap, NLTK and rouge_score compute them
    CaptionScores(CaptionScoresArguments),
    /// A run, or several side by side, as one HTML file: curves, memory, predictions
    Report(ReportArguments),
    /// Searches for bad pictures and rows, cleans a CSV, packs shards, draws data to try things on
    Data(DataArguments),
    /// Translates configs of PyTorch projects
    Config(ConfigArguments),
    /// Brings pretrained models from the Hugging Face hub
    Model(ModelArguments),
    /// Verdicts on a log of GPU memory: leak, spike, fragmentation, starvation, idle or underused GPU
    Analyze(AnalyzeArguments),
    /// GPUs, memory and who uses it, live, beside the loss and speed of a run
    Monitor(MonitorArguments),
    /// What this machine has for training, what is missing, and how to install it
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

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall data check photos.csv\n  holdall data clean photos.csv\n  \
                  holdall data pack photos.csv --size 256 --out shards\n  \
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
    /// Writes pictures into WebDataset shards, resized once
    Pack(DataPackArguments),
    /// Draws pictures with captions and labels, the same for the same seed
    Sample(DataSampleArguments),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  holdall config translate multitask_config.yaml --out reports.yml"
)]
pub struct ConfigArguments {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Writes a config of a PyTorch project as one of Holdall, and says what differs in effect
    Translate(ConfigTranslateArguments),
}

#[derive(Args)]
#[command(after_help = "Example:\n  holdall model get openai/clip-vit-base-patch32")]
pub struct ModelArguments {
    #[command(subcommand)]
    pub command: ModelCommand,
}

#[derive(Subcommand)]
pub enum ModelCommand {
    /// Downloads a model into the local Hugging Face cache, where `--model NAME` finds it
    Get(ModelGetArguments),
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
    /// One training step of an image classifier over random data, exact whatever the split
    Classify(BenchClassifyArguments),
    /// One training step of a U-Net over random data, batch Dice exact whatever the split
    Segment(BenchSegmentArguments),
    /// One training step over random clips, texts and captions, exact whatever the split
    VideoText(BenchVideoTextArguments),
    /// Pictures of a folder into batches, beside decoding alone
    Loader(BenchLoaderArguments),
    /// Captions of random clips, token by token
    Captions(BenchCaptionsArguments),
    /// Exact ranks of random features
    Retrieval(BenchRetrievalArguments),
    /// Sums and gathers between several processes
    Exchange(BenchExchangeArguments),
}

/// Where to compute.
#[derive(Args, Clone)]
pub struct ComputeOptions {
    /// Where to run: auto (a GPU where there is one), cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, default_value = "auto", value_name = "DEVICE", value_parser = device_argument)]
    pub device: DeviceArgument,
    /// Threads [default: one per core]
    #[arg(long, aliases = ["num_threads", "threads"], value_name = "N", value_parser = num_threads)]
    pub num_threads: Option<usize>,
}

/// Largest number of processes that `--processes` starts.
const MOST_LOCAL_PROCESSES: usize = 256;

/// How many processes work together.
#[derive(Args, Clone, Default)]
pub struct ProcessOptions {
    /// Processes on this machine that work together, each on its own GPU or its part of the cores; for several machines start them with
    /// mpirun, srun or torchrun instead
    #[arg(long, value_name = "N", value_parser = num_processes)]
    pub processes: Option<usize>,
}

/// What `eval` and `predict` share.
#[derive(Args, Clone)]
pub struct InferenceOptions {
    /// Pictures at a time
    #[arg(
        long,
        aliases = ["batch_size", "eval-batch-size", "eval_batch_size"],
        value_name = "N",
        value_parser = small_count
    )]
    pub batch_size: Option<usize>,
    /// Memory budget of the process: 8GiB, 80%, auto
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub memory: Memory,
    #[command(flatten)]
    pub compute: ComputeOptions,
}

/// Heading in the help.
pub const SEGMENTATION: &str = "Segmentation";

/// How a segmentation model looks at pictures.
#[derive(Args, Clone)]
pub struct TileOptions {
    /// Overlapping tiles of this side, instead of whole pictures
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one, help_heading = SEGMENTATION)]
    pub tiles: Option<usize>,
    /// The mean over a picture and its mirror images
    #[arg(long, help_heading = SEGMENTATION)]
    pub mirror: bool,
}

/// How results are printed.
#[derive(Args, Clone)]
pub struct OutputOptions {
    /// One JSON object on stdout, nothing else there
    #[arg(long)]
    pub json: bool,
}

/// Whether output files may replace what is there. Every command that takes the name of a file to write has this option; files with
/// names of Holdall's own, in a run's folder or a cache, are replaced as they have to be.
#[derive(Args, Clone, Copy, Default)]
pub struct OverwriteOption {
    /// Replaces output files that exist; without it they are refused before any work is done
    #[arg(long)]
    pub overwrite: bool,
}

impl OverwriteOption {
    pub fn existing(self) -> Existing {
        if self.overwrite {
            Existing::Replace
        } else {
            Existing::Refuse
        }
    }

    /// Refuses existing files, naming their options. Regardless of `--overwrite`, no two options may name one file, and none may name a
    /// file of `inputs`, which the command reads.
    pub fn check_files<'a>(
        self,
        outputs: impl IntoIterator<Item = (&'a str, &'a Option<PathBuf>)>,
        inputs: &[PathBuf],
    ) -> Result<(), TrainError> {
        let inputs: Vec<PathBuf> = inputs.iter().map(|path| resolved(path)).collect();
        let mut taken: Vec<(&str, PathBuf)> = Vec::new();
        for (option, path) in outputs {
            let Some(path) = path else {
                continue;
            };
            let place = resolved(path);
            if let Some((other, _)) = taken.iter().find(|(_, taken)| *taken == place) {
                return Err(TrainError::Config(format!(
                    "{option} {}: expected a file of its own, found that of {other}\nhint: name another file for one of them",
                    path.display()
                )));
            }
            if inputs.contains(&place) {
                return Err(output_is_input(option, path));
            }
            let checked = self.existing().check_file(path);
            checked.map_err(|occupied| TrainError::Config(format!("{option} {occupied}")))?;
            taken.push((option, place));
        }
        Ok(())
    }
}

/// The error for an output file that is also an input of the command.
pub fn output_is_input(option: &str, path: &Path) -> TrainError {
    TrainError::Config(format!(
        "{option} {}: expected a new file, found one that this command reads\nhint: choose another name",
        path.display()
    ))
}

/// Absolute path without links and dots, whether or not the file exists.
pub fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.canonicalize().unwrap_or_else(|_| {
        let folder = absolute
            .parent()
            .and_then(|folder| folder.canonicalize().ok());
        match (folder, absolute.file_name()) {
            (Some(folder), Some(name)) => folder.join(name),
            _ => absolute.clone(),
        }
    })
}

/// Value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceArgument {
    /// A GPU if there is one, else the CPU.
    Auto,
    Cpu,
    /// A GPU: the first, or the one with this process's local rank.
    Cuda,
    /// The GPU with this index.
    Card(usize),
}

fn device_argument(text: &str) -> Result<DeviceArgument, String> {
    let number = |text: &str| text.strip_prefix("cuda:")?.parse().ok();
    match text {
        "auto" => Ok(DeviceArgument::Auto),
        "cpu" => Ok(DeviceArgument::Cpu),
        "cuda" => Ok(DeviceArgument::Cuda),
        _ => number(text).map(DeviceArgument::Card).ok_or_else(|| {
            "expected auto, cpu, cuda or cuda:N\nhint: --device cuda:1 is the second GPU".to_owned()
        }),
    }
}

fn num_processes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=MOST_LOCAL_PROCESSES) => Ok(number),
        _ => Err(format!(
            "expected a whole number from 1 to {MOST_LOCAL_PROCESSES}\nhint: one for every GPU; mpirun, srun and torchrun start them on several machines"
        )),
    }
}

pub fn seed(text: &str) -> Result<u64, String> {
    let expected = "expected a whole number of at least 0\nhint: --seed 7";
    text.parse().map_err(|_| expected.to_owned())
}

/// Parses a count of objects held in memory at once.
pub fn small_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=65_536) => Ok(number),
        _ => Err("expected a whole number from 1 to 65536".to_owned()),
    }
}

pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".to_owned()),
        Ok(count) => Ok(count),
    }
}

fn num_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("expected a whole number from 1 to 1024\nhint: without --num-threads, there is one per core".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_files_of_their_own() {
        let home = tempfile::tempdir().unwrap();
        let file = |name: &str| Some(home.path().join(name));
        let overwrite = OverwriteOption { overwrite: true };
        let check = |first, second, inputs: &[PathBuf]| {
            let outputs = [("--csv", &file(first)), ("--ranks", &file(second))];
            let checked = overwrite.check_files(outputs, inputs);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check("a.csv", "b.csv", &[]), Ok(()));
        let error = check("a.csv", "./a.csv", &[]).unwrap_err();
        assert!(error.contains("found that of --csv"), "{error}");
        std::fs::write(home.path().join("in.csv"), "image\n").unwrap();
        let inputs = [home.path().join("../").join(home.path()).join("in.csv")];
        assert_eq!(check("a.csv", "b.csv", &inputs), Ok(()));
        let error = check("a.csv", "in.csv", &inputs).unwrap_err();
        assert!(error.contains("one that this command reads"), "{error}");
    }

    #[test]
    fn devices_as_people_write_them() {
        for (text, expected) in [
            ("auto", DeviceArgument::Auto),
            ("cpu", DeviceArgument::Cpu),
            ("cuda", DeviceArgument::Cuda),
            ("cuda:3", DeviceArgument::Card(3)),
        ] {
            assert_eq!(device_argument(text), Ok(expected));
        }
        for wrong in ["", "gpu", "CPU ", "cuda:", "cuda:x", "cuda:-1", "cuda1"] {
            assert!(device_argument(wrong).is_err(), "{wrong}");
        }
    }
}
