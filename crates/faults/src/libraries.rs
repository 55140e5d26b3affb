//! Interposed functions of GPU libraries that a program opens at run time.
//!
//! The program asks `dlsym` for each function. For functions of the GPU libraries, `dlsym` here returns the address of a stub:
//!
//! ```text
//! stub i:   keep the arguments, ask `becomes(i)`   -> address of the real function: jump there with unchanged arguments
//!                                                  -> null: return the injected error
//! ```

use std::arch::global_asm;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::watch::{self, Action};

/// Largest number of interposed functions.
const NUM_STUBS: usize = 512;
/// Distance between stubs.
const STUB_BYTES: usize = 16;

/// A function that the program looked up, with its real address.
struct Function {
    name: String,
    address: usize,
}

static FUNCTIONS: Mutex<Vec<Function>> = Mutex::new(Vec::new());

global_asm!(
    ".p2align 4",
    ".globl holdall_fault_stubs",
    ".hidden holdall_fault_stubs",
    "holdall_fault_stubs:",
    ".set index, 0",
    ".rept 512",
    ".p2align 4",
    // `push index`, always as five bytes.
    ".byte 0x68",
    ".long index",
    "jmp 2f",
    ".set index, index + 1",
    ".endr",
    "2:",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push rax",
    "sub rsp, 136",
    "movups [rsp], xmm0",
    "movups [rsp + 16], xmm1",
    "movups [rsp + 32], xmm2",
    "movups [rsp + 48], xmm3",
    "movups [rsp + 64], xmm4",
    "movups [rsp + 80], xmm5",
    "movups [rsp + 96], xmm6",
    "movups [rsp + 112], xmm7",
    "mov rdi, [rsp + 192]",
    "call {becomes}",
    "mov r11, rax",
    "mov r10, rdx",
    "movups xmm0, [rsp]",
    "movups xmm1, [rsp + 16]",
    "movups xmm2, [rsp + 32]",
    "movups xmm3, [rsp + 48]",
    "movups xmm4, [rsp + 64]",
    "movups xmm5, [rsp + 80]",
    "movups xmm6, [rsp + 96]",
    "movups xmm7, [rsp + 112]",
    "add rsp, 136",
    "pop rax",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "add rsp, 8",
    "test r11, r11",
    "jz 3f",
    "jmp r11",
    "3:",
    "mov eax, r10d",
    "ret",
    becomes = sym becomes,
);

unsafe extern "C" {
    static holdall_fault_stubs: u8;
}

/// The real function to jump to, or the error to return.
#[repr(C)]
struct Becomes {
    address: usize,
    error: usize,
}

extern "C" fn becomes(index: usize) -> Becomes {
    let functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let Function { name, address } = &functions[index];
    match watch::on_function(name) {
        Action::Fail(error) => Becomes {
            address: 0,
            error: error as usize,
        },
        _ => Becomes {
            address: *address,
            error: 0,
        },
    }
}

/// Whether a name begins like the functions of the GPU libraries.
fn is_of_a_gpu(name: &str) -> bool {
    let mut prefixes = ["cu", "nvrtc", "nvml"].iter();
    prefixes.any(|prefix| name.starts_with(prefix))
}

/// Interposes libc's `dlsym`.
///
/// # Safety
/// Like libc's `dlsym`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's contract.
    let (found, text) = unsafe { (system_dlsym(library, name), CStr::from_ptr(name)) };
    let Ok(text) = text.to_str() else {
        return found;
    };
    if found.is_null() || !is_of_a_gpu(text) {
        return found;
    }
    let mut functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = functions
        .iter()
        .position(|function| function.address == found as usize);
    let index = known.unwrap_or(functions.len());
    if index == NUM_STUBS {
        return found;
    }
    if known.is_none() {
        functions.push(Function {
            name: text.to_owned(),
            address: found as usize,
        });
    }
    // SAFETY: the stubs lie one behind the other.
    unsafe {
        let stubs = &raw const holdall_fault_stubs;
        stubs.add(index * STUB_BYTES) as *mut c_void
    }
}

/// libc's own `dlsym`.
///
/// # Safety
/// Like libc's `dlsym`.
pub unsafe fn system_dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    static SYSTEM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut system = SYSTEM.load(Ordering::Relaxed);
    if system.is_null() {
        for version in [c"GLIBC_2.2.5", c"GLIBC_2.34"] {
            // SAFETY: both strings end with a zero.
            system = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !system.is_null() {
                break;
            }
        }
        SYSTEM.store(system, Ordering::Relaxed);
    }
    // SAFETY: this is the signature of `dlsym`.
    let system: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(system) };
    // SAFETY: the caller's contract.
    unsafe { system(library, name) }
}

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}
