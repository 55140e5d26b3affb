//! The one allocation.

use holdall_plan::Place;
use memmap2::MmapMut;

use super::real::Element;

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The system refused.
    #[error("could not reserve {bytes} bytes of memory: {source}")]
    Refused {
        /// What was asked for.
        bytes: u64,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Memory in which every tensor of a run has its place.
pub struct Arena {
    map: MmapMut,
}

impl Arena {
    /// Reserves and touches every page, so that the memory is there before step 0 and nothing can run out later.
    pub fn new(bytes: u64) -> Result<Arena, ArenaError> {
        let refused = |source| ArenaError::Refused { bytes, source };
        let mut map = MmapMut::map_anon((bytes as usize).max(1)).map_err(refused)?;
        #[cfg(target_os = "linux")]
        // Fewer page-table walks where the system offers large pages; where not, nothing is lost.
        let _ = map.advise(memmap2::Advice::HugePage);
        for page in map.chunks_mut(4096) {
            page[0] = 0;
        }
        Ok(Arena { map })
    }

    /// Size.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    pub(super) fn pointer(&mut self) -> ArenaPointer {
        ArenaPointer {
            base: self.map.as_mut_ptr(),
            bytes: self.map.len(),
        }
    }

    fn range<T>(&self, place: &Place, micro_batch: usize) -> (usize, usize) {
        assert_eq!(
            place.strides,
            place.shape.contiguous_strides(),
            "read and written as a whole"
        );
        assert_eq!(size_of::<T>(), place.dtype.bytes(), "{:?}", place.dtype);
        let start = place.offset as usize + micro_batch * place.micro_stride as usize;
        let elements = place.shape.num_elements();
        assert!(start.is_multiple_of(align_of::<T>()));
        assert!(start + elements * size_of::<T>() <= self.map.len());
        (start, elements)
    }

    /// A contiguous tensor, between programs.
    pub fn read<T: Element>(&self, place: &Place, micro_batch: usize) -> &[T] {
        let (start, elements) = self.range::<T>(place, micro_batch);
        // SAFETY: `range` checked bounds, alignment and size of the element; every bit pattern of an `Element` is
        // valid; the borrow of `self` keeps programs from running meanwhile.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start).cast(), elements) }
    }

    /// A contiguous tensor, between programs, to write.
    pub fn write<T: Element>(&mut self, place: &Place, micro_batch: usize) -> &mut [T] {
        let (start, elements) = self.range::<T>(place, micro_batch);
        // SAFETY: as in `read`, with the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(start).cast(), elements) }
    }
}

/// The arena as kernels see it: they share it, each at the addresses that its instruction names.
#[derive(Clone, Copy)]
pub(super) struct ArenaPointer {
    pub base: *mut u8,
    pub bytes: usize,
}

// SAFETY: the pointer is only followed at places that the plan keeps apart; see `operands`.
unsafe impl Send for ArenaPointer {}
// SAFETY: as above.
unsafe impl Sync for ArenaPointer {}
