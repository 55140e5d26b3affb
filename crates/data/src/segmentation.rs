//! Pictures and their masks: files -> pairs -> rows of the loader.
//!
//! ```text
//! layout, nnunet, table    which files are a pair: published sets, folders, a CSV; by their names (partners)
//! alone                    pictures without masks
//! set                      pairs -> train, validation, test; what masks hold; what pictures are
//! field_of_view            masks that are no annotations
//! coding, histogram        a mask's values or colours -> classes; which values there are
//! whole                    a sample's files -> pixels and classes at their own size
//! fit                      to the size of a model, and probabilities back
//! augment, sample, filters what training draws; where each pixel comes from; blur and noise
//! pair, buffers            a sample -> a row, as training or evaluation sees it; what that takes
//! cache                    pairs that stay in memory
//! row                      where pixels, mask and counts lie in a row
//! ```

mod alone;
mod augment;
mod buffers;
mod cache;
mod coding;
mod field_of_view;
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

pub use alone::{case_of, is_set, without_masks};
pub(crate) use buffers::{PairBuffers, PairCost};
pub(crate) use cache::PairCache;
pub use coding::{MOST_CLASSES, MaskCoding};
pub use field_of_view::FIELD_OF_VIEW_HINT;
pub(crate) use field_of_view::{Outline, are_fields_of_view};
pub use fit::{probabilities_to_native, resize_mask, resize_pixels};
pub(crate) use pair::PairSummary;
pub use pair::{Fit, PairFraming};
pub use row::{IGNORED, PixelDepth, RowShape};
pub use set::{GroupLeaks, SegmentationSet, Survey, picture_sizes};
pub use whole::{WholePicture, read_whole};

/// Extensions of volumes: three-dimensional images, which no model here supports.
const VOLUMES: [&str; 5] = [".nii", ".nii.gz", ".nrrd", ".mha", ".mhd"];

/// Unsupported files that hold pictures or volumes: extension, what the file is, and how to convert it.
const UNREAD: [(&str, &str, &str); 4] = [
    (
        ".npy",
        "an array of NumPy",
        "`PIL.Image.fromarray(numpy.load(\"x.npy\").astype(\"uint8\")).save(\"x.png\")` saves values of 0 to 255 as PNG; values in 0 to 1 times 255 first",
    ),
    (
        ".npz",
        "an archive of NumPy arrays",
        "save each array as PNG: `PIL.Image.fromarray(array.astype(\"uint8\")).save(\"x.png\")`; values in 0 to 1 times 255 first",
    ),
    (".dcm", "a DICOM file", DICOM_HINT),
    (".dicom", "a DICOM file", DICOM_HINT),
];

const DICOM_HINT: &str =
    "`dcmj2pnm --write-16-bit-png x.dcm x.png` of DCMTK, or pydicom's `pixel_array` saved as PNG";

/// Refuses files that are no two-dimensional pictures, by their names.
fn check_readable(folder: &Path, names: &[String]) -> Result<(), DataError> {
    for name in names {
        let lower = name.to_ascii_lowercase();
        let found = if VOLUMES.iter().any(|end| lower.ends_with(end)) {
            let hint = "export its slices as PNG or TIFF: 3-D segmentation is not done here";
            Some(("a picture of two dimensions", "a volume", hint))
        } else {
            let unread = UNREAD.iter().find(|(end, ..)| lower.ends_with(end));
            unread.map(|(_, found, hint)| ("a picture", *found, *hint))
        };
        if let Some((expected, found, hint)) = found {
            return Err(DataError::invalid(
                folder.join(name).display(),
                format_args!("{expected}: PNG, TIFF, JPEG, BMP, GIF or PNM"),
                found,
                hint,
            ));
        }
    }
    Ok(())
}
