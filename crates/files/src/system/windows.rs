//! Windows: the working set of a process, physical memory and page file, the limits of a job, and free disk space.

use std::mem::size_of;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};
use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;
use windows_sys::Win32::System::JobObjects::{
    JOB_OBJECT_LIMIT_JOB_MEMORY, JOB_OBJECT_LIMIT_PROCESS_MEMORY,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    QueryInformationJobObject,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION,
};

use super::ProcessMemory;

pub fn memory_of(pid: Option<u32>) -> Option<ProcessMemory> {
    let counters = match pid {
        // SAFETY: a constant that stands for this process and is never closed.
        None => counters(unsafe { GetCurrentProcess() })?,
        Some(pid) => {
            // SAFETY: no pointers; the handle is closed below.
            let process = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid) };
            if process.is_null() {
                return None;
            }
            let found = counters(process);
            // SAFETY: opened above and used by nobody else.
            unsafe { CloseHandle(process) };
            found?
        }
    };
    Some(ProcessMemory {
        resident_bytes: counters.WorkingSetSize as u64,
        peak_resident_bytes: counters.PeakWorkingSetSize as u64,
    })
}

fn counters(process: HANDLE) -> Option<PROCESS_MEMORY_COUNTERS> {
    let mut counters = PROCESS_MEMORY_COUNTERS {
        cb: size_of::<PROCESS_MEMORY_COUNTERS>() as u32,
        ..Default::default()
    };
    // SAFETY: an open process, and a structure that has the size it names.
    let is_known = unsafe { K32GetProcessMemoryInfo(process, &raw mut counters, counters.cb) };
    (is_known != 0).then_some(counters)
}

/// Memory of the machine and of the job that this process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowsMemory {
    pub total_bytes: u64,
    /// Free physical memory, or what the page file still guarantees if that is less: beyond it allocations fail.
    pub available_bytes: u64,
    /// The limit of the job: a container, a service or a remote shell may set one.
    pub job_limit_bytes: Option<u64>,
}

/// Memory of the machine and of this process's job.
pub fn windows_memory() -> Option<WindowsMemory> {
    let mut status = MEMORYSTATUSEX {
        dwLength: size_of::<MEMORYSTATUSEX>() as u32,
        ..Default::default()
    };
    // SAFETY: a structure that has the size it names.
    let is_known = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    (is_known != 0).then(|| WindowsMemory {
        total_bytes: status.ullTotalPhys,
        available_bytes: status.ullAvailPhys.min(status.ullAvailPageFile),
        job_limit_bytes: job_limit_bytes(),
    })
}

fn job_limit_bytes() -> Option<u64> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    // SAFETY: no job is named, which means that of this process; the structure has the size that is passed.
    let is_known = unsafe {
        QueryInformationJobObject(
            ptr::null_mut(),
            JobObjectExtendedLimitInformation,
            (&raw mut limits).cast(),
            size_of::<JOBOBJECT_EXTENDED_LIMIT_INFORMATION>() as u32,
            ptr::null_mut(),
        )
    };
    let flags = limits.BasicLimitInformation.LimitFlags;
    let set = [
        (JOB_OBJECT_LIMIT_PROCESS_MEMORY, limits.ProcessMemoryLimit),
        (JOB_OBJECT_LIMIT_JOB_MEMORY, limits.JobMemoryLimit),
    ];
    let bytes = set.iter().filter(|(flag, _)| flags & flag != 0);
    let smallest = bytes.map(|&(_, bytes)| bytes as u64).min();
    smallest.filter(|_| is_known != 0)
}

pub fn free_bytes(folder: &Path) -> Option<u64> {
    let name: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: a name that ends with a zero; of the three numbers only the first is asked for.
    let is_known = unsafe {
        GetDiskFreeSpaceExW(
            name.as_ptr(),
            &raw mut free,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    (is_known != 0).then_some(free)
}
