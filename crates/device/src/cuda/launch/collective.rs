//! Exchanges between processes, by NCCL. Neighbouring gradients are exchanged as one piece.

use holdall_graph::ops::collective::{Collective, Exchange};

use holdall_plan::Place;

use super::super::driver::Stream;
use super::super::nccl::{ExchangedMemory, Nccl};
use super::{Issuer, LaunchPass, Matrix, Operands};
use crate::DeviceError;

pub(super) fn exchange(op: &Collective, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    if o.issuer.pass == LaunchPass::Prepare {
        return Ok(());
    }
    let pieces = (0..o.num_inputs()).map(|index| piece(o.input(index)));
    let nccl = nccl_of(o.issuer)?;
    match &op.exchange {
        Exchange::AllGather => {
            let pieces: Vec<ExchangedMemory> = pieces.collect();
            nccl.all_gather(&pieces, o.issuer.stream)
        }
        Exchange::AllReduce => {
            let (base, travelled) = (o.issuer.base, o.issuer.travelled);
            let rest = pieces.filter(|piece| !travelled.contains(&(piece.address - base)));
            nccl.all_reduce(&joined(rest), o.issuer.stream)
        }
        Exchange::FromOwners(owners) => {
            let pieces: Vec<ExchangedMemory> = pieces.collect();
            nccl.take_from_owners(&pieces, owners, o.issuer.stream)
        }
    }
}

/// Sums gradients over all processes, in a separate stream.
pub(super) fn send(
    issuer: &Issuer<'_>,
    places: &[Place],
    stream: &Stream,
) -> Result<(), DeviceError> {
    let pieces = places.iter().map(|place| piece(issuer.matrix(place)));
    nccl_of(issuer)?.all_reduce(&joined(pieces), stream)
}

fn piece(matrix: Matrix) -> ExchangedMemory {
    assert!(matrix.is_contiguous(), "what is exchanged is contiguous");
    ExchangedMemory {
        address: matrix.address,
        elements: matrix.num_elements(),
        dtype: matrix.dtype,
    }
}

fn nccl_of<'a>(issuer: &Issuer<'a>) -> Result<&'a Nccl, DeviceError> {
    let nccl = issuer.cuda.nccl().ok_or_else(|| {
        DeviceError::Failed("a step of several processes on a card that knows of none".to_owned())
    })?;
    Ok(nccl)
}

/// Joins neighbouring pieces: the gap between them is only padding, which may be summed as well.
fn joined(pieces: impl Iterator<Item = ExchangedMemory>) -> Vec<ExchangedMemory> {
    let mut all: Vec<ExchangedMemory> = Vec::new();
    for piece in pieces {
        let bytes = piece.dtype.bytes();
        match all.last_mut() {
            Some(last)
                if last.dtype == piece.dtype
                    && (last.address + (last.elements * bytes) as u64).next_multiple_of(256)
                        == piece.address =>
            {
                last.elements = (piece.address - last.address) as usize / bytes + piece.elements;
            }
            _ => all.push(piece),
        }
    }
    all
}
