//! Memory of a card as the driver reports it through NVML: of this process, of other processes, and free.
//!
//! NVML belongs to the driver and is opened at run time. Every query is optional: Windows does not report memory per process, containers
//! may hide processes or their bytes, and an old driver may lack a call. A failed query is `None`.

use std::sync::OnceLock;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

/// Identifies a card. NVML's order of cards differs from CUDA's, so an index would be ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardId<'a> {
    /// Result of `cuDeviceGetPCIBusId`: `0000:01:00.0`.
    PciBusId(&'a str),
    /// `GPU-...`, or `MIG-...` for a slice of a card, as in `CUDA_VISIBLE_DEVICES`.
    Uuid(&'a str),
}

/// A process that has memory on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id from the driver: in a container it may be the id on the host.
    pub pid: u32,
    /// Program name; empty if it is not visible to this process.
    pub name: String,
    /// Memory of the process, where the driver reports it.
    pub bytes: Option<u64>,
}

/// Memory of a card, as the driver counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardMemory {
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Total memory. It exceeds the sum of used and free: the driver reserves some for itself.
    pub total_bytes: u64,
}

/// Memory of this process on the card, CUDA's context included; `None` if the driver does not report it.
///
/// In a container the driver may report process ids of the host, so that our id is not among them. If there is exactly one compute
/// process on the card, and its id is not in our namespace although all processes of our namespace are visible, it is assumed to be this
/// process. A caller should therefore hold a context: otherwise the result may be another process's memory.
pub fn process_bytes(card: CardId) -> Option<u64> {
    let processes = device(card)?.running_compute_processes().ok()?;
    let processes: Vec<_> = processes.iter().map(pid_and_bytes).collect();
    own_bytes(&processes, std::process::id(), is_of_another_namespace)
}

/// Other processes that have memory on the card, graphics processes included, largest first.
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

/// Memory of the card, by all processes; `None` if the driver does not report it.
pub fn device_memory(card: CardId) -> Option<CardMemory> {
    let memory = device(card)?.memory_info().ok()?;
    Some(CardMemory {
        used_bytes: memory.used,
        free_bytes: memory.free,
        total_bytes: memory.total,
    })
}

/// Percentage of the driver's last sampling period in which the card was busy; `None` if the driver does not report it, as for a MIG
/// slice.
pub fn utilization(card: CardId) -> Option<u32> {
    let rates = device(card)?.utilization_rates().ok()?;
    Some(rates.gpu)
}

fn nvml() -> Option<&'static Nvml> {
    nvml_or_why().ok()
}

/// NVML, opened once, or its error.
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
        // Some drivers report 0 in a container; a process on a card never has zero bytes.
        UsedGpuMemory::Unavailable | UsedGpuMemory::Used(0) => None,
        UsedGpuMemory::Used(bytes) => Some(bytes),
    };
    (process.pid, bytes)
}

/// One entry per process, largest first: a process that both computes and draws is reported twice, with the same memory.
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

/// The driver's id of this process.
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

/// Whether an id is outside of our namespace: no visible process has it, and no process is hidden, because the first process, which is
/// not ours, is visible.
fn is_of_another_namespace(pid: u32) -> bool {
    let can_be_seen = |pid: u32| std::path::Path::new("/proc").join(pid.to_string()).exists();
    can_be_seen(1) && !can_be_seen(pid)
}

/// Maximum length of a process name, in bytes.
const NAME_BYTES: usize = 256;

pub(super) fn process_name(pid: u32) -> String {
    let told = nvml().and_then(|nvml| nvml.sys_process_name(pid, NAME_BYTES).ok());
    let name = told.filter(|name| !name.is_empty());
    let name = name.or_else(|| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    name.map(|name| short_name(&name)).unwrap_or_default()
}

/// The program without its folder and arguments, which a driver may add. Only a Unix path ends at a space: on Windows there are no
/// arguments, and folders may contain spaces.
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
