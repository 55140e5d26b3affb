//! Writing a program: inputs, nodes, outputs.
//!
//! Every operator here is a function of its inputs, so a node that is there already is not written again ([`Writer::node`]): slices of
//! one tensor, transposed weights and masks are shared by themselves.

use std::collections::{HashMap, HashSet};

use holdall_graph::{Graph, Shape, StorageId, Value, ValueId};

use crate::file::{Program, Weight};
use crate::proto::{
    AttributeProto, DimensionProto, ElementType, GraphProto, NodeProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::views::{Layout, Piece};
use crate::{BATCH, OnnxError, Precision};

/// Which pictures a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureSize {
    /// Those of the graph's size.
    Fixed,
    /// Of any size: nothing in the graph depends on it.
    Any,
}

/// A program that is being written.
pub struct Writer<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) precision: Precision,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    /// What was written to each storage.
    pub(crate) pieces: HashMap<StorageId, Vec<Piece>>,
    /// Epsilon of norms whose statistics are left to the operator, by the storage of their means.
    pub(crate) epsilons: HashMap<StorageId, f64>,
    /// What was computed already: operator, inputs and attributes -> output.
    known: HashMap<String, String>,
    names: HashSet<String>,
    /// What is written at the moment: the start of names.
    label: String,
}

