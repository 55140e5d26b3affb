//! GPU checks: driver, CUDA libraries, free GPU memory.

use std::path::Path;

use holdall_device::cuda::OLDEST_CAPABILITY;
use holdall_device::cuda::compile::{self, cache_folder};
use holdall_device::cuda::gpus::{self, GpuReading};
use holdall_device::cuda::libraries::{
    self, FOLDERS_VARIABLE, LibraryFile, Missing, driver_version, find_cublaslt, find_cudnn,
    find_driver, find_nccl, find_nvrtc,
};
use holdall_files::show_bytes;

use super::{Check, Status};

/// If other processes hold more than this share of a card's memory, the check says so.
const HELD_SHARE: f64 = 0.1;

/// Observations on the GPU side; `checks`, a pure function, turns them into lines.
pub(super) struct Findings {
    /// NVIDIA cards on the PCI bus, with or without a driver; `None` where the system does not report them.
    pub num_on_bus: Option<usize>,
    /// `CUDA_VISIBLE_DEVICES`, if set.
    pub visible: Option<String>,
    pub driver: Result<Driver, String>,
    pub nvrtc: Result<Library, Lack>,
    pub cublaslt: Result<Library, Lack>,
    /// Needed for segmentation only.
    pub cudnn: Result<Library, Lack>,
    /// Needed for several processes only.
    pub nccl: Result<Library, Lack>,
    pub gpus: Result<Vec<GpuReading>, String>,
    /// Cache of compiled kernels and measurements: number of files and bytes.
    pub kept: (usize, u64),
}

pub(super) struct Driver {
    pub path: String,
    /// Release, such as `580.65.06`.
    pub release: Option<String>,
    /// The newest CUDA version that the driver supports.
    pub cuda: Option<(u32, u32)>,
}

pub(super) struct Library {
    pub path: String,
    pub origin: &'static str,
    pub version: Option<String>,
}

/// Why a library cannot be used, and how to install it.
pub(super) struct Lack {
    pub found: String,
    pub pip: Option<String>,
}

impl Findings {
    pub fn gather() -> Findings {
        let driver = find_driver().map(|found| Driver {
            path: found.path,
            release: gpus::driver_release(),
            cuda: driver_version(),
        });
        let nvrtc_version = || {
            compile::version()
                .ok()
                .map(|(major, minor)| format!("{major}.{minor}"))
        };
        Findings {
            num_on_bus: cards_on_bus(Path::new("/sys/bus/pci/devices")),
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            driver: driver.map_err(|missing| match missing {
                Missing::Driver { reason } => reason,
                missing => missing.to_string(),
            }),
            nvrtc: library(find_nvrtc(), nvrtc_version),
            cublaslt: library(find_cublaslt(), libraries::cublaslt_version),
            cudnn: library(find_cudnn(), libraries::cudnn_version),
            nccl: library(find_nccl(), libraries::nccl_version),
            gpus: gpus::read().map_err(|reason| reason.to_string()),
            kept: cache_folder().map_or((0, 0), |folder| kept(&folder)),
        }
    }

    /// Whether `--device auto` would use a GPU.
    pub fn can_compute(&self) -> bool {
        self.driver.is_ok() && self.nvrtc.is_ok() && self.cublaslt.is_ok()
    }

    fn is_hidden(&self) -> bool {
        self.visible
            .as_deref()
            .is_some_and(|visible| matches!(visible.trim(), "" | "-1" | "NoDevFiles"))
    }
}

fn library(
    found: Result<LibraryFile, Missing>,
    version: impl FnOnce() -> Option<String>,
) -> Result<Library, Lack> {
    match found {
        Ok(found) => Ok(Library {
            path: found.path,
            origin: found.origin,
            version: version(),
        }),
        Err(Missing::Libraries { libraries, pip }) => {
            let lack = libraries.first();
            let names = lack.map_or(String::new(), |library| library.file_names.join(" or "));
            let refused = lack.map_or(String::new(), |library| {
                let lines = library.refused.iter();
                lines.map(|line| format!("\n{line}")).collect()
            });
            Err(Lack {
                found: format!("{names} was not found{refused}"),
                pip: Some(pip),
            })
        }
        Err(missing) => Err(Lack {
            found: missing.to_string(),
            pip: None,
        }),
    }
}

