//! The folder of a run: one owner at a time, and every file complete or absent.
//!
//! ```text
//! RUN/config.yml      the resolved config; `holdall train` on it repeats the run
//! RUN/plan.json       the chosen plan and the alternatives
//! RUN/plan-tensors.json, operations.json   the plan in readable form: layout of the tensors, times of the operations
//! RUN/metrics.jsonl   a line per step and evaluation
//! RUN/memory.jsonl    a line per memory sample, at least one a second
//! RUN/tensorboard/    the same numbers as event files, on request
//! RUN/samples.json    a few validation pictures with the best model's predictions
//! RUN/summary.json    results of the finished run
//! RUN/failure.json    report of the last failure, until the run finishes
//! RUN/skipped.csv     pictures that could not be read and invalid rows, if there are any
//! RUN/pictures.bin    sizes and times, or hashes, of the picture files at the start of the run
//! RUN/checkpoints/    last.safetensors, previous.safetensors, best-000123/
//! RUN/model/          the model, as `transformers` loads it
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use holdall_files::{
    Checksum, copy_whole, create_folders, remove_folder, repair_folder, write_whole_folder,
};
use holdall_models::folder::{CHECKSUMS_FILE, seal_folder, sealed_files, verify_folder};
use holdall_telemetry::run_files::FAILURE_FILE;

use crate::error::TrainError;

/// A run's folder, locked by this process.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked while open; the system releases the lock when the process ends in any way. `None` if another process of the run
    /// holds the lock, and this one only reads.
    _lock: Option<File>,
}

impl RunFolder {
    /// Checks that a new run may use this folder; writes nothing.
    pub fn check_free(path: &Path) -> Result<(), TrainError> {
        let hint = match contents(path)? {
            None => return Ok(()),
            Some(Contents::Run) => {
                "another run\nhint: --resume continues it; a new one needs another --out".to_owned()
            }
            Some(Contents::Other(found)) => format!("{found}\nhint: choose another --out"),
        };
        Err(TrainError::Config(format!(
            "{}: expected an empty folder for a new run, found {hint}",
            path.display()
        )))
    }

    /// Locks the folder of a new run.
    pub fn create(path: &Path) -> Result<RunFolder, TrainError> {
        RunFolder::check_free(path)?;
        RunFolder::lock(path).map_err(before_it_began)
    }

    /// Locks the folder of an existing run.
    pub fn open(path: &Path) -> Result<RunFolder, TrainError> {
        if !path.join("config.yml").is_file() {
            return Err(TrainError::Config(format!(
                "{}: no run to resume: it has no config.yml\n\
                 hint: --out names the folder of the run; without --resume a new run begins",
                path.display()
            )));
        }
        let folder = RunFolder::lock(path)?;
        let model = folder.model();
        repair_folder(&model).map_err(failed(&model, "put back"))?;
        remove_partial(path);
        remove_partial(&folder.checkpoints());
        Ok(folder)
    }

    /// The folder of a run that the first process has locked.
    pub fn of_first_process(path: &Path) -> Result<RunFolder, TrainError> {
        if !path.join("config.yml").is_file() {
            return Err(TrainError::Config(format!(
                "{}: expected the folder of the run, as the first process sees it, found no config.yml there\n\
                 hint: all processes must see one run folder, on a shared file system",
                path.display()
            )));
        }
        Ok(RunFolder {
            path: path.to_owned(),
            _lock: None,
        })
    }

