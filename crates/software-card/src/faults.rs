//! Signals that a kernel raises become errors of the card: an access to a guard page, or a trap that the compiler inserted for undefined
//! behaviour.
//!
//! The signal handler jumps out of the kernel, to a function of the kernel's library that returns to the caller of the block. A signal
//! outside of kernels goes to the previously installed handler.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Once;

/// A signal that a kernel raised.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// Address that the kernel accessed; `None` for undefined behaviour.
    pub address: Option<u64>,
    pub instruction: u64,
}

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// Bytes of the stack for the function that leaves a kernel.
const WAY_OUT_BYTES: usize = 16 << 10;

thread_local! {
    static ABANDON: Cell<*const c_void> = const { Cell::new(std::ptr::null()) };
    static TRAP: Cell<Option<Trap>> = const { Cell::new(None) };
    static HAS_STACK: Cell<bool> = const { Cell::new(false) };
    static WAY_OUT: UnsafeCell<[u64; WAY_OUT_BYTES / 8]> =
        const { UnsafeCell::new([0; WAY_OUT_BYTES / 8]) };
}

/// Previously installed signal handlers.
static mut BEFORE: [Option<libc::sigaction>; SIGNALS.len()] = [None; SIGNALS.len()];

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let abandon = ABANDON.get();
    let place = SIGNALS.iter().position(|&one| one == signal).unwrap_or(0);
    if abandon.is_null() {
        // SAFETY: written once, before this handler is installed; restores the previous handler, which receives the repeated signal.
        unsafe {
            let before = (&raw const BEFORE[place]).read();
            if let Some(before) = before {
                libc::sigaction(signal, &before, std::ptr::null_mut());
            }
        }
        return;
    }
    // SAFETY: the system passes a siginfo and a context that this handler may read and change.
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
        // Stack alignment as after a call: 8 bytes off a multiple of 16.
        let top = WAY_OUT.with(|stack| stack.get() as u64) + WAY_OUT_BYTES as u64;
        registers[libc::REG_RSP as usize] = ((top & !15) - 8) as i64;
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (place, signal) in SIGNALS.into_iter().enumerate() {
            // SAFETY: all zeros is a valid action; the handler has the type that SA_SIGINFO requires.
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
        // SAFETY: queries this thread's signal stack, and installs one if there is none; the new stack is never freed.
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

/// Runs kernels; a signal that they raise on this thread continues at `abandon`.
pub fn with_traps(abandon: *const c_void, work: impl FnOnce()) {
    install();
    TRAP.set(None);
    ABANDON.set(abandon);
    work();
    ABANDON.set(std::ptr::null());
}

/// Takes the signal that ended a block on this thread.
pub fn take_trap() -> Option<Trap> {
    TRAP.take()
}

/// `, at FILE:LINE` of an instruction, from the debugging information of its library; empty if that is not available.
pub fn source_line(image: &[u8], instruction: u64, in_library: *const c_void) -> String {
    let find = || -> Option<String> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: looks up the address and fills `info`, which is all zeros, a valid value, before the call.
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
