//! A sample of the machine as plain data, to be drawn, printed or written as JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use holdall_device::cuda::gpus::{self, GpuReading};
use serde_json::{Value, json};

use crate::host::{HostReading, HostWatch};

#[derive(Clone, Debug)]
pub struct Readings {
    /// Seconds since 1970, UTC.
    pub time: f64,
    pub host: HostReading,
    /// An error text if GPUs cannot be read.
    pub gpus: Result<Vec<GpuReading>, String>,
}

impl Readings {
    /// Samples the machine.
    pub fn take(host: &mut HostWatch) -> Readings {
        // A system clock before 1970 is wrong, but not an error.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Readings {
            time: since.map_or(0.0, |since| since.as_secs_f64()),
            host: host.read(),
            gpus: gpus::read().map_err(|reason| reason.to_string()),
        }
    }

    /// Host memory in use.
    pub fn host_used_bytes(&self) -> Option<u64> {
        let total = self.host.memory_total_bytes?;
        Some(total.saturating_sub(self.host.memory_available_bytes?))
    }

    /// The sample for `--json`.
    pub fn json(&self) -> Value {
        let host = &self.host;
        json!({
            "time": self.time,
            "host": {
                "name": host.name,
                "cpu_percent": host.cpu_percent,
                "load": host.load,
                "num_threads": host.num_threads,
                "memory_total_bytes": host.memory_total_bytes,
                "memory_available_bytes": host.memory_available_bytes,
                "memory_limit_bytes": host.memory_limit_bytes,
            },
            "gpus": self.gpus.as_deref().unwrap_or_default().iter().map(gpu_json).collect::<Vec<_>>(),
            "no_gpu": self.gpus.as_ref().err(),
        })
    }
}

fn gpu_json(gpu: &GpuReading) -> Value {
    let processes = gpu.processes.as_ref().map(|processes| {
        let processes = processes.iter();
        let json = processes.map(|process| {
            let name = Some(&process.name).filter(|name| !name.is_empty());
            json!({"pid": process.pid, "name": name, "bytes": process.bytes})
        });
        json.collect::<Vec<_>>()
    });
    json!({
        "index": gpu.index,
        "name": gpu.name,
        "used_bytes": gpu.memory.map(|memory| memory.used_bytes),
        "free_bytes": gpu.memory.map(|memory| memory.free_bytes),
        "total_bytes": gpu.memory.map(|memory| memory.total_bytes),
        "utilization_percent": gpu.utilization_percent,
        "power_watts": gpu.power_watts,
        "power_limit_watts": gpu.power_limit_watts,
        "temperature_celsius": gpu.temperature_celsius,
        "processes": processes,
    })
}