/// PCI devices of NVIDIA (vendor 10de) of the display and compute class (03).
fn cards_on_bus(bus: &Path) -> Option<usize> {
    let devices = std::fs::read_dir(bus).ok()?;
    let starts = |file: &Path, with: &str| {
        std::fs::read_to_string(file).is_ok_and(|text| text.trim().starts_with(with))
    };
    let is_card = |device: &Path| {
        starts(&device.join("vendor"), "0x10de") && starts(&device.join("class"), "0x03")
    };
    Some(
        devices
            .flatten()
            .filter(|device| is_card(&device.path()))
            .count(),
    )
}

fn kept(folder: &Path) -> (usize, u64) {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = files
        .filter_map(|file| file.metadata().ok())
        .filter(|file| file.is_file());
    files.fold((0, 0), |(count, bytes), file| {
        (count + 1, bytes + file.len())
    })
}

pub(super) fn checks(findings: &Findings) -> Vec<Check> {
    let mut checks = vec![driver_check(findings)];
    if findings.driver.is_err() {
        return checks;
    }
    checks.push(library_check(
        "NVRTC",
        "compiles the kernels",
        &findings.nvrtc,
    ));
    checks.push(library_check(
        "cuBLASLt",
        "multiplies matrices",
        &findings.cublaslt,
    ));
    let purpose = "convolves pictures: segmentation alone needs it";
    checks.push(optional_check("cuDNN", purpose, &findings.cudnn));
    // NCCL is of no use with one card.
    let num_cards = findings.gpus.as_ref().map_or(1, Vec::len);
    if num_cards > 1 || findings.nccl.is_ok() {
        let purpose = "carries gradients between GPUs: only --processes and clusters need it";
        checks.push(optional_check("NCCL", purpose, &findings.nccl));
    }
    match &findings.gpus {
        Ok(gpus) => checks.extend(gpus.iter().map(gpu_check)),
        Err(reason) => checks.push(Check::warning(
            "GPU memory",
            reason.clone(),
            "training goes on without it; who holds memory is then not told",
        )),
    }
    checks.push(kernels_check(findings));
    checks
}

fn driver_check(findings: &Findings) -> Check {
    let reason = match &findings.driver {
        Ok(driver) => {
            let release = driver.release.as_deref().unwrap_or("of an unknown release");
            let cuda = driver.cuda.map_or(String::new(), |(major, minor)| {
                format!(", runs CUDA up to {major}.{minor}")
            });
            return Check::ok("driver", format!("{release}{cuda} ({})", driver.path));
        }
        Err(reason) => reason,
    };
    if findings.is_hidden() {
        return Check::warning(
            "driver",
            "CPU only: CUDA_VISIBLE_DEVICES hides every GPU",
            "unset CUDA_VISIBLE_DEVICES to train on a GPU",
        );
    }
    let install = if cfg!(windows) {
        "install the driver from nvidia.com/drivers and restart"
    } else {
        "install its driver (Ubuntu: `sudo ubuntu-drivers install`; Debian: `sudo apt install nvidia-driver`) and restart;\n\
         in a container: `docker run --gpus all`, with NVIDIA's container toolkit on the host"
    };
    match findings.num_on_bus {
        Some(0) => Check::warning(
            "driver",
            format!("CPU only: no NVIDIA card is on this machine's bus, and {reason}"),
            format!("nothing, if there is none. If there is a card: {install}"),
        ),
        Some(_) => Check::missing(
            "driver",
            format!("a card is on the bus, but it cannot be used: {reason}"),
            install,
        ),
        None => Check::warning(
            "driver",
            format!("CPU only: {reason}"),
            format!("nothing, if there is no NVIDIA card. If there is one: {install}"),
        ),
    }
}

