//! From a config to lists of samples: the rows of a table with their captions and targets, split and in the order of an epoch.

mod mixing;
mod order;
mod packed_strings;
pub mod picture_record;
mod sample_list;
mod source;
mod split;
mod target;
mod unique_texts;

pub use crate::table::Captions;
pub use mixing::{Cut, Mix};
pub use order::{Order, Sampling, balanced_class_weights, balanced_weights};
pub use sample_list::{Companions, Samples, SamplesBuilder};
pub use source::{
    BadRow, DataSet, Evidence, EvidenceKind, RowFault, TrainedTargets, check_text, evidence, read,
    read_clips, read_clips_with_targets, read_with_labels, read_with_targets, visit_trained_files,
};
pub(crate) use source::{Known, LabelsOfTest, Source};
pub(crate) use split::{held_out, held_out_groups};
pub use target::{ClassRows, Target, TargetKind, TargetValues, UNSEEN};
pub use unique_texts::{CaptionList, read_captions};
