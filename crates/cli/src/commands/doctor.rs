//! `holdall doctor`: checks what this machine offers for training and what it lacks, with advice.
//!
//! Nothing is computed and no GPU memory is allocated: libraries are only opened and asked for their versions.

mod gpu;
mod host;
mod processes;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_files::counted;
use serde::Serialize;

use crate::failure;
use crate::screen::{print, print_json};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall doctor\n  \
                  holdall doctor --json\n\n\
                  Each line is ok, a warning, or missing, and says what to do. Nothing is computed and no memory of a GPU is taken.\n\
                  Exit code 0: a run on the CPU has all that it needs, and so has every GPU that is here, warnings or not; 1: something\n\
                  is missing.")]
pub struct DoctorArguments {
    /// One JSON object on stdout: status, checks (name, status, found, advice)
    #[arg(long)]
    pub json: bool,
}

/// Result of a check, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Runs work, but not at their best.
    Warning,
    /// Runs on the CPU do not work, or a GPU of this machine cannot be used.
    Missing,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Missing => "missing",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: String,
    status: Status,
    found: String,
    advice: Option<String>,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>) -> Check {
        Check {
            name: name.to_owned(),
            status: Status::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn warning(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check {
            status: Status::Warning,
            advice: Some(advice.into()),
            ..Check::ok(name, found)
        }
    }

    fn missing(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check {
            status: Status::Missing,
            ..Check::warning(name, found, advice)
        }
    }
}

#[derive(Serialize)]
struct Diagnosis {
    status: Status,
    /// The device that `--device auto` would use.
    device: &'static str,
    checks: Vec<Check>,
}

pub fn run(arguments: DoctorArguments) -> Result<ExitCode> {
    let mut checks = host::checks(&host::Findings::gather());
    let gpus = gpu::Findings::gather();
    checks.extend(gpu::checks(&gpus));
    checks.push(processes::check());
    let diagnosis = Diagnosis {
        status: worst(&checks),
        device: if gpus.can_compute() { "cuda" } else { "cpu" },
        checks,
    };
    if arguments.json {
        print_json(&diagnosis)?
    } else {
        print(&show(&diagnosis))?
    }
    Ok(match diagnosis.status {
        Status::Ok | Status::Warning => ExitCode::SUCCESS,
        Status::Missing => ExitCode::from(failure::FOUND),
    })
}

fn worst(checks: &[Check]) -> Status {
    let statuses = checks.iter().map(|check| check.status);
    statuses.max().unwrap_or(Status::Ok)
}

fn show(diagnosis: &Diagnosis) -> String {
    let names = diagnosis.checks.iter().map(|check| check.name.len());
    let width = names.max().unwrap_or(0);
    let mut text = String::new();
    for check in &diagnosis.checks {
        let indent = " ".repeat(2 + 7 + 2 + width + 2);
        let found = check.found.replace('\n', &format!("\n{indent}"));
        text += &format!(
            "  {:<7}  {:<width$}  {found}\n",
            check.status.name(),
            check.name
        );
        if let Some(advice) = &check.advice {
            let advice = advice.replace('\n', &format!("\n{indent}    "));
            text += &format!("{indent}do: {advice}\n");
        }
    }
    let num_of = |status| {
        let checks = diagnosis.checks.iter();
        checks.filter(|check| check.status == status).count()
    };
    let place = match diagnosis.device {
        "cuda" => "the GPU",
        _ => "the CPU",
    };
    text += &match (num_of(Status::Missing), num_of(Status::Warning)) {
        (0, 0) => format!("\nReady: `holdall train` and `holdall demo` run on {place}\n"),
        (0, warnings) => format!(
            "\nReady, with {}: `holdall train` and `holdall demo` run on {place}\n",
            counted(warnings, "warning")
        ),
        (1, _) => "\nNot ready: one thing is missing\n".to_owned(),
        (missing, _) => format!("\nNot ready: {missing} things are missing\n"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_the_worst_decides() {
        let checks = vec![
            Check::ok("system", "linux"),
            Check::warning("disk", "1 GiB\nfree", "make room"),
        ];
        assert_eq!(worst(&checks), Status::Warning);
        let diagnosis = Diagnosis {
            status: worst(&checks),
            device: "cpu",
            checks,
        };
        assert_eq!(
            show(&diagnosis),
            "  ok       system  linux\n  \
               warning  disk    1 GiB\n                   free\n                   do: make room\n\n\
             Ready, with 1 warning: `holdall train` and `holdall demo` run on the CPU\n"
        );
        assert_eq!(worst(&[]), Status::Ok);
    }

    #[test]
    fn json_has_the_keys_that_help_names() {
        let check = Check::missing("driver", "none", "install it");
        assert_eq!(
            serde_json::to_string(&check).unwrap(),
            r#"{"name":"driver","status":"missing","found":"none","advice":"install it"}"#
        );
    }
}
