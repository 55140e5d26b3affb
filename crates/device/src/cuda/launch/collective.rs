//! What several processes do together, by NCCL. Gradients that lie side by side travel as one.

use holdall_graph::ops::collective::{Collective, Exchange};

use super::super::nccl::Piece;
use super::{Operands, Pass};
use crate::DeviceError;

pub(super) fn exchange(op: &Collective, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    if o.issuer.pass == Pass::Prepare {
        return Ok(());
    }
    let pieces = (0..o.num_inputs()).map(|index| {
        let matrix = o.input(index);
        assert!(matrix.is_contiguous(), "what is exchanged is contiguous");
        Piece {
            address: matrix.address,
            elements: matrix.num_elements(),
            dtype: matrix.dtype,
        }
    });
    let nccl = o.issuer.cuda.nccl().ok_or_else(|| {
        DeviceError::Failed("a step of several processes on a card that knows of none".to_owned())
    })?;
    match &op.exchange {
        Exchange::AllGather => {
            let pieces: Vec<Piece> = pieces.collect();
            nccl.all_gather(&pieces, o.issuer.stream)
        }
        Exchange::AllReduce => nccl.all_reduce(&joined(pieces), o.issuer.stream),
        Exchange::FromOwners(owners) => {
            let pieces: Vec<Piece> = pieces.collect();
            nccl.take_from_owners(&pieces, owners, o.issuer.stream)
        }
    }
}

/// Neighbours as one: between them there is nothing but padding, which may be added up as well.
fn joined(pieces: impl Iterator<Item = Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
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
