//! `report.html`: a run, or several side by side, as one file that needs no network.
//!
//! ```text
//! RUN/*.json, *.jsonl, config.yml  ->  run.rs     what is there, and a note on what is not
//!                                  ->  curves.rs, evaluations.rs, confusion.rs, segmentation.rs, captions.rs    every loss, rate and metric that there is
//!                                  ->  thin.rs    curves of 2,000 points, extremes kept
//!                                  ->  page.rs    HTML + CSS + JavaScript + the data, in one file
//! ```
//!
//! Texts, file names and configs come from users: they travel as JSON with every `<` escaped, the page puts them
//! in place as text, and its policy lets no other script run and nothing be fetched.

mod captions;
mod confusion;
mod curves;
mod evaluations;
mod page;
mod processes;
mod run;
mod segmentation;
mod thin;

use std::path::{Path, PathBuf};

use serde::Serialize;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// What was named is no run.
    #[error(
        "{path}: expected the folder of a run, found {found}\n\
         hint: holdall report RUN, where RUN is what `holdall train` wrote to (--out)"
    )]
    NotARun {
        /// What was named.
        path: String,
        /// What is there.
        found: String,
    },
    /// The file cannot be written.
    #[error(
        "{path} cannot be written: {cause}\nhint: check the disk, or choose another place with --out"
    )]
    NotWritten {
        /// The report.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// A report on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportFile {
    /// Where.
    pub path: PathBuf,
    /// How long.
    pub bytes: u64,
    /// Runs in it.
    pub runs: usize,
    /// What could not be read and is left out, such as a line that was cut off.
    pub notes: Vec<String>,
}

/// A report that is not on disk yet.
pub struct Page {
    html: String,
    runs: usize,
    notes: Vec<String>,
}

impl Page {
    /// Reads the runs and makes the page of them.
    pub fn of(runs: &[PathBuf]) -> Result<Page, ReportError> {
        let runs = runs
            .iter()
            .map(|path| run::Run::read(path))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Page {
            html: page::render(&runs),
            runs: runs.len(),
            notes: runs.iter().flat_map(run::Run::notes).collect(),
        })
    }

    /// Writes it to `out`, whole.
    pub fn write(self, out: &Path) -> Result<ReportFile, ReportError> {
        holdall_files::write_whole(out, self.html.as_bytes()).map_err(|cause| {
            ReportError::NotWritten {
                path: out.display().to_string(),
                cause,
            }
        })?;
        Ok(ReportFile {
            path: out.to_owned(),
            bytes: self.html.len() as u64,
            runs: self.runs,
            notes: self.notes,
        })
    }
}

/// Writes a report on `runs` to `out`.
pub fn write(runs: &[PathBuf], out: &Path) -> Result<ReportFile, ReportError> {
    Page::of(runs)?.write(out)
}

#[cfg(test)]
mod tests;
