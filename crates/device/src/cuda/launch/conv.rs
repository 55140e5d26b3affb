//! Convolutions: by cuDNN; as matrix products for single-pixel kernels and for windows that do not overlap (transposed); by our own
//! kernels for heads of few outputs.
//!
//! cuDNN would copy a slice of channels into a workspace as large as the slice; such operands are packed here first, in scratch that the
//! plan counts. Pictures of few channels are padded with zeros, and so is the weight.

pub(super) mod transposed;

use holdall_graph::ops::conv2d::{Conv2d, Conv2dInputGrad, Conv2dWeightGrad};
use holdall_graph::{DType, NodeView, Op, Value, Write};
use holdall_plan::Place;

use super::super::convolution::{Computed, Convolution, Picture};
use super::super::product::Product;
use super::super::target::{CONVOLUTION_BYTES, PRODUCT_BYTES};
use super::{BLOCK, LaunchPass, Matrix, Operands, accumulates};
use crate::DeviceError;

/// Multiple of channels for tensor cores and packed accesses.
const CHANNELS: usize = 8;

/// Bytes of a transposed convolution's product per band: few enough to stay in the card's cache until they are moved to their pixels,
/// and enough for an efficient product.
const BAND_BYTES: usize = 32 << 20;
/// Each band takes two launches.
const MOST_BANDS: usize = 16;

/// Maximum outputs and channels of the head's kernels.
const HEAD_OUTPUTS: usize = 4;
const HEAD_CHANNELS: usize = 512;
const HEAD_PARTS: usize = 1024;

/// Number of partial sums of a bias gradient over the pixels of pictures.
const BIAS_PARTS: usize = 512;

/// Shape, strides and format of an operand: `[n, h, w, c]` or `[out, kh, kw, in]`.
#[derive(Clone, Copy, Debug)]
struct OperandLayout {
    dims: [usize; 4],
    pixel_stride: usize,
    element_bytes: usize,
}

impl OperandLayout {
    fn of_value(value: &Value, dtype: DType) -> OperandLayout {
        OperandLayout::new(value.shape.dims(), value.row_stride(), dtype)
    }

    fn of_place(place: &Place) -> OperandLayout {
        let stride = place.shape.row_stride(&place.strides);
        OperandLayout::new(place.shape.dims(), stride, place.dtype)
    }

    fn new(dims: &[usize], pixel_stride: Option<usize>, dtype: DType) -> OperandLayout {
        OperandLayout {
            dims: dims.try_into().expect("convolutions take four dimensions"),
            pixel_stride: pixel_stride.expect("pixels are evenly spaced"),
            element_bytes: dtype.bytes(),
        }
    }

    fn channels(&self) -> usize {
        self.dims[3]
    }

    fn pixels(&self) -> usize {
        self.dims[..3].iter().product()
    }

    fn num_elements(&self) -> usize {
        self.dims.iter().product()
    }

    fn is_packed(&self) -> bool {
        self.pixel_stride == self.channels()
    }

    /// Whether this is a picture of few channels, padded with zeros to the next multiple, as `NormalizePixels` writes it.
    fn is_padded(&self) -> bool {
        !self.channels().is_multiple_of(4)
            && self.pixel_stride == self.channels().next_multiple_of(CHANNELS)
    }

    /// Number of channels for cuDNN, padding included.
    fn seen_channels(&self) -> usize {
        if self.is_padded() {
            self.pixel_stride
        } else {
            self.channels()
        }
    }

    fn bytes(&self) -> u64 {
        aligned(self.num_elements() * self.element_bytes)
    }

    /// Scratch for a packed copy, if one is needed.
    fn packing_bytes(&self) -> u64 {
        if self.is_packed() || self.is_padded() {
            0
        } else {
            self.bytes()
        }
    }
}

fn aligned(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(256)
}

/// Implementation of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Few outputs, with a single-pixel kernel.
    Head,
    /// A single-pixel kernel.
    Product,
    Cudnn,
}

fn method(
    weight: [usize; 4],
    stride: [usize; 2],
    padding: [usize; 2],
    x: &OperandLayout,
) -> Method {
    let [outputs, down, across, channels] = weight;
    if [down, across] != [1, 1] || stride != [1, 1] || padding != [0, 0] {
        return Method::Cudnn;
    }
    let packs = channels.is_multiple_of(CHANNELS) && x.pixel_stride.is_multiple_of(CHANNELS);
    if outputs <= HEAD_OUTPUTS && channels <= HEAD_CHANNELS && packs {
        Method::Head
    } else {
        Method::Product
    }
}

