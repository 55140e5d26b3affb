//! Operands of one instruction, as typed matrices.
//!
//! This module turns offsets into pointers. That is sound because the planner keeps tensors that are alive at the same time apart (a
//! property test of `plan`), this module checks every address against the arena, and a kernel lets each thread write only its own
//! rows.

use holdall_graph::Write;
use holdall_plan::{Instruction, Place};

use super::arena::ArenaPointer;
use super::product::Panels;
use super::real::Element;

/// A matrix whose rows are contiguous and evenly spaced.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pointer: *mut T,
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
}

// SAFETY: a `Rows` is an address and a shape; kernels write disjoint rows (or columns) from different threads.
unsafe impl<T: Send> Send for Rows<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Rows<T> {}

impl<T: Element> Rows<T> {
    /// A matrix outside of an arena.
    ///
    /// # Safety
    /// The memory holds the matrix as long as it is used, and is written through it alone, if at all.
    pub unsafe fn at(pointer: *mut T, rows: usize, width: usize, stride: usize) -> Rows<T> {
        Rows {
            pointer,
            rows,
            width,
            stride,
        }
    }

    pub fn row(&self, row: usize) -> &[T] {
        debug_assert!(row < self.rows);
        // SAFETY: within the arena (checked when the operand was created); no other thread writes this row now.
        unsafe { std::slice::from_raw_parts(self.pointer.add(row * self.stride), self.width) }
    }

    /// Mutable access to a row, for the thread that owns it.
    #[allow(clippy::mut_from_ref)] // the arena is shared memory; the instruction owns its outputs
    pub fn row_mut(&self, row: usize) -> &mut [T] {
        debug_assert!(row < self.rows);
        // SAFETY: within the arena; each row of an output is written by one thread.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(row * self.stride), self.width) }
    }

    /// Columns `start..start + width`.
    pub fn columns(&self, start: usize, width: usize) -> Rows<T> {
        assert!(start + width <= self.width);
        Rows {
            // SAFETY: stays within the first row.
            pointer: unsafe { self.pointer.add(start) },
            width,
            ..*self
        }
    }

    /// Rows `start..start + rows`.
    pub fn slice(&self, start: usize, rows: usize) -> Rows<T> {
        assert!(start + rows <= self.rows);
        Rows {
            // SAFETY: the first row of the slice is a row of the matrix (or one past the end, never dereferenced).
            pointer: unsafe { self.pointer.add(start * self.stride) },
            rows,
            ..*self
        }
    }

    /// The whole matrix as one row; the matrix must be contiguous.
    pub fn flat(&self) -> Rows<T> {
        assert!(
            self.stride == self.width || self.rows <= 1,
            "contiguous operand"
        );
        Rows {
            pointer: self.pointer,
            rows: 1,
            width: self.rows * self.width,
            stride: self.rows * self.width,
        }
    }

    /// The same elements in rows of another width; the matrix must be contiguous.
    pub fn reshape(&self, width: usize) -> Rows<T> {
        let flat = self.flat();
        Rows {
            rows: flat.width / width,
            width,
            stride: width,
            ..flat
        }
    }

    /// A single row as a column: one element per row.
    pub fn row_per_element(&self) -> Rows<T> {
        assert_eq!(self.rows, 1, "a vector");
        Rows {
            pointer: self.pointer,
            rows: self.width,
            width: 1,
            stride: 1,
        }
    }

    pub fn pointer(&self) -> *mut T {
        self.pointer
    }

    /// The single element of a scalar.
    pub fn scalar(&self) -> T {
        self.row(0)[0]
    }
}

/// Pictures with even strides between samples, lines and pixels: parts of longer rows, or every other pixel.
#[derive(Clone, Copy)]
pub(super) struct StridedPictures<T> {
    pointer: *const T,
    /// Number of samples, lines and pixels.
    pub dims: [usize; 3],
    strides: [usize; 3],
    pub channels: usize,
}

// SAFETY: an address and a shape; pictures are only read.
unsafe impl<T: Send> Send for StridedPictures<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for StridedPictures<T> {}

impl<T: Element> StridedPictures<T> {
    pub fn pixel(&self, [sample, line, pixel]: [usize; 3]) -> &[T] {
        debug_assert!(sample < self.dims[0] && line < self.dims[1] && pixel < self.dims[2]);
        let [by_sample, by_line, by_pixel] = self.strides;
        let at = sample * by_sample + line * by_line + pixel * by_pixel;
        // SAFETY: within the arena (checked when the operand was created); nothing writes it now.
        unsafe { std::slice::from_raw_parts(self.pointer.add(at), self.channels) }
    }
}

/// The operands of one instruction.
pub(super) struct Operands<'a> {
    instruction: &'a Instruction,
    arena: ArenaPointer,
    micro_batch: usize,
    slot: usize,
}

