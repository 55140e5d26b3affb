//! Search for CUDA's libraries: a list of files to try, best first, derived from the environment.
//!
//! Python is never run: its folders are derived from environment variables and the location of `python3` on the PATH.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Variable with folders that are searched first, separated like PATH.
pub const FOLDERS_VARIABLE: &str = "HOLDALL_CUDA_LIBRARIES";

/// Major versions of CUDA whose libraries this program can use, newest first.
const MAJORS: [u32; 2] = [13, 12];

/// A library of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaLibrary {
    /// The driver. It is installed only with the card's driver, so the search covers the loader and WSL's folder alone.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions; only models with convolutions need it.
    Cudnn,
    /// Exchanges between GPUs; only runs of several processes need it.
    Nccl,
}

impl CudaLibrary {
    /// Name of the library in messages.
    pub fn name(self) -> &'static str {
        match self {
            CudaLibrary::Driver => "libcuda",
            CudaLibrary::Nvrtc => "libnvrtc",
            CudaLibrary::CublasLt => "libcublasLt",
            CudaLibrary::Cudnn => "libcudnn",
            CudaLibrary::Nccl => "libnccl",
        }
    }

    /// File names, newest first, of major versions up to `newest_major`.
    pub(super) fn file_names(self, system: System, newest_major: u32) -> Vec<String> {
        let majors = MAJORS.into_iter().filter(|&major| major <= newest_major);
        match (self, system) {
            (CudaLibrary::Driver, System::Unix) => vec!["libcuda.so.1".to_owned()],
            (CudaLibrary::Driver, System::Windows) => vec!["nvcuda.dll".to_owned()],
            (CudaLibrary::Nvrtc, System::Unix) => {
                majors.map(|major| format!("libnvrtc.so.{major}")).collect()
            }
            (CudaLibrary::Nvrtc, System::Windows) => majors
                .map(|major| format!("nvrtc64_{major}0_0.dll"))
                .collect(),
            (CudaLibrary::CublasLt, System::Unix) => majors
                .map(|major| format!("libcublasLt.so.{major}"))
                .collect(),
            (CudaLibrary::CublasLt, System::Windows) => majors
                .map(|major| format!("cublasLt64_{major}.dll"))
                .collect(),
            // Its version is independent of CUDA's.
            (CudaLibrary::Cudnn, System::Unix) => vec!["libcudnn.so.9".to_owned()],
            (CudaLibrary::Cudnn, System::Windows) => vec!["cudnn64_9.dll".to_owned()],
            (CudaLibrary::Nccl, System::Unix) => vec!["libnccl.so.2".to_owned()],
            // NVIDIA publishes no NCCL for Windows; third parties do.
            (CudaLibrary::Nccl, System::Windows) => vec!["nccl.dll".to_owned()],
        }
    }
}

/// Naming conventions for libraries and Python's folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Unix,
    Windows,
}

/// Environment that the search depends on.
#[derive(Debug, Clone)]
pub(super) struct Environment {
    pub system: System,
    /// `/`; a temporary folder in tests.
    pub root: PathBuf,
    /// Value of [`FOLDERS_VARIABLE`].
    pub folders: Vec<PathBuf>,
    pub cuda_home: Option<PathBuf>,
    pub cuda_path: Option<PathBuf>,
    pub virtual_env: Option<PathBuf>,
    pub conda_prefix: Option<PathBuf>,
    pub home: Option<PathBuf>,
    pub path: Vec<PathBuf>,
}

