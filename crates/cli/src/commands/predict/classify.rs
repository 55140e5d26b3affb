//! Predictions of a classifier: labels and numbers, head by head.

use anyhow::Result;
use holdall_train::TrainError;
use holdall_train::engine::task::Unfinished;
use holdall_train::tasks::classify::SavedClassifier;

use super::answers::{Guess, HeadColumns, TargetGuess};
use super::{Prediction, PredictionJob, Predictions};
use crate::screen::progress;
use crate::stop;

/// Memory per picture beside its labels.
const NAMES_BYTES: usize = 384;

pub(super) fn predict(
    job: &PredictionJob<'_>,
    saved: &SavedClassifier,
) -> Result<Option<Predictions>> {
    let arguments = job.arguments;
    let wrong = |option: &str, hint: &str| {
        let model = &arguments.model;
        TrainError::Config(format!(
            "{option}: expected a CLIP model, found a classifier: {model}\nhint: {hint}"
        ))
    };
    if !arguments.labels.is_empty() {
        return Err(wrong(
            "--labels",
            "leave it out: a classifier knows its own labels",
        )
        .into());
    }
    if arguments.features.is_some() {
        return Err(wrong("--features", "--csv FILE writes what the classifier says").into());
    }
    let task = saved.task();
    let most_labels = task.heads.iter().map(|head| head.kind.names().len()).max();
    let top = arguments.top_labels(most_labels.unwrap_or(0));
    let held_bytes = 2 * task.heads.len() * top * size_of::<Guess>() + NAMES_BYTES;
    let host_bytes = (job.samples.len() * held_bytes) as u64;
    let Some((mut opened, mut pictures)) = job.open(task, saved, host_bytes)? else {
        return Ok(None);
    };
    let planned_bytes = opened.model.plan().process_bytes;
    let bar = progress(job.samples.len() as u64, "Predicting");
    let mut all = Vec::new();
    let mut forward = opened.model.forward(job.device);
    let skipped = saved.predict(
        &mut forward,
        (&mut pictures, &job.samples),
        top,
        &stop::requests().stop,
        |read, answers| {
            bar.inc(read.len() as u64);
            let each = read.iter().zip(answers);
            all.extend(each.map(|(&sample, answers)| {
                let targets = answers.into_iter().map(TargetGuess::from).collect();
                Prediction::new(job, sample, targets)
            }));
            true
        },
    );
    bar.finish_and_clear();
    Ok(Some(Predictions {
        all,
        skipped: skipped.map_err(Unfinished::into_error)?,
        planned_bytes,
        features: None,
        columns: task
            .heads
            .iter()
            .map(|head| HeadColumns::of_head(head, arguments.top, arguments.all_probabilities))
            .collect(),
    }))
}
