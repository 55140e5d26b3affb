//! What a check of pictures with masks says: as JSON, and in words.

use std::path::PathBuf;

use serde::Serialize;

use super::report::Severity;

/// What is wrong with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairFault {
    /// The image, or a channel of it, cannot be read.
    ImageUnreadable,
    /// The mask, or the field of view, cannot be read.
    MaskUnreadable,
    /// They have different sizes.
    SizesDiffer,
    /// A pixel of the mask is no class.
    UnknownValue,
    /// The image is on an earlier side of the split too.
    Leak,
    /// A near copy of the image is on an earlier side of the split.
    NearLeak,
    /// Its group is on an earlier side of the split.
    GroupLeak,
    /// Other pairs have the same image and another mask.
    TwoMasks,
    /// The same pixels as an earlier image of its split.
    Duplicate,
    /// A near copy of an earlier image of its split, by its perceptual hash.
    NearDuplicate,
    /// The mask has the background alone.
    EmptyMask,
    /// No pixel counts.
    NothingCounted,
    /// The mask is a field of view and no annotation.
    FieldOfView,
    /// A side has too few pixels.
    TooSmall,
    /// A column is called like one of sides, and its values are not understood.
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

    /// In a few words.
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

    /// Whether a pair that has it cannot be trained on.
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

/// One of the pairs of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairExample {
    /// `train`, `validation` or `test`.
    pub split: &'static str,
    /// Its image.
    pub image: String,
    /// What there is to say beside the kind.
    pub detail: String,
}

/// Pairs that have the same thing wrong with them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairFinding {
    /// What.
    pub kind: PairFault,
    /// How bad.
    pub severity: Severity,
    /// How many.
    pub count: usize,
    /// Of all.
    pub share: f64,
    /// Their rows in the set's table, all of them; empty where the set is folders.
    pub rows: Vec<u32>,
    /// The first few, or all of them.
    pub examples: Vec<PairExample>,
}

/// What a check of pairs found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairReport {
    /// The set.
    pub place: PathBuf,
    /// Pairs of each split.
    pub splits: Vec<(&'static str, usize)>,
    /// Of all splits.
    pub pairs: usize,
    /// That can be trained or tested on.
    pub usable_pairs: usize,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The share of all counted pixels that each class has.
    pub class_shares: Vec<f64>,
    /// Problems first.
    pub findings: Vec<PairFinding>,
}
