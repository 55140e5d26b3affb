//! `holdall report`: a run, or several, as one HTML file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use holdall_telemetry::report::{self, Page, ReportFile};

use crate::arguments::ReportArguments;
use crate::screen::{print_json, tell};
use crate::stop;

/// The file's name in a run's folder.
const FILE_NAME: &str = "report.html";

pub fn run(arguments: ReportArguments) -> Result<ExitCode> {
    let out = match (&arguments.out, arguments.runs.as_slice()) {
        (Some(out), _) => out.clone(),
        (None, [run]) => run.join(FILE_NAME),
        (None, _) => PathBuf::from(FILE_NAME),
    };
    let page = Page::of(&arguments.runs)?;
    let written = stop::whole(|| page.write(&out))?;
    for note in &written.notes {
        tell(note);
    }
    match arguments.json {
        true => print_json(&written)?,
        false => tell(&show(&written)),
    }
    Ok(ExitCode::SUCCESS)
}

/// At the end of a run. A report that cannot be written is no reason to fail it.
pub fn write_beside(run: &Path) {
    match report::write(&[run.to_owned()], &run.join(FILE_NAME)) {
        Ok(written) => tell(&show(&written)),
        Err(error) => tell(&format!("warning: there is no report: {error}")),
    }
}

fn show(written: &ReportFile) -> String {
    format!("Report: {}", written.path.display())
}
