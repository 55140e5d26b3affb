//! Writes a program as a file: nodes first, then weights, one at a time.
//!
//! ```text
//! NAME.onnx          the whole program, up to 2 GB, the limit of a protobuf message
//! NAME.onnx.data     beyond that limit, the concatenated weights
//! ```

use std::io::{self, Write};
use std::path::Path;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::Precision;
use crate::proto::{
    ElementType, GRAPH, GraphProto, INITIALIZER, ModelProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto,
};
use crate::writer::to_bytes;

/// Version of the operator set: the first with layer norms, supported by runtimes since 2022.
pub const OPSET: i64 = 17;
/// Version of the file format that was released with it.
const IR_VERSION: i64 = 8;
/// Size limit of a protobuf message, less room for a header.
const MOST_BYTES: u64 = (1 << 31) - (1 << 20);

/// Fills a weight by its name, in the graph's layout.
pub type Fill<'a> = dyn FnMut(&str, &mut [f32]) -> io::Result<()> + 'a;

/// A program whose weights are described by name and shape, without values.
#[derive(Clone, Debug)]
pub struct Program {
    /// Nodes, inputs, outputs, and constants other than weights.
    pub graph: GraphProto,
    /// Free-form metadata of the file.
    pub metadata: Vec<(String, String)>,
    pub(crate) weights: Vec<Weight>,
    pub(crate) precision: Precision,
}

/// A weight, with its shape in the graph.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub name: String,
    pub shape: Vec<usize>,
}

impl Program {
    pub fn weight_names(&self) -> Vec<String> {
        self.weights
            .iter()
            .map(|weight| weight.name.clone())
            .collect()
    }

    pub fn weight_bytes(&self) -> u64 {
        let counts = self
            .weights
            .iter()
            .map(|weight| weight.num_bytes(self.precision));
        counts.sum()
    }

    /// Writes the file, and a second one with the weights if they exceed the limit of one file. The files appear atomically.
    pub fn write(&self, path: &Path, fill: &mut Fill<'_>) -> io::Result<()> {
        self.write_up_to(path, MOST_BYTES, fill)
    }

    pub(crate) fn write_up_to(
        &self,
        path: &Path,
        most_bytes: u64,
        fill: &mut Fill<'_>,
    ) -> io::Result<()> {
        let graph_bytes = self.graph.encoded_len() as u64;
        if self.weight_bytes() + graph_bytes <= most_bytes {
            return holdall_files::write_whole_by(path, |file| self.write_within(file, fill));
        }
        let data = path.with_added_extension("data");
        let location = data.file_name().unwrap_or_default().to_string_lossy();
        let mut described = Vec::with_capacity(self.weights.len());
        let mut offset = 0;
        for weight in &self.weights {
            let length = weight.num_bytes(self.precision);
            described.push(weight.elsewhere(self.precision, &location, offset, length));
            offset += length;
        }
        holdall_files::write_whole_by(&data, |file| {
            let mut bytes = Vec::new();
            self.weights.iter().try_for_each(|weight| {
                weight.read(self.precision, fill, &mut bytes)?;
                file.write_all(&bytes)
            })
        })?;
        let mut graph = self.graph.clone();
        graph.initializer.extend(described);
        let mut model = self.model();
        model.graph = Some(graph);
        holdall_files::write_whole(path, &model.encode_to_vec())
    }

    fn model(&self) -> ModelProto {
        let entry = |(key, value): &(String, String)| StringStringEntryProto {
            key: key.clone(),
            value: value.clone(),
        };
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "holdall".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: None,
            opset_import: vec![OperatorSetIdProto {
                domain: String::new(),
                version: OPSET,
            }],
            metadata_props: self.metadata.iter().map(entry).collect(),
        }
    }

    /// Writes a message that includes all weights; one weight is in memory at a time.
    fn write_within(&self, file: &mut dyn Write, fill: &mut Fill<'_>) -> io::Result<()> {
        let mut bytes = self.model().encode_to_vec();
        let described: Vec<TensorProto> = (self.weights.iter())
            .map(|weight| weight.within(self.precision))
            .collect();
        // Each weight is encoded without values; the length accounts for the values that follow.
        let lengths: Vec<u64> = (self.weights.iter().zip(&described))
            .map(|(weight, tensor)| {
                let numbers = weight.num_bytes(self.precision);
                let header = key_len(RAW_DATA) + encoded_len_varint(numbers);
                tensor.encoded_len() as u64 + header as u64 + numbers
            })
            .collect();
        let in_graph =
            |&length: &u64| (key_len(INITIALIZER) + encoded_len_varint(length)) as u64 + length;
        let graph_bytes: u64 =
            self.graph.encoded_len() as u64 + lengths.iter().map(in_graph).sum::<u64>();
        encode_key(GRAPH, WireType::LengthDelimited, &mut bytes);
        encode_varint(graph_bytes, &mut bytes);
        file.write_all(&bytes)?;
        file.write_all(&self.graph.encode_to_vec())?;
        for ((weight, tensor), length) in self.weights.iter().zip(described).zip(lengths) {
            bytes.clear();
            encode_key(INITIALIZER, WireType::LengthDelimited, &mut bytes);
            encode_varint(length, &mut bytes);
            bytes.extend(tensor.encode_to_vec());
            encode_key(RAW_DATA, WireType::LengthDelimited, &mut bytes);
            encode_varint(weight.num_bytes(self.precision), &mut bytes);
            file.write_all(&bytes)?;
            weight.read(self.precision, fill, &mut bytes)?;
            file.write_all(&bytes)?;
        }
        Ok(())
    }
}

/// Field number of [`TensorProto::raw_data`].
const RAW_DATA: u32 = 9;