fn library_check(name: &str, purpose: &str, library: &Result<Library, Lack>) -> Check {
    match library {
        Ok(library) => {
            let version = library.version.as_deref().unwrap_or("version not told");
            Check::ok(
                name,
                format!("{version} ({}, {})", library.origin, library.path),
            )
        }
        Err(lack) => Check::missing(
            name,
            format!("{}; it {purpose}", lack.found),
            match &lack.pip {
                Some(pip) => format!(
                    "`{pip}` in the Python environment that is active, or name its folder in {FOLDERS_VARIABLE}"
                ),
                None => format!("name its folder in {FOLDERS_VARIABLE}"),
            },
        ),
    }
}

/// Check of a library that is needed for one purpose only.
fn optional_check(name: &str, purpose: &str, library: &Result<Library, Lack>) -> Check {
    let check = library_check(name, purpose, library);
    match library {
        Ok(_) => check,
        Err(_) => Check {
            status: Status::Warning,
            ..check
        },
    }
}

fn gpu_check(gpu: &GpuReading) -> Check {
    let name = format!("GPU {}", gpu.index);
    let mut found = gpu
        .name
        .clone()
        .unwrap_or_else(|| "of an unknown name".to_owned());
    if let Some((major, minor)) = gpu.capability {
        found += &format!(", compute capability {major}.{minor}");
        if 10 * major + minor < OLDEST_CAPABILITY {
            let (major, minor) = (OLDEST_CAPABILITY / 10, OLDEST_CAPABILITY % 10);
            return Check::warning(
                &name,
                found,
                format!("it is too old ({major}.{minor} or newer is expected): `--device cpu`"),
            );
        }
    }
    let Some(memory) = gpu.memory else {
        return Check::ok(&name, format!("{found}; its memory is not told"));
    };
    found += &format!(
        ", {} of {} free",
        show_bytes(memory.free_bytes),
        show_bytes(memory.total_bytes)
    );
    let holders = gpu.processes.as_deref().unwrap_or_default();
    for holder in holders {
        let held = holder
            .bytes
            .map_or("an amount that is not told".to_owned(), show_bytes);
        let name = match holder.name.as_str() {
            "" => "not seen from here",
            name => name,
        };
        found += &format!("\nprocess {} ({name}) holds {held}", holder.pid);
    }
    if memory.used_bytes as f64 <= HELD_SHARE * memory.total_bytes as f64 {
        return Check::ok(&name, found);
    }
    if holders.is_empty() {
        found += &format!(
            "\n{} is held by processes that cannot be seen from here",
            show_bytes(memory.used_bytes)
        );
    }
    Check::warning(
        &name,
        found,
        "`memory: auto` takes what is free; to have more, end what holds it, or choose another GPU with --device cuda:N",
    )
}

