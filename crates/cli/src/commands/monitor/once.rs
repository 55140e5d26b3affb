//! A single sample as text, for pipes and quick looks.

use holdall_files::{counted, show_bytes};

use super::readings::Readings;
use super::run::RunReading;
use super::words::{self, NAME_WIDTH, UNKNOWN, facts, gpu_name, of_bytes, percent};
use crate::screen::table;

/// Message on a missing GPU, with advice.
pub fn no_gpu(reason: &str) -> String {
    format!("No GPU: {reason}. `holdall doctor` says what to do")
}

pub const NO_RUN: &str =
    "No run is training on this machine. `holdall monitor RUN` shows one that has ended";

pub fn show(readings: &Readings, run: Option<&RunReading>) -> String {
    let mut text = show_host(readings);
    text += &match &readings.gpus {
        Ok(_) => show_gpus(readings),
        Err(reason) => format!("{}\n", no_gpu(reason)),
    };
    text += &match run {
        Some(run) => show_run(run),
        None => format!("{NO_RUN}\n"),
    };
    text
}

fn show_host(readings: &Readings) -> String {
    let host = &readings.host;
    let mut text = format!("Host: CPU {}", percent(host.cpu_percent));
    if let Some(threads) = host.num_threads {
        text += &format!(" of {}", counted(threads, "thread"));
    }
    if let Some([one, five, fifteen]) = host.load {
        text += &format!(", load {one:.2} {five:.2} {fifteen:.2}");
    }
    text += &format!(
        ", memory {}",
        of_bytes(readings.host_used_bytes(), host.memory_total_bytes)
    );
    if let Some(limit) = host.memory_limit_bytes {
        text += &format!(" (a limit of {})", show_bytes(limit));
    }
    text + "\n"
}

fn show_gpus(readings: &Readings) -> String {
    let gpus = readings.gpus.as_deref().unwrap_or_default();
    let heading = ["GPU", "memory", "busy", "power", "temperature"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for gpu in gpus {
        rows.push(vec![
            format!("{} {}", gpu.index, gpu_name(gpu)),
            of_bytes(
                gpu.memory.map(|memory| memory.used_bytes),
                gpu.memory.map(|memory| memory.total_bytes),
            ),
            percent(gpu.utilization_percent.map(f64::from)),
            words::power(gpu),
            words::temperature(gpu),
        ]);
    }
    let mut text = table(&rows);
    let mut holders = vec![
        ["on", "process", "name", "memory"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for gpu in gpus {
        for holder in gpu.processes.iter().flatten() {
            let name = Some(holder.name.as_str()).filter(|name| !name.is_empty());
            holders.push(vec![
                format!("GPU {}", gpu.index),
                holder.pid.to_string(),
                name.unwrap_or("name not visible").to_owned(),
                holder.bytes.map_or(UNKNOWN.to_owned(), show_bytes),
            ]);
        }
    }
    if holders.len() > 1 {
        text += &table(&holders);
    }
    text
}

fn show_run(run: &RunReading) -> String {
    let mut text = format!(
        "Run {}: {}, {}\n",
        run.folder.display(),
        words::state(run),
        words::progress(run)
    );
    for (name, value) in facts(run) {
        text += &format!("  {name:<NAME_WIDTH$} {value}\n");
    }
    text
}
