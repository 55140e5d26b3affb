//! Host memory in rows: readers of pictures write them and a device copies inputs from them, without a copy in between.

use std::sync::Arc;

use crate::DeviceError;
use crate::cuda::Pinned;

/// A row of host memory. Clones are the same row; it is writable while there is only one.
#[derive(Clone, Debug)]
pub struct HostRow(Arc<RowBytes>);

/// Bytes of a block that no other piece overlaps.
struct RowBytes {
    start: *mut u8,
    bytes: usize,
    /// Keeps the memory alive.
    _block: Arc<RowBlock>,
}

// SAFETY: pieces do not overlap, and a piece is plain memory that is written through `&mut` alone.
unsafe impl Send for RowBytes {}
// SAFETY: as above; what is shared is only read.
unsafe impl Sync for RowBytes {}

impl std::fmt::Debug for RowBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

/// Memory that pieces point into; kept to be freed last.
enum RowBlock {
    Plain(*mut [u8]),
    Pinned { _memory: Pinned },
}

// SAFETY: plain memory with one owner; only pieces access it.
unsafe impl Send for RowBlock {}
// SAFETY: a shared block gives access to nothing.
unsafe impl Sync for RowBlock {}

impl Drop for RowBlock {
    fn drop(&mut self) {
        match self {
            // SAFETY: the pointer came from a box, and every piece is gone.
            RowBlock::Plain(memory) => drop(unsafe { Box::from_raw(*memory) }),
            RowBlock::Pinned { .. } => {}
        }
    }
}

/// `count` rows of `bytes` each, one behind the other; page-locked if `is_pinned`, so that a GPU copies from them directly.
pub(crate) fn rows(
    count: usize,
    bytes: usize,
    is_pinned: bool,
) -> Result<Vec<HostRow>, DeviceError> {
    let all = count * bytes;
    let (start, block) = if is_pinned {
        let mut pinned = Pinned::new(all)?;
        (
            pinned.bytes_mut().as_mut_ptr(),
            RowBlock::Pinned { _memory: pinned },
        )
    } else {
        // Not zeros: the system maps zero pages lazily, on first write, and a plan counts resident memory.
        let memory = Box::into_raw(vec![0x7f; all].into_boxed_slice());
        (memory.cast::<u8>(), RowBlock::Plain(memory))
    };
    let block = Arc::new(block);
    let row = |index: usize| {
        HostRow(Arc::new(RowBytes {
            // SAFETY: within the block, which has `count * bytes`.
            start: unsafe { start.add(index * bytes) },
            bytes,
            _block: Arc::clone(&block),
        }))
    };
    Ok((0..count).map(row).collect())
}

impl From<&[u8]> for HostRow {
    /// A row of its own in pageable memory, which a GPU copies through the driver's staging buffer.
    fn from(bytes: &[u8]) -> HostRow {
        let memory: Box<[u8]> = bytes.into();
        let memory = Box::into_raw(memory);
        HostRow(Arc::new(RowBytes {
            start: memory.cast::<u8>(),
            bytes: bytes.len(),
            _block: Arc::new(RowBlock::Plain(memory)),
        }))
    }
}

impl AsRef<[u8]> for HostRow {
    fn as_ref(&self) -> &[u8] {
        let RowBytes { start, bytes, .. } = &*self.0;
        // SAFETY: in bounds by construction; written through `&mut` alone, so not during this borrow.
        unsafe { std::slice::from_raw_parts(*start, *bytes) }
    }
}

impl AsMut<[u8]> for HostRow {
    /// # Panics
    /// If the row has clones.
    fn as_mut(&mut self) -> &mut [u8] {
        let piece = Arc::get_mut(&mut self.0).expect("a row that is written has no copies");
        // SAFETY: in bounds by construction; no other piece overlaps it, and this one is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(piece.start, piece.bytes) }
    }
}

impl PartialEq for HostRow {
    fn eq(&self, other: &HostRow) -> bool {
        self.as_ref() == other.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_side_by_side_and_are_written_by_threads_of_their_own() {
        let mut all = rows(5, 7, false).unwrap();
        std::thread::scope(|scope| {
            for (index, row) in all.iter_mut().enumerate() {
                scope.spawn(move || row.as_mut().fill(index as u8));
            }
        });
        for (index, row) in all.iter().enumerate() {
            assert_eq!(row.as_ref(), [index as u8; 7]);
        }
        let starts: Vec<usize> = all
            .iter()
            .map(|row| row.as_ref().as_ptr() as usize)
            .collect();
        assert!(starts.windows(2).all(|pair| pair[1] == pair[0] + 7));
        let last = all.pop().unwrap();
        drop(all);
        assert_eq!(last.as_ref(), [4; 7]);
    }

    #[test]
    #[should_panic(expected = "has no copies")]
    fn a_row_with_copies_is_not_written() {
        let mut all = rows(1, 3, false).unwrap();
        let _copy = all[0].clone();
        all[0].as_mut();
    }
}
