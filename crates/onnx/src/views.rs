//! Maps strided views of a graph's storages to ONNX's whole tensors. The tensors written to a storage are recorded as pieces, and a view
//! is read as
//!
//! ```text
//! a piece                    unchanged, or transposed
//! a part of a piece          Reshape to the shape that the view's strides imply, then Slice
//! several whole pieces       Concat: rows (q, k and v of one weight) or columns (a skip beside the upsampled features)
//! ```

use holdall_graph::{Shape, Value, ValueId};

use crate::proto::AttributeProto;
use crate::writer::Writer;
use crate::{BATCH, OnnxError};

/// Order of a tensor's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ViewLayout {
    /// The graph's order: channels last.
    AsInGraph,
    /// `[n, c, h, w]` for what the graph has as `[n, h, w, c]`.
    ChannelsFirst,
}

/// A tensor written to a part of a storage.
#[derive(Clone, Debug)]
pub(crate) struct ViewPiece {
    pub value: Value,
    pub tensor: String,
    pub layout: ViewLayout,
}

impl Writer<'_> {
    /// Records a node's result, whose tensor has the value's shape up to merged dimensions and dimensions of one element.
    pub(crate) fn write(&mut self, to: ValueId, tensor: String, dims: &[usize]) {
        let value = *self.graph.value(to);
        let tensor = if value.shape.dims() == dims {
            tensor
        } else {
            self.reshape(&tensor, value.shape.dims())
        };
        self.put(value, tensor, ViewLayout::AsInGraph);
    }

    /// Records a node's channels-first result.
    pub(crate) fn write_pictures(&mut self, to: ValueId, tensor: String) {
        self.put(*self.graph.value(to), tensor, ViewLayout::ChannelsFirst);
    }

    pub(crate) fn put(&mut self, value: Value, tensor: String, layout: ViewLayout) {
        let pieces = self.pieces.entry(value.storage).or_default();
        pieces.push(ViewPiece {
            value,
            tensor,
            layout,
        });
    }

    /// Tensor of a value, in this layout.
    pub(crate) fn read(&mut self, id: ValueId, layout: ViewLayout) -> Result<String, OnnxError> {
        let value = *self.graph.value(id);
        let Some(pieces) = self.pieces.get(&value.storage).cloned() else {
            return Err(self.not_written(&value));
        };
        if let Some(piece) = pieces.iter().find(|piece| is_same(&piece.value, &value)) {
            return Ok(self.in_layout(&piece.tensor, piece.layout, layout));
        }
        for piece in &pieces {
            if let Some(tensor) = self.part_of(piece, &value, layout) {
                return Ok(tensor);
            }
        }
        if let Some(tensor) = self.joined_rows(&pieces, &value) {
            return Ok(self.in_layout(&tensor, ViewLayout::AsInGraph, layout));
        }
        self.joined_columns(&pieces, &value, layout)
            .ok_or_else(|| self.not_written(&value))
    }

    fn in_layout(&mut self, tensor: &str, from: ViewLayout, to: ViewLayout) -> String {
        match (from, to) {
            (ViewLayout::ChannelsFirst, ViewLayout::AsInGraph) => {
                self.transpose(tensor, &[0, 2, 3, 1])
            }
            (ViewLayout::AsInGraph, ViewLayout::ChannelsFirst) => {
                self.transpose(tensor, &[0, 3, 1, 2])
            }
            _ => tensor.to_owned(),
        }
    }

    /// Slices a view out of one piece.
    fn part_of(&mut self, piece: &ViewPiece, value: &Value, layout: ViewLayout) -> Option<String> {
        let from = &piece.value;
        // Pictures are sliced by channels only, since their height and width may be dynamic.
        if piece.layout == ViewLayout::ChannelsFirst {
            let starts = starts_within(from, &from.shape, value)?;
            let tensor = self.slice(&piece.tensor, from.shape, value.shape, &starts, true);
            return Some(self.in_layout(&tensor, ViewLayout::ChannelsFirst, layout));
        }
        let (tensor, base) = match starts_within(from, &from.shape, value) {
            Some(_) => (piece.tensor.clone(), from.shape),
            None if from.is_contiguous() => {
                let base = base_shape(from.shape.num_elements(), value)?;
                starts_within(from, &base, value)?;
                (self.reshape(&piece.tensor, base.dims()), base)
            }
            None => return None,
        };
        let starts = starts_within(from, &base, value)?;
        let tensor = self.slice(&tensor, base, value.shape, &starts, false);
        Some(self.in_layout(&tensor, ViewLayout::AsInGraph, layout))
    }

    fn slice(
        &mut self,
        tensor: &str,
        from: Shape,
        to: Shape,
        starts: &[usize],
        channels_first: bool,
    ) -> String {
        let (mut first, mut end, mut axes) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, &start) in starts.iter().enumerate() {
            let size = to.dims()[axis];
            if size < from.dims()[axis] {
                first.push(start as i64);
                end.push((start + size) as i64);
                axes.push(if channels_first {
                    [0, 2, 3, 1][axis]
                } else {
                    axis as i64
                });
            }
        }
        if axes.is_empty() {
            return tensor.to_owned();
        }
        let [first, end, axes] = [first, end, axes].map(|values| self.integers(&values));
        self.node("Slice", &[tensor, &first, &end, &axes], Vec::new())
    }

    /// Concatenates consecutive pieces that together form the view.
    fn joined_rows(&mut self, pieces: &[ViewPiece], value: &Value) -> Option<String> {
        let mut place = value.offset;
        let end = place + value.shape.num_elements();
        let mut tensors = Vec::new();
        while place < end {
            let is_next = |piece: &&ViewPiece| {
                piece.value.offset == place
                    && piece.value.is_contiguous()
                    && piece.layout == ViewLayout::AsInGraph
            };
            let next = pieces.iter().find(is_next)?;
            place += next.value.shape.num_elements();
            tensors.push((next.tensor.as_str(), next.value.shape));
        }
        if place != end || !value.is_contiguous() {
            return None;
        }
        let inner = |shape: &Shape| shape.dims()[1..].to_vec();
        let (_, shape) = tensors.first()?;
        if !tensors
            .iter()
            .all(|(_, other)| inner(other) == inner(shape))
        {
            return None;
        }
        let names: Vec<&str> = tensors.iter().map(|(name, _)| *name).collect();
        let joined = self.node("Concat", &names, vec![AttributeProto::int("axis", 0)]);
        let rows: usize = tensors.iter().map(|(_, shape)| shape.dims()[0]).sum();
        let mut dims = shape.dims().to_vec();
        dims[0] = rows;
        Some(if dims == value.shape.dims() {
            joined
        } else {
            self.reshape(&joined, value.shape.dims())
        })
    }

    /// Concatenates pieces that lie side by side and together form the view.
    fn joined_columns(
        &mut self,
        pieces: &[ViewPiece],
        value: &Value,
        layout: ViewLayout,
    ) -> Option<String> {
        let mut place = value.offset;
        let end = place + value.shape.width();
        let outer = |value: &Value| value.shape.dims()[..value.shape.dims().len() - 1].to_vec();
        let rows = |value: &Value| (value.shape.rows(), value.row_stride());
        rows(value).1?;
        let mut found: Vec<&ViewPiece> = Vec::new();
        while place < end {
            let is_next = |piece: &&ViewPiece| {
                piece.value.offset == place && rows(&piece.value) == rows(value)
            };
            let next = pieces.iter().find(is_next)?;
            place += next.value.shape.width();
            found.push(next);
        }
        let first = found.first()?.value;
        let is_alike = |piece: &&ViewPiece| outer(&piece.value) == outer(&first);
        if place != end || !found.iter().all(is_alike) {
            return None;
        }
        let rank = first.shape.dims().len();
        let own = if found
            .iter()
            .any(|piece| piece.layout == ViewLayout::ChannelsFirst)
        {
            ViewLayout::ChannelsFirst
        } else {
            ViewLayout::AsInGraph
        };
        let axis = match own {
            ViewLayout::ChannelsFirst => 1,
            ViewLayout::AsInGraph => rank as i64 - 1,
        };
        let tensors: Vec<String> = found
            .iter()
            .map(|piece| self.in_layout(&piece.tensor, piece.layout, own))
            .collect();
        let tensors: Vec<&str> = tensors.iter().map(String::as_str).collect();
        let joined = self.node("Concat", &tensors, vec![AttributeProto::int("axis", axis)]);
        if outer(&first) == outer(value) {
            return Some(self.in_layout(&joined, own, layout));
        }
        // Channels-last values can have the same rows under other dimensions; pictures cannot.
        let joined = match own {
            ViewLayout::AsInGraph => self.reshape(&joined, value.shape.dims()),
            ViewLayout::ChannelsFirst => return None,
        };
        Some(self.in_layout(&joined, ViewLayout::AsInGraph, layout))
    }

    fn not_written(&self, value: &Value) -> OnnxError {
        let storage = self.graph.storage(value.storage);
        OnnxError::View {
            storage: storage.name.clone(),
            found: format!(
                "{:?} from element {} on, strides {:?}, is not what was written there",
                value.shape, value.offset, value.strides
            ),
        }
    }
}

