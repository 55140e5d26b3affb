//! Meaning of a column by its name: `memory.used [MiB]`, `max_memory_allocated`, `gpu_mem_mb`, `systemRamGb`.
//!
//! A name is split into words, at characters that are not alphanumeric and between a small letter and a capital. One word may be a
//! unit.

use super::values::unit_bytes;

/// Meaning of a number in a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Time,
    Step,
    /// Position within the epoch, with or without a global step beside it.
    BatchIndex,
    Epoch,
    Phase,
    /// Name of the device; of several columns, the one of the highest rank counts.
    Device(u8),
    Used,
    Total,
    Free,
    Process,
    Allocated,
    /// Peak since the start or the last reset.
    AllocatedPeak,
    Reserved,
    Planned,
    HostRss,
    Utilization,
    SamplesPerSecond,
    StepTime,
    /// Time per step spent waiting for data.
    DataTime,
    /// Share of the time spent waiting for data.
    Waited,
    BatchSize,
    /// High-water mark of the process.
    ProcessPeak,
    /// Memory budget of the process.
    Budget,
    Loss,
}

impl Meaning {
    pub const COUNT: usize = 24;

    pub fn index(self) -> usize {
        match self {
            Meaning::Time => 0,
            Meaning::Step => 1,
            Meaning::Epoch => 2,
            Meaning::Phase => 3,
            Meaning::Device(_) => 4,
            Meaning::Used => 5,
            Meaning::Total => 6,
            Meaning::Free => 7,
            Meaning::Process => 8,
            Meaning::Allocated => 9,
            Meaning::AllocatedPeak => 10,
            Meaning::Reserved => 11,
            Meaning::Planned => 12,
            Meaning::HostRss => 13,
            Meaning::Utilization => 14,
            Meaning::SamplesPerSecond => 15,
            Meaning::StepTime => 16,
            Meaning::DataTime => 17,
            Meaning::Waited => 18,
            Meaning::BatchSize => 19,
            Meaning::BatchIndex => 20,
            Meaning::ProcessPeak => 21,
            Meaning::Budget => 22,
            Meaning::Loss => 23,
        }
    }

    /// Whether the number is an amount of memory, which needs a unit.
    pub fn is_bytes(self) -> bool {
        matches!(
            self,
            Meaning::Used
                | Meaning::Total
                | Meaning::Free
                | Meaning::Process
                | Meaning::ProcessPeak
                | Meaning::Budget
                | Meaning::Allocated
                | Meaning::AllocatedPeak
                | Meaning::Reserved
                | Meaning::Planned
                | Meaning::HostRss
        )
    }

    /// Name in messages.
    pub fn words(self) -> &'static str {
        match self {
            Meaning::Time => "time",
            Meaning::Step => "step",
            Meaning::Epoch => "epoch",
            Meaning::Phase => "phase",
            Meaning::Device(_) => "device",
            Meaning::Used => "used memory",
            Meaning::Total => "total memory",
            Meaning::Free => "free memory",
            Meaning::Process => "the process's memory",
            Meaning::Allocated => "allocated",
            Meaning::AllocatedPeak => "peak allocated",
            Meaning::Reserved => "reserved",
            Meaning::Planned => "planned memory",
            Meaning::HostRss => "host memory",
            Meaning::Utilization => "GPU utilization",
            Meaning::SamplesPerSecond => "throughput",
            Meaning::StepTime => "step time",
            Meaning::DataTime => "time waiting for data",
            Meaning::Waited => "share of time waiting for data",
            Meaning::BatchSize => "batch size",
            Meaning::BatchIndex => "position in the epoch",
            Meaning::ProcessPeak => "the process's peak",
            Meaning::Budget => "budget of the process",
            Meaning::Loss => "loss",
        }
    }
}

/// A column with a known meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    pub meaning: Meaning,
    /// Factor to the base unit; `None` if the name has no unit and it must be guessed.
    pub scale: Option<f64>,
}

const PERCENT: [&str; 3] = ["percent", "pct", "percentage"];

