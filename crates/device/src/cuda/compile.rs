//! Kernels from source to cubin: compiled by NVRTC at first use and cached on disk.
//!
//! A kernel file is compiled once per architecture and per number format of the activations. The cache key is a hash of the source, the
//! options and NVRTC's version, so that a cached cubin is never out of date; a file that is unreadable or damaged is compiled again.

use std::ffi::{CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use super::libraries::{self, Missing};

/// Common part of every kernel file.
const COMMON: &str = include_str!("kernels/common.cuh");

pub use holdall_files::CACHE_VARIABLE;

/// Reason why a kernel has no cubin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// NVRTC was not found.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The library lacks a function: it is not NVRTC, or too old.
    #[error(
        "libnvrtc cannot be used: {reason}\nhint: `holdall doctor` says which file it is; installing NVRTC again may help"
    )]
    Unusable {
        /// Message of the loader.
        reason: String,
    },
    /// The name or the source has a zero byte.
    #[error("{name}: a zero byte in the source")]
    ZeroByte {
        /// File name of the kernels.
        name: String,
    },
    /// NVRTC could not compile the source.
    #[error("{name} for {architecture}, ELEMENT {element}: NVRTC error {code}\n{log}")]
    Refused {
        /// File name of the kernels.
        name: String,
        /// For example `sm_86`.
        architecture: String,
        /// Number format of the activations.
        element: u32,
        /// NVRTC's status.
        code: i32,
        /// NVRTC's log.
        log: String,
    },
}

/// The text that is compiled: the common part, then the file. Line numbers in messages refer to the two files.
pub fn source(file_name: &str, text: &str) -> String {
    format!("#line 1 \"common.cuh\"\n{COMMON}\n#line 1 \"{file_name}\"\n{text}")
}

fn options(architecture: &str, element: u32) -> [String; 4] {
    [
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
        format!("-DELEMENT={element}"),
    ]
}

/// Compiles a complete source (see [`source`]) for one architecture, such as `sm_86`; messages use `name`.
///
/// # Errors
/// See [`CompileError`].
pub fn to_cubin(
    source: &str,
    name: &str,
    architecture: &str,
    element: u32,
) -> Result<Vec<u8>, CompileError> {
    let nvrtc = nvrtc()?;
    let zero_byte = |_| CompileError::ZeroByte {
        name: name.to_owned(),
    };
    let c_source = CString::new(source).map_err(zero_byte)?;
    let c_name = CString::new(name).map_err(zero_byte)?;
    let c_options =
        options(architecture, element).map(|option| CString::new(option).map_err(zero_byte));
    let c_options: Vec<CString> = c_options.into_iter().collect::<Result<_, _>>()?;
    let pointers: Vec<*const c_char> = c_options.iter().map(|option| option.as_ptr()).collect();
    let refused = |code: i32, log: String| CompileError::Refused {
        name: name.to_owned(),
        architecture: architecture.to_owned(),
        element,
        code,
        log,
    };

    let mut handle: *mut c_void = std::ptr::null_mut();
    // SAFETY: source and name are C strings that outlive the program, which is dropped at the end of this function; there are no
    // headers, so both lists of headers may be null.
    let code = unsafe {
        (nvrtc.create_program)(
            &mut handle,
            c_source.as_ptr(),
            c_name.as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    if code != 0 {
        return Err(refused(code, String::new()));
    }
    let program = NvrtcProgram { handle, nvrtc };
    // SAFETY: the program is alive, and `pointers` has the stated number of C strings, all alive.
    let code = unsafe {
        (nvrtc.compile_program)(program.handle, pointers.len() as c_int, pointers.as_ptr())
    };
    if code != 0 {
        return Err(refused(code, program.log()));
    }
    match program.fetch(nvrtc.cubin_size, nvrtc.cubin) {
        Ok(cubin) if cubin.is_empty() => Err(refused(0, "the cubin is empty".to_owned())),
        Ok(cubin) => Ok(cubin),
        Err(code) => Err(refused(code, "the cubin could not be fetched".to_owned())),
    }
}

/// Like [`to_cubin`], with a cache on disk. A failure of the cache costs time and nothing else.
///
/// # Errors
/// See [`CompileError`].
pub fn cached(
    source: &str,
    name: &str,
    architecture: &str,
    element: u32,
) -> Result<Vec<u8>, CompileError> {
    let Some(folder) = cache_folder() else {
        return to_cubin(source, name, architecture, element);
    };
    cached_in(&folder, source, name, architecture, element)
}

/// Like [`cached`], with the cache in a given folder.
///
/// # Errors
/// See [`CompileError`].
pub fn cached_in(
    folder: &Path,
    source: &str,
    name: &str,
    architecture: &str,
    element: u32,
) -> Result<Vec<u8>, CompileError> {
    let file = file_in(folder, source, name, architecture, element)?;
    if let Some(cubin) = std::fs::read(&file).ok().and_then(unseal) {
        return Ok(cubin);
    }
    let cubin = to_cubin(source, name, architecture, element)?;
    // A full or read-only disk must not prevent training: the next start compiles again.
    let _ = keep(&file, &seal(&cubin));
    Ok(cubin)
}

/// Whether the cache of [`cached`] has a file for this source: then the call is quick, unless the file is damaged.
pub fn is_kept(source: &str, name: &str, architecture: &str, element: u32) -> bool {
    cache_folder()
        .and_then(|folder| file_in(&folder, source, name, architecture, element).ok())
        .is_some_and(|file| file.is_file())
}

fn file_in(
    folder: &Path,
    source: &str,
    name: &str,
    architecture: &str,
    element: u32,
) -> Result<PathBuf, CompileError> {
    let key = key(source, &options(architecture, element), version()?);
    let stem = Path::new(name)
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or("kernels");
    Ok(folder.join(format!("{stem}-{architecture}-{element}-{key}.cubin")))
}

/// Cache folder of [`cached`]; `None` if the environment names no cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    Some(holdall_files::cache_folder()?.join("cubins"))
}

/// Cache key of 128 bits, so that sources do not collide. The hash may change with the toolchain: then everything is compiled once more.
fn key(source: &str, options: &[String], version: (u32, u32)) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, source, options, version).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// Start of a file of the cache; a hash of the cubin and the cubin follow.
const MAGIC: [u8; 8] = *b"holdall1";

