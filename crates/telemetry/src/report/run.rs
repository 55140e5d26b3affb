//! A run folder as the page sees it. Files may be missing, older or newer than this code, or end within a line: what can be read
//! is shown, and a note says what could not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ReportError;
use super::thin::{Curve, six_digits, smoothed};
use crate::analyze::{AnalyzeOptions, analyze_run};
use crate::memory_log;

/// A JSON file that is longer than this is none of ours.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Of a config, what is shown.
const MAX_CONFIG_BYTES: usize = 200_000;
/// A line that is longer than this is none of ours.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Alternatives that are shown.
const MAX_ALTERNATIVES: usize = 12;
/// Evaluations that are shown.
const MAX_EVALUATIONS: usize = 2000;
/// Changes of phase that are shown.
const MAX_PHASES: usize = 400;

/// Files by which a folder is known as a run's.
const OF_A_RUN: [&str; 4] = ["config.yml", "metrics.jsonl", "plan.json", "summary.json"];

/// Between two samples that are further apart the run was not there: it was stopped, and resumed.
const LONGEST_PAUSE_S: f64 = 60.0;

/// A line of `metrics.jsonl` as far as it is drawn.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Step {
    step: Option<f64>,
    epoch: Option<f64>,
    loss: Option<f64>,
    contrastive: Option<f64>,
    contrastive_chance: Option<f64>,
    label: Option<f64>,
    label_chance: Option<f64>,
    gradient_norm: Option<f64>,
    lr: Option<f64>,
    lr_head: Option<f64>,
    loss_scale: Option<f64>,
    samples: Option<f64>,
    seconds: Option<f64>,
    waited_for_data: Option<f64>,
}

/// A line of `memory.jsonl` as far as it is drawn.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sample {
    time: Option<f64>,
    phase: Option<String>,
    used_bytes: Option<f64>,
    process_bytes: Option<f64>,
    arena_bytes: Option<f64>,
    host_rss_bytes: Option<f64>,
    gpu_utilization: Option<f64>,
}

/// `failure.json` as far as it is shown.
#[derive(Deserialize, Serialize)]
struct Failure {
    #[serde(default)]
    time: f64,
    /// `diverged`, or anything else.
    #[serde(default)]
    kind: String,
    #[serde(default)]
    step: Option<u64>,
    error: String,
}

/// How long after a failure the memory is still looked at, at most.
const LAST_LOOKS_S: f64 = 10.0;

/// What a kind of line is.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Kind {
    kind: String,
}

/// Sums over all steps.
#[derive(Default, Serialize)]
struct Totals {
    samples: f64,
    seconds: f64,
    waited: f64,
}

/// Everything that the page shows of a run.
#[derive(Serialize)]
pub struct Run {
    /// For people: the folder's name.
    pub name: String,
    config: Option<String>,
    summary: Option<Value>,
    /// How it failed, unless it went on since.
    failure: Option<Failure>,
    plan: Option<Value>,
    tensors: Option<Value>,
    operations: Option<Value>,
    samples: Option<Value>,
    num_steps: usize,
    last_step: Option<f64>,
    last_epoch: Option<f64>,
    totals: Totals,
    /// By key, over steps.
    steps: Map<String, Value>,
    evaluations: Vec<Value>,
    num_memory_samples: usize,
    /// By key, over seconds since the first sample, without pauses.
    memory: Map<String, Value>,
    phases: Vec<(f64, String)>,
    /// The verdict of `analyze`.
    analysis: Option<Value>,
    skipped: u64,
    notes: Vec<String>,
}