/// Meaning of a name; `None` if it is irrelevant for the analysis.
pub(super) fn column(name: &str) -> Option<Column> {
    /// Longer strings are not column names.
    const LONGEST: usize = 120;
    if name.len() > LONGEST {
        return None;
    }
    let mut words = words(name);
    let mut scale = None;
    let mut seconds = 1.0;
    let mut has_time_unit = false;
    words.retain(|word| {
        if let Some(bytes) = unit_bytes(word) {
            scale = Some(bytes);
            return false;
        }
        match word.as_str() {
            "ms" | "msec" | "milliseconds" => seconds = 1e-3,
            "us" | "microseconds" => seconds = 1e-6,
            "s" | "sec" | "secs" | "seconds" | "second" => {}
            _ => return true,
        }
        has_time_unit = true;
        // Kept for `samples_per_s`, which is a rate and no time.
        true
    });
    let is_percent = words.iter().any(|word| PERCENT.contains(&word.as_str()));
    let meaning = meaning(name.trim(), &words, scale.is_some(), has_time_unit)?;
    let scale = match meaning {
        _ if meaning.is_bytes() => scale,
        Meaning::StepTime | Meaning::DataTime => Some(seconds),
        Meaning::Waited if is_percent => Some(0.01),
        _ => Some(1.0),
    };
    Some(Column { meaning, scale })
}

fn meaning(name: &str, words: &[String], has_bytes: bool, has_time_unit: bool) -> Option<Meaning> {
    let has = |any: &[&str]| words.iter().any(|word| any.contains(&word.as_str()));
    let is = |all: &[&str]| words.len() == all.len() && words.iter().zip(all).all(|(a, b)| a == b);
    let is_share = has(&PERCENT) || has(&["share", "ratio", "fraction"]);
    if has(&["waited"])
        || (has(&["data", "loader", "dataloader"]) && has(&["wait", "waiting"]) && is_share)
    {
        return Some(Meaning::Waited);
    }
    if words.last().is_some_and(|word| word == "loss") {
        // Validation losses are ignored: many scripts write NaN for steps without a validation.
        let is_held_out = has(&["val", "valid", "validation", "eval", "evaluation", "test"]);
        return (!is_held_out).then_some(Meaning::Loss);
    }
    let other = [
        "percent",
        "percentage",
        "pct",
        "ratio",
        "fraction",
        "temperature",
        "temp",
        "power",
        "clocks",
        "clock",
        "fan",
        "loss",
        "count",
        "freed",
        "retries",
        "ooms",
        "small",
        "large",
        "bar1",
        "ecc",
        "pcie",
        "swap",
        "disk",
        "bandwidth",
    ];
    // `memory.reserved` is the driver's own reserve in nvidia-smi; PyTorch's `memory_reserved` has no dot.
    if has(&other) || name.starts_with("memory.reserved") {
        return None;
    }
    let is_step = has(&["step", "steps", "iter", "iteration", "batch", "it"]);
    if has(&["data", "dataloader", "loader"])
        && (has(&["time", "wait", "waiting"]) || has_time_unit)
        || is(&["wait", "time"])
        || (is(&["fetch", "time"]) || is(&["wait", "s"]) || is(&["wait", "ms"]))
    {
        return Some(Meaning::DataTime);
    }
    if has(&["throughput", "ips"])
        || (has(&[
            "samples", "sample", "images", "imgs", "img", "examples", "tokens", "it", "its",
            "iters", "clips",
        ]) && has_time_unit)
    {
        return Some(Meaning::SamplesPerSecond);
    }
    if is_step && (has(&["time", "duration", "latency", "elapsed"]) || has_time_unit) {
        return Some(Meaning::StepTime);
    }
    if is(&["time"])
        || has(&["timestamp", "datetime", "walltime", "elapsed", "ts"])
        || is(&["date"])
        || is(&["wall", "time"])
        || is(&["unix", "time"])
        || (is(&["time", "s"]) || is(&["time", "sec"]) || is(&["time", "seconds"]))
    {
        return Some(Meaning::Time);
    }
    if is(&["batch", "size"])
        || is(&["micro", "batch"])
        || is(&["micro", "batch", "size"])
        || is(&["bs"])
    {
        return Some(Meaning::BatchSize);
    }
    if is(&["step"])
        || is(&["global", "step"])
        || is(&["train", "step"])
        || is(&["trainer", "global", "step"])
        || is(&["iteration"])
        || is(&["iter"])
        || is(&["it"])
    {
        return Some(Meaning::Step);
    }
    if is(&["batch"])
        || (words.len() == 2 && has(&["batch"]) && has(&["idx", "index", "id", "number"]))
    {
        return Some(Meaning::BatchIndex);
    }
    if has(&["epoch"]) {
        return Some(Meaning::Epoch);
    }
    if is(&["phase"]) || is(&["stage"]) || is(&["mode"]) || is(&["split"]) {
        return Some(Meaning::Phase);
    }
    if is(&["pid"]) {
        return Some(Meaning::Device(4));
    }
    if has(&["uuid"]) {
        return Some(Meaning::Device(3));
    }
    if is(&["index"])
        || is(&["gpu", "index"])
        || is(&["gpu", "id"])
        || is(&["device", "id"])
        || is(&["device", "index"])
    {
        return Some(Meaning::Device(2));
    }
    if !has_bytes
        && (is(&["gpu"])
            || is(&["device"])
            || is(&["cuda"])
            || is(&["rank"])
            || is(&["local", "rank"]))
    {
        return Some(Meaning::Device(1));
    }
    let is_memory = has(&["mem", "memory", "vram"]);
    if has(&["utilization", "util", "utilisation"]) {
        let of_other = has(&["cpu", "encoder", "decoder", "jpeg", "ofa"]) || is_memory;
        return (!of_other).then_some(Meaning::Utilization);
    }
    let is_peak = has(&["peak", "max", "maximum"]);
    if has(&["rss", "ram"]) || (has(&["host", "cpu", "system"]) && (is_memory || has_bytes)) {
        let is_other = is_peak || has(&["total", "free", "available"]);
        return (!is_other).then_some(Meaning::HostRss);
    }
    if is(&["budget"]) && has_bytes {
        return Some(Meaning::Budget);
    }
    if has(&["arena", "budget", "limit", "min", "avg"]) {
        return None;
    }
    if has(&["planned", "forecast"]) && (is_memory || has_bytes) {
        return Some(Meaning::Planned);
    }
    let num_allocated = words.iter().filter(|word| *word == "allocated").count();
    if num_allocated > 1 {
        return None;
    }
    if has(&["allocated", "alloc", "active"]) && !has(&["all", "requests"]) || is_statistic(words) {
        return Some(if is_peak {
            Meaning::AllocatedPeak
        } else {
            Meaning::Allocated
        });
    }
    if has(&["reserved", "cached"]) {
        return (!is_peak).then_some(Meaning::Reserved);
    }
    let is_of_gpu = is_memory || has_bytes || has(&["gpu", "cuda"]);
    if has(&["total", "capacity"]) && is_of_gpu {
        return Some(Meaning::Total);
    }
    if has(&["free", "available"]) && is_of_gpu {
        return Some(Meaning::Free);
    }
    if has(&["process", "proc"]) && is_of_gpu {
        return Some(if is_peak {
            Meaning::ProcessPeak
        } else {
            Meaning::Process
        });
    }
    if is_memory || is(&["used"]) || (has(&["used", "gpu", "cuda"]) && has_bytes) {
        return Some(if is_peak {
            Meaning::AllocatedPeak
        } else {
            Meaning::Used
        });
    }
    None
}

