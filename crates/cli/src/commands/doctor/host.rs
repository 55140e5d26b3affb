//! Host checks: threads, memory, disk space, writable folders.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use holdall_device::cuda::compile::{CACHE_VARIABLE, cache_folder};
use holdall_files::show_bytes;

use super::Check;
use crate::host::{self, HostReading, HostWatch};

/// Budget of the demo, the smallest useful one.
const LEAST_MEMORY_BYTES: u64 = 512 << 20;
/// Two checkpoints of a ViT-B/32 with optimizer state take about this.
const COMFORTABLE_DISK_BYTES: u64 = 4 << 30;
const LEAST_DISK_BYTES: u64 = 256 << 20;

/// Observations on the host; `checks`, a pure function, turns them into lines.
pub(super) struct Findings {
    pub host: HostReading,
    pub num_cores: Option<usize>,
    /// `None` on other architectures than x86-64, where only one code path is compiled.
    pub processor: Option<Processor>,
    pub here: Folder,
    /// `None` if the environment names no cache folder.
    pub cache: Option<Folder>,
}

/// Vector instructions of an x86-64 processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    /// AVX-512, with or without integer dot products (VNNI).
    Avx512 {
        has_vnni: bool,
    },
    Avx2,
    /// Neither AVX-512 nor AVX2.
    Old,
}

/// A folder that runs write to.
pub(super) struct Folder {
    pub path: PathBuf,
    pub free_bytes: Option<u64>,
    /// The reason if it cannot be written.
    pub written: Result<(), String>,
}

impl Findings {
    pub fn gather() -> Findings {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        Findings {
            host: HostWatch::default().read(),
            num_cores: host::num_cores(),
            processor: processor(),
            here: Folder::look(&here),
            cache: cache_folder().map(|folder| Folder::look(&folder)),
        }
    }
}

impl Folder {
    /// Probes a folder. If it does not exist yet, its nearest existing parent must be writable.
    fn look(path: &Path) -> Folder {
        let there = path.ancestors().find(|folder| folder.is_dir());
        let there = there.unwrap_or(Path::new("."));
        Folder {
            path: path.to_owned(),
            free_bytes: holdall_files::free_bytes(there),
            written: write_probe(there).map_err(|cause| cause.to_string()),
        }
    }
}

