//! Frames as an AVI of Motion JPEG, the smallest that players open.

/// Frames a second.
const RATE: u32 = 10;

/// The bytes of a file of these JPEG of `size` x `size` pixels.
pub(super) fn avi(frames: &[Vec<u8>], size: u32) -> Vec<u8> {
    let num_frames = frames.len() as u32;
    let largest = frames.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let main = numbers(&[
        1_000_000 / RATE,
        largest * RATE,
        0,
        // It has an index.
        0x10,
        num_frames,
        0,
        1,
        largest,
        size,
        size,
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
    stream.extend(numbers(&[0, size | size << 16]));
    let mut format = numbers(&[40, size, size, 1 | 24 << 16]);
    format.extend(b"MJPG");
    format.extend(numbers(&[size * size * 3, 0, 0, 0, 0]));
    let streams = [chunk(b"strh", &stream), chunk(b"strf", &format)].concat();
    let headers = [chunk(b"avih", &main), list(b"strl", &streams)].concat();
    let (mut movie, mut index) = (Vec::new(), Vec::new());
    for frame in frames {
        index.extend(b"00dc");
        // A key frame; offsets are counted from the name of the list.
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
