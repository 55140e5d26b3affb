//! `holdall analyze`: verdicts on a log of memory, each with its numbers and one line of what to do.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use holdall_data::words::{counted, thousands};
use holdall_telemetry::analyze::{
    Analysis, AnalyzeOptions, LogSummary, Severity, Verdict, analyze, analyze_run,
};
use holdall_telemetry::memory_log::FILE_NAME;
use holdall_train::budget::show_time;

use crate::arguments::AnalyzeArguments;
use crate::failure;
use crate::screen::{print, print_json, tell};

pub fn run(arguments: AnalyzeArguments) -> Result<ExitCode> {
    let mut options = AnalyzeOptions {
        log: arguments.log.display().to_string(),
        columns: arguments.columns,
        limit_bytes: arguments.limit,
    };
    let analysis = match arguments.log.as_os_str() == "-" {
        true => {
            options.log = "stdin".to_owned();
            analyze(std::io::stdin().lock(), &options)?
        }
        false if arguments.log.is_dir() => {
            let path = arguments.log.join(FILE_NAME);
            options.log = path.display().to_string();
            // Opened for its message: a folder without a log is not a run's.
            drop(open(&path)?);
            analyze_run(&arguments.log, &options)?
        }
        false => analyze(open(&arguments.log)?, &options)?,
    };
    if arguments.json {
        print_json(&analysis)?;
    } else {
        for note in &analysis.log.notes {
            tell(&format!("note: {note}"));
        }
        print(&show(&analysis))?;
    }
    Ok(match analysis.verdict {
        Verdict::Healthy => ExitCode::SUCCESS,
        Verdict::Warning | Verdict::Problem => ExitCode::from(failure::FOUND),
    })
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|cause| {
        anyhow!(
            "{}: expected a log of memory or the folder of a run, found: {cause}\n\
             hint: check the path; `holdall analyze --help` says how to make a log of any run",
            path.display()
        )
    })
}

fn show(analysis: &Analysis) -> String {
    let mut text = show_log(&analysis.log);
    for finding in &analysis.findings {
        let severity = match finding.severity {
            Severity::Problem => "PROBLEM",
            Severity::Warning => "WARNING",
        };
        let device = finding
            .device
            .as_ref()
            .map_or(String::new(), |device| format!(" on GPU {device}"));
        text += &format!(
            "\n{severity}: {}{device}\n  {}\n  do: {}\n",
            finding.kind.words(),
            finding.message,
            finding.advice
        );
    }
    let num_of = |severity| {
        analysis
            .findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let counts: Vec<String> = [
        (Severity::Problem, "problem"),
        (Severity::Warning, "warning"),
    ]
    .into_iter()
    .map(|(severity, noun)| (num_of(severity), noun))
    .filter(|(count, _)| *count > 0)
    .map(|(count, noun)| counted(count, noun))
    .collect();
    text += &match analysis.verdict {
        Verdict::Healthy => "Verdict: healthy\n".to_owned(),
        Verdict::Warning => format!("\nVerdict: warning ({})\n", counts.join(", ")),
        Verdict::Problem => format!("\nVerdict: problem ({})\n", counts.join(", ")),
    };
    text
}

fn show_log(log: &LogSummary) -> String {
    let mut text = format!(
        "{}: {}, {}",
        log.name,
        log.format.words(),
        counted(log.samples as usize, "sample")
    );
    if let Some(seconds) = log.seconds {
        text += &format!(" over {}", show_time(seconds * 1e3));
    }
    if log.devices.len() > 1 {
        text += &format!(", {}", counted(log.devices.len(), "device"));
    }
    text.push('\n');
    if let (Some(line), Some(reason)) = (log.skipped.first_line, &log.skipped.first_reason) {
        text += &format!(
            "{} could not be read; the first is line {}: {reason}\n",
            counted(log.skipped.lines as usize, "line"),
            thousands(line as usize)
        );
    }
    text
}