/// Scratch of an operation's own kernels, and workspace of the library after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ConvolutionScratch {
    own: u64,
    library: u64,
}

fn band_pixels(stride: [usize; 2], channels: usize, element_bytes: usize, pixels: usize) -> usize {
    let each = stride[0] * stride[1] * channels * element_bytes;
    let fits = (BAND_BYTES / each).max(pixels.div_ceil(MOST_BANDS));
    fits.clamp(1, pixels.max(1))
}

fn band_bytes(stride: [usize; 2], y: &OperandLayout, x_pixels: usize) -> u64 {
    let pixels = band_pixels(stride, y.channels(), y.element_bytes, x_pixels);
    aligned(pixels * stride[0] * stride[1] * y.channels() * y.element_bytes)
}

fn bias_bytes(bias: bool, channels: usize) -> u64 {
    if bias {
        aligned(BIAS_PARTS * channels * 4)
    } else {
        0
    }
}

/// Scratch of an operation for its inputs and its first output.
fn scratch(op: &Op, inputs: &[OperandLayout], result: Option<OperandLayout>) -> ConvolutionScratch {
    let of = |own: u64, library: u64| ConvolutionScratch { own, library };
    match op {
        Op::Conv2d(op) => {
            let (x, w) = (inputs[0], inputs[1]);
            match method(w.dims, op.stride, op.padding, &x) {
                Method::Head => of(0, 0),
                Method::Product => of(0, PRODUCT_BYTES),
                Method::Cudnn => of(
                    x.packing_bytes() + padding_bytes(&x, w.dims),
                    CONVOLUTION_BYTES,
                ),
            }
        }
        Op::Conv2dInputGrad(op) => {
            let (dy, w) = (inputs[0], inputs[1]);
            let dx = result.expect("an input gradient has a result");
            match method(w.dims, op.stride, op.padding, &dx) {
                Method::Head => of(0, 0),
                Method::Product => of(0, PRODUCT_BYTES),
                Method::Cudnn => {
                    let landing = if dx.is_packed() { 0 } else { dx.bytes() };
                    of(dy.packing_bytes() + landing, CONVOLUTION_BYTES)
                }
            }
        }
        Op::Conv2dWeightGrad(op) => {
            let (dy, x) = (inputs[0], inputs[1]);
            let bias = bias_bytes(op.bias, dy.channels());
            let Some(w) = result.filter(|_| op.weight) else {
                return of(bias, 0);
            };
            match method(w.dims, op.stride, op.padding, &x) {
                Method::Head => {
                    let width = dy.channels() * (x.channels() + 1);
                    of(aligned(HEAD_PARTS * width * 4), 0)
                }
                Method::Product => of(bias, PRODUCT_BYTES),
                Method::Cudnn => {
                    let [outputs, down, across, _] = w.dims;
                    let landing = outputs * down * across * x.seen_channels() * x.element_bytes;
                    let own = dy.packing_bytes() + x.packing_bytes() + aligned(landing);
                    of(own.max(bias), CONVOLUTION_BYTES)
                }
            }
        }
        Op::TransposedConv2d(op) => {
            let (x, y) = (inputs[0], result.expect("a convolution has a result"));
            of(band_bytes(op.stride, &y, x.pixels()), PRODUCT_BYTES)
        }
        Op::TransposedConv2dInputGrad(op) => {
            let dy = inputs[0];
            let pixels = dy.pixels() / (op.stride[0] * op.stride[1]);
            of(band_bytes(op.stride, &dy, pixels), PRODUCT_BYTES)
        }
        Op::TransposedConv2dWeightGrad(op) => {
            let (dy, x) = (inputs[0], inputs[1]);
            let bias = bias_bytes(op.bias, dy.channels());
            if op.weight {
                of(
                    band_bytes(op.stride, &dy, x.pixels()).max(bias),
                    PRODUCT_BYTES,
                )
            } else {
                of(bias, 0)
            }
        }
        other => unreachable!("{} is no convolution", other.rules().name()),
    }
}

