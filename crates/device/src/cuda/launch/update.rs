//! Gradient norm and AdamW: all tensors in one launch each, by a table on the card.

use holdall_graph::ops::update::AdamW;

use super::super::target::UPDATE_CHUNK;
use super::{Matrix, Operands, Pass};
use crate::DeviceError;

/// Bytes of an entry of the table, as `kernels/update.cu` declares it.
pub(super) const TENSOR_BYTES: usize = 72;

/// One tensor of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Tensor {
    weight: u64,
    gradient: u64,
    m: u64,
    v: u64,
    copy: u64,
    elements: usize,
    weight_decay: f32,
    rate: i32,
    maximum: f32,
}

/// The table as bytes, and how many chunks all tensors have together.
fn table(tensors: &[Tensor]) -> (Vec<u8>, usize) {
    let mut bytes = Vec::with_capacity(tensors.len() * TENSOR_BYTES);
    let mut chunks = 0;
    for tensor in tensors {
        let words = [
            tensor.weight,
            tensor.gradient,
            tensor.m,
            tensor.v,
            tensor.copy,
            tensor.elements as u64,
            chunks as u64,
        ];
        for address in &words[..4] {
            assert!(address % 16 == 0, "tensors of an update are aligned");
        }
        for word in words {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(tensor.weight_decay.to_le_bytes());
        bytes.extend(tensor.rate.to_le_bytes());
        bytes.extend(tensor.maximum.to_le_bytes());
        bytes.extend(0f32.to_le_bytes());
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

/// Uploads a table when programs are prepared; gives its address when they are issued.
fn placed(o: &Operands<'_, '_>, index: usize, bytes: &[u8]) -> Result<u64, DeviceError> {
    let (issuer, key) = (o.issuer, (o.issuer.program, index));
    if issuer.pass == Pass::Prepare {
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

pub(super) fn adamw(op: &AdamW, index: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (schedule, norm) = (o.input(0), o.input(1));
    let mut output = 0;
    let mut tensors = Vec::with_capacity(op.parameters.len());
    for (number, parameter) in op.parameters.iter().enumerate() {
        let (gradient, elements) = flat(o.input(2 + number));
        let mut next = || {
            output += 1;
            flat(o.result(output - 1).0).0
        };
        let [weight, m, v] = [next(), next(), next()];
        tensors.push(Tensor {
            weight,
            gradient,
            m,
            v,
            copy: if parameter.copy { next() } else { 0 },
            elements,
            weight_decay: parameter.weight_decay as f32,
            rate: parameter.rate as i32,
            maximum: parameter.maximum.unwrap_or(f64::INFINITY) as f32,
        });
    }
    let (bytes, chunks) = table(&tensors);
    let table = placed(o, index, &bytes)?;
    o.issuer.launch(
        "adamw",
        [chunks, 1, 1],
        256,
        arguments![
            table,
            tensors.len() as i32,
            schedule.address,
            norm.address,
            op.beta1 as f32,
            op.beta2 as f32,
            op.eps as f32,
            op.clip_norm.unwrap_or(0.0) as f32,
        ],
    )
}
