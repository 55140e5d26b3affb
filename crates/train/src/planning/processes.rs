//! Messages that the processes of a run exchange beside gradients: checks that they belong to the same run, results of each, and decisions
//! of rank 0. Messages are JSON: they are small, and a process of another version is refused with a readable error.
//!
//! ```text
//! first               command and config of every process
//! before the plan     version, device, config and data of every process; the smallest budget counts
//! the plan            rank 0's choice, and the pictures that it skips
//! before each step    requests to stop or to save, samples, unreadable pictures, time of the previous step
//! an evaluation       outputs of every process, gathered; rank 0's scores
//! ```

use std::path::{Path, PathBuf};

use holdall_data::loader::{Share, Skipped};
use holdall_data::samples::Samples;
use holdall_processes::Group;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Subset;
use crate::config::first_difference;
use crate::error::TrainError;
use crate::run_folder::checkpoint::Checkpoint;
use crate::run_folder::folder::RunFolder;
use crate::run_folder::skipped::SkippedPicture;

/// This process's share of every batch and of every evaluation.
pub(crate) fn share_of(group: &Group) -> Share {
    Share {
        rank: group.rank(),
        count: group.size(),
    }
}

/// Name of a process in messages: `rank 2 on node-b`.
pub fn name_of(group: &Group, rank: usize) -> String {
    format!("rank {rank} on {}", group.host(rank))
}

/// Exchanges a value; returns the values of all processes in rank order.
pub(crate) fn share<T: Serialize + DeserializeOwned>(
    group: &Group,
    own: &T,
) -> Result<Vec<T>, TrainError> {
    let all = group.share(&written(own))?;
    all.iter().map(|bytes| read(bytes)).collect()
}

/// Returns rank 0's value: `decide` runs there only, and its error reaches the other processes.
pub(crate) fn from_first<T: Serialize + DeserializeOwned>(
    group: &Group,
    decide: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    if group.size() == 1 {
        return decide();
    }
    if group.rank() > 0 {
        let mut bytes = Vec::new();
        group.broadcast(&mut bytes)?;
        return read(&bytes);
    }
    let decided = failing(group, decide)?;
    group.broadcast(&mut written(&decided))?;
    Ok(decided)
}

/// Returns the list that the first process made; the others receive it, so that a shared file system is listed once for any
/// number of processes.
pub(crate) fn listed_by_first<T: Serialize + DeserializeOwned>(
    group: &Group,
    list: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    if group.size() == 1 {
        return list();
    }
    if group.rank() == 0 {
        let listed = failing(group, list)?;
        // A path that is not valid text cannot be sent: an empty message makes every process list for itself.
        group.gather_bytes(&serde_json::to_vec(&listed).unwrap_or_default())?;
        return Ok(listed);
    }
    let bytes = group.gather_bytes(&[])?.swap_remove(0);
    if bytes.is_empty() {
        failing(group, list)
    } else {
        read(&bytes)
    }
}

/// Runs work that may fail on this process only; an error is sent to the other processes, which would wait otherwise.
pub fn failing<T>(
    group: &Group,
    work: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let done = work();
    if let Err(error) = &done {
        group.fail(&error.to_string());
    }
    done
}

fn written<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data")
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, TrainError> {
    serde_json::from_slice(bytes).map_err(|cause| {
        TrainError::Run(format!(
            "a message between processes cannot be read: {cause}\nhint: this is a bug; please report it"
        ))
    })
}

/// Refuses processes that were started for different work, with the same message on every process. Called before any other
/// exchange, because the later messages depend on the request. `own` is the command with everything that decides its work.
pub fn agree_on_request(group: &Group, own: &Value) -> Result<(), TrainError> {
    if group.size() == 1 {
        return Ok(());
    }
    let all: Vec<Value> = share(group, own)?;
    for (rank, theirs) in all.iter().enumerate() {
        if let Some((key, expected, found)) = first_difference(&all[0], theirs) {
            return Err(TrainError::Config(format!(
                "{}: {key} is {found}, expected {expected} as on {}\n\
                 hint: start all processes with the same command, config, data and options",
                name_of(group, rank),
                name_of(group, 0)
            )));
        }
    }
    Ok(())
}

/// Samples that any process failed to read, in the order of samples.
pub fn skipped_by_all(
    group: &Group,
    part: Subset,
    samples: &Samples,
    own: &[Skipped],
) -> Result<Vec<SkippedPicture>, TrainError> {
    let own = own.iter();
    let own: Vec<_> = own
        .map(|one| SkippedPicture::new(part, samples, one))
        .collect();
    match group.size() {
        1 => Ok(own),
        _ => Ok(share(group, &own)?.concat()),
    }
}

