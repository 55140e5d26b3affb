//! Facts about every row and its picture, from one pass. The facts of a row have a fixed size and no text: a million rows take about 260
//! MB, however long their captions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::journal::{FileStamp, Journal};
use super::picture_state::{Look, PictureState};
use crate::decode::{Allowance, Scratch, find_ffmpeg};
use crate::error::DataError;
use crate::media::{Media, needs_ffmpeg};
use crate::samples::{RowFault, Source};
use crate::stored_file::is_url;
use crate::table::Row;

/// Rows per thread in a batch; the journal is written after each batch.
const ROWS_PER_THREAD: usize = 64;

/// Facts about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) look: Look,
    /// Hash of the image's path.
    pub(super) path: u64,
    /// Hash of the caption.
    pub(super) caption: u64,
    pub(super) has_caption: bool,
    /// The row has as many fields as the header.
    pub(super) has_fields: bool,
    /// Cells of labels and numbers are valid.
    pub(super) has_values: bool,
    /// The caption is a null word, such as `nan`.
    pub(super) has_null_caption: bool,
    pub(super) label: LabelCell,
    /// Hash of the label; 0 for an empty or null label.
    pub(super) label_text: u64,
    pub(super) line: u32,
}

/// Content of the label cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelCell {
    /// A label, or the data has no label column.
    Good,
    Empty,
    /// A null word, such as `nan`.
    Null,
}

/// Whether a text is a null word: pandas, Python, JavaScript, databases and spreadsheets write these for missing values.
pub(super) fn is_null(text: &str) -> bool {
    const WORDS: [&str; 10] = [
        "nan",
        "none",
        "null",
        "n/a",
        "na",
        "<na>",
        "undefined",
        "nil",
        "#n/a",
        "-",
    ];
    let text = text.trim();
    WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

impl Facts {
    /// Whether the row can be trained on.
    pub(super) fn is_usable(&self) -> bool {
        self.look.state == PictureState::Good && self.is_sample()
    }

    /// Whether training accepts the row as a sample, before it decodes the picture.
    pub(super) fn is_sample(&self) -> bool {
        self.look.state != PictureState::Unnamed
            && self.has_caption
            && self.has_fields
            && self.has_values
    }
}

/// Number of rows per caption.
#[derive(Debug, Default)]
pub(super) struct CaptionCounts {
    count_of: HashMap<u64, u32>,
    commonest: (u32, String),
}

impl CaptionCounts {
    fn add(&mut self, hash: u64, caption: &str) {
        let count = self.count_of.entry(hash).or_default();
        *count += 1;
        if *count > self.commonest.0 {
            self.commonest.0 = *count;
            caption.clone_into(&mut self.commonest.1);
        }
    }

    pub(super) fn num_different(&self) -> usize {
        self.count_of.len()
    }

    /// Rows whose caption another row has too.
    pub(super) fn num_shared(&self) -> usize {
        let shared = self.count_of.values().filter(|count| **count > 1);
        shared.map(|count| *count as usize).sum()
    }

    /// The most frequent caption, and its number of rows.
    pub(super) fn commonest(&self) -> (&str, usize) {
        let (count, text) = &self.commonest;
        (text, *count as usize)
    }
}

/// State of a check: the journal of finished pictures, the stop flag and the progress callback.
pub(super) struct Survey<'a> {
    pub(super) journal: Journal,
    pub(super) stop: &'a AtomicBool,
    /// Memory budget of decoding, for all threads together.
    pub(super) allowance: &'a Allowance,
    /// Called with the number of newly finished rows.
    pub(super) on_progress: &'a (dyn Fn(usize) + Sync),
    pub(super) num_done: usize,
}

/// A row whose picture is not decoded yet.
struct Waiting {
    path: PathBuf,
    facts: Facts,
    /// The first earlier row with the same path.
    same_as: Option<usize>,
}

