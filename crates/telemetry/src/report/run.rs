//! A run's folder as the page shows it. Files may be missing, from another version, or end within a line: readable data is shown,
//! and a note describes the rest.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::ReportError;
use super::captions::Captions;
use super::confusion::Confusion;
use super::curves::{StepCurves, memory_curves, phases, without_pauses};
use super::evaluations::{Best, MetricCurve, best, metric_curves};
use super::processes::Processes;
use super::segmentation::Segmentation;
use crate::analyze::{AnalyzeOptions, Symptom, analyze_run};
use crate::memory_log::{self, MemorySample};
use crate::run_files::{
    self, CONFIG_FILE, EvaluationLine, Failure, METRICS_FILE, MetricsLine, OF_A_RUN, PLAN_FILE,
    SUMMARY_FILE,
};
use crate::words::counted;

/// Bytes of the config that are shown.
const MAX_CONFIG_BYTES: usize = 200_000;
/// Alternatives of the plan that are shown.
const MAX_ALTERNATIVES: usize = 12;
const MAX_CURVE: usize = 64;
const MAX_EVALUATIONS: usize = 2000;

/// The data of a run for the page.
#[derive(Serialize)]
pub struct RunPage {
    /// Name of the folder.
    pub name: String,
    config: Option<String>,
    summary: Option<Value>,
    /// The failure, unless the run was resumed since.
    failure: Option<Failure>,
    #[serde(flatten)]
    plan: PlanFiles,
    #[serde(flatten)]
    best_model: BestModelFiles,
    #[serde(flatten)]
    steps: StepCurves,
    /// `None` for a single process.
    processes: Option<Processes>,
    #[serde(flatten)]
    evaluations: Evaluations,
    #[serde(flatten)]
    memory: MemoryCurves,
    /// Result of `analyze`.
    analysis: Option<Value>,
    skipped: u64,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct PlanFiles {
    plan: Option<Value>,
    tensors: Option<Value>,
    operations: Option<Value>,
}

/// Files that are written for every best model so far.
#[derive(Serialize)]
struct BestModelFiles {
    samples: Option<Value>,
    confusion: Option<Confusion>,
    segmentation: Option<Segmentation>,
    captions: Option<Captions>,
}

#[derive(Serialize)]
struct Evaluations {
    num_evaluations: usize,
    metrics: Vec<MetricCurve>,
    best: Option<Best>,
}

#[derive(Serialize)]
struct MemoryCurves {
    num_memory_samples: usize,
    /// By key, over seconds since the first sample, without pauses.
    memory: Map<String, Value>,
    phases: Vec<(f64, &'static str)>,
}

impl RunPage {
    /// Reads the files of a run.
    pub fn read(path: &Path) -> Result<RunPage, ReportError> {
        check_is_run(path)?;
        let mut notes = Vec::new();
        let config = config(path, &mut notes);
        let plan = PlanFiles::read(path, &mut notes);
        let mut steps = StepCurves::default();
        let mut processes = Processes::default();
        let mut evaluations: Vec<EvaluationLine> = Vec::new();
        read_lines(path, METRICS_FILE, &mut notes, |line| {
            match MetricsLine::parse(line)? {
                MetricsLine::Step(line) => {
                    steps.add(&line);
                    line.processes.iter().for_each(|each| processes.add(each));
                }
                MetricsLine::Evaluation(line) => evaluations.push(line),
                MetricsLine::Other => {}
            }
            Ok(())
        });
        if evaluations.len() > MAX_EVALUATIONS {
            let left_out = evaluations.len() - MAX_EVALUATIONS;
            evaluations.drain(..left_out);
            notes.push(format!(
                "{METRICS_FILE}: the first {left_out} evaluations are not shown"
            ));
        }
        let memory = MemoryCurves::read(path, &mut notes);
        let summary: Option<Value> = noted(run_files::read_json(path, SUMMARY_FILE), &mut notes);
        let best_model = BestModelFiles::read(path, &mut notes);
        let failure = noted(run_files::failure(path), &mut notes);
        let analysis = analysis(path, failure.is_some(), &mut notes);
        Ok(RunPage {
            name: name_of(path),
            config,
            failure,
            plan,
            steps: steps.thinned(),
            processes: processes.if_several(),
            evaluations: Evaluations {
                num_evaluations: evaluations.len(),
                metrics: metric_curves(&evaluations),
                best: best(summary.as_ref(), best_model.step(), &evaluations),
            },
            best_model,
            summary,
            memory,
            analysis,
            skipped: num_rows(&path.join("skipped.csv")),
            notes,
        })
    }

