//! Single- and multi-process start: `--processes N` launches processes, a cluster's launcher has launched them already.
//!
//! ```text
//! train --processes 4     this process launches four copies, passes signals on and waits
//! HOLDALL_RANK=2 ...      one of the copies: joins the group and works
//! mpirun, srun, torchrun  likewise
//! ```

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use holdall_device::cuda;
use holdall_device::{Device, DeviceChoice, DeviceError};
use holdall_processes::launcher::{self, Request};
use holdall_processes::{Group, GroupError, Launch, Launcher};
use holdall_train::TrainError;
use holdall_train::planning::processes::agree_on_request;
use serde_json::Value;

use crate::failure;
use crate::options::{DeviceArgument, ProcessOptions};
use crate::screen::{self, tell};
use crate::stop;

/// Version that must match on all processes.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Interval of the check whether this process hangs.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Exit code of a process that `--processes` has stopped.
const STOPPED: u8 = 143;

/// The group that this process has joined, until it leaves.
static JOINED: Mutex<Option<Group>> = Mutex::new(None);

/// Role of this process.
pub enum Begun {
    /// The launcher; the processes it launched have ended.
    Ended(ExitCode),
    /// A process that works, possibly alone.
    Member(Group),
}

/// Launches the requested processes and waits for them, or joins a launched group, whose members must all have the same `request`: the
/// command and the settings that decide its effect. In a group, only rank 0 prints from here on; all processes report errors.
pub fn begin(options: &ProcessOptions, request: impl FnOnce() -> Value) -> Result<Begun> {
    let launch = Launch::from_environment()?;
    let is_started = launch.launcher == Launcher::Holdall;
    match options.processes {
        Some(asked) if launch.size > 1 && !(is_started && launch.size == asked) => {
            return Err(GroupError::Launch(format!(
                "--processes {asked}: expected a process that nobody else has started, found rank {} of {}, started by {}\n\
                 hint: leave --processes out: the launcher has started them all",
                launch.rank,
                launch.size,
                launch.describe()
            ))
            .into());
        }
        Some(asked) if asked > 1 && !is_started => return start(asked).map(Begun::Ended),
        _ => {}
    }
    launcher::follow();
    let group = Group::start(&launch, VERSION)?;
    if group.size() > 1 {
        if group.rank() > 0 {
            screen::only_errors();
        }
        tell(&describe(&group));
        *JOINED.lock().unwrap_or_else(PoisonError::into_inner) = Some(group.clone());
        let watch = std::thread::Builder::new().name("end where it hangs".to_owned());
        // Without this thread, the launcher must end a hanging process.
        let _ = watch.spawn(end_where_it_hangs);
        agree_on_request(&group, &request())?;
    }
    Ok(Begun::Member(group))
}

/// ` --processes N` if a launcher of that kind started this process, for suggested commands.
pub fn option() -> String {
    match Launch::from_environment() {
        Ok(launch) if launch.launcher == Launcher::Holdall && launch.size > 1 => {
            format!(" --processes {}", launch.size)
        }
        _ => String::new(),
    }
}

/// Reports to the group why this process cannot continue.
pub fn fail(why: &str) {
    let joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = &*joined {
        group.fail(why);
    }
}

/// Ends this process once the group has lost it because it hangs: its main thread never notices. All writes are atomic, so it may end at
/// any time.
fn end_where_it_hangs() {
    loop {
        std::thread::sleep(BETWEEN_LOOKS);
        let joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = &*joined else {
            return;
        };
        if let Some(error) = group.error().filter(|_| group.hangs()) {
            let _ = failure::report(&error.into());
            std::process::exit(i32::from(failure::FOUND));
        }
    }
}

