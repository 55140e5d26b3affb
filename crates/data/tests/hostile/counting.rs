//! An allocator that counts what the thread holds. Decoders here work on the thread that calls them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(num_bytes: isize) {
    // A thread that ends frees after its counters are gone.
    let held = HELD_BYTES.try_with(|held| {
        held.set(held.get() + num_bytes);
        held.get()
    });
    if let Ok(held) = held {
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(held)));
    }
}

// SAFETY: every call is passed on as it came; counting neither allocates nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        count(new_bytes as isize - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, new_bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `work` gives, and the most that it held at any moment beyond what was held before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    HELD_BYTES.set(0);
    PEAK_BYTES.set(0);
    let result = work();
    (result, PEAK_BYTES.get().max(0) as u64)
}
