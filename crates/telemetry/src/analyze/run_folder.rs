//! Analysis of a run's folder: its memory log together with its other files.
//!
//! ```text
//! memory.jsonl   analysed like any other log
//! metrics.jsonl  loss and wait of every step; the log has only samples of them
//! summary.json   budget and high-water mark of a finished run
//! failure.json   the error of a failed run
//! ```

use std::path::Path;

use super::finding::{Analysis, Finding, Symptom};
use super::speed::{Stragglers, waited_for};
use super::{AnalyzeOptions, analyze, failed, memory};
use crate::error::{TelemetryError, failed as not_read};
use crate::log::OddLosses;
use crate::memory_log;
use crate::run_files::{self, MetricsLine, Summary};

/// With fewer steps, the wait for the first batch dominates.
const FEWEST_STEPS: u64 = 3;

/// Analyses the run in a folder.
pub fn analyze_run(folder: &Path, options: &AnalyzeOptions) -> Result<Analysis, TelemetryError> {
    let path = folder.join(memory_log::FILE_NAME);
    let opened = holdall_files::open_regular(&path);
    let (file, _) = opened.map_err(not_read(&path.display().to_string(), "opened"))?;
    let mut analysis = analyze(file, options)?;
    let steps = Steps::read(&folder.join(run_files::METRICS_FILE));
    let has = |analysis: &Analysis, kind| analysis.findings.iter().any(|found| found.kind == kind);
    if steps.count >= FEWEST_STEPS && steps.seconds > 0.0 {
        // The waits of all steps are more accurate than the log's samples.
        let waited = waited_for((steps.waited / steps.seconds).clamp(0.0, 1.0));
        analysis.findings.retain(|finding| {
            let is_contradicted = finding.kind == Symptom::Underused && waited.is_some();
            !is_contradicted && !finding.evidence.contains_key("waited_share")
        });
        analysis.findings.extend(waited);
    }
    analysis.findings.extend(steps.stragglers.find());
    if !has(&analysis, Symptom::OverBudget) && options.limit_bytes.is_none() {
        analysis.findings.extend(over_budget(folder));
    }
    // An unreadable file says nothing about the run.
    if let Ok(Some(failure)) = run_files::failure(folder) {
        analysis.findings.push(failed::failure(&failure));
    }
    if !has(&analysis, Symptom::Diverged) {
        analysis.findings.extend(failed::odd_losses(&steps.losses));
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
    stragglers: Stragglers,
}

impl Steps {
    /// Reads the readable lines of `metrics.jsonl`.
    fn read(path: &Path) -> Steps {
        let mut steps = Steps::default();
        let mut number = 0;
        // After a read error, the lines before it count.
        let _ = run_files::for_each_line(path, |line| {
            number += 1;
            let Ok(MetricsLine::Step(step)) = MetricsLine::parse(line) else {
                return;
            };
            steps.count += 1;
            let seconds = step.seconds.unwrap_or(0.0);
            let waited = step.waited_for_data.unwrap_or(0.0);
            if seconds >= 0.0 && waited >= 0.0 {
                steps.seconds += seconds;
                steps.waited += waited;
            }
            if let Some(processes) = &step.processes {
                steps.stragglers.add(processes);
            }
            // NaN and infinity are written as null.
            steps.losses.add(step.loss.is_some(), number, step.step);
        });
        steps
    }
}

fn over_budget(folder: &Path) -> Option<Finding> {
    let summary: Summary = run_files::read_json(folder, run_files::SUMMARY_FILE).ok()??;
    let (limit, most) = (summary.budget_bytes? as f64, summary.process_bytes? as f64);
    (limit > 0.0 && most > limit)
        .then(|| memory::over_budget_by(" at its peak", most, limit, "its budget"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::finding::{Severity, Verdict};
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
        assert_eq!(finding.kind, Symptom::WaitingForData);
        assert!(finding.message.contains("63%"), "{}", finding.message);
        assert!(finding.advice.contains("workers"), "{}", finding.advice);
    }

    #[test]
    fn a_peak_above_the_budget_is_a_problem() {
        let summary = "{\"budget_bytes\": 146800640, \"process_bytes\": 236978176}".to_owned();
        let analysis = run(&[metrics(|_| "1.5", 0.0), ("summary.json", summary)]);
        assert_eq!(analysis.verdict, Verdict::Problem);
        let finding = only(&analysis);
        assert_eq!(finding.kind, Symptom::OverBudget);
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
        assert_eq!((finding.kind, finding.step), (Symptom::Diverged, Some(7)));
        assert_eq!(
            finding.message,
            "step 7: training diverged: the loss is NaN"
        );
        let analysis = run(&[metrics(|step| if step < 12 { "1.5" } else { "null" }, 0.0)]);
        let finding = only(&analysis);
        assert_eq!((finding.kind, finding.step), (Symptom::Diverged, Some(12)));
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
        assert_eq!(finding.kind, Symptom::Failed);
        assert_eq!(
            (finding.message.as_str(), finding.advice.as_str()),
            ("the run failed: the disk is full", "make room")
        );
    }
}
