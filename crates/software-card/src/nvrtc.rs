//! libnvrtc: kernels through the machine's C++ compiler.
//!
//! The source is taken as it is: preprocessed, so that kernels that macros write can be found, then put behind `runtime/card.h`, which
//! gives CUDA's words their meaning, with a table of its kernels at the end. The "cubin" is a library of the host. What was compiled is
//! kept beside this library, by a hash of all that it depends on.

use std::ffi::{c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::foreign::{Handle, list, put, put_list, text};

const CARD: &str = include_str!("runtime/card.h");
const INSTRUCTIONS: &str = include_str!("runtime/instructions.h");

/// Shared memory that a kernel may ask for at its launch, at most.
const DYNAMIC_BYTES: usize = 227 << 10;

/// Folder of compiled kernels; beside this library where it is not said.
const CACHE_VARIABLE: &str = "HOLDALL_SOFTWARE_GPU_CACHE";

/// Options for the compiler of the host, beside what the program says: `-fsanitize=...`, or `-O0 -g` for a debugger.
const OPTIONS_VARIABLE: &str = "HOLDALL_SOFTWARE_GPU_OPTIONS";

/// A fault to plant, so that tests can be seen to catch it: `FILE:N:FROM => TO` changes the N-th place of a kernel file that reads
/// so, counted from 1, and the name of a call of the driver has it do nothing.
const PLANT_VARIABLE: &str = "HOLDALL_SOFTWARE_GPU_PLANT";

/// Where it is set, every access of a kernel is checked against the tensors that a test describes by [`holdall_software_card_tensors`].
const GUARD_VARIABLE: &str = "HOLDALL_SOFTWARE_GPU_GUARD_TENSORS";

/// Options by which g++ calls the checks in card.h at every access.
const GUARD_OPTIONS: [&str; 8] = [
    "-DHOLDALL_GUARD_TENSORS",
    "-fsanitize=kernel-address",
    "--param",
    "asan-stack=0",
    "--param",
    "asan-globals=0",
    "--param",
    "asan-instrumentation-with-call-threshold=0",
];

/// How kernels are compiled. Sums and products are fused where NVRTC would fuse them; behaviour that is undefined traps.
const OPTIONS: [&str; 14] = [
    "-std=c++17",
    "-w",
    "-O2",
    "-g1",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fsanitize=alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow",
    "-fsanitize-undefined-trap-on-error",
    "-fPIC",
    "-shared",
];

const COMPILATION: c_int = 6;
const INVALID_INPUT: c_int = 3;
const INVALID_OPTION: c_int = 5;

/// Architectures that there are cards of; Hopper's products have no meaning here.
const ARCHITECTURES: [c_int; 7] = [75, 80, 86, 87, 89, 100, 120];

struct NvrtcProgram {
    source: String,
    name: String,
    log: String,
    cubin: Vec<u8>,
}

/// The folder that this library lies in.
pub fn own_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: only looks an address of this library up, and fills `info`, which is all zeros, a valid value, until then.
        let info = unsafe {
            libc::dladdr(nvrtcVersion as *const _, info.as_mut_ptr());
            info.assume_init()
        };
        let file = PathBuf::from(text(info.dli_fname));
        let file = file.canonicalize().unwrap_or(file);
        let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
        folder.join("software-card")
    })
}

fn cache_folder() -> PathBuf {
    match std::env::var_os(CACHE_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => own_folder().join("kernels"),
    }
}

/// The compiler, and what it says of itself.
fn compiler() -> Option<&'static (String, String)> {
    static COMPILER: OnceLock<Option<(String, String)>> = OnceLock::new();
    let found = COMPILER.get_or_init(|| {
        let named = std::env::var("CXX").ok();
        let names = named
            .into_iter()
            .chain(["g++", "clang++"].map(str::to_owned));
        names
            .filter_map(|name| {
                let output = Command::new(&name).arg("--version").output().ok()?;
                let version = String::from_utf8_lossy(&output.stdout).into_owned();
                output.status.success().then_some((name, version))
            })
            .next()
    });
    found.as_ref()
}