    /// Notes about unreadable data, with the run's name.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.notes.iter();
        notes.map(|note| format!("{}: {note}", self.name)).collect()
    }
}

fn check_is_run(path: &Path) -> Result<(), ReportError> {
    let found = if run_files::is_run(path) {
        return Ok(());
    } else if path.is_dir() {
        format!("none of {} in it", OF_A_RUN.join(", "))
    } else if path.exists() {
        "a file".to_owned()
    } else {
        "nothing there".to_owned()
    };
    let path = path.display().to_string();
    Err(ReportError::NotARun { path, found })
}

impl PlanFiles {
    fn read(path: &Path, notes: &mut Vec<String>) -> PlanFiles {
        let mut json = |name: &str| noted(run_files::read_json(path, name), notes);
        let mut plan: Option<Value> = json(PLAN_FILE);
        for (key, most) in [("alternatives", MAX_ALTERNATIVES), ("curve", MAX_CURVE)] {
            if let Some(Value::Array(all)) = plan.as_mut().and_then(|plan| plan.get_mut(key)) {
                all.truncate(most);
            }
        }
        PlanFiles {
            plan,
            tensors: json("plan-tensors.json"),
            operations: json("operations.json"),
        }
    }
}

impl BestModelFiles {
    fn read(path: &Path, notes: &mut Vec<String>) -> BestModelFiles {
        let confusion = noted(run_files::read_json(path, "confusion.json"), notes);
        let segmentation = noted(run_files::read_json(path, "segmentation.json"), notes);
        let captions = noted(run_files::read_json(path, "captions.json"), notes);
        BestModelFiles {
            samples: noted(run_files::read_json(path, "samples.json"), notes),
            confusion: confusion.map(Confusion::bounded),
            segmentation: segmentation.map(Segmentation::bounded),
            captions: captions.map(Captions::bounded),
        }
    }

    /// Step of the best model.
    fn step(&self) -> Option<u64> {
        let of_samples = self.samples.as_ref().and_then(|file| file["step"].as_u64());
        of_samples
            .or(self.confusion.as_ref().and_then(|file| file.step))
            .or(self.segmentation.as_ref().and_then(|file| file.step))
            .or(self.captions.as_ref().and_then(|file| file.step))
    }
}

impl MemoryCurves {
    fn read(path: &Path, notes: &mut Vec<String>) -> MemoryCurves {
        let mut samples: Vec<MemorySample> = Vec::new();
        read_lines(path, memory_log::FILE_NAME, notes, |line| {
            samples.push(serde_json::from_slice(line)?);
            Ok(())
        });
        let times = without_pauses(&samples);
        MemoryCurves {
            num_memory_samples: samples.len(),
            memory: memory_curves(&samples, &times),
            phases: phases(&samples, &times),
        }
    }
}

/// Analysis of the run, if it has a memory log. Without the findings about a failure that the page shows itself.
fn analysis(run: &Path, has_failed: bool, notes: &mut Vec<String>) -> Option<Value> {
    if !run.join(memory_log::FILE_NAME).exists() {
        return None;
    }
    let options = AnalyzeOptions {
        log: memory_log::FILE_NAME.to_owned(),
        ..AnalyzeOptions::default()
    };
    match analyze_run(run, &options) {
        Ok(mut analysis) => {
            let is_told = |kind| has_failed && matches!(kind, Symptom::Failed | Symptom::Diverged);
            analysis.findings.retain(|finding| !is_told(finding.kind));
            serde_json::to_value(analysis).ok()
        }
        Err(error) => {
            notes.push(error.to_string().replace("\nhint", "; hint"));
            None
        }
    }
}

/// Name of the folder; for a folder called `run`, with its parent's name.
fn name_of(path: &Path) -> String {
    let whole = path.canonicalize();
    let path = whole.as_deref().unwrap_or(path);
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let Some(own) = name(path) else {
        return path.display().to_string();
    };
    match path.parent().and_then(name) {
        Some(parent) if own == "run" => format!("{parent}/{own}"),
        _ => own,
    }
}

/// The value; an error becomes a note.
fn noted<T>(read: Result<Option<T>, String>, notes: &mut Vec<String>) -> Option<T> {
    read.unwrap_or_else(|note| {
        notes.push(note);
        None
    })
}

fn config(run: &Path, notes: &mut Vec<String>) -> Option<String> {
    let path = run.join(CONFIG_FILE);
    if !path.exists() {
        return None;
    }
    match fs::read(&path) {
        Ok(bytes) => {
            let mut text = String::from_utf8_lossy(&bytes).into_owned();
            if text.len() > MAX_CONFIG_BYTES {
                text.truncate(text.floor_char_boundary(MAX_CONFIG_BYTES));
                notes.push(format!(
                    "{CONFIG_FILE}: only its first {MAX_CONFIG_BYTES} bytes are shown"
                ));
            }
            Some(text)
        }
        Err(cause) => {
            notes.push(format!("{CONFIG_FILE} cannot be read: {cause}"));
            None
        }
    }
}

/// Number of rows of a CSV below its header.
fn num_rows(path: &Path) -> u64 {
    let mut lines = 0_u64;
    // After a read error, the lines before it count.
    let _ = run_files::for_each_line(path, |_| lines += 1);
    lines.saturating_sub(1)
}

/// Calls `each` for every line; a note counts the lines that fail. An incomplete last line was still being written.
fn read_lines(
    run: &Path,
    name: &str,
    notes: &mut Vec<String>,
    mut each: impl FnMut(&[u8]) -> Result<(), serde_json::Error>,
) {
    let mut bad = 0;
    match run_files::for_each_line(&run.join(name), |line| {
        bad += u64::from(each(line).is_err())
    }) {
        Ok(too_long) => bad += too_long,
        Err(cause) => notes.push(format!("{name} cannot be read to its end: {cause}")),
    }
    match bad {
        0 => {}
        1 => notes.push(format!("{name}: a line is not whole and is left out")),
        bad => notes.push(format!(
            "{name}: {} are not whole and are left out",
            counted(bad, "line")
        )),
    }
}