impl Environment {
    pub fn of_process() -> Self {
        let folder = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let folders = |name: &str| {
            let value = std::env::var_os(name).unwrap_or_default();
            let split =
                std::env::split_paths(&value).filter(|folder| !folder.as_os_str().is_empty());
            // Absolute paths: the loader searches for a name without a slash itself.
            split
                .map(|folder| std::path::absolute(&folder).unwrap_or(folder))
                .collect()
        };
        Environment {
            system: if cfg!(windows) {
                System::Windows
            } else {
                System::Unix
            },
            root: PathBuf::from("/"),
            folders: folders(FOLDERS_VARIABLE),
            cuda_home: folder("CUDA_HOME"),
            cuda_path: folder("CUDA_PATH"),
            virtual_env: folder("VIRTUAL_ENV"),
            conda_prefix: folder("CONDA_PREFIX"),
            home: folder(if cfg!(windows) { "USERPROFILE" } else { "HOME" }),
            path: folders("PATH"),
        }
    }
}

/// A file to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// An existing file, or a bare name for the system's loader to search.
    pub file: PathBuf,
    pub origin: &'static str,
}

/// The files to try for `part`, best first, and every place that was searched.
pub(super) fn search(
    environment: &Environment,
    part: CudaLibrary,
    newest_major: u32,
) -> (Vec<Candidate>, Vec<String>) {
    let names = part.file_names(environment.system, newest_major);
    let mut candidates = Vec::new();
    let mut looked = Vec::new();
    for (folder, origin) in places(environment, part) {
        match folder {
            None => {
                looked.push("the system's loader".to_owned());
                candidates.extend(names.iter().map(|name| Candidate {
                    file: name.into(),
                    origin,
                }));
            }
            Some(folder) => {
                let there = names
                    .iter()
                    .map(|name| folder.join(name))
                    .filter(|file| file.is_file());
                candidates.extend(there.map(|file| Candidate { file, origin }));
                looked.push(folder.display().to_string());
            }
        }
    }
    (candidates, looked)
}

/// Folders in the order of the search, each with its origin; `None` stands for the system's loader.
fn places(environment: &Environment, part: CudaLibrary) -> Vec<(Option<PathBuf>, &'static str)> {
    let mut places: Vec<(Option<PathBuf>, &'static str)> = Vec::new();
    let mut add = |folder: Option<PathBuf>, origin| {
        if !places.iter().any(|(known, _)| *known == folder) {
            places.push((folder, origin));
        }
    };
    for folder in &environment.folders {
        add(Some(folder.clone()), "environment");
    }
    add(None, "system");
    if part == CudaLibrary::Driver {
        if environment.system == System::Unix {
            add(Some(environment.root.join("usr/lib/wsl/lib")), "system");
        }
        return places;
    }
    for folder in toolkit_folders(environment) {
        add(Some(folder), "toolkit");
    }
    let site_packages = site_packages(environment);
    for packages in &site_packages {
        for folder in nvidia_folders(environment.system, packages) {
            add(Some(folder), "PyPI package");
        }
    }
    for packages in &site_packages {
        let folder = packages.join("torch").join("lib");
        if folder.is_dir() {
            add(Some(folder), "torch");
        }
    }
    places
}

/// Folders of toolkits from NVIDIA's installers and conda.
fn toolkit_folders(environment: &Environment) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    match environment.system {
        System::Unix => {
            let local = environment.root.join("usr/local");
            folders.push(local.join("cuda/lib64"));
            folders.extend(
                versioned(&local, "cuda-")
                    .into_iter()
                    .map(|toolkit| toolkit.join("lib64")),
            );
            folders.extend(environment.cuda_home.iter().map(|home| home.join("lib64")));
            folders.extend(environment.cuda_path.iter().map(|home| home.join("lib64")));
            folders.extend(
                environment
                    .conda_prefix
                    .iter()
                    .map(|prefix| prefix.join("lib")),
            );
        }
        System::Windows => {
            for home in environment.cuda_home.iter().chain(&environment.cuda_path) {
                folders.extend([home.join("bin"), home.join("bin").join("x64")]);
            }
            if let Some(prefix) = &environment.conda_prefix {
                let library = prefix.join("Library").join("bin");
                folders.extend([library.join("x64"), library]);
            }
        }
    }
    folders
}

