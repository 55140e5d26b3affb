//! Memory that a thread frees and asks for again with every picture.
//!
//! Decoders allocate their planes anew for each picture. `holdall` tells the system's allocator to return large blocks to the system at
//! once, so that what a process holds does not depend on the order of events; then every picture pays for mapping its planes, for a
//! page fault every 4 KiB, and for unmapping them, which stops the other threads. A thread that reads pictures therefore keeps the
//! blocks that it frees, as many bytes as it has claimed for the picture at hand, and gives them back when it has nothing to do.
//!
//! ```text
//! let _keeping = Keeping::on_this_thread();     a reader begins
//! keep_at_most(bytes)                           a picture's cost is claimed
//! release()                                     the reader waits, others need the memory
//! ```
//!
//! What is held is at most what was in use at once, or what [`keep_at_most`] allowed beside what was in use then, whichever is more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;

/// Smaller blocks are the system allocator's business: it neither maps them one by one nor returns what they leave.
const LEAST_BYTES: usize = 32 << 10;
/// Blocks from here on share sizes; smaller ones are whole pages.
const SHARED_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4 << 10;
/// Larger ones are no planes of a picture.
const MOST_BYTES: usize = 512 << 20;
/// Blocks of one thread; a decoder has four planes and some buffers.
const MOST_BLOCKS: usize = 16;

/// The system's allocator, with blocks that threads keep where a [`Keeping`] says so. For `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepingAllocator;

#[derive(Clone, Copy)]
struct Block {
    start: *mut u8,
    layout: Layout,
    is_used: bool,
}

/// What one thread has.
#[derive(Clone, Copy)]
struct Blocks {
    is_open: bool,
    most_bytes: usize,
    blocks: [Option<Block>; MOST_BLOCKS],
}

thread_local! {
    static BLOCKS: Cell<Blocks> = const {
        Cell::new(Blocks {
            is_open: false,
            most_bytes: 0,
            blocks: [None; MOST_BLOCKS],
        })
    };
}

impl Blocks {
    fn held_bytes(&self) -> usize {
        let blocks = self.blocks.iter().flatten();
        blocks.map(|block| block.layout.size()).sum()
    }

    fn used_bytes(&self) -> usize {
        let used = self.blocks.iter().flatten().filter(|block| block.is_used);
        used.map(|block| block.layout.size()).sum()
    }

    /// A block of this layout that nobody uses.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let mut blocks = self.blocks.iter_mut().flatten();
        let block = blocks.find(|block| !block.is_used && block.layout == layout)?;
        block.is_used = true;
        Some(block.start)
    }

    /// Remembers a block that is used from now on; where there is no place for it, it is freed as any other.
    fn add(&mut self, start: *mut u8, layout: Layout) {
        // What was remembered of this address was freed by another thread.
        self.forget(start);
        if let Some(place) = self.blocks.iter_mut().find(|place| place.is_none()) {
            *place = Some(Block {
                start,
                layout,
                is_used: true,
            });
        }
    }

    /// Keeps a block that is not used any more; whether it is one of this thread's.
    fn put_back(&mut self, start: *mut u8, layout: Layout) -> bool {
        let mut blocks = self.blocks.iter_mut().flatten();
        let found = blocks.find(|block| block.start == start && block.layout == layout);
        let is_kept = found.is_some();
        match found {
            Some(block) => block.is_used = false,
            // A block of another size at this address was freed by another thread.
            None => self.forget(start),
        }
        is_kept
    }

    /// Frees what is not used.
    fn free_unused(&mut self) {
        for place in &mut self.blocks {
            if let Some(block) = place
                && !block.is_used
            {
                // SAFETY: it was allocated by the system's allocator with this layout, nobody uses it, and it is forgotten here.
                unsafe { System.dealloc(block.start, block.layout) };
                *place = None;
            }
        }
    }

    /// Forgets a block, which is freed or moved by whoever asks.
    fn forget(&mut self, start: *mut u8) {
        for place in &mut self.blocks {
            if place.is_some_and(|block| block.start == start) {
                *place = None;
            }
        }
    }
}