/// Guard in `main`: leaves the group in good order, or reports a panic to it.
pub struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        if std::thread::panicking() {
            fail("it panicked; what it printed says where");
        }
        let joined = JOINED.lock();
        drop(joined.unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn start(size: usize) -> Result<ExitCode> {
    let program = std::env::current_exe()?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    // Signals are passed to the processes; the launcher ends after them.
    let _orderly = stop::orderly("");
    let requests = stop::requests();
    let mut is_stopped = false;
    let code = launcher::run(size, &program, &arguments, &mut || {
        if !is_stopped && requests.stop.load(Ordering::Relaxed) {
            is_stopped = true;
            return Some(Request::Stop);
        }
        let is_saved = requests.save.swap(false, Ordering::Relaxed);
        is_saved.then_some(Request::Save)
    })?;
    // The launcher passes every stop signal on as SIGTERM; its own exit code names the original signal.
    Ok(if is_stopped && code == STOPPED {
        stop::exit_code()
    } else {
        ExitCode::from(code)
    })
}

/// Description such as `Processes: 8 on 2 machines, tensors by Open MPI 4.1.4`.
fn describe(group: &Group) -> String {
    let mut hosts: Vec<&str> = (0..group.size()).map(|rank| group.host(rank)).collect();
    hosts.sort_unstable();
    hosts.dedup();
    format!(
        "Processes: {} on {}, bulk data by {}",
        group.size(),
        match hosts.len() {
            1 => "this machine".to_owned(),
            many => format!("{many} machines"),
        },
        group.transport().unwrap_or("nothing")
    )
}

/// Opens this process's device: each process on a machine gets a card, or its share of the cores and of the memory.
pub fn open_device(
    group: Group,
    wish: DeviceArgument,
    num_threads: Option<usize>,
) -> Result<Device> {
    let cards = || cuda::count().unwrap_or(0);
    let choice = match (wish, group.local_size()) {
        (DeviceArgument::Cpu, _) => DeviceChoice::Cpu,
        (DeviceArgument::Card(number), _) => DeviceChoice::Cuda(number),
        (DeviceArgument::Auto, 1) => DeviceChoice::Auto,
        (DeviceArgument::Cuda, 1) => DeviceChoice::Cuda(0),
        (DeviceArgument::Auto, _) if cards() == 0 => DeviceChoice::Auto,
        (DeviceArgument::Auto | DeviceArgument::Cuda, _) => {
            let is_restricted = std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
            let card = card(group.local_rank(), cards(), is_restricted);
            DeviceChoice::Cuda(
                card.map_err(DeviceError::Missing)
                    .map_err(TrainError::from)?,
            )
        }
    };
    let num_threads = match num_threads {
        None if group.size() > 1 => Some(fair_threads(&group)?),
        num_threads => num_threads,
    };
    let device = Device::open(choice, num_threads).map_err(TrainError::from)?;
    let sharers = sharers(&group, &device)?;
    let device = device.with_group(group).map_err(TrainError::from)?;
    Ok(device.with_sharers(sharers))
}

/// Index of this process's card. If the launcher shows the process a single card, it is that one.
fn card(local_rank: usize, num_cards: usize, is_restricted: bool) -> Result<usize, String> {
    match num_cards {
        // Opening the device reports what is missing.
        0 => Ok(0),
        1 if is_restricted => Ok(0),
        _ if local_rank < num_cards => Ok(local_rank),
        _ => Err(format!(
            "process {} of this machine: expected a GPU for each, found {num_cards}\n\
             hint: {num_cards} processes on this machine, or `--device cuda:0` lets all use the first",
            local_rank + 1
        )),
    }
}

/// Number of processes that share this process's memory: on the CPU all of the machine, on GPUs those on the same card.
fn sharers(group: &Group, device: &Device) -> Result<usize> {
    let own = device.gpu().map_or("", |gpu| gpu.pci_bus_id());
    let all = group.share(own.as_bytes())?;
    let host = group.host(group.rank());
    let same = all
        .iter()
        .enumerate()
        .filter(|(rank, theirs)| group.host(*rank) == host && **theirs == own.as_bytes());
    Ok(same.count())
}

/// Threads of this process: its share of the allowed cores, each divided among the processes that may use it. Launchers
/// that bind processes to cores have already divided them.
fn fair_threads(group: &Group) -> Result<usize> {
    let own = allowed_cores();
    let all = group.share(&own)?;
    let host = group.host(group.rank());
    let local: Vec<&[u8]> = (0..group.size())
        .filter(|&rank| group.host(rank) == host)
        .map(|rank| all[rank].as_slice())
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let num_threads = part_of_cores(cores, &own, &local);
    let num_online = own.iter().filter(|&&core| core != 0).count();
    if num_online * group.local_size() < own.len() {
        tell(&format!(
            "The launcher binds each process to {num_online} of {} cores: `mpirun --bind-to none` or `srun --cpu-bind=none` \
             gives them all",
            own.len()
        ));
    }
    Ok(num_threads)
}

/// The share in threads. `cores` may be below the allowed ones, by a container's quota.
fn part_of_cores(cores: usize, own: &[u8], local: &[&[u8]]) -> usize {
    let is_allowed = |mask: &[u8], core: usize| mask.get(core).is_some_and(|&allowed| allowed != 0);
    let allowed: Vec<usize> = (0..own.len())
        .filter(|&core| is_allowed(own, core))
        .collect();
    if allowed.is_empty() {
        return (cores / local.len().max(1)).max(1);
    }
    let fair: f64 = allowed
        .iter()
        .map(|&core| {
            let sharers = local.iter().filter(|mask| is_allowed(mask, core)).count();
            1.0 / sharers.max(1) as f64
        })
        .sum();
    // Exceeds the rounding error of the sum.
    let part = cores as f64 * fair / allowed.len() as f64 + 1e-6;
    (part as usize).max(1)
}

/// One byte per core of this machine: whether this process may use it. Empty where the system does not report it.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<u8> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    // `0-63`, or `0,2-5`: the last number is the highest core.
    let last = online.trim().rsplit([',', '-']).next();
    let last: Option<usize> = last.and_then(|last| last.parse().ok());
    let most = rustix::thread::CpuSet::MAX_CPU;
    let num_cores = last.map_or(most, |last| (last + 1).min(most));
    (0..num_cores)
        .map(|core| u8::from(allowed.is_set(core)))
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Vec<u8> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_its_card() {
        assert_eq!(card(3, 4, false), Ok(3));
        // Slurm shows each task only its own card.
        assert_eq!(card(3, 1, true), Ok(0));
        let error = card(1, 1, false).unwrap_err();
        assert!(error.contains("found 1\nhint: 1 processes"), "{error}");
        assert!(card(4, 4, true).is_err());
    }

    #[test]
    fn cores_are_divided_once() {
        let all = [1; 8];
        assert_eq!(part_of_cores(8, &all, &[&all, &all]), 4);
        assert_eq!(part_of_cores(8, &all, &[&all, &all, &all]), 2);
        // Bound by the launcher: already divided.
        let (left, right) = ([1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(part_of_cores(4, &left, &[&left, &right]), 4);
        // Two pairs of processes, each bound to one half.
        assert_eq!(part_of_cores(4, &left, &[&left, &left, &right, &right]), 2);
        // More processes than cores, a quota below the number of cores, and no information.
        assert_eq!(part_of_cores(8, &all, &[&all[..]; 9]), 1);
        assert_eq!(part_of_cores(4, &all, &[&all, &all]), 2);
        assert_eq!(part_of_cores(8, &[], &[&[], &[]]), 4);
    }
}
