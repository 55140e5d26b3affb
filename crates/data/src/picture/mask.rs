//! A mask file to classes, one byte a pixel: black is 0 and white is 1. What is in between is an error that names the
//! pixel, unless a threshold was asked for: a mask that was saved as JPEG, or scaled with a filter, has such pixels all
//! along its edges, and nobody meant them as classes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CHANNELS, Scratch, decode};
use crate::error::DataError;

/// Which grey values of a mask are which class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<u8>", into = "Option<u8>")]
pub enum Binarize {
    /// 0 is class 0 and 255 is class 1; there must be no others.
    #[default]
    Never,
    /// This value and all above it are class 1.
    At(u8),
}

impl From<Option<u8>> for Binarize {
    fn from(threshold: Option<u8>) -> Binarize {
        threshold.map_or(Binarize::Never, Binarize::At)
    }
}

impl From<Binarize> for Option<u8> {
    fn from(binarize: Binarize) -> Option<u8> {
        match binarize {
            Binarize::Never => None,
            Binarize::At(threshold) => Some(threshold),
        }
    }
}

/// Reads a mask's classes over what `classes` held, rows from the top. Returns width and height.
pub fn mask_into(
    path: &Path,
    binarize: Binarize,
    scratch: &mut Scratch,
    classes: &mut Vec<u8>,
) -> Result<(u32, u32), DataError> {
    let limits = scratch.limits;
    let size = decode::read_file(path, None, scratch).and_then(|()| {
        let file = std::mem::take(&mut scratch.file);
        let size = mask_from(path, &file, binarize, scratch, classes);
        scratch.file = file;
        size
    });
    scratch.limits = limits;
    size
}

/// As [`mask_into`], of a mask that is in memory; `path` is for messages.
pub fn mask_from(
    path: &Path,
    bytes: &[u8],
    binarize: Binarize,
    scratch: &mut Scratch,
    classes: &mut Vec<u8>,
) -> Result<(u32, u32), DataError> {
    let (width, height) = decode::decode_mask_bytes(path, bytes, scratch)?;
    classes.clear();
    classes.reserve_exact(width as usize * height as usize);
    let (pixels, _) = scratch.rgb.as_chunks::<CHANNELS>();
    for (at, pixel) in pixels.iter().enumerate() {
        match class(*pixel, binarize) {
            Some(class) => classes.push(class),
            None => return Err(no_class(path, *pixel, at, width)),
        }
    }
    Ok((width, height))
}

fn class([r, g, b]: [u8; CHANNELS], binarize: Binarize) -> Option<u8> {
    if r != g || g != b {
        return None;
    }
    match (binarize, r) {
        (Binarize::At(threshold), grey) => Some(u8::from(grey >= threshold)),
        (Binarize::Never, 0) => Some(0),
        (Binarize::Never, 255) => Some(1),
        (Binarize::Never, _) => None,
    }
}

fn no_class(path: &Path, [r, g, b]: [u8; CHANNELS], at: usize, width: u32) -> DataError {
    let path = path.to_owned();
    let (x, y) = (at as u32 % width, at as u32 / width);
    if r != g || g != b {
        let found = [r, g, b];
        return DataError::MaskColour { path, found, x, y };
    }
    let value = u16::from(r);
    DataError::MaskValue {
        path,
        value,
        white: 255,
        x,
        y,
    }
}
