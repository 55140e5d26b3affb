//! Decodes one picture or clip completely: a truncated file shows only at its end.

use std::path::Path;

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::decode::{self, ClipFile, Fingerprint, Scratch};
use crate::error::DataError;
use crate::media::Media;
use crate::stored_file;

/// Result of decoding a picture or clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureState {
    /// Decoded without error.
    Good,
    /// The row has no path.
    Unnamed,
    /// The file does not exist.
    Missing,
    /// The file has no bytes, or the picture no pixels.
    ZeroSize,
    /// The file is not a picture.
    NotAnImage,
    /// The file is truncated.
    CutShort,
    /// The file cannot be decoded.
    Broken,
    /// The header declares more pixels than the limit: a mistake, or a decompression bomb. Also a picture over the memory budget.
    TooManyPixels,
    /// The system denies reading, or a program that is needed to read it is not installed.
    Unreadable,
    /// The file is not a clip.
    NotAClip,
    /// The picture has a format, or a variant of one, that is not supported.
    OtherFormat,
    /// The path is a URL; nothing is downloaded.
    Remote,
}

impl PictureState {
    fn of(error: &DataError, num_bytes: usize) -> PictureState {
        match error {
            DataError::PictureMissing { .. } => PictureState::Missing,
            DataError::NotAPicture { .. } if num_bytes == 0 => PictureState::ZeroSize,
            DataError::PictureEmpty { .. } => PictureState::ZeroSize,
            DataError::PictureRefused { .. } => PictureState::OtherFormat,
            DataError::NotAPicture { .. } => PictureState::NotAnImage,
            DataError::NotAClip { .. } if num_bytes == 0 => PictureState::ZeroSize,
            DataError::NotAClip { .. } => PictureState::NotAClip,
            DataError::PictureTruncated { .. } | DataError::ClipTruncated { .. } => {
                PictureState::CutShort
            }
            DataError::PictureTooLarge { .. }
            | DataError::PictureFileTooLarge { .. }
            | DataError::PictureOverBudget { .. } => PictureState::TooManyPixels,
            DataError::Io { .. }
            | DataError::PictureNotAFile { .. }
            | DataError::NoFfmpeg { .. } => PictureState::Unreadable,
            _ => PictureState::Broken,
        }
    }
}

/// Facts about a decoded picture or clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) state: PictureState,
    /// In pixels; 0 where unknown.
    pub(super) width: u32,
    pub(super) height: u32,
    /// Frames of a clip; 1 for a picture.
    pub(super) num_frames: u32,
    /// Hash of a picture's pixels, or of a clip's bytes.
    pub(super) contents: u128,
    /// Perceptual hash of a picture; `None` without enough contrast.
    pub(super) fingerprint: Option<Fingerprint>,
}

impl Look {
    /// The facts of a row without a decodable file.
    pub(super) fn without_file(state: PictureState) -> Look {
        Look {
            state,
            width: 0,
            height: 0,
            num_frames: 0,
            contents: 0,
            fingerprint: None,
        }
    }

    pub(super) fn at(path: &Path, media: Media, scratch: &mut Scratch) -> Look {
        match media {
            Media::Pictures => Look::at_picture(path, scratch),
            Media::Clips => Look::at_clip(path, scratch),
        }
    }

    /// Decodes every frame.
    fn at_clip(path: &Path, scratch: &mut Scratch) -> Look {
        let seen = ClipFile::open(path).and_then(|mut clip| {
            let (width, height) = clip.probe(scratch)?;
            let contents = clip.contents().map_err(|cause| DataError::Io {
                path: path.to_owned(),
                action: "read the clip",
                cause,
            })?;
            Ok(Look {
                state: PictureState::Good,
                width,
                height,
                num_frames: clip.num_frames() as u32,
                contents,
                fingerprint: None,
            })
        });
        seen.unwrap_or_else(|error| {
            let stored = stored_file::stamp(path).map(|file| file.num_bytes);
            // A folder of frames has a size too, and so does not count as empty.
            let num_bytes = stored.or_else(|| Some(path.metadata().ok()?.len()));
            let num_bytes = num_bytes.unwrap_or(0);
            Look::without_file(PictureState::of(&error, num_bytes as usize))
        })
    }

    fn at_picture(path: &Path, scratch: &mut Scratch) -> Look {
        match decode::probe(path, scratch) {
            Ok((width, height)) => {
                let (columns, rows) = (width as usize, height as usize);
                let pixels = scratch.rgb();
                Look {
                    state: PictureState::Good,
                    width,
                    height,
                    num_frames: 1,
                    contents: xxh3_128_with_seed(pixels, u64::from(width)),
                    fingerprint: Fingerprint::of(pixels, columns, rows),
                }
            }
            Err(error) => {
                let (width, height) = match error {
                    DataError::PictureTooLarge { width, height, .. } => (width, height),
                    _ => (0, 0),
                };
                Look {
                    width,
                    height,
                    ..Look::without_file(PictureState::of(&error, scratch.file().len()))
                }
            }
        }
    }
}
