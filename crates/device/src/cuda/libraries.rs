//! CUDA's libraries, found and opened at run time.
//!
//! The bindings ask the system's loader for a library by its name. Most people have CUDA only inside a Python environment, which the
//! loader does not search; so this module opens each library first, from any of the places below. From then on its name refers to the open
//! library. Handles are kept for the life of the process.
//!
//! Order of the search: the folders of `HOLDALL_CUDA_LIBRARIES`; the system's loader, `LD_LIBRARY_PATH` included; the usual folders of a
//! toolkit; NVIDIA's packages from PyPI; a torch that brings its own libraries.
//!
//! Lookup by name has two limits. If a development package gives the loader an unversioned `libcublasLt.so`, the bindings use that
//! file and ignore the one opened here: [`load`] reports the file in use. And the bindings do not try the Windows name of CUDA 12's NVRTC:
//! therefore [`super::compile`] calls NVRTC through the handle kept here.

mod search;

use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;
use search::{Candidate, Environment, builtins_beside, search};
pub use search::{CudaLibrary, FOLDERS_VARIABLE};

/// A library that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryFile {
    /// One of `libcuda`, `libnvrtc`, `libcublasLt`, `libcudnn`, `libnccl`.
    pub name: &'static str,
    /// The file; if the loader does not report it, the name that was opened.
    pub path: String,
    /// `environment`, `system`, `toolkit`, `PyPI package` or `torch`.
    pub origin: &'static str,
}

/// Reason why the CUDA device is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No NVIDIA driver, or a driver without a device: a machine that trains on its CPU.
    #[error("no CUDA device: {reason}")]
    Driver {
        /// Message of the loader or the driver.
        reason: String,
    },
    /// There is a card, but a library is missing.
    #[error("{}", describe(.libraries, .pip))]
    Libraries {
        /// Libraries that could not be opened.
        libraries: Vec<MissingLibrary>,
        /// The command that installs all of them.
        pip: String,
    },
}

/// A library that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingLibrary {
    pub part: CudaLibrary,
    /// File names that were tried, newest first.
    pub file_names: Vec<String>,
    /// Places that were searched, in order.
    pub looked: Vec<String>,
    /// Files that exist but did not open, with the loader's messages.
    pub refused: Vec<String>,
}

fn describe(libraries: &[MissingLibrary], pip: &str) -> String {
    let mut text = String::from("CUDA's libraries are not all here");
    for library in libraries {
        text += &format!(
            "\n  {} (as {}) was not found",
            library.part.name(),
            library.file_names.join(" or ")
        );
        for refused in &library.refused {
            text += &format!("\n    {refused}");
        }
    }
    if let Some(library) = libraries.first() {
        text += &format!("\n  looked in {}", library.looked.join(", "));
    }
    text + &format!(
        "\nhint: `{pip}` in the Python environment that is active, or name their folders in {FOLDERS_VARIABLE}"
    )
}

/// The command that installs `parts` from PyPI. Packages of CUDA 13 have no suffix.
fn pip_line(parts: impl Iterator<Item = CudaLibrary>, newest_major: u32) -> String {
    let mut line = "pip install".to_owned();
    for part in parts {
        line += match (part, newest_major) {
            (CudaLibrary::Driver, _) => "",
            (CudaLibrary::Nvrtc, ..=12) => " nvidia-cuda-nvrtc-cu12",
            (CudaLibrary::CublasLt, ..=12) => " nvidia-cublas-cu12",
            (CudaLibrary::Nvrtc, _) => " \"nvidia-cuda-nvrtc==13.0.*\"",
            (CudaLibrary::CublasLt, _) => " \"nvidia-cublas==13.*\"",
            (CudaLibrary::Cudnn, ..=12) => " \"nvidia-cudnn-cu12==9.*\"",
            (CudaLibrary::Cudnn, _) => " \"nvidia-cudnn-cu13==9.*\"",
            (CudaLibrary::Nccl, ..=12) => " nvidia-nccl-cu12",
            (CudaLibrary::Nccl, _) => " nvidia-nccl-cu13",
        };
    }
    line
}