impl<'g> Writer<'g> {
    /// A program of a graph that was written for [`BATCH`] samples, in f32.
    pub fn new(graph: &'g Graph, precision: Precision) -> Writer<'g> {
        let mut writer = Writer {
            graph,
            precision,
            nodes: Vec::new(),
            constants: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            pieces: HashMap::new(),
            epsilons: HashMap::new(),
            known: HashMap::new(),
            names: HashSet::new(),
            label: String::new(),
        };
        for parameter in graph.parameters() {
            let value = *graph.value(parameter.value);
            // Kernels of convolutions are stored as the state dict has them: channels before their sides.
            let layout = match value.shape.dims().len() {
                4 => Layout::ChannelsFirst,
                _ => Layout::AsInGraph,
            };
            writer.names.insert(parameter.name.clone());
            let piece = Piece {
                value,
                tensor: parameter.name.clone(),
                layout,
            };
            writer.pieces.entry(value.storage).or_default().push(piece);
        }
        writer
    }

    /// Pictures `[batch, channels, height, width]`, or clips `[batch, frames, channels, height, width]`, of normalised numbers.
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
            Layout::ChannelsFirst,
        );
    }

    /// Indices, such as token ids.
    pub fn indices(&mut self, name: &str, value: ValueId) {
        self.plain_input(name, value, ElementType::Int64);
    }

    /// Numbers that another program leaves.
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
        self.put(value, tensor, Layout::AsInGraph);
    }

    /// A mask `[batch, tokens]` of ones and then zeros; their number goes to `lengths_b`.
    pub fn mask(&mut self, name: &str, tokens: usize, lengths_b: ValueId) {
        let shape = vec![DimensionProto::any("batch"), DimensionProto::of(tokens)];
        let mask = self.input(name, ElementType::Int64, shape);
        let axes = self.integers(&[1]);
        let keep = AttributeProto::int("keepdims", 0);
        let lengths = self.node("ReduceSum", &[&mask, &axes], vec![keep]);
        self.put(*self.graph.value(lengths_b), lengths, Layout::AsInGraph);
    }

    /// Where the end of every text is, and how many tokens it has with it: the first token `end`, or the first of the highest id.
    pub fn ends(
        &mut self,
        ids_bt: ValueId,
        end: Option<i64>,
        end_b: ValueId,
        lengths_b: ValueId,
    ) -> Result<(), OnnxError> {
        let ids = self.read(ids_bt, Layout::AsInGraph)?;
        let marked = match end {
            Some(end) => {
                let end = self.integers(&[end]);
                self.node("Equal", &[&ids, &end], Vec::new())
            }
            None => ids,
        };
        // Runtimes look for maxima of 32-bit integers everywhere, of 64-bit ones not everywhere.
        let marked = self.node("Cast", &[&marked], vec![AttributeProto::int("to", 6)]);
        let attributes = vec![
            AttributeProto::int("axis", 1),
            AttributeProto::int("keepdims", 0),
        ];
        let place = self.node("ArgMax", &[&marked], attributes);
        let one = self.integers(&[1]);
        let length = self.node("Add", &[&place, &one], Vec::new());
        for (value, tensor) in [(end_b, place), (lengths_b, length)] {
            self.put(*self.graph.value(value), tensor, Layout::AsInGraph);
        }
        Ok(())
    }

    /// All nodes of the graph.
    pub fn write_nodes(&mut self) -> Result<(), OnnxError> {
        for node in self.graph.nodes() {
            let first = node.outputs.first().map(|output| output.value);
            if let Some(first) = first {
                let storage = self.graph.value(first).storage;
                self.label = self.graph.storage(storage).name.clone();
            }
            self.operation(node)?;
        }
        self.label.clear();
        Ok(())
    }

    /// Names a result; pictures `[batch, height, width, channels]` get channels first.
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
                (Layout::ChannelsFirst, shape)
            }
            _ => {
                let shape = dims.iter().map(|&dim| dimension(dim)).collect();
                (Layout::AsInGraph, shape)
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

    /// The program, as far as it is known without the numbers of its weights.
    pub fn finish(self, name: &str) -> Program {
        let read: HashSet<&str> = (self.nodes.iter())
            .flat_map(|node| node.input.iter().map(String::as_str))
            .collect();
        let parameters = self.graph.parameters().iter();
        let weights = parameters
            .filter(|parameter| read.contains(parameter.name.as_str()))
            .map(|parameter| Weight {
                name: parameter.name.clone(),
                shape: self.graph.shape(parameter.value).dims().to_vec(),
            });
        Program {
            weights: weights.collect(),
            graph: GraphProto {
                node: self.nodes,
                name: name.to_owned(),
                initializer: self.constants,
                input: self.inputs,
                output: self.outputs,
            },
            precision: self.precision,
            metadata: Vec::new(),
        }
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

    /// A node with one output; the name of that. One that is there already is used again.
    pub(crate) fn node(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        let key = format!("{operator} {inputs:?} {attributes:?}");
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let output = self.unique(operator);
        self.push(operator, inputs, attributes, output.clone());
        self.known.insert(key, output.clone());
        output
    }

    fn push(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
        output: String,
    ) {
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            name: format!("{output}/{operator}"),
            output: vec![output],
            op_type: operator.to_owned(),
            attribute,
        });
    }

    fn unique(&mut self, operator: &str) -> String {
        let operator = operator.to_lowercase();
        let start = match self.label.is_empty() {
            true => operator,
            false => format!("{}/{operator}", self.label),
        };
        let mut name = start.clone();
        let mut count = 1;
        while !self.names.insert(name.clone()) {
            count += 1;
            name = format!("{start}_{count}");
        }
        name
    }

    /// Integers `[n]` as a constant.
    pub(crate) fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.constant(ElementType::Int64, &[values.len()], bytes.collect())
    }

    /// Numbers of this shape as a constant, in the format that is computed in.
    pub(crate) fn constant_numbers(&mut self, values: &[f32], shape: &[usize]) -> String {
        let mut bytes = Vec::new();
        to_bytes(values, self.precision, &mut bytes);
        self.constant(self.element(), shape, bytes)
    }

    /// One number, in the format that is computed in.
    pub(crate) fn number(&mut self, value: f64) -> String {
        self.constant_numbers(&[value as f32], &[])
    }

    /// Numbers in f32, whatever is computed in.
    pub(crate) fn full_numbers(&mut self, values: &[f32], shape: &[usize]) -> String {
        let mut bytes = Vec::new();
        to_bytes(values, Precision::Full, &mut bytes);
        self.constant(ElementType::Float, shape, bytes)
    }

    fn constant(&mut self, element: ElementType, shape: &[usize], bytes: Vec<u8>) -> String {
        let key = format!("{element:?} {shape:?} {bytes:?}");
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let label = std::mem::take(&mut self.label);
        let name = self.unique("constant");
        self.label = label;
        self.constants.push(TensorProto {
            dims: shape.iter().map(|&dim| dim as i64).collect(),
            data_type: element as i32,
            name: name.clone(),
            raw_data: Some(bytes),
            ..TensorProto::default()
        });
        self.known.insert(key, name.clone());
        name
    }

    /// What is computed in.
    pub(crate) fn element(&self) -> ElementType {
        match self.precision {
            Precision::Full => ElementType::Float,
            Precision::Half => ElementType::Float16,
        }
    }

    pub(crate) fn cast(&mut self, tensor: &str, to: ElementType) -> String {
        let to = AttributeProto::int("to", i64::from(to as i32));
        self.node("Cast", &[tensor], vec![to])
    }

    /// `compute` on f32, whatever is computed in elsewhere.
    pub(crate) fn in_full(
        &mut self,
        tensor: &str,
        compute: impl FnOnce(&mut Self, &str) -> String,
    ) -> String {
        match self.precision {
            Precision::Full => compute(self, tensor),
            Precision::Half => {
                let full = self.cast(tensor, ElementType::Float);
                let computed = compute(self, &full);
                self.cast(&computed, ElementType::Float16)
            }
        }
    }

    /// The same elements under another shape of the graph.
    pub(crate) fn reshape(&mut self, tensor: &str, dims: &[usize]) -> String {
        let dims: Vec<i64> = dims.iter().map(|&dim| size_or_any(dim)).collect();
        let free = dims.iter().filter(|&&dim| dim == -1).count();
        assert!(free <= 1, "{tensor}: the batch is part of one dimension");
        let dims = self.integers(&dims);
        self.node("Reshape", &[tensor, &dims], Vec::new())
    }

    pub(crate) fn transpose(&mut self, tensor: &str, axes: &[usize]) -> String {
        self.node(
            "Transpose",
            &[tensor],
            vec![AttributeProto::ints("perm", axes)],
        )
    }

    /// The first input: it has the batch's size, whatever it is.
    pub(crate) fn first_input(&self) -> String {
        let first = self.inputs.first();
        first.expect("programs have inputs").name.clone()
    }
}

/// A dimension as a Reshape has it.
pub(crate) fn size_or_any(dim: usize) -> i64 {
    match dim.is_multiple_of(BATCH) {
        true => -1,
        false => dim as i64,
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

/// Numbers as a file has them.
pub(crate) fn to_bytes(values: &[f32], precision: Precision, bytes: &mut Vec<u8>) {
    match precision {
        Precision::Full => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Precision::Half => {
            let half = |value: &f32| half::f16::from_f32(*value).to_le_bytes();
            bytes.extend(values.iter().flat_map(half));
        }
    }
}