/// A statistic of `torch.cuda.memory_stats()`, such as `allocated_bytes.all.current`.
fn is_statistic(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    matches!(words[..], [.., "allocated", "all", "current" | "peak"])
}

fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut was_small = false;
    // Keeps `MiB` in one word despite the capital in its middle.
    for c in name.replace("iB", "ib").chars() {
        let is_capital = c.is_ascii_uppercase();
        if !c.is_ascii_alphanumeric() || (is_capital && was_small) {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_lowercase());
        }
        was_small = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: Option<f64> = Some(1_048_576.0);
    const GIB: Option<f64> = Some(1_073_741_824.0);

    #[test]
    fn names_as_people_write_them() {
        for (name, meaning, scale) in [
            ("memory.used [MiB]", Meaning::Used, MIB),
            (" memory.total [MiB]", Meaning::Total, MIB),
            ("memory.free [MiB]", Meaning::Free, MIB),
            ("memory.used", Meaning::Used, None),
            ("utilization.gpu [%]", Meaning::Utilization, Some(1.0)),
            ("timestamp", Meaning::Time, Some(1.0)),
            ("index", Meaning::Device(2), Some(1.0)),
            ("uuid", Meaning::Device(3), Some(1.0)),
            ("used_gpu_memory [MiB]", Meaning::Used, MIB),
            ("allocated", Meaning::Allocated, None),
            ("reserved", Meaning::Reserved, None),
            ("memory_allocated", Meaning::Allocated, None),
            ("memory_reserved", Meaning::Reserved, None),
            ("memory_cached", Meaning::Reserved, None),
            ("max_memory_allocated", Meaning::AllocatedPeak, None),
            ("allocated_gb", Meaning::Allocated, GIB),
            ("gpu_mem_mb", Meaning::Used, MIB),
            ("gpu_memory", Meaning::Used, None),
            ("vram_gib", Meaning::Used, GIB),
            ("GPU Memory (GB)", Meaning::Used, GIB),
            ("cudaMemAllocatedMB", Meaning::Allocated, MIB),
            ("train/gpu_mem_alloc_gb", Meaning::Allocated, GIB),
            ("allocated_bytes.all.current", Meaning::Allocated, Some(1.0)),
            (
                "allocated_bytes.all.peak",
                Meaning::AllocatedPeak,
                Some(1.0),
            ),
            ("reserved_bytes.all.current", Meaning::Reserved, Some(1.0)),
            ("peak_mem_gb", Meaning::AllocatedPeak, GIB),
            ("total_memory", Meaning::Total, None),
            ("used_bytes", Meaning::Used, Some(1.0)),
            ("total_bytes", Meaning::Total, Some(1.0)),
            ("process_bytes", Meaning::Process, Some(1.0)),
            ("planned_bytes", Meaning::Planned, Some(1.0)),
            ("host_rss_bytes", Meaning::HostRss, Some(1.0)),
            ("cpu_mem_mb", Meaning::HostRss, MIB),
            ("ram_gb", Meaning::HostRss, GIB),
            ("gpu_utilization", Meaning::Utilization, Some(1.0)),
            ("gpu_util", Meaning::Utilization, Some(1.0)),
            ("samples_per_s", Meaning::SamplesPerSecond, Some(1.0)),
            ("images_per_sec", Meaning::SamplesPerSecond, Some(1.0)),
            ("it/s", Meaning::SamplesPerSecond, Some(1.0)),
            ("step_time", Meaning::StepTime, Some(1.0)),
            ("step_ms", Meaning::StepTime, Some(1e-3)),
            ("batch_time_s", Meaning::StepTime, Some(1.0)),
            ("data_time", Meaning::DataTime, Some(1.0)),
            ("waited_for_data", Meaning::Waited, Some(1.0)),
            ("data_wait_percent", Meaning::Waited, Some(0.01)),
            ("global_step", Meaning::Step, Some(1.0)),
            ("batch_idx", Meaning::BatchIndex, Some(1.0)),
            ("process_peak_bytes", Meaning::ProcessPeak, Some(1.0)),
            ("budget_bytes", Meaning::Budget, Some(1.0)),
            ("train/loss", Meaning::Loss, Some(1.0)),
            ("iter", Meaning::Step, Some(1.0)),
            ("epoch", Meaning::Epoch, Some(1.0)),
            ("batch_size", Meaning::BatchSize, Some(1.0)),
            ("device", Meaning::Device(1), Some(1.0)),
            ("local_rank", Meaning::Device(1), Some(1.0)),
        ] {
            assert_eq!(column(name), Some(Column { meaning, scale }), "{name}");
        }
        for name in [
            "",
            "name",
            "loss_scale",
            "val_loss",
            "lr",
            "temperature.gpu",
            "utilization.memory [%]",
            "memory.reserved [MiB]",
            "memory_percent",
            "allocated_bytes.all.allocated",
            "allocated_bytes.all.freed",
            "allocated_bytes.small_pool.current",
            "allocation.all.current",
            "max_memory_reserved",
            "arena_bytes",
            "power.draw [W]",
            "cpu_util",
        ] {
            assert_eq!(column(name), None, "{name}");
        }
    }

    #[test]
    fn indices_are_all_different() {
        let mut seen = [false; Meaning::COUNT];
        for name in [
            "time",
            "step",
            "epoch",
            "phase",
            "gpu",
            "used",
            "total_gb",
            "free_gb",
            "process_bytes",
            "allocated",
            "max_allocated",
            "reserved",
            "planned_bytes",
            "rss",
            "gpu_util",
            "throughput",
            "step_ms",
            "data_time",
            "waited_for_data",
            "batch_size",
            "batch_idx",
            "process_peak_bytes",
            "budget_bytes",
            "loss",
        ] {
            let index = column(name)
                .unwrap_or_else(|| panic!("{name}"))
                .meaning
                .index();
            assert!(!std::mem::replace(&mut seen[index], true), "{name}");
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
