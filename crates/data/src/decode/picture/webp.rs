//! Sizes that a WebP claims, checked before a decoder trusts them: image-webp reserves memory for a frame (up to
//! 16383 x 16383) before it compares the frame with the picture, and for metadata before it checks that they exist.
//!
//! A file is `RIFF size WEBP` and chunks of `name size payload`, padded to even sizes; frames of an animation are chunks
//! of chunks.

/// A chunk claims bytes beyond the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutShort;

/// Width and height of the largest frame; zeros where the file has no frame.
pub(super) fn largest_frame(bytes: &[u8]) -> Result<(u32, u32), CutShort> {
    const HEADER_BYTES: usize = 12;
    largest(bytes.get(HEADER_BYTES..).unwrap_or(&[]), Nesting::File)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nesting {
    File,
    Frame,
}

fn largest(mut chunks: &[u8], nesting: Nesting) -> Result<(u32, u32), CutShort> {
    let mut largest = (0, 0);
    while let Some((header, rest)) = chunks.split_first_chunk::<8>() {
        let name = &header[..4];
        let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let Some(payload) = rest.get(..size) else {
            // Foreign data may follow the picture.
            let is_ours = [
                b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"EXIF", b"ICCP", b"XMP ",
            ];
            return if is_ours.iter().any(|ours| *ours == name) {
                Err(CutShort)
            } else {
                Ok(largest)
            };
        };
        let frame = match name {
            b"VP8 " => lossy(payload),
            b"VP8L" => lossless(payload),
            b"ANMF" if nesting == Nesting::File => {
                const FRAME_HEADER_BYTES: usize = 16;
                let chunks = payload.get(FRAME_HEADER_BYTES..).unwrap_or(&[]);
                Some(self::largest(chunks, Nesting::Frame)?)
            }
            _ => None,
        };
        let area = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        largest = frame
            .into_iter()
            .chain([largest])
            .max_by_key(|size| area(*size))
            .unwrap_or(largest);
        chunks = rest.get(size + size % 2..).unwrap_or(&[]);
    }
    Ok(largest)
}

/// Size in a lossy header: three bytes of tag, three of start code, then 14 bits each.
fn lossy(payload: &[u8]) -> Option<(u32, u32)> {
    let [_, _, _, _, _, _, a, b, c, d] = *payload.first_chunk()?;
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
    Some((side(a, b), side(c, d)))
}

/// Size in a lossless header: a byte of signature, then 14 bits each, less 1.
fn lossless(payload: &[u8]) -> Option<(u32, u32)> {
    let [_, a, b, c, d] = *payload.first_chunk()?;
    let header = u32::from_le_bytes([a, b, c, d]);
    Some(((header & 0x3fff) + 1, (header >> 14 & 0x3fff) + 1))
}