/// Whether two views have the same elements in the same shape.
fn is_same(a: &Value, b: &Value) -> bool {
    a.offset == b.offset && a.shape == b.shape && strides_agree(&a.strides, &b.strides, &a.shape)
}

/// Compares strides, except for dimensions of one element.
fn strides_agree(a: &Shape, b: &Shape, shape: &Shape) -> bool {
    let dims = shape.dims().iter();
    let strides = a.dims().iter().zip(b.dims());
    dims.zip(strides).all(|(&dim, (a, b))| dim == 1 || a == b)
}

/// Shape of the tensor that a view with these strides is a slice of.
fn base_shape(num_elements: usize, value: &Value) -> Option<Shape> {
    let strides = value.strides.dims();
    let mut dims = Vec::with_capacity(strides.len());
    let mut outer = num_elements;
    for &stride in strides {
        if stride == 0 || !outer.is_multiple_of(stride) {
            return None;
        }
        dims.push(outer / stride);
        outer = stride;
    }
    (outer == 1).then(|| Shape::new(&dims))
}

/// Start of a view on each axis of `base`, a shape of the elements of `from`; `None` where the view is no slice of it.
fn starts_within(from: &Value, base: &Shape, value: &Value) -> Option<Vec<usize>> {
    let strides = if *base == from.shape {
        from.strides
    } else {
        base.contiguous_strides()
    };
    if base.dims().len() != value.shape.dims().len()
        || !strides_agree(&strides, &value.strides, &value.shape)
    {
        return None;
    }
    let mut rest = value.offset.checked_sub(from.offset)?;
    let mut starts = Vec::with_capacity(base.dims().len());
    for (axis, &stride) in strides.dims().iter().enumerate() {
        let (size, whole) = (value.shape.dims()[axis], base.dims()[axis]);
        let start = rest / stride;
        rest %= stride;
        // The batch is never sliced.
        let is_batch = whole.is_multiple_of(BATCH);
        if start + size > whole || (is_batch && size != whole) {
            return None;
        }
        starts.push(start);
    }
    (rest == 0).then_some(starts)
}

#[cfg(test)]
mod tests;
