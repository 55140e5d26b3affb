//! `y[n, i, j, o] = b[o] + sum over k, l, c of x[n, i s + k - p, j t + l - q, c] W[o, k, l, c]`, with zeros outside of `x`.
//!
//! Channels come last. `W` is `[out, kernel height, kernel width, in]`, strides are `[s, t]`, paddings `[p, q]`. Backward:
//! `dW[o, k, l, c] += sum over n, i, j of dy[n, i, j, o] x[n, i s + k - p, j t + l - q, c]`, `db += sum of dy`, and `dx` sums
//! `dy W` over every window that contains the pixel. The weight's gradient comes first, so that `x` is freed before `dx` is written.
//!
//! The transposed convolution has a kernel as large as its stride, so that windows do not overlap:
//! `y[n, i s + k, j t + l, o] = b[o] + sum over c of x[n, i, j, c] W[c, k, l, o]`.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `c` channels in, `o` channels out, `k` and `l` rows and columns of the
//! kernel.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, Shape, ValueId};

/// Forward. Inputs `x_nhwc, w_oklc, [bias_o]`; output `y_nhwo`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2d {
    /// Pixels from one window to the next: `[down, across]`.
    pub stride: [usize; 2],
    /// Pixels of zeros on each side of `x`: `[above and below, left and right]`.
    pub padding: [usize; 2],
}

/// Inputs `dy_nhwo, w_oklc`; output `dx_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2dInputGrad {
    pub stride: [usize; 2],
    pub padding: [usize; 2],
}

/// Inputs `dy_nhwo, x_nhwc`; outputs `[dw_oklc], [dbias_o]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2dWeightGrad {
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    /// The first output is the weight gradient.
    pub weight: bool,
    /// The last output is the bias gradient.
    pub bias: bool,
}

/// Forward, kernel = stride. Inputs `x_nhwc, w_cklo, [bias_o]`; output `y_nhwo`.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposedConv2d {
    /// Pixels of `y` for each pixel of `x`: `[down, across]`.
    pub stride: [usize; 2],
}

/// Inputs `dy_nhwo, w_cklo`; output `dx_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposedConv2dInputGrad {
    pub stride: [usize; 2],
}

/// Inputs `dy_nhwo, x_nhwc`; outputs `[dw_cklo], [dbias_o]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposedConv2dWeightGrad {
    pub stride: [usize; 2],
    /// The first output is the weight gradient.
    pub weight: bool,
    /// The last output is the bias gradient.
    pub bias: bool,
}