impl Weight {
    fn num_bytes(&self, precision: Precision) -> u64 {
        self.shape.iter().product::<usize>() as u64 * precision.bytes() as u64
    }

    /// Shape in the state dict: convolution kernels have channels before height and width.
    fn dims(&self) -> Vec<i64> {
        let dims = match *self.shape {
            [out, down, across, channels] => vec![out, channels, down, across],
            _ => self.shape.clone(),
        };
        dims.into_iter().map(|dim| dim as i64).collect()
    }

    /// Description of the tensor without its values.
    fn within(&self, precision: Precision) -> TensorProto {
        TensorProto {
            dims: self.dims(),
            data_type: match precision {
                Precision::Full => ElementType::Float,
                Precision::Half => ElementType::Float16,
            } as i32,
            name: self.name.clone(),
            ..TensorProto::default()
        }
    }

    fn elsewhere(&self, precision: Precision, file: &str, offset: u64, length: u64) -> TensorProto {
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: key.to_owned(),
            value,
        };
        TensorProto {
            external_data: vec![
                entry("location", file.to_owned()),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            data_location: Some(1),
            ..self.within(precision)
        }
    }

    /// Reads the values in the file's layout and precision.
    fn read(
        &self,
        precision: Precision,
        fill: &mut Fill<'_>,
        bytes: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut values = vec![0.0; self.shape.iter().product()];
        fill(&self.name, &mut values)?;
        if let [out, down, across, channels] = *self.shape {
            let mut moved = Vec::with_capacity(values.len());
            for kernel in values.chunks(down * across * channels).take(out) {
                for channel in 0..channels {
                    moved.extend(kernel.iter().skip(channel).step_by(channels));
                }
            }
            values = moved;
        }
        bytes.clear();
        to_bytes(&values, precision, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use holdall_graph::{DType, Decay, Graph};

    use super::*;
    use crate::{BATCH, PictureSize, Writer};

    /// Two convolutions in a row, the second without a bias.
    fn program(precision: Precision) -> Program {
        let mut graph = Graph::new(DType::F32);
        let pixels = graph.input("pixels", &[BATCH, 4, 4, 2], DType::F32);
        let first = graph.parameter("first.weight", &[3, 2, 1, 2], Decay::Yes);
        let bias = graph.parameter("first.bias", &[3], Decay::No);
        let second = graph.parameter("second.weight", &[1, 1, 1, 3], Decay::Yes);
        let x = graph.conv2d("first", pixels, first, Some(bias), [1, 1], [0, 0]);
        let y = graph.conv2d("second", x, second, None, [1, 1], [0, 0]);
        let mut writer = Writer::new(&graph, precision);
        writer.pictures("pixel_values", pixels, PictureSize::Any);
        writer.write_nodes().unwrap();
        writer.output("logits", y, PictureSize::Any).unwrap();
        writer.finish("two convolutions")
    }

    /// Every element of a weight is its index in the graph's layout.
    fn places(_name: &str, values: &mut [f32]) -> io::Result<()> {
        for (place, value) in values.iter_mut().enumerate() {
            *value = place as f32;
        }
        Ok(())
    }

    fn decode(path: &Path) -> GraphProto {
        let bytes = std::fs::read(path).unwrap();
        ModelProto::decode(bytes.as_slice()).unwrap().graph.unwrap()
    }

    #[test]
    fn pictures_stay_channels_first_from_end_to_end() {
        let operators = |program: &Program| -> Vec<String> {
            let nodes = program.graph.node.iter();
            nodes.map(|node| node.op_type.clone()).collect()
        };
        assert_eq!(
            operators(&program(Precision::Full)),
            ["Conv", "Conv", "Identity"]
        );
        let half = operators(&program(Precision::Half));
        assert_eq!(half, ["Cast", "Conv", "Conv", "Cast"]);
    }

    #[test]
    fn kernels_have_their_channels_before_their_sides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.onnx");
        program(Precision::Full).write(&path, &mut places).unwrap();
        let graph = decode(&path);
        let first = &graph.initializer[0];
        assert_eq!(
            (first.name.as_str(), &first.dims[..]),
            ("first.weight", &[3, 2, 2, 1][..])
        );
        let bytes = first.raw_data.as_ref().unwrap();
        let values: Vec<f32> = (bytes.chunks_exact(4))
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert_eq!(values, [0., 2., 1., 3., 4., 6., 5., 7., 8., 10., 9., 11.]);
    }

    #[test]
    fn weights_that_are_too_large_for_a_message_lie_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let [within, beside] = ["within.onnx", "beside.onnx"].map(|name| folder.path().join(name));
        let program = program(Precision::Half);
        program.write(&within, &mut places).unwrap();
        program.write_up_to(&beside, 0, &mut places).unwrap();
        let data = std::fs::read(folder.path().join("beside.onnx.data")).unwrap();
        assert_eq!(data.len() as u64, program.weight_bytes());
        let (within, beside) = (decode(&within), decode(&beside));
        assert_eq!(within.node, beside.node);
        for (own, other) in within.initializer.iter().zip(&beside.initializer) {
            let said = |key: &str| {
                let entry = other.external_data.iter().find(|entry| entry.key == key);
                entry.unwrap().value.clone()
            };
            let [offset, length] =
                ["offset", "length"].map(|key| said(key).parse::<usize>().unwrap());
            assert_eq!(said("location"), "beside.onnx.data");
            assert_eq!((&own.name, &own.dims), (&other.name, &other.dims));
            assert_eq!(
                own.raw_data.as_deref(),
                Some(&data[offset..offset + length])
            );
        }
    }
}
