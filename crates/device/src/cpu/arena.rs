//! The single allocation that holds every tensor of a run.

use holdall_plan::Place;
use memmap2::MmapMut;

use super::real::Element;

#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The system refused the allocation.
    #[error("could not reserve {bytes} bytes of memory: {source}")]
    Refused { bytes: u64, source: std::io::Error },
}

/// Memory that holds every tensor of a run.
pub struct Arena {
    map: MmapMut,
}

impl Arena {
    /// Reserves the memory and touches every page, so that no allocation can fail after step 0.
    pub fn new(bytes: u64) -> Result<Arena, ArenaError> {
        let refused = |source| ArenaError::Refused { bytes, source };
        let mut map = MmapMut::map_anon((bytes as usize).max(1)).map_err(refused)?;
        #[cfg(target_os = "linux")]
        // Large pages save page-table walks; the advice has no effect on systems without them.
        let _ = map.advise(memmap2::Advice::HugePage);
        for page in map.chunks_mut(4096) {
            page[0] = 0;
        }
        Ok(Arena { map })
    }

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

    /// Reads a contiguous tensor, between programs.
    pub fn read<T: Element>(&self, place: &Place, micro_batch: usize) -> &[T] {
        let (start, elements) = self.range::<T>(place, micro_batch);
        // SAFETY: `range` checked bounds, alignment and size of the element; every bit pattern of an `Element` is valid; no program runs
        // during the borrow of `self`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start).cast(), elements) }
    }

    /// Mutable access to a contiguous tensor, between programs.
    pub fn write<T: Element>(&mut self, place: &Place, micro_batch: usize) -> &mut [T] {
        let (start, elements) = self.range::<T>(place, micro_batch);
        // SAFETY: as in `read`, with the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(start).cast(), elements) }
    }
}

/// Address of the arena for kernels, which share it; each accesses the addresses of its instruction.
#[derive(Clone, Copy)]
pub(super) struct ArenaPointer {
    pub base: *mut u8,
    pub bytes: usize,
}

// SAFETY: kernels dereference the pointer only at operands that the plan keeps apart; see `operands`.
unsafe impl Send for ArenaPointer {}
// SAFETY: as above.
unsafe impl Sync for ArenaPointer {}