fn own_options() -> Vec<String> {
    let added = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    let added = added.split_whitespace().map(str::to_owned);
    let guard = std::env::var_os(GUARD_VARIABLE).map(|_| GUARD_OPTIONS);
    let options = OPTIONS.into_iter().chain(guard.into_iter().flatten());
    options.map(str::to_owned).chain(added).collect()
}

/// The fault to plant; empty where there is none.
pub fn planted() -> &'static str {
    static PLANTED: OnceLock<String> = OnceLock::new();
    PLANTED.get_or_init(|| std::env::var(PLANT_VARIABLE).unwrap_or_default())
}

/// A source with the planted fault, where it is of the file that the fault is for.
fn with_fault(source: String, file: &str, fault: &str) -> Result<String, String> {
    let mut parts = fault.splitn(3, ':');
    let (Some(of), Some(place), Some(change)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(source);
    };
    // `common.cuh` is included by every file: a fault in it is planted in all of them.
    if of != file && of != "common.cuh" {
        return Ok(source);
    }
    let wrong = || format!("{file}: no place for the planted fault {fault}");
    let (from, to) = change.split_once(" => ").ok_or_else(wrong)?;
    let place: usize = place.parse().map_err(|_| wrong())?;
    let own = source.find(&format!("\"{of}\"")).unwrap_or(0);
    let mut places = source[own..].match_indices(from);
    let (at, _) = places.nth(place.wrapping_sub(1)).ok_or_else(wrong)?;
    let (before, after) = source.split_at(own + at);
    Ok(format!("{before}{to}{}", &after[from.len()..]))
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Runs the compiler on a text; what it wrote, or what it complained of.
fn run(options: &[String], input: &str) -> Result<Vec<u8>, String> {
    let (compiler, _) = compiler()
        .ok_or("no C++ compiler is here: install g++ or clang++, or name one in CXX".to_owned())?;
    let mut child = Command::new(compiler)
        .args(options)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take();
    let text = input.to_owned();
    let writer = std::thread::spawn(move || {
        if let Some(stdin) = &mut stdin {
            // A compiler that has seen enough closes its end.
            let _ = stdin.write_all(text.as_bytes());
        }
    });
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let _ = writer.join();
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// `file.cu:2:7: error` as NVRTC writes it, `file.cu(2): error`.
fn as_nvrtc_writes(log: &str) -> String {
    let line = |line: &str| {
        let mut parts = line.splitn(4, ':');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(file), Some(number), Some(_), Some(rest)) if number.parse::<u32>().is_ok() => {
                format!("{file}({number}):{rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    log.lines().map(line).collect()
}

/// Name and launch bounds of each kernel of a preprocessed source.
fn kernels(source: &str) -> Result<Vec<(String, String)>, String> {
    let marker = "__global__";
    let mut found = Vec::new();
    // Lines that say where text came from would stand between words.
    let plain: String = source
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect();
    for (at, _) in plain.match_indices(marker) {
        let mut rest = plain[at + marker.len()..].trim_start();
        let mut bounds = "()".to_owned();
        loop {
            let word_end = rest
                .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .unwrap_or(rest.len());
            let (word, after) = (&rest[..word_end], rest[word_end..].trim_start());
            if word == "__launch_bounds__" {
                let end = closing(after).ok_or("__launch_bounds__ without an end")?;
                bounds = after[..end].to_owned();
                rest = after[end..].trim_start();
            } else if word == "void" {
                rest = after;
            } else if !word.is_empty() && after.starts_with('(') {
                found.push((word.to_owned(), bounds));
                break;
            } else {
                return Err(format!(
                    "a kernel whose name was not found: {}",
                    rest.lines().next().unwrap_or_default()
                ));
            }
        }
    }
    Ok(found)
}

/// Bytes up to the parenthesis that closes the first one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(at + 1),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `extern __shared__ TYPE name[];` as an array of the size that a launch may ask for.
fn with_dynamic_shared(source: &str) -> String {
    let mut result = String::new();
    let mut rest = source;
    while let Some(at) = rest.find("extern __shared__") {
        let (before, declaration) = rest.split_at(at);
        let Some(end) = declaration.find("[]") else {
            break;
        };
        result += before;
        result += &declaration["extern ".len()..end];
        result += &format!("[{DYNAMIC_BYTES}]");
        rest = &declaration[end + 2..];
    }
    result + rest
}

/// The library of a source for an architecture such as 89; `defines` are the program's own.
fn compile(source: &str, defines: &[String], architecture: u32) -> Result<Vec<u8>, String> {
    let version = compiler().map(|(_, version)| version.as_str());
    let options = own_options();
    let key = hash((
        source,
        defines,
        architecture,
        CARD,
        INSTRUCTIONS,
        &options,
        version,
    ));
    let file = cache_folder().join(format!("{key:016x}.so"));
    if let Ok(kept) = std::fs::read(&file) {
        return Ok(kept);
    }
    let mut first: Vec<String> = ["-E", "-x", "c++", "-DHOLDALL_SOFTWARE_CARD"]
        .map(str::to_owned)
        .to_vec();
    first.push(format!("-D__CUDA_ARCH__={architecture}0"));
    first.extend(defines.iter().cloned());
    let source = String::from_utf8_lossy(&run(&first, source)?).into_owned();
    let table: String = kernels(&source)?
        .iter()
        .map(|(name, bounds)| format!("HOLDALL_KERNEL({name}, {bounds})\n"))
        .collect();
    let whole = format!(
        "{CARD}\nnamespace {{\n{INSTRUCTIONS}\n{}\n#line 1 \"table\"\n\
         __shared__ __attribute__((used)) char holdall_some_shared[16];\n\
         const card::Kernel HOLDALL_KERNELS[] = {{\n{table}{{nullptr, nullptr, 0, 0, nullptr}}}};\n}}\n\
         extern \"C\" const card::Kernel *holdall_kernels() {{ return HOLDALL_KERNELS; }}\n\
         extern \"C\" unsigned holdall_architecture() {{ return {architecture}; }}\n",
        with_dynamic_shared(&source)
    );
    let folder = cache_folder();
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // Processes that compile the same at the same time each have a file of their own until it is whole.
    let made = folder.join(format!(
        "{key:016x}.{}.{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut second = options;
    second.extend(defines.iter().cloned());
    second.extend([
        "-o".to_owned(),
        made.display().to_string(),
        "-x".to_owned(),
        "c++".to_owned(),
    ]);
    run(&second, &whole)?;
    std::fs::rename(&made, &file).map_err(|error| format!("{}: {error}", file.display()))?;
    std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))
}

fn program(handle: Handle) -> Option<&'static mut NvrtcProgram> {
    // SAFETY: the caller hands back what `nvrtcCreateProgram` gave, and uses it from one thread at a time.
    unsafe { handle.cast::<NvrtcProgram>().as_mut() }
}

/// The minor number changes with the runtime, the options and the compiler: what others keep by NVRTC's version is never out of date.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    let version = compiler().map(|(_, version)| version.as_str());
    let changes = hash((CARD, INSTRUCTIONS, own_options(), version, planted()));
    put(major, 13);
    put(minor, (changes % 100_000_000) as c_int);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> c_int {
    put(count, ARCHITECTURES.len() as c_int);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetSupportedArchs(to: *mut c_int) -> c_int {
    put_list(to, &ARCHITECTURES);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCreateProgram(
    to: *mut Handle,
    source: *const c_char,
    name: *const c_char,
    num_headers: c_int,
    _headers: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    if num_headers != 0 {
        return INVALID_INPUT;
    }
    let program = NvrtcProgram {
        source: text(source),
        name: text(name),
        log: String::new(),
        cubin: Vec::new(),
    };
    put(to, Box::into_raw(Box::new(program)).cast());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCompileProgram(
    handle: Handle,
    num_options: c_int,
    options: *const *const c_char,
) -> c_int {
    let Some(program) = program(handle) else {
        return INVALID_INPUT;
    };
    let mut architecture = None;
    let mut defines = Vec::new();
    for option in list(options, num_options.max(0) as usize) {
        let option = text(option);
        if let Some(name) = option.strip_prefix("--gpu-architecture=sm_") {
            architecture = name.parse::<u32>().ok();
        } else if option.starts_with("-D") {
            defines.push(option);
        } else if option != "--std=c++17" && option != "-default-device" {
            program.log = format!("unknown option {option}");
            return INVALID_OPTION;
        }
    }
    let Some(architecture) = architecture.filter(|&one| ARCHITECTURES.contains(&(one as c_int)))
    else {
        program.log = "this compiler knows no such architecture".to_owned();
        return INVALID_OPTION;
    };
    let source = with_fault(program.source.clone(), &program.name, planted());
    match source.and_then(|source| compile(&source, &defines, architecture)) {
        Ok(cubin) => {
            program.cubin = cubin;
            0
        }
        Err(log) => {
            program.log = format!("{}:\n{}", program.name, as_nvrtc_writes(&log));
            COMPILATION
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcDestroyProgram(handle: *mut Handle) -> c_int {
    if let Some(pointer) = crate::foreign::get(handle)
        && !pointer.is_null()
    {
        // SAFETY: made in `nvrtcCreateProgram`, and destroyed once.
        drop(unsafe { Box::from_raw(pointer.cast::<NvrtcProgram>()) });
        put(handle, std::ptr::null_mut());
    }
    0
}

fn fetch(handle: Handle, to: *mut c_char, part: impl Fn(&NvrtcProgram) -> Vec<u8>) -> c_int {
    match program(handle) {
        Some(program) => {
            put_list(to.cast::<u8>(), &part(program));
            0
        }
        None => INVALID_INPUT,
    }
}

fn size(handle: Handle, to: *mut usize, part: impl Fn(&NvrtcProgram) -> Vec<u8>) -> c_int {
    match program(handle) {
        Some(program) => {
            put(to, part(program).len());
            0
        }
        None => INVALID_INPUT,
    }
}

fn log_of(program: &NvrtcProgram) -> Vec<u8> {
    [program.log.as_bytes(), b"\0"].concat()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBINSize(handle: Handle, to: *mut usize) -> c_int {
    size(handle, to, |program| program.cubin.clone())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBIN(handle: Handle, to: *mut c_char) -> c_int {
    fetch(handle, to, |program| program.cubin.clone())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLogSize(handle: Handle, to: *mut usize) -> c_int {
    size(handle, to, log_of)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLog(handle: Handle, to: *mut c_char) -> c_int {
    fetch(handle, to, log_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let source = "extern \"C\" __global__ void __launch_bounds__(32 * (4), 4 == 4 ? 7 : 5)\n# 3 \"a.cu\"\n one(int a) {}\n\
                      extern \"C\" __global__ void two() {}";
        let found = kernels(source).unwrap();
        let expected = [("one", "(32 * (4), 4 == 4 ? 7 : 5)"), ("two", "()")];
        assert_eq!(
            found,
            expected.map(|(name, bounds)| (name.to_owned(), bounds.to_owned()))
        );
    }

    #[test]
    fn shared_memory_of_a_launch_has_a_size() {
        let source = "a; extern __shared__ __align__(1024) unsigned char shared[]; b;";
        let expected = "a; __shared__ __align__(1024) unsigned char shared[232448]; b;";
        assert_eq!(with_dynamic_shared(source), expected);
    }

    #[test]
    fn a_fault_is_planted_where_it_is_said() {
        let source = "#line 1 \"common.cuh\"\na();\n#line 1 \"b.cu\"\na(); a();".to_owned();
        let planted = with_fault(source.clone(), "b.cu", "b.cu:2:a(); => c();").unwrap();
        assert!(
            planted.ends_with("\na(); c();") && planted.contains("cuh\"\na();"),
            "{planted}"
        );
        assert_eq!(
            with_fault(source.clone(), "d.cu", "b.cu:2:a(); => c();"),
            Ok(source.clone())
        );
        assert!(with_fault(source, "b.cu", "b.cu:3:a(); => c();").is_err());
    }

    #[test]
    fn messages_look_like_nvrtcs() {
        let log = "broken.cu:2:40: error: 'wrong' was not declared\n  note";
        let expected = "broken.cu(2): error: 'wrong' was not declared\n  note\n";
        assert_eq!(as_nvrtc_writes(log), expected);
    }
}
