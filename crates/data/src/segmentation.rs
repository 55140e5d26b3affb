//! Pictures and their masks: files -> pairs -> rows of the loader.
//!
//! ```text
//! layout, nnunet, table    which files are a pair: published sets, folders, a CSV; by their names (partners)
//! set                      pairs -> train, validation, test; what masks hold; what pictures are
//! coding, histogram        a mask's values or colours -> classes; which values there are
//! whole                    a sample's files -> pixels and classes at their own size
//! fit                      to the size of a model, and probabilities back
//! augment, sample, filters what training draws; where each pixel comes from; blur and noise
//! pair, buffers            a sample -> a row, as training or evaluation sees it; what that takes
//! cache                    pairs that stay in memory
//! row                      where pixels, mask and counts lie in a row
//! ```

mod augment;
mod buffers;
mod cache;
mod coding;
mod filters;
mod fit;
mod histogram;
pub(crate) mod layout;
mod nnunet;
mod pair;
mod partners;
mod row;
mod sample;
mod set;
mod table;
mod whole;

use std::path::Path;

use crate::error::DataError;

pub(crate) use buffers::{PairBuffers, PairCost};
pub(crate) use cache::PairCache;
pub use coding::{MOST_CLASSES, MaskCoding};
pub use fit::{
    pad_mask, pad_pixels, probabilities_to_native, resize_mask, resize_pixels, unpad_probabilities,
};
pub use pair::{Fit, PairFraming};
pub use row::{IGNORED, PixelDepth, RowShape};
pub use set::{SegmentationSet, Survey, without_masks};
pub use whole::{WholePicture, read_whole};

/// Names of volumes: three dimensions, which no model here has.
const VOLUMES: [&str; 8] = [
    ".nii", ".nii.gz", ".nrrd", ".mha", ".mhd", ".dcm", ".npy", ".npz",
];

fn is_volume(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    VOLUMES.iter().any(|end| name.ends_with(end))
}

fn volume_refused(path: &Path) -> DataError {
    DataError::invalid(
        path.display(),
        "a picture of two dimensions: PNG, TIFF, JPEG, BMP, GIF or PNM",
        "a volume",
        "export its slices as PNG or TIFF: 3-D segmentation is not done here",
    )
}