/// Runs the work on the first process, then on the others, which find the files that the first has written.
pub(crate) fn first_then_others<T>(
    group: &Group,
    work: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    if group.rank() == 0 {
        let done = failing(group, work)?;
        group.broadcast(&mut Vec::new())?;
        return Ok(done);
    }
    group.broadcast(&mut Vec::new())?;
    failing(group, work)
}

/// Opens the folder of a resumed run, in the first process only, and its newest checkpoint in every process.
pub fn open_run(
    group: &Group,
    out: &Path,
) -> Result<(Option<RunFolder>, Option<Checkpoint>), TrainError> {
    let opened = first_then_others(group, || {
        let folder = match group.rank() {
            0 => RunFolder::open(out)?,
            _ => RunFolder::of_first_process(out)?,
        };
        let checkpoint = Checkpoint::newest(&folder)?;
        Ok((folder, checkpoint))
    });
    let (folder, checkpoint) = opened?;
    Ok((Some(folder).filter(|_| group.rank() == 0), checkpoint))
}

/// Paths of the run in the first process: as typed, and absolute.
pub fn paths_of_first(
    group: &Group,
    out: &Path,
    full: &Option<PathBuf>,
) -> Result<(PathBuf, Option<PathBuf>), TrainError> {
    from_first(group, || Ok((out.to_owned(), full.clone())))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use holdall_data::config::DataConfig;
    use holdall_data::samples::{self, Captions};
    use holdall_data::segmentation::SegmentationSet;
    use holdall_processes::testing::loopback;
    use holdall_sample_data::cars::{self, CarsConfig};
    use holdall_sample_data::vessels::{self, VesselsConfig};

    use super::*;

    /// The lists of three processes; asserts that only the first has listed the files.
    fn listed_by_three<T: Serialize + DeserializeOwned + Send>(
        list: impl Fn() -> Result<T, TrainError> + Sync,
    ) -> Vec<Result<T, TrainError>> {
        let count = AtomicUsize::new(0);
        let counted = || {
            count.fetch_add(1, Ordering::Relaxed);
            list()
        };
        let all = std::thread::scope(|scope| {
            let groups = loopback(3).into_iter();
            let threads: Vec<_> = groups
                .map(|group| scope.spawn(move || listed_by_first(&group, counted)))
                .collect();
            let each = threads.into_iter();
            each.map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(count.into_inner(), 1);
        all
    }

    #[test]
    fn processes_of_different_commands_or_data_are_refused_before_anything_else() {
        let of = |command: &str, train: &str| serde_json::json!({"command": command, "config": {"data": {"train": train}}});
        for (theirs, difference) in [
            (
                of("eval", "a.csv"),
                "command is \"eval\", expected \"train\"",
            ),
            (
                of("train", "b.csv"),
                "config.data.train is \"b.csv\", expected \"a.csv\"",
            ),
        ] {
            let requests = [of("train", "a.csv"), theirs];
            let errors: Vec<String> = std::thread::scope(|scope| {
                let groups = loopback(2).into_iter().zip(requests);
                let threads: Vec<_> = groups
                    .map(|(group, own)| scope.spawn(move || agree_on_request(&group, &own)))
                    .collect();
                let each = threads.into_iter();
                each.map(|thread| thread.join().unwrap().unwrap_err().to_string())
                    .collect()
            });
            assert_eq!(errors[0], errors[1]);
            let expected = format!("rank 1 on loopback: {difference} as on rank 0 on loopback");
            assert!(errors[0].starts_with(&expected), "{}", errors[0]);
        }
    }

    #[test]
    fn one_process_lists_and_all_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = |name: &str| DataConfig {
            train: Some(folder.path().join(name)),
            ..DataConfig::default()
        };
        let cars = CarsConfig {
            count: 22,
            ..CarsConfig::default()
        };
        cars::write(&folder.path().join("cars"), &cars, |_| true).unwrap();
        let mut of_cars = config("cars");
        of_cars.label = Some("make".into());
        let read = || Ok(samples::read(&of_cars, Captions::Required, 7)?);
        let expected = format!("{:?}", read().unwrap());
        for found in listed_by_three(read) {
            assert_eq!(format!("{:?}", found.unwrap()), expected);
        }

        let vessels = VesselsConfig {
            count: 8,
            size: 64,
            seed: 0,
        };
        vessels::write(&folder.path().join("vessels"), &vessels, |_| true).unwrap();
        let of_vessels = config("vessels");
        let read = || Ok(SegmentationSet::open(&of_vessels, 7)?);
        let expected = format!("{:?}", read().unwrap());
        for found in listed_by_three(read) {
            assert_eq!(format!("{:?}", found.unwrap()), expected);
        }

        let of_nothing = config("nothing");
        for found in listed_by_three(|| Ok(samples::read(&of_nothing, Captions::None, 7)?)) {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("found nothing"), "{error}");
        }
    }
}
