//! Gradient norm, AdamW and averages of weights: all tensors in one launch each, with a table on the card. AdamW has a launch for each
//! format of moments.

use holdall_graph::ops::update::{AdamW, AverageAction, MomentFormat};
use holdall_graph::{DType, Graph, Op, Write};

use super::super::demand::UPDATE_CHUNK;
use super::super::driver::Argument;
use super::{LaunchPass, Matrix, Operands, SPAN_BYTES};
use crate::DeviceError;
use crate::dynamic_map::{DynamicMap, NUM_PARTS, SIGNED, UNSIGNED};

/// Bytes of an entry of the table, as declared in `kernels/update.cu`.
const TENSOR_BYTES: usize = 104;

/// Bytes of both dynamic maps in the table.
const MAPS_BYTES: usize = 2 * (2 * 256 * 4 + NUM_PARTS);

/// Alignment of tables.
const ALIGNMENT: usize = 256;

/// Total bytes of the tables of a graph's updates.
pub(super) fn table_bytes(graph: &Graph) -> u64 {
    let of = |tensors: usize| (tensors * TENSOR_BYTES).next_multiple_of(ALIGNMENT);
    let nodes = graph.nodes().iter().map(|node| match &node.op {
        Op::GradientNorm(_) => of(node.inputs.len()),
        // A table for each format of moments, and the maps.
        Op::AdamW(op) => of(op.parameters.len()) + 3 * ALIGNMENT + MAPS_BYTES + ALIGNMENT,
        Op::WeightAverages(_) => of(node.outputs.len() / 2),
        // Spans that are cleared together share a table.
        Op::Fill(_) => SPAN_BYTES,
        _ => 0,
    });
    (nodes.sum::<usize>() + ALIGNMENT * graph.forward_programs().len() + 8 * ALIGNMENT) as u64
}

/// One tensor of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Tensor {
    weight: u64,
    gradient: u64,
    m: u64,
    v: u64,
    scales: [u64; 2],
    copy: u64,
    average: u64,
    elements: usize,
    weight_decay: f32,
    rate: i32,
    maximum: f32,
    number: u32,
    gradient_is_bf16: bool,
}