    fn lock(path: &Path) -> Result<RunFolder, TrainError> {
        create_folders(path).map_err(failed(path, "created"))?;
        let file = path.join(".lock");
        let lock = File::create(&file).map_err(failed(&file, "created"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(TrainError::Config(format!(
                    "{}: another process is training here\nhint: wait for it, or choose another --out",
                    path.display()
                )));
            }
            // Some network file systems have no locks: the run continues without.
            Err(fs::TryLockError::Error(_)) => {}
        }
        let checkpoints = path.join("checkpoints");
        create_folders(&checkpoints).map_err(failed(&checkpoints, "created"))?;
        Ok(RunFolder {
            path: path.to_owned(),
            _lock: Some(lock),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The newest checkpoint.
    pub fn last(&self) -> PathBuf {
        self.checkpoints().join("last.safetensors")
    }

    /// The checkpoint before the newest.
    pub fn previous(&self) -> PathBuf {
        self.checkpoints().join("previous.safetensors")
    }

    pub fn model(&self) -> PathBuf {
        self.path.join("model")
    }

    /// Record of the picture files at the start of the run.
    pub fn pictures(&self) -> PathBuf {
        self.path.join("pictures.bin")
    }

    /// A line per picture that could not be read.
    pub fn skipped(&self) -> PathBuf {
        self.path.join("skipped.csv")
    }

    /// A line per step and evaluation.
    pub fn journal(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Writes a small file atomically.
    pub fn write(&self, name: &str, contents: &str) -> Result<(), TrainError> {
        write_whole(
            &self.path.join(name),
            format!("{}\n", contents.trim_end()).as_bytes(),
        )
    }

    /// Makes `model/` a copy of a best model, whose files are compared with their checksums. Returns the folder's checksum.
    pub fn publish(&self, best: &Path) -> Result<Checksum, TrainError> {
        let model = self.model();
        let names = match sealed_files(best)? {
            Some(mut names) => {
                verify_folder(best)?;
                names.push(CHECKSUMS_FILE.to_owned());
                names
            }
            // Written before checksums were stored.
            None => plain_files(best).map_err(failed(best, "listed"))?,
        };
        let copy = |folder: &Path| {
            for name in &names {
                let to = folder.join(name);
                let within = to.parent().unwrap_or(folder);
                fs::create_dir_all(within).map_err(failed(within, "created"))?;
                copy_whole(&best.join(name), &to).map_err(failed(&to, "written"))?;
            }
            if !names.iter().any(|name| name == CHECKSUMS_FILE) {
                seal_folder(folder)?;
            }
            Ok(verify_folder(folder)?)
        };
        write_whole_folder(&model, copy, |cause| failed(&model, "written")(cause))
    }
}

/// Files of a folder, without partial ones from a killed process.
fn plain_files(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && !name.ends_with(".partial") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes partial files of a killed process. Files that cannot be removed are overwritten later.
fn remove_partial(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|end| end == "partial")) {
        let _ = remove_folder(&path);
    }
}

/// Contents of a folder that a new run must not overwrite.
enum Contents {
    Run,
    Other(String),
}

fn contents(path: &Path) -> Result<Option<Contents>, TrainError> {
    if !path.exists() {
        return Ok(None);
    }
    if !path.is_dir() {
        return Ok(Some(Contents::Other("a file".to_owned())));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed(path, "listed"))? {
        let entry = entry.map_err(failed(path, "listed"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Remains of a run that was killed, or failed, before it began may be overwritten.
        let empty = || fs::read_dir(entry.path()).is_ok_and(|mut inside| inside.next().is_none());
        let left = name == ".lock"
            || name == FAILURE_FILE
            || name == "train.log"
            || name.ends_with(".partial")
            || (name == "checkpoints" && empty());
        if !left {
            names.push(name);
        }
    }
    names.sort();
    Ok(match names.as_slice() {
        [] => None,
        names if names.iter().any(|name| name == "config.yml") => Some(Contents::Run),
        [first, ..] => Some(Contents::Other(format!("`{first}`"))),
    })
}

/// Folder names for runs of one name: `runs/NAME`, `runs/NAME-2`, ...
fn folders_of(name: &str) -> impl Iterator<Item = PathBuf> {
    let runs = Path::new("runs");
    let numbered = (2..).map(move |number| runs.join(format!("{name}-{number}")));
    std::iter::once(runs.join(name)).chain(numbered)
}

/// The first of these folders that does not exist.
pub fn next_free(name: &str) -> PathBuf {
    let mut folders = folders_of(name);
    let free = folders.find(|path| !path.exists());
    free.expect("numbers do not end")
}

/// The last of these folders that exists; `runs/NAME` if none does.
pub fn last_of(name: &str) -> PathBuf {
    let there = folders_of(name).take_while(|path| path.exists());
    there.last().unwrap_or_else(|| Path::new("runs").join(name))
}

/// Writes a file atomically: readers see the old or the new contents.
pub fn write_whole(path: &Path, contents: &[u8]) -> Result<(), TrainError> {
    holdall_files::write_whole(path, contents).map_err(failed(path, "written"))
}

/// Hint for a run whose disk is full.
pub(crate) const FREE_SPACE: &str = "free some space, then go on with --resume";

/// Replaces the hint for a run that has no checkpoint yet.
pub(crate) fn before_it_began(error: TrainError) -> TrainError {
    match error {
        TrainError::File { found, hint } if hint == FREE_SPACE => TrainError::File {
            found,
            hint: "free some space, then begin again",
        },
        error => error,
    }
}

/// Error `PATH cannot be DONE: cause` with a hint.
pub(crate) fn failed(path: &Path, done: &'static str) -> impl FnOnce(std::io::Error) -> TrainError {
    let path = path.to_owned();
    move |cause| {
        let hint = match cause.kind() {
            std::io::ErrorKind::FileTooLarge if done == "read" => {
                "the file was probably overwritten with something else; restore it"
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::FileTooLarge => FREE_SPACE,
            std::io::ErrorKind::PermissionDenied => {
                "check who may write there, or choose another --out"
            }
            _ => "check the path and the disk",
        };
        TrainError::File {
            found: format!("{} cannot be {done}: {cause}", path.display()),
            hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_once_and_only_by_one() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run");
        assert!(
            RunFolder::open(&path)
                .unwrap_err()
                .to_string()
                .contains("no config.yml")
        );
        let folder = RunFolder::create(&path).unwrap();
        folder.write("config.yml", "seed: 1\n").unwrap();
        let error = RunFolder::open(&path).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(folder);
        RunFolder::open(&path).unwrap();
        let error = RunFolder::create(&path).unwrap_err().to_string();
        assert!(
            error.contains("another run") && error.contains("--resume"),
            "{error}"
        );
        let file = home.path().join("notes.txt");
        fs::write(&file, "").unwrap();
        assert!(
            RunFolder::create(&file)
                .unwrap_err()
                .to_string()
                .contains("a file")
        );
        let error = RunFolder::create(home.path()).unwrap_err().to_string();
        assert!(error.contains("`notes.txt`"), "{error}");
    }
}
