//! Number formatting for screen and table; unknown values are `-`.

use std::time::Duration;

use holdall_device::cuda::gpus::GpuReading;
use holdall_files::{show_bytes, thousands};
use holdall_telemetry::run_files::{ProcessesOfStep, in_words, is_share};

use super::run::{RunReading, RunState};

pub const UNKNOWN: &str = "-";

/// GiB without the unit: `3.1`.
pub fn gib(bytes: f64) -> String {
    format!("{:.1}", bytes / (1u64 << 30) as f64)
}

/// Two byte counts in the unit of the larger: `3.1/8.0 GiB`.
pub fn of_bytes(used: Option<u64>, total: Option<u64>) -> String {
    match (used, total) {
        (Some(used), Some(total)) if total < 1 << 30 => {
            let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
            format!("{:.0}/{:.0} MiB", mib(used), mib(total))
        }
        (Some(used), Some(total)) => {
            format!("{}/{} GiB", gib(used as f64), gib(total as f64))
        }
        (Some(used), None) => show_bytes(used),
        (None, Some(total)) => format!("{UNKNOWN}/{} GiB", gib(total as f64)),
        (None, None) => UNKNOWN.to_owned(),
    }
}

pub fn percent(value: Option<f64>) -> String {
    value.map_or(UNKNOWN.to_owned(), |value| format!("{value:.0}%"))
}

/// `115/220 W`.
pub fn power(gpu: &GpuReading) -> String {
    match (gpu.power_watts, gpu.power_limit_watts) {
        (Some(draw), Some(limit)) => format!("{draw:.0}/{limit:.0} W"),
        (Some(draw), None) => format!("{draw:.0} W"),
        (None, _) => UNKNOWN.to_owned(),
    }
}

pub fn temperature(gpu: &GpuReading) -> String {
    gpu.temperature_celsius
        .map_or(UNKNOWN.to_owned(), |degrees| format!("{degrees} °C"))
}

pub fn gpu_name(gpu: &GpuReading) -> &str {
    let name = gpu.name.as_deref().unwrap_or("does not answer");
    name.strip_prefix("NVIDIA ").unwrap_or(name)
}

/// `500 ms`, `1 s`, `2.5 s`.
pub fn interval(interval: Duration) -> String {
    match interval.as_millis() {
        milliseconds @ 0..1000 => format!("{milliseconds} ms"),
        _ => format!("{} s", (interval.as_secs_f64() * 10.0).round() / 10.0),
    }
}

/// `45 s`, `10 min`.
pub fn span(seconds: f64) -> String {
    match seconds.max(0.0) {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// Progress of a run: `epoch 3/20, step 412/1,640`.
pub fn progress(run: &RunReading) -> String {
    let of = |done: u64, all: Option<u64>| match all {
        Some(all) => format!("{}/{}", thousands(done), thousands(all)),
        None => thousands(done),
    };
    match (run.progress.epoch, run.progress.step) {
        (Some(epoch), Some(step)) => {
            format!(
                "epoch {}, step {}",
                of(epoch, run.progress.epochs),
                of(step, run.progress.steps)
            )
        }
        _ => "no step yet".to_owned(),
    }
}

/// `running (evaluate)`, `stopped 12 min ago`.
pub fn state(run: &RunReading) -> String {
    let ago = run
        .quiet_s
        .map_or(String::new(), |seconds| format!(" {} ago", span(seconds)));
    match (run.state, run.phase) {
        (RunState::Running, Some(phase)) => format!("running ({})", phase.name()),
        (RunState::Running, None) => "running".to_owned(),
        (RunState::Finished, _) => format!("finished{ago}"),
        (RunState::Failed, _) => format!("failed{ago}"),
        (RunState::Stopped, _) => format!("stopped{ago}"),
    }
}

/// Most losses shown by name.
const MOST_LOSSES: usize = 3;
/// Width of the name column.
pub const NAME_WIDTH: usize = 12;

/// Names and values of a run's figures, most important first, without unknown ones. Each fits
/// half of the narrowest screen.
pub fn facts(run: &RunReading) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        let name = name.chars().take(NAME_WIDTH - 1).collect();
        facts.extend(value.map(|value| (name, value)));
    };
    let by_chance = |value: Option<f64>, chance: Option<f64>| match (value, chance) {
        (Some(value), Some(chance)) => format!("{value:.3} (chance {chance:.3})"),
        (Some(value), None) => format!("{value:.3}"),
        (None, _) => "not a number".to_owned(),
    };
    add(
        "loss",
        run.progress
            .step
            .map(|_| by_chance(run.progress.loss, run.progress.chance)),
    );
    for loss in run.progress.losses.iter().take(MOST_LOSSES) {
        let value = by_chance(loss.value, loss.chance);
        add(&in_words(&loss.name), Some(value));
    }
    let more = run.progress.losses.len().saturating_sub(MOST_LOSSES);
    add("", (more > 0).then(|| format!("and {more} more")));
    let speed = run.progress.samples_per_s;
    add("speed", speed.map(|speed| format!("{speed:.0} samples/s")));
    let waited = run.progress.waited_for_data;
    add(
        "data wait",
        waited.map(|share| format!("{:.1}%", 100.0 * share)),
    );
    add("memory", memory(run));
    let processes = run.processes.as_ref();
    add("processes", processes.map(slowest));
    add("by rank", processes.and_then(memory_by_rank));
    add("plan", plan(run));
    add("", how(run));
    add(
        "left",
        run.progress
            .left_s
            .map(|seconds| format!("about {}", span(seconds))),
    );
    for (at, metric) in metrics(run).into_iter().enumerate() {
        add(if at == 0 { "evaluation" } else { "" }, Some(metric));
    }
    facts
}

