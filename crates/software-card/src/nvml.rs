//! libnvidia-ml: the driver's report on the card and its memory, from the same counts as the driver's.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::driver::bus_id;
use crate::foreign::{Handle, handle, number, put, put_text, text};
use crate::model::model;
use crate::streams::machine;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;

/// NVML_VALUE_NOT_AVAILABLE.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Memory that the driver reserves for itself.
const RESERVED_BYTES: u64 = 0;

fn card_of(device: Handle) -> Result<usize, c_int> {
    let card = number(device) as usize;
    let model = model().map_err(|_| DRIVER_NOT_LOADED)?;
    if (1..=model.count).contains(&card) {
        Ok(card - 1)
    } else {
        Err(INVALID_ARGUMENT)
    }
}

fn status(answer: Result<(), c_int>) -> c_int {
    answer.err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    model().map_or(DRIVER_NOT_LOADED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"Success",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) -> c_int {
    put_text(to, room as usize, "580.00.00");
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) -> c_int {
    put(to, 13_000);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetProcessName(pid: c_uint, to: *mut c_char, room: c_uint) -> c_int {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => {
            put_text(to, room as usize, name.trim());
            SUCCESS
        }
        Err(_) => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_int {
    status(
        model()
            .map_err(|_| DRIVER_NOT_LOADED)
            .map(|model| put(to, model.count as c_uint)),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut Handle) -> c_int {
    let device = handle(u64::from(index) + 1);
    status(card_of(device).map(|_| put(to, device)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, to: *mut Handle) -> c_int {
    let wanted = text(id);
    let Ok(model) = model() else {
        return DRIVER_NOT_LOADED;
    };
    let card = (0..model.count).find(|&card| bus_id(card).eq_ignore_ascii_case(&wanted));
    match card {
        Some(card) => {
            put(to, handle(card as u64 + 1));
            SUCCESS
        }
        None => NOT_FOUND,
    }
}

fn uuid(card: usize) -> String {
    format!("GPU-50f7aa2e-0000-0000-0000-{card:012x}")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(id: *const c_char, to: *mut Handle) -> c_int {
    let wanted = text(id);
    let Ok(model) = model() else {
        return DRIVER_NOT_LOADED;
    };
    match (0..model.count).find(|&card| uuid(card) == wanted) {
        Some(card) => {
            put(to, handle(card as u64 + 1));
            SUCCESS
        }
        None => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: Handle, to: *mut c_char, room: c_uint) -> c_int {
    status(card_of(device).map(|card| put_text(to, room as usize, &uuid(card))))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(device: Handle, to: *mut c_char, room: c_uint) -> c_int {
    status(card_of(device).map(|_| {
        let name = model().map_or("", |model| &model.name);
        put_text(to, room as usize, name);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    status(card_of(device).map(|_| {
        let capability = model().map_or(0, |model| model.capability);
        put(major, (capability / 10) as c_int);
        put(minor, (capability % 10) as c_int);
    }))
}

/// `nvmlMemory_v2_t` of `nvml.h`.
#[repr(C)]
pub struct MemoryReading {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, to: *mut MemoryReading) -> c_int {
    status(card_of(device).and_then(|card| {
        let machine = machine().map_err(|_| DRIVER_NOT_LOADED)?;
        let memory = &machine.cards[card].memory;
        let (total, used) = (memory.total_bytes(), memory.used_bytes());
        let reading = MemoryReading {
            version: size_of::<MemoryReading>() as c_uint | 2 << 24,
            total,
            reserved: RESERVED_BYTES,
            free: total - used,
            used,
        };
        put(to, reading);
        Ok(())
    }))
}

/// `nvmlProcessInfo_t` of `nvml.h`.
#[repr(C)]
pub struct ProcessReading {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Handle,
    count: *mut c_uint,
    to: *mut ProcessReading,
) -> c_int {
    status(card_of(device).and_then(|card| {
        let machine = machine().map_err(|_| DRIVER_NOT_LOADED)?;
        let memory = &machine.cards[card].memory;
        let mut all = memory.others();
        if memory.held_bytes() > 0 {
            all.push((std::process::id(), memory.held_bytes()));
        }
        let room = crate::foreign::get(count).unwrap_or(0) as usize;
        put(count, all.len() as c_uint);
        if all.len() > room {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, (pid, mut used_bytes)) in all.into_iter().enumerate() {
            if machine.model.is_wddm {
                used_bytes = NOT_AVAILABLE;
            }
            let process = ProcessReading {
                pid,
                used_bytes,
                gpu_instance: c_uint::MAX,
                compute_instance: c_uint::MAX,
            };
            put(to.wrapping_add(index), process);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Handle,
    count: *mut c_uint,
    _to: *mut ProcessReading,
) -> c_int {
    status(card_of(device).map(|_| put(count, 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(device: Handle, to: *mut [c_uint; 2]) -> c_int {
    status(card_of(device).map(|_| put(to, [90, 40])))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerUsage(device: Handle, to: *mut c_uint) -> c_int {
    status(card_of(device).map(|_| put(to, 80_000)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: Handle, to: *mut c_uint) -> c_int {
    status(card_of(device).map(|_| put(to, 115_000)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(
    device: Handle,
    _sensor: c_uint,
    to: *mut c_uint,
) -> c_int {
    status(card_of(device).map(|_| put(to, 50)))
}
