//! Operations on pictures, which are channels-first throughout.

use holdall_graph::ops::conv2d::{Conv2d, TransposedConv2d};
use holdall_graph::ops::group_norm::GroupNorm;
use holdall_graph::ops::patchify::Patchify;
use holdall_graph::ops::pool2d::{Pool, Pool2d};
use holdall_graph::ops::upsample2d::{Upsample2d, Upsampling};
use holdall_graph::{Node, Shape, Value};

use crate::proto::AttributeProto;
use crate::views::ViewLayout;
use crate::writer::Writer;
use crate::{OnnxError, Precision};

impl Writer<'_> {
    pub(super) fn patchify(&mut self, op: &Patchify, node: &Node) -> Result<(), OnnxError> {
        let pixels = self.pictures_of(node, 0)?;
        let &[samples, height, width, channels] = &self.input_dims(node, 0)[..] else {
            unreachable!("pictures have four dimensions");
        };
        let side = op.patch_size;
        let (down, across) = (height / side, width / side);
        let apart = [samples, channels, down, side, across, side];
        let apart = self.reshape(&pixels, &apart);
        let patches = self.transpose(&apart, &[0, 2, 4, 1, 3, 5]);
        let dims = [samples, down * across, channels * side * side];
        let patches = self.reshape(&patches, &dims);
        self.write(node.outputs[0].value, patches, &dims);
        Ok(())
    }

    pub(super) fn convolution(&mut self, op: &Conv2d, node: &Node) -> Result<(), OnnxError> {
        let sides = self.input_dims(node, 1);
        let [down, across] = op.padding;
        let attributes = vec![
            AttributeProto::ints("kernel_shape", &sides[1..3]),
            AttributeProto::ints("strides", &op.stride),
            AttributeProto::ints("pads", &[down, across, down, across]),
        ];
        self.convolve("Conv", attributes, node)
    }

    pub(super) fn transposed_convolution(
        &mut self,
        op: &TransposedConv2d,
        node: &Node,
    ) -> Result<(), OnnxError> {
        let attributes = vec![
            AttributeProto::ints("kernel_shape", &op.stride),
            AttributeProto::ints("strides", &op.stride),
        ];
        self.convolve("ConvTranspose", attributes, node)
    }

    fn convolve(
        &mut self,
        operator: &str,
        attributes: Vec<AttributeProto>,
        node: &Node,
    ) -> Result<(), OnnxError> {
        let mut inputs = vec![self.pictures_of(node, 0)?, self.pictures_of(node, 1)?];
        if node.inputs.len() > 2 {
            inputs.push(self.input_of(node, 2)?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let y = self.node(operator, &inputs, attributes);
        self.write_pictures(node.outputs[0].value, y);
        Ok(())
    }

    /// Group norm as an instance norm over the groups: ONNX's own group norm has one factor per group in the widely used versions.
    pub(super) fn group_norm(&mut self, op: &GroupNorm, node: &Node) -> Result<(), OnnxError> {
        let x = self.pictures_of(node, 0)?;
        let channels = self.graph.shape(node.inputs[0]).width();
        let means = self.graph.value(node.inputs[1]).storage;
        let eps = AttributeProto::float("epsilon", self.epsilons[&means]);
        let (gamma, beta) = (self.input_of(node, 3)?, self.input_of(node, 4)?);
        let mut y = if op.groups == channels && self.precision == Precision::Full {
            self.node("InstanceNormalization", &[&x, &gamma, &beta], vec![eps])
        } else {
            let normalized = self.in_full(&x, |writer, x| {
                let sizes = writer.node("Shape", &[x], Vec::new());
                let grouped = writer.integers(&[0, op.groups as i64, -1]);
                let grouped = writer.node("Reshape", &[x, &grouped], Vec::new());
                let [ones, zeros] = [1.0, 0.0]
                    .map(|value| writer.full_numbers(&vec![value; op.groups], &[op.groups]));
                let inputs = [grouped.as_str(), &ones, &zeros];
                let y = writer.node("InstanceNormalization", &inputs, vec![eps]);
                writer.node("Reshape", &[&y, &sizes], Vec::new())
            });
            let [gamma, beta] =
                [gamma, beta].map(|parameter| self.reshape(&parameter, &[channels, 1, 1]));
            let scaled = self.node("Mul", &[&normalized, &gamma], Vec::new());
            self.node("Add", &[&scaled, &beta], Vec::new())
        };
        if node.inputs.len() > 5 {
            let residual = self.pictures_of(node, 5)?;
            y = self.node("Add", &[&y, &residual], Vec::new());
        }
        if let Some(activation) = op.activation {
            y = self.activation(activation, &y);
        }
        self.write_pictures(node.outputs[0].value, y);
        Ok(())
    }

    pub(super) fn pool(&mut self, op: &Pool2d, node: &Node) -> Result<(), OnnxError> {
        let x = self.pictures_of(node, 0)?;
        let operator = match op.kind {
            Pool::Max => "MaxPool",
            Pool::Average => "AveragePool",
        };
        let attributes =
            ["kernel_shape", "strides"].map(|name| AttributeProto::ints(name, &[op.size, op.size]));
        let y = self.node(operator, &[&x], attributes.to_vec());
        self.write_pictures(node.outputs[0].value, y);
        Ok(())
    }

    pub(super) fn upsample(&mut self, op: &Upsample2d, node: &Node) -> Result<(), OnnxError> {
        let x = self.pictures_of(node, 0)?;
        let factor = op.factor as f32;
        let scales = self.full_numbers(&[1.0, 1.0, factor, factor], &[4]);
        let attributes = match op.mode {
            Upsampling::Nearest => vec![
                AttributeProto::text("mode", "nearest"),
                AttributeProto::text("coordinate_transformation_mode", "asymmetric"),
                AttributeProto::text("nearest_mode", "floor"),
            ],
            Upsampling::Bilinear => vec![
                AttributeProto::text("mode", "linear"),
                AttributeProto::text("coordinate_transformation_mode", "half_pixel"),
            ],
        };
        let y = self.node("Resize", &[&x, "", &scales], attributes);
        self.write_pictures(node.outputs[0].value, y);
        Ok(())
    }

    /// Pixels that are already normalised; the padding channels of zeros behind them are not read.
    pub(super) fn normalized_pixels(
        &mut self,
        channels: usize,
        node: &Node,
    ) -> Result<(), OnnxError> {
        let x = self.pictures_of(node, 0)?;
        let padded = *self.graph.value(node.outputs[0].value);
        let mut dims = padded.shape.dims().to_vec();
        *dims.last_mut().expect("pictures have channels") = channels;
        let value = Value {
            shape: Shape::new(&dims),
            ..padded
        };
        self.put(value, x, ViewLayout::ChannelsFirst);
        Ok(())
    }
}