fn memory(run: &RunReading) -> Option<String> {
    let planned = run.plan.planned_bytes?;
    Some(match (run.used_bytes, run.state) {
        (None, _) => format!("{} planned", show_bytes(planned)),
        (used, RunState::Running) => format!("{} planned", of_bytes(used, Some(planned))),
        (used, _) => format!("peak {} planned", of_bytes(used, Some(planned))),
    })
}

/// `4, slowest rank 3 (+12%)`.
fn slowest(each: &ProcessesOfStep) -> String {
    match (each.slowest_rank, each.slowest_ratio) {
        (Some(rank), Some(ratio)) => format!(
            "{}, slowest rank {rank} (+{:.0}%)",
            each.processes,
            100.0 * (ratio - 1.0)
        ),
        _ => each.processes.to_string(),
    }
}

/// Most ranks whose memory is shown.
const MOST_RANKS: usize = 3;

/// Memory by rank: `1.20 GiB, 1.18 GiB`; with more ranks, the first ones and the maximum.
fn memory_by_rank(each: &ProcessesOfStep) -> Option<String> {
    let bytes = &each.process_bytes;
    let most = bytes.iter().flatten().max()?;
    let shown = bytes.iter().take(MOST_RANKS);
    let shown: Vec<String> = shown
        .map(|bytes| bytes.map_or("?".to_owned(), show_bytes))
        .collect();
    Some(if bytes.len() > MOST_RANKS {
        format!("at most {}", show_bytes(*most))
    } else {
        shown.join(", ")
    })
}

/// `batch 8`, `batch 8 x 16 = 128`, `batch 4 processes x 8 x 4 = 128`.
fn plan(run: &RunReading) -> Option<String> {
    let (batch, times) = (
        run.plan.batch_size?,
        run.plan.gradient_accumulation.unwrap_or(1),
    );
    let each = run.processes.as_ref().map_or(1, |each| each.processes);
    if times == 1 && each == 1 {
        return Some(format!("batch {batch}"));
    }
    let product = batch.saturating_mul(times).saturating_mul(each);
    let all = run.plan.effective_batch.unwrap_or(product);
    let among = match each {
        1 => String::new(),
        _ => format!("{each} processes x "),
    };
    Some(format!("batch {among}{batch} x {times} = {all}"))
}

fn how(run: &RunReading) -> Option<String> {
    let recompute = run.plan.recompute.as_ref();
    let recompute = recompute.map(|recompute| format!("recompute {recompute}"));
    let all: Vec<String> = [run.plan.precision.clone(), recompute]
        .into_iter()
        .flatten()
        .collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The leading metrics of the newest evaluation.
fn metrics(run: &RunReading) -> Vec<String> {
    let evaluation = run.evaluation.iter();
    let leading = evaluation.flat_map(|evaluation| evaluation.leading());
    leading
        .map(|metric| {
            if is_share(&metric.name, [metric.value]) {
                format!("{} {:.1}%", metric.title(), 100.0 * metric.value)
            } else {
                format!("{} {:.3}", metric.title(), metric.value)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn units_are_the_larger_ones() {
        assert_eq!(of_bytes(Some(3 * GIB), Some(8 * GIB)), "3.0/8.0 GiB");
        assert_eq!(of_bytes(Some(1 << 20), Some(512 << 20)), "1/512 MiB");
        assert_eq!(of_bytes(None, Some(8 * GIB)), "-/8.0 GiB");
        assert_eq!(of_bytes(None, None), "-");
        assert_eq!(interval(Duration::from_millis(500)), "500 ms");
        assert_eq!(interval(Duration::from_millis(2500)), "2.5 s");
        assert_eq!(interval(Duration::from_secs(1)), "1 s");
        assert_eq!(percent(None), "-");
    }
}
