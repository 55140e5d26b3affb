//! Meaning of a column by its name: `memory.used [MiB]`, `max_memory_allocated`, `gpu_mem_mb`, `systemRamGb`.
//!
//! A name is split into words, at characters that are not alphanumeric and between a small letter and a capital. One word may be a
//! unit. The first rule of [`RULES`] that fits the words has the meaning.

use super::values::unit_bytes;

/// Quantity in a column. Amounts of memory come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Used,
    Process,
    Allocated,
    /// Peak since the start or the last reset.
    AllocatedPeak,
    Reserved,
    HostRss,
    /// Used memory of the device without the process's own; computed, never read.
    Others,
    Total,
    Free,
    /// High-water mark of the process.
    ProcessPeak,
    /// Memory budget of the process.
    Budget,
    Planned,
    Time,
    Step,
    /// Position within the epoch, with or without a global step beside it.
    BatchIndex,
    Epoch,
    Utilization,
    SamplesPerSecond,
    StepTime,
    /// Time per step spent waiting for data.
    DataTime,
    /// Share of the time spent waiting for data.
    Waited,
    BatchSize,
    Loss,
    /// Number of the sample of its device, from 1; computed.
    Row,
    /// Steps since the beginning of the log; computed, never decreases.
    Progress,
    /// Seconds since the beginning of the log without pauses; computed, never decreases.
    Clock,
    Phase,
    /// Names of the device: of several columns, the last of these counts.
    Device,
    DeviceIndex,
    DeviceUuid,
    Pid,
    /// Irrelevant for the analysis.
    Ignored,
}

impl Meaning {
    /// Number of quantities, which come before the names.
    pub const NUM_QUANTITIES: usize = Meaning::Phase as usize;

    /// Whether the number is an amount of memory, which needs a unit.
    pub fn is_bytes(self) -> bool {
        self as usize <= Meaning::Planned as usize
    }

    pub fn is_device(self) -> bool {
        (Meaning::Device as usize..=Meaning::Pid as usize).contains(&(self as usize))
    }

