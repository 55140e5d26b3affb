//! What the processes of a run tell each other beside gradients: whether they mean the same run, what each has found, what rank 0 has
//! decided. Messages are JSON: they are small, and a process of another version is refused with words.
//!
//! ```text
//! before the plan     version, device, config and data of every process; the smallest budget counts
//! the plan            rank 0's choice, and which pictures it leaves out
//! before each step    who is asked to stop or to save, samples, broken pictures, how long the step before took
//! an evaluation       what each made of its part, gathered; rank 0's figures
//! ```

use std::path::{Path, PathBuf};

use holdall_data::loader::Share;
use holdall_plan::Request;
use holdall_processes::Group;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, SplitOfBatch};
use crate::error::TrainError;
use crate::resume::first_difference;
use crate::run_folder::RunFolder;

/// The part of every batch, and of every evaluation, that is this process's.
pub(crate) fn share_of(group: &Group) -> Share {
    Share {
        rank: group.rank(),
        count: group.size(),
    }
}

/// `rank 2 on node-b`, for people.
pub fn name_of(group: &Group, rank: usize) -> String {
    format!("rank {rank} on {}", group.host(rank))
}

/// What every process says, in rank order.
pub(crate) fn share<T: Serialize + DeserializeOwned>(
    group: &Group,
    own: &T,
) -> Result<Vec<T>, TrainError> {
    let all = group.share(&written(own))?;
    all.iter().map(|bytes| read(bytes)).collect()
}

/// What rank 0 says: `decide` runs there alone, and where it fails the others hear why.
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

/// Does what may fail on this process alone: then the others, who would wait for it, hear why.
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

/// What must be the same on all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub version: String,
    pub device: String,
    pub config: Value,
    pub data_digest: String,
    /// Of the checkpoint that the run goes on from.
    pub checkpoint: Option<String>,
}

impl Identity {
    /// The first thing in which another process differs: its name, what it has there, what was expected.
    fn difference(&self, other: &Identity) -> Option<(String, String, String)> {
        let plain = [
            ("version of holdall", &self.version, &other.version),
            ("device", &self.device, &other.device),
        ];
        for (name, expected, found) in plain {
            if expected != found {
                return Some((name.to_owned(), found.clone(), expected.clone()));
            }
        }
        if let Some((key, expected, found)) = first_difference(&self.config, &other.config) {
            return Some((key, found.to_string(), expected.to_string()));
        }
        if self.data_digest != other.data_digest {
            let name = "samples".to_owned();
            return Some((name, other.data_digest.clone(), self.data_digest.clone()));
        }
        if self.checkpoint != other.checkpoint {
            let shown = |one: &Option<String>| one.clone().unwrap_or("none".to_owned());
            let [expected, found] = [&self.checkpoint, &other.checkpoint].map(shown);
            return Some(("checkpoint".to_owned(), found, expected));
        }
        None
    }
}

/// Refuses processes that do not mean the same run, on every process in the same words. Returns the smallest budget of all.
pub(crate) fn agree_on_run(
    group: &Group,
    own: Identity,
    budget_bytes: Option<u64>,
) -> Result<Option<u64>, TrainError> {
    let all: Vec<(Identity, Option<u64>)> = share(group, &(own, budget_bytes))?;
    for (rank, (identity, _)) in all.iter().enumerate() {
        if let Some((name, found, expected)) = all[0].0.difference(identity) {
            let hint = match name.as_str() {
                "samples" => "all processes must read the same list and the same image processor",
                "checkpoint" => "all processes must see one run folder, on a shared file system",
                _ => "start all processes with the same binary, config and options",
            };
            return Err(TrainError::Config(format!(
                "{}: {name} is {found}, expected {expected} as on {}\nhint: {hint}",
                name_of(group, rank),
                name_of(group, 0)
            )));
        }
    }
    Ok(all.iter().filter_map(|(_, budget)| *budget).min())
}

/// Splits a step among processes: makes `request` that of one of them, which has room for the largest share, and returns the samples of
/// the whole step. Where batch size and accumulation are both given, each process has as many.
pub(crate) fn split_among(count: usize, request: &mut Request) -> Result<usize, TrainError> {
    if count == 1 {
        return Ok(request.samples_per_step()?);
    }
    let total = match (
        request.effective_batch,
        request.batch_size,
        request.gradient_accumulation,
    ) {
        (Some(total), ..) => total,
        (None, Some(_), Some(_)) => count * request.samples_per_step()?,
        (None, one, other) => {
            let least = one.or(other).unwrap_or(1);
            request.samples_per_step()?.max(count * least)
        }
    };
    if total < count {
        return Err(TrainError::Config(format!(
            "effective batch {total} is smaller than the number of processes {count}\n\
             hint: --effective-batch {count} or more, or fewer processes"
        )));
    }
    let share = total.div_ceil(count);
    if let Some(batch) = request.batch_size.filter(|&batch| batch > share) {
        return Err(TrainError::Config(format!(
            "batch size {batch} is larger than the share {share} of each of {count} processes in an effective batch of {total}\n\
             hint: --batch-size {share}, or --effective-batch {}",
            batch * count
        )));
    }
    request.effective_batch = Some(share);
    request.samples_per_step()?;
    Ok(total)
}