/// The table as bytes, and the total number of chunks of all tensors.
fn table(tensors: &[Tensor]) -> (Vec<u8>, usize) {
    let mut bytes = Vec::with_capacity(tensors.len() * TENSOR_BYTES);
    let mut chunks = 0;
    for tensor in tensors {
        let words = [
            tensor.weight,
            tensor.gradient,
            tensor.m,
            tensor.v,
            tensor.scales[0],
            tensor.scales[1],
            tensor.copy,
            tensor.average,
            tensor.elements as u64,
            chunks as u64,
        ];
        for (place, address) in words[..4].iter().chain([&tensor.average]).enumerate() {
            let alignment = match (place, tensor.gradient_is_bf16) {
                (1, true) => 8,
                _ => 16,
            };
            assert!(address % alignment == 0, "tensors of an update are aligned");
        }
        for word in words {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(tensor.weight_decay.to_le_bytes());
        bytes.extend(tensor.rate.to_le_bytes());
        bytes.extend(tensor.maximum.to_le_bytes());
        bytes.extend(tensor.number.to_le_bytes());
        bytes.extend(i32::from(tensor.gradient_is_bf16).to_le_bytes());
        bytes.extend(0i32.to_le_bytes());
        chunks += tensor.elements.div_ceil(UPDATE_CHUNK);
    }
    debug_assert_eq!(bytes.len(), tensors.len() * TENSOR_BYTES);
    (bytes, chunks)
}

fn flat(matrix: Matrix) -> (u64, usize) {
    assert!(
        matrix.is_contiguous(),
        "tensors of an update are contiguous"
    );
    (matrix.address, matrix.num_elements())
}

/// Uploads a table in the preparing pass; returns its address in the issuing pass.
fn placed(o: &Operands<'_, '_>, index: usize, bytes: &[u8]) -> Result<u64, DeviceError> {
    let (issuer, key) = (o.issuer, (o.issuer.program, index));
    if issuer.pass == LaunchPass::Prepare {
        issuer.tables.put(key, bytes, issuer.stream)?;
    }
    Ok(issuer.tables.get(key))
}

pub(super) fn gradient_norm(index: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let tensors: Vec<Tensor> = (0..o.num_inputs())
        .map(|input| {
            let (gradient, elements) = flat(o.input(input));
            Tensor {
                gradient,
                elements,
                gradient_is_bf16: o.input(input).dtype == DType::Bf16,
                ..Tensor::default()
            }
        })
        .collect();
    let (bytes, chunks) = table(&tensors);
    let (norm, partials) = (o.result(0).0, o.scratch());
    let table = placed(o, index, &bytes)?;
    o.issuer.launch(
        "gradient_norm",
        [chunks, 1, 1],
        256,
        &[table.into(), (tensors.len() as i32).into(), partials.into()],
    )?;
    o.issuer.launch(
        "gradient_norm_finish",
        [1, 1, 1],
        1024,
        &[partials.into(), (chunks as i32).into(), norm.address.into()],
    )
}

/// Tensors of an update, in the order of [`FORMATS`].
type TensorsByFormat = [Vec<Tensor>; FORMATS.len()];

fn tensors_by_format(op: &AdamW, o: &Operands<'_, '_>) -> TensorsByFormat {
    let mut output = 0;
    let mut by_format = TensorsByFormat::default();
    for (number, parameter) in op.parameters.iter().enumerate() {
        let (gradient, elements) = flat(o.input(2 + number));
        let mut next = || {
            output += 1;
            flat(o.result(output - 1).0).0
        };
        let [weight, m, v] = [next(), next(), next()];
        let scales = match parameter.moments {
            MomentFormat::EightBit => [next(), next()],
            MomentFormat::F32 | MomentFormat::Bf16 => [0; 2],
        };
        let tensor = Tensor {
            weight,
            gradient,
            m,
            v,
            scales,
            copy: if parameter.copy { next() } else { 0 },
            average: op.average_decay.map_or(0, |_| next()),
            elements,
            weight_decay: parameter.weight_decay as f32,
            rate: parameter.rate as i32,
            maximum: parameter.maximum.unwrap_or(f64::INFINITY) as f32,
            number: number as u32,
            gradient_is_bf16: o.input(2 + number).dtype == DType::Bf16,
        };
        let place = FORMATS.iter().position(|&one| one == parameter.moments);
        by_format[place.expect("every format is listed")].push(tensor);
    }
    by_format
}

/// Tables of an update, as one upload.
struct UpdateTables {
    bytes: Vec<u8>,
    /// Offset of each format's table, and its number of chunks.
    starts: [(u64, usize); FORMATS.len()],
    /// Offset of the maps of 8-bit moments.
    maps_start: u64,
}

impl UpdateTables {
    fn new(op: &AdamW, by_format: &TensorsByFormat) -> UpdateTables {
        let mut bytes = Vec::new();
        let starts = by_format.each_ref().map(|tensors| {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            let (start, (table, chunks)) = (bytes.len() as u64, table(tensors));
            bytes.extend(table);
            (start, chunks)
        });
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let maps_start = bytes.len() as u64;
        if op.has(MomentFormat::EightBit) {
            append_map(&SIGNED, &mut bytes);
            append_map(&UNSIGNED, &mut bytes);
            debug_assert_eq!(bytes.len() - maps_start as usize, MAPS_BYTES);
        }
        UpdateTables {
            bytes,
            starts,
            maps_start,
        }
    }
}

pub(super) fn adamw(op: &AdamW, index: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (schedule, norm) = (o.input(0), o.input(1));
    let by_format = tensors_by_format(op, o);
    let tables = UpdateTables::new(op, &by_format);
    let base = placed(o, index, &tables.bytes)?;
    let constants = arguments![
        norm.address,
        op.beta1 as f32,
        op.beta2 as f32,
        op.eps as f32,
        op.clip_norm.unwrap_or(0.0) as f32,
        op.average_decay.map_or(0.0, |decay| 1.0 - decay) as f32,
    ];
    let (length, maps) = (schedule.num_elements() as i32, base + tables.maps_start);
    let schedule = schedule.address;
    for ((format, tensors), (start, chunks)) in FORMATS.iter().zip(&by_format).zip(tables.starts) {
        if tensors.is_empty() {
            continue;
        }
        let (table, count) = (base + start, tensors.len() as i32);
        let (name, own): (_, &[Argument]) = match format {
            MomentFormat::F32 => ("adamw", arguments![table, count, schedule]),
            MomentFormat::Bf16 => ("adamw_bf16", arguments![table, count, schedule, length]),
            MomentFormat::EightBit => ("adamw_8bit", arguments![table, count, maps, schedule]),
        };
        let arguments = [own, constants].concat();
        o.issuer.launch(name, [chunks, 1, 1], 256, &arguments)?;
    }
    Ok(())
}

const FORMATS: [MomentFormat; 3] = [
    MomentFormat::F32,
    MomentFormat::Bf16,
    MomentFormat::EightBit,
];

/// Appends a map as declared in `kernels/update.cu`.
fn append_map(map: &DynamicMap, bytes: &mut Vec<u8>) {
    for number in map.numbers.iter().chain(&map.midpoints) {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(map.first);
}

pub(super) fn weight_averages(
    action: AverageAction,
    index: usize,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let tensors: Vec<Tensor> = (0..o.num_outputs() / 2)
        .map(|parameter| {
            let (weight, elements) = flat(o.result(2 * parameter).0);
            let (average, _) = flat(o.result(2 * parameter + 1).0);
            Tensor {
                weight,
                average,
                elements,
                ..Tensor::default()
            }
        })
        .collect();
    let (bytes, chunks) = table(&tensors);
    let table = placed(o, index, &bytes)?;
    let (action, share) = match action {
        AverageAction::Exchange => (0, 0.0),
        AverageAction::Restart => (1, 0.0),
        AverageAction::Interpolate { share } => (2, share),
    };
    o.issuer.launch(
        "weight_averages",
        [chunks, 1, 1],
        256,
        arguments![table, tensors.len() as i32, action, share as f32],
    )
}

pub(super) fn add_rounded(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, (y, mode)) = (o.input(0), o.result(0));
    let ((x, elements), (y, _)) = (flat(x), flat(y));
    o.issuer.launch(
        "add_rounded",
        [elements.div_ceil(4 * 256), 1, 1],
        256,
        arguments![y, x, elements as i64, i32::from(mode == Write::Accumulate)],
    )
}