/// Opens all libraries that the CUDA device needs. The first call decides; later calls return the same result.
///
/// # Errors
/// [`Missing::Driver`] if there is no device, [`Missing::Libraries`] if there is a device without its libraries.
pub fn load() -> Result<Vec<LibraryFile>, Missing> {
    static LOADED: OnceLock<Result<Vec<LibraryFile>, Missing>> = OnceLock::new();
    LOADED.get_or_init(load_once).clone()
}

fn load_once() -> Result<Vec<LibraryFile>, Missing> {
    let driver = driver().as_ref().map_err(|reason| Missing::Driver {
        reason: reason.clone(),
    })?;
    driver_of_the_bindings(&driver.opened)?;
    let mut found = vec![driver.opened.found.clone()];
    let mut missing = Vec::new();
    match nvrtc_opened() {
        Ok(opened) => found.push(opened.found.clone()),
        Err(library) => missing.push(library.clone()),
    }
    match cublaslt_opened().and_then(cublaslt_of_the_bindings) {
        Ok(library) => found.push(library),
        Err(library) => missing.push(library),
    }
    if missing.is_empty() {
        Ok(found)
    } else {
        Err(missing_libraries(missing))
    }
}

fn missing_libraries(libraries: Vec<MissingLibrary>) -> Missing {
    let pip = pip_line(libraries.iter().map(|library| library.part), newest_major());
    Missing::Libraries { libraries, pip }
}

/// NVRTC, which needs no card.
pub(super) fn nvrtc() -> Result<&'static Library, Missing> {
    match nvrtc_opened() {
        Ok(opened) => Ok(&opened.handle),
        Err(library) => Err(missing_libraries(vec![library.clone()])),
    }
}

/// Finds NVRTC; opens no other library.
///
/// # Errors
/// [`Missing::Libraries`], with NVRTC alone in it.
pub fn find_nvrtc() -> Result<LibraryFile, Missing> {
    match nvrtc_opened() {
        Ok(opened) => Ok(opened.found.clone()),
        Err(library) => Err(missing_libraries(vec![library.clone()])),
    }
}

/// Finds the driver, if it has a device.
///
/// # Errors
/// [`Missing::Driver`].
pub fn find_driver() -> Result<LibraryFile, Missing> {
    match driver() {
        Ok(driver) => Ok(driver.opened.found.clone()),
        Err(reason) => Err(Missing::Driver {
            reason: reason.clone(),
        }),
    }
}

/// Finds cuBLASLt; calls none of its functions.
///
/// # Errors
/// [`Missing::Libraries`], with cuBLASLt alone in it.
pub fn find_cublaslt() -> Result<LibraryFile, Missing> {
    let opened = cublaslt_opened().and_then(cublaslt_of_the_bindings);
    opened.map_err(|library| missing_libraries(vec![library]))
}

/// cuDNN, which only models with convolutions need.
pub(super) fn cudnn() -> Result<&'static Library, Missing> {
    match cudnn_opened() {
        Ok(opened) => Ok(&opened.handle),
        Err(library) => Err(missing_libraries(vec![library.clone()])),
    }
}

/// Finds cuDNN; calls none of its functions.
///
/// # Errors
/// [`Missing::Libraries`], with cuDNN alone in it.
pub fn find_cudnn() -> Result<LibraryFile, Missing> {
    match cudnn_opened() {
        Ok(opened) => Ok(opened.found.clone()),
        Err(library) => Err(missing_libraries(vec![library.clone()])),
    }
}

/// NCCL, which only runs of several processes with a card each need.
pub(super) fn nccl() -> Result<&'static Library, Missing> {
    match nccl_opened() {
        Ok(opened) => Ok(&opened.handle),
        Err(library) => Err(missing_libraries(vec![library.clone()])),
    }
}

