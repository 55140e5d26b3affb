//! Robustness check of the log reader against arbitrary bytes, for the fuzz target in `fuzz/` and the mutations of `tests/logs`.

use crate::analyze::{Analysis, AnalyzeOptions, Symptom, analyze};
use crate::error::TelemetryError;

const NAME: &str = "hostile";

/// Analyses bytes as a log, with and without given column names. Asserts that the result is a complete analysis or an error with a
/// hint.
pub fn log(bytes: &[u8]) -> Result<(), TelemetryError> {
    let named = [
        "timestamp",
        "index",
        "memory.used",
        "memory.total",
        "utilization.gpu",
    ];
    let options = AnalyzeOptions {
        log: NAME.to_owned(),
        columns: Some(named.map(str::to_owned).to_vec()),
        limit_bytes: Some(8 << 30),
    };
    let _ = checked(analyze(bytes, &options));
    let options = AnalyzeOptions {
        log: NAME.to_owned(),
        ..AnalyzeOptions::default()
    };
    checked(analyze(bytes, &options)).map(|_| ())
}

fn checked(result: Result<Analysis, TelemetryError>) -> Result<Analysis, TelemetryError> {
    match &result {
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(NAME) && text.contains("\nhint: "), "{text}");
        }
        Ok(analysis) => {
            let log = &analysis.log;
            assert!(
                (log.samples > 0 || !analysis.findings.is_empty())
                    && log.samples + log.skipped.lines <= log.lines,
                "{log:?}"
            );
            assert_eq!(log.skipped.lines > 0, log.skipped.first_reason.is_some());
            for finding in &analysis.findings {
                // These findings report NaN, or quote a line of the log.
                let may_say_nan = matches!(
                    finding.kind,
                    Symptom::Diverged
                        | Symptom::GpuError
                        | Symptom::CudaError
                        | Symptom::OutOfMemory
                );
                let is_line = |text: &str| {
                    let has_nan = text.contains("NaN") && !may_say_nan;
                    !text.is_empty() && !text.contains(char::is_control) && !has_nan
                };
                assert!(
                    is_line(&finding.message) && is_line(&finding.advice),
                    "{finding:?}"
                );
            }
            let json = serde_json::to_string(analysis);
            assert!(json.is_ok_and(|json| !json.contains('\n')));
        }
    }
    result
}