/// Scratch for a weight that is padded like its pictures.
fn padding_bytes(x: &OperandLayout, [outputs, down, across, _]: [usize; 4]) -> u64 {
    if x.is_padded() {
        aligned(outputs * down * across * x.pixel_stride * x.element_bytes)
    } else {
        0
    }
}

/// Bytes of scratch for the plan.
pub(in crate::cuda) fn workspace_bytes(view: NodeView<'_>) -> u64 {
    let (graph, node) = (view.graph, view.node);
    let layout = |id| OperandLayout::of_value(graph.value(id), graph.dtype(id));
    let inputs: Vec<OperandLayout> = node.inputs[..2].iter().map(|&id| layout(id)).collect();
    let result = node.outputs.first().map(|output| output.value);
    let result = result.filter(|&id| graph.shape(id).dims().len() == 4);
    let ConvolutionScratch { own, library } = scratch(&node.op, &inputs, result.map(layout));
    own + library
}

/// Number of kernels and library calls of an operation.
pub(in crate::cuda) fn kernels(op: &Op) -> f64 {
    match op {
        Op::Conv2dWeightGrad(op) if op.bias => 4.0,
        Op::Conv2dWeightGrad(_) => 2.0,
        Op::TransposedConv2d(_)
        | Op::TransposedConv2dInputGrad(_)
        | Op::TransposedConv2dWeightGrad(_) => 8.0,
        _ => 1.0,
    }
}

/// Number of launches of an operation, libraries' included.
pub(in crate::cuda) fn launches(view: NodeView<'_>) -> u64 {
    let layout = |id| OperandLayout::of_value(view.graph.value(id), view.graph.dtype(id));
    let bands = |stride: [usize; 2], y: OperandLayout| {
        let pixels = y.pixels() / (stride[0] * stride[1]);
        let each = band_pixels(stride, y.channels(), y.element_bytes, pixels);
        pixels.div_ceil(each) as u64
    };
    let bias = |bias: bool| if bias { 2 } else { 0 };
    match &view.node.op {
        Op::TransposedConv2d(op) => 2 * bands(op.stride, layout(view.node.outputs[0].value)),
        Op::TransposedConv2dInputGrad(op) => 2 * bands(op.stride, layout(view.node.inputs[0])),
        Op::TransposedConv2dWeightGrad(op) => {
            2 * bands(op.stride, layout(view.node.inputs[0])) + bias(op.bias)
        }
        // A cuDNN convolution captures as much as four launches: 18 KiB, over twenty plans on an H200.
        Op::Conv2dWeightGrad(op) => 4 + bias(op.bias),
        _ => 4,
    }
}

struct Conv<'o, 'i, 'a> {
    o: &'o Operands<'i, 'a>,
    inputs: Vec<OperandLayout>,
    scratch: ConvolutionScratch,
    /// Bytes of the own scratch that are in use.
    taken: u64,
}

