//! What a check says: as JSON, and in words.

use std::path::PathBuf;

use serde::Serialize;

use super::picture_state::State;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A row cannot be trained on, or makes scores look better than they are.
    Problem,
    /// Worth a look.
    Warning,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Fault {
    /// With the picture, which cannot be used.
    Picture(State),
    /// With the row.
    Row(RowKind),
}

/// What is wrong with a row whose picture can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// It says nothing.
    EmptyCaption,
    /// It has more or fewer fields than the header.
    WrongFields,
    /// A cell is no number, or neither 0 nor 1, where it should be.
    BadCell,
    /// Its picture is on an earlier side of the split: trained on, or validated on where the row is for the test.
    Leak,
    /// A near copy of its picture is on an earlier side of the split.
    NearLeak,
    /// Its group is on an earlier side of the split.
    GroupLeak,
    /// Other rows show the same picture under another label.
    TwoLabels,
    /// The same pixels as an earlier row.
    Duplicate,
    /// A near copy of an earlier row's picture, by its perceptual hash.
    NearDuplicate,
    /// A side has too few pixels.
    TooSmall,
    /// A side is too long for the other.
    TooNarrow,
    /// A clip has fewer frames than are seen of one.
    TooShort,
    /// Its label has too few pictures.
    FewOfLabel,
    /// Most rows say the same.
    SameCaption,
    /// Its caption is a word for nothing, such as `nan`.
    NullCaption,
    /// Its label is a word for nothing, such as `nan`.
    NullLabel,
    /// It has no label.
    EmptyLabel,
    /// Its label differs from another by case or blanks alone.
    LabelSpelling,
    /// A column is called like one of sides, and its values are not understood.
    SplitNotUnderstood,
}

/// What `holdall data clean` does with such rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnClean {
    /// They are in neither file.
    Removed,
    /// They are in `_cleaned` and not in `_filtered`.
    Filtered,
    /// They stay: what is wrong has to be put right by hand.
    Kept,
}

impl OnClean {
    /// In a word.
    pub fn words(self) -> &'static str {
        match self {
            OnClean::Removed => "removes",
            OnClean::Filtered => "filters",
            OnClean::Kept => "keeps",
        }
    }
}

impl Fault {
    /// In a few words.
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

    /// What cleaning does with such rows.
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

impl State {
    pub(super) fn words(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Unnamed => "no image named",
            State::Missing => "missing",
            State::ZeroSize => "zero size",
            State::NotAnImage => "not an image",
            State::CutShort => "cut short",
            State::Broken => "broken",
            State::TooManyPixels => "too many pixels",
            State::Unreadable => "cannot be opened",
            State::NotAClip => "not a clip",
            State::OtherFormat => "format not read",
            State::Remote => "URL, not downloaded",
        }
    }
}

/// One of the rows of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// The CSV.
    pub csv: PathBuf,
    /// Its line.
    pub row: u32,
    /// The path in it.
    pub image: String,
    /// What there is to say beside the kind.
    pub detail: Option<String>,
}

/// Rows that have the same thing wrong with them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What.
    pub kind: Fault,
    /// How bad.
    pub severity: Severity,
    /// What `holdall data clean` does with them.
    pub on_clean: OnClean,
    /// How many rows.
    pub count: usize,
    /// Of all.
    pub share: f64,
    /// Lines of the CSV.
    pub rows: Vec<u32>,
    /// Lines of the validation file.
    pub validation_rows: Vec<u32>,
    /// The first few, or all of them.
    pub examples: Vec<Example>,
}

/// How captions repeat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaptionFacts {
    /// Different texts.
    pub different: usize,
    /// The share of rows whose text another row has too.
    pub identical_share: f64,
    /// The text that most rows have.
    pub commonest: String,
    /// How many.
    pub commonest_rows: usize,
}

/// The labels there are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelFacts {
    /// Their column.
    pub column: String,
    /// How many.
    pub count: usize,
    /// Those with too few usable pictures, and how many these have.
    pub few: Vec<(String, usize)>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The CSV.
    pub csv: PathBuf,
    /// Its rows.
    pub rows: usize,
    /// Rows to train, validate and test on, those of the validation file included.
    pub sides: [usize; 3],
    /// Whether the data marks sides; else validation rows are drawn.
    #[serde(skip)]
    pub has_marked_sides: bool,
    /// Rows of the validation file.
    pub validation_rows: usize,
    /// Rows that can be trained or validated on.
    pub usable_rows: usize,
    /// Whether `holdall data clean` can copy rows of it.
    #[serde(skip)]
    pub has_lines: bool,
    /// Problems first.
    pub findings: Vec<Finding>,
    /// How captions repeat.
    pub captions: CaptionFacts,
    /// Labels, if the data has them.
    pub labels: Option<LabelFacts>,
}