fn write_probe(folder: &Path) -> std::io::Result<()> {
    let file = folder.join(format!(".holdall-doctor-{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file)?;
    std::fs::remove_file(&file)
}

#[cfg(target_arch = "x86_64")]
fn processor() -> Option<Processor> {
    // The instruction sets that the matrix products and the retrieval kernels need.
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    Some(if has_avx512 {
        Processor::Avx512 {
            has_vnni: is_x86_feature_detected!("avx512vnni"),
        }
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        Processor::Avx2
    } else {
        Processor::Old
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> Option<Processor> {
    None
}

pub(super) fn checks(findings: &Findings) -> Vec<Check> {
    let mut checks = vec![
        Check::ok(
            "system",
            format!(
                "{} {}, holdall {}",
                std::env::consts::OS,
                std::env::consts::ARCH,
                env!("CARGO_PKG_VERSION")
            ),
        ),
        processor_check(findings.processor),
        threads_check(findings.host.num_threads, findings.num_cores),
        memory_check(&findings.host),
        disk_check(&findings.here),
    ];
    checks.push(cache_check(findings.cache.as_ref()));
    checks
}

fn processor_check(processor: Option<Processor>) -> Check {
    let name = "processor";
    match processor {
        Some(Processor::Avx512 { has_vnni: true }) => Check::ok(
            name,
            "AVX-512 with VNNI: the widest that training and retrieval use",
        ),
        Some(Processor::Avx512 { has_vnni: false }) => Check::ok(
            name,
            "AVX-512: the widest that training uses; without VNNI retrieval takes its AVX2 path",
        ),
        Some(Processor::Avx2) => Check::ok(
            name,
            "AVX2 and FMA; with AVX-512 products would take about half the time",
        ),
        Some(Processor::Old) => Check::warning(
            name,
            "neither AVX2 nor AVX-512",
            "training goes, several times slower; a virtual machine may hide what its host has",
        ),
        None => Check::ok(name, format!("{}, as compiled for", std::env::consts::ARCH)),
    }
}

fn threads_check(num_threads: Option<usize>, num_cores: Option<usize>) -> Check {
    let name = "threads";
    match (num_threads, num_cores) {
        (Some(threads), Some(cores)) if threads < cores => Check::warning(
            name,
            format!("{threads} of {cores} cores: a container or an affinity allows no more"),
            "nothing, or raise the limit (docker run --cpus, taskset)",
        ),
        (Some(1), _) => Check::warning(
            name,
            "1: reading pictures and training take turns",
            "give the machine a second core",
        ),
        (Some(threads), _) => Check::ok(name, threads.to_string()),
        (None, _) => Check::warning(
            name,
            "the system does not tell how many",
            "name them: --num-threads 8",
        ),
    }
}

fn memory_check(host: &HostReading) -> Check {
    let name = "memory";
    let (Some(total), Some(available)) = (host.memory_total_bytes, host.memory_available_bytes)
    else {
        return Check::warning(
            name,
            "the system does not tell how much there is",
            "name a budget: --memory 8GiB",
        );
    };
    let mut found = format!(
        "{} of {} available",
        show_bytes(available),
        show_bytes(total)
    );
    if let Some(limit) = host.memory_limit_bytes {
        found += &format!(", and a limit of {}", show_bytes(limit));
    }
    let usable = host
        .memory_limit_bytes
        .map_or(available, |limit| limit.min(available));
    if usable < LEAST_MEMORY_BYTES {
        return Check::missing(
            name,
            found,
            format!(
                "end what holds it: even the demo takes {}",
                show_bytes(LEAST_MEMORY_BYTES)
            ),
        );
    }
    Check::ok(name, found)
}

fn disk_check(here: &Folder) -> Check {
    let name = "disk";
    let path = here.path.display();
    if let Err(reason) = &here.written {
        return Check::missing(
            name,
            format!("{path} cannot be written: {reason}"),
            "go to a folder of yours, or name one: --out RUN",
        );
    }
    match here.free_bytes {
        Some(free) if free < LEAST_DISK_BYTES => Check::missing(
            name,
            format!("{} free in {path}", show_bytes(free)),
            "make room: a run writes checkpoints and a model",
        ),
        Some(free) if free < COMFORTABLE_DISK_BYTES => Check::warning(
            name,
            format!("{} free in {path}", show_bytes(free)),
            "enough for small models; two checkpoints of a ViT-B/32 take about 4 GiB",
        ),
        Some(free) => Check::ok(name, format!("{} free in {path}", show_bytes(free))),
        None => Check::ok(
            name,
            format!("{path} can be written; how much is free is not known"),
        ),
    }
}

/// The cache is optional; without one, kernels are compiled at every start.
fn cache_check(cache: Option<&Folder>) -> Check {
    let name = "cache";
    let Some(cache) = cache else {
        return Check::warning(
            name,
            "the environment names no folder for it",
            format!("name one: {CACHE_VARIABLE}=/a/folder keeps compiled kernels"),
        );
    };
    let path = cache.path.display();
    match &cache.written {
        Err(reason) => Check::warning(
            name,
            format!("{path} cannot be written: {reason}"),
            format!(
                "name another: {CACHE_VARIABLE}=/a/folder; without it a GPU's kernels are compiled at every start"
            ),
        ),
        Ok(()) => Check::ok(name, path.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn host(available: u64, limit: Option<u64>) -> HostReading {
        HostReading {
            memory_total_bytes: Some(16 * GIB),
            memory_available_bytes: Some(available),
            memory_limit_bytes: limit,
            ..HostReading::default()
        }
    }

    #[test]
    fn memory_is_judged_by_what_can_be_had() {
        let status = |available, limit| memory_check(&host(available, limit)).status;
        assert_eq!(status(8 * GIB, None), Status::Ok);
        assert_eq!(status(8 * GIB, Some(12 * GIB)), Status::Ok);
        assert_eq!(status(8 * GIB, Some(4 * GIB)), Status::Ok);
        assert_eq!(status(8 * GIB, Some(GIB / 4)), Status::Missing);
        assert_eq!(status(GIB / 4, None), Status::Missing);
        assert_eq!(
            memory_check(&HostReading::default()).status,
            Status::Warning
        );
        let found = memory_check(&host(8 * GIB, Some(GIB))).found;
        assert!(found.contains("a limit of 1.00 GiB"), "{found}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_missing_here_and_a_warning_as_a_cache() {
        let folder = |free_bytes, written: Result<(), &str>| Folder {
            path: PathBuf::from("somewhere"),
            free_bytes,
            written: written.map_err(str::to_owned),
        };
        let refused = folder(Some(GIB), Err("Permission denied"));
        assert_eq!(disk_check(&refused).status, Status::Missing);
        assert_eq!(cache_check(Some(&refused)).status, Status::Warning);
        assert_eq!(cache_check(None).status, Status::Warning);
        let free = |bytes| disk_check(&folder(bytes, Ok(()))).status;
        assert_eq!(free(Some(1 << 20)), Status::Missing);
        assert_eq!(free(Some(GIB)), Status::Warning);
        assert_eq!(free(Some(100 * GIB)), Status::Ok);
        assert_eq!(free(None), Status::Ok);
    }

    #[test]
    fn threads_and_processors() {
        assert_eq!(threads_check(Some(4), Some(4)).status, Status::Ok);
        assert_eq!(threads_check(Some(4), None).status, Status::Ok);
        assert_eq!(threads_check(Some(2), Some(16)).status, Status::Warning);
        assert_eq!(threads_check(Some(1), Some(1)).status, Status::Warning);
        assert_eq!(threads_check(None, None).status, Status::Warning);
        assert_eq!(processor_check(Some(Processor::Avx2)).status, Status::Ok);
        assert_eq!(
            processor_check(Some(Processor::Old)).status,
            Status::Warning
        );
    }

    #[test]
    fn looking_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("not/there/yet");
        assert_eq!(Folder::look(&below).written, Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
