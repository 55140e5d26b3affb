//! Inputs and outputs of a program.

use holdall_graph::{Shape, Value, ValueId};

use super::Writer;
use crate::proto::{
    AttributeProto, DimensionProto, ElementType, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto,
};
use crate::views::ViewLayout;
use crate::{BATCH, OnnxError, Precision};

/// Sizes of the pictures that a program accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureSize {
    /// The graph's size only.
    Fixed,
    /// Any size: nothing in the graph depends on it.
    Any,
}

impl Writer<'_> {
    /// Adds an input of normalised pictures `[batch, channels, height, width]` or clips `[batch, frames, channels, height, width]`.
    pub fn pictures(&mut self, name: &str, value: ValueId, size: PictureSize) {
        let value = *self.graph.value(value);
        let dims = value.shape.dims();
        let (leading, &[height, width, channels]) = dims.split_last_chunk().expect("pictures");
        let mut shape: Vec<DimensionProto> = leading.iter().map(|&dim| dimension(dim)).collect();
        let sides = match size {
            PictureSize::Fixed => [height, width].map(DimensionProto::of),
            PictureSize::Any => ["height", "width"].map(DimensionProto::any),
        };
        shape.push(DimensionProto::of(channels));
        shape.extend(sides);
        let mut tensor = self.input(name, ElementType::Float, shape);
        let num_pictures = leading.iter().product();
        if leading.len() > 1 {
            tensor = self.reshape(&tensor, &[num_pictures, channels, height, width]);
        }
        let tensor = self.in_precision(&tensor);
        let flat = Shape::new(&[num_pictures, height, width, channels]);
        self.put(
            Value::whole(value.storage, flat),
            tensor,
            ViewLayout::ChannelsFirst,
        );
    }

    /// Adds an input of indices, such as token ids.
    pub fn indices(&mut self, name: &str, value: ValueId) {
        self.plain_input(name, value, ElementType::Int64);
    }

    /// Adds an input of numbers that another program computes.
    pub fn numbers(&mut self, name: &str, value: ValueId) {
        self.plain_input(name, value, ElementType::Float);
    }

    fn plain_input(&mut self, name: &str, value: ValueId, element: ElementType) {
        let value = *self.graph.value(value);
        let shape = value.shape.dims().iter().map(|&dim| dimension(dim));
        let mut tensor = self.input(name, element, shape.collect());
        if element == ElementType::Float {
            tensor = self.in_precision(&tensor);
        }
        self.put(value, tensor, ViewLayout::AsInGraph);
    }

    /// Adds an input mask `[batch, tokens]` of ones followed by zeros; the number of ones goes to `lengths_b`.
    pub fn mask(&mut self, name: &str, tokens: usize, lengths_b: ValueId) {
        let shape = vec![DimensionProto::any("batch"), DimensionProto::of(tokens)];
        let mask = self.input(name, ElementType::Int64, shape);
        let axes = self.integers(&[1]);
        let keep = AttributeProto::int("keepdims", 0);
        let lengths = self.node("ReduceSum", &[&mask, &axes], vec![keep]);
        self.put(*self.graph.value(lengths_b), lengths, ViewLayout::AsInGraph);
    }

    /// Computes the position of the end of every text and its length including the end: the first token `end`, or the first of the highest
    /// id.
    pub fn ends(
        &mut self,
        ids_bt: ValueId,
        end: Option<i64>,
        end_b: ValueId,
        lengths_b: ValueId,
    ) -> Result<(), OnnxError> {
        let ids = self.read(ids_bt, ViewLayout::AsInGraph)?;
        let marked = match end {
            Some(end) => {
                let end = self.integers(&[end]);
                self.node("Equal", &[&ids, &end], Vec::new())
            }
            None => ids,
        };
        // Every runtime supports ArgMax on 32-bit integers; not every one supports it on 64-bit integers.
        let marked = self.node("Cast", &[&marked], vec![AttributeProto::int("to", 6)]);
        let attributes = vec![
            AttributeProto::int("axis", 1),
            AttributeProto::int("keepdims", 0),
        ];
        let place = self.node("ArgMax", &[&marked], attributes);
        let one = self.integers(&[1]);
        let length = self.node("Add", &[&place, &one], Vec::new());
        for (value, tensor) in [(end_b, place), (lengths_b, length)] {
            self.put(*self.graph.value(value), tensor, ViewLayout::AsInGraph);
        }
        Ok(())
    }

    /// Adds an output; pictures `[batch, height, width, channels]` are converted to channels first.
    pub fn output(
        &mut self,
        name: &str,
        value: ValueId,
        size: PictureSize,
    ) -> Result<(), OnnxError> {
        let dims = self.graph.shape(value);
        let dims = dims.dims();
        let (layout, shape) = match *dims {
            [batch, height, width, channels] => {
                let sides = match size {
                    PictureSize::Fixed => [height, width].map(DimensionProto::of),
                    PictureSize::Any => ["height", "width"].map(DimensionProto::any),
                };
                let mut shape = vec![dimension(batch), DimensionProto::of(channels)];
                shape.extend(sides);
                (ViewLayout::ChannelsFirst, shape)
            }
            _ => {
                let shape = dims.iter().map(|&dim| dimension(dim)).collect();
                (ViewLayout::AsInGraph, shape)
            }
        };
        let tensor = self.read(value, layout)?;
        let (operator, attributes) = match self.precision {
            Precision::Full => ("Identity", Vec::new()),
            Precision::Half => ("Cast", vec![AttributeProto::int("to", 1)]),
        };
        assert!(self.names.insert(name.to_owned()), "{name} is taken");
        self.push(operator, &[&tensor], attributes, name.to_owned());
        self.outputs
            .push(tensor_info(name, ElementType::Float, shape));
        Ok(())
    }

    fn input(&mut self, name: &str, element: ElementType, shape: Vec<DimensionProto>) -> String {
        assert!(self.names.insert(name.to_owned()), "{name} is taken");
        self.inputs.push(tensor_info(name, element, shape));
        name.to_owned()
    }

    fn in_precision(&mut self, tensor: &str) -> String {
        match self.precision {
            Precision::Full => tensor.to_owned(),
            Precision::Half => self.cast(tensor, ElementType::Float16),
        }
    }
}

fn dimension(dim: usize) -> DimensionProto {
    match (dim, dim.is_multiple_of(BATCH)) {
        (BATCH, _) => DimensionProto::any("batch"),
        (_, true) => DimensionProto::any(&format!("{} batch", dim / BATCH)),
        (_, false) => DimensionProto::of(dim),
    }
}

fn tensor_info(name: &str, element: ElementType, dim: Vec<DimensionProto>) -> ValueInfoProto {
    let tensor = TensorTypeProto {
        elem_type: element as i32,
        shape: Some(TensorShapeProto { dim }),
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor),
        }),
    }
}
