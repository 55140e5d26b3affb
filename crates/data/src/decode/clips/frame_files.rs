//! Writers of clip files: a Motion JPEG AVI, the smallest that players open, or an array as `numpy.save` writes it.

/// Frames per second.
const RATE: u32 = 10;

/// Bytes of an AVI of JPEG frames of this size.
pub fn avi(frames: &[Vec<u8>], (width, height): (u32, u32)) -> Vec<u8> {
    let num_frames = frames.len() as u32;
    let largest = frames.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let main = numbers(&[
        1_000_000 / RATE,
        largest * RATE,
        0,
        // Flag: the file has an index.
        0x10,
        num_frames,
        0,
        1,
        largest,
        width,
        height,
        0,
        0,
        0,
        0,
    ]);
    let mut stream = b"vidsMJPG".to_vec();
    stream.extend(numbers(&[
        0,
        0,
        0,
        1,
        RATE,
        0,
        num_frames,
        largest,
        u32::MAX,
        0,
    ]));
    stream.extend(numbers(&[0, (width & 0xffff) | (height << 16)]));
    let mut format = numbers(&[40, width, height, 1 | 24 << 16]);
    format.extend(b"MJPG");
    format.extend(numbers(&[
        width.saturating_mul(height).saturating_mul(3),
        0,
        0,
        0,
        0,
    ]));
    let streams = [chunk(b"strh", &stream), chunk(b"strf", &format)].concat();
    let headers = [chunk(b"avih", &main), list(b"strl", &streams)].concat();
    let (mut movie, mut index) = (Vec::new(), Vec::new());
    for frame in frames {
        index.extend(b"00dc");
        // Flag: a key frame. Offsets are counted from the name of the list.
        index.extend(numbers(&[0x10, movie.len() as u32 + 4, frame.len() as u32]));
        movie.extend(chunk(b"00dc", frame));
    }
    let lists = [
        list(b"hdrl", &headers),
        list(b"movi", &movie),
        chunk(b"idx1", &index),
    ];
    let mut file = b"RIFF".to_vec();
    let contents = lists.concat();
    file.extend(numbers(&[contents.len() as u32 + 4]));
    file.extend(b"AVI ");
    file.extend(contents);
    file
}

/// Bytes of an array of these pixels; the header ends at a multiple of 64 bytes.
pub fn npy(frames: &[Vec<u8>], (width, height): (u32, u32)) -> Vec<u8> {
    let mut header = format!(
        "{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {height}, {width}, 3), }}",
        frames.len()
    );
    const PREFIX_BYTES: usize = 10;
    let end = (PREFIX_BYTES + header.len() + 1).next_multiple_of(64);
    header += &" ".repeat(end - PREFIX_BYTES - header.len() - 1);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    frames.iter().for_each(|frame| bytes.extend(frame));
    bytes
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn chunk(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    let mut chunk = name.to_vec();
    chunk.extend(numbers(&[contents.len() as u32]));
    chunk.extend(contents);
    chunk.resize(chunk.len().next_multiple_of(2), 0);
    chunk
}

fn list(kind: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    chunk(b"LIST", &[&kind[..], contents].concat())
}
