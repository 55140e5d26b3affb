//! The target of a plan: the device of this process, or a card that is not in this machine.

use holdall_device::cpu::{self, Bound};
use holdall_device::cuda::CudaTarget;
use holdall_device::cuda::cards::Card;
use holdall_device::{Arithmetic, Device, DeviceError};
use holdall_graph::ops::collective::Processes;
use holdall_plan::Target;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::step::processes_of;
use crate::error::TrainError;
use crate::planning::processes::listed_by_first;

/// Target of a plan. Only [`Site::Here`] can run it.
#[derive(Clone, Copy)]
pub enum Site<'a> {
    /// An open device with measured rates.
    Here(&'a Device),
    /// A card with published rates and all of its memory free.
    Card(&'static Card),
}

impl<'a> From<&'a Device> for Site<'a> {
    fn from(device: &'a Device) -> Site<'a> {
        Site::Here(device)
    }
}

impl Site<'_> {
    /// Name in JSON: `cpu`, `cuda`, or the card's name.
    pub fn kind(self) -> &'static str {
        match self {
            Site::Here(device) => device.kind(),
            Site::Card(card) => card.name,
        }
    }

    /// Name in a sentence.
    pub fn noun(self) -> &'static str {
        match self {
            Site::Here(device) if device.is_gpu() => "this GPU",
            Site::Here(_) => "this machine",
            Site::Card(card) => card.name,
        }
    }

    /// Rank and number of processes.
    pub(crate) fn processes(self) -> Processes {
        match self {
            Site::Here(device) => processes_of(device.group()),
            Site::Card(_) => Processes::default(),
        }
    }

    /// Lists the data; with several processes, the first lists it for all.
    pub(crate) fn listed<T: Serialize + DeserializeOwned, E: Into<TrainError>>(
        self,
        list: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, TrainError> {
        let list = || list().map_err(Into::into);
        match self {
            Site::Here(device) => listed_by_first(device.group(), list),
            Site::Card(_) => list(),
        }
    }

    pub fn is_gpu(self) -> bool {
        match self {
            Site::Here(device) => device.is_gpu(),
            Site::Card(_) => true,
        }
    }

    /// Default number format.
    pub fn best_arithmetic(self) -> Arithmetic {
        match self {
            Site::Here(device) => device.best_arithmetic(),
            Site::Card(_) if self.supports(Arithmetic::Bf16) => Arithmetic::Bf16,
            Site::Card(_) => Arithmetic::F16,
        }
    }

    /// Whether the device computes in a number format.
    pub fn supports(self, arithmetic: Arithmetic) -> bool {
        match self {
            Site::Here(device) => device.supports(arithmetic),
            Site::Card(card) => CudaTarget::for_card(card, arithmetic).is_some(),
        }
    }

    /// Whether gradients of equal token ids need a sorted order of summation.
    pub fn wants_sorted_ids(self) -> bool {
        match self {
            Site::Here(device) => device.wants_sorted_ids(),
            Site::Card(_) => true,
        }
    }

    /// Memory that percentages refer to; `None` if the system does not report it.
    pub fn total_bytes(self) -> Option<u64> {
        match self {
            Site::Here(device) => device.total_bytes(),
            Site::Card(card) => Some(card.usable_bytes()),
        }
    }

    /// Memory that the process holds or could get.
    pub fn available_bytes(self) -> Option<u64> {
        match self {
            Site::Here(device) => device.available_bytes(),
            Site::Card(card) => Some(card.usable_bytes()),
        }
    }

    /// This process's part of [`Site::available_bytes`].
    pub fn available_bytes_each(self) -> Option<u64> {
        Some(self.available_bytes()? / self.num_sharers())
    }

    /// Processes that share the device's memory.
    pub fn num_sharers(self) -> u64 {
        match self {
            Site::Here(device) => device.num_sharers(),
            Site::Card(_) => 1,
        }
    }

    /// Processes of the run on this machine.
    pub fn num_local_processes(self) -> u64 {
        match self {
            Site::Here(device) => device.group().local_size() as u64,
            Site::Card(_) => 1,
        }
    }

    /// Bound of the memory; `None` if the system does not report it.
    pub fn bound(self) -> Option<Bound> {
        match self {
            Site::Here(device) if !device.is_gpu() => Some(cpu::host_memory()?.bound),
            _ => Some(Bound::Machine),
        }
    }

    /// The planner's target. `host_bytes` is host memory that the run will use beside the arena and that is not allocated
    /// yet.
    pub fn target(
        self,
        arithmetic: Arithmetic,
        host_bytes: u64,
    ) -> Result<Box<dyn Target>, DeviceError> {
        match self {
            Site::Here(device) => device.target(arithmetic, host_bytes),
            Site::Card(card) => match CudaTarget::for_card(card, arithmetic) {
                Some(target) => Ok(Box::new(target)),
                None => Err(DeviceError::Missing(format!(
                    "{} does not compute in {}\nhint: --precision {}, or auto",
                    card.name,
                    arithmetic.name(),
                    self.best_arithmetic().name()
                ))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::budget::Memory;
    use holdall_device::cuda::cards::CARDS;

    #[test]
    fn auto_is_95_percent_of_a_card_that_is_not_there() {
        for card in CARDS {
            let site = Site::Card(card);
            let (total, available) = (site.total_bytes().unwrap(), site.available_bytes().unwrap());
            assert_eq!(total, card.usable_bytes());
            let budget = Memory::Auto.resolve(total, available);
            assert_eq!(budget, total / 100 * 95, "{}", card.name);
        }
    }

    #[test]
    fn every_card_has_a_target_in_its_best_format() {
        for card in CARDS {
            let site = Site::Card(card);
            let best = site.best_arithmetic();
            let newer = card.compute_capability >= (8, 0);
            assert_eq!(best == Arithmetic::Bf16, newer, "{}", card.name);
            assert!(site.target(best, 0).is_ok(), "{}", card.name);
            assert_eq!(site.target(Arithmetic::Tf32, 0).is_ok(), newer);
        }
    }
}
