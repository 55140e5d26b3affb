//! Signals that a kernel raises, as errors of the card: a guard's page touched, or a trap that the compiler put where behaviour is
//! undefined.
//!
//! The handler sends the thread out of the kernel, to a function of the kernel's library that goes back to whoever ran the block. Signals
//! of anything else are handed on to whoever handled them before.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Once;

/// A signal of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// What it touched; `None` where it did something undefined.
    pub address: Option<u64>,
    pub instruction: u64,
}

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// Bytes of the stack that the way out of a kernel has.
const WAY_OUT_BYTES: usize = 16 << 10;

thread_local! {
    static ABANDON: Cell<*const c_void> = const { Cell::new(std::ptr::null()) };
    static TRAP: Cell<Option<Trap>> = const { Cell::new(None) };
    static HAS_STACK: Cell<bool> = const { Cell::new(false) };
    static WAY_OUT: UnsafeCell<[u64; WAY_OUT_BYTES / 8]> =
        const { UnsafeCell::new([0; WAY_OUT_BYTES / 8]) };
}

/// Who handled the signals before.
static mut BEFORE: [Option<libc::sigaction>; SIGNALS.len()] = [None; SIGNALS.len()];

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let abandon = ABANDON.get();
    let place = SIGNALS.iter().position(|&one| one == signal).unwrap_or(0);
    if abandon.is_null() {
        // SAFETY: written once, before any signal is handled here; what handled it before is restored and meets the signal again.
        unsafe {
            let before = (&raw const BEFORE[place]).read();
            if let Some(before) = before {
                libc::sigaction(signal, &before, std::ptr::null_mut());
            }
        }
        return;
    }
    // SAFETY: the system gives a siginfo and a context that are this handler's to read and to change.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let registers = &mut (*context).uc_mcontext.gregs;
        let instruction = registers[libc::REG_RIP as usize] as u64;
        let is_access = signal == libc::SIGSEGV || signal == libc::SIGBUS;
        TRAP.set(Some(Trap {
            address: is_access.then(|| (*info).si_addr() as u64),
            instruction,
        }));
        registers[libc::REG_RIP as usize] = abandon as i64;
        // As after a call: 8 bytes off a multiple of 16.
        let top = WAY_OUT.with(|stack| stack.get() as u64) + WAY_OUT_BYTES as u64;
        registers[libc::REG_RSP as usize] = ((top & !15) - 8) as i64;
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (place, signal) in SIGNALS.into_iter().enumerate() {
            // SAFETY: all zeros is a valid action; the handler has the type that SA_SIGINFO wants.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(signal, &action, &mut before);
                (&raw mut BEFORE[place]).write(Some(before));
            }
        }
    });
    if !HAS_STACK.replace(true) {
        // SAFETY: asks for this thread's stack for signals, and gives it one where there is none; that is kept for good.
        unsafe {
            let mut stack: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut stack);
            if stack.ss_flags & libc::SS_DISABLE != 0 {
                let bytes = 64 << 10;
                let memory = Box::leak(vec![0u8; bytes].into_boxed_slice());
                stack.ss_sp = memory.as_mut_ptr().cast();
                stack.ss_size = bytes;
                stack.ss_flags = 0;
                libc::sigaltstack(&stack, std::ptr::null_mut());
            }
        }
    }
}

/// Runs kernels: what they raise meanwhile on this thread goes to `abandon`.
pub fn with_traps(abandon: *const c_void, work: impl FnOnce()) {
    install();
    TRAP.set(None);
    ABANDON.set(abandon);
    work();
    ABANDON.set(std::ptr::null());
}

/// The signal that ended a block on this thread.
pub fn take_trap() -> Option<Trap> {
    TRAP.take()
}

/// `, at FILE:LINE` of an instruction, as the debugging information of its library tells; nothing where that cannot be had.
pub fn source_line(image: &[u8], instruction: u64, in_library: *const c_void) -> String {
    let find = || -> Option<String> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: only looks the address up, and fills `info`, which is all zeros, a valid value, until then.
        let base = unsafe {
            libc::dladdr(in_library, info.as_mut_ptr());
            info.assume_init().dli_fbase as u64
        };
        let file = std::env::temp_dir().join(format!("holdall-kernel-{}.so", std::process::id()));
        std::fs::File::create(&file).ok()?.write_all(image).ok()?;
        let output = Command::new("addr2line")
            .arg("-i")
            .arg("-e")
            .arg(&file)
            .arg(format!("{:#x}", instruction.checked_sub(base)?))
            .stderr(Stdio::null())
            .output();
        let _ = std::fs::remove_file(&file);
        let lines = String::from_utf8(output.ok()?.stdout).ok()?;
        let lines: Vec<&str> = lines
            .lines()
            .filter(|line| line.contains(".cu"))
            .map(|line| line.rsplit('/').next().unwrap_or(line))
            .collect();
        (!lines.is_empty()).then(|| format!(", at {}", lines.join(", in ")))
    };
    find().unwrap_or_default()
}
