//! Predictions of a classifier: labels and numbers, head by head.

use anyhow::Result;
use holdall_train::TrainError;
use holdall_train::task::Unfinished;
use holdall_train::tasks::classify::{Answer, SavedClassifier};

use super::{Guess, Job, Prediction, Predictions, TargetGuess};
use crate::screen::progress;
use crate::stop;

/// What is held of a picture beside its labels.
const NAMES_BYTES: usize = 384;

pub(super) fn predict(job: &Job<'_>, saved: &SavedClassifier) -> Result<Option<Predictions>> {
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
    let (task, top) = (saved.task(), arguments.top_labels());
    let held_bytes = 2 * top * size_of::<Guess>() + NAMES_BYTES;
    let host_bytes = (job.paths.len() * held_bytes) as u64;
    let Some((mut opened, mut pictures)) = job.open(task, saved, host_bytes)? else {
        return Ok(None);
    };
    let planned_bytes = opened.model.plan().process_bytes;
    let bar = progress(job.paths.len() as u64, "Predicting");
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
            all.extend(each.map(|(&sample, answers)| prediction(job.image(sample), answers)));
            true
        },
    );
    bar.finish_and_clear();
    Ok(Some(Predictions {
        all,
        skipped: skipped.map_err(Unfinished::into_error)?,
        planned_bytes,
        features: None,
    }))
}

fn prediction(image: String, answers: Vec<Answer>) -> Prediction {
    let targets = answers.into_iter().map(|answer| match answer {
        Answer::Labels { target, labels, .. } => {
            let guess = |(label, probability)| Guess { label, probability };
            TargetGuess {
                target,
                labels: labels.into_iter().map(guess).collect(),
                number: None,
            }
        }
        Answer::Number { target, number } => TargetGuess {
            target,
            labels: Vec::new(),
            number: Some(number),
        },
    });
    let mut targets: Vec<TargetGuess> = targets.collect();
    let labelled = targets.iter().find(|target| !target.labels.is_empty());
    let labels = labelled.map_or(Vec::new(), |target| target.labels.clone());
    // One head with labels is told as CLIP's is.
    if let [TargetGuess { number: None, .. }] = targets.as_slice() {
        targets.clear();
    }
    Prediction {
        image,
        labels,
        targets,
    }
}
