//! Report of a check of image and mask pairs.

use std::path::PathBuf;

use serde::Serialize;

use super::report::Severity;

/// Defect of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairFault {
    /// The image, or one of its channel files, cannot be read.
    ImageUnreadable,
    /// The mask, or the field of view, cannot be read.
    MaskUnreadable,
    /// Image and mask differ in size.
    SizesDiffer,
    /// A pixel value of the mask is no class.
    UnknownValue,
    /// The image is also on an earlier side of the split.
    Leak,
    /// A near copy of the image is on an earlier side of the split.
    NearLeak,
    /// The pair's group is also on an earlier side of the split.
    GroupLeak,
    /// Another pair has the same image and a different mask.
    TwoMasks,
    /// The image has the same pixels as an earlier image of its split.
    Duplicate,
    /// The image is a near copy of an earlier image of its split, by its perceptual hash.
    NearDuplicate,
    /// The mask has only background.
    EmptyMask,
    /// Every pixel is ignored.
    NothingCounted,
    /// The mask is a field of view and no annotation.
    FieldOfView,
    /// A side of the image has too few pixels.
    TooSmall,
    /// A column has the name of a split column, but its values are not understood.
    SplitNotUnderstood,
}

impl PairFault {
    pub(super) const ALL: [PairFault; 15] = [
        PairFault::ImageUnreadable,
        PairFault::MaskUnreadable,
        PairFault::SizesDiffer,
        PairFault::UnknownValue,
        PairFault::Leak,
        PairFault::NearLeak,
        PairFault::GroupLeak,
        PairFault::TwoMasks,
        PairFault::Duplicate,
        PairFault::NearDuplicate,
        PairFault::EmptyMask,
        PairFault::NothingCounted,
        PairFault::FieldOfView,
        PairFault::TooSmall,
        PairFault::SplitNotUnderstood,
    ];

    pub fn words(self) -> &'static str {
        match self {
            PairFault::ImageUnreadable => "image cannot be read",
            PairFault::MaskUnreadable => "mask cannot be read",
            PairFault::SizesDiffer => "sizes differ",
            PairFault::UnknownValue => "value is no class",
            PairFault::Leak => "in two splits",
            PairFault::NearLeak => "near copy in two splits",
            PairFault::GroupLeak => "group on both sides",
            PairFault::TwoMasks => "same picture, two masks",
            PairFault::Duplicate => "duplicate",
            PairFault::NearDuplicate => "near-duplicate",
            PairFault::EmptyMask => "empty mask",
            PairFault::NothingCounted => "no pixel counts",
            PairFault::FieldOfView => "mask is a field of view",
            PairFault::TooSmall => "too small",
            PairFault::SplitNotUnderstood => "split not understood",
        }
    }

    pub(super) fn severity(self) -> Severity {
        match self {
            PairFault::Duplicate
            | PairFault::NearDuplicate
            | PairFault::EmptyMask
            | PairFault::TooSmall
            | PairFault::SplitNotUnderstood => Severity::Warning,
            _ => Severity::Problem,
        }
    }

    /// Whether a pair with this defect cannot be trained on.
    pub(super) fn is_fatal(self) -> bool {
        matches!(
            self,
            PairFault::ImageUnreadable
                | PairFault::MaskUnreadable
                | PairFault::SizesDiffer
                | PairFault::UnknownValue
                | PairFault::NothingCounted
        )
    }
}

/// An example pair of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairExample {
    /// `train`, `validation` or `test`.
    pub split: &'static str,
    pub image: String,
    /// Details beyond the kind of defect.
    pub detail: String,
}

/// All pairs with the same defect.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairFinding {
    pub kind: PairFault,
    pub severity: Severity,
    /// Number of pairs.
    pub count: usize,
    /// Share of all pairs.
    pub share: f64,
    /// Rows of all these pairs in the set's table; empty where the set is folders.
    pub rows: Vec<u32>,
    /// The first pairs, up to the configured number of examples.
    pub examples: Vec<PairExample>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairReport {
    /// Folder or table of the set.
    pub place: PathBuf,
    /// Number of pairs in each split.
    pub splits: Vec<(&'static str, usize)>,
    /// Number of pairs in all splits.
    pub pairs: usize,
    /// Number of pairs that can be trained or tested on.
    pub usable_pairs: usize,
    pub classes: Vec<String>,
    /// Share of each class in all counted pixels.
    pub class_shares: Vec<f64>,
    /// Findings, problems before warnings.
    pub findings: Vec<PairFinding>,
}
