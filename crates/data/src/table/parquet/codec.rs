//! Decompression of pages. The decompressed size that a page claims is trusted only as far as the compressed bytes can produce it.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ParquetFault;

/// Compression of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Plain,
    Snappy,
    Gzip,
    Brotli,
    /// LZ4 in Hadoop's framing, or as a plain block.
    Lz4,
    Zstd,
    Lz4Block,
}

impl Codec {
    pub(super) fn of(number: i64) -> Result<Codec, ParquetFault> {
        Ok(match number {
            0 => Codec::Plain,
            1 => Codec::Snappy,
            2 => Codec::Gzip,
            3 => return Err(ParquetFault::Unsupported("one that LZO packed")),
            4 => Codec::Brotli,
            5 => Codec::Lz4,
            6 => Codec::Zstd,
            7 => Codec::Lz4Block,
            _ => return Err(ParquetFault::damaged("pages packed by an unknown program")),
        })
    }

    /// Appends exactly `num_bytes` decompressed bytes to `out`. A decoder that panics on malformed input gives an error.
    pub(super) fn unpack(
        self,
        packed: &[u8],
        num_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ParquetFault> {
        let unpack = AssertUnwindSafe(|| self.unpack_or_panic(packed, num_bytes, out));
        catch_unwind(unpack)
            .unwrap_or_else(|_| Err(ParquetFault::damaged("a page that cannot be unpacked")))
    }

    fn unpack_or_panic(
        self,
        packed: &[u8],
        num_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ParquetFault> {
        let wrong = || ParquetFault::damaged("a page that cannot be unpacked");
        let start = out.len();
        match self {
            Codec::Plain => out.extend_from_slice(packed),
            Codec::Snappy => {
                // Snappy copies 64 bytes with 3.
                set_aside(packed, num_bytes, 24, out)?;
                let written = snap::raw::Decoder::new().decompress(packed, &mut out[start..]);
                out.truncate(start + written.map_err(|_| wrong())?);
            }
            Codec::Gzip => {
                let reader = flate2::read::MultiGzDecoder::new(packed);
                read_some(reader, num_bytes, out)?;
            }
            Codec::Brotli => {
                let reader = brotli_decompressor::Decompressor::new(packed, 4096);
                read_some(reader, num_bytes, out)?;
            }
            Codec::Zstd => {
                // The decoder reserves memory for the window before it decompresses anything.
                let window = zstd_window(packed).ok_or_else(wrong)?;
                if window > MOST_WINDOW.max(num_bytes as u64) {
                    return Err(ParquetFault::damaged("a page that claims more than it has"));
                }
                let reader = ruzstd::decoding::StreamingDecoder::new(packed);
                read_some(reader.map_err(|_| wrong())?, num_bytes, out)?;
            }
            Codec::Lz4Block => unpack_lz4(packed, num_bytes, out)?,
            Codec::Lz4 => {
                if unpack_hadoop(packed, num_bytes, out).is_err() {
                    out.truncate(start);
                    unpack_lz4(packed, num_bytes, out)?;
                }
            }
        }
        if out.len() - start == num_bytes {
            Ok(())
        } else {
            Err(wrong())
        }
    }
}

/// Grows `out` by `num_bytes`, unless that is more than `most_ratio` times the packed bytes.
fn set_aside(
    packed: &[u8],
    num_bytes: usize,
    most_ratio: usize,
    out: &mut Vec<u8>,
) -> Result<(), ParquetFault> {
    if num_bytes > packed.len().saturating_mul(most_ratio) {
        return Err(ParquetFault::damaged("a page that claims more than it has"));
    }
    let length = out.len() + num_bytes;
    out.reserve_exact(num_bytes);
    out.resize(length, 0);
    Ok(())
}

/// Reads at most `num_bytes`; memory grows with what is read.
fn read_some(reader: impl Read, num_bytes: usize, out: &mut Vec<u8>) -> Result<(), ParquetFault> {
    let read = reader.take(num_bytes as u64).read_to_end(out);
    match read {
        Ok(_) => Ok(()),
        Err(_) => Err(ParquetFault::damaged("a page that cannot be unpacked")),
    }
}

fn unpack_lz4(packed: &[u8], num_bytes: usize, out: &mut Vec<u8>) -> Result<(), ParquetFault> {
    let start = out.len();
    // A length grows by 255 with each byte.
    set_aside(packed, num_bytes, 256, out)?;
    let written = lz4_flex::block::decompress_into(packed, &mut out[start..]);
    let written = written.map_err(|_| ParquetFault::damaged("a page that cannot be unpacked"))?;
    out.truncate(start + written);
    Ok(())
}

/// LZ4 in Hadoop's framing: blocks, each after its two lengths.
fn unpack_hadoop(
    mut packed: &[u8],
    num_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), ParquetFault> {
    let wrong = || ParquetFault::damaged("a page that cannot be unpacked");
    let mut left = num_bytes;
    while !packed.is_empty() {
        let (lengths, rest) = packed.split_at_checked(8).ok_or_else(wrong)?;
        let number = |at: usize| {
            let bytes = lengths[at..at + 4].first_chunk();
            bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize)
        };
        let (unpacked, length) = (number(0), number(4));
        left = left.checked_sub(unpacked).ok_or_else(wrong)?;
        let (block, rest) = rest.split_at_checked(length).ok_or_else(wrong)?;
        let start = out.len();
        unpack_lz4(block, unpacked, out)?;
        if out.len() - start != unpacked {
            return Err(wrong());
        }
        packed = rest;
    }
    match left {
        0 => Ok(()),
        _ => Err(wrong()),
    }
}

/// Window that every zstd decoder must support.
const MOST_WINDOW: u64 = 8 << 20;

/// Window size of a zstd frame, from its header.
fn zstd_window(packed: &[u8]) -> Option<u64> {
    let rest = packed.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (flags, rest) = rest.split_first()?;
    if flags & 0x20 == 0 {
        let descriptor = u64::from(*rest.first()?);
        let base = 1_u64 << (10 + (descriptor >> 3));
        return Some(base + base / 8 * (descriptor & 7));
    }
    // A single-segment frame: the window is the content size, which stands behind the dictionary id.
    let rest = rest.get([0, 1, 2, 4][usize::from(flags & 3)]..)?;
    let number = |length: usize| {
        let bytes = rest.get(..length)?;
        let digits = bytes.iter().rev();
        Some(digits.fold(0_u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    match flags >> 6 {
        0 => number(1),
        1 => number(2).map(|length| length + 256),
        2 => number(4),
        _ => number(8),
    }
}