fn content_hash(cubin: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    cubin.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

fn seal(cubin: &[u8]) -> Vec<u8> {
    [&MAGIC, &content_hash(cubin), cubin].concat()
}

fn unseal(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let header = MAGIC.len() + 8;
    if file.len() <= header
        || !file.starts_with(&MAGIC)
        || file[MAGIC.len()..header] != content_hash(&file[header..])
    {
        return None;
    }
    file.drain(..header);
    Some(file)
}

/// Writes a file that other processes see completely or not at all.
fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    holdall_files::write_shared(file, bytes)
}

/// NVRTC's version, (major, minor).
///
/// # Errors
/// [`CompileError::Missing`] or [`CompileError::Unusable`].
pub fn version() -> Result<(u32, u32), CompileError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function writes two ints and does nothing else.
    match unsafe { (nvrtc()?.version)(&mut major, &mut minor) } {
        0 => Ok((major.unsigned_abs(), minor.unsigned_abs())),
        code => Err(CompileError::Unusable {
            reason: format!("nvrtcVersion gives error {code}"),
        }),
    }
}

/// Architectures that NVRTC compiles for, such as `sm_86`.
///
/// # Errors
/// [`CompileError::Missing`] or [`CompileError::Unusable`].
pub fn architectures() -> Result<Vec<String>, CompileError> {
    let nvrtc = nvrtc()?;
    let unusable = |code: c_int| CompileError::Unusable {
        reason: format!("nvrtcGetSupportedArchs gives error {code}"),
    };
    let mut count = 0;
    // SAFETY: the function writes one int.
    let code = unsafe { (nvrtc.num_architectures)(&mut count) };
    if code != 0 {
        return Err(unusable(code));
    }
    let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the function writes as many ints as `count`.
    match unsafe { (nvrtc.architectures)(numbers.as_mut_ptr()) } {
        0 => Ok(numbers
            .into_iter()
            .map(|number| format!("sm_{number}"))
            .collect()),
        code => Err(unusable(code)),
    }
}

type Status = c_int;
type Strings = *const *const c_char;

/// NVRTC's functions. A status is an int here, because a newer NVRTC may return a value that is not in today's enum.
struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    num_architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    create_program: unsafe extern "C" fn(
        *mut *mut c_void,
        *const c_char,
        *const c_char,
        c_int,
        Strings,
        Strings,
    ) -> Status,
    compile_program: unsafe extern "C" fn(*mut c_void, c_int, Strings) -> Status,
    destroy_program: unsafe extern "C" fn(*mut *mut c_void) -> Status,
    cubin_size: SizeOf,
    cubin: Fetch,
    log_size: SizeOf,
    log: Fetch,
}