/// Folders of Python packages: of an active environment, of the Python on the PATH, of the user, of the system.
fn site_packages(environment: &Environment) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for prefix in environment
        .virtual_env
        .iter()
        .chain(&environment.conda_prefix)
    {
        found.extend(packages_of_prefix(environment.system, prefix));
    }
    for folder in &environment.path {
        for prefix in prefixes_of_python(environment.system, folder) {
            found.extend(packages_of_prefix(environment.system, &prefix));
        }
    }
    if environment.system == System::Unix {
        if let Some(home) = &environment.home {
            found.extend(packages_of_prefix(System::Unix, &home.join(".local")));
        }
        found.push(environment.root.join("usr/lib/python3/dist-packages"));
        found.extend(packages_of_prefix(
            System::Unix,
            &environment.root.join("usr/local"),
        ));
    }
    let mut unique: Vec<PathBuf> = Vec::new();
    for packages in found {
        if packages.is_dir() && !unique.contains(&packages) {
            unique.push(packages);
        }
    }
    unique
}

/// `lib/python3*/site-packages` of a prefix, newest Python first; `dist-packages` on Debian.
fn packages_of_prefix(system: System, prefix: &Path) -> Vec<PathBuf> {
    match system {
        System::Windows => vec![prefix.join("Lib").join("site-packages")],
        System::Unix => {
            let pythons = ["lib", "lib64"]
                .into_iter()
                .flat_map(|library| versioned(&prefix.join(library), "python3"));
            pythons
                .flat_map(|python| {
                    ["site-packages", "dist-packages"].map(|packages| python.join(packages))
                })
                .collect()
        }
    }
}

/// Prefixes of the Python in a folder of the PATH: first of the link of a virtual environment, then of the link's target.
fn prefixes_of_python(system: System, folder: &Path) -> Vec<PathBuf> {
    let names: [&str; 2] = match system {
        System::Unix => ["python3", "python"],
        System::Windows => ["python.exe", "python3.exe"],
    };
    let mut prefixes = Vec::new();
    for python in names
        .iter()
        .map(|name| folder.join(name))
        .filter(|python| python.is_file())
    {
        for file in [Some(python.clone()), python.canonicalize().ok()]
            .into_iter()
            .flatten()
        {
            let Some(bin) = file.parent() else { continue };
            // On Windows an installed Python is in its prefix, the Python of a virtual environment in the prefix's `Scripts`.
            if system == System::Windows {
                prefixes.push(bin.to_path_buf());
            }
            prefixes.extend(bin.parent().map(Path::to_path_buf));
        }
    }
    prefixes
}

/// `nvidia/*/lib` of NVIDIA's packages on PyPI, newest CUDA first: packages of CUDA 13 share `nvidia/cu13`, packages of CUDA 12 have one
/// folder each.
fn nvidia_folders(system: System, packages: &Path) -> Vec<PathBuf> {
    let nvidia = packages.join("nvidia");
    let shared = versioned(&nvidia, "cu").into_iter();
    let apart = ["cuda_nvrtc", "cublas", "cudnn", "nccl"]
        .map(|package| nvidia.join(package))
        .into_iter()
        .filter(|folder| folder.is_dir());
    let folders = shared.chain(apart);
    match system {
        System::Unix => folders.map(|folder| folder.join("lib")).collect(),
        System::Windows => folders
            .flat_map(|folder| [folder.join("bin").join("x86_64"), folder.join("bin")])
            .collect(),
    }
}

/// Folders `prefix` + version inside `parent`, newest version first.
fn versioned(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return Vec::new();
    };
    let mut found: Vec<(Vec<u32>, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let version = version_after(&entry.file_name(), prefix)?;
            Some((version, entry.path()))
        })
        .filter(|(_, folder)| folder.is_dir())
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, folder)| folder).collect()
}

fn version_after(name: &OsStr, prefix: &str) -> Option<Vec<u32>> {
    let version = name.to_str()?.strip_prefix(prefix)?;
    let numbers = version.split('.').filter(|number| !number.is_empty());
    numbers.map(|number| number.parse().ok()).collect()
}

