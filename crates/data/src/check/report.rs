//! Report of a check of rows.

use std::path::PathBuf;

use serde::Serialize;

use super::picture_state::PictureState;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The row cannot be trained on, or inflates scores.
    Problem,
    /// Worth a look.
    Warning,
}

/// Defect of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Fault {
    /// The row's picture or clip cannot be used.
    Picture(PictureState),
    Row(RowKind),
}

/// Defect of a row whose picture can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// The caption is empty.
    EmptyCaption,
    /// The row has more or fewer fields than the header.
    WrongFields,
    /// A cell of a number column is no number, or a cell of a 0/1 column is neither.
    BadCell,
    /// The picture is also on an earlier side of the split: a validation picture in training, or a test picture in either.
    Leak,
    /// A near copy of the picture is on an earlier side of the split.
    NearLeak,
    /// The row's group is also on an earlier side of the split.
    GroupLeak,
    /// Another row shows the same picture under another label.
    TwoLabels,
    /// The picture has the same pixels as an earlier row's.
    Duplicate,
    /// The picture is a near copy of an earlier row's, by its perceptual hash.
    NearDuplicate,
    /// A side of the picture has too few pixels.
    TooSmall,
    /// The ratio of the picture's sides is too large.
    TooNarrow,
    /// The clip has fewer frames than training uses of each clip.
    TooShort,
    /// The label has too few pictures.
    FewOfLabel,
    /// Most rows have this caption.
    SameCaption,
    /// The caption is a null word, such as `nan`.
    NullCaption,
    /// The label is a null word, such as `nan`.
    NullLabel,
    /// The label is empty.
    EmptyLabel,
    /// The label differs from another only in case, blanks, underscores or hyphens.
    LabelSpelling,
    /// A column has the name of a split column, but its values are not understood.
    SplitNotUnderstood,
}

/// Effect of `holdall data clean` on rows with a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnClean {
    /// The rows are in neither output file.
    Removed,
    /// The rows are in `_cleaned` and not in `_filtered`.
    Filtered,
    /// The rows stay; only the user can correct them.
    Kept,
}

impl OnClean {
    pub fn words(self) -> &'static str {
        match self {
            OnClean::Removed => "removes",
            OnClean::Filtered => "filters",
            OnClean::Kept => "keeps",
        }
    }
}

impl Fault {
    pub fn words(self) -> &'static str {
        match self {
            Fault::Picture(state) => state.words(),
            Fault::Row(RowKind::EmptyCaption) => "empty caption",
            Fault::Row(RowKind::WrongFields) => "wrong number of fields",
            Fault::Row(RowKind::BadCell) => "not a number, not 0 or 1",
            Fault::Row(RowKind::Leak) => "in two splits",
            Fault::Row(RowKind::NearLeak) => "near copy in two splits",
            Fault::Row(RowKind::GroupLeak) => "group on both sides",
            Fault::Row(RowKind::TwoLabels) => "same picture, two labels",
            Fault::Row(RowKind::Duplicate) => "duplicate",
            Fault::Row(RowKind::NearDuplicate) => "near-duplicate",
            Fault::Row(RowKind::TooSmall) => "too small",
            Fault::Row(RowKind::TooNarrow) => "too narrow",
            Fault::Row(RowKind::TooShort) => "too few frames",
            Fault::Row(RowKind::FewOfLabel) => "few of its label",
            Fault::Row(RowKind::SameCaption) => "same caption",
            Fault::Row(RowKind::NullCaption) => "caption like nan, None",
            Fault::Row(RowKind::NullLabel) => "label like nan, None",
            Fault::Row(RowKind::EmptyLabel) => "empty label",
            Fault::Row(RowKind::LabelSpelling) => "label spelt two ways",
            Fault::Row(RowKind::SplitNotUnderstood) => "split not understood",
        }
    }

    pub fn on_clean(self) -> OnClean {
        match self {
            Fault::Picture(_)
            | Fault::Row(RowKind::EmptyCaption | RowKind::WrongFields | RowKind::BadCell) => {
                OnClean::Removed
            }
            Fault::Row(
                RowKind::Leak
                | RowKind::TwoLabels
                | RowKind::Duplicate
                | RowKind::TooSmall
                | RowKind::TooNarrow
                | RowKind::TooShort
                | RowKind::FewOfLabel
                | RowKind::NullCaption
                | RowKind::NullLabel,
            ) => OnClean::Filtered,
            Fault::Row(
                RowKind::GroupLeak
                | RowKind::NearLeak
                | RowKind::NearDuplicate
                | RowKind::SameCaption
                | RowKind::EmptyLabel
                | RowKind::LabelSpelling
                | RowKind::SplitNotUnderstood,
            ) => OnClean::Kept,
        }
    }

    pub(super) fn severity(self) -> Severity {
        match self {
            Fault::Picture(_)
            | Fault::Row(
                RowKind::EmptyCaption
                | RowKind::WrongFields
                | RowKind::BadCell
                | RowKind::Leak
                | RowKind::NearLeak
                | RowKind::GroupLeak
                | RowKind::TwoLabels
                | RowKind::NullCaption
                | RowKind::NullLabel,
            ) => Severity::Problem,
            Fault::Row(_) => Severity::Warning,
        }
    }
}

