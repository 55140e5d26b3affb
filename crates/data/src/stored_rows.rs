//! Rows that are computed once and kept on disk: what a frozen tower leaves of each sample, in the place of its pictures.
//!
//! A sample that could not be read then is read once more when its turn comes, so that a run says what is wrong with its files.

use std::io;
use std::sync::Arc;

use crate::clips::ClipFraming;
use crate::error::DataError;
use crate::picture::{Occasion, Scratch};
use crate::rows_file::{RowsFile, failed};
use crate::samples::Samples;

/// Rows of the lists of a run, each as training or as evaluation sees its samples.
#[derive(Debug)]
pub struct StoredRows {
    /// How samples are read that rows are computed from: says what is wrong with one that cannot be.
    framing: ClipFraming,
    lists: Vec<StoredList>,
}

/// Rows of one list.
#[derive(Debug)]
pub struct StoredList {
    /// The samples.
    pub samples: Arc<Samples>,
    /// Whether it is what training sees.
    pub is_training: bool,
    /// Their rows.
    pub file: RowsFile,
}

impl PartialEq for StoredRows {
    /// The same files, opened once.
    fn eq(&self, other: &StoredRows) -> bool {
        std::ptr::eq(self, other)
    }
}

impl StoredRows {
    /// Rows of these lists.
    pub fn new(framing: ClipFraming, lists: Vec<StoredList>) -> StoredRows {
        StoredRows { framing, lists }
    }

    /// Reads the row of a sample. Returns how many of its frames are there.
    pub(crate) fn read(
        &self,
        samples: &Samples,
        sample: usize,
        occasion: Option<Occasion>,
        scratch: &mut Scratch,
        row: &mut [u8],
    ) -> Result<u32, DataError> {
        let mut lists = self.lists.iter();
        let list = lists.find(|list| {
            std::ptr::eq(&*list.samples, samples) && list.is_training == occasion.is_some()
        });
        let list = list.expect("rows of every list that is read were stored");
        if let Some(num_frames) = list.file.read(sample, row)? {
            return Ok(num_frames);
        }
        let mut frames = vec![0; self.framing.row_bytes()];
        let read = self
            .framing
            .write_row(samples, sample, occasion, scratch, &mut frames);
        read.and_then(|_| {
            let cause = io::Error::other("it could not be read when its row was computed");
            Err(failed(&samples.image_path(sample), "use")(cause))
        })
    }
}