/// Finds NCCL; calls none of its functions.
///
/// # Errors
/// [`Missing::Libraries`], with NCCL alone in it.
pub fn find_nccl() -> Result<LibraryFile, Missing> {
    match nccl_opened() {
        Ok(opened) => Ok(opened.found.clone()),
        Err(library) => Err(missing_libraries(vec![library.clone()])),
    }
}

/// Version of the NCCL in use, such as `2.28.9`; `None` if there is none.
pub fn nccl_version() -> Option<String> {
    super::nccl::version_of(nccl().ok()?)
}

/// Version of the cuDNN in use, such as `9.13.0`; `None` if there is none.
pub fn cudnn_version() -> Option<String> {
    super::cudnn::version_of(cudnn().ok()?)
}

/// Version of the cuBLASLt in use, such as `13.0.2`; `None` if there is none.
pub fn cublaslt_version() -> Option<String> {
    find_cublaslt().ok()?;
    let version = super::product::Products::version();
    Some(format!(
        "{}.{}.{}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    ))
}

/// A library that stays open: the handle lives in a static.
struct OpenLibrary {
    found: LibraryFile,
    handle: Library,
}

struct Driver {
    opened: OpenLibrary,
    /// The newest CUDA version that the driver supports, as 1000 * major + 10 * minor.
    version: i32,
}

fn nvrtc_opened() -> Result<&'static OpenLibrary, &'static MissingLibrary> {
    static NVRTC: OnceLock<Result<OpenLibrary, MissingLibrary>> = OnceLock::new();
    NVRTC
        .get_or_init(|| {
            open(
                &Environment::of_process(),
                CudaLibrary::Nvrtc,
                newest_major(),
            )
        })
        .as_ref()
}

fn cublaslt_opened() -> Result<&'static OpenLibrary, MissingLibrary> {
    static CUBLAS_LT: OnceLock<Result<OpenLibrary, MissingLibrary>> = OnceLock::new();
    let opened = CUBLAS_LT.get_or_init(|| {
        open(
            &Environment::of_process(),
            CudaLibrary::CublasLt,
            newest_major(),
        )
    });
    opened.as_ref().map_err(MissingLibrary::clone)
}

fn cudnn_opened() -> Result<&'static OpenLibrary, &'static MissingLibrary> {
    static CUDNN: OnceLock<Result<OpenLibrary, MissingLibrary>> = OnceLock::new();
    CUDNN
        .get_or_init(|| {
            open(
                &Environment::of_process(),
                CudaLibrary::Cudnn,
                newest_major(),
            )
        })
        .as_ref()
}

fn nccl_opened() -> Result<&'static OpenLibrary, &'static MissingLibrary> {
    static NCCL: OnceLock<Result<OpenLibrary, MissingLibrary>> = OnceLock::new();
    NCCL.get_or_init(|| {
        open(
            &Environment::of_process(),
            CudaLibrary::Nccl,
            newest_major(),
        )
    })
    .as_ref()
}

/// Newest major version of CUDA whose libraries may be used: the driver's own, because the driver refuses cubins and a cuBLAS of a newer
/// major version. It accepts newer minor versions. Without a driver nothing runs, so there is no limit.
fn newest_major() -> u32 {
    match driver() {
        Ok(driver) => u32::try_from(driver.version / 1000).unwrap_or(0),
        Err(_) => u32::MAX,
    }
}

/// The driver's newest CUDA as (major, minor); `None` if there is no driver with a device.
pub fn driver_version() -> Option<(u32, u32)> {
    let version = u32::try_from(driver().as_ref().ok()?.version).ok()?;
    Some((version / 1000, version % 1000 / 10))
}

fn driver() -> &'static Result<Driver, String> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let opened =
            open(&Environment::of_process(), CudaLibrary::Driver, 0).map_err(|library| {
                let refused = library.refused.join("; ");
                if refused.is_empty() {
                    format!("{} is not here", library.file_names.join(", "))
                } else {
                    refused
                }
            })?;
        let version = start_driver(&opened.handle)?;
        Ok(Driver { opened, version })
    })
}

