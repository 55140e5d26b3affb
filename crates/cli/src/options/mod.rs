//! Options that several commands share.

mod run_options;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use holdall_files::Existing;
use holdall_train::TrainError;
use holdall_train::config::budget::Memory;

pub use self::run_options::{PrecisionArgument, RunOptions, TaskArgument, is_yaml, set};

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

/// Options of `eval` and `predict`.
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

/// Files of a run or a model folder that a command reads, and that none of its outputs may replace: the model, the checkpoints, and
/// the records of the run. Predictions and pages that were written beside them are not among these.
pub fn files_of_model(named: &Path) -> Vec<PathBuf> {
    const RECORDS: [&str; 5] = ["yml", "json", "jsonl", "bin", "log"];
    let mut files = Vec::new();
    if named.join("config.json").is_file() {
        files_under(named, &mut files);
    }
    if named.join("config.yml").is_file() {
        for folder in ["model", "checkpoints"] {
            files_under(&named.join(folder), &mut files);
        }
        let entries = named.read_dir().into_iter().flatten().flatten();
        let is_record = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| RECORDS.contains(&ending))
        };
        files.extend(entries.map(|entry| entry.path()).filter(is_record));
    }
    files
}

fn files_under(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_under(&entry.path(), files),
            _ => files.push(entry.path()),
        }
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
