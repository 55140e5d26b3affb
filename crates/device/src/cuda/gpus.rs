//! Status of every card of this machine, as `nvidia-smi` shows it.
//!
//! Creates no context and takes no memory on a card. The indices are NVML's, which are those of `nvidia-smi` and may differ from CUDA's;
//! `CUDA_VISIBLE_DEVICES` has no effect. A reading that the card, driver or container does not provide is `None`.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;

use super::memory::{CardMemory, Holder, merge, nvml_or_why, pid_and_bytes, process_name};

/// One reading of one card.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuReading {
    /// Index as in `nvidia-smi`, from 0.
    pub index: u32,
    pub name: Option<String>,
    /// Compute capability, (major, minor).
    pub capability: Option<(u32, u32)>,
    pub memory: Option<CardMemory>,
    /// Percentage of time in which the card was busy, 0 to 100.
    pub utilization_percent: Option<u32>,
    /// Power draw.
    pub power_watts: Option<f64>,
    /// Power limit.
    pub power_limit_watts: Option<f64>,
    /// Temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// Processes with memory on the card, largest first; empty if there are none, or if a container hides them.
    pub processes: Option<Vec<Holder>>,
}

/// Reason why the cards cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReading {
    /// NVML comes with the driver: without its library there is no driver.
    #[error("NVIDIA's driver is not here ({0} cannot be opened)")]
    NoDriver(&'static str),
    /// The driver is installed, but its kernel module is not loaded, or the device was lost.
    #[error("NVIDIA's driver is installed but not loaded")]
    NotLoaded,
    /// The driver was updated without a restart.
    #[error(
        "the driver's library and its kernel module have different versions: restart the machine"
    )]
    Mismatch,
    /// The user has no access to the device files.
    #[error("this user is not permitted to ask NVIDIA's driver")]
    NotPermitted,
    /// The driver runs, but sees no card.
    #[error("NVIDIA's driver has no GPU")]
    NoCards,
    /// Any other error of NVML.
    #[error("NVIDIA's driver does not answer: {0}")]
    Failed(String),
}

/// File name of NVML, for messages.
const LIBRARY: &str = if cfg!(windows) {
    "nvml.dll"
} else {
    "libnvidia-ml.so.1"
};

/// Reads every card.
///
/// # Errors
/// See [`NoReading`]. A card that does not answer has an empty reading.
pub fn read() -> Result<Vec<GpuReading>, NoReading> {
    let nvml = nvml_or_why().map_err(why)?;
    let num_cards = nvml.device_count().map_err(|error| why(&error))?;
    if num_cards == 0 {
        return Err(NoReading::NoCards);
    }
    let card = |index| match nvml.device_by_index(index) {
        Ok(device) => read_card(index, &device),
        Err(_) => GpuReading {
            index,
            ..GpuReading::default()
        },
    };
    Ok((0..num_cards).map(card).collect())
}

/// The driver's release, such as `580.65.06`; `None` if the driver does not report it.
pub fn driver_release() -> Option<String> {
    nvml_or_why().ok()?.sys_driver_version().ok()
}

fn read_card(index: u32, device: &Device) -> GpuReading {
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let memory = device.memory_info().ok();
    let capability = device.cuda_compute_capability().ok();
    let capability = capability.and_then(|capability| {
        let major = u32::try_from(capability.major).ok()?;
        Some((major, u32::try_from(capability.minor).ok()?))
    });
    GpuReading {
        index,
        name: device.name().ok(),
        capability,
        memory: memory.map(|memory| CardMemory {
            used_bytes: memory.used,
            free_bytes: memory.free,
            total_bytes: memory.total,
        }),
        utilization_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        power_watts: device.power_usage().ok().map(watts),
        power_limit_watts: device.enforced_power_limit().ok().map(watts),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        processes: processes(device),
    }
}

/// Compute and graphics processes, each once.
fn processes(device: &Device) -> Option<Vec<Holder>> {
    let compute = device.running_compute_processes().ok();
    let graphics = device.running_graphics_processes().ok();
    if compute.is_none() && graphics.is_none() {
        return None;
    }
    let all = [compute, graphics].into_iter().flatten().flatten();
    let all = merge(all.map(|process| pid_and_bytes(&process)));
    let named = all.into_iter().map(|(pid, bytes)| Holder {
        pid,
        name: process_name(pid),
        bytes,
    });
    Some(named.collect())
}

fn why(error: &NvmlError) -> NoReading {
    match error {
        NvmlError::LibloadingError(_)
        | NvmlError::LibraryNotFound
        | NvmlError::FailedToLoadSymbol(_) => NoReading::NoDriver(LIBRARY),
        NvmlError::DriverNotLoaded => NoReading::NotLoaded,
        NvmlError::LibRmVersionMismatch => NoReading::Mismatch,
        NvmlError::NoPermission => NoReading::NotPermitted,
        error => NoReading::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_told_apart() {
        assert_eq!(why(&NvmlError::DriverNotLoaded), NoReading::NotLoaded);
        assert_eq!(why(&NvmlError::NoPermission), NoReading::NotPermitted);
        assert_eq!(why(&NvmlError::LibRmVersionMismatch), NoReading::Mismatch);
        assert_eq!(
            why(&NvmlError::LibraryNotFound),
            NoReading::NoDriver(LIBRARY)
        );
        let lost = why(&NvmlError::GpuLost).to_string();
        assert!(lost.contains("does not answer"), "{lost}");
    }

    /// With or without a card, the call succeeds or gives a reason, and its numbers are consistent.
    #[test]
    fn this_machine_can_be_asked() {
        match read() {
            Ok(cards) => {
                assert!(!cards.is_empty());
                for memory in cards.iter().filter_map(|card| card.memory) {
                    assert!(memory.used_bytes <= memory.total_bytes);
                }
            }
            Err(reason) => assert!(!reason.to_string().is_empty()),
        }
    }
}