impl Run {
    /// Reads what there is.
    pub fn read(path: &Path) -> Result<Run, ReportError> {
        let not_a_run = |found: &str| ReportError::NotARun {
            path: path.display().to_string(),
            found: found.to_owned(),
        };
        if !path.is_dir() {
            let found = if path.exists() {
                "a file"
            } else {
                "nothing there"
            };
            return Err(not_a_run(found));
        }
        if !OF_A_RUN.iter().any(|name| path.join(name).is_file()) {
            return Err(not_a_run(&format!("none of {} in it", OF_A_RUN.join(", "))));
        }
        let mut notes = Vec::new();
        let config = read_text(path, "config.yml", &mut notes);
        let mut plan = read_json(path, "plan.json", &mut notes);
        if let Some(Value::Array(all)) = plan.as_mut().and_then(|plan| plan.get_mut("alternatives"))
        {
            all.truncate(MAX_ALTERNATIVES);
        }
        let (mut steps, mut evaluations): (Vec<Step>, Vec<Value>) = Default::default();
        read_lines(path, "metrics.jsonl", &mut notes, |line| {
            match serde_json::from_slice::<Kind>(line)?.kind.as_str() {
                "step" => steps.push(serde_json::from_slice(line)?),
                "evaluation" => evaluations.push(serde_json::from_slice(line)?),
                _ => {}
            }
            Ok(())
        });
        if evaluations.len() > MAX_EVALUATIONS {
            let left_out = evaluations.len() - MAX_EVALUATIONS;
            evaluations.drain(..left_out);
            notes.push(format!(
                "metrics.jsonl: the first {left_out} evaluations are not shown"
            ));
        }
        let mut samples: Vec<Sample> = Vec::new();
        read_lines(path, memory_log::FILE_NAME, &mut notes, |line| {
            samples.push(serde_json::from_slice(line)?);
            Ok(())
        });
        let times = without_pauses(&samples);
        let failure = read_json(path, "failure.json", &mut notes);
        let failure = failure.and_then(|json| serde_json::from_value::<Failure>(json).ok());
        let last_look = samples.last().and_then(|sample| sample.time);
        let is_over = |failure: &Failure| {
            last_look.is_some_and(|last_look| last_look > failure.time + LAST_LOOKS_S)
        };
        Ok(Run {
            name: name_of(path),
            config,
            summary: read_json(path, "summary.json", &mut notes),
            failure: failure.filter(|failure| !is_over(failure)),
            plan,
            tensors: read_json(path, "plan-tensors.json", &mut notes),
            operations: read_json(path, "operations.json", &mut notes),
            samples: read_json(path, "samples.json", &mut notes),
            num_steps: steps.len(),
            last_step: steps.last().and_then(|line| line.step),
            last_epoch: steps.last().and_then(|line| line.epoch),
            totals: totals(&steps),
            steps: step_curves(&steps),
            evaluations,
            num_memory_samples: samples.len(),
            memory: memory_curves(&samples, &times),
            phases: phases(&samples, &times),
            analysis: analysis(path, &mut notes),
            skipped: read_text(path, "skipped.csv", &mut Vec::new())
                .map_or(0, |text| text.lines().skip(1).count() as u64),
            notes,
        })
    }

    /// What could not be read, with the run's name.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.notes.iter();
        notes.map(|note| format!("{}: {note}", self.name)).collect()
    }
}

/// What `analyze` says of the run, where it has a memory log.
fn analysis(run: &Path, notes: &mut Vec<String>) -> Option<Value> {
    if !run.join(memory_log::FILE_NAME).exists() {
        return None;
    }
    let options = AnalyzeOptions {
        log: memory_log::FILE_NAME.to_owned(),
        ..AnalyzeOptions::default()
    };
    match analyze_run(run, &options) {
        Ok(analysis) => serde_json::to_value(analysis).ok(),
        Err(error) => {
            notes.push(error.to_string().replace("\nhint", "; hint"));
            None
        }
    }
}

/// The folder's name; one that is only called `run` has its parent's too.
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

/// A file that need not be there.
fn read_text(run: &Path, name: &str, notes: &mut Vec<String>) -> Option<String> {
    let path = run.join(name);
    if !path.exists() {
        return None;
    }
    match fs::read(&path) {
        Ok(bytes) => {
            let mut text = String::from_utf8_lossy(&bytes).into_owned();
            if name == "config.yml" && text.len() > MAX_CONFIG_BYTES {
                let end = text.floor_char_boundary(MAX_CONFIG_BYTES);
                text.truncate(end);
                notes.push(format!(
                    "{name}: only its first {MAX_CONFIG_BYTES} bytes are shown"
                ));
            }
            Some(text)
        }
        Err(cause) => {
            notes.push(format!("{name} cannot be read: {cause}"));
            None
        }
    }
}

fn read_json(run: &Path, name: &str, notes: &mut Vec<String>) -> Option<Value> {
    let long = fs::metadata(run.join(name)).map_or(0, |file| file.len());
    if long > MAX_JSON_BYTES {
        notes.push(format!(
            "{name}: {long} bytes, expected at most {MAX_JSON_BYTES}"
        ));
        return None;
    }
    let text = read_text(run, name, notes)?;
    match serde_json::from_str(&text) {
        Ok(value) => Some(value),
        Err(cause) => {
            notes.push(format!("{name} is no JSON: {cause}"));
            None
        }
    }
}

/// Gives every line to `each`; a note counts those that it does not take. One without its end was being written.
fn read_lines(
    run: &Path,
    name: &str,
    notes: &mut Vec<String>,
    mut each: impl FnMut(&[u8]) -> Result<(), serde_json::Error>,
) {
    let Ok(file) = fs::File::open(run.join(name)) else {
        return;
    };
    let mut reader = BufReader::new(file);
    let (mut line, mut bad) = (Vec::new(), 0);
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(cause) => {
                notes.push(format!("{name} cannot be read to its end: {cause}"));
                break;
            }
        }
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        if !is_blank && (line.len() > MAX_LINE_BYTES || each(&line).is_err()) {
            bad += 1;
        }
    }
    match bad {
        0 => {}
        1 => notes.push(format!("{name}: a line is not whole and is left out")),
        bad => notes.push(format!(
            "{name}: {bad} lines are not whole and are left out"
        )),
    }
}