fn kernels_check(findings: &Findings) -> Check {
    match findings.kept {
        (0, _) => Check::ok("kernels", "none compiled yet: the first run does, once"),
        (count, bytes) => Check::ok(
            "kernels",
            format!(
                "{count} files of compiled kernels and measurements, {}",
                show_bytes(bytes)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use holdall_device::cuda::memory::{CardMemory, Holder};

    use super::super::worst;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn without_driver() -> Findings {
        let lack = || Lack {
            found: "libnvrtc.so.13 was not found".to_owned(),
            pip: Some("pip install \"nvidia-cuda-nvrtc==13.0.*\"".to_owned()),
        };
        Findings {
            num_on_bus: Some(0),
            visible: None,
            driver: Err("libcuda.so.1 is not here".to_owned()),
            nvrtc: Err(lack()),
            cublaslt: Err(lack()),
            cudnn: Err(lack()),
            nccl: Err(lack()),
            gpus: Err("NVIDIA's driver is not here".to_owned()),
            kept: (0, 0),
        }
    }

    fn with_card() -> Findings {
        let library = |version: &str| {
            Ok(Library {
                path: "/somewhere/lib.so".to_owned(),
                origin: "PyPI package",
                version: Some(version.to_owned()),
            })
        };
        Findings {
            num_on_bus: Some(1),
            driver: Ok(Driver {
                path: "/usr/lib/libcuda.so.1".to_owned(),
                release: Some("580.65.06".to_owned()),
                cuda: Some((13, 0)),
            }),
            nvrtc: library("13.0"),
            cublaslt: library("13.0.2"),
            cudnn: library("9.14.0"),
            nccl: library("2.27.3"),
            gpus: Ok(vec![card(1, vec![])]),
            kept: (30, 4 << 20),
            ..without_driver()
        }
    }

    fn card(used: u64, processes: Vec<Holder>) -> GpuReading {
        GpuReading {
            name: Some("NVIDIA GeForce RTX 4060".to_owned()),
            capability: Some((8, 9)),
            memory: Some(CardMemory {
                used_bytes: used,
                free_bytes: 8 * GIB - used,
                total_bytes: 8 * GIB,
            }),
            processes: Some(processes),
            ..GpuReading::default()
        }
    }

    #[test]
    fn a_machine_without_a_card_is_a_warning_that_says_cpu_only() {
        let checks = checks(&without_driver());
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].status, Status::Warning);
        assert!(checks[0].found.starts_with("CPU only"), "{checks:?}");
        assert!(!without_driver().can_compute());
    }

    #[test]
    fn a_card_without_its_driver_is_missing_unless_it_is_hidden() {
        let mut findings = without_driver();
        findings.num_on_bus = Some(2);
        assert_eq!(worst(&checks(&findings)), Status::Missing);
        findings.visible = Some(String::new());
        assert_eq!(worst(&checks(&findings)), Status::Warning);
        findings.visible = None;
        findings.num_on_bus = None;
        assert_eq!(worst(&checks(&findings)), Status::Warning);
    }

    #[test]
    fn a_driver_without_libraries_has_the_line_that_installs_them() {
        let findings = Findings {
            nvrtc: without_driver().nvrtc,
            ..with_card()
        };
        let checks = checks(&findings);
        let nvrtc = checks.iter().find(|check| check.name == "NVRTC").unwrap();
        assert_eq!(nvrtc.status, Status::Missing);
        assert!(nvrtc.advice.as_ref().unwrap().contains("pip install"));
        assert!(!findings.can_compute());
    }

    #[test]
    fn all_is_well_and_versions_are_told() {
        let checks = checks(&with_card());
        assert_eq!(worst(&checks), Status::Ok, "{checks:?}");
        assert!(with_card().can_compute());
        let found: Vec<&str> = checks.iter().map(|check| check.found.as_str()).collect();
        assert_eq!(
            found[0],
            "580.65.06, runs CUDA up to 13.0 (/usr/lib/libcuda.so.1)"
        );
        assert_eq!(found[2], "13.0.2 (PyPI package, /somewhere/lib.so)");
    }

    #[test]
    fn who_holds_memory_is_named_where_the_driver_tells() {
        let holder = |name: &str, bytes| Holder {
            pid: 7,
            name: name.to_owned(),
            bytes,
        };
        let check = gpu_check(&card(
            4 * GIB,
            vec![holder("python", Some(3 * GIB)), holder("", None)],
        ));
        assert_eq!(check.status, Status::Warning);
        assert!(check.found.contains("process 7 (python) holds 3.00 GiB"));
        assert!(
            check
                .found
                .contains("(not seen from here) holds an amount that is not told")
        );
        let check = gpu_check(&card(4 * GIB, vec![]));
        assert!(
            check
                .found
                .contains("4.00 GiB is held by processes that cannot be seen")
        );
        let old = GpuReading {
            capability: Some((6, 1)),
            ..card(0, vec![])
        };
        assert_eq!(gpu_check(&old).status, Status::Warning);
        assert_eq!(gpu_check(&GpuReading::default()).status, Status::Ok);
    }

    #[test]
    fn cards_on_the_bus_are_counted_by_vendor_and_class() {
        let bus = tempfile::tempdir().unwrap();
        for (slot, vendor, class) in [
            ("a", "0x10de", "0x030200"),
            ("b", "0x10de", "0x040300"),
            ("c", "0x8086", "0x030000"),
        ] {
            let device = bus.path().join(slot);
            std::fs::create_dir(&device).unwrap();
            std::fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            std::fs::write(device.join("class"), format!("{class}\n")).unwrap();
        }
        assert_eq!(cards_on_bus(bus.path()), Some(1));
        assert_eq!(cards_on_bus(&bus.path().join("none")), None);
    }
}
