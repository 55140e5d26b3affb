//! Arguments of `holdall retrieval`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdall_train::config::budget::Memory;

use crate::options::{ComputeOptions, OutputOptions, OverwriteOption, small_count};

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
                  Positives: --pairs has lines `query,gallery`, counted from 0, several per item if there are; --captions\n\
                  has the caption of each query, and equal ones are one gallery item; without either, row i belongs to row i.\n\
                  Of several positives the best counts, and the others are not counted as distractors; --positives recall counts each.\n\
                  Ranks are those of exact arithmetic: they depend on the features alone, not on tiles, threads or device.\n\
                  Exit code 0: done; 130: stopped, nothing was written; 3: does not fit --memory.")]
pub struct RetrievalArguments {
    /// Features of the queries: FILE.npy, FILE.safetensors or FILE.safetensors:TENSOR; several are joined in this order
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub queries: Vec<PathBuf>,
    /// Features of the gallery that is searched, likewise
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub gallery: Vec<PathBuf>,
    /// Which query belongs to which gallery item: FILE.csv with lines query,gallery, or FILE.npy of N x 2 whole numbers
    #[arg(long, value_name = "FILE", conflicts_with = "captions")]
    pub pairs: Option<PathBuf>,
    /// The caption of each query: FILE.csv, FILE.csv:COLUMN, or a text with one per line. The gallery has a row per caption, or
    /// per unique text in order of first appearance
    #[arg(long, value_name = "FILE")]
    pub captions: Option<PathBuf>,
    /// Which R@k to print
    #[arg(long, value_name = "K,K", value_delimiter = ',', default_value = "1,5,10", value_parser = clap::value_parser!(u64).range(1..))]
    pub at: Vec<u64>,
    /// How items with the same score as a positive count in its rank
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = TiesArgument::Mean)]
    pub ties: TiesArgument,
    /// What counts where an item has several positives
    #[arg(long, value_enum, value_name = "RULE", default_value_t = PositivesArgument::Best)]
    pub positives: PositivesArgument,
    /// What to do about items that have no positive
    #[arg(long, value_enum, value_name = "RULE", default_value_t = UnpairedArgument::Error)]
    pub unpaired: UnpairedArgument,
    /// Memory limit of the process, features included: 256MiB, 8GB, 80% [default: as much as is useful]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Memory>,
    #[command(flatten)]
    pub compute: ComputeOptions,
    /// Writes the rank of every item, both ways, to FILE.csv
    #[arg(long, value_name = "FILE")]
    pub ranks: Option<PathBuf>,
    /// Writes each query's nearest gallery items to FILE.npy (their numbers) or FILE.csv (with scores)
    #[arg(long, alias = "neighbors", value_name = "FILE")]
    pub neighbours: Option<PathBuf>,
    /// Nearest gallery items of each query [default: 10]
    #[arg(long, value_name = "K", requires = "neighbours", value_parser = small_count)]
    pub top: Option<usize>,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TiesArgument {
    /// They rank after it
    Optimistic,
    /// They rank before it
    Pessimistic,
    /// Half of them rank before it
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PositivesArgument {
    /// The best of them; the others are not counted as distractors
    Best,
    /// Each by itself: R@k is the share of an item's positives among the first k
    Recall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnpairedArgument {
    /// Stop with an error
    Error,
    /// They have no rank, and are still distractors
    Ignore,
}