/// Starts the driver and returns its version; an error if it has no device.
fn start_driver(handle: &Library) -> Result<i32, String> {
    type Init = unsafe extern "C" fn(u32) -> i32;
    type Get = unsafe extern "C" fn(*mut i32) -> i32;
    let absent = |error: libloading::Error| error.to_string();
    let ask = |get: Get, name: &str| {
        let mut value = 0;
        // SAFETY: functions of this type write one int to the given address.
        match unsafe { get(&mut value) } {
            0 => Ok(value),
            code => Err(format!("{name}: error {code} of the driver")),
        }
    };
    // SAFETY: cuInit takes its flags, which must be 0, and returns a status, as the type declares.
    let code = unsafe { handle.get::<Init>(b"cuInit").map_err(absent)?(0) };
    if code != 0 {
        return Err(format!("cuInit: {}", init_error(code)));
    }
    // SAFETY: cuDriverGetVersion takes a pointer to an int and returns a status, as the type declares.
    let version = ask(
        unsafe { *handle.get::<Get>(b"cuDriverGetVersion").map_err(absent)? },
        "cuDriverGetVersion",
    )?;
    // SAFETY: cuDeviceGetCount takes a pointer to an int and returns a status, as the type declares.
    let num_devices = ask(
        unsafe { *handle.get::<Get>(b"cuDeviceGetCount").map_err(absent)? },
        "cuDeviceGetCount",
    )?;
    if num_devices < 1 {
        Err("the driver has no device".to_owned())
    } else {
        Ok(version)
    }
}

fn init_error(code: i32) -> String {
    match code {
        34 => "this libcuda is a toolkit's stub; its folder should not be on the library path".to_owned(),
        100 => "the driver has no device".to_owned(),
        802 => "the system is not ready: the fabric manager of these cards does not run yet".to_owned(),
        803 => "the driver's libraries and its kernel module have different versions: restart after an update".to_owned(),
        804 => "a forward-compatibility libcuda is first on the library path, and this card does not take it".to_owned(),
        999 => "unknown error: the kernel module may need a restart".to_owned(),
        code => format!("error {code} of the driver"),
    }
}

fn open(
    environment: &Environment,
    part: CudaLibrary,
    newest_major: u32,
) -> Result<OpenLibrary, MissingLibrary> {
    let (candidates, looked) = search(environment, part, newest_major);
    let mut refused = Vec::new();
    for Candidate { file, origin } in candidates {
        if part == CudaLibrary::Nvrtc && file.is_absolute() {
            open_builtins(&file);
        }
        let handle = match open_file(&file) {
            Ok(handle) => handle,
            // An unknown name is expected; a file that does not open is reported.
            Err(error) => {
                if file.is_absolute() {
                    refused.push(format!("{}: {error}", file.display()));
                }
                continue;
            }
        };
        let path = if file.is_absolute() {
            None
        } else {
            file_of(&handle, part)
        };
        let path = path.unwrap_or_else(|| file.display().to_string());
        if part == CudaLibrary::Nvrtc && !file.is_absolute() {
            open_builtins(Path::new(&path));
        }
        let found = LibraryFile {
            name: part.name(),
            path,
            origin,
        };
        return Ok(OpenLibrary { found, handle });
    }
    let file_names = part.file_names(environment.system, newest_major);
    Err(MissingLibrary {
        part,
        file_names,
        looked,
        refused,
    })
}

