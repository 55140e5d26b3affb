//! Access to memory that C callers pass by address. What a caller states about a pointer is trusted, as in the real libraries.

use std::ffi::{CStr, c_char, c_void};

/// An opaque handle of a caller: a number in the type of a pointer.
pub type Handle = *mut c_void;

pub fn handle(number: u64) -> Handle {
    number as usize as Handle
}

pub fn number(handle: Handle) -> u64 {
    handle as usize as u64
}

/// Writes to an address of the caller; does nothing if it is null.
pub fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the caller provides memory for a T.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads from an address of the caller; `None` if it is null.
pub fn get<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller stores a T there.
    Some(unsafe { from.read_unaligned() })
}

/// Reads `count` values.
pub fn list<T: Copy>(from: *const T, count: usize) -> Vec<T> {
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller stores `count` values there.
    (0..count)
        .map(|index| unsafe { from.add(index).read_unaligned() })
        .collect()
}

/// Writes consecutive values.
pub fn put_list<T: Copy>(to: *mut T, values: &[T]) {
    for (index, &value) in values.iter().enumerate() {
        put(to.wrapping_add(index), value);
    }
}

/// Reads a zero-terminated text.
pub fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the texts of callers are zero-terminated.
    unsafe { CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned()
}

/// Writes a zero-terminated text, truncated to `room` bytes.
pub fn put_text(to: *mut c_char, room: usize, text: &str) {
    if room == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    put_list(to.cast::<u8>(), bytes);
    put(to.wrapping_add(bytes.len()), 0);
}

/// Memory at an address as a slice. The caller must have checked that it is within memory of the card or of the caller.
pub fn slice<'a, T>(address: u64, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the range was checked against allocations, or passed by the caller; one thread at a time runs work of the card.
    unsafe { std::slice::from_raw_parts(address as usize as *const T, count) }
}

/// Like [`slice()`], mutable.
pub fn slice_mut<'a, T>(address: u64, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: as in `slice`; nothing else reads or writes the range while work runs.
    unsafe { std::slice::from_raw_parts_mut(address as usize as *mut T, count) }
}

/// Copies bytes that may overlap.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: both ranges were checked, or passed by the caller.
    unsafe { std::ptr::copy(from as usize as *const u8, to as usize as *mut u8, bytes) };
}
