//! Scratch in the arena for the operands that `gemm` packs.
//!
//! `gemm` copies operands whose layout does not suit its kernels into a buffer that it allocates and frees in every call. In the
//! system's allocator, that buffer lands in the heap of the thread that ran the product, may or may not stay there, and makes memory
//! forecasts wrong. So the plan counts the buffer as scratch of the operation, [`Packing`] is that scratch, and
//! [`PackingAllocator`], if the binary installs it, answers the library's request with it. If it is not installed, the buffers
//! come from the heap, and the results are the same.
//!
//! In addition, each thread has one persistent buffer of the library, as large as the second-level cache ("slab"). Pages become
//! resident when they are written to: [`touch_slab`] does that before step 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gemm_common::cache::{KernelParams, kernel_params};
use gemm_common::gemm::{
    CACHELINE_ALIGN, L2_SLAB, get_lhs_packing_threshold_multi_thread,
    get_lhs_packing_threshold_single_thread, get_rhs_packing_threshold,
};

/// Alignment of `gemm`'s buffers. Hardly any other allocation has it: it identifies them.
pub(super) const ALIGNMENT: usize = CACHELINE_ALIGN;

/// Smaller buffers stay on the heap: lists of flags, a few bytes each.
const LEAST_BYTES: usize = 1024;

/// Which factors of a product are transposed in memory: decides what `gemm` packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `x W^T`.
    RightTransposed,
    /// `dz W`.
    Plain,
    /// `dz^T x`.
    LeftTransposed,
}

/// Threads that compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// All threads of the pool.
    All,
    /// The calling thread.
    One,
}

/// Bytes that one product packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    /// Panels of both factors, allocated by the calling thread.
    pub panel_bytes: usize,
    /// Rows of the left factor, in the slab of every thread that takes part.
    pub slab_bytes: usize,
}

/// The register tile of the kernels that `gemm` picks on this machine.
#[derive(Clone, Copy)]
struct Tile {
    lanes: usize,
    rows: usize,
    columns: usize,
}