/// Opens the builtins of NVRTC, which NVRTC requests from the loader by name at the first compilation. They are in the folder of
/// NVRTC, or of the file that a link to NVRTC points to. If they are not found, that compilation reports it.
fn open_builtins(nvrtc: &Path) {
    let Some(name) = nvrtc.file_name() else {
        return;
    };
    let meant = nvrtc
        .canonicalize()
        .ok()
        .map(|file| file.with_file_name(name));
    for file in [Some(nvrtc.to_path_buf()), meant].into_iter().flatten() {
        for handle in builtins_beside(&file)
            .iter()
            .filter_map(|builtins| open_file(builtins).ok())
        {
            // Stays open for the life of the process, like the other libraries.
            std::mem::forget(handle);
        }
    }
}

#[cfg(unix)]
fn open_file(file: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: NVIDIA's libraries may be opened at any time from any thread: their initialisers touch only their own state.
    unsafe { UnixLibrary::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.map(Library::from)
}

#[cfg(windows)]
fn open_file(file: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{LOAD_WITH_ALTERED_SEARCH_PATH, Library as WindowsLibrary};
    // With this flag the loader searches the library's folder for its dependencies; the flag needs an absolute path.
    let flags = if file.is_absolute() {
        LOAD_WITH_ALTERED_SEARCH_PATH
    } else {
        0
    };
    // SAFETY: NVIDIA's libraries may be opened at any time from any thread: their initialisers touch only their own state.
    unsafe { WindowsLibrary::load_with_flags(file, flags) }.map(Library::from)
}

/// A function that exists in every version of the library.
fn landmark(part: CudaLibrary) -> &'static [u8] {
    match part {
        CudaLibrary::Driver => b"cuInit",
        CudaLibrary::Nvrtc => b"nvrtcVersion",
        CudaLibrary::CublasLt => b"cublasLtGetVersion",
        CudaLibrary::Cudnn => b"cudnnGetVersion",
        CudaLibrary::Nccl => b"ncclGetVersion",
    }
}

