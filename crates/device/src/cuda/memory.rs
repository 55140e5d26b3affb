//! What the driver says of a card's memory, by NVML: what this process holds, who else is there, how much is left.
//!
//! NVML belongs to the driver and is opened at run time. Every answer is optional: Windows does not tell memory per process,
//! containers may hide processes or their bytes, and an old driver may lack a call. Nothing here fails louder than `None`.

use std::sync::OnceLock;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

/// Which card. NVML's own numbers are in another order than CUDA's, so there is no index here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardId<'a> {
    /// As `cuDeviceGetPCIBusId` writes it: `0000:01:00.0`.
    PciBusId(&'a str),
    /// `GPU-...`, or `MIG-...` for a slice of a card, as in `CUDA_VISIBLE_DEVICES`.
    Uuid(&'a str),
}

/// A process that has memory on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id, as the driver tells it: in a container that may be the host's.
    pub pid: u32,
    /// Its name; empty where it cannot be seen from here.
    pub name: String,
    /// What it holds, where the driver tells.
    pub bytes: Option<u64>,
}

/// A card's memory as the driver counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardMemory {
    /// Held by processes.
    pub used_bytes: u64,
    /// Could be had now.
    pub free_bytes: u64,
    /// All of it. More than used and free together: the driver keeps some for itself.
    pub total_bytes: u64,
}

/// Memory that this process has on the card, CUDA's context included; `None` where the driver does not tell.
///
/// In a container the driver may tell process ids of the host, so that ours is not among them. If one compute process alone
/// is on the card, and its id is of no process here although all that live here can be seen, then it is counted in another
/// namespace than ours and is taken for us. A caller should therefore hold a context when it asks: otherwise it might be told
/// a stranger's memory.
pub fn process_bytes(card: CardId) -> Option<u64> {
    let processes = device(card)?.running_compute_processes().ok()?;
    let processes: Vec<_> = processes.iter().map(pid_and_bytes).collect();
    own_bytes(&processes, std::process::id(), is_of_another_namespace)
}

/// Other processes that have memory on the card, largest first; those that only draw are among them.
pub fn holders(card: CardId) -> Vec<Holder> {
    let Some(device) = device(card) else {
        return Vec::new();
    };
    let compute = device.running_compute_processes().unwrap_or_default();
    let graphics = device.running_graphics_processes().unwrap_or_default();
    let compute_pids: Vec<_> = compute.iter().map(pid_and_bytes).collect();
    let own = own_pid(&compute_pids, std::process::id(), is_of_another_namespace);
    let others = merge(compute.iter().chain(&graphics).map(pid_and_bytes));
    let others = others
        .into_iter()
        .filter(|(pid, _)| *pid != std::process::id() && Some(*pid) != own);
    others
        .map(|(pid, bytes)| Holder {
            pid,
            name: process_name(pid),
            bytes,
        })
        .collect()
}

/// The card's memory, whoever holds it; `None` where the driver does not tell.
pub fn device_memory(card: CardId) -> Option<CardMemory> {
    let memory = device(card)?.memory_info().ok()?;
    Some(CardMemory {
        used_bytes: memory.used,
        free_bytes: memory.free,
        total_bytes: memory.total,
    })
}

/// Percent of the last moments, 0 to 100, in which the card computed; `None` where the driver does not tell, as of a slice of a card.
pub fn utilization(card: CardId) -> Option<u32> {
    let rates = device(card)?.utilization_rates().ok()?;
    Some(rates.gpu)
}

fn nvml() -> Option<&'static Nvml> {
    nvml_or_why().ok()
}

/// NVML, opened once, or what it said instead.
pub(super) fn nvml_or_why() -> Result<&'static Nvml, &'static NvmlError> {
    static NVML: OnceLock<Result<Nvml, NvmlError>> = OnceLock::new();
    NVML.get_or_init(Nvml::init).as_ref()
}

fn device(card: CardId) -> Option<Device<'static>> {
    let nvml = nvml()?;
    match card {
        CardId::PciBusId(id) => nvml.device_by_pci_bus_id(id).ok(),
        CardId::Uuid(id) => nvml.device_by_uuid(id).ok(),
    }
}

pub(super) fn pid_and_bytes(process: &ProcessInfo) -> (u32, Option<u64>) {
    let bytes = match process.used_gpu_memory {
        // Some drivers say 0 in a container, and no process on a card has nothing there.
        UsedGpuMemory::Unavailable | UsedGpuMemory::Used(0) => None,
        UsedGpuMemory::Used(bytes) => Some(bytes),
    };
    (process.pid, bytes)
}

