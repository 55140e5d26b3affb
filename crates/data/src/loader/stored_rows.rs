//! Rows of frozen features on disk: the output of a frozen tower for each sample, computed once and read instead of the pictures.
//!
//! A sample that could not be read then is read again when its turn comes, so that the run reports what is wrong with its files.

use std::io;
use std::sync::Arc;

use crate::decode::{Occasion, Scratch};
use crate::error::DataError;
use crate::loader::ClipFraming;
use crate::loader::rows_file::{RowsFile, failed};
use crate::samples::Samples;

/// Feature rows of a run's sample lists, for training or for evaluation.
#[derive(Debug)]
pub struct StoredRows {
    /// Framing that the rows were computed with; rereads an unreadable sample for its error.
    framing: ClipFraming,
    lists: Vec<StoredList>,
}

/// Feature rows of one list.
#[derive(Debug)]
pub struct StoredList {
    pub samples: Arc<Samples>,
    /// Whether the rows were computed for training.
    pub is_training: bool,
    pub file: RowsFile,
}

impl PartialEq for StoredRows {
    /// Identity: equal only to itself.
    fn eq(&self, other: &StoredRows) -> bool {
        std::ptr::eq(self, other)
    }
}

impl StoredRows {
    pub fn new(framing: ClipFraming, lists: Vec<StoredList>) -> StoredRows {
        StoredRows { framing, lists }
    }

    /// Reads the row of a sample. Returns its number of valid frames.
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