    /// Name in findings and in the list of recognised columns.
    pub fn words(self) -> &'static str {
        self.words_and_range().0
    }

    /// Whether the number makes sense.
    pub fn may_be(self, number: f64) -> bool {
        self.words_and_range().1.contains(&number)
    }

    #[rustfmt::skip]
    fn words_and_range(self) -> (&'static str, std::ops::RangeInclusive<f64>) {
        /// More than any machine has.
        const MOST_BYTES: f64 = 1e15;
        const MOST: f64 = 1e12;
        match self {
            Meaning::Used => ("used memory", 0.0..=MOST_BYTES),
            Meaning::Process => ("the process's memory", 0.0..=MOST_BYTES),
            Meaning::Allocated => ("allocated memory", 0.0..=MOST_BYTES),
            Meaning::AllocatedPeak => ("peak allocated memory", 0.0..=MOST_BYTES),
            Meaning::Reserved => ("reserved memory", 0.0..=MOST_BYTES),
            Meaning::HostRss => ("host memory", 0.0..=MOST_BYTES),
            Meaning::Others => ("memory of other processes", 0.0..=MOST_BYTES),
            Meaning::Total => ("total memory", 1.0..=MOST_BYTES),
            Meaning::Free => ("free memory", 0.0..=MOST_BYTES),
            Meaning::ProcessPeak => ("the process's peak", 0.0..=MOST_BYTES),
            Meaning::Budget => ("budget of the process", 1.0..=MOST_BYTES),
            Meaning::Planned => ("planned memory", 1.0..=MOST_BYTES),
            Meaning::Time => ("time", -MOST..=MOST),
            Meaning::Step => ("step", 0.0..=1e15),
            Meaning::BatchIndex => ("position in the epoch", 0.0..=1e15),
            Meaning::Epoch => ("epoch", 0.0..=1e15),
            Meaning::Utilization => ("GPU utilization", 0.0..=100.0),
            Meaning::SamplesPerSecond => ("throughput", 1e-9..=MOST),
            Meaning::StepTime => ("step time", 1e-9..=MOST),
            Meaning::DataTime => ("time waiting for data", 0.0..=MOST),
            Meaning::Waited => ("share of time waiting for data", 0.0..=1.0),
            Meaning::BatchSize => ("batch size", 1e-9..=MOST),
            Meaning::Loss => ("loss", f64::MIN..=f64::MAX),
            Meaning::Phase => ("phase", 0.0..=0.0),
            Meaning::Device | Meaning::DeviceIndex | Meaning::DeviceUuid | Meaning::Pid => ("device", 0.0..=1e9),
            Meaning::Row | Meaning::Progress | Meaning::Clock | Meaning::Ignored => ("", 0.0..=0.0),
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

/// Words that rules summarise.
const GROUPS: [(&str, &str); 7] = [
    ("<memory>", "mem|memory|vram"),
    ("<peak>", "peak|max|maximum"),
    ("<percent>", "percent|pct|percentage"),
    ("<share>", "percent|pct|percentage|share|ratio|fraction"),
    ("<data>", "data|loader|dataloader"),
    ("<step>", "step|steps|iter|iteration|batch|it"),
    ("<held_out>", "val|valid|validation|eval|evaluation|test"),
];

/// Rules in order of precedence. A rule fits if all its conditions, with blanks between them, hold; ` / ` is between alternatives:
///
/// ```text
/// a|b       the name has one of these words or groups; <bytes>, <seconds>: a unit; <loss>: the last word is `loss`
/// !a|b      it has none of them
/// =a.b|c    its words are exactly `a b`, or `c`
/// ```
#[rustfmt::skip]
const RULES: [(Meaning, &str); 36] = [
    (Meaning::Waited, "waited / <data> wait|waiting <share>"),
    // Validation losses are ignored: many scripts write NaN for steps without a validation.
    (Meaning::Ignored, "<loss> <held_out>"),
    (Meaning::Loss, "<loss>"),
    (Meaning::Ignored, "<percent>|ratio|fraction|temperature|temp|power|clocks|clock|fan|loss|count"),
    (Meaning::Ignored, "freed|retries|ooms|small|large|bar1|ecc|pcie|swap|disk|bandwidth"),
    (Meaning::DataTime, "<data> time|wait|waiting|<seconds> / =wait.time|fetch.time|wait.s|wait.ms"),
    (Meaning::SamplesPerSecond, "throughput|ips / samples|sample|images|imgs|img|examples|tokens|it|its|iters|clips <seconds>"),
    (Meaning::StepTime, "<step> time|duration|latency|elapsed|<seconds>"),
    (Meaning::Time, "=time|date|wall.time|unix.time|time.s|time.sec|time.seconds / timestamp|datetime|walltime|elapsed|ts"),
    (Meaning::BatchSize, "=batch.size|micro.batch|micro.batch.size|bs"),
    (Meaning::Step, "=step|global.step|train.step|trainer.global.step|iteration|iter|it"),
    (Meaning::BatchIndex, "=batch|batch.idx|batch.index|batch.id|batch.number"),
    (Meaning::Epoch, "epoch"),
    (Meaning::Phase, "=phase|stage|mode|split"),
    (Meaning::Pid, "=pid"),
    (Meaning::DeviceUuid, "uuid"),
    (Meaning::DeviceIndex, "=index|gpu.index|gpu.id|device.id|device.index"),
    (Meaning::Device, "=gpu|device|cuda|rank|local.rank !<bytes>"),
    (Meaning::Ignored, "utilization|util|utilisation cpu|encoder|decoder|jpeg|ofa|<memory>"),
    (Meaning::Utilization, "utilization|util|utilisation"),
    (Meaning::Ignored, "rss|ram <peak>|total|free|available / host|cpu|system <memory>|<bytes> <peak>|total|free|available"),
    (Meaning::HostRss, "rss|ram / host|cpu|system <memory>|<bytes>"),
    (Meaning::Budget, "=budget <bytes>"),
    (Meaning::Ignored, "arena|budget|limit|min|avg"),
    (Meaning::Planned, "planned|forecast <memory>|<bytes>"),
    // Statistics of `torch.cuda.memory_stats()`, such as `allocated_bytes.all.current`.
    (Meaning::Ignored, "=allocated.all.allocated"),
    (Meaning::AllocatedPeak, "allocated all peak / allocated|alloc|active <peak> !all|requests"),
    (Meaning::Allocated, "allocated all current / allocated|alloc|active !all|requests"),
    (Meaning::Ignored, "reserved|cached <peak>"),
    (Meaning::Reserved, "reserved|cached"),
    (Meaning::Total, "total|capacity <memory>|<bytes>|gpu|cuda"),
    (Meaning::Free, "free|available <memory>|<bytes>|gpu|cuda"),
    (Meaning::ProcessPeak, "process|proc <peak> <memory>|<bytes>|gpu|cuda"),
    (Meaning::Process, "process|proc <memory>|<bytes>|gpu|cuda"),
    (Meaning::AllocatedPeak, "<memory> <peak> / used|gpu|cuda <bytes> <peak>"),
    (Meaning::Used, "<memory> / =used / used|gpu|cuda <bytes>"),
];

/// Meaning of a name; `None` if it is irrelevant for the analysis.
pub(super) fn column(name: &str) -> Option<Column> {
    /// Longer strings are not column names.
    const LONGEST: usize = 120;
    // In nvidia-smi this is the driver's own reserve; PyTorch's `memory_reserved` has no dot.
    if name.len() > LONGEST || name.trim().starts_with("memory.reserved") {
        return None;
    }
    let (units, words): (Vec<String>, Vec<String>) = words(name)
        .into_iter()
        .partition(|word| unit_bytes(word).is_some());
    let bytes = units.last().and_then(|unit| unit_bytes(unit));
    let seconds = words.iter().rev().find_map(|word| match word.as_str() {
        "ms" | "msec" | "milliseconds" => Some(1e-3),
        "us" | "microseconds" => Some(1e-6),
        "s" | "sec" | "secs" | "seconds" | "second" => Some(1.0),
        _ => None,
    });
    let mut marks: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_loss = marks.last() == Some(&"loss");
    marks.extend(is_loss.then_some("<loss>"));
    marks.extend(bytes.map(|_| "<bytes>"));
    marks.extend(seconds.map(|_| "<seconds>"));
    for (group, members) in GROUPS {
        let is_there = members.split('|').any(|word| marks.contains(&word));
        marks.extend(is_there.then_some(group));
    }
    let name = words.join(".");
    let holds = |condition: &str| match condition.as_bytes()[0] {
        b'=' => condition[1..].split('|').any(|exact| exact == name),
        b'!' => !condition[1..].split('|').any(|word| marks.contains(&word)),
        _ => condition.split('|').any(|word| marks.contains(&word)),
    };
    let fits = |rule: &str| rule.split(" / ").any(|rule| rule.split(' ').all(holds));
    let (meaning, _) = *RULES.iter().find(|(_, rule)| fits(rule))?;
    let scale = match meaning {
        Meaning::Ignored => return None,
        _ if meaning.is_bytes() => bytes,
        Meaning::StepTime | Meaning::DataTime => seconds.or(Some(1.0)),
        Meaning::Waited if marks.contains(&"<percent>") => Some(0.01),
        _ => Some(1.0),
    };
    Some(Column { meaning, scale })
}

fn words(name: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut was_small = false;
    // Keeps `MiB` in one word despite the capital in its middle.
    for c in name.replace("iB", "ib").chars() {
        if was_small && c.is_ascii_uppercase() {
            spaced.push(' ');
        }
        spaced.push(c.to_ascii_lowercase());
        was_small = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    let words = spaced.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
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
            ("index", Meaning::DeviceIndex, Some(1.0)),
            ("uuid", Meaning::DeviceUuid, Some(1.0)),
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
            ("device", Meaning::Device, Some(1.0)),
            ("local_rank", Meaning::Device, Some(1.0)),
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
}