impl PictureState {
    pub(super) fn words(self) -> &'static str {
        match self {
            PictureState::Good => "good",
            PictureState::Unnamed => "no image named",
            PictureState::Missing => "missing",
            PictureState::ZeroSize => "zero size",
            PictureState::NotAnImage => "not an image",
            PictureState::CutShort => "cut short",
            PictureState::Broken => "broken",
            PictureState::TooManyPixels => "too many pixels",
            PictureState::Unreadable => "cannot be opened",
            PictureState::NotAClip => "not a clip",
            PictureState::OtherFormat => "format not read",
            PictureState::Remote => "URL, not downloaded",
        }
    }
}

/// An example row of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// The CSV, or the validation file.
    pub csv: PathBuf,
    /// Line number in the CSV.
    pub row: u32,
    /// Path in the image column.
    pub image: String,
    /// Details beyond the kind of defect.
    pub detail: Option<String>,
}

/// All rows with the same defect.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub kind: Fault,
    pub severity: Severity,
    pub on_clean: OnClean,
    /// Number of rows.
    pub count: usize,
    /// Share of all rows.
    pub share: f64,
    /// Line numbers in the CSV.
    pub rows: Vec<u32>,
    /// Line numbers in the validation file.
    pub validation_rows: Vec<u32>,
    /// The first rows, up to the configured number of examples.
    pub examples: Vec<Example>,
}

/// Statistics of repeated captions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaptionFacts {
    /// Number of different captions.
    pub different: usize,
    /// Share of captioned rows whose caption another row has too.
    pub identical_share: f64,
    /// The most frequent caption.
    pub commonest: String,
    /// Rows with the most frequent caption.
    pub commonest_rows: usize,
}

/// Statistics of labels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelFacts {
    /// Name of the label column.
    pub column: String,
    /// Number of labels.
    pub count: usize,
    /// Labels with too few usable pictures, and their counts.
    pub few: Vec<(String, usize)>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub csv: PathBuf,
    /// Number of rows.
    pub rows: usize,
    /// Number of rows for training, validation and test, including those of the validation file.
    pub sides: [usize; 3],
    /// Whether the data marks sides; else validation rows are drawn at random.
    #[serde(skip)]
    pub has_marked_sides: bool,
    /// Number of rows in the validation file.
    pub validation_rows: usize,
    /// Number of rows that can be trained or validated on.
    pub usable_rows: usize,
    /// Whether the data is a file of rows that `holdall data clean` can copy.
    #[serde(skip)]
    pub has_lines: bool,
    /// Findings, problems before warnings.
    pub findings: Vec<Finding>,
    pub captions: CaptionFacts,
    pub labels: Option<LabelFacts>,
}