/// Address of the library's landmark function: equal for two handles of one library.
fn landmark_address(handle: &Library, part: CudaLibrary) -> Option<*const std::ffi::c_void> {
    // SAFETY: the symbol is taken as an address and is neither called nor read.
    let symbol = unsafe { handle.get::<*const std::ffi::c_void>(landmark(part)) };
    symbol.ok().map(|symbol| *symbol)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn file_of(handle: &Library, part: CudaLibrary) -> Option<String> {
    let address = landmark_address(handle, part)?;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` looks up the address and fills `info`, which is all zeros, a valid value, before the call.
    let info = unsafe {
        libc::dladdr(address, info.as_mut_ptr());
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that is not null is a C string that lives as long as the library is open; it is copied at once.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    name.to_str().ok().map(str::to_owned)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn file_of(_handle: &Library, _part: CudaLibrary) -> Option<String> {
    None
}

/// Checks that the bindings use the opened driver: they ask for `libcuda.so` first, which may be a toolkit's stub. No device is
/// better than calls into the stub.
fn driver_of_the_bindings(opened: &OpenLibrary) -> Result<(), Missing> {
    // SAFETY: opens and closes libraries; `opened` keeps the needed one open.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(Missing::Driver {
            reason: format!("{} is not known by its name", opened.found.path),
        });
    }
    // SAFETY: the check above ensures that one of the names can be opened, so that this does not panic.
    let theirs = unsafe { cudarc::driver::sys::culib() };
    if landmark_address(theirs, CudaLibrary::Driver)
        == landmark_address(&opened.handle, CudaLibrary::Driver)
    {
        return Ok(());
    }
    let path = file_of(theirs, CudaLibrary::Driver).unwrap_or_else(|| "another libcuda".to_owned());
    let reason = format!(
        "{path} comes before {} on the library path; is it a toolkit's stub?",
        opened.found.path
    );
    Err(Missing::Driver { reason })
}

/// The cuBLASLt that the bindings call: another file than the opened one if the loader knows an unversioned name.
fn cublaslt_of_the_bindings(opened: &OpenLibrary) -> Result<LibraryFile, MissingLibrary> {
    // SAFETY: opens and closes libraries; `opened` keeps the needed one open.
    if !unsafe { cudarc::cublaslt::sys::is_culib_present() } {
        return Err(MissingLibrary {
            part: CudaLibrary::CublasLt,
            file_names: CudaLibrary::CublasLt
                .file_names(Environment::of_process().system, newest_major()),
            looked: Vec::new(),
            refused: vec![format!("{} is not known by its name", opened.found.path)],
        });
    }
    // SAFETY: the check above ensures that one of the names can be opened, so that this does not panic.
    let theirs = unsafe { cudarc::cublaslt::sys::culib() };
    if landmark_address(theirs, CudaLibrary::CublasLt)
        == landmark_address(&opened.handle, CudaLibrary::CublasLt)
    {
        return Ok(opened.found.clone());
    }
    let path = file_of(theirs, CudaLibrary::CublasLt).unwrap_or_else(|| "libcublasLt".to_owned());
    Ok(LibraryFile {
        name: CudaLibrary::CublasLt.name(),
        path,
        origin: "system",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> MissingLibrary {
        MissingLibrary {
            part: CudaLibrary::Nvrtc,
            file_names: vec!["libnvrtc.so.13".to_owned(), "libnvrtc.so.12".to_owned()],
            looked: vec![
                "the system's loader".to_owned(),
                "/usr/local/cuda/lib64".to_owned(),
            ],
            refused: vec!["/broken/libnvrtc.so.13: file too short".to_owned()],
        }
    }

    #[test]
    fn what_is_missing_says_where_was_looked_and_what_to_type() {
        let libraries = vec![nowhere()];
        let pip = pip_line([CudaLibrary::Nvrtc, CudaLibrary::CublasLt].into_iter(), 13);
        assert_eq!(
            pip,
            r#"pip install "nvidia-cuda-nvrtc==13.0.*" "nvidia-cublas==13.*""#
        );
        let expected = "CUDA's libraries are not all here
  libnvrtc (as libnvrtc.so.13 or libnvrtc.so.12) was not found
    /broken/libnvrtc.so.13: file too short
  looked in the system's loader, /usr/local/cuda/lib64
hint: `pip install \"nvidia-cuda-nvrtc==13.0.*\" \"nvidia-cublas==13.*\"` in the Python environment that is active, \
or name their folders in HOLDALL_CUDA_LIBRARIES";
        assert_eq!(Missing::Libraries { libraries, pip }.to_string(), expected);
    }

    #[test]
    fn an_older_driver_is_given_its_own_packages() {
        let pip = pip_line([CudaLibrary::Nvrtc, CudaLibrary::CublasLt].into_iter(), 12);
        assert_eq!(pip, "pip install nvidia-cuda-nvrtc-cu12 nvidia-cublas-cu12");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_no_library_is_told_and_the_search_goes_on() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let file = root.path().join("libcublasLt.so.13");
        std::fs::write(&file, "not a library").expect("a file can be written");
        let environment = Environment {
            folders: vec![root.path().to_path_buf()],
            ..Environment::of_process()
        };
        match open(&environment, CudaLibrary::CublasLt, 13) {
            Ok(opened) => assert_ne!(opened.found.origin, "environment"),
            Err(missing) => assert!(
                missing.refused[0].starts_with(&file.display().to_string()),
                "{missing:?}"
            ),
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_that_was_opened_is_known_by_its_name() {
        if find_nvrtc().is_ok() {
            // SAFETY: opens and closes libraries that are already open.
            assert!(unsafe { cudarc::nvrtc::sys::is_culib_present() });
        }
        if let Ok(opened) = cublaslt_opened() {
            let found = cublaslt_of_the_bindings(opened).expect("it is open");
            assert!(found.path.contains("libcublasLt"), "{found:?}");
        }
    }

    #[test]
    fn asking_twice_gives_the_same_answer() {
        assert_eq!(load(), load());
    }
}
