//! Interposed file functions of libc. Each asks [`watch`](crate::watch) for the fault to inject, then calls libc's own function.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::watch::{self, Action};

/// Address of libc's own function, behind this library's one in the lookup order.
pub fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { crate::libraries::system_dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    cache.store(found, Ordering::Relaxed);
    found
}

fn fail(error: c_int) {
    // SAFETY: the address of this thread's error is valid.
    unsafe { *libc::__errno_location() = error };
}

/// Defines an interposed function: it asks for the fault, then fails or calls libc's function.
macro_rules! stand_in {
    (@decide $operation:expr, path $path:expr) => {
        // SAFETY: libc's function gets the same path.
        unsafe { watch::on_path($operation, $path) }
    };
    (@decide $operation:expr, file $file:expr) => {
        watch::on_file($operation, $file)
    };
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, [$($decide:tt)*], $failed:expr, $then:expr) => {
        /// Interposes libc's function of this name.
        ///
        /// # Safety
        /// Like libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let name = concat!(stringify!($name), "\0").as_bytes();
            let name = CStr::from_bytes_with_nul(name).expect("ends with a zero");
            let next: unsafe extern "C" fn($($type),*) -> $result =
                // SAFETY: libc's function of that name has this signature.
                unsafe { std::mem::transmute(next(&NEXT, name)) };
            match stand_in!(@decide $($decide)*) {
                Action::Fail(error) => {
                    fail(error);
                    $failed
                }
                action => {
                    #[allow(clippy::redundant_closure_call, reason = "the closure is the macro's argument")]
                    // SAFETY: called with this function's arguments, or with fewer bytes.
                    unsafe { ($then)(next, action) }
                }
            }
        }
    };
}

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;

/// Opens a file and records its path under the descriptor.
///
/// # Safety
/// `path` ends with a zero.
unsafe fn open_by(next: Open, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let file = next(path, flags, mode);
        if file >= 0 {
            watch::opened(file, path);
        }
        file
    }
}

fn opening(flags: c_int) -> &'static str {
    match flags & (libc::O_CREAT | libc::O_WRONLY | libc::O_RDWR) {
        0 => "open",
        _ => "create",
    }
}

// The third argument is read only where a file may be created; passing it always is harmless, because it travels in a register.
stand_in!(open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int,
    [opening(flags), path path], -1,
    |next, _| open_by(next, path, flags, mode));
stand_in!(open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int,
    [opening(flags), path path], -1,
    |next, _| open_by(next, path, flags, mode));
stand_in!(close(file: c_int) -> c_int, ["close", file file], -1,
|next: unsafe extern "C" fn(c_int) -> c_int, _| {
    watch::closed(file);
    next(file)
});

type Transfer = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;

stand_in!(write(file: c_int, bytes: *const c_void, count: usize) -> isize,
["write", file file], -1,
|next: Transfer, action| match action {
    Action::Half => next(file, bytes, count.div_ceil(2)),
    Action::Torn => {
        next(file, bytes, count.div_ceil(2));
        watch::kill()
    }
    _ => next(file, bytes, count),
});
stand_in!(writev(file: c_int, parts: *const libc::iovec, count: c_int) -> isize,
["write", file file], -1,
|next: unsafe extern "C" fn(c_int, *const libc::iovec, c_int) -> isize, action| match action {
    Action::Half => next(file, parts, 1),
    Action::Torn => {
        next(file, parts, 1);
        watch::kill()
    }
    _ => next(file, parts, count),
});
stand_in!(read(file: c_int, bytes: *const c_void, count: usize) -> isize,
    ["read", file file], -1,
    |next: Transfer, _| next(file, bytes, count));
stand_in!(pread64(file: c_int, bytes: *const c_void, count: usize, at: c_long) -> isize,
    ["read", file file], -1,
    |next: unsafe extern "C" fn(c_int, *const c_void, usize, c_long) -> isize, _| next(file, bytes, count, at));
stand_in!(fsync(file: c_int) -> c_int, ["fsync", file file], -1,
    |next: unsafe extern "C" fn(c_int) -> c_int, _| next(file));
stand_in!(fdatasync(file: c_int) -> c_int, ["fsync", file file], -1,
    |next: unsafe extern "C" fn(c_int) -> c_int, _| next(file));
stand_in!(ftruncate64(file: c_int, length: c_long) -> c_int, ["truncate", file file], -1,
    |next: unsafe extern "C" fn(c_int, c_long) -> c_int, _| next(file, length));

type OnePath = unsafe extern "C" fn(*const c_char) -> c_int;
type TwoPaths = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;

stand_in!(rename(from: *const c_char, to: *const c_char) -> c_int,
    ["rename", path to], -1,
    |next: TwoPaths, _| next(from, to));
stand_in!(renameat2(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_uint) -> c_int,
    ["rename", path to], -1,
    |next: unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char, c_uint) -> c_int, _| next(a, from, b, to, flags));
stand_in!(linkat(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_int) -> c_int,
    ["link", path to], -1,
    |next: unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char, c_int) -> c_int, _| next(a, from, b, to, flags));
stand_in!(unlink(path: *const c_char) -> c_int, ["unlink", path path], -1,
    |next: OnePath, _| next(path));
stand_in!(rmdir(path: *const c_char) -> c_int, ["rmdir", path path], -1,
    |next: OnePath, _| next(path));
stand_in!(mkdir(path: *const c_char, mode: c_uint) -> c_int, ["mkdir", path path], -1,
    |next: unsafe extern "C" fn(*const c_char, c_uint) -> c_int, _| next(path, mode));
stand_in!(opendir(path: *const c_char) -> *mut c_void, ["list", path path], std::ptr::null_mut(),
    |next: unsafe extern "C" fn(*const c_char) -> *mut c_void, _| next(path));
stand_in!(copy_file_range(from: c_int, from_at: *mut c_long, to: c_int, to_at: *mut c_long, count: usize, flags: c_uint) -> isize,
    ["copy", file to], -1,
    |next: unsafe extern "C" fn(c_int, *mut c_long, c_int, *mut c_long, usize, c_uint) -> isize, _| next(from, from_at, to, to_at, count, flags));
stand_in!(sendfile64(to: c_int, from: c_int, at: *mut c_long, count: usize) -> isize,
    ["copy", file to], -1,
    |next: unsafe extern "C" fn(c_int, c_int, *mut c_long, usize) -> isize, _| next(to, from, at, count));
stand_in!(flock(file: c_int, operation: c_int) -> c_int, ["lock", file file], -1,
    |next: unsafe extern "C" fn(c_int, c_int) -> c_int, _| next(file, operation));

type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> *mut c_void;

stand_in!(mmap(at: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, offset: c_long) -> *mut c_void,
    ["map", file file], libc::MAP_FAILED,
    |next: Map, _| next(at, length, protection, flags, file, offset));
stand_in!(mmap64(at: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, offset: c_long) -> *mut c_void,
    ["map", file file], libc::MAP_FAILED,
    |next: Map, _| next(at, length, protection, flags, file, offset));
