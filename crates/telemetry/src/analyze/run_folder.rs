//! A run's folder: what its memory log says, and what stands beside it.
//!
//! ```text
//! memory.jsonl   the log, as any other
//! metrics.jsonl  every step's loss and wait, where the log has only samples of them
//! summary.json   the budget and the high-water mark of a run that ended; plan.json the budget of one that did not
//! failure.json   how it failed
//! ```

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::finding::{Analysis, Finding, Kind, Severity};
use super::{AnalyzeOptions, analyze, budget, failed, waiting};
use crate::error::{TelemetryError, failed as not_read};
use crate::log::OddLosses;
use crate::memory_log;

/// A longer JSON file, or a longer line, was not written by a run.
const MOST_JSON_BYTES: u64 = 16 << 20;
const LONGEST_LINE: u64 = 1 << 20;
/// Of fewer steps the wait for the first batch is most.
const FEWEST_STEPS: u64 = 3;

#[derive(Deserialize)]
struct Step {
    kind: String,
    step: Option<u64>,
    loss: Option<f64>,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    waited_for_data: f64,
}

#[derive(Deserialize)]
struct Held {
    budget_bytes: Option<f64>,
    process_bytes: Option<f64>,
}

#[derive(Deserialize)]
struct Failure {
    kind: Option<String>,
    error: Option<String>,
    step: Option<u64>,
}

/// Judges the run in a folder.
pub fn analyze_run(folder: &Path, options: &AnalyzeOptions) -> Result<Analysis, TelemetryError> {
    let path = folder.join(memory_log::FILE_NAME);
    let opened = holdall_files::open_regular(&path);
    let (file, _) = opened.map_err(not_read(&path.display().to_string(), "opened"))?;
    let mut analysis = analyze(file, options)?;
    let steps = steps(&folder.join("metrics.jsonl"));
    let has = |analysis: &Analysis, kind| analysis.findings.iter().any(|found| found.kind == kind);
    if steps.count >= FEWEST_STEPS && steps.seconds > 0.0 {
        // Every step's wait is known better than samples of it.
        analysis
            .findings
            .retain(|finding| !finding.evidence.contains_key("waited_share"));
        let found = waiting::of_share((steps.waited / steps.seconds).clamp(0.0, 1.0));
        if found.is_some() {
            analysis
                .findings
                .retain(|finding| finding.kind != Kind::Underused);
        }
        analysis.findings.extend(found);
    }
    if !has(&analysis, Kind::OverBudget) && options.limit_bytes.is_none() {
        analysis.findings.extend(over_budget(folder));
    }
    if let Some(failure) = json::<Failure>(&folder.join("failure.json")) {
        analysis.findings.extend(of_failure(&failure));
    }
    if !has(&analysis, Kind::Diverged) {
        analysis.findings.extend(failed::of_losses(&steps.losses));
    }
    analysis.judge();
    Ok(analysis)
}

#[derive(Default)]
struct Steps {
    count: u64,
    seconds: f64,
    waited: f64,
    losses: OddLosses,
}

/// What can be read of `metrics.jsonl`, line by line.
fn steps(path: &Path) -> Steps {
    let mut steps = Steps::default();
    let Ok((file, _)) = holdall_files::open_regular(path) else {
        return steps;
    };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        match (&mut reader)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return steps,
            Ok(_) => number += 1,
        }
        let Ok(step) = serde_json::from_slice::<Step>(&line) else {
            continue;
        };
        if step.kind != "step" {
            continue;
        }
        steps.count += 1;
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        if is_time(step.seconds) && is_time(step.waited_for_data) {
            steps.seconds += step.seconds;
            steps.waited += step.waited_for_data;
        }
        // A number that is none is written as null.
        steps.losses.add(step.loss.is_some(), number, step.step);
    }
}

fn over_budget(folder: &Path) -> Option<Finding> {
    let held: Held = json(&folder.join("summary.json"))?;
    let (limit, most) = (held.budget_bytes?, held.process_bytes?);
    (limit > 0.0 && most > limit)
        .then(|| budget::finding(" at its peak", most, limit, "its budget"))
}

fn of_failure(failure: &Failure) -> Option<Finding> {
    let error = failure.error.as_deref().unwrap_or_default();
    let first = error.lines().next().unwrap_or_default();
    let first: String = first
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect();
    if failure.kind.as_deref() == Some("diverged") {
        // The error says at which step.
        return Some(failed::diverged(&first).at_step(failure.step));
    }
    let hint = error.lines().find_map(|line| line.strip_prefix("hint: "));
    let advice = hint.unwrap_or("failure.json has the plan, the last samples and the last steps");
    let advice: String = advice
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect();
    (!first.is_empty()).then(|| {
        let message = format!("the run failed: {first}");
        Finding::new(Kind::Failed, Severity::Problem, message, advice).at_step(failure.step)
    })
}

