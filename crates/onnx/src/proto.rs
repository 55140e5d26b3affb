//! The messages of ONNX that a file here has, with the field numbers of its `onnx.proto`.

use prost::Message;

/// A file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// What wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The program.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Versions of the operators.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Anything else, as text.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// Field number of [`ModelProto::graph`].
pub(crate) const GRAPH: u32 = 7;
/// Field number of [`GraphProto::initializer`].
pub(crate) const INITIALIZER: u32 = 5;

/// A version of a set of operators.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Empty: ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A key and a value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Nodes in an order in which they can run.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// For people.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants: weights, shapes, masks.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// What is fed.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// What is read.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// An operator at work.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of what it reads; an empty one is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of what it writes.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// For people.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A setting of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A text.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Which of these it is: 1, 2, 3 and 7.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Its shape.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Number format: one of [`ElementType`].
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Its name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Its elements, low bytes first, unless they lie in another file.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    /// `location`, `offset` and `length` of its elements in another file.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 where they lie in another file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// Number formats by ONNX's numbers.
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
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; only tensors are used here.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Number format and shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// One of [`ElementType`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dimensions, outermost first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A dimension: a number, or a name for any number.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The number.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

impl AttributeProto {
    /// An integer.
    pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            i: Some(value),
            r#type: 2,
            ..AttributeProto::default()
        }
    }

    /// Integers.
    pub(crate) fn ints(name: &str, values: &[usize]) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            ints: values.iter().map(|&value| value as i64).collect(),
            r#type: 7,
            ..AttributeProto::default()
        }
    }

    /// A number.
    pub(crate) fn float(name: &str, value: f64) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            f: Some(value as f32),
            r#type: 1,
            ..AttributeProto::default()
        }
    }

    /// A text.
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
    /// A dimension of this size.
    pub(crate) fn of(size: usize) -> DimensionProto {
        DimensionProto {
            dim_value: Some(size as i64),
            dim_param: None,
        }
    }

    /// A dimension of any size, by its name.
    pub(crate) fn any(name: &str) -> DimensionProto {
        DimensionProto {
            dim_value: None,
            dim_param: Some(name.to_owned()),
        }
    }
}
