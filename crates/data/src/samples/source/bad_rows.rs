//! Rows that are unusable whatever their picture is: a required cell is empty, or the row has more or fewer fields than the
//! header. Like unreadable pictures, they are skipped, counted and reported together.
//!
//! A file with bad rows is read as if they were not in it: the other rows are split, numbered and drawn as they would be in
//! the file that `holdall data clean` writes.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Media, Source};
use crate::config::{BadPictures, DataConfig};
use crate::error::DataError;
use crate::table::{Row, Side};
use crate::words::{counted, thousands};

/// Rows that a message names; the others are counted.
const NUM_NAMED: usize = 5;

/// Why a row is unusable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowFault {
    /// More or fewer fields than the header.
    Fields {
        /// Fields of the header.
        expected: usize,
        /// Fields of the row.
        found: usize,
    },
    /// The image cell is empty.
    NoImage,
    /// The clip cell is empty.
    NoClip,
    /// The caption cell is empty, or the caption rendered from the template is.
    NoCaption,
    /// A cell has an invalid value.
    Cell {
        column: String,
        /// Valid values, in words.
        expected: Cow<'static, str>,
        /// The cell's value.
        found: String,
    },
}

impl Display for RowFault {
    /// The wording of `holdall data check`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowFault::Fields { expected, found } => write!(out, "{found} of {expected} fields"),
            RowFault::NoImage => out.write_str("no image named"),
            RowFault::NoClip => out.write_str("no clip named"),
            RowFault::NoCaption => out.write_str("empty caption"),
            RowFault::Cell {
                column,
                expected,
                found,
            } => write!(
                out,
                "column `{column}`: expected {expected}, found `{found}`"
            ),
        }
    }
}

/// A row that is skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRow {
    /// Line in the file.
    pub row: u32,
    /// Side of the split that the row would be on.
    pub side: Side,
    /// The image cell.
    pub image: String,
    pub fault: RowFault,
}

impl Source {
    /// Reads a row's image and caption into the buffers; returns why the row is unusable, if it is.
    pub(crate) fn read_row(
        &self,
        row: Row<'_>,
        image: &mut String,
        caption: &mut String,
    ) -> Option<RowFault> {
        self.columns.image_into(row, image);
        match &self.columns.caption {
            Some(template) => template.render_into(row, caption),
            None => caption.clear(),
        }
        // A caption made of an empty label would say nothing of the picture.
        let made_of = self.columns.caption_label;
        if made_of.is_some_and(|column| row.cell(column).trim().is_empty()) {
            caption.clear();
        }
        let (expected, found) = (self.table.columns().len(), row.num_fields());
        if found != expected {
            Some(RowFault::Fields { expected, found })
        } else if image.is_empty() {
            Some(match self.media {
                Media::Pictures => RowFault::NoImage,
                Media::Clips => RowFault::NoClip,
            })
        } else if caption.is_empty() && self.columns.caption.is_some() {
            Some(RowFault::NoCaption)
        } else {
            let mut targets = self.columns.targets.iter();
            targets.find_map(|target| target.columns.fault(row, &self.table))
        }
    }
}

/// Bad rows are an error, or a note where the config allows to skip that many.
pub(super) fn check_rows(
    config: &DataConfig,
    csv: &Path,
    bad: &[BadRow],
    num_rows: usize,
) -> Result<Option<String>, DataError> {
    if bad.is_empty() {
        return Ok(None);
    }
    let most = config.max_skipped.get();
    let may_be_skipped = bad.len() < num_rows && bad.len() as f64 <= num_rows as f64 * most;
    if config.bad_pictures == BadPictures::Skip && may_be_skipped {
        return Ok(Some(format!(
            "Careful: {} of {} cannot be used ({}): skipped, as `bad_pictures: skip` says; `holdall data clean {}` \
             writes a list without them",
            thousands(bad.len()),
            counted(num_rows, "row"),
            named(bad),
            csv.display()
        )));
    }
    Err(DataError::BadRows {
        path: csv.to_owned(),
        named: named(bad),
        num_bad: bad.len(),
        num_rows,
        max_skipped: (config.bad_pictures == BadPictures::Skip).then_some(most),
        has_other_fields: bad
            .iter()
            .any(|bad| matches!(bad.fault, RowFault::Fields { .. })),
    })
}

/// `row 7: empty caption, row 9: no image named, and 3 more`.
fn named(bad: &[BadRow]) -> String {
    let first = bad.iter().take(NUM_NAMED);
    let mut named: Vec<String> = first
        .map(|bad| format!("row {}: {}", bad.row, bad.fault))
        .collect();
    if bad.len() > NUM_NAMED {
        named.push(format!("and {} more", thousands(bad.len() - NUM_NAMED)));
    }
    named.join(", ")
}
