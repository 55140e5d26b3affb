//! Counts calls and decides which one fails.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call is made.
    Pass,
    /// The call fails with this error.
    Fail(c_int),
    /// A write writes half of its bytes.
    Half,
    /// A write writes half of its bytes, then the process is killed.
    Torn,
}

/// The fault to inject, parsed from `HOLDALL_FAULT`.
struct Fault {
    operation: String,
    target: String,
    occurrence: u64,
    kind: Mode,
    error: c_int,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Once,
    Always,
    Half,
    Kill,
    Torn,
}

/// Operations that need room on the disk.
const WRITING: [&str; 6] = ["create", "write", "fsync", "mkdir", "copy", "link"];

#[derive(Default)]
struct State {
    under: Option<String>,
    fault: Option<Fault>,
    calls: HashMap<(&'static str, String), u64>,
    /// Open files below the watched folder, by descriptor.
    open: HashMap<c_int, String>,
    disk_is_full: bool,
    half_written: bool,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(|| Mutex::new(State::from_environment()));
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An environment variable, read without the standard library's lock on the environment.
fn variable(name: &CStr) -> Option<String> {
    // SAFETY: the name ends with a zero; the returned pointer is a string of the environment, copied at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

impl State {
    fn from_environment() -> State {
        State {
            under: variable(c"HOLDALL_FAULT_UNDER").map(|under| format!("{under}/")),
            fault: variable(c"HOLDALL_FAULT").map(|text| {
                parse(&text).unwrap_or_else(|| {
                    say(&format!("HOLDALL_FAULT cannot be read: {text}\n"));
                    abort()
                })
            }),
            ..State::default()
        }
    }

    /// A path relative to the watched folder; `None` outside of it.
    fn below(&self, path: &str) -> Option<String> {
        let under = self.under.as_deref()?;
        if path.len() + 1 == under.len() && under.starts_with(path) {
            return Some(".".to_owned());
        }
        path.strip_prefix(under).map(str::to_owned)
    }

    fn decide(&mut self, operation: &'static str, target: String) -> Action {
        let writes = WRITING.contains(&operation);
        let calls = self.calls.entry((operation, target.clone())).or_default();
        *calls += 1;
        let Some(fault) = &self.fault else {
            return Action::Pass;
        };
        if writes && (self.disk_is_full || self.half_written) {
            self.half_written = false;
            return Action::Fail(fault.error);
        }
        let is_it =
            fault.operation == operation && fault.target == target && fault.occurrence == *calls;
        match (is_it, fault.kind) {
            (false, _) => Action::Pass,
            (true, Mode::Once) => Action::Fail(fault.error),
            (true, Mode::Always) => {
                self.disk_is_full = true;
                Action::Fail(fault.error)
            }
            (true, Mode::Half) => {
                self.half_written = true;
                Action::Half
            }
            (true, Mode::Kill) => kill(),
            (true, Mode::Torn) => Action::Torn,
        }
    }
}

/// Parses e.g. `write<TAB>checkpoints/last.safetensors.partial<TAB>2<TAB>once:28`.
fn parse(text: &str) -> Option<Fault> {
    let mut parts = text.split('\t');
    let (operation, target) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let occurrence = parts.next()?.parse().ok()?;
    let action = parts.next()?;
    let (name, error) = action.split_once(':').unwrap_or((action, "0"));
    let kind = match name {
        "once" => Mode::Once,
        "always" => Mode::Always,
        "half" => Mode::Half,
        "kill" => Mode::Kill,
        "torn" => Mode::Torn,
        _ => return None,
    };
    Some(Fault {
        operation,
        target,
        occurrence,
        kind,
        error: error.parse().ok()?,
    })
}

/// The path argument of a call; empty for null.
///
/// # Safety
/// `path` is null or ends with a zero, as the interposed function demands.
unsafe fn text(path: *const c_char) -> String {
    if path.is_null() {
        String::new()
    } else {
        // SAFETY: not null, and zero-terminated by the caller's contract.
        unsafe { CStr::from_ptr(path) }
            .to_string_lossy()
            .into_owned()
    }
}

/// Outcome of a call that takes a path.
///
/// # Safety
/// Like [`text`].
pub unsafe fn on_path(operation: &'static str, path: *const c_char) -> Action {
    // SAFETY: the caller's contract.
    let path = unsafe { text(path) };
    let mut state = state();
    match state.below(&path) {
        Some(below) => state.decide(operation, below),
        None => Action::Pass,
    }
}

/// Outcome of a call that takes an open file.
pub fn on_file(operation: &'static str, file: c_int) -> Action {
    let mut state = state();
    match state.open.get(&file).cloned() {
        Some(below) => state.decide(operation, below),
        None => Action::Pass,
    }
}

/// Outcome of a call of a GPU library's function.
pub fn on_function(name: &str) -> Action {
    state().decide("call", name.to_owned())
}

/// Records an opened file.
///
/// # Safety
/// Like [`text`].
pub unsafe fn opened(file: c_int, path: *const c_char) {
    // SAFETY: the caller's contract.
    let path = unsafe { text(path) };
    let mut state = state();
    if let Some(below) = state.below(&path) {
        state.open.insert(file, below);
    }
}

/// Drops the record of a closed file.
pub fn closed(file: c_int) {
    state().open.remove(&file);
}

/// Ends the process by SIGKILL, like a loss of power.
pub fn kill() -> ! {
    // SAFETY: no pointers; the call does not return.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    loop {
        std::hint::spin_loop();
    }
}

fn abort() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(99) }
}

/// Writes to stderr by a direct system call: the interposed functions would count it.
fn say(text: &str) {
    // SAFETY: a pointer with its length.
    unsafe {
        libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len());
    }
}

fn write_file(path: &str, text: &str) {
    let path = format!("{path}\0");
    // SAFETY: the path ends with a zero; the text has its length.
    unsafe {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        let file = libc::syscall(libc::SYS_open, path.as_ptr(), flags, 0o600);
        libc::syscall(libc::SYS_write, file, text.as_ptr(), text.len());
        libc::syscall(libc::SYS_close, file);
    }
}

extern "C" fn at_end() {
    if let Some(path) = variable(c"HOLDALL_FAULT_CALLS") {
        let state = state();
        let mut calls: Vec<_> = state.calls.iter().collect();
        calls.sort();
        let mut text = String::new();
        for ((operation, target), count) in calls {
            writeln!(text, "{operation}\t{target}\t{count}").expect("a string takes all");
        }
        write_file(&path, &text);
    }
    if let Some(path) = variable(c"HOLDALL_FAULT_PEAK") {
        write_file(&path, &format!("{}\n", peak_resident_bytes()));
    }
}

/// The `VmHWM` line of `/proc/self/status`.
fn peak_resident_bytes() -> u64 {
    let mut text = [0u8; 4096];
    // SAFETY: the path ends with a zero; the buffer has its length.
    let length = unsafe {
        let path = c"/proc/self/status".as_ptr();
        let file = libc::syscall(libc::SYS_open, path, libc::O_RDONLY);
        let length = libc::syscall(libc::SYS_read, file, text.as_mut_ptr(), text.len());
        libc::syscall(libc::SYS_close, file);
        length
    };
    let text = String::from_utf8_lossy(&text[..length.max(0) as usize]);
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;
