//! Memory that callers hand over by address. They are C's callers: what they say of a pointer is trusted, as the real libraries trust it.

use std::ffi::{CStr, c_char, c_void};

/// A handle as callers hold it: a number that they take for an address.
pub type Handle = *mut c_void;

/// The handle for a number.
pub fn handle(number: u64) -> Handle {
    number as usize as Handle
}

/// The number of a handle.
pub fn number(handle: Handle) -> u64 {
    handle as usize as u64
}

/// Writes to an address of the caller's; nothing where it is null.
pub fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the caller has room for a T there.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads from an address of the caller's.
pub fn get<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller has a T there.
    Some(unsafe { from.read_unaligned() })
}

/// As many values as the caller says that there are.
pub fn list<T: Copy>(from: *const T, count: usize) -> Vec<T> {
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller has so many values there.
    (0..count)
        .map(|index| unsafe { from.add(index).read_unaligned() })
        .collect()
}

/// Writes values one after the other.
pub fn put_list<T: Copy>(to: *mut T, values: &[T]) {
    for (index, &value) in values.iter().enumerate() {
        put(to.wrapping_add(index), value);
    }
}

/// A text that ends with a zero byte.
pub fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the caller's texts end with a zero.
    unsafe { CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned()
}

/// Writes a text with a zero at its end, cut to the room that there is.
pub fn put_text(to: *mut c_char, room: usize, text: &str) {
    if room == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    put_list(to.cast::<u8>(), bytes);
    put(to.wrapping_add(bytes.len()), 0);
}

/// Memory at an address as a slice. Whoever calls has checked that it lies within memory of the card, or is the caller's own.
pub fn slice<'a, T>(address: u64, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the range was checked against allocations, or handed over by the caller; work on the card is run by one thread at a time.
    unsafe { std::slice::from_raw_parts(address as usize as *const T, count) }
}

/// The same, to be written.
pub fn slice_mut<'a, T>(address: u64, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: as above; nobody else reads or writes it while work is run.
    unsafe { std::slice::from_raw_parts_mut(address as usize as *mut T, count) }
}

/// Copies bytes that may overlap.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: both ranges were checked, or handed over by the caller.
    unsafe { std::ptr::copy(from as usize as *const u8, to as usize as *mut u8, bytes) };
}
