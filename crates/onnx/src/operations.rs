//! Translation of graph operations to ONNX operators.
//!
//! Legend: `b` samples, `t` queries or tokens, `s` keys, `d` width, `h` heads, `n` rows, `c` channels, `g` groups.

mod pictures;

use holdall_graph::ops::activation::{Activation, LEAKY_SLOPE};
use holdall_graph::ops::attention::Attention;
use holdall_graph::ops::linear::Linear;
use holdall_graph::ops::mean_tokens::MeanTokens;
use holdall_graph::{Node, Op, Write};

use crate::proto::{AttributeProto, ElementType};
use crate::views::ViewLayout;
use crate::writer::Writer;
use crate::{OnnxError, Precision};

const LAST: i64 = -1;

impl Writer<'_> {
    /// Writes a node of the graph.
    pub(crate) fn operation(&mut self, node: &Node) -> Result<(), OnnxError> {
        let refused = OnnxError::Operation {
            operation: node.op.rules().name(),
        };
        if node.outputs.iter().any(|one| one.mode == Write::Accumulate) {
            return Err(refused);
        }
        match &node.op {
            Op::Linear(op) => self.linear(op, node),
            Op::Activate(op) => {
                let z = self.input_of(node, 0)?;
                let y = self.activation(op.activation, &z);
                self.result(node, y)
            }
            Op::LayerNorm(op) => self.layer_norm(op.eps, node),
            Op::Attention(op) if op.dropout.is_none() => self.attention(op, node),
            Op::Embedding(_) => self.embedding(node),
            Op::AddPositions(op) => self.add_positions(op.repeat, node),
            Op::Repeat(_) => self.repeat(node),
            Op::Patchify(op) => self.patchify(op, node),
            Op::ClassToken(_) => self.class_token(node),
            Op::GatherRows(_) => self.gather_rows(node),
            Op::MeanTokens(op) => self.mean_tokens(op, node),
            Op::ScaleColumns(_) => self.element_wise("Mul", node),
            Op::Add(_) => self.element_wise("Add", node),
            Op::Normalize(_) => self.normalize(node),
            Op::Cast(_) | Op::AddInto(_) => self.copy(node),
            Op::Conv2d(op) => self.convolution(op, node),
            Op::TransposedConv2d(op) => self.transposed_convolution(op, node),
            Op::GroupStatistics(op) => {
                let means = self.graph.value(node.outputs[0].value).storage;
                self.epsilons.insert(means, op.eps);
                Ok(())
            }
            Op::GroupNorm(op) => self.group_norm(op, node),
            Op::Pool2d(op) => self.pool(op, node),
            Op::Upsample2d(op) => self.upsample(op, node),
            Op::NormalizePixels(op) => self.normalized_pixels(op.mean.len(), node),
            // Operations of training, losses, and decoding with caches.
            Op::Attention(_)
            | Op::LinearInputGrad(_)
            | Op::LinearWeightGrad(_)
            | Op::ActivateGrad(_)
            | Op::LayerNormGrad(_)
            | Op::AttentionGrad(_)
            | Op::CachedAttention(_)
            | Op::TopTokens(_)
            | Op::EmbeddingGrad(_)
            | Op::AddPositionsGrad(_)
            | Op::RepeatGrad(_)
            | Op::MixPictures(_)
            | Op::ClassTokenGrad(_)
            | Op::ScatterRows(_)
            | Op::MeanTokensGrad(_)
            | Op::ScaleColumnsGrad(_)
            | Op::Dropout(_)
            | Op::NormalizeGrad(_)
            | Op::CrossEntropy(_)
            | Op::CrossEntropyGrad(_)
            | Op::VocabularyLoss(_)
            | Op::VocabularyLossGrad(_)
            | Op::PointwiseLoss(_)
            | Op::PointwiseLossGrad(_)
            | Op::Contrastive(_)
            | Op::ContrastiveGrad(_)
            | Op::Conv2dInputGrad(_)
            | Op::Conv2dWeightGrad(_)
            | Op::TransposedConv2dInputGrad(_)
            | Op::TransposedConv2dWeightGrad(_)
            | Op::GroupNormGrad(_)
            | Op::Pool2dGrad(_)
            | Op::Upsample2dGrad(_)
            | Op::PixelLoss(_)
            | Op::PixelLossGrad(_)
            | Op::OverlapSums(_)
            | Op::OverlapSumsGrad(_)
            | Op::OverlapLoss(_)
            | Op::OverlapLossGrad(_)
            | Op::Fill(_)
            | Op::AddRounded(_)
            | Op::Collective(_)
            | Op::GradientNorm(_)
            | Op::AdamW(_)
            | Op::WeightAverages(_) => Err(refused),
        }
    }

    fn input_of(&mut self, node: &Node, index: usize) -> Result<String, OnnxError> {
        self.read(node.inputs[index], ViewLayout::AsInGraph)
    }

    fn pictures_of(&mut self, node: &Node, index: usize) -> Result<String, OnnxError> {
        self.read(node.inputs[index], ViewLayout::ChannelsFirst)
    }

    fn input_dims(&self, node: &Node, index: usize) -> Vec<usize> {
        self.graph.shape(node.inputs[index]).dims().to_vec()
    }

    /// Writes the first output, which has the shape of the first input.
    fn result(&mut self, node: &Node, tensor: String) -> Result<(), OnnxError> {
        let dims = self.input_dims(node, 0);
        self.write(node.outputs[0].value, tensor, &dims);
        Ok(())
    }

    fn element_wise(&mut self, operator: &str, node: &Node) -> Result<(), OnnxError> {
        let (a, b) = (self.input_of(node, 0)?, self.input_of(node, 1)?);
        let y = self.node(operator, &[&a, &b], Vec::new());
        self.result(node, y)
    }

    /// A copy needs no operator: the tensor becomes a piece of a second storage.
    fn copy(&mut self, node: &Node) -> Result<(), OnnxError> {
        let to = node.outputs[0].value;
        let dims = self.input_dims(node, 0);
        if dims.len() == 4 && self.graph.shape(to).dims() == dims {
            let x = self.pictures_of(node, 0)?;
            self.write_pictures(to, x);
            return Ok(());
        }
        let x = self.input_of(node, 0)?;
        self.write(to, x, &dims);
        Ok(())
    }

    fn linear(&mut self, op: &Linear, node: &Node) -> Result<(), OnnxError> {
        if op.low_rank.is_some() {
            return Err(OnnxError::Operation {
                operation: "linear layer with adapters",
            });
        }
        let (x, weight) = (self.input_of(node, 0)?, self.input_of(node, 1)?);
        let weight = self.transpose(&weight, &[1, 0]);
        let mut y = self.node("MatMul", &[&x, &weight], Vec::new());
        if op.bias {
            let bias = self.input_of(node, 2)?;
            y = self.node("Add", &[&y, &bias], Vec::new());
        }
        if let Some(activation) = op.activation {
            y = self.activation(activation, &y);
        }
        let mut dims = self.input_dims(node, 0);
        let outputs = self.graph.shape(node.inputs[1]).rows();
        *dims.last_mut().expect("x has a width") = outputs;
        if op.residual {
            let index = node.inputs.len() - 1;
            let mut residual = self.input_of(node, index)?;
            if self.input_dims(node, index) != dims {
                residual = self.reshape(&residual, &dims);
            }
            y = self.node("Add", &[&y, &residual], Vec::new());
        }
        self.write(node.outputs[0].value, y, &dims);
        Ok(())
    }

    fn activation(&mut self, activation: Activation, z: &str) -> String {
        match activation {
            Activation::Relu => self.node("Relu", &[z], Vec::new()),
            Activation::LeakyRelu => {
                let slope = AttributeProto::float("alpha", LEAKY_SLOPE);
                self.node("LeakyRelu", &[z], vec![slope])
            }
            Activation::QuickGelu => {
                let factor = self.number(1.702);
                let scaled = self.node("Mul", &[z, &factor], Vec::new());
                let gate = self.node("Sigmoid", &[&scaled], Vec::new());
                self.node("Mul", &[z, &gate], Vec::new())
            }
            // x / sqrt(2), Erf, + 1, * x, * 0.5: the pattern that runtimes fuse.
            Activation::Gelu => {
                let [root, one, half] = [2f64.sqrt(), 1.0, 0.5].map(|value| self.number(value));
                let scaled = self.node("Div", &[z, &root], Vec::new());
                let erf = self.node("Erf", &[&scaled], Vec::new());
                let erf = self.node("Add", &[&erf, &one], Vec::new());
                let gated = self.node("Mul", &[z, &erf], Vec::new());
                self.node("Mul", &[&gated, &half], Vec::new())
            }
        }
    }

    fn layer_norm(&mut self, eps: f64, node: &Node) -> Result<(), OnnxError> {
        let x = self.input_of(node, 0)?;
        let (gamma, beta) = (self.input_of(node, 1)?, self.input_of(node, 2)?);
        let attributes = vec![
            AttributeProto::int("axis", LAST),
            AttributeProto::float("epsilon", eps),
        ];
        let y = self.node("LayerNormalization", &[&x, &gamma, &beta], attributes);
        self.result(node, y)
    }

    fn attention(&mut self, op: &Attention, node: &Node) -> Result<(), OnnxError> {
        let (queries, keys) = (self.input_dims(node, 0), self.input_dims(node, 1));
        let (t, s, d) = (queries[1], keys[1], queries[2]);
        let heads = |writer: &mut Self, index: usize, tokens: usize, axes: [usize; 4]| {
            let x = writer.input_of(node, index)?;
            let sizes = writer.integers(&[0, tokens as i64, op.num_heads as i64, -1]);
            let x = writer.node("Reshape", &[&x, &sizes], Vec::new());
            Ok::<String, OnnxError>(writer.transpose(&x, &axes))
        };
        let q_bhtd = heads(self, 0, t, [0, 2, 1, 3])?;
        let k_bhds = heads(self, 1, s, [0, 2, 3, 1])?;
        let v_bhsd = heads(self, 2, s, [0, 2, 1, 3])?;
        // Scaled before the product, so that half precision does not overflow.
        let scale = self.number(op.scale);
        let q_bhtd = self.node("Mul", &[&q_bhtd, &scale], Vec::new());
        let mut scores = self.node("MatMul", &[&q_bhtd, &k_bhds], Vec::new());
        if op.causal {
            let lowest = self.lowest();
            let mask = (0..t).flat_map(|query| (0..s).map(move |key| key <= query));
            let mask = mask.map(|sees| if sees { 0.0 } else { lowest });
            let mask: Vec<f32> = mask.collect();
            let mask = self.constant_numbers(&mask, &[t, s]);
            scores = self.node("Add", &[&scores, &mask], Vec::new());
        }
        if op.key_lengths {
            let lengths = self.input_of(node, 3)?;
            let exists = self.is_within(&lengths, s, &[-1, 1, 1, 1]);
            let lowest = self.number(f64::from(self.lowest()));
            scores = self.node("Where", &[&exists, &scores, &lowest], Vec::new());
        }
        let shares = self.node(
            "Softmax",
            &[&scores],
            vec![AttributeProto::int("axis", LAST)],
        );
        let mixed = self.node("MatMul", &[&shares, &v_bhsd], Vec::new());
        let mixed = self.transpose(&mixed, &[0, 2, 1, 3]);
        let mixed = self.reshape(&mixed, &[queries[0], t, d]);
        self.result(node, mixed)
    }

    /// A finite number far below every score.
    fn lowest(&self) -> f32 {
        match self.precision {
            Precision::Full => f32::MIN,
            Precision::Half => half::f16::MIN.to_f32(),
        }
    }

    /// Compares `0..count` with each length; `shape` makes the lengths broadcast.
    fn is_within(&mut self, lengths: &str, count: usize, shape: &[i64]) -> String {
        let places: Vec<i64> = (0..count as i64).collect();
        let (places, shape) = (self.integers(&places), self.integers(shape));
        let lengths = self.node("Reshape", &[lengths, &shape], Vec::new());
        self.node("Less", &[&places, &lengths], Vec::new())
    }

    fn embedding(&mut self, node: &Node) -> Result<(), OnnxError> {
        let (ids, table) = (self.input_of(node, 0)?, self.input_of(node, 1)?);
        let positions = self.input_of(node, 2)?;
        let words = self.node(
            "Gather",
            &[&table, &ids],
            vec![AttributeProto::int("axis", 0)],
        );
        let placed = self.node("Add", &[&words, &positions], Vec::new());
        let mut dims = self.input_dims(node, 0);
        dims.push(self.graph.shape(node.inputs[1]).width());
        self.write(node.outputs[0].value, placed, &dims);
        Ok(())
    }

    fn add_positions(&mut self, repeat: usize, node: &Node) -> Result<(), OnnxError> {
        let (x, mut table) = (self.input_of(node, 0)?, self.input_of(node, 1)?);
        if repeat > 1 {
            let shape = self.graph.shape(node.inputs[1]);
            let (rows, width) = (shape.rows(), shape.width());
            let apart = self.reshape(&table, &[rows, 1, width]);
            let sizes = self.integers(&[rows as i64, repeat as i64, width as i64]);
            let repeated = self.node("Expand", &[&apart, &sizes], Vec::new());
            table = self.reshape(&repeated, &[rows * repeat, width]);
        }
        let y = self.node("Add", &[&x, &table], Vec::new());
        self.result(node, y)
    }

    /// Repeats the rows of a table for every sample of `like`.
    fn for_every_sample(&mut self, table: &str, [rows, width]: [usize; 2], like: &str) -> String {
        let attributes = vec![
            AttributeProto::int("start", 0),
            AttributeProto::int("end", 1),
        ];
        let batch = self.node("Shape", &[like], attributes);
        let sizes = self.integers(&[rows as i64, width as i64]);
        let sizes = self.node(
            "Concat",
            &[&batch, &sizes],
            vec![AttributeProto::int("axis", 0)],
        );
        let table = self.reshape(table, &[1, rows, width]);
        self.node("Expand", &[&table, &sizes], Vec::new())
    }

    fn repeat(&mut self, node: &Node) -> Result<(), OnnxError> {
        let table = self.input_of(node, 0)?;
        let shape = self.graph.shape(node.outputs[0].value);
        let &[_, rows, width] = shape.dims() else {
            unreachable!("rows of a table for every sample");
        };
        let input = self.first_input();
        let y = self.for_every_sample(&table, [rows, width], &input);
        self.write(node.outputs[0].value, y, shape.dims());
        Ok(())
    }

    fn class_token(&mut self, node: &Node) -> Result<(), OnnxError> {
        let patches = self.input_of(node, 0)?;
        let (class, positions) = (self.input_of(node, 1)?, self.input_of(node, 2)?);
        let shape = self.graph.shape(node.outputs[0].value);
        let width = shape.width();
        let rows = self.graph.shape(node.inputs[1]).num_elements() / width;
        let class = self.for_every_sample(&class, [rows, width], &patches);
        let axis = AttributeProto::int("axis", 1);
        let tokens = self.node("Concat", &[&class, &patches], vec![axis]);
        let placed = self.node("Add", &[&tokens, &positions], Vec::new());
        self.write(node.outputs[0].value, placed, shape.dims());
        Ok(())
    }

    fn gather_rows(&mut self, node: &Node) -> Result<(), OnnxError> {
        let (x, index) = (self.input_of(node, 0)?, self.input_of(node, 1)?);
        let sizes = self.integers(&[-1, 1, 1]);
        let index = self.node("Reshape", &[&index, &sizes], Vec::new());
        let within = AttributeProto::int("batch_dims", 1);
        let picked = self.node("GatherND", &[&x, &index], vec![within]);
        let shape = self.graph.shape(node.outputs[0].value);
        self.write(node.outputs[0].value, picked, shape.dims());
        Ok(())
    }

    fn mean_tokens(&mut self, op: &MeanTokens, node: &Node) -> Result<(), OnnxError> {
        let mut x = self.input_of(node, 0)?;
        let tokens = self.input_dims(node, 0)[1];
        if op.first > 0 {
            let [start, end, axis] =
                [op.first, tokens, 1].map(|value| self.integers(&[value as i64]));
            x = self.node("Slice", &[&x, &start, &end, &axis], Vec::new());
        }
        let shape = self.graph.shape(node.outputs[0].value);
        let mean = match node.inputs.len() {
            1 => self.in_full(&x, |writer, x| {
                writer.node("ReduceMean", &[x], vec![AttributeProto::ints("axes", &[1])])
            }),
            _ => {
                let lengths = self.input_of(node, 1)?;
                let exists = self.is_within(&lengths, tokens - op.first, &[-1, 1]);
                let exists = self.cast(&exists, ElementType::Float);
                let counted = self.full_numbers(&[1.0], &[]);
                self.in_full(&x, |writer, x| {
                    let axes = writer.integers(&[2]);
                    let exists = writer.node("Unsqueeze", &[&exists, &axes], Vec::new());
                    let x = writer.node("Mul", &[x, &exists], Vec::new());
                    let axes = writer.integers(&[1]);
                    let [sum, count] =
                        [&x, &exists].map(|of| writer.node("ReduceSum", &[of, &axes], Vec::new()));
                    let count = writer.node("Max", &[&count, &counted], Vec::new());
                    writer.node("Div", &[&sum, &count], Vec::new())
                })
            }
        };
        self.write(node.outputs[0].value, mean, shape.dims());
        Ok(())
    }

    fn normalize(&mut self, node: &Node) -> Result<(), OnnxError> {
        let x = self.input_of(node, 0)?;
        let y = self.in_full(&x, |writer, x| {
            let axes = AttributeProto {
                ints: vec![LAST],
                ..AttributeProto::ints("axes", &[])
            };
            let length = writer.node("ReduceL2", &[x], vec![axes]);
            writer.node("Div", &[x, &length], Vec::new())
        });
        self.result(node, y)
    }
}
