//! `holdall analyze`: verdicts on a memory log, each with its numbers and one line of advice.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use holdall_files::{counted, thousands};
use holdall_telemetry::analyze::{
    Analysis, AnalyzeOptions, LogSummary, Severity, Verdict, analyze, analyze_run,
};
use holdall_telemetry::memory_log::FILE_NAME;
use holdall_train::config::budget::{Memory, show_time};

use crate::failure;
use crate::options::OutputOptions;
use crate::screen::{print, print_json, tell};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall analyze runs/cars\n  \
                  holdall analyze gpu.csv --json\n\n\
                  A log of any run, from outside (with noheader or nounits too; --columns says what cannot be told):\n  \
                  nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total,utilization.gpu --format=csv -l 1 > gpu.csv\n\n\
                  From within a PyTorch script, a line per step; `phase`, `epoch` and `step_time` make verdicts sharper:\n  \
                  log.write(json.dumps({\"step\": step, \"epoch\": epoch,\n      \
                      \"allocated_mib\": torch.cuda.memory_allocated() / 2**20,\n      \
                      \"max_allocated_mib\": torch.cuda.max_memory_allocated() / 2**20,\n      \
                      \"reserved_mib\": torch.cuda.memory_reserved() / 2**20}) + \"\\n\")\n  \
                  holdall analyze memory.jsonl --limit 24GiB\n\n\
                  Exit code 0: healthy; 1: something was found; 2: the log cannot be read.")]
pub struct AnalyzeArguments {
    /// The folder of a run, its memory.jsonl, a CSV or `dmon` of nvidia-smi, JSON lines, a CSV or the text log of a script; - reads stdin
    #[arg(value_name = "LOG|RUN|-")]
    pub log: PathBuf,
    /// What counts as full, instead of what the log says the device has; more than it is a problem
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub limit: Option<u64>,
    /// Names of a CSV's columns, where it has no header
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    pub columns: Option<Vec<String>>,
    #[command(flatten)]
    pub output: OutputOptions,
}

fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(Memory::Bytes(bytes)) => Ok(bytes),
        _ => Err("expected a size such as 24GiB or 24GB\nhint: --limit 24GiB".to_owned()),
    }
}

pub fn run(arguments: AnalyzeArguments) -> Result<ExitCode> {
    let mut options = AnalyzeOptions {
        log: arguments.log.display().to_string(),
        columns: arguments.columns,
        limit_bytes: arguments.limit,
    };
    let analysis = if arguments.log.as_os_str() == "-" {
        options.log = "stdin".to_owned();
        analyze(std::io::stdin().lock(), &options)?
    } else if arguments.log.is_dir() {
        let path = arguments.log.join(FILE_NAME);
        options.log = path.display().to_string();
        // Opened for its error message: a folder without a memory log is not a run.
        drop(open(&path)?);
        analyze_run(&arguments.log, &options)?
    } else {
        analyze(open(&arguments.log)?, &options)?
    };
    if arguments.output.json {
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
        Verdict::Healthy => "Verdict: healthy, as far as memory goes\n".to_owned(),
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
            thousands(line)
        );
    }
    text
}
