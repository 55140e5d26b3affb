//! The ONNX messages that exported files use, with the field numbers of ONNX's `onnx.proto`.

use prost::Message;

/// An ONNX file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(string, tag = "3")]
    pub producer_version: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Versions of the operator sets.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Free-form metadata.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// Field number of [`ModelProto::graph`].
pub(crate) const GRAPH: u32 = 7;
/// Field number of [`GraphProto::initializer`].
pub(crate) const INITIALIZER: u32 = 5;

/// Version of an operator set.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Empty for ONNX's own operators.
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Nodes in topological order, constants, inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// For display only.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants: weights, shapes, masks.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// One application of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Input names; empty for an omitted optional input.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// For display only.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Name of the operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// Attribute of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Which field is set: 1 for `f`, 2 for `i`, 3 for `s`, 7 for `ints`.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// A constant tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Number format: one of [`ElementType`].
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements, little-endian, unless stored in another file.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    /// `location`, `offset` and `length` of elements stored in another file.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 where the elements are in another file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// Number formats, with ONNX's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit float.
    Float = 1,
    /// 64-bit integer.
    Int64 = 7,
    /// 16-bit IEEE float.
    Float16 = 10,
}

/// Name and type of an input or an output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; only tensors are used here.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Number format and shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// One of [`ElementType`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dimensions, outermost first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A dimension: a size, or a name for a dynamic size.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

impl AttributeProto {
    pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            i: Some(value),
            r#type: 2,
            ..AttributeProto::default()
        }
    }

    pub(crate) fn ints(name: &str, values: &[usize]) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            ints: values.iter().map(|&value| value as i64).collect(),
            r#type: 7,
            ..AttributeProto::default()
        }
    }

    pub(crate) fn float(name: &str, value: f64) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            f: Some(value as f32),
            r#type: 1,
            ..AttributeProto::default()
        }
    }

    pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            s: Some(value.as_bytes().to_vec()),
            r#type: 3,
            ..AttributeProto::default()
        }
    }
}

impl DimensionProto {
    /// A dimension of fixed size.
    pub(crate) fn of(size: usize) -> DimensionProto {
        DimensionProto {
            dim_value: Some(size as i64),
            dim_param: None,
        }
    }

    /// A dimension of dynamic size, by its name.
    pub(crate) fn any(name: &str) -> DimensionProto {
        DimensionProto {
            dim_value: None,
            dim_param: Some(name.to_owned()),
        }
    }
}