impl Graph {
    /// Appends a convolution; `x` may be a slice of the channels of a wider storage.
    pub fn conv2d(
        &mut self,
        name: &str,
        x_nhwc: ValueId,
        w_oklc: ValueId,
        bias_o: Option<ValueId>,
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> ValueId {
        let (x, w) = (self.shape(x_nhwc), self.shape(w_oklc));
        let [n, height, width, channels] = pictures("conv2d", name, x);
        let [out, down, across, inner] = pictures("conv2d weight", name, w);
        assert_eq!(channels, inner, "conv2d {name}: x {x:?} against {w:?}");
        self.check_bias(name, bias_o, out);
        let size = [
            windows(name, height, down, stride[0], padding[0]),
            windows(name, width, across, stride[1], padding[1]),
        ];
        let y_nhwo = self.activation(name, &[n, size[0], size[1], out]);
        let inputs = self.conv_inputs(x_nhwc, w_oklc, bias_o);
        self.push_new(Conv2d { stride, padding }, inputs, &[y_nhwo]);
        y_nhwo
    }

    /// Appends a transposed convolution without overlap that writes to a given value: the channels behind a skip, for example.
    pub fn transposed_conv2d_into(
        &mut self,
        name: &str,
        x_nhwc: ValueId,
        w_cklo: ValueId,
        bias_o: Option<ValueId>,
        stride: [usize; 2],
        y_nhwo: ValueId,
    ) {
        let (x, w, y) = (self.shape(x_nhwc), self.shape(w_cklo), self.shape(y_nhwo));
        let [n, height, width, channels] = pictures("transposed conv2d", name, x);
        let [inner, down, across, out] = pictures("transposed conv2d weight", name, w);
        assert!(
            channels == inner && [down, across] == stride,
            "transposed conv2d {name}: x {x:?} against weight {w:?} with stride {stride:?}"
        );
        assert_eq!(
            y.dims(),
            [n, height * down, width * across, out],
            "transposed conv2d {name}: result of x {x:?} and weight {w:?}"
        );
        self.check_bias(name, bias_o, out);
        let inputs = self.conv_inputs(x_nhwc, w_cklo, bias_o);
        self.push_new(TransposedConv2d { stride }, inputs, &[y_nhwo]);
    }

    fn check_bias(&self, name: &str, bias_o: Option<ValueId>, out: usize) {
        if let Some(bias) = bias_o {
            let bias = self.shape(bias);
            assert_eq!(
                bias.num_elements(),
                out,
                "convolution {name}: bias {bias:?} for {out} channels"
            );
        }
    }

    fn conv_inputs(&mut self, x: ValueId, weight: ValueId, bias: Option<ValueId>) -> Vec<ValueId> {
        let dtype = self.dtype(x);
        let mut inputs = vec![x, self.weight_as(weight, dtype)];
        inputs.extend(bias.map(|bias| self.weight_as(bias, dtype)));
        inputs
    }
}

/// The four dimensions of a batch of pictures, or of a kernel.
pub(super) fn pictures(operation: &str, name: &str, shape: Shape) -> [usize; 4] {
    let Ok(dims) = <[usize; 4]>::try_from(shape.dims()) else {
        panic!("{operation} {name}: {shape:?}, expected four dimensions");
    };
    dims
}

/// Number of windows along one direction.
fn windows(name: &str, size: usize, kernel: usize, stride: usize, padding: usize) -> usize {
    let padded = size + 2 * padding;
    assert!(
        stride > 0 && kernel > 0 && kernel <= padded,
        "conv2d {name}: a kernel of {kernel} with stride {stride} over {padded} pixels"
    );
    (padded - kernel) / stride + 1
}

/// Appends the weight and bias gradient first, then the input's: the order in which memory is freed.
fn convolution_backward(
    node: &Node,
    pass: &mut Backward<'_>,
    weight_grad: impl FnOnce(bool, bool) -> crate::Op,
    input_grad: impl Into<crate::Op>,
) {
    let Some(dy) = pass.reached(node, 0) else {
        return;
    };
    let (x, weight, bias) = (node.inputs[0], node.inputs[1], node.inputs.get(2).copied());
    let wants_weight = pass.wants(weight);
    let bias = bias.filter(|&bias| pass.wants(bias));
    let mut outputs: Vec<Output> = Vec::new();
    if wants_weight {
        outputs.push(pass.target(weight));
    }
    if let Some(bias) = bias {
        outputs.push(pass.target(bias));
    }
    if !outputs.is_empty() {
        let op = weight_grad(wants_weight, bias.is_some());
        pass.graph().push(op, vec![dy, x], outputs);
    }
    if pass.wants(x) {
        let dx = pass.target(x);
        pass.graph().push(input_grad, vec![dy, weight], vec![dx]);
    }
}

impl Operation for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let (stride, padding) = (self.stride, self.padding);
        let weight_grad = |weight, bias| {
            let op = Conv2dWeightGrad {
                stride,
                padding,
                weight,
                bias,
            };
            op.into()
        };
        convolution_backward(node, pass, weight_grad, Conv2dInputGrad { stride, padding });
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        let (y, w) = (node.output(0), node.input(1));
        let bias = u64::from(node.node.inputs.len() > 2);
        products(node, y.rows() * w.num_elements(), bias)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(Conv2dInputGrad, "conv2d input gradient", |_, node| {
    products(node, node.input(0).rows() * node.input(1).num_elements(), 0)
});

undifferentiated!(Conv2dWeightGrad, "conv2d weight gradient", |op, node| {
    let weight = if op.weight {
        node.input(0).rows() * node.output(0).num_elements()
    } else {
        0
    };
    weight_gradient(node, weight, op.bias)
});

impl Operation for TransposedConv2d {
    fn name(&self) -> &'static str {
        "transposed conv2d"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let stride = self.stride;
        let weight_grad = |weight, bias| {
            let op = TransposedConv2dWeightGrad {
                stride,
                weight,
                bias,
            };
            op.into()
        };
        convolution_backward(
            node,
            pass,
            weight_grad,
            TransposedConv2dInputGrad { stride },
        );
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        let (x, w) = (node.input(0), node.input(1));
        let bias = u64::from(node.node.inputs.len() > 2);
        products(node, x.rows() * w.num_elements(), bias)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    /// Recomputing is cheap: each input pixel is in one window only, so the products are few for the size of the result.
    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}

undifferentiated!(
    TransposedConv2dInputGrad,
    "transposed conv2d input gradient",
    |_, node| {
        products(
            node,
            node.output(0).rows() * node.input(1).num_elements(),
            0,
        )
    }
);

undifferentiated!(
    TransposedConv2dWeightGrad,
    "transposed conv2d weight gradient",
    |op, node| {
        let weight = if op.weight {
            node.input(1).rows() * node.output(0).num_elements()
        } else {
            0
        };
        weight_gradient(node, weight, op.bias)
    }
);

fn products(node: NodeView<'_>, multiply_adds: usize, flops_per_element: u64) -> Cost {
    Cost {
        product_flops: 2 * multiply_adds as u64,
        element_flops: node.output(0).num_elements() as u64 * flops_per_element,
        bytes: node.operand_bytes(),
    }
}

fn weight_gradient(node: NodeView<'_>, multiply_adds: usize, bias: bool) -> Cost {
    Cost {
        product_flops: 2 * multiply_adds as u64,
        element_flops: if bias {
            node.input(0).num_elements() as u64
        } else {
            0
        },
        bytes: node.operand_bytes(),
    }
}
