//! Current memory and utilization of a device, for frequent polling from any thread: cheap, and a failed query is `None`.

use crate::cpu;
use crate::cuda::memory::{self, CardId, Holder};

/// Reads memory and utilization of one device.
#[derive(Debug, Clone)]
pub struct Gauge {
    kind: MemorySource,
}

#[derive(Debug, Clone)]
enum MemorySource {
    Cpu,
    Card {
        name: String,
        pci_bus_id: String,
        /// Memory of other processes when the gauge was created, for drivers that do not report memory per process.
        others_bytes: Option<u64>,
    },
}

/// One reading of a [`Gauge`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    /// Memory in use on the device, by all processes.
    pub used_bytes: Option<u64>,
    /// Memory of the device.
    pub total_bytes: Option<u64>,
    /// Memory of this process on the device.
    pub process_bytes: Option<u64>,
    /// Percentage of the driver's last sampling period in which the GPU was busy.
    pub gpu_utilization: Option<u32>,
    /// Resident host memory of this process.
    pub host_rss_bytes: Option<u64>,
}

impl Gauge {
    pub(crate) fn of_cpu() -> Gauge {
        Gauge {
            kind: MemorySource::Cpu,
        }
    }

    /// `held_bytes`: memory of the process on the card now.
    pub(crate) fn of_card(name: String, pci_bus_id: &str, held_bytes: Option<u64>) -> Gauge {
        let card = CardId::PciBusId(pci_bus_id);
        let others_bytes = match memory::process_bytes(card) {
            Some(_) => None,
            None => memory::device_memory(card)
                .map(|memory| memory.used_bytes.saturating_sub(held_bytes.unwrap_or(0))),
        };
        Gauge {
            kind: MemorySource::Card {
                name,
                pci_bus_id: pci_bus_id.to_owned(),
                others_bytes,
            },
        }
    }

    /// `cpu`, or for example `cuda:0`.
    pub fn name(&self) -> &str {
        match &self.kind {
            MemorySource::Cpu => "cpu",
            MemorySource::Card { name, .. } => name,
        }
    }

    /// Whether the process's memory is computed as the change of the card's memory in use, since the driver does not report memory per
    /// process.
    pub fn is_by_difference(&self) -> bool {
        matches!(
            self.kind,
            MemorySource::Card {
                others_bytes: Some(_),
                ..
            }
        )
    }

    pub fn read(&self) -> Reading {
        let host_rss_bytes = cpu::resident_bytes();
        match &self.kind {
            MemorySource::Cpu => {
                let memory = cpu::host_memory();
                Reading {
                    used_bytes: memory
                        .map(|memory| memory.total_bytes.saturating_sub(memory.available_bytes)),
                    total_bytes: memory.map(|memory| memory.total_bytes),
                    process_bytes: host_rss_bytes,
                    gpu_utilization: None,
                    host_rss_bytes,
                }
            }
            MemorySource::Card {
                pci_bus_id,
                others_bytes,
                ..
            } => {
                let card = CardId::PciBusId(pci_bus_id);
                let memory = memory::device_memory(card);
                let used_bytes = memory.map(|memory| memory.used_bytes);
                Reading {
                    used_bytes,
                    total_bytes: memory.map(|memory| memory.total_bytes),
                    process_bytes: match others_bytes {
                        Some(others) => used_bytes.map(|used| used.saturating_sub(*others)),
                        None => memory::process_bytes(card),
                    },
                    gpu_utilization: memory::utilization(card),
                    host_rss_bytes,
                }
            }
        }
    }

    /// Peak memory of this process, where the system records it: on the CPU alone.
    pub fn high_water_bytes(&self) -> Option<u64> {
        match self.kind {
            MemorySource::Cpu => cpu::peak_resident_bytes(),
            MemorySource::Card { .. } => None,
        }
    }

    /// Memory of other processes on the card, largest first.
    pub fn others(&self) -> Vec<Holder> {
        match &self.kind {
            MemorySource::Cpu => Vec::new(),
            MemorySource::Card { pci_bus_id, .. } => memory::holders(CardId::PciBusId(pci_bus_id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_host_tells_what_it_has_and_what_we_hold() {
        let gauge = Gauge::of_cpu();
        let reading = gauge.read();
        let (used, total) = (reading.used_bytes.unwrap(), reading.total_bytes.unwrap());
        let held = reading.process_bytes.unwrap();
        assert!(0 < held && held < total && used <= total, "{reading:?}");
        assert_eq!(reading.host_rss_bytes, Some(held));
        assert!(gauge.high_water_bytes().unwrap() >= held / 2);
        assert_eq!(
            (gauge.name(), gauge.is_by_difference(), gauge.others()),
            ("cpu", false, Vec::new())
        );
    }

    #[test]
    fn a_card_that_is_not_there_tells_nothing_of_itself() {
        let gauge = Gauge::of_card("cuda:7".to_owned(), "ffff:ff:ff.0", Some(5));
        let reading = gauge.read();
        assert_eq!(
            Reading {
                host_rss_bytes: None,
                ..reading
            },
            Reading::default()
        );
        assert_eq!((gauge.name(), gauge.high_water_bytes()), ("cuda:7", None));
    }
}