/// While it lives, this thread keeps large blocks that it frees; with it they go. One at a time on a thread.
#[derive(Debug)]
pub struct Keeping {
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Keeping {
    /// Begins.
    pub fn on_this_thread() -> Keeping {
        change(|blocks| blocks.is_open = true);
        Keeping {
            thread: PhantomData,
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        change(|blocks| {
            blocks.is_open = false;
            blocks.most_bytes = 0;
            blocks.free_unused();
        });
    }
}

/// What this thread may hold in blocks from now on, beside those that it uses; if it holds more, those that are not used go.
pub fn keep_at_most(bytes: u64) {
    change(|blocks| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        blocks.most_bytes = blocks.used_bytes().saturating_add(bytes);
        if blocks.held_bytes() > blocks.most_bytes {
            blocks.free_unused();
        }
    });
}

/// Frees the blocks of this thread that are not used.
pub fn release() {
    change(Blocks::free_unused);
}

/// Bytes of the blocks of this thread, used or not.
pub fn held_bytes() -> u64 {
    BLOCKS.get().held_bytes() as u64
}

fn change(change: impl FnOnce(&mut Blocks)) {
    let mut blocks = BLOCKS.get();
    change(&mut blocks);
    BLOCKS.set(blocks);
}

/// The layout that a large block is allocated with: its size rounded up to pages or, from 256 KiB on, to a quarter of a power of two, so that
/// pictures of nearly the same size share blocks. It follows from what is asked for alone, so any thread frees a block as it was allocated. Pages that
/// nobody touches cost nothing.
fn rounded(layout: Layout) -> Option<Layout> {
    let size = layout.size();
    if !(LEAST_BYTES..=MOST_BYTES).contains(&size) {
        return None;
    }
    let step = if size < SHARED_BYTES {
        PAGE_BYTES
    } else {
        (size.next_power_of_two() / 2 / 4).max(SHARED_BYTES / 4)
    };
    let size = size.next_multiple_of(step);
    Layout::from_size_align(size, layout.align()).ok()
}

/// Allocates a large block, one that was kept if there is one; `fresh` makes another.
fn allocate(layout: Layout, fresh: impl FnOnce() -> *mut u8) -> (*mut u8, bool) {
    let mut blocks = BLOCKS.get();
    if !blocks.is_open {
        return (fresh(), true);
    }
    if let Some(start) = blocks.take(layout) {
        BLOCKS.set(blocks);
        return (start, false);
    }
    if blocks.held_bytes() + layout.size() > blocks.most_bytes {
        blocks.free_unused();
    }
    let start = fresh();
    if !start.is_null() {
        blocks.add(start, layout);
    }
    BLOCKS.set(blocks);
    (start, true)
}

// SAFETY: whatever is not large is passed on to the system's allocator unchanged. Large blocks are allocated, moved and freed by it
// with the layout that `rounded` makes of the caller's, which is the same for all calls about one block. A block that is kept
// is handed out again only after its owner freed it, to one owner at a time, and has the layout asked for. Nothing here allocates:
// the thread-local has a constant initial value and no destructor.
unsafe impl GlobalAlloc for KeepingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match rounded(layout) {
            // SAFETY: the caller's contract is the system allocator's, and a rounded layout is larger than nothing.
            Some(layout) => allocate(layout, || unsafe { System.alloc(layout) }).0,
            // SAFETY: as above.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(large) = rounded(layout) else {
            // SAFETY: the caller's contract is the system allocator's.
            return unsafe { System.alloc_zeroed(layout) };
        };
        // SAFETY: as above.
        let (start, is_zero) = allocate(large, || unsafe { System.alloc_zeroed(large) });
        if !is_zero {
            // SAFETY: the block has at least as many bytes as were asked for, and is nobody's but the caller's.
            unsafe { start.write_bytes(0, layout.size()) };
        }
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let Some(large) = rounded(layout) else {
            // SAFETY: the caller's contract is the system allocator's.
            return unsafe { System.dealloc(start, layout) };
        };
        let mut blocks = BLOCKS.get();
        let is_kept = blocks.put_back(start, large);
        if is_kept {
            // One that outlived its keeping goes at once.
            if !blocks.is_open {
                blocks.free_unused();
            }
            BLOCKS.set(blocks);
            return;
        }
        // SAFETY: it was allocated with the rounded layout, by this or another thread.
        unsafe { System.dealloc(start, large) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new = Layout::from_size_align(new_size, layout.align());
        let new_large = new.ok().and_then(rounded);
        let old_large = rounded(layout);
        let old = old_large.unwrap_or(layout);
        if old_large.is_some() && old_large == new_large {
            return start;
        }
        let new_size = new_large.map_or(new_size, |layout| layout.size());
        // SAFETY: the block has the old layout; the new size is not zero and fits the alignment, as the caller promises.
        let moved = unsafe { System.realloc(start, old, new_size) };
        // A failed call leaves the block as it was.
        if !moved.is_null() && old_large.is_some() {
            change(|blocks| blocks.forget(start));
        }
        moved
    }
}

#[cfg(test)]
mod tests;