impl<'o, 'i, 'a> Conv<'o, 'i, 'a> {
    fn new(o: &'o Operands<'i, 'a>) -> Conv<'o, 'i, 'a> {
        let inputs: Vec<OperandLayout> = o.instruction.inputs[..2]
            .iter()
            .map(OperandLayout::of_place)
            .collect();
        let result = o.instruction.outputs.first().and_then(Option::as_ref);
        let result = result.filter(|(place, _)| place.shape.dims().len() == 4);
        let scratch = scratch(
            &o.instruction.op,
            &inputs,
            result.map(|(place, _)| OperandLayout::of_place(place)),
        );
        Conv {
            o,
            inputs,
            scratch,
            taken: 0,
        }
    }

    fn take(&mut self, bytes: u64) -> u64 {
        let address = self.o.scratch() + self.taken;
        self.taken += bytes;
        assert!(self.taken <= self.scratch.own, "scratch of a convolution");
        address
    }

    fn library_workspace(&self) -> (u64, u64) {
        let granted = self.o.instruction.workspace.bytes;
        let bytes = granted.saturating_sub(self.scratch.own);
        (
            self.o.scratch() + self.scratch.own,
            bytes.min(self.scratch.library),
        )
    }

    fn cudnn(&self, convolution: &Convolution, addresses: [u64; 3]) -> Result<(), DeviceError> {
        let issuer = self.o.issuer;
        let (all, workspace) = (&issuer.cuda.convolutions, self.library_workspace());
        match issuer.pass {
            LaunchPass::Prepare => all.prepare(convolution, addresses, workspace, issuer.stream),
            LaunchPass::Issue => all.run(convolution, addresses, workspace, issuer.stream),
        }
    }

    fn product(&self, product: &Product) -> Result<(), DeviceError> {
        let issuer = self.o.issuer;
        let (all, workspace) = (&issuer.cuda.products, self.library_workspace());
        match issuer.pass {
            LaunchPass::Prepare => all.prepare(product, workspace, issuer.stream),
            LaunchPass::Issue => all.run(product, workspace, issuer.stream),
        }
    }

    /// Copies rows: packs a slice, or adds a separate result.
    fn copy(&self, to: Matrix, from: Matrix, mode: Write) -> Result<(), DeviceError> {
        let issuer = self.o.issuer;
        issuer.launch(
            if to.dtype == DType::F32 {
                "add_into_f32"
            } else {
                "add_into"
            },
            issuer.grid(to.num_elements(), to.dtype),
            BLOCK,
            arguments![
                to.address,
                from.address,
                to.rows as i64,
                to.width as i32,
                to.stride as i64,
                from.stride as i64,
                accumulates(Some(mode)),
                issuer.tables.micro(),
                0i64,
                0i64,
            ],
        )
    }

    /// An input in the layout of cuDNN: address and picture.
    fn packed(&mut self, index: usize) -> Result<(u64, Picture), DeviceError> {
        let layout = self.inputs[index];
        let matrix = self.o.input(index);
        let [n, h, w, _] = layout.dims;
        let channels = layout.seen_channels();
        let picture = Picture {
            dims: [n, h, w, channels],
            pixel_stride: channels,
        };
        if layout.packing_bytes() == 0 {
            return Ok((matrix.address, picture));
        }
        let packed = Matrix {
            address: self.take(layout.packing_bytes()),
            stride: layout.channels(),
            ..matrix
        };
        self.copy(packed, matrix, Write::Overwrite)?;
        Ok((packed.address, picture))
    }

    fn add_bias(&self, y: Matrix, bias: Matrix) -> Result<(), DeviceError> {
        let issuer = self.o.issuer;
        issuer.launch(
            "add_bias",
            capped(issuer.grid(y.num_elements(), y.dtype)),
            BLOCK,
            arguments![
                y.address,
                bias.address,
                y.rows as i64,
                y.width as i32,
                y.stride as i64,
            ],
        )
    }

    /// Adds the sums over all pixels to the bias gradient.
    fn bias_grad(&mut self, dy: Matrix, output: usize) -> Result<(), DeviceError> {
        let (dbias, mode) = self.o.result(output);
        assert_eq!(mode, Write::Accumulate, "bias gradients are added to");
        // The earlier contents of the scratch are no longer needed: kernels run one after the other.
        let partials = self.o.scratch();
        let lanes = 32 * super::ACCESS / dy.dtype.bytes();
        let name = match dy.dtype {
            DType::F32 => "column_sums_f32",
            _ => "column_sums",
        };
        self.o.issuer.launch(
            name,
            [dy.width.div_ceil(lanes), BIAS_PARTS, 1],
            256,
            arguments![
                dy.address,
                partials,
                dy.rows as i64,
                dy.width as i32,
                dy.stride as i64,
            ],
        )?;
        super::linear::finish_sums(self.o, partials, BIAS_PARTS, dy.width, dbias, [0, 0])
    }
}

/// Limits the number of blocks of kernels with grid-strided loops.
fn capped([x, y, z]: [usize; 3]) -> [usize; 3] {
    [x.min(1 << 16), y, z]
}

fn picture(place: &Place) -> Picture {
    let layout = OperandLayout::of_place(place);
    Picture {
        dims: layout.dims,
        pixel_stride: layout.pixel_stride,
    }
}

pub(super) fn forward(op: &Conv2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let &Conv2d { stride, padding } = op;
    let mut conv = Conv::new(o);
    let (x, w) = (o.input(0), o.input(1));
    let bias = (o.num_inputs() > 2).then(|| o.input(2));
    let (y, _) = o.result(0);
    let weight = conv.inputs[1].dims;
    match method(weight, stride, padding, &conv.inputs[0]) {
        Method::Head => o.issuer.launch(
            "head_forward",
            capped([x.rows.div_ceil(BLOCK), 1, 1]),
            BLOCK,
            arguments![
                x.address,
                w.address,
                bias.map(|bias| bias.address),
                y.address,
                x.rows as i64,
                x.width as i32,
                x.stride as i64,
                y.stride as i64,
                y.width as i32,
            ],
        ),
        Method::Product => conv.product(&Product {
            rows: x.rows,
            outputs: weight[0],
            inner: x.width,
            left: x.factor(false),
            right: Matrix {
                rows: weight[0],
                ..w
            }
            .factor(true),
            inputs: o.issuer.format(x.dtype),
            scale: 1.0,
            y: y.result(),
            output: o.issuer.format(y.dtype),
            bias: bias.map(|bias| bias.address),
            added: None,
        }),
        Method::Cudnn => {
            let (address, x_picture) = conv.packed(0)?;
            let weight_address = conv.padded_weight(w)?;
            let [outputs, down, across, _] = weight;
            let (place, _) = o.instruction.outputs[0]
                .as_ref()
                .expect("the result is read");
            conv.cudnn(
                &Convolution {
                    computed: Computed::Output,
                    x: x_picture,
                    weight: [outputs, down, across, x_picture.dims[3]],
                    y: picture(place),
                    stride,
                    padding,
                    inputs: o.issuer.format(x.dtype),
                    output: o.issuer.format(y.dtype),
                    adds: false,
                },
                [address, weight_address, y.address],
            )?;
            match bias {
                Some(bias) => conv.add_bias(y, bias),
                None => Ok(()),
            }
        }
    }
}

impl Conv<'_, '_, '_> {
    /// The weight, padded to the channels of its pictures.
    fn padded_weight(&mut self, w: Matrix) -> Result<u64, DeviceError> {
        let x = self.inputs[0];
        let dims = self.inputs[1].dims;
        if !x.is_padded() {
            return Ok(w.address);
        }
        let to = self.take(padding_bytes(&x, dims));
        let rows = dims[..3].iter().product::<usize>();
        self.o.issuer.launch(
            "pad_rows",
            self.o.issuer.grid(rows * x.pixel_stride, DType::F32),
            BLOCK,
            arguments![
                to,
                w.address,
                rows as i64,
                dims[3] as i32,
                x.pixel_stride as i32,
            ],
        )?;
        Ok(to)
    }
}

