//! How several processes agree on one plan: they check that they belong to the same run, split a step among themselves, and
//! take over the choice of rank 0.

use holdall_data::samples::Samples;
use holdall_device::{Device, DeviceError};
use holdall_files::{FNV_START, fnv1a};
use holdall_plan::{Choice, Plan, Request};
use holdall_processes::Group;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::RunConfig;
use crate::config::first_difference;
use crate::engine::task::Task;
use crate::error::TrainError;
use crate::planning::digest::data_digest;
use crate::planning::plan_race::Choosing;
use crate::planning::prepare::Prepared;
use crate::planning::processes::{self, name_of, share};
use crate::planning::setup::Setup;
use crate::run_folder::checkpoint::{Checkpoint, SplitOfBatch};

/// Properties that must be equal on all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Identity {
    version: String,
    device: String,
    config: Value,
    data_digest: String,
    /// Samples with the sizes of their files: the list comes from the first process, the files may differ.
    pictures: Vec<(String, Option<u64>)>,
    /// Checksum of the checkpoint to resume from.
    checkpoint: Option<String>,
}

impl Identity {
    /// The first difference of another process: its name, the value found, the value expected.
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
        let pictures = self.pictures.iter().zip(&other.pictures);
        for ((name, expected), (_, found)) in pictures {
            if expected != found {
                let shown = |bytes: &Option<u64>| match bytes {
                    Some(bytes) => format!("{bytes} bytes"),
                    None => "no file".to_owned(),
                };
                return Some((name.clone(), shown(found), shown(expected)));
            }
        }
        if self.checkpoint != other.checkpoint {
            let shown = |one: &Option<String>| one.clone().unwrap_or("none".to_owned());
            let [expected, found] = [&self.checkpoint, &other.checkpoint].map(shown);
            return Some(("checkpoint".to_owned(), found, expected));
        }
        None
    }
}

/// Most samples of a list whose files are compared between processes: all of a small set, evenly spread ones of a large set.
const MAX_COMPARED: usize = 1024;

fn some_pictures(samples: &Samples) -> Vec<(String, Option<u64>)> {
    let stride = samples.len().div_ceil(MAX_COMPARED).max(1);
    let chosen = (0..samples.len()).step_by(stride);
    chosen
        .map(|sample| (samples.image(sample).to_owned(), samples.file_bytes(sample)))
        .collect()
}

