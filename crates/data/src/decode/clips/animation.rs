//! GIF and animated WebP, by the `image` crate. A frame is drawn over the one before, so all frames up to the last sampled one are decoded.
//! Each sampled frame is written to its row at once; no frame is kept.

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use image::codecs::gif::GifDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, Frame, ImageDecoder, ImageError};

use super::file::{FrameRows, broken_clip, unread};
use super::{MOST_FRAMES, gif_blocks, webp_chunks};
use crate::decode::picture::{
    CHANNELS, Cost, Framing, Limits, Scratch, animated_webp_bytes, broken, check_frame_size,
    check_webp, contained, encoded_frame_cost, frame_cost, header_size,
};
use crate::error::DataError;
use crate::stored_file::StoredFile;

/// Limit on the pixels of all frames together, as a multiple of the limit of one picture: a small file of many large frames would take
/// hours.
const MOST_PIXELS_IN_ALL: u64 = 64;

#[derive(Debug)]
pub(super) struct Animation {
    kind: AnimationKind,
    file: StoredFile,
    num_bytes: u64,
    pub(super) num_frames: usize,
    pub(super) size: (u32, u32),
    decoder_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnimationKind {
    Gif,
    Webp,
    /// A WebP of one frame: a plain picture.
    StillWebp,
}

/// Bytes at the start of a WebP that contain its size.
const HEADER_BYTES: u64 = 4 << 10;

impl Animation {
    pub(super) fn gif(
        path: &Path,
        mut file: StoredFile,
        limits: Limits,
    ) -> Result<Animation, DataError> {
        let num_bytes = file.num_bytes();
        check_file(path, num_bytes, limits)?;
        let failed = |cause| unread(path, cause);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let facts = gif_blocks::count(&mut file, MOST_FRAMES).map_err(failed)?;
        let canvas = u64::from(facts.size.0) * u64::from(facts.size.1);
        if facts.most_frame_pixels > limits.most_pixels {
            return Err(broken_clip(path, "a frame with more pixels than are read"));
        }
        Ok(Animation {
            kind: AnimationKind::Gif,
            file,
            num_bytes,
            num_frames: facts.num_frames,
            size: facts.size,
            // Three RGBA buffers (the canvas, the frame laid on it, the picture handed over), and the frame's indices and colours.
            decoder_bytes: 12 * canvas + 9 * facts.most_frame_pixels,
        })
    }

    pub(super) fn webp(
        path: &Path,
        mut file: StoredFile,
        limits: Limits,
    ) -> Result<Animation, DataError> {
        let num_bytes = file.num_bytes();
        check_file(path, num_bytes, limits)?;
        let failed = |cause| unread(path, cause);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let num_frames = webp_chunks::count_frames(&mut file, MOST_FRAMES).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut start = Vec::new();
        let read = (&mut file).take(HEADER_BYTES).read_to_end(&mut start);
        read.map_err(failed)?;
        let Some(size) = header_size(&start) else {
            return Err(broken_clip(path, "a WebP without a size"));
        };
        Ok(Animation {
            kind: match num_frames {
                0 => AnimationKind::StillWebp,
                _ => AnimationKind::Webp,
            },
            file,
            num_bytes,
            num_frames: num_frames.max(1),
            size,
            // The decoder's memory beyond the header's share grows with the file.
            decoder_bytes: animated_webp_bytes(&start).unwrap_or(0) + 6 * num_bytes,
        })
    }

    pub(super) fn cost(&self, framing: Framing) -> Cost {
        frame_cost(self.size, self.num_bytes, self.decoder_bytes, framing)
    }

    pub(super) fn read(
        &mut self,
        path: &Path,
        limits: Limits,
        rows: &mut FrameRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        check_frame_size(path, self.size, limits)?;
        let canvas = u64::from(self.size.0) * u64::from(self.size.1);
        if canvas.saturating_mul(self.num_frames as u64) > limits.most_pixels * MOST_PIXELS_IN_ALL {
            return Err(broken_clip(
                path,
                format_args!("{} frames of {canvas} pixels", self.num_frames),
            ));
        }
        scratch.claim_frame(path, self.size, self.cost(rows.framing()))?;
        let buffer = scratch.file_buffer(self.num_bytes as usize);
        let failed = |cause| unread(path, cause);
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.file.read_exact(buffer).map_err(failed)?;
        let bytes = scratch.take_file();
        let read = contained(path, || match self.kind {
            AnimationKind::StillWebp => Ok(()),
            AnimationKind::Gif => {
                let mut decoder = GifDecoder::new(Cursor::new(&bytes[..]))
                    .map_err(|cause| broken(path, cause))?;
                self.limit(path, &mut decoder)?;
                let frames = decoder.into_frames();
                write_frames(path, frames, rows, scratch)
            }
            AnimationKind::Webp => {
                check_webp(path, &bytes, limits)?;
                let mut decoder = WebPDecoder::new(Cursor::new(&bytes[..]))
                    .map_err(|cause| broken(path, cause))?;
                self.limit(path, &mut decoder)?;
                let frames = decoder.into_frames();
                write_frames(path, frames, rows, scratch)
            }
        });
        scratch.put_file(bytes);
        read?;
        if self.kind == AnimationKind::StillWebp {
            let cost = encoded_frame_cost(scratch.file(), self.num_bytes, rows.framing());
            scratch.claim_frame(path, self.size, cost)?;
            return rows.write_loaded(path, scratch);
        }
        Ok(())
    }

    fn limit(&self, path: &Path, decoder: &mut impl ImageDecoder) -> Result<(), DataError> {
        let mut limits = image::Limits::no_limits();
        limits.max_alloc = Some(self.decoder_bytes + self.num_bytes);
        decoder
            .set_limits(limits)
            .map_err(|cause| broken(path, cause))?;
        if decoder.dimensions() == self.size {
            Ok(())
        } else {
            Err(broken_clip(path, "another size than its header says"))
        }
    }
}

fn check_file(path: &Path, num_bytes: u64, limits: Limits) -> Result<(), DataError> {
    if num_bytes > limits.most_file_bytes {
        Err(DataError::PictureFileTooLarge {
            path: path.to_owned(),
            most_bytes: limits.most_file_bytes,
        })
    } else {
        Ok(())
    }
}

/// Writes the sampled ones of frames that arrive in order.
fn write_frames(
    path: &Path,
    mut frames: impl Iterator<Item = Result<Frame, ImageError>>,
    rows: &mut FrameRows<'_>,
    scratch: &mut Scratch,
) -> Result<(), DataError> {
    let mut number = 0;
    while let Some(wanted) = rows.wanted() {
        let frame = match frames.next() {
            Some(frame) => frame.map_err(|cause| broken(path, cause))?,
            None => {
                return Err(broken_clip(
                    path,
                    format_args!("{number} frames where its blocks are those of more"),
                ));
            }
        };
        if number == wanted {
            let picture = frame.into_buffer();
            let size = picture.dimensions();
            let (rgba, _) = picture.as_raw().as_chunks::<4>();
            let rgb = scratch.pixel_buffer(rgba.len() * CHANNELS);
            let (rgb, _) = rgb.as_chunks_mut::<CHANNELS>();
            for (rgb, &[r, g, b, _]) in rgb.iter_mut().zip(rgba) {
                *rgb = [r, g, b];
            }
            rows.write_pixels(path, size, scratch)?;
        }
        number += 1;
    }
    Ok(())
}
