//! `holdall report`: one HTML report on one or several runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_telemetry::report::{self, Page, ReportFile};

use crate::options::{OverwriteOption, files_of_model};
use crate::screen::{print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall report runs/cars\n  \
                  holdall report runs/cars runs/cars-2 --out compared.html\n\n\
                  What it shows: losses, metrics, learning rate, throughput and waiting for data; memory over time beside the plan's line,\n\
                  and every tensor of the plan as a box over time and address; the slowest operations; predictions on held-out\n\
                  pictures; verdicts; the configuration. Several runs are drawn over each other.\n\
                  `holdall train` writes RUN/report.html when it ends and on Ctrl-C; a run that still trains can be reported on too.\n\
                  The file needs no network and nothing beside it.")]
pub struct ReportArguments {
    /// Folders of runs
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Where the page goes [default: RUN/report.html; of several runs, report.html here]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
    /// One JSON object on stdout: path, bytes, runs, notes
    #[arg(long)]
    pub json: bool,
}

/// Name of the report in a run's folder.
const FILE_NAME: &str = "report.html";

pub fn run(arguments: ReportArguments) -> Result<ExitCode> {
    let own = match arguments.runs.as_slice() {
        [run] => Some(run.join(FILE_NAME)),
        _ => None,
    };
    let out = match (&arguments.out, &own) {
        (Some(out), _) => out.clone(),
        (None, Some(own)) => own.clone(),
        (None, None) => PathBuf::from(FILE_NAME),
    };
    if own.as_ref() != Some(&out) {
        let out = Some(out.clone());
        let runs = arguments.runs.iter();
        let inputs: Vec<PathBuf> = runs.flat_map(|run| files_of_model(run)).collect();
        arguments
            .overwrite
            .check_files([("--out", &out)], &inputs)?;
    }
    let page = Page::of(&arguments.runs)?;
    let written = stop::whole(|| page.write(&out))?;
    for note in &written.notes {
        tell(note);
    }
    if arguments.json {
        print_json(&written)?
    } else {
        tell(&show(&written))
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the report at the end of a run. A failure is a warning only.
pub fn write_beside(run: &Path) {
    match report::write(&[run.to_owned()], &run.join(FILE_NAME)) {
        Ok(written) => tell(&show(&written)),
        Err(error) => tell(&format!("warning: there is no report: {error}")),
    }
}

fn show(written: &ReportFile) -> String {
    format!("Report: {}", written.path.display())
}