/// How each of `count` processes goes on with a step that was split among others: the same total; as much at a time, or as much as there
/// is to do.
pub(crate) fn split_again(split: &SplitOfBatch, count: usize) -> SplitOfBatch {
    if split.processes == count {
        return *split;
    }
    let share = split.effective_batch.div_ceil(count);
    let batch_size = split.batch_size.min(share);
    let gradient_accumulation = share.div_ceil(batch_size);
    SplitOfBatch {
        effective_batch: split.effective_batch,
        batch_size,
        gradient_accumulation,
        kept_micro_batches: split.kept_micro_batches.min(gradient_accumulation),
        processes: count,
    }
}

/// Lets the first process do something before the others do the same: what it writes, they find.
pub(crate) fn first_then_others<T>(
    group: &Group,
    mut work: impl FnMut() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    if group.rank() == 0 {
        let done = failing(group, work)?;
        group.broadcast(&mut Vec::new())?;
        return Ok(done);
    }
    group.broadcast(&mut Vec::new())?;
    failing(group, || work())
}

/// The folder of a run that goes on, which the first process holds, and its newest checkpoint, as every process reads it.
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

/// Where the first process has the run: as it was typed, and in full.
pub fn paths_of_first(
    group: &Group,
    out: &Path,
    full: &Option<PathBuf>,
) -> Result<(PathBuf, Option<PathBuf>), TrainError> {
    from_first(group, || Ok((out.to_owned(), full.clone())))
}

#[cfg(test)]
mod tests {
    use holdall_device::Arithmetic;

    use super::*;
    use crate::config::RunConfig;

    fn request(total: Option<usize>, each: [Option<usize>; 2]) -> Request {
        let request = RunConfig::default().request(None, Arithmetic::F32);
        Request {
            effective_batch: total,
            batch_size: each[0],
            gradient_accumulation: each[1],
            ..request
        }
    }

    #[test]
    fn a_step_is_split_into_shares_that_hold_it() {
        for (total, each, count, expected) in [
            (Some(128), [None, None], 1, (128, 128)),
            (Some(128), [None, None], 3, (128, 43)),
            (Some(128), [Some(8), None], 4, (128, 32)),
            (Some(9), [Some(2), Some(3)], 2, (9, 5)),
            // What each process has, times the processes.
            (None, [Some(8), Some(16)], 4, (512, 128)),
            (None, [Some(8), Some(16)], 1, (128, 128)),
            // The usual total, or more where each has more.
            (None, [None, None], 4, (128, 32)),
            (None, [Some(64), None], 4, (256, 64)),
        ] {
            let mut request = request(total, each);
            let found = split_among(count, &mut request).unwrap();
            let share = request.samples_per_step().unwrap();
            assert_eq!((found, share), expected, "{total:?} {each:?} {count}");
        }
    }

    #[test]
    fn a_step_that_its_processes_cannot_hold_is_refused() {
        let too_few = split_among(4, &mut request(Some(3), [None, None]));
        let error = too_few.unwrap_err().to_string();
        assert!(
            error.starts_with("effective batch 3 is smaller than the number of processes 4\nhint:"),
            "{error}"
        );
        assert!(split_among(2, &mut request(Some(128), [Some(8), Some(2)])).is_err());
        let too_large = split_among(3, &mut request(Some(8), [Some(4), None]));
        let error = too_large.unwrap_err().to_string();
        assert!(
            error.contains("the share 3 of each of 3 processes"),
            "{error}"
        );
        assert!(error.ends_with("--effective-batch 12"), "{error}");
    }

    #[test]
    fn other_numbers_of_processes_go_on_with_the_same_total() {
        let begun = SplitOfBatch {
            effective_batch: 100,
            batch_size: 8,
            gradient_accumulation: 7,
            kept_micro_batches: 5,
            processes: 2,
        };
        assert_eq!(split_again(&begun, 2), begun);
        for (count, expected) in [
            (1, (8, 13, 5)),
            (3, (8, 5, 5)),
            (4, (8, 4, 4)),
            (50, (2, 1, 1)),
        ] {
            let split = split_again(&begun, count);
            let found = (
                split.batch_size,
                split.gradient_accumulation,
                split.kept_micro_batches,
            );
            assert_eq!(found, expected, "{count}");
            assert_eq!((split.effective_batch, split.processes), (100, count));
            let holds = split.batch_size * split.gradient_accumulation;
            assert!(holds >= 100_usize.div_ceil(count));
        }
    }

    #[test]
    fn what_differs_first_is_named() {
        let first = Identity {
            version: "1.0".to_owned(),
            device: "cpu".to_owned(),
            config: serde_json::json!({"train": {"lr": 0.1, "epochs": 3}}),
            data_digest: "ab".to_owned(),
            checkpoint: Some("cd".to_owned()),
        };
        assert_eq!(first.difference(&first), None);
        let differing = |change: fn(&mut Identity)| {
            let mut other = first.clone();
            change(&mut other);
            first.difference(&other).unwrap().0
        };
        assert_eq!(
            differing(|one| one.version = "1.1".into()),
            "version of holdall"
        );
        assert_eq!(differing(|one| one.device = "cuda".into()), "device");
        let epochs = differing(|one| one.config["train"]["epochs"] = 4.into());
        assert_eq!(epochs, "train.epochs");
        assert_eq!(differing(|one| one.data_digest.clear()), "samples");
        assert_eq!(differing(|one| one.checkpoint = None), "checkpoint");
    }
}
