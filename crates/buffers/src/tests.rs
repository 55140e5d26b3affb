use super::*;

const ALIGN: usize = 16;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).unwrap()
}

fn take(size: usize) -> *mut u8 {
    // SAFETY: the size is not zero.
    unsafe { KeepingAllocator.alloc(layout(size)) }
}

fn give(start: *mut u8, size: usize) {
    // SAFETY: tests free a block with the size they allocated it with.
    unsafe { KeepingAllocator.dealloc(start, layout(size)) }
}

#[test]
fn what_a_reader_frees_it_gets_again() {
    let _keeping = Keeping::on_this_thread();
    keep_at_most(8 << 20);
    let first = take(1 << 20);
    let second = take(1 << 20);
    assert_ne!(first, second);
    give(first, 1 << 20);
    // A slightly smaller size is rounded to the same block.
    let again = take((1 << 20) - 4096);
    assert_eq!(again, first);
    give(again, (1 << 20) - 4096);
    give(second, 1 << 20);
    assert_eq!(held_bytes(), 2 << 20);
    release();
    assert_eq!(held_bytes(), 0);
}

#[test]
fn zeroed_blocks_are_zero_though_they_were_used() {
    let _keeping = Keeping::on_this_thread();
    keep_at_most(8 << 20);
    let size = (1 << 20) - 100;
    let first = take(size);
    // SAFETY: the block has that many bytes.
    unsafe { first.write_bytes(0xa5, size) };
    give(first, size);
    // SAFETY: the size is not zero.
    let again = unsafe { KeepingAllocator.alloc_zeroed(layout(size)) };
    assert_eq!(again, first);
    // SAFETY: all of it was written.
    let bytes = unsafe { std::slice::from_raw_parts(again, size) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    give(again, size);
}

#[test]
fn no_more_is_held_than_is_allowed_or_used() {
    let _keeping = Keeping::on_this_thread();
    keep_at_most(3 << 20);
    let large = take(2 << 20);
    give(large, 2 << 20);
    // Both together would be 6 MiB: the unused one is freed.
    let larger = take(4 << 20);
    assert_eq!(held_bytes(), 4 << 20);
    // Blocks in use when the limit is set do not count.
    keep_at_most(1 << 20);
    let small = take(1 << 20);
    give(small, 1 << 20);
    assert_eq!(held_bytes(), 5 << 20);
    give(larger, 4 << 20);
    keep_at_most(1 << 20);
    assert_eq!(held_bytes(), 0);
    // More blocks than the table has entries.
    let many: Vec<*mut u8> = (0..2 * MOST_BLOCKS).map(|_| take(1 << 20)).collect();
    assert_eq!(held_bytes() as usize, MOST_BLOCKS << 20);
    for start in many {
        give(start, 1 << 20);
    }
}

#[test]
fn blocks_grow_and_shrink_with_their_contents() {
    let _keeping = Keeping::on_this_thread();
    keep_at_most(64 << 20);
    let mut sizes = vec![
        20 << 10,
        100 << 10,
        300 << 10,
        310 << 10,
        5 << 20,
        600 << 10,
        1 << 10,
    ];
    sizes.push(700 << 20);
    let mut size = 64 << 10;
    let mut start = take(size);
    let mut filled = 0_usize;
    for new_size in sizes {
        // SAFETY: the block has `size` bytes, of which `filled` were written; sizes are not zero.
        unsafe {
            start
                .add(filled.min(size))
                .write_bytes(7, (size - filled.min(size)).min(8 << 20));
            filled = filled.max(size).min(8 << 20);
            start = KeepingAllocator.realloc(start, layout(size), new_size);
            let kept = std::slice::from_raw_parts(start, filled.min(new_size));
            assert!(kept.iter().all(|byte| *byte == 7));
        }
        filled = filled.min(new_size);
        size = new_size;
    }
    give(start, size);
}

/// A pointer that moves to another thread.
struct Sent(*mut u8);
// SAFETY: the pointer is used by one thread at a time.
unsafe impl Send for Sent {}

fn give_elsewhere(start: *mut u8, size: usize) -> u64 {
    let sent = Sent(start);
    let other = std::thread::spawn(move || {
        let sent = sent;
        give(sent.0, size);
        held_bytes()
    });
    other.join().unwrap()
}

#[test]
fn other_threads_free_what_a_reader_made() {
    let _keeping = Keeping::on_this_thread();
    keep_at_most(8 << 20);
    for _ in 0..100 {
        // The system maps each block anew, so addresses repeat, for blocks of this size and of other sizes.
        let start = take(1 << 20);
        assert_eq!(give_elsewhere(start, 1 << 20), 0);
        let other = take(3 << 20);
        // SAFETY: the block has that many bytes.
        unsafe { other.write_bytes(1, 3 << 20) };
        give(other, 3 << 20);
        let again = take(3 << 20);
        assert_eq!(again, other);
        give(again, 3 << 20);
    }
}

#[test]
fn without_keeping_nothing_is_kept() {
    let start = take(1 << 20);
    give(start, 1 << 20);
    assert_eq!(held_bytes(), 0);
    // Allocated under a `Keeping`, freed without one.
    let keeping = Keeping::on_this_thread();
    keep_at_most(8 << 20);
    let start = take(1 << 20);
    drop(keeping);
    give(start, 1 << 20);
    assert_eq!(held_bytes(), 0);
}

#[test]
fn rounding_is_at_most_a_quarter() {
    for size in (LEAST_BYTES..40 << 20).step_by(12_345) {
        let large = rounded(layout(size)).unwrap();
        assert!(large.size() >= size && large.size() <= size + (size / 4).max(PAGE_BYTES));
        assert_eq!(rounded(large), Some(large));
    }
    assert_eq!(rounded(layout(LEAST_BYTES - 1)), None);
    assert_eq!(rounded(layout(MOST_BYTES + 1)), None);
}
