//! Finds the run to show: the one that was named, or the one that trains on this machine now.
//!
//! A run holds `RUN/.lock` open while it trains, wherever RUN is; on Linux, `/proc` reveals it. On other systems, and for processes of
//! other users, a run in the usual folders counts as training if its files were just written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use holdall_telemetry::memory_log;
use holdall_telemetry::run_files::{self, CONFIG_FILE, METRICS_FILE};

/// Files that grow during training.
const GROWING: [&str; 2] = [METRICS_FILE, memory_log::FILE_NAME];

/// File that a run holds open while it trains.
const LOCK_FILE: &str = ".lock";

/// A run whose files were written within this time counts as training.
const FRESH: Duration = Duration::from_secs(15);

/// A run that is training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Training {
    pub folder: PathBuf,
    /// Training process, if known.
    pub pid: Option<u32>,
}

/// The run at a path; for a folder of `holdall demo`, the run in it.
pub fn named(path: &Path) -> Result<PathBuf> {
    let is_run = |folder: &Path| folder.join(LOCK_FILE).is_file() || run_files::is_run(folder);
    let below = path.join("run");
    match path {
        path if is_run(path) => Ok(path.to_owned()),
        _ if is_run(&below) => Ok(below),
        path => {
            let found = match (path.is_dir(), path.exists()) {
                (true, _) => "none of its files",
                (false, true) => "a file",
                (false, false) => "nothing there",
            };
            Err(anyhow!(
                "{}: expected the folder of a run, found {found}\n\
                 hint: `holdall monitor` alone shows the run that trains here now",
                path.display()
            ))
        }
    }
}

/// The training run on this machine with the latest write.
pub fn on_this_machine() -> Option<Training> {
    let held = held_by_processes(Path::new("/proc"));
    let newest = held
        .into_iter()
        .max_by_key(|training| last_written(&training.folder));
    newest.or_else(|| freshest(&usual_folders(Path::new(".")), SystemTime::now()))
}

/// The training process of this folder; `None` if none trains there.
pub fn trainer_of(folder: &Path) -> Option<Training> {
    let whole = folder.canonicalize().ok()?;
    let held = held_by_processes(Path::new("/proc"));
    let held = held.into_iter().find(|training| training.folder == whole);
    held.or_else(|| freshest(&[whole], SystemTime::now()))
}

/// Time of the latest write to the run's files.
pub fn last_written(folder: &Path) -> Option<SystemTime> {
    let files = GROWING.iter().chain(&[CONFIG_FILE]);
    files
        .filter_map(|name| fs::metadata(folder.join(name)).ok()?.modified().ok())
        .max()
}

/// Runs whose `.lock` is held open by a process with this program's name.
fn held_by_processes(proc: &Path) -> Vec<Training> {
    let mut all = Vec::new();
    for process in fs::read_dir(proc).into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let called = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if !called.starts_with("holdall") {
            continue;
        }
        let open = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let targets = open.filter_map(|file| fs::read_link(file.path()).ok());
        let locks = targets.filter(|file| file.file_name().is_some_and(|name| name == LOCK_FILE));
        let folders = locks.filter_map(|file| Some(file.parent()?.to_owned()));
        // A path inside another container does not exist here.
        all.extend(
            folders
                .filter(|folder| folder.join(LOCK_FILE).is_file())
                .map(|folder| Training {
                    folder,
                    pid: Some(pid),
                }),
        );
    }
    all
}

/// Default folders of `train` and `demo` runs.
fn usual_folders(here: &Path) -> Vec<PathBuf> {
    let runs = fs::read_dir(here.join("runs"))
        .into_iter()
        .flatten()
        .flatten();
    let runs = runs.map(|entry| entry.path()).filter(|path| path.is_dir());
    runs.chain([here.join("holdall-demo").join("run"), here.to_owned()])
        .collect()
}

fn freshest(folders: &[PathBuf], now: SystemTime) -> Option<Training> {
    let written = |folder: &PathBuf| {
        let files = GROWING.iter();
        let last = files
            .filter_map(|name| fs::metadata(folder.join(name)).ok()?.modified().ok())
            .max()?;
        // A file from the future is fresh too: clocks of network disks differ.
        let is_fresh = now.duration_since(last).map_or(true, |age| age < FRESH);
        is_fresh.then_some(last)
    };
    let fresh = folders
        .iter()
        .filter_map(|folder| Some((written(folder)?, folder)));
    let newest = fresh.max_by_key(|(last, _)| *last);
    newest.map(|(_, folder)| Training {
        folder: folder.clone(),
        pid: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_in(folder: &Path, name: &str) -> PathBuf {
        let run = folder.join(name);
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("metrics.jsonl"), "").unwrap();
        fs::write(run.join(".lock"), "").unwrap();
        run
    }

    #[test]
    fn a_named_folder_is_a_run_or_has_the_demos_below_it() {
        let home = tempfile::tempdir().unwrap();
        let run = run_in(home.path(), "demo/run");
        assert_eq!(named(&run).unwrap(), run);
        assert_eq!(named(&home.path().join("demo")).unwrap(), run);
        for wrong in [
            home.path().to_owned(),
            home.path().join("none"),
            run.join(".lock"),
        ] {
            let error = named(&wrong).unwrap_err().to_string();
            assert!(error.contains("expected the folder of a run") && error.contains("\nhint: "));
        }
    }

    #[test]
    fn fresh_runs_under_the_usual_folders_are_found_and_old_ones_are_not() {
        let home = tempfile::tempdir().unwrap();
        let run = run_in(home.path(), "runs/cars");
        let folders = usual_folders(home.path());
        let now = SystemTime::now();
        assert_eq!(freshest(&folders, now).map(|found| found.folder), Some(run));
        assert_eq!(freshest(&folders, now + Duration::from_secs(60)), None);
        assert_eq!(freshest(&[], now), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_holds_a_lock_tells_its_run() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        let run = run_in(home.path(), "far/away");
        let process = |pid: &str, name: &str, open: &Path| {
            let folder = home.path().join("proc").join(pid);
            fs::create_dir_all(folder.join("fd")).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
            symlink(open, folder.join("fd/3")).unwrap();
        };
        process("12", "holdall", &run.join(".lock"));
        process("13", "holdall", &run.join("metrics.jsonl"));
        process("14", "apt", &run.join(".lock"));
        process("15", "holdall", Path::new("/not/seen/from/here/.lock"));
        assert_eq!(
            held_by_processes(&home.path().join("proc")),
            [Training {
                folder: run,
                pid: Some(12)
            }]
        );
        assert_eq!(held_by_processes(&home.path().join("none")), []);
    }
}