/// NVRTC's builtins library in the folder of NVRTC, which NVRTC would request from the loader by name.
pub(super) fn builtins_beside(nvrtc: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (nvrtc.parent(), nvrtc.file_name().and_then(OsStr::to_str))
    else {
        return Vec::new();
    };
    // libnvrtc.so.13 -> libnvrtc-builtins.so.13.0; nvrtc64_130_0.dll -> nvrtc-builtins64_130.dll, whose last digit is the minor.
    let beginning = match (
        name.strip_prefix("libnvrtc.so."),
        name.strip_prefix("nvrtc64_"),
    ) {
        (Some(major), _) => format!("libnvrtc-builtins.so.{major}."),
        (_, Some(rest)) => format!("nvrtc-builtins64_{}", rest.get(..2).unwrap_or_default()),
        _ => return Vec::new(),
    };
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = names
        .filter(|path| {
            path.file_name()
                .and_then(OsStr::to_str)
                .is_some_and(|name| name.starts_with(&beginning))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(root: &Path, system: System) -> Environment {
        Environment {
            system,
            root: root.to_path_buf(),
            folders: Vec::new(),
            cuda_home: None,
            cuda_path: None,
            virtual_env: None,
            conda_prefix: None,
            home: None,
            path: Vec::new(),
        }
    }

    /// Creates an empty file and returns its path.
    fn file(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a path under the root"))
            .expect("a folder can be made");
        std::fs::write(&path, "").expect("a file can be made");
        path
    }

    /// Files that were found, without the bare names for the loader.
    fn files(environment: &Environment, part: CudaLibrary) -> Vec<(PathBuf, &'static str)> {
        let (candidates, _) = search(environment, part, 13);
        candidates
            .into_iter()
            .filter(|found| found.origin != "system")
            .map(|found| (found.file, found.origin))
            .collect()
    }

    #[test]
    fn origins_come_in_order_and_newest_first() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        let torch = file(
            root,
            "venv/lib/python3.11/site-packages/torch/lib/libnvrtc.so.12",
        );
        let package_12 = file(
            root,
            "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        );
        let package_13 = file(
            root,
            "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        );
        let toolkit_8 = file(root, "usr/local/cuda-12.8/lib64/libnvrtc.so.12");
        let toolkit_10 = file(root, "usr/local/cuda-12.10/lib64/libnvrtc.so.12");
        let mine_12 = file(root, "mine/libnvrtc.so.12");
        let mine_13 = file(root, "mine/libnvrtc.so.13");
        let environment = Environment {
            folders: vec![root.join("absent"), root.join("mine")],
            virtual_env: Some(root.join("venv")),
            ..empty(root, System::Unix)
        };
        let expected = [
            (mine_13, "environment"),
            (mine_12, "environment"),
            (toolkit_10, "toolkit"),
            (toolkit_8, "toolkit"),
            (package_13, "PyPI package"),
            (package_12, "PyPI package"),
            (torch, "torch"),
        ];
        assert_eq!(files(&environment, CudaLibrary::Nvrtc), expected);
        let (candidates, looked) = search(&environment, CudaLibrary::Nvrtc, 13);
        assert_eq!(
            candidates[2],
            Candidate {
                file: "libnvrtc.so.13".into(),
                origin: "system"
            }
        );
        assert!(
            looked.contains(&root.join("absent").display().to_string()),
            "{looked:?}"
        );
    }

    #[test]
    fn a_driver_of_cuda_12_is_not_given_libraries_of_13() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        file(root, "usr/local/cuda/lib64/libcublasLt.so.13");
        let usable = file(root, "usr/local/cuda/lib64/libcublasLt.so.12");
        let (candidates, _) = search(&empty(root, System::Unix), CudaLibrary::CublasLt, 12);
        let names: Vec<_> = candidates.into_iter().map(|found| found.file).collect();
        assert_eq!(names, [PathBuf::from("libcublasLt.so.12"), usable]);
    }

    #[cfg(unix)]
    #[test]
    fn python_on_the_path_tells_its_packages() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path().canonicalize().expect("the folder is there");
        let python = file(&root, "opt/python/bin/python3.12");
        let of_base = file(
            &root,
            "opt/python/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
        );
        let of_link = file(
            &root,
            "project/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
        );
        std::fs::create_dir_all(root.join("project/bin")).expect("a folder can be made");
        std::os::unix::fs::symlink(python, root.join("project/bin/python3"))
            .expect("a link can be made");
        let environment = Environment {
            path: vec![root.join("project/bin")],
            ..empty(&root, System::Unix)
        };
        assert_eq!(
            files(&environment, CudaLibrary::CublasLt),
            [(of_link, "PyPI package"), (of_base, "PyPI package")]
        );
    }

    #[test]
    fn packages_of_the_user_and_of_the_system_are_found() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        let user = file(
            root,
            "home/.local/lib/python3.9/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
        );
        let debian = file(
            root,
            "usr/lib/python3/dist-packages/nvidia/cublas/lib/libcublasLt.so.12",
        );
        let local = file(
            root,
            "usr/local/lib/python3.10/dist-packages/nvidia/cublas/lib/libcublasLt.so.12",
        );
        let environment = Environment {
            home: Some(root.join("home")),
            ..empty(root, System::Unix)
        };
        let found: Vec<_> = files(&environment, CudaLibrary::CublasLt)
            .into_iter()
            .map(|(file, _)| file)
            .collect();
        assert_eq!(found, [user, debian, local]);
    }

    #[test]
    fn windows_has_other_names_and_folders() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        let toolkit = file(root, "toolkit/bin/x64/nvrtc64_130_0.dll");
        let package = file(
            root,
            "venv/Lib/site-packages/nvidia/cuda_nvrtc/bin/nvrtc64_120_0.dll",
        );
        let torch = file(root, "venv/Lib/site-packages/torch/lib/nvrtc64_120_0.dll");
        let environment = Environment {
            cuda_path: Some(root.join("toolkit")),
            virtual_env: Some(root.join("venv")),
            ..empty(root, System::Windows)
        };
        let expected = [
            (toolkit, "toolkit"),
            (package, "PyPI package"),
            (torch, "torch"),
        ];
        assert_eq!(files(&environment, CudaLibrary::Nvrtc), expected);
    }

    #[test]
    fn the_driver_is_not_looked_for_among_packages() {
        let root = tempfile::tempdir().expect("a temporary folder");
        file(root.path(), "usr/local/cuda/lib64/libcuda.so.1");
        let wsl = file(root.path(), "usr/lib/wsl/lib/libcuda.so.1");
        let (candidates, _) = search(&empty(root.path(), System::Unix), CudaLibrary::Driver, 13);
        let names: Vec<_> = candidates.into_iter().map(|found| found.file).collect();
        assert_eq!(names, [PathBuf::from("libcuda.so.1"), wsl]);
    }

    #[test]
    fn builtins_are_those_of_the_same_major() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        let nvrtc = file(root, "libnvrtc.so.13");
        let builtins = file(root, "libnvrtc-builtins.so.13.0");
        file(root, "libnvrtc-builtins.so.12.8");
        file(root, "libnvrtc-builtins.alt.so.13.0");
        assert_eq!(builtins_beside(&nvrtc), [builtins]);
        let nvrtc = file(root, "nvrtc64_120_0.dll");
        let builtins = file(root, "nvrtc-builtins64_128.dll");
        file(root, "nvrtc-builtins64_130.dll");
        assert_eq!(builtins_beside(&nvrtc), [builtins]);
        assert!(builtins_beside(Path::new("libnvrtc.so.13")).is_empty());
    }
}
