//! Nothing is allocated by collectives once staging is reserved.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use holdall_processes::testing::loopback;

thread_local! {
    static NUM_ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Threads that end have no count any more.
        let _ = NUM_ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn collectives_allocate_nothing_once_staging_is_reserved() {
    let threads: Vec<_> = loopback(3)
        .into_iter()
        .map(|group| {
            std::thread::spawn(move || {
                let mut values = vec![1.0; 1_000_001];
                let mut parts = vec![0; 3 * 1_234_567];
                let before = NUM_ALLOCATIONS.with(Cell::get);
                group.reserve_staging().unwrap();
                let reserved = NUM_ALLOCATIONS.with(Cell::get) - before;
                let mut counts = [0; 2];
                for count in &mut counts {
                    let before = NUM_ALLOCATIONS.with(Cell::get);
                    group.all_reduce_f32(&mut [&mut values]).unwrap();
                    group.all_gather(&mut parts).unwrap();
                    *count = NUM_ALLOCATIONS.with(Cell::get) - before;
                }
                assert!(values.iter().all(|&value| value == 9.0));
                (reserved, counts, group.staging_bytes())
            })
        })
        .collect();
    for thread in threads {
        let (reserved, counts, staging_bytes) = thread.join().unwrap();
        // That the count counts at all is seen by it.
        assert!(reserved > 0);
        assert_eq!(counts, [0; 2]);
        assert_eq!(staging_bytes, (2 * 3) << 20);
    }
}
