//! A look at one picture or clip: decoded to its last pixel, because a file that is cut short shows it nowhere else.

use std::path::Path;

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::clips::ClipFile;
use crate::error::DataError;
use crate::fingerprint::Fingerprint;
use crate::picture::{self, Scratch};
use crate::source::Media;
use crate::stored_file;

/// What became of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was read.
    Good,
    /// The row names none.
    Unnamed,
    /// There is no file.
    Missing,
    /// No bytes, or no pixels.
    ZeroSize,
    /// A file of something else.
    NotAnImage,
    /// It stops before its end.
    CutShort,
    /// It cannot be decoded.
    Broken,
    /// It says that it has more pixels than any picture should: a mistake, or a decompression bomb.
    TooManyPixels,
    /// The system would not let it be read, or a program that reads it is not installed.
    Unreadable,
    /// A file of something else, where a clip should be.
    NotAClip,
    /// A picture of a format, or of a kind, that is not read.
    OtherFormat,
    /// An address on the network: nothing is downloaded.
    Remote,
}

impl State {
    fn of(error: &DataError, num_bytes: usize) -> State {
        match error {
            DataError::PictureMissing { .. } => State::Missing,
            DataError::NotAPicture { .. } if num_bytes == 0 => State::ZeroSize,
            DataError::PictureEmpty { .. } => State::ZeroSize,
            DataError::PictureRefused { .. } => State::OtherFormat,
            DataError::NotAPicture { .. } => State::NotAnImage,
            DataError::NotAClip { .. } if num_bytes == 0 => State::ZeroSize,
            DataError::NotAClip { .. } => State::NotAClip,
            DataError::PictureTruncated { .. } | DataError::ClipTruncated { .. } => State::CutShort,
            DataError::PictureTooLarge { .. }
            | DataError::PictureFileTooLarge { .. }
            | DataError::PictureOverBudget { .. } => State::TooManyPixels,
            DataError::Io { .. }
            | DataError::PictureNotAFile { .. }
            | DataError::NoFfmpeg { .. } => State::Unreadable,
            _ => State::Broken,
        }
    }
}

/// What a look showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) state: State,
    /// In pixels, as far as they are known.
    pub(super) width: u32,
    pub(super) height: u32,
    /// Of a clip; 1 of a picture.
    pub(super) num_frames: u32,
    /// Hash of a picture's pixels, or of a clip's bytes.
    pub(super) contents: u128,
    /// Of a picture with some contrast.
    pub(super) fingerprint: Option<Fingerprint>,
}

impl Look {
    /// At nothing.
    pub(super) fn without_file(state: State) -> Look {
        Look {
            state,
            width: 0,
            height: 0,
            num_frames: 0,
            contents: 0,
            fingerprint: None,
        }
    }

    /// At what is in a file.
    pub(super) fn at(path: &Path, media: Media, scratch: &mut Scratch) -> Look {
        match media {
            Media::Pictures => Look::at_picture(path, scratch),
            Media::Clips => Look::at_clip(path, scratch),
        }
    }

    /// At every frame.
    fn at_clip(path: &Path, scratch: &mut Scratch) -> Look {
        let seen = ClipFile::open(path).and_then(|mut clip| {
            let (width, height) = clip.probe(scratch)?;
            let contents = clip.contents().map_err(|cause| DataError::Io {
                path: path.to_owned(),
                action: "read the clip",
                cause,
            })?;
            Ok(Look {
                state: State::Good,
                width,
                height,
                num_frames: clip.num_frames() as u32,
                contents,
                fingerprint: None,
            })
        });
        seen.unwrap_or_else(|error| {
            let stored = stored_file::stamp(path).map(|file| file.num_bytes);
            // A folder of frames has bytes, too.
            let num_bytes = stored.or_else(|| Some(path.metadata().ok()?.len()));
            let num_bytes = num_bytes.unwrap_or(0);
            Look::without_file(State::of(&error, num_bytes as usize))
        })
    }

    fn at_picture(path: &Path, scratch: &mut Scratch) -> Look {
        match picture::probe(path, scratch) {
            Ok((width, height)) => {
                let (columns, rows) = (width as usize, height as usize);
                let pixels = scratch.rgb();
                Look {
                    state: State::Good,
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
                    ..Look::without_file(State::of(&error, scratch.file().len()))
                }
            }
        }
    }
}
