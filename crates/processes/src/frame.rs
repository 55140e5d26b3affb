//! Frames of control messages between rank 0 and every other process.
//!
//! ```text
//! kind 1 | call 1 | number 4 | length 4 | bytes
//! ```

use crate::error::GroupError;
use crate::wire::{Malformed, Reader, put_text, put_u32};

pub(crate) const HEADER_BYTES: usize = 10;
/// Longest message. Buffers grow with the received bytes, not with the length that a header claims.
pub(crate) const MOST_BYTES: usize = 1 << 30;
const MOST_TEXT: usize = 1 << 16;

/// The call that a message belongs to; all processes must make the same calls in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Share = 1,
    Broadcast = 2,
    /// The process leaves the group and makes no more calls.
    Leave = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Heartbeat = 1,
    Message = 2,
    Error = 3,
    Goodbye = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: FrameKind,
    /// The [`Call`] of a message; zero for other kinds.
    pub call: u8,
    /// Sequence number of the call; in a heartbeat, the number of bulk calls begun.
    pub number: u32,
    pub num_bytes: usize,
}

impl Header {
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.u8()? {
            1 => FrameKind::Heartbeat,
            2 => FrameKind::Message,
            3 => FrameKind::Error,
            4 => FrameKind::Goodbye,
            _ => return Err(Malformed),
        };
        let call = reader.u8()?;
        let number = reader.u32()?;
        let num_bytes = reader.u32()? as usize;
        if num_bytes > MOST_BYTES {
            return Err(Malformed);
        }
        Ok(Header {
            kind,
            call,
            number,
            num_bytes,
        })
    }
}

/// A frame, ready to be written.
pub(crate) fn frame(kind: FrameKind, call: u8, number: u32, parts: &[&[u8]]) -> Vec<u8> {
    let num_bytes = parts.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + num_bytes);
    bytes.extend([kind as u8, call]);
    bytes.extend(number.to_le_bytes());
    put_u32(&mut bytes, num_bytes);
    for part in parts {
        bytes.extend(*part);
    }
    bytes
}

/// Serialises an error for another process.
pub(crate) fn encode_error(error: &GroupError) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (kind, rank, host, text) = match error {
        GroupError::Lost { rank, host, seen } => (1, *rank, host.as_str(), seen),
        GroupError::Failed {
            rank,
            host,
            message,
        } => (2, *rank, host.as_str(), message),
        GroupError::Mismatch(text) => (3, 0, "", text),
        GroupError::Launch(text) | GroupError::Start(text) => (4, 0, "", text),
    };
    bytes.push(kind);
    put_u32(&mut bytes, rank);
    put_text(&mut bytes, host, MOST_TEXT);
    put_text(&mut bytes, text, MOST_TEXT);
    bytes
}

/// Parses an error from another process.
pub(crate) fn decode_error(bytes: &[u8]) -> Result<GroupError, Malformed> {
    let mut reader = Reader::new(bytes);
    let kind = reader.u8()?;
    let rank = reader.u32()? as usize;
    let host = reader.text(MOST_TEXT)?;
    let text = reader.text(MOST_TEXT)?;
    reader.end()?;
    Ok(match kind {
        1 => GroupError::Lost {
            rank,
            host,
            seen: text,
        },
        2 => GroupError::Failed {
            rank,
            host,
            message: text,
        },
        3 => GroupError::Mismatch(text),
        4 => GroupError::Start(text),
        _ => return Err(Malformed),
    })
}
