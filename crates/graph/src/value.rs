//! Values: typed, strided views of storages.
//!
//! The planner places storages; a value says which elements of a storage to read. `qkv` is one storage and `q`, `k`, `v` are three
//! values of it; a gradient that several nodes add to is one storage written several times.

use std::fmt;

/// Number format of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// For gradient checks.
    F64,
    F32,
    /// 16-bit brain float.
    Bf16,
    F16,
    /// Token ids, labels, lengths.
    I64,
    /// Raw pixels, class masks.
    U8,
}

impl DType {
    /// Size of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }
}

/// Memory of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemorySpace {
    /// The memory that the budget bounds (on the CPU, the memory of the process).
    Device,
    /// Page-locked host memory that the device reads directly.
    PinnedHost,
}

/// Purpose of a storage: decides its lifetime and the heading under which its bytes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Parameters: always alive.
    Weight,
    /// Gradients of parameters: alive from the loss to the update.
    Gradient,
    /// Optimizer state: always alive.
    Optimizer,
    /// Produced and consumed within a micro-batch (or within the loss).
    Activation,
    /// Written from outside before a program runs: pixels, tokens, schedule scalars.
    Input,
    /// Data that micro-batches hand to the whole step: features, their gradients, loss sums, norms.
    Feature,
    /// Data that forward programs beside the step leave for each other: alive from the first of them to the last. A step may
    /// overwrite it.
    Cache,
}

/// Highest rank of a shape: `[batch, frames, height, width, channels]` and one dimension to spare.
const MAX_RANK: usize = 6;

/// Up to six dimensions, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    pub fn new(dims: &[usize]) -> Shape {
        assert!(
            dims.len() <= MAX_RANK,
            "at most {MAX_RANK} dimensions, found {}",
            dims.len()
        );
        let mut all = [1; MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Shape {
            dims: all,
            rank: dims.len() as u8,
        }
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Product of all dimensions.
    pub fn num_elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The last dimension (1 for a scalar).
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        let rank = self.rank as usize;
        self.dims[..rank.saturating_sub(1)].iter().product()
    }

    /// Elements between consecutive rows under the given strides, when the rows are evenly spaced and each is
    /// contiguous.
    pub fn row_stride(&self, strides: &Shape) -> Option<usize> {
        let (dims, strides) = (self.dims(), strides.dims());
        let Some(last) = dims.len().checked_sub(1) else {
            return Some(1);
        };
        if strides[last] != 1 && dims[last] != 1 {
            return None;
        }
        // Dimensions of one element do not matter for the spacing.
        let mut leading = (0..last).rev().filter(|&axis| dims[axis] != 1);
        let Some(innermost) = leading.next() else {
            return Some(dims[last]);
        };
        let row = strides[innermost];
        let mut expected = row * dims[innermost];
        for axis in leading {
            if strides[axis] != expected {
                return None;
            }
            expected *= dims[axis];
        }
        Some(row)
    }

    pub fn contiguous_strides(&self) -> Shape {
        let mut strides = *self;
        let mut step = 1;
        for axis in (0..self.rank as usize).rev() {
            strides.dims[axis] = step;
            step *= self.dims[axis];
        }
        strides
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// Index of a [`Storage`] in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(pub usize);

/// Index of a [`Value`] in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// A piece of memory that the planner places as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Appears in reports, plans and errors.
    pub name: String,
    pub num_elements: usize,
    pub dtype: DType,
    pub space: MemorySpace,
    pub role: Role,
}

impl Storage {
    pub fn bytes(&self) -> u64 {
        self.num_elements as u64 * self.dtype.bytes() as u64
    }
}

/// A strided view of a storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    pub storage: StorageId,
    /// Offset of the first element, in elements.
    pub offset: usize,
    pub shape: Shape,
    /// Elements between neighbours along each dimension.
    pub strides: Shape,
    /// Elements that the view advances from one micro-batch to the next: features of the whole effective batch are one storage, and
    /// each micro-batch sees its own rows. Zero for all other values.
    pub micro_stride: usize,
}

impl Value {
    /// A contiguous view of a whole storage.
    pub fn whole(storage: StorageId, shape: Shape) -> Value {
        Value {
            storage,
            offset: 0,
            shape,
            strides: shape.contiguous_strides(),
            micro_stride: 0,
        }
    }

    /// No gaps between elements.
    pub fn is_contiguous(&self) -> bool {
        self.strides == self.shape.contiguous_strides()
    }

    /// Elements between consecutive rows, when the value is a matrix of `rows x width` with one row stride.
    pub fn row_stride(&self) -> Option<usize> {
        self.shape.row_stride(&self.strides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_slice_has_one_row_stride_and_a_gapped_batch_has_none() {
        let q = Value {
            storage: StorageId(0),
            offset: 0,
            shape: Shape::new(&[2, 5, 8]),
            strides: Shape::new(&[5 * 24, 24, 1]),
            micro_stride: 0,
        };
        assert_eq!(q.row_stride(), Some(24));
        let without_first_token = Value {
            shape: Shape::new(&[2, 4, 8]),
            strides: Shape::new(&[5 * 8, 8, 1]),
            ..q
        };
        assert_eq!(without_first_token.row_stride(), None);
    }

    #[test]
    fn five_dimensions_are_counted_and_strided_like_fewer() {
        let video = Value::whole(StorageId(0), Shape::new(&[2, 3, 4, 5, 6]));
        assert_eq!(video.strides.dims(), [360, 120, 30, 6, 1]);
        assert_eq!((video.shape.rows(), video.shape.width()), (120, 6));
        assert_eq!(
            (video.shape.num_elements(), video.row_stride()),
            (720, Some(6))
        );
        assert!(video.is_contiguous());
        let two_columns = Value {
            shape: Shape::new(&[2, 3, 4, 5, 2]),
            ..video
        };
        assert_eq!(two_columns.row_stride(), Some(6));
        assert!(!two_columns.is_contiguous());
        let without_first_frame = Value {
            shape: Shape::new(&[2, 2, 4, 5, 6]),
            ..video
        };
        assert_eq!(without_first_frame.row_stride(), None);
        assert_ne!(Shape::new(&[2, 3]), Shape::new(&[2, 3, 1, 1, 1, 1]));
    }

    #[test]
    #[should_panic(expected = "at most 6 dimensions, found 7")]
    fn seven_dimensions_are_refused() {
        Shape::new(&[1; 7]);
    }
}
