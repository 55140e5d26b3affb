//! Counts the frames of a WebP without decoding: `RIFF size WEBP`, then chunks `name size payload`, padded to even sizes. A frame of an
//! animation is a chunk `ANMF`.

use std::io::{self, BufReader, Read, Seek};

/// Number of frames of an animation; 0 for a still picture.
pub(super) fn count_frames<R: Read + Seek>(file: R, most_frames: usize) -> io::Result<usize> {
    let mut reader = BufReader::with_capacity(1 << 12, file);
    reader.seek_relative(12)?;
    let mut num_frames = 0;
    let mut header = [0; 8];
    while num_frames <= most_frames {
        match reader.read_exact(&mut header) {
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read?,
        }
        num_frames += usize::from(&header[..4] == b"ANMF");
        let [_, _, _, _, a, b, c, d] = header;
        let size = u32::from_le_bytes([a, b, c, d]);
        reader.seek_relative(i64::from(size) + i64::from(size % 2))?;
    }
    Ok(num_frames)
}