impl Tile {
    fn new(element_bytes: usize) -> Tile {
        // Lanes, vectors per column and columns. The tile for f64 has half of the lanes and rows, and as many columns.
        let (lanes, vectors, columns) = match () {
            _ if cfg!(target_arch = "x86_64") && has_avx512() => (64, 4, 6),
            _ if cfg!(target_arch = "x86_64") && has_fma() => (32, 2, 6),
            _ if cfg!(target_arch = "aarch64") => (16, 4, 4),
            _ => (element_bytes, 2, 4),
        };
        let lanes = lanes / element_bytes;
        Tile {
            lanes,
            rows: lanes * vectors,
            columns,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

#[cfg(target_arch = "x86_64")]
fn has_fma() -> bool {
    std::arch::is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_fma() -> bool {
    false
}

impl Packed {
    /// Bytes that `gemm` packs for `m x k` by `k x n` with a row-major result: the same decisions as in its `gemm_basic_generic`.
    pub fn new(
        kind: Form,
        [m, k, n]: [usize; 3],
        element_bytes: usize,
        threads: Threads,
    ) -> Packed {
        if m == 0 || k == 0 || n == 0 {
            return Packed::default();
        }
        // A row-major result is computed as the transpose of a column-major one: the factors swap places.
        let (m, n) = (n, m);
        let tile = Tile::new(element_bytes);
        let KernelParams { kc, mc, nc } = if m <= 64 && n <= 64 {
            let kc = k.min(512);
            let cache_elements = gemm_common::cache::CACHE_INFO[1].cache_bytes / element_bytes;
            KernelParams {
                kc,
                mc: cache_elements / kc / tile.rows * tile.rows,
                nc: n.next_multiple_of(tile.columns),
            }
        } else {
            kernel_params(m, n, k, tile.rows, tile.columns, element_bytes)
        };
        let nc = match threads {
            _ if nc > 0 => nc,
            Threads::One => 128 * tile.columns,
            Threads::All => n.next_multiple_of(tile.columns),
        };
        let most_rows = get_rhs_packing_threshold() * tile.rows;
        let packs_right = match kind {
            _ if m > most_rows => true,
            Form::LeftTransposed => cfg!(not(target_arch = "aarch64")) && m > 2 * tile.rows,
            Form::RightTransposed | Form::Plain => false,
        };
        let left_is_across = kind == Form::RightTransposed;
        let uneven = !m.is_multiple_of(tile.lanes);
        let packs_left_at_once = m <= 2 * mc && (uneven || left_is_across);
        let panels = |count: usize, width: usize| match count {
            0 => 0,
            // The second buffer begins at a multiple of the alignment.
            _ => (kc * width * count * element_bytes).next_multiple_of(ALIGNMENT),
        };
        let right = if packs_right { nc / tile.columns } else { 0 };
        let left = if packs_left_at_once {
            m.div_ceil(tile.rows)
        } else {
            0
        };
        let threshold = match threads {
            Threads::All => get_lhs_packing_threshold_multi_thread(),
            Threads::One => get_lhs_packing_threshold_single_thread(),
        };
        let packs_left = uneven || left_is_across || nc.min(n) > threshold * tile.columns;
        let slab_rows = if packs_left && !packs_left_at_once {
            mc.min(m.next_multiple_of(tile.rows))
        } else {
            0
        };
        Packed {
            panel_bytes: panels(right, tile.columns) + panels(left, tile.rows),
            slab_bytes: kc * slab_rows * element_bytes,
        }
    }

    /// Bytes for either of two products that run one after the other.
    pub fn max(self, other: Packed) -> Packed {
        Packed {
            panel_bytes: self.panel_bytes.max(other.panel_bytes),
            slab_bytes: self.slab_bytes.max(other.slab_bytes),
        }
    }
}

/// Scratch for the panels of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: an address and a size; a part of it is offered to one product, which alone writes there.
unsafe impl Send for Packing {}
// SAFETY: as above.
unsafe impl Sync for Packing {}

impl Packing {
    const NONE: Packing = Packing {
        start: std::ptr::null_mut(),
        bytes: 0,
    };

    /// # Safety
    /// The `bytes` after `start` belong to the caller alone until all products that use the scratch are done.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Packing {
        let skipped = start.align_offset(ALIGNMENT).min(bytes);
        Packing {
            start: start.wrapping_add(skipped),
            bytes: bytes - skipped,
        }
    }

    /// The part of one of `count` threads.
    pub fn share(self, index: usize, count: usize) -> Packing {
        let bytes = self.bytes / count / ALIGNMENT * ALIGNMENT;
        assert!(index < count);
        Packing {
            start: self.start.wrapping_add(index * bytes),
            bytes,
        }
    }

    /// Runs one product on this thread, with this scratch for its packing.
    pub fn offer<R>(self, product: impl FnOnce() -> R) -> R {
        // The slab stays with the thread: it must be created before scratch is on offer.
        L2_SLAB.with(|_| ());
        // While this thread waits for other threads it may run another product: the offer is restored after that product.
        let _back = Restore(OFFER.replace(Offer::Open(self)));
        product()
    }

    fn contains(&self, pointer: *mut u8) -> bool {
        let offset = (pointer as usize).wrapping_sub(self.start as usize);
        offset < self.bytes
    }
}

/// Scratch that this thread may pack into.
#[derive(Clone, Copy)]
enum Offer {
    Open(Packing),
    Taken(Packing),
}

/// Restores an offer when dropped, after a panic too.
struct Restore(Offer);

impl Drop for Restore {
    fn drop(&mut self) {
        OFFER.set(self.0);
    }
}

thread_local! {
    static OFFER: Cell<Offer> = const { Cell::new(Offer::Taken(Packing::NONE)) };
}

/// An allocator that gives the product library scratch of the arena if any is on offer; `A` serves all other requests.
pub struct PackingAllocator<A = System>(A);

impl PackingAllocator {
    /// The system's allocator with packing, for `#[global_allocator]`.
    pub const fn new() -> PackingAllocator {
        PackingAllocator(System)
    }
}

impl Default for PackingAllocator {
    fn default() -> PackingAllocator {
        PackingAllocator::new()
    }
}

impl<A> PackingAllocator<A> {
    /// Adds packing to another allocator.
    pub const fn before(other: A) -> PackingAllocator<A> {
        PackingAllocator(other)
    }
}

/// Whether a request looks like a buffer of the product library.
fn may_pack(layout: Layout) -> bool {
    layout.align() == ALIGNMENT && layout.size() >= LEAST_BYTES
}

/// Takes the scratch on offer to this thread, once.
fn take(layout: Layout) -> Option<*mut u8> {
    match OFFER.get() {
        Offer::Open(packing) if layout.size() <= packing.bytes => {
            OFFER.set(Offer::Taken(packing));
            Some(packing.start)
        }
        _ => None,
    }
}

/// Whether the pointer is scratch that this thread took.
fn is_taken(pointer: *mut u8) -> bool {
    matches!(OFFER.get(), Offer::Taken(packing) if packing.contains(pointer))
}

// SAFETY: a buffer on offer is as large and as aligned as requested, is handed out once, and nothing else uses it until its product
// is done, as the caller of `Packing::new` promised; the library frees it on the thread and in the call that took it. All other
// requests are passed on to the other allocator unchanged. Nothing here allocates: the thread-local has no destructor and a constant
// initial value.
unsafe impl<A: GlobalAlloc> GlobalAlloc for PackingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if may_pack(layout)
            && let Some(pointer) = take(layout)
        {
            return pointer;
        }
        // SAFETY: this method has the contract of the other allocator's.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if may_pack(layout) && is_taken(pointer) {
            return;
        }
        // SAFETY: as above.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if may_pack(layout) && is_taken(pointer) {
            // Panels do not grow; if they ever did, they would move to the heap.
            // SAFETY: the caller promises a size that is not zero and fits the alignment.
            let moved = unsafe {
                let layout = Layout::from_size_align_unchecked(new_size, layout.align());
                self.0.alloc(layout)
            };
            if !moved.is_null() {
                let bytes = layout.size().min(new_size);
                // SAFETY: both have at least this many bytes, and a new allocation overlaps nothing.
                unsafe { std::ptr::copy_nonoverlapping(pointer, moved, bytes) };
            }
            return moved;
        }
        // SAFETY: as above.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }
}

