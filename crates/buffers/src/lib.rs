//! A per-thread cache of large memory blocks, for threads that decode one picture after another.
//!
//! Decoders allocate their planes anew for each picture. `holdall` configures the system allocator to return large blocks to the operating
//! system at once, so that resident memory does not depend on the order of events. The price, per picture: mapping its planes, a page fault
//! every 4 KiB, and an unmapping that stops the other threads. A reader thread therefore keeps the blocks that it frees, as many bytes as
//! it has claimed for the current picture, and frees them when it is idle.
//!
//! ```text
//! let _keeping = Keeping::on_this_thread();     the reader thread starts
//! keep_at_most(bytes)                           the memory of one picture is claimed
//! release()                                     the reader is idle; its memory is free for other threads
//! ```
//!
//! A thread holds at most its peak use, or its use at the last [`keep_at_most`] plus the bytes allowed there, whichever is more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;

/// Smaller blocks go straight to the system allocator, which neither maps nor unmaps them one by one.
const LEAST_BYTES: usize = 32 << 10;
/// From this size on, pictures of similar size share block sizes; smaller blocks are rounded to whole pages.
const SHARED_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4 << 10;
/// Larger blocks are not picture planes and are not cached.
const MOST_BYTES: usize = 512 << 20;
/// Cached blocks per thread; a decoder has four planes and some buffers.
const MOST_BLOCKS: usize = 16;

/// The system allocator plus a block cache on threads that hold a [`Keeping`]. Meant for `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepingAllocator;

#[derive(Clone, Copy)]
struct Block {
    start: *mut u8,
    layout: Layout,
    is_used: bool,
}

/// The block cache of one thread.
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

    /// An unused block of this layout.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let mut blocks = self.blocks.iter_mut().flatten();
        let block = blocks.find(|block| !block.is_used && block.layout == layout)?;
        block.is_used = true;
        Some(block.start)
    }

    /// Records a block as used. When the table is full, the block stays unrecorded and is freed by the system allocator.
    fn add(&mut self, start: *mut u8, layout: Layout) {
        // An old entry of this address belongs to a block that another thread freed.
        self.forget(start);
        if let Some(place) = self.blocks.iter_mut().find(|place| place.is_none()) {
            *place = Some(Block {
                start,
                layout,
                is_used: true,
            });
        }
    }

    /// Marks a freed block as unused; false if this thread has no record of it.
    fn put_back(&mut self, start: *mut u8, layout: Layout) -> bool {
        let mut blocks = self.blocks.iter_mut().flatten();
        let found = blocks.find(|block| block.start == start && block.layout == layout);
        let is_kept = found.is_some();
        match found {
            Some(block) => block.is_used = false,
            // A recorded block of another size at this address was freed by another thread.
            None => self.forget(start),
        }
        is_kept
    }

    fn free_unused(&mut self) {
        for place in &mut self.blocks {
            if let Some(block) = place
                && !block.is_used
            {
                // SAFETY: the system allocator made this block with this layout, nobody uses it, and its entry is removed here.
                unsafe { System.dealloc(block.start, block.layout) };
                *place = None;
            }
        }
    }

    /// Drops the entry of a block that the caller frees or moves.
    fn forget(&mut self, start: *mut u8) {
        for place in &mut self.blocks {
            if place.is_some_and(|block| block.start == start) {
                *place = None;
            }
        }
    }
}

/// While this guard lives, its thread caches the large blocks that it frees; dropping it frees them. At most one per thread.
#[derive(Debug)]
pub struct Keeping {
    /// Makes the guard !Send: the cache is thread-local.
    thread: PhantomData<*const ()>,
}

impl Keeping {
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

/// Allows this thread to cache `bytes` beside the blocks in use now; frees the unused ones if the cache is larger than that.
pub fn keep_at_most(bytes: u64) {
    change(|blocks| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        blocks.most_bytes = blocks.used_bytes().saturating_add(bytes);
        if blocks.held_bytes() > blocks.most_bytes {
            blocks.free_unused();
        }
    });
}

/// Frees the unused blocks of this thread.
pub fn release() {
    change(Blocks::free_unused);
}

/// Bytes of the blocks in this thread's cache, used or not.
pub fn held_bytes() -> u64 {
    BLOCKS.get().held_bytes() as u64
}

fn change(change: impl FnOnce(&mut Blocks)) {
    let mut blocks = BLOCKS.get();
    change(&mut blocks);
    BLOCKS.set(blocks);
}

/// The layout of a large block: its size rounded up to pages or, from 256 KiB on, to a quarter of a power of two, so that pictures of
/// nearly the same size share blocks. It depends on the requested layout only, so any thread frees a block with the layout it was allocated
/// with. Pages that nobody touches cost nothing.
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

/// A large block, cached or from `fresh`; the flag says whether `fresh` made it.
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

// SAFETY: requests outside the range of large blocks are passed to the system allocator unchanged. Large blocks are allocated, moved and
// freed by the system allocator with the layout that `rounded` makes of the caller's layout, which is the same for all calls about one
// block. A cached block is handed out again only after its owner freed it, to one owner at a time, and has the requested layout. Nothing
// here allocates: the thread-local has a constant initial value and no destructor.
unsafe impl GlobalAlloc for KeepingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match rounded(layout) {
            // SAFETY: the caller's contract is the system allocator's, and a rounded layout is not empty.
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
            // SAFETY: the block has at least the requested number of bytes and belongs to the caller alone.
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
            // The thread's `Keeping` is gone: the cache is closed.
            if !blocks.is_open {
                blocks.free_unused();
            }
            BLOCKS.set(blocks);
            return;
        }
        // SAFETY: the block was allocated with the rounded layout, by this or another thread.
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
        // SAFETY: the block has the old layout; the new size is not zero and fits the alignment, by the caller's contract.
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
