//! Builds a program: inputs, nodes, outputs.
//!
//! Every operator is a pure function of its inputs, so an identical node is reused instead of written again ([`Writer::node`]): slices
//! of one tensor, transposed weights and masks are shared automatically.

mod endpoints;

pub use endpoints::PictureSize;

use std::collections::{HashMap, HashSet};

use holdall_graph::{Graph, StorageId};

use crate::file::{Program, Weight};
use crate::proto::{
    AttributeProto, ElementType, GraphProto, NodeProto, TensorProto, ValueInfoProto,
};
use crate::views::{ViewLayout, ViewPiece};
use crate::{BATCH, OnnxError, Precision};

/// Builder of a program.
pub struct Writer<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) precision: Precision,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    /// Tensors written to each storage.
    pub(crate) pieces: HashMap<StorageId, Vec<ViewPiece>>,
    /// Epsilon of norms whose statistics the ONNX operator computes itself, by the storage of their means.
    pub(crate) epsilons: HashMap<StorageId, f64>,
    /// Output by operator, inputs and attributes, to reuse identical nodes.
    known: HashMap<String, String>,
    names: HashSet<String>,
    /// Name of the current graph node, used as a prefix of names.
    label: String,
}

impl<'g> Writer<'g> {
    /// A program for a graph that was built for [`BATCH`] samples, in f32.
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
            // Convolution kernels are stored as in the state dict: channels before height and width.
            let layout = match value.shape.dims().len() {
                4 => ViewLayout::ChannelsFirst,
                _ => ViewLayout::AsInGraph,
            };
            writer.names.insert(parameter.name.clone());
            let piece = ViewPiece {
                value,
                tensor: parameter.name.clone(),
                layout,
            };
            writer.pieces.entry(value.storage).or_default().push(piece);
        }
        writer
    }

    /// Writes all nodes of the graph.
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

    /// The program without the values of its weights.
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

    /// Adds a node with one output and returns the output's name. An identical node is reused.
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
        let start = if self.label.is_empty() {
            operator
        } else {
            format!("{}/{operator}", self.label)
        };
        let mut name = start.clone();
        let mut count = 1;
        while !self.names.insert(name.clone()) {
            count += 1;
            name = format!("{start}_{count}");
        }
        name
    }

    pub(crate) fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.constant(ElementType::Int64, &[values.len()], bytes.collect())
    }

    /// Constant of this shape, in the program's precision.
    pub(crate) fn constant_numbers(&mut self, values: &[f32], shape: &[usize]) -> String {
        let mut bytes = Vec::new();
        to_bytes(values, self.precision, &mut bytes);
        self.constant(self.element(), shape, bytes)
    }

    /// Scalar constant, in the program's precision.
    pub(crate) fn number(&mut self, value: f64) -> String {
        self.constant_numbers(&[value as f32], &[])
    }

    /// Constant in f32, whatever the program's precision.
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

    /// Number format of the program's precision.
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

    /// Applies `compute` in f32, whatever the program's precision.
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

    /// Reshapes a tensor to dimensions of the graph.
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

    /// Name of the first input, whose first dimension is the batch size.
    pub(crate) fn first_input(&self) -> String {
        let first = self.inputs.first();
        first.expect("programs have inputs").name.clone()
    }
}

/// Dimension for a Reshape: -1 for a dynamic one.
pub(crate) fn size_or_any(dim: usize) -> i64 {
    if dim.is_multiple_of(BATCH) {
        -1
    } else {
        dim as i64
    }
}

/// Encodes numbers in a precision, little-endian.
pub(crate) fn to_bytes(values: &[f32], precision: Precision, bytes: &mut Vec<u8>) {
    match precision {
        Precision::Full => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Precision::Half => {
            let half = |value: &f32| half::f16::from_f32(*value).to_le_bytes();
            bytes.extend(values.iter().flat_map(half));
        }
    }
}