/// Creates this thread's slab and makes its first `bytes` resident.
pub(super) fn touch_slab(bytes: usize) {
    L2_SLAB.with_borrow_mut(|slab| {
        keep_small_pages(slab);
        let bytes = bytes.min(slab.len());
        for page in slab[..bytes].chunks_mut(4096) {
            page[0].write(0);
        }
    });
}

/// On systems that use large pages by default, a single large page would exceed what the plan counts.
#[cfg(target_os = "linux")]
fn keep_small_pages(slab: &mut [std::mem::MaybeUninit<u8>]) {
    const PAGE: usize = 4096;
    let start = slab.as_mut_ptr();
    let skipped = start.align_offset(PAGE).min(slab.len());
    let bytes = (slab.len() - skipped) / PAGE * PAGE;
    // SAFETY: whole pages within a buffer that belongs to this thread alone; the advice changes no contents, and a system that does not
    // support it ignores it.
    unsafe {
        libc::madvise(start.add(skipped).cast(), bytes, libc::MADV_NOHUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
fn keep_small_pages(_slab: &mut [std::mem::MaybeUninit<u8>]) {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use gemm::Parallelism;
    use proptest::prelude::*;
    use rayon::ThreadPool;

    use super::*;

    /// Counts the bytes that the product library requests from the heap, per thread.
    struct Spy;

    thread_local! {
        static ASKED: Cell<usize> = const { Cell::new(0) };
    }

    // SAFETY: every call is passed on to the system's allocator unchanged; the thread-local neither allocates nor is dropped.
    unsafe impl GlobalAlloc for Spy {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if may_pack(layout) {
                ASKED.set(ASKED.get() + layout.size());
            }
            // SAFETY: this method has the contract of the system allocator's.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: as above.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: PackingAllocator<Spy> = PackingAllocator::before(Spy);

    /// `y = left right`, row-major, and the bytes requested from the heap for it.
    fn product(
        pool: &ThreadPool,
        kind: Form,
        [m, k, n]: [usize; 3],
        threads: Threads,
        packing: Packing,
    ) -> (Vec<f32>, usize) {
        let values = |count: usize| -> Vec<f32> {
            (0..count).map(|index| (index % 7) as f32 - 3.0).collect()
        };
        let (left, right) = (values(m * k), values(k * n));
        let mut y = vec![0.0f32; m * n];
        let (m_, k_, n_) = (m as isize, k as isize, n as isize);
        let (left_row, left_column) = match kind {
            Form::LeftTransposed => (1, m_),
            _ => (k_, 1),
        };
        let (right_row, right_column) = match kind {
            Form::RightTransposed => (1, k_),
            _ => (n_, 1),
        };
        let parallelism = match threads {
            Threads::All => Parallelism::Rayon(0),
            Threads::One => Parallelism::None,
        };
        let asked = pool.install(|| {
            touch_slab(0);
            let before = ASKED.get();
            packing.offer(|| {
                // SAFETY: pointers, extents and strides describe the three matrices above.
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        k,
                        y.as_mut_ptr(),
                        1,
                        n_,
                        false,
                        left.as_ptr(),
                        left_column,
                        left_row,
                        right.as_ptr(),
                        right_column,
                        right_row,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        parallelism,
                    );
                }
            });
            ASKED.get() - before
        });
        (y, asked)
    }

    /// Without scratch, the product requests the forecast bytes from the heap; with scratch, it requests none.
    fn check(kind: Form, shape: [usize; 3], threads: Threads) -> Result<(), TestCaseError> {
        thread_local! {
            static POOL: RefCell<ThreadPool> =
                RefCell::new(rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap());
        }
        let foreseen = Packed::new(kind, shape, size_of::<f32>(), threads).panel_bytes;
        POOL.with_borrow(|pool| {
            let (expected, asked) = product(pool, kind, shape, threads, Packing::NONE);
            prop_assert!(
                asked <= foreseen,
                "{kind:?} {shape:?} {threads:?}: {asked} asked for, {foreseen} foreseen"
            );
            // Shapes with a dedicated kernel pack nothing.
            prop_assert!(
                asked == 0 || foreseen <= asked + 2 * ALIGNMENT,
                "{kind:?} {shape:?} {threads:?}: {asked} asked for, {foreseen} foreseen"
            );
            let mut scratch = vec![0u8; foreseen + ALIGNMENT];
            // SAFETY: the scratch belongs to this product alone, and outlives it.
            let packing = unsafe { Packing::new(scratch.as_mut_ptr(), scratch.len()) };
            let (y, asked) = product(pool, kind, shape, threads, packing);
            prop_assert_eq!(asked, 0, "{:?} {:?} {:?}", kind, shape, threads);
            prop_assert!(y == expected, "{kind:?} {shape:?} {threads:?}");
            Ok(())
        })
    }

    const KINDS: [Form; 3] = [Form::RightTransposed, Form::Plain, Form::LeftTransposed];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn panels_are_as_large_as_foreseen(
            kind in prop::sample::select(&KINDS),
            (m, k, n) in (1..400usize, 1..700usize, 1..1300usize),
            threads in prop::sample::select(&[Threads::All, Threads::One]),
        ) {
            check(kind, [m, k, n], threads)?;
        }

        #[test]
        fn small_panels_too(
            kind in prop::sample::select(&KINDS),
            (m, k, n) in (1..130usize, 1..130usize, 1..260usize),
            threads in prop::sample::select(&[Threads::All, Threads::One]),
        ) {
            check(kind, [m, k, n], threads)?;
        }
    }

    #[test]
    fn shapes_of_models() {
        for kind in KINDS {
            for shape in [
                [256, 768, 3072],
                [341, 512, 2048],
                [50, 64, 50],
                [77, 64, 77],
                [512, 50, 2304],
            ] {
                check(kind, shape, Threads::All).unwrap();
                check(kind, shape, Threads::One).unwrap();
            }
        }
    }
}
