//! Readings of the machine except GPUs: processors, memory, disks. Complete on Linux; elsewhere unknown values are `None`.

use std::path::Path;
use std::time::Duration;

/// One sample of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostReading {
    /// Host name.
    pub name: Option<String>,
    /// Processor time used since the previous sample, 0 to 100.
    pub cpu_percent: Option<f64>,
    /// Load averages over 1, 5 and 15 minutes.
    pub load: Option<[f64; 3]>,
    /// Threads that may run at once.
    pub num_threads: Option<usize>,
    pub memory_total_bytes: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    /// Limit of a container or `ulimit`, if below the physical memory.
    pub memory_limit_bytes: Option<u64>,
}

/// Samples the machine repeatedly; processor use is the difference between samples.
#[derive(Debug, Default)]
pub struct HostWatch {
    before: Option<Ticks>,
}

/// Cumulative processor time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl HostWatch {
    /// A watch whose first sample covers this duration.
    pub fn primed(moment: Duration) -> HostWatch {
        let watch = HostWatch { before: ticks() };
        std::thread::sleep(moment);
        watch
    }

    /// Takes a sample.
    pub fn read(&mut self) -> HostReading {
        let now = ticks();
        let cpu_percent = self.before.zip(now).and_then(busy_percent);
        self.before = now.or(self.before);
        let memory = holdall_device::cpu::host_memory();
        HostReading {
            name: read("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()),
            cpu_percent,
            load: read("/proc/loadavg").and_then(|text| load(&text)),
            num_threads: num_threads(),
            memory_total_bytes: memory.map(|memory| memory.machine_bytes),
            memory_available_bytes: memory.map(|memory| memory.machine_available_bytes),
            memory_limit_bytes: memory
                .filter(|memory| memory.total_bytes < memory.machine_bytes)
                .map(|memory| memory.total_bytes),
        }
    }
}

/// Threads that may run at once: cores minus those excluded by a container or CPU affinity.
pub fn num_threads() -> Option<usize> {
    std::thread::available_parallelism().ok().map(usize::from)
}

/// Online cores, including those this process may not use.
pub fn num_cores() -> Option<usize> {
    count_of_ranges(&read("/sys/devices/system/cpu/online")?)
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn ticks() -> Option<Ticks> {
    parse_ticks(&read("/proc/stat")?)
}

/// Parses `cpu  user nice system idle iowait irq softirq steal guest guest_nice`; guest time is part of user time.
fn parse_ticks(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields = line.split_whitespace().take(8);
    let fields: Vec<u64> = fields
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    Some(Ticks {
        idle: fields.get(3)? + fields.get(4)?,
        all: fields.iter().sum(),
    })
}

fn busy_percent((before, now): (Ticks, Ticks)) -> Option<f64> {
    // The iowait counter may decrease.
    let all = now.all.checked_sub(before.all).filter(|all| *all > 0)?;
    let idle = now.idle.saturating_sub(before.idle).min(all);
    Some(100.0 * (all - idle) as f64 / all as f64)
}

fn load(text: &str) -> Option<[f64; 3]> {
    let numbers = text.split_whitespace().take(3);
    let numbers: Vec<f64> = numbers
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// Number of values in ranges: `0-3,8` is five.
fn count_of_ranges(text: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    text.trim().split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_busy_is_what_changed() {
        let before = parse_ticks("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3").unwrap();
        assert_eq!(
            before,
            Ticks {
                idle: 850,
                all: 1000
            }
        );
        let now = parse_ticks("cpu  160 0 65 825 50 0 0 0 9 0\n").unwrap();
        assert_eq!(busy_percent((before, now)), Some(75.0));
        assert_eq!(busy_percent((now, now)), None);
        assert_eq!(busy_percent((now, before)), None);
        assert_eq!(parse_ticks("cpu 1 x"), None);
        assert_eq!(parse_ticks(""), None);
    }

    #[test]
    fn ranges_and_load() {
        assert_eq!(count_of_ranges("0-3,8\n"), Some(5));
        assert_eq!(count_of_ranges("0"), Some(1));
        assert_eq!(count_of_ranges("3-1"), None);
        assert_eq!(load("0.5 1.25 2 1/99 1234\n"), Some([0.5, 1.25, 2.0]));
        assert_eq!(load("0.5"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells() {
        let reading = HostWatch::default().read();
        assert!(reading.memory_available_bytes <= reading.memory_total_bytes);
        assert!(reading.load.is_some() && reading.num_threads.is_some());
    }
}
