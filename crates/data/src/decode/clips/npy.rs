//! An array that numpy saved: `[t, h, w, 3]`, `[t, h, w, 1]` or `[t, h, w]` of bytes. Only the sampled frames are read.
//!
//! ```text
//! 0x93 "NUMPY", version, length of the header     a Python dictionary: descr, fortran_order, shape
//! values, the last index fastest
//! ```

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::file::{FrameRows, broken_clip, cut_short, unread};
use crate::decode::picture::{
    CHANNELS, Cost, Framing, Limits, Scratch, check_frame_size, frame_cost,
};
use crate::error::DataError;
use crate::stored_file::StoredFile;

#[derive(Debug)]
pub(super) struct Npy {
    file: StoredFile,
    /// Offset of the values.
    start: u64,
    pub(super) num_frames: usize,
    pub(super) size: (u32, u32),
    /// 1 or 3.
    channels: usize,
}

/// Limit on the header, which is one line of text.
const MOST_HEADER_BYTES: u64 = 64 << 10;

impl Npy {
    pub(super) fn open(path: &Path, mut file: StoredFile) -> Result<Npy, DataError> {
        let num_bytes = file.num_bytes();
        let failed = |cause| unread(path, cause);
        file.seek(SeekFrom::Start(6)).map_err(failed)?;
        let mut fixed = [0; 6];
        file.read_exact(&mut fixed).map_err(failed)?;
        let [major, _, a, b, c, d] = fixed;
        let (header_start, header_bytes) = match major {
            1 => (10, u64::from(u16::from_le_bytes([a, b]))),
            _ => (12, u64::from(u32::from_le_bytes([a, b, c, d]))),
        };
        if header_bytes > MOST_HEADER_BYTES {
            return Err(broken_clip(
                path,
                format_args!("a header of {header_bytes} bytes"),
            ));
        }
        file.seek(SeekFrom::Start(header_start)).map_err(failed)?;
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(failed)?;
        let header = String::from_utf8_lossy(&header);
        let (shape, channels) = layout(path, &header)?;
        let [num_frames, height, width] = shape;
        let sides = u32::try_from(width).ok().zip(u32::try_from(height).ok());
        let size = sides.ok_or_else(|| broken_clip(path, format_args!("{width} x {height}")))?;
        let start = header_start + header_bytes;
        let needed = num_frames
            .checked_mul(height)
            .and_then(|rows| rows.checked_mul(width))
            .and_then(|pixels| pixels.checked_mul(channels as u64))
            .and_then(|bytes| bytes.checked_add(start));
        if needed.is_none_or(|needed| needed > num_bytes) {
            return Err(cut_short(path));
        }
        Ok(Npy {
            file,
            start,
            num_frames: usize::try_from(num_frames).unwrap_or(usize::MAX),
            size,
            channels,
        })
    }

    fn frame_bytes(&self) -> u64 {
        u64::from(self.size.0) * u64::from(self.size.1) * self.channels as u64
    }

    pub(super) fn cost(&self, framing: Framing) -> Cost {
        frame_cost(self.size, 0, 0, framing)
    }

    pub(super) fn read(
        &mut self,
        path: &Path,
        limits: Limits,
        rows: &mut FrameRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        check_frame_size(path, self.size, limits)?;
        scratch.claim_frame(path, self.size, self.cost(rows.framing()))?;
        let failed = |cause| unread(path, cause);
        let frame_bytes = self.frame_bytes();
        let num_pixels = self.size.0 as usize * self.size.1 as usize;
        while let Some(frame) = rows.wanted() {
            let at = self.start + frame as u64 * frame_bytes;
            self.file.seek(SeekFrom::Start(at)).map_err(failed)?;
            let pixels = scratch.pixel_buffer(num_pixels * CHANNELS);
            let values = &mut pixels[..frame_bytes as usize];
            self.file.read_exact(values).map_err(failed)?;
            if self.channels == 1 {
                // From the end, so that each grey value is read before its pixel's colours overwrite it.
                for pixel in (0..num_pixels).rev() {
                    let grey = pixels[pixel];
                    pixels[pixel * CHANNELS..][..CHANNELS].fill(grey);
                }
            }
            rows.write_pixels(path, self.size, scratch)?;
        }
        Ok(())
    }
}

/// Frames, height and width, and channels of a pixel.
fn layout(path: &Path, header: &str) -> Result<([u64; 3], usize), DataError> {
    let refused = |found: &dyn std::fmt::Display, hint: &str| {
        Err(DataError::invalid(
            path.display(),
            "an array [t, h, w, 3] or [t, h, w] of bytes (uint8)",
            found,
            hint,
        ))
    };
    let (Some(descr), Some(order), Some(shape)) = (
        value_of(header, "descr"),
        value_of(header, "fortran_order"),
        value_of(header, "shape"),
    ) else {
        return Err(broken_clip(path, "a header that numpy does not write"));
    };
    let kind = descr.trim().trim_matches(['\'', '"']);
    if !matches!(kind, "|u1" | "u1" | "<u1" | "=u1") {
        return refused(
            &format_args!("values of type `{kind}`"),
            "`numpy.save(path, array.astype(numpy.uint8))`; values in 0 to 1 times 255 first",
        );
    }
    if order.trim_start().starts_with("True") {
        return refused(
            &"columns first (Fortran order)",
            "`numpy.save(path, numpy.ascontiguousarray(array))`",
        );
    }
    let dims = shape.trim_start().strip_prefix('(');
    let dims = dims
        .and_then(|rest| rest.split_once(')'))
        .map(|(dims, _)| dims);
    let dims: Option<Vec<u64>> = dims.map(|dims| {
        let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        // A dimension that is not a number becomes 0, which no clip has.
        dims.map(|dim| dim.parse().unwrap_or(0)).collect()
    });
    let dims = dims.unwrap_or_default();
    match dims[..] {
        [t, h, w, c @ (1 | 3)] if t > 0 => Ok(([t, h, w], c as usize)),
        [t, h, w] if t > 0 && w > 3 => Ok(([t, h, w], 1)),
        [_, 1 | 3, _, _] => refused(
            &format_args!("{dims:?}, channels before rows"),
            "`numpy.save(path, array.transpose(0, 2, 3, 1))`",
        ),
        [_, _, _, 4] => refused(
            &format_args!("{dims:?}, with alpha"),
            "`numpy.save(path, array[..., :3])`",
        ),
        _ => refused(
            &format_args!("{dims:?}"),
            "a clip is t frames of h x w pixels of 3 colours, or of greys",
        ),
    }
}

/// Text behind a key of the header.
fn value_of<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let quoted = [format!("'{key}'"), format!("\"{key}\"")];
    let at = quoted.iter().find_map(|key| {
        let start = header.find(key.as_str())?;
        Some(start + key.len())
    })?;
    let value = header[at..].trim_start().strip_prefix(':')?;
    // A shape contains commas of its own.
    Some(if value.trim_start().starts_with('(') {
        value
    } else {
        value.split([',', '}']).next().unwrap_or_default()
    })
}