pub(super) fn input_grad(op: &Conv2dInputGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let &Conv2dInputGrad { stride, padding } = op;
    let mut conv = Conv::new(o);
    let (dy, w) = (o.input(0), o.input(1));
    let (dx, mode) = o.result(0);
    let (place, _) = o.instruction.outputs[0]
        .as_ref()
        .expect("the result is read");
    let (weight, layout) = (conv.inputs[1].dims, OperandLayout::of_place(place));
    match method(weight, stride, padding, &layout) {
        Method::Head => o.issuer.launch(
            "head_input_grad",
            capped(o.issuer.grid(dx.num_elements(), dx.dtype)),
            BLOCK,
            arguments![
                dy.address,
                w.address,
                dx.address,
                dx.rows as i64,
                dx.width as i32,
                dy.stride as i64,
                dx.stride as i64,
                dy.width as i32,
                accumulates(Some(mode)),
            ],
        ),
        Method::Product => conv.product(&Product {
            rows: dy.rows,
            outputs: weight[3],
            inner: dy.width,
            left: dy.factor(false),
            right: w.factor(false),
            inputs: o.issuer.format(dy.dtype),
            scale: 1.0,
            y: dx.result(),
            output: o.issuer.format(dx.dtype),
            bias: None,
            added: (mode == Write::Accumulate).then(|| dx.result()),
        }),
        Method::Cudnn => {
            let (address, dy_picture) = conv.packed(0)?;
            let packed = if layout.is_packed() {
                dx
            } else {
                Matrix {
                    address: conv.take(layout.bytes()),
                    stride: layout.channels(),
                    ..dx
                }
            };
            conv.cudnn(
                &Convolution {
                    computed: Computed::InputGrad,
                    x: Picture {
                        dims: layout.dims,
                        pixel_stride: layout.channels(),
                    },
                    weight,
                    y: dy_picture,
                    stride,
                    padding,
                    inputs: o.issuer.format(dy.dtype),
                    output: o.issuer.format(dx.dtype),
                    adds: layout.is_packed() && mode == Write::Accumulate,
                },
                [packed.address, w.address, address],
            )?;
            if layout.is_packed() {
                Ok(())
            } else {
                conv.copy(dx, packed, mode)
            }
        }
    }
}