/// Refuses processes that do not belong to the same run, with the same message on every process. Returns the smallest budget.
fn agree_on_run(
    group: &Group,
    own: Identity,
    budget_bytes: Option<u64>,
) -> Result<Option<u64>, TrainError> {
    let all: Vec<(Identity, Option<u64>)> = share(group, &(own, budget_bytes))?;
    for (rank, (identity, _)) in all.iter().enumerate() {
        if let Some((name, found, expected)) = all[0].0.difference(identity) {
            let is_picture = |(picture, _): &(String, Option<u64>)| *picture == name;
            let hint = match name.as_str() {
                _ if identity.pictures.iter().any(is_picture) => {
                    "all machines must have the same pictures at the same place"
                }
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

/// Checks that all processes belong to the same run; returns the smallest budget.
pub(crate) fn agree(
    config: &RunConfig,
    prepared: &Prepared,
    device: &Device,
    checkpoint: Option<&Checkpoint>,
) -> Result<Option<u64>, TrainError> {
    let (group, own_budget) = (device.group(), prepared.setup.budget_bytes);
    if group.size() == 1 {
        return Ok(own_budget);
    }
    if config.data.mixing.is_on() {
        return Err(TrainError::Config(format!(
            "data.mixing: expected none with {} processes: a picture's partner may be another process's\n\
             hint: leave it out, or train with one process",
            group.size()
        )));
    }
    let config = serde_json::to_value(config).expect("a config is plain data");
    let own = Identity {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.kind().to_owned(),
        config,
        data_digest: format!("{:016x}", data_digest(prepared)),
        pictures: prepared
            .subsets()
            .flat_map(|(_, samples)| some_pictures(samples))
            .collect(),
        checkpoint: checkpoint.and_then(Checkpoint::checksum),
    };
    agree_on_run(group, own, own_budget)
}

/// Refuses processes whose model has other weights, with the same message on every process: a folder, or a model of the hub, may be
/// another one on another machine.
pub fn agree_on_weights(
    group: &Group,
    model: &str,
    checksum: impl FnOnce() -> Result<String, DeviceError>,
) -> Result<(), TrainError> {
    if group.size() == 1 {
        return Ok(());
    }
    let own = processes::failing(group, || Ok(checksum()?))?;
    let all: Vec<String> = share(group, &own)?;
    match all.iter().position(|one| *one != all[0]) {
        None => Ok(()),
        Some(rank) => Err(TrainError::Config(format!(
            "{}: {model} has other weights than on {}\n\
             hint: all machines must have the same model: copy its folder, or download it again with `holdall model get`",
            name_of(group, rank),
            name_of(group, 0)
        ))),
    }
}

/// Refuses processes that evaluate different samples, with the same message on every process.
pub fn agree_on_samples(
    group: &Group,
    task: &dyn Task,
    samples: &Samples,
) -> Result<(), TrainError> {
    if group.size() == 1 {
        return Ok(());
    }
    let mut hash = FNV_START;
    task.add_to_digest(samples, &mut |bytes| hash = fnv1a(hash, bytes));
    let own = Identity {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: String::new(),
        config: Value::Null,
        data_digest: format!("{hash:016x}"),
        pictures: some_pictures(samples),
        checkpoint: None,
    };
    agree_on_run(group, own, None).map(drop)
}

/// Splits a step among processes: changes `request` to that of one process, with room for the largest share, and returns the
/// samples of the whole step. If batch size and accumulation are both given, they apply to each process.
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

/// Splits the step of a checkpoint among another number of processes: the same effective batch, and the same batch size
/// unless a share is smaller.
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

/// The first process's plan, as sent to the others.
#[derive(Serialize, Deserialize)]
pub(crate) struct PlanOfFirst {
    pub choice: Choice,
    /// Pictures that do not fit: index of the list, and sample.
    pub left_out: Vec<(usize, u32)>,
}

/// Plans on the first process, then takes over its choice on the others. `plan` returns the plan and the pictures that do not
/// fit.
pub(crate) fn plan_as_first(
    group: &Group,
    plan: impl FnOnce(Option<PlanOfFirst>) -> Result<(Plan, Vec<(usize, u32)>), TrainError>,
) -> Result<(Plan, Vec<(usize, u32)>), TrainError> {
    if group.rank() > 0 {
        let first: PlanOfFirst = processes::from_first(group, || unreachable!("not the first"))?;
        let left_out = first.left_out.clone();
        let (plan, _) = processes::failing(group, || plan(Some(first)))?;
        return Ok((plan, left_out));
    }
    let mut planned = None;
    processes::from_first(group, || {
        let (plan, left_out) = plan(None)?;
        let first = PlanOfFirst {
            choice: plan.chosen.choice,
            left_out: left_out.clone(),
        };
        planned = Some((plan, left_out));
        Ok(first)
    })?;
    Ok(planned.expect("the first process plans"))
}

impl Setup {
    /// Plans on the first process; the others take over its choice.
    pub fn plan_together(
        &self,
        device: &Device,
        host_bytes: u64,
        choosing: Choosing<'_>,
    ) -> Result<Plan, TrainError> {
        let group = device.group();
        if group.size() == 1 {
            return self.plan(device, host_bytes, choosing);
        }
        let (plan, _) = plan_as_first(group, |taken| {
            let choosing = taken.map_or(choosing, |taken| Choosing::Taken(taken.choice));
            Ok((self.plan(device, host_bytes, choosing)?, Vec::new()))
        })?;
        Ok(plan)
    }
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
            // Samples of each process, times the processes.
            (None, [Some(8), Some(16)], 4, (512, 128)),
            (None, [Some(8), Some(16)], 1, (128, 128)),
            // The default total, or more if each process has more.
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
            pictures: vec![("a.jpg".to_owned(), Some(7)), ("b.jpg".to_owned(), None)],
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
        assert_eq!(differing(|one| one.pictures[1].1 = Some(7)), "b.jpg");
        assert_eq!(differing(|one| one.checkpoint = None), "checkpoint");
    }
}
