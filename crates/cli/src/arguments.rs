//! The tree of commands. Options that several share are in `options`, all others with their command.

use clap::{Args, Parser, Subcommand};

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
    /// Verdicts on a log of GPU memory: leak, spike, fragmentation, waiting for data, underused GPU
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
