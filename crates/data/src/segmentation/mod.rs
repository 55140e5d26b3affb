//! Pictures and their masks: files -> pairs -> rows of the loader.
//!
//! ```text
//! table                    which files are a pair, from a CSV; `crate::table` lists those of folders and published sets
//! alone                    pictures without masks
//! set                      pairs -> train, validation, test; what masks hold; what pictures are
//! field_of_view            masks that are no annotations
//! coding, histogram        a mask's values or colours -> classes; which values there are
//! whole                    a sample's files -> pixels and classes at their own size
//! fit                      to the size of a model, and probabilities back
//! augment, sample, filters what training draws; where each pixel comes from; blur and noise
//! pair                     a sample -> a row, as training or evaluation sees it
//! cache                    pairs that stay in memory
//! row                      where pixels, mask and counts lie in a row
//! ```

mod alone;
mod augment;
mod cache;
mod coding;
mod field_of_view;
mod filters;
mod fit;
mod histogram;
mod pair;
mod row;
mod sample;
mod set;
mod table;
mod whole;

pub use crate::decode::PixelDepth;
pub use alone::{case_of, is_set, without_masks};
pub(crate) use cache::PairCache;
pub use coding::MaskCoding;
pub use field_of_view::FIELD_OF_VIEW_HINT;
pub(crate) use field_of_view::{Outline, are_fields_of_view};
pub use fit::{probabilities_to_native, resize_mask, resize_pixels};
pub(crate) use pair::PairSummary;
pub use pair::{Fit, PairFraming};
pub use row::{IGNORED, RowShape};
pub use set::{GroupLeaks, SegmentationSet, Survey, picture_sizes};
pub use whole::read_whole;