impl Survey<'_> {
    /// Decodes the pictures of all rows; `None` if the check was stopped.
    pub(super) fn of(
        &mut self,
        source: &Source,
        captions: &mut CaptionCounts,
    ) -> Result<Option<Vec<Facts>>, DataError> {
        let mut all: Vec<Facts> = Vec::new();
        let mut row_of_path: HashMap<u64, usize> = HashMap::new();
        let batch_rows = ROWS_PER_THREAD * rayon::current_num_threads();
        let (mut image, mut caption) = (String::new(), String::new());
        let mut has_ffmpeg = false;
        let mut rows = source.table.rows()?;
        loop {
            let mut batch: Vec<Waiting> = Vec::with_capacity(batch_rows);
            while batch.len() < batch_rows
                && let Some(row) = rows.read_any()?
            {
                let facts = described(source, row, &mut image, &mut caption);
                // Without ffmpeg every video would look broken, and cleaning would remove all of them.
                if source.media == Media::Clips && !has_ffmpeg && needs_ffmpeg(&image) {
                    find_ffmpeg(&source.root.join(&image))?;
                    has_ffmpeg = true;
                }
                if !caption.is_empty() {
                    captions.add(facts.caption, &caption);
                }
                let at = all.len() + batch.len();
                let first = *row_of_path.entry(facts.path).or_insert(at);
                batch.push(Waiting {
                    path: source.root.join(&image),
                    facts,
                    same_as: Some(first).filter(|first| *first < at),
                });
            }
            if batch.is_empty() {
                return Ok(Some(all));
            }
            if !self.inspect(source.media, batch, &mut all) {
                return Ok(None);
            }
        }
    }

    /// Returns whether the whole batch was decoded.
    fn inspect(&mut self, media: Media, batch: Vec<Waiting>, all: &mut Vec<Facts>) -> bool {
        let journal = &self.journal;
        let looks: Vec<Option<Seen>> = batch
            .par_iter()
            .with_min_len(4)
            .map_init(
                || Scratch::within(self.allowance),
                |scratch, waiting| {
                    if self.stop.load(Ordering::Relaxed) {
                        return None;
                    }
                    let seen = see(waiting, media, journal, scratch);
                    scratch.free_if_wanted();
                    (self.on_progress)(1);
                    Some(seen)
                },
            )
            .collect();
        let is_whole = looks.iter().all(Option::is_some);
        let new = batch.iter().zip(&looks).filter_map(|(waiting, seen)| {
            let seen = seen.as_ref()?;
            Some((waiting.facts.path, seen.new_at?, seen.look))
        });
        self.journal.append(new);
        self.num_done += looks.iter().flatten().count();
        if !is_whole {
            return false;
        }
        for (waiting, seen) in batch.into_iter().zip(looks.into_iter().flatten()) {
            let look = match waiting.same_as {
                Some(row) => all[row].look,
                None => seen.look,
            };
            all.push(Facts {
                look,
                ..waiting.facts
            });
        }
        true
    }
}

struct Seen {
    look: Look,
    /// Stamp of the file, if the result is to be added to the journal.
    new_at: Option<FileStamp>,
}

fn see(waiting: &Waiting, media: Media, journal: &Journal, scratch: &mut Scratch) -> Seen {
    let old = |look| Seen { look, new_at: None };
    let is_no_file = matches!(
        waiting.facts.look.state,
        PictureState::Unnamed | PictureState::Remote
    );
    if is_no_file || waiting.same_as.is_some() {
        return old(waiting.facts.look);
    }
    // The stamp is taken before decoding: a file that changes meanwhile is decoded again by the next check. A folder of frames gets no
    // stamp: a frame can change without a change of the folder.
    let stamp = FileStamp::of(&waiting.path).filter(|_| !waiting.path.is_dir());
    match stamp.and_then(|stamp| journal.look(waiting.facts.path, stamp)) {
        Some(look) => old(look),
        None => Seen {
            look: Look::at(&waiting.path, media, scratch),
            new_at: stamp,
        },
    }
}

/// Facts from the row's text; its picture is not decoded yet.
fn described(source: &Source, row: Row<'_>, image: &mut String, caption: &mut String) -> Facts {
    let fault = source.read_row(row, image, caption);
    let state = match image.as_str() {
        "" => PictureState::Unnamed,
        image if is_url(image) => PictureState::Remote,
        _ => PictureState::Missing,
    };
    let label = source.columns.label().map(|column| row.cell(column).trim());
    let path = source.root.join(&*image);
    Facts {
        look: Look::without_file(state),
        path: xxh3_64(path.as_os_str().as_encoded_bytes()),
        caption: xxh3_64(caption.as_bytes()),
        has_caption: !caption.is_empty() || source.columns.caption.is_none(),
        has_fields: !matches!(fault, Some(RowFault::Fields { .. })),
        has_values: !matches!(fault, Some(RowFault::Cell { .. })),
        // One null cell makes the caption of a template null: `a photo of a nan`.
        has_null_caption: match &source.columns.caption {
            Some(_) if is_null(caption) => true,
            Some(template) => template.columns().any(|column| is_null(row.cell(column))),
            None => false,
        },
        label: match label {
            Some("") => LabelCell::Empty,
            Some(label) if is_null(label) => LabelCell::Null,
            _ => LabelCell::Good,
        },
        label_text: match label {
            Some(label) if !label.is_empty() && !is_null(label) => xxh3_64(label.as_bytes()).max(1),
            _ => 0,
        },
        line: row.line(),
    }
}