type SizeOf = unsafe extern "C" fn(*mut c_void, *mut usize) -> Status;
type Fetch = unsafe extern "C" fn(*mut c_void, *mut c_char) -> Status;

fn nvrtc() -> Result<&'static Nvrtc, CompileError> {
    static NVRTC: OnceLock<Result<Nvrtc, CompileError>> = OnceLock::new();
    NVRTC
        .get_or_init(|| Nvrtc::of(libraries::nvrtc()?))
        .as_ref()
        .map_err(CompileError::clone)
}

impl Nvrtc {
    fn of(library: &'static Library) -> Result<Self, CompileError> {
        /// SAFETY: the caller states the type that NVRTC's header declares for the function of this name.
        unsafe fn get<T: Copy>(library: &'static Library, name: &str) -> Result<T, CompileError> {
            // SAFETY: the caller states the correct type; the library is never closed, so that the copy stays valid.
            let symbol = unsafe { library.get::<T>(name.as_bytes()) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|error| CompileError::Unusable {
                    reason: error.to_string(),
                })
        }
        // SAFETY: the fields have the types that NVRTC's header declares; an nvrtcProgram is a pointer.
        unsafe {
            Ok(Nvrtc {
                version: get(library, "nvrtcVersion")?,
                num_architectures: get(library, "nvrtcGetNumSupportedArchs")?,
                architectures: get(library, "nvrtcGetSupportedArchs")?,
                create_program: get(library, "nvrtcCreateProgram")?,
                compile_program: get(library, "nvrtcCompileProgram")?,
                destroy_program: get(library, "nvrtcDestroyProgram")?,
                cubin_size: get(library, "nvrtcGetCUBINSize")?,
                cubin: get(library, "nvrtcGetCUBIN")?,
                log_size: get(library, "nvrtcGetProgramLogSize")?,
                log: get(library, "nvrtcGetProgramLog")?,
            })
        }
    }
}

/// An NVRTC program, destroyed when dropped.
struct NvrtcProgram {
    handle: *mut c_void,
    nvrtc: &'static Nvrtc,
}

impl NvrtcProgram {
    /// Queries a size, then fetches that many bytes.
    fn fetch(&self, size_of: SizeOf, fetch: Fetch) -> Result<Vec<u8>, Status> {
        let mut size = 0;
        // SAFETY: the program is alive; the function writes one size.
        let code = unsafe { size_of(self.handle, &mut size) };
        if code != 0 {
            return Err(code);
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: the function writes `size` bytes, and the buffer has that many.
        match unsafe { fetch(self.handle, bytes.as_mut_ptr().cast()) } {
            0 => Ok(bytes),
            code => Err(code),
        }
    }

    fn log(&self) -> String {
        let bytes = self
            .fetch(self.nvrtc.log_size, self.nvrtc.log)
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .trim_end()
            .to_owned()
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the handle came from `create_program` and is destroyed once.
        unsafe { (self.nvrtc.destroy_program)(&mut self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_the_files_own_beginning() {
        let text = source("norm.cu", "first line");
        assert!(text.starts_with("#line 1 \"common.cuh\"\n"));
        assert!(text.ends_with("#line 1 \"norm.cu\"\nfirst line"));
    }

    #[test]
    fn the_key_depends_on_all_that_the_cubin_depends_on() {
        let base = key("a", &options("sm_80", 0), (13, 0));
        assert_eq!(base.len(), 32);
        assert_eq!(base, key("a", &options("sm_80", 0), (13, 0)));
        for other in [
            key("b", &options("sm_80", 0), (13, 0)),
            key("a", &options("sm_86", 0), (13, 0)),
            key("a", &options("sm_80", 1), (13, 0)),
            key("a", &options("sm_80", 0), (13, 1)),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_kept_file_is_taken_only_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("deep/a.cubin");
        keep(&file, &seal(b"cubin")).expect("a temporary folder can be written");
        let mut bytes = std::fs::read(&file).expect("it was written");
        assert_eq!(unseal(bytes.clone()).as_deref(), Some(&b"cubin"[..]));
        assert_eq!(
            std::fs::read_dir(folder.path().join("deep"))
                .expect("the folder is there")
                .count(),
            1
        );
        for length in 0..bytes.len() {
            assert_eq!(unseal(bytes[..length].to_vec()), None, "cut at {length}");
        }
        *bytes.last_mut().expect("it has bytes") ^= 1;
        assert_eq!(unseal(bytes), None);
    }
}