/// A file that need not be there, or be whole.
fn json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = holdall_files::read_regular(path, MOST_JSON_BYTES).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::finding::Verdict;
    use super::*;

    fn run(files: &[(&str, String)]) -> Analysis {
        let folder = tempfile::tempdir().unwrap();
        let samples: String = (0..40)
            .map(|step| {
                format!(
                    "{{\"time\":{step}.0,\"step\":{step},\"epoch\":0,\"phase\":\"train\",\"device\":\"cpu\",\"used_bytes\":3000000000,\
                     \"total_bytes\":25000000000,\"process_bytes\":200000000,\"arena_bytes\":1,\"host_rss_bytes\":200000000}}\n"
                )
            })
            .collect();
        fs::write(folder.path().join(memory_log::FILE_NAME), samples).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        analyze_run(folder.path(), &AnalyzeOptions::default()).unwrap()
    }

    fn metrics(loss: impl Fn(u64) -> &'static str, waited: f64) -> (&'static str, String) {
        let lines = (1..=20).map(|step| {
            format!(
                "{{\"kind\":\"step\",\"step\":{step},\"epoch\":1,\"loss\":{},\"seconds\":1.0,\"waited_for_data\":{waited}}}\n",
                loss(step)
            )
        });
        ("metrics.jsonl", lines.collect())
    }

    fn only(analysis: &Analysis) -> &Finding {
        assert_eq!(analysis.findings.len(), 1, "{:?}", analysis.findings);
        &analysis.findings[0]
    }

    #[test]
    fn a_run_that_is_well() {
        let summary = "{\"budget_bytes\": 300000000, \"process_bytes\": 299000000}".to_owned();
        let files = [metrics(|_| "1.5", 0.1), ("summary.json", summary)];
        for files in [
            &[][..],
            &files,
            &[
                ("summary.json", "{".to_owned()),
                ("failure.json", "{}".to_owned()),
            ],
        ] {
            let analysis = run(files);
            assert_eq!(
                analysis.verdict,
                Verdict::Healthy,
                "{:?}",
                analysis.findings
            );
        }
    }

    #[test]
    fn waiting_for_63_percent_of_the_time_is_a_problem() {
        let analysis = run(&[metrics(|_| "1.5", 0.63)]);
        assert_eq!(analysis.verdict, Verdict::Problem);
        let finding = only(&analysis);
        assert_eq!(finding.kind, Kind::WaitingForData);
        assert!(finding.message.contains("63%"), "{}", finding.message);
        assert!(finding.advice.contains("workers"), "{}", finding.advice);
    }

    #[test]
    fn a_peak_above_the_budget_is_a_problem() {
        let summary = "{\"budget_bytes\": 146800640, \"process_bytes\": 236978176}".to_owned();
        let analysis = run(&[metrics(|_| "1.5", 0.0), ("summary.json", summary)]);
        assert_eq!(analysis.verdict, Verdict::Problem);
        let finding = only(&analysis);
        assert_eq!(finding.kind, Kind::OverBudget);
        assert_eq!(
            finding.message,
            "held 226.0 MiB at its peak: 86.0 MiB (61%) over its budget of 140.0 MiB"
        );
    }

    #[test]
    fn a_run_that_diverged_or_failed() {
        let of_kind = "{\"kind\": \"diverged\", \"step\": 7, \"error\": \"step 7: training diverged: the loss is NaN\\nhint: lr\"}".to_owned();
        let analysis = run(&[metrics(|_| "1.5", 0.0), ("failure.json", of_kind)]);
        let finding = only(&analysis);
        assert_eq!((finding.kind, finding.step), (Kind::Diverged, Some(7)));
        assert_eq!(
            finding.message,
            "step 7: training diverged: the loss is NaN"
        );
        let analysis = run(&[metrics(|step| if step < 12 { "1.5" } else { "null" }, 0.0)]);
        let finding = only(&analysis);
        assert_eq!((finding.kind, finding.step), (Kind::Diverged, Some(12)));
        assert_eq!(
            (analysis.verdict, finding.severity),
            (Verdict::Problem, Severity::Problem)
        );
        assert!(
            finding.message.contains("9 of 20 lines"),
            "{}",
            finding.message
        );
        let failure = "{\"error\": \"the disk is full\\nhint: make room\"}".to_owned();
        let analysis = run(&[("failure.json", failure)]);
        let finding = only(&analysis);
        assert_eq!(finding.kind, Kind::Failed);
        assert_eq!(
            (finding.message.as_str(), finding.advice.as_str()),
            ("the run failed: the disk is full", "make room")
        );
    }
}