type Points = Vec<(f64, Option<f64>)>;

fn put(curves: &mut Map<String, Value>, key: &str, points: &Points) {
    if points.iter().any(|(_, y)| y.is_some()) {
        let curve = serde_json::to_value(Curve::thinned(points));
        curves.insert(key.to_owned(), curve.expect("a curve is plain data"));
    }
}

fn totals(steps: &[Step]) -> Totals {
    let mut totals = Totals::default();
    for line in steps {
        totals.samples += line.samples.unwrap_or(0.0);
        totals.seconds += line.seconds.unwrap_or(0.0);
        totals.waited += line.waited_for_data.unwrap_or(0.0);
    }
    totals
}

/// What is drawn of every step.
type Drawn = (&'static str, fn(&Step) -> Option<f64>);

const DRAWN: [Drawn; 11] = [
    ("loss", |line| line.loss),
    ("contrastive", |line| line.contrastive),
    ("contrastive_chance", |line| line.contrastive_chance),
    ("label", |line| line.label),
    ("label_chance", |line| line.label_chance),
    ("gradient_norm", |line| line.gradient_norm),
    ("lr", |line| line.lr),
    ("lr_head", |line| line.lr_head),
    ("loss_scale", |line| line.loss_scale),
    ("samples_per_s", |line| {
        Some(line.samples? / line.seconds.filter(|seconds| *seconds > 0.0)?)
    }),
    ("waited", |line| {
        let seconds = line.seconds.filter(|seconds| *seconds > 0.0)?;
        Some((line.waited_for_data? / seconds).clamp(0.0, 1.0))
    }),
];

/// Those that jump about from step to step.
const SMOOTHED: [&str; 5] = ["loss", "contrastive", "label", "samples_per_s", "waited"];
/// Shorter curves are clear as they are.
const LEAST_SMOOTHED: usize = 100;

fn step_curves(steps: &[Step]) -> Map<String, Value> {
    let mut curves = Map::new();
    for (key, number) in DRAWN {
        let points: Points = steps
            .iter()
            .filter_map(|line| Some((line.step?, number(line))))
            .collect();
        put(&mut curves, key, &points);
        if SMOOTHED.contains(&key) && points.len() > LEAST_SMOOTHED {
            put(&mut curves, &format!("{key}_smooth"), &smoothed(&points));
        }
    }
    // Training time up to a step: lets runs be compared by the clock.
    let mut elapsed = 0.0;
    let clock = steps.iter().filter_map(|line| {
        elapsed += line.seconds.unwrap_or(0.0);
        Some((line.step?, Some(elapsed)))
    });
    put(&mut curves, "elapsed", &clock.collect());
    curves
}

/// Seconds since the first sample; a long pause, or a clock that was set back, takes no time.
fn without_pauses(samples: &[Sample]) -> Vec<f64> {
    let (mut elapsed, mut before) = (0.0, None);
    let mut times = Vec::with_capacity(samples.len());
    for sample in samples {
        if let (Some(now), Some(before)) = (sample.time, before) {
            let since: f64 = now - before;
            elapsed += if (0.0..LONGEST_PAUSE_S).contains(&since) {
                since
            } else {
                0.0
            };
        }
        before = sample.time.or(before);
        times.push(elapsed);
    }
    times
}

/// What is drawn of every sample.
type Sampled = (&'static str, fn(&Sample) -> Option<f64>);

const SAMPLED: [Sampled; 5] = [
    ("used_bytes", |sample| sample.used_bytes),
    ("process_bytes", |sample| sample.process_bytes),
    ("arena_bytes", |sample| sample.arena_bytes),
    ("host_rss_bytes", |sample| sample.host_rss_bytes),
    ("gpu_utilization", |sample| sample.gpu_utilization),
];

fn memory_curves(samples: &[Sample], times: &[f64]) -> Map<String, Value> {
    let mut curves = Map::new();
    for (key, number) in SAMPLED {
        let points = times.iter().zip(samples);
        let points = points.map(|(&time, sample)| (time, number(sample)));
        put(&mut curves, key, &points.collect());
    }
    curves
}

/// Where a phase of the run begins: training, evaluation, saving.
fn phases(samples: &[Sample], times: &[f64]) -> Vec<(f64, String)> {
    let mut found: Vec<(f64, String)> = Vec::new();
    for (&time, sample) in times.iter().zip(samples) {
        let Some(phase) = &sample.phase else {
            continue;
        };
        let is_new = found.last().is_none_or(|(_, last)| last != phase);
        if is_new && found.len() < MAX_PHASES {
            found.push((six_digits(time), phase.clone()));
        }
    }
    found
}
