//! An array that numpy saved: `[t, h, w, 3]`, `[t, h, w, 1]` or `[t, h, w]` of bytes. Only the sampled frames are read.
//!
//! ```text
//! 0x93 "NUMPY", version, length of the header     a Python dictionary: descr, fortran_order, shape
//! values, the last index fastest
//! ```

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use holdall_files::{NpyError, NpyHeader};

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

impl Npy {
    pub(super) fn open(path: &Path, mut file: StoredFile) -> Result<Npy, DataError> {
        let num_bytes = file.num_bytes();
        let failed = |cause| unread(path, cause);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut start = vec![0; NpyHeader::PREFIX_BYTES];
        file.read_exact(&mut start).map_err(failed)?;
        let broken = |error| broken_clip(path, broken_header(error));
        let data_start = NpyHeader::data_start(&start).map_err(broken)?;
        start.resize(data_start.max(NpyHeader::PREFIX_BYTES), 0);
        file.read_exact(&mut start[NpyHeader::PREFIX_BYTES..])
            .map_err(failed)?;
        let header = NpyHeader::read(&start).map_err(broken)?;
        let (shape, channels) = layout(path, &header)?;
        let [num_frames, height, width] = shape;
        let sides = u32::try_from(width).ok().zip(u32::try_from(height).ok());
        let size = sides.ok_or_else(|| broken_clip(path, format_args!("{width} x {height}")))?;
        let start = data_start as u64;
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
fn layout(path: &Path, header: &NpyHeader) -> Result<([u64; 3], usize), DataError> {
    let refused = |found: &dyn std::fmt::Display, hint: &str| {
        Err(DataError::invalid(
            path.display(),
            "an array [t, h, w, 3] or [t, h, w] of bytes (uint8)",
            found,
            hint,
        ))
    };
    let format = header.format.as_str();
    if !matches!(format, "|u1" | "u1" | "<u1" | "=u1") {
        return refused(
            &format_args!("values of type `{format}`"),
            "`numpy.save(path, array.astype(numpy.uint8))`; values in 0 to 1 times 255 first",
        );
    }
    if header.columns_first {
        return refused(
            &"columns first (Fortran order)",
            "`numpy.save(path, numpy.ascontiguousarray(array))`",
        );
    }
    let dims: Vec<u64> = header.shape.iter().map(|&size| size as u64).collect();
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

fn broken_header(error: NpyError) -> String {
    match error {
        NpyError::Header { expected, found } => {
            format!("a header with {found}, where numpy writes {expected}")
        }
        NpyError::Version(version) => format!("version {version} of the format"),
        NpyError::NotNpy | NpyError::Cut(_) => "a header that numpy does not write".to_owned(),
    }
}