impl<'a> Operands<'a> {
    pub fn new(
        instruction: &'a Instruction,
        arena: ArenaPointer,
        micro_batch: usize,
        slot: usize,
    ) -> Operands<'a> {
        Operands {
            instruction,
            arena,
            micro_batch,
            slot,
        }
    }

    fn rows<T: Element>(&self, place: &Place) -> Rows<T> {
        assert_eq!(size_of::<T>(), place.dtype.bytes(), "operand format");
        let offset = place.offset as usize
            + self.micro_batch * place.micro_stride as usize
            + self.slot * place.slot_stride as usize;
        let stride = place
            .shape
            .row_stride(&place.strides)
            .expect("operands of CPU kernels are matrices with evenly spaced rows");
        let (rows, width) = (place.shape.rows(), place.shape.width());
        let elements = if rows == 0 {
            0
        } else {
            (rows - 1) * stride + width
        };
        assert!(
            offset + elements * size_of::<T>() <= self.arena.bytes,
            "operand within the arena"
        );
        // SAFETY: the offset lies within the arena, as just checked.
        let pointer = unsafe { self.arena.base.add(offset) }.cast();
        Rows {
            pointer,
            rows,
            width,
            stride,
        }
    }

    pub fn num_inputs(&self) -> usize {
        self.instruction.inputs.len()
    }

    pub fn input_place(&self, index: usize) -> &Place {
        &self.instruction.inputs[index]
    }

    pub fn input<T: Element>(&self, index: usize) -> Rows<T> {
        self.rows(&self.instruction.inputs[index])
    }

    /// An input `[n, h, w]`, or `[n, h, w, c]` with contiguous pixels; all other strides are free.
    pub fn pictures<T: Element>(&self, index: usize) -> StridedPictures<T> {
        let place = &self.instruction.inputs[index];
        assert_eq!(size_of::<T>(), place.dtype.bytes(), "operand format");
        let offset = place.offset as usize
            + self.micro_batch * place.micro_stride as usize
            + self.slot * place.slot_stride as usize;
        let (dims, strides) = (place.shape.dims(), place.strides.dims());
        let channels = dims.get(3).copied().unwrap_or(1);
        assert!(
            strides.get(3).is_none_or(|&stride| stride == 1),
            "whole pixels"
        );
        let [dims, strides] = [dims, strides].map(|sizes| [sizes[0], sizes[1], sizes[2]]);
        let last: usize = (0..3)
            .map(|axis| dims[axis].saturating_sub(1) * strides[axis])
            .sum();
        assert!(
            offset + (last + channels) * size_of::<T>() <= self.arena.bytes,
            "operand within the arena"
        );
        StridedPictures {
            // SAFETY: the offset lies within the arena, as just checked.
            pointer: unsafe { self.arena.base.add(offset) }.cast(),
            dims,
            strides,
            channels,
        }
    }

    pub fn num_outputs(&self) -> usize {
        self.instruction.outputs.len()
    }

    pub fn output_place(&self, index: usize) -> Option<&Place> {
        self.instruction.outputs[index]
            .as_ref()
            .map(|(place, _)| place)
    }

    /// An output, and whether it is added to; `None` if no instruction reads it.
    pub fn output<T: Element>(&self, index: usize) -> Option<(Rows<T>, Write)> {
        self.instruction
            .outputs
            .get(index)?
            .as_ref()
            .map(|(place, mode)| (self.rows(place), *mode))
    }

    /// An output that is always present.
    pub fn result<T: Element>(&self, index: usize) -> (Rows<T>, Write) {
        self.output(index).expect("the result is read")
    }

    /// The instruction's scratch, as rows of the given width.
    pub fn workspace<T: Element>(&self, width: usize) -> Rows<T> {
        let workspace = self.instruction.workspace;
        let rows = workspace.bytes as usize / size_of::<T>() / width.max(1);
        let offset = workspace.offset as usize + self.slot * workspace.slot_stride as usize;
        assert!(
            offset + workspace.bytes as usize <= self.arena.bytes,
            "scratch within the arena"
        );
        Rows {
            // SAFETY: within the arena, as just checked.
            pointer: unsafe { self.arena.base.add(offset) }.cast(),
            rows,
            width,
            stride: width,
        }
    }

    /// The scratch after the first `own_bytes`, which the kernel itself uses: for the panels of its products.
    pub fn panels(&self, own_bytes: usize) -> Panels {
        let all = self.workspace::<u8>(1);
        assert!(own_bytes <= all.rows, "scratch as planned");
        // SAFETY: within the arena, as checked; the plan gives the scratch to this instruction alone, and the kernel uses only the first
        // `own_bytes`.
        unsafe { Panels::new(all.pointer.add(own_bytes), all.rows - own_bytes) }
    }
}
