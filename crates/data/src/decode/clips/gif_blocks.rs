//! Counts the blocks of a GIF without decoding: number of frames, size of the canvas and of the largest frame.
//!
//! ```text
//! "GIF89a", width, height, flags, background, aspect [, colours]
//! 0x2c, left, top, width, height, flags [, colours], code size, pieces      a frame
//! 0x21, label, pieces                                                       an extension
//! 0x3b                                                                      the end
//! ```
//!
//! Each piece is a length and as many bytes; a length of 0 ends them.

use std::io::{self, BufReader, Read, Seek};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GifFacts {
    pub size: (u32, u32),
    pub num_frames: usize,
    /// Pixels of the largest frame, which may be larger than the canvas.
    pub most_frame_pixels: u64,
}

/// Reads to the end, or until there are more than `most_frames`. A file that stops within a block is an unexpected end.
pub(super) fn count<R: Read + Seek>(file: R, most_frames: usize) -> io::Result<GifFacts> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let [.., w0, w1, h0, h1, flags, _, _] = bytes::<13, _>(&mut reader)?;
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]));
    let mut facts = GifFacts {
        size: (side(w0, w1), side(h0, h1)),
        ..GifFacts::default()
    };
    skip_colours(&mut reader, flags)?;
    while facts.num_frames <= most_frames {
        let block = match bytes::<1, _>(&mut reader) {
            // Some programs omit the end block.
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => break,
            block => block?,
        };
        match block {
            [0x2c] => {
                let [_, _, _, _, w0, w1, h0, h1, flags] = bytes::<9, _>(&mut reader)?;
                let num_pixels = u64::from(side(w0, w1)) * u64::from(side(h0, h1));
                facts.most_frame_pixels = facts.most_frame_pixels.max(num_pixels);
                facts.num_frames += 1;
                skip_colours(&mut reader, flags)?;
                bytes::<1, _>(&mut reader)?;
                skip_pieces(&mut reader)?;
            }
            [0x21] => {
                bytes::<1, _>(&mut reader)?;
                skip_pieces(&mut reader)?;
            }
            // The end block, or an unknown block.
            _ => break,
        }
    }
    Ok(facts)
}

fn bytes<const N: usize, R: Read>(reader: &mut R) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn skip_colours<R: Read + Seek>(reader: &mut BufReader<R>, flags: u8) -> io::Result<()> {
    match flags & 0x80 {
        0 => Ok(()),
        _ => reader.seek_relative(3 << ((flags & 7) + 1)),
    }
}

fn skip_pieces<R: Read + Seek>(reader: &mut BufReader<R>) -> io::Result<()> {
    loop {
        match bytes::<1, _>(reader)? {
            [0] => return Ok(()),
            [length] => reader.seek_relative(i64::from(length))?,
        }
    }
}
