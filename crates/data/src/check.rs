//! Is every row fit to be trained on? Pictures that cannot be read, pictures that are there twice or on both sides of the
//! split, labels with too few pictures, captions that say nothing or all the same. And the CSV without those rows.

mod clean;
mod findings;
mod journal;
mod look;
mod survey;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use rayon::ThreadPoolBuilder;

use crate::config::{DataConfig, Validation};
use crate::error::DataError;
use crate::source::Source;
use crate::split::held_out;
use crate::words::thousands;
pub use clean::{CleanFile, Cleaned, Duplicates, Gone, Reason, clean};
pub use findings::{CaptionFacts, Example, Finding, Kind, LabelFacts, Report, RowKind, Severity};
use journal::Journal;
pub use look::State;
use survey::{Captions, Facts, Survey};

/// What is looked at, and what is too little.
#[derive(Clone, Debug)]
pub struct CheckConfig {
    /// Columns, captions, labels, and what is held out, as in training.
    pub data: DataConfig,
    /// The CSV; `data.train` was what the user named.
    pub csv: PathBuf,
    /// Of the run whose split is meant.
    pub seed: u64,
    /// Pixels that each side should have.
    pub min_size: u32,
    /// How many times longer than the other a side may be.
    pub max_aspect: u32,
    /// Pictures that each label should have.
    pub min_per_label: usize,
    /// Threads that look; none for one per core.
    pub num_workers: Option<usize>,
}

/// Sides of fewer pixels show nothing.
pub const MIN_SIZE: u32 = 16;
/// A picture that is narrower is a line.
pub const MAX_ASPECT: u32 = 20;
/// A label with one picture is either trained on or held out, never both.
pub const MIN_PER_LABEL: usize = 2;

/// How to watch and stop a check.
pub struct Watch<'a> {
    /// Set to stop.
    pub stop: &'a AtomicBool,
    /// Hears how many rows there are.
    pub on_start: &'a mut dyn FnMut(usize),
    /// Hears of each row that is done, from several threads.
    pub on_progress: &'a (dyn Fn(usize) + Sync),
    /// Hears what the user should know.
    pub on_note: &'a mut dyn FnMut(&str),
}

/// How a check ended.
#[derive(Debug)]
pub enum Outcome<T> {
    /// With every row.
    Done(T),
    /// The user stopped it.
    Stopped {
        /// Rows looked at.
        num_done: usize,
        /// Rows.
        num_rows: usize,
        /// Whether the same command goes on from there.
        is_kept: bool,
    },
}

/// Looks at every row and says what was found.
pub fn check(config: &CheckConfig, watch: Watch<'_>) -> Result<Outcome<Report>, DataError> {
    Ok(match facts(config, watch)? {
        Outcome::Done(all) => Outcome::Done(findings::report(config, &all)?),
        Outcome::Stopped {
            num_done,
            num_rows,
            is_kept,
        } => Outcome::Stopped {
            num_done,
            num_rows,
            is_kept,
        },
    })
}

/// All that is known of the rows.
struct AllFacts {
    source: Source,
    rows: Vec<Facts>,
    /// By row, -1 for none.
    label_of: Vec<i32>,
    /// By row; all false where validation is another file.
    held: Vec<bool>,
    labels: Vec<String>,
    captions: Captions,
    /// Validation in a file of its own.
    other: Option<(Source, Vec<Facts>)>,
}

fn facts(config: &CheckConfig, watch: Watch<'_>) -> Result<Outcome<AllFacts>, DataError> {
    config.data.validate()?;
    let mut notes = Vec::new();
    let source = Source::open(&config.data, &config.csv, &mut notes)?;
    let looked = source.look_through(&config.data.validation)?;
    let labels = source.labels(&looked.labels)?;
    let label_of = source.label_ids(looked.labels, &labels)?;
    let held = match config.data.validation {
        Validation::Fraction(share) => held_out(&label_of, share, config.seed),
        _ => looked.held,
    };
    let other = match &config.data.validation {
        Validation::File(path) => Some(Source::open(&config.data, path, &mut Vec::new())?),
        _ => None,
    };
    let num_others = match &other {
        Some(other) => other.look_through(&Validation::None)?.held.len(),
        None => 0,
    };
    for note in &notes {
        (watch.on_note)(note);
    }
    let (journal, note) = Journal::open(&config.csv);
    note.iter().for_each(|note| (watch.on_note)(note));
    if journal.num_known() > 0 {
        (watch.on_note)(&format!(
            "Going on: {} pictures were looked at before",
            thousands(journal.num_known())
        ));
    }
    let num_rows = held.len() + num_others;
    (watch.on_start)(num_rows);
    let mut survey = Survey {
        journal,
        stop: watch.stop,
        on_progress: watch.on_progress,
        num_done: 0,
    };
    let mut captions = Captions::default();
    let threads = ThreadPoolBuilder::new().num_threads(config.num_workers.unwrap_or(0));
    let threads = threads.build().map_err(|cause| DataError::Io {
        path: config.csv.clone(),
        action: "start threads for it",
        cause: std::io::Error::other(cause),
    })?;
    let found = threads.install(|| -> Result<_, DataError> {
        let Some(rows) = survey.of(&source, &mut captions)? else {
            return Ok(None);
        };
        let Some(other) = other else {
            return Ok(Some((rows, None)));
        };
        let of_other = survey.of(&other, &mut Captions::default())?;
        Ok(of_other.map(|of_other| (rows, Some((other, of_other)))))
    })?;
    let Some((rows, other)) = found else {
        return Ok(Outcome::Stopped {
            num_done: survey.num_done,
            num_rows,
            is_kept: survey.journal.is_kept(),
        });
    };
    if rows.len() != held.len() {
        return Err(source.table.changed());
    }
    survey.journal.remove();
    Ok(Outcome::Done(AllFacts {
        source,
        rows,
        label_of,
        held,
        labels: labels.into_names(),
        captions,
        other,
    }))
}