pub(super) fn weight_grad(op: &Conv2dWeightGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let &Conv2dWeightGrad {
        stride,
        padding,
        weight: has_weight,
        bias: has_bias,
    } = op;
    let mut conv = Conv::new(o);
    let (dy, x) = (o.input(0), o.input(1));
    if has_weight {
        let (place, mode) = o.instruction.outputs[0]
            .as_ref()
            .expect("the result is read");
        let (dw, _) = o.result(0);
        let weight = OperandLayout::of_place(place).dims;
        match method(weight, stride, padding, &conv.inputs[1]) {
            Method::Head => return head_weight_grad(&mut conv, has_bias),
            Method::Product => conv.product(&Product {
                rows: dy.width,
                outputs: x.width,
                inner: dy.rows,
                left: dy.factor(true),
                right: x.factor(false),
                inputs: o.issuer.format(dy.dtype),
                scale: 1.0,
                y: dw.result(),
                output: o.issuer.format(dw.dtype),
                bias: None,
                added: (*mode == Write::Accumulate).then(|| dw.result()),
            })?,
            Method::Cudnn => cudnn_weight_grad(&mut conv, op, weight)?,
        }
    }
    if has_bias {
        conv.bias_grad(dy, usize::from(has_weight))
    } else {
        Ok(())
    }
}

/// cuDNN writes the gradient in the format of its inputs, for as many channels as it reads; the weight's own are added up in f32.
fn cudnn_weight_grad(
    conv: &mut Conv<'_, '_, '_>,
    op: &Conv2dWeightGrad,
    [outputs, down, across, channels]: [usize; 4],
) -> Result<(), DeviceError> {
    let o = conv.o;
    let (dy, x) = (o.input(0), o.input(1));
    let (dw, mode) = o.result(0);
    let (dy_address, dy_picture) = conv.packed(0)?;
    let (x_address, x_picture) = conv.packed(1)?;
    let seen = x_picture.dims[3];
    let rows = outputs * down * across;
    let landing = conv.take(aligned(rows * seen * x.dtype.bytes()));
    conv.cudnn(
        &Convolution {
            computed: Computed::WeightGrad,
            x: x_picture,
            weight: [outputs, down, across, seen],
            y: dy_picture,
            stride: op.stride,
            padding: op.padding,
            inputs: o.issuer.format(dy.dtype),
            output: o.issuer.format(x.dtype),
            adds: false,
        },
        [x_address, landing, dy_address],
    )?;
    let elements = rows * channels;
    if seen == channels {
        return o.issuer.launch(
            "cast_up",
            o.issuer.grid(elements, x.dtype),
            BLOCK,
            arguments![
                dw.address,
                landing,
                elements as i64,
                accumulates(Some(mode)),
            ],
        );
    }
    o.issuer.launch(
        "cast_up_rows",
        o.issuer.grid(elements, DType::F32),
        BLOCK,
        arguments![
            dw.address,
            landing,
            rows as i64,
            channels as i32,
            channels as i64,
            seen as i64,
            accumulates(Some(mode)),
        ],
    )
}

fn head_weight_grad(conv: &mut Conv<'_, '_, '_>, has_bias: bool) -> Result<(), DeviceError> {
    let o = conv.o;
    let (dy, x) = (o.input(0), o.input(1));
    let (dw, mode) = o.result(0);
    let dbias = has_bias.then(|| o.result(1));
    let width = dy.width * (x.width + 1);
    let partials = conv.take(aligned(HEAD_PARTS * width * 4));
    o.issuer.launch(
        "head_weight_grad",
        [HEAD_PARTS, 1, 1],
        BLOCK,
        arguments![
            dy.address,
            x.address,
            partials,
            x.rows as i64,
            x.width as i32,
            dy.stride as i64,
            x.stride as i64,
            dy.width as i32,
        ],
    )?;
    o.issuer.launch(
        "head_weight_grad_finish",
        [width.div_ceil(BLOCK / 32), 1, 1],
        BLOCK,
        arguments![
            partials,
            HEAD_PARTS as i32,
            dw.address,
            dbias.map(|(dbias, _)| dbias.address),
            dy.width as i32,
            x.width as i32,
            accumulates(Some(mode)),
            accumulates(dbias.map(|(_, mode)| mode)),
        ],
    )
}
