//! `report.html`: one or several runs in one file that needs no network.
//!
//! ```text
//! RUN/*.json, *.jsonl, config.yml  ->  run.rs     the run's files, and a note on every unreadable one
//!                                  ->  curves.rs, evaluations.rs, confusion.rs, segmentation.rs, captions.rs    losses, rates and metrics
//!                                  ->  thin.rs    curves of 2,000 points, extremes kept
//!                                  ->  page.rs    HTML + CSS + JavaScript + the data, in one file
//! ```
//!
//! Texts, file names and configs come from users. They are embedded as JSON with every `<` escaped, the page inserts them as text,
//! and its content security policy allows no other script and no network request.

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

/// Errors of writing a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The path is not a run.
    #[error(
        "{path}: expected the folder of a run, found {found}\n\
         hint: holdall report RUN, where RUN is what `holdall train` wrote to (--out)"
    )]
    NotARun {
        path: String,
        /// Description of the path's contents.
        found: String,
    },
    /// The report cannot be written.
    #[error(
        "{path} cannot be written: {cause}\nhint: check the disk, or choose another place with --out"
    )]
    NotWritten { path: String, cause: std::io::Error },
}

/// A written report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// Number of runs.
    pub runs: usize,
    /// Notes about unreadable data that is left out, such as an incomplete line.
    pub notes: Vec<String>,
}

/// A report in memory.
pub struct Page {
    html: String,
    runs: usize,
    notes: Vec<String>,
}

impl Page {
    /// Reads the runs and renders the page.
    pub fn of(runs: &[PathBuf]) -> Result<Page, ReportError> {
        let runs = runs
            .iter()
            .map(|path| run::RunPage::read(path))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Page {
            html: page::render(&runs),
            runs: runs.len(),
            notes: runs.iter().flat_map(run::RunPage::notes).collect(),
        })
    }

    /// Writes the page to `out` atomically.
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