/// One entry per process, largest first: one that computes and draws is told twice, with the same memory.
pub(super) fn merge(
    processes: impl Iterator<Item = (u32, Option<u64>)>,
) -> Vec<(u32, Option<u64>)> {
    let mut merged: Vec<(u32, Option<u64>)> = Vec::new();
    for (pid, bytes) in processes {
        match merged.iter_mut().find(|(known, _)| *known == pid) {
            Some((_, known)) => *known = (*known).max(bytes),
            None => merged.push((pid, bytes)),
        }
    }
    merged.sort_by_key(|&(pid, bytes)| (std::cmp::Reverse(bytes), pid));
    merged
}

/// Under which id the driver knows us.
fn own_pid(
    processes: &[(u32, Option<u64>)],
    our_pid: u32,
    is_elsewhere: impl Fn(u32) -> bool,
) -> Option<u32> {
    if processes.iter().any(|(pid, _)| *pid == our_pid) {
        return Some(our_pid);
    }
    match processes {
        [(pid, _)] if is_elsewhere(*pid) => Some(*pid),
        _ => None,
    }
}

fn own_bytes(
    processes: &[(u32, Option<u64>)],
    our_pid: u32,
    is_elsewhere: impl Fn(u32) -> bool,
) -> Option<u64> {
    let own = own_pid(processes, our_pid, is_elsewhere)?;
    processes.iter().find(|(pid, _)| *pid == own)?.1
}

/// Whether an id cannot be one of our namespace: no process here has it, and none is hidden, because the first one, which
/// is not ours, can be seen.
fn is_of_another_namespace(pid: u32) -> bool {
    let can_be_seen = |pid: u32| std::path::Path::new("/proc").join(pid.to_string()).exists();
    can_be_seen(1) && !can_be_seen(pid)
}

/// The longest name that is asked for, in bytes.
const NAME_BYTES: usize = 256;

pub(super) fn process_name(pid: u32) -> String {
    let told = nvml().and_then(|nvml| nvml.sys_process_name(pid, NAME_BYTES).ok());
    let name = told.filter(|name| !name.is_empty());
    let name = name.or_else(|| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    name.map(|name| short_name(&name)).unwrap_or_default()
}

/// The program without its folder and arguments, which a driver may add. Only a path of Unix ends at a space: on Windows
/// there are no arguments, and folders have spaces.
fn short_name(name: &str) -> String {
    let name = name.trim();
    let path = if name.starts_with('/') {
        name.split_whitespace().next().unwrap_or_default()
    } else {
        name
    };
    path.rsplit(['/', '\\'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_id_is_taken_first() {
        let processes = [(7, Some(100)), (8, Some(200))];
        assert_eq!(own_bytes(&processes, 8, |_| false), Some(200));
        assert_eq!(own_bytes(&processes, 8, |_| true), Some(200));
    }

    #[test]
    fn a_lone_process_is_ours_only_if_it_cannot_be_anothers() {
        assert_eq!(own_bytes(&[(7, Some(300))], 8, |_| false), None);
        assert_eq!(own_bytes(&[(7, Some(300))], 8, |_| true), Some(300));
        assert_eq!(own_bytes(&[(7, Some(300)), (9, None)], 8, |_| true), None);
        assert_eq!(own_bytes(&[], 8, |_| true), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_lives_here_is_of_our_namespace() {
        assert!(!is_of_another_namespace(std::process::id()));
    }

    #[test]
    fn bytes_that_are_not_told_are_none() {
        let process = |used_gpu_memory| ProcessInfo {
            pid: 1,
            used_gpu_memory,
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        assert_eq!(
            pid_and_bytes(&process(UsedGpuMemory::Unavailable)),
            (1, None)
        );
        assert_eq!(pid_and_bytes(&process(UsedGpuMemory::Used(0))), (1, None));
        assert_eq!(
            pid_and_bytes(&process(UsedGpuMemory::Used(5))),
            (1, Some(5))
        );
    }

    #[test]
    fn a_process_counts_once() {
        let processes = [
            (1, Some(10)),
            (2, None),
            (3, Some(30)),
            (1, Some(10)),
            (2, Some(5)),
        ];
        assert_eq!(
            merge(processes.into_iter()),
            [(3, Some(30)), (1, Some(10)), (2, Some(5))]
        );
    }

    #[test]
    fn names_are_the_programs_alone() {
        assert_eq!(short_name("/usr/bin/python3 train.py /data"), "python3");
        assert_eq!(short_name("/usr/lib/xorg/Xorg\n"), "Xorg");
        assert_eq!(short_name(r"C:\Program Files\game.exe"), "game.exe");
        assert_eq!(short_name(""), "");
    }

    #[test]
    fn a_card_that_is_not_there_gives_nothing() {
        let card = CardId::PciBusId("ffff:ff:ff.0");
        assert_eq!(process_bytes(card), None);
        assert_eq!(holders(card), []);
        assert_eq!(device_memory(card), None);
        assert_eq!(utilization(card), None);
    }
}
