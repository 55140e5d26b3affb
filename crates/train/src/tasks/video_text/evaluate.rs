//! Forward programs over samples -> scores.

use holdall_data::samples::Samples;

use super::VideoTextTask;
use crate::config::Subset;
use crate::error::TrainError;
use crate::scores::{Direction, Scores};
use crate::task::{Evaluated, Evaluation, Unfinished};

/// Bytes that an evaluation holds on the host.
pub(super) fn host_bytes(
    _task: &VideoTextTask,
    _subset: Subset,
    _samples: &Samples,
    _threads: usize,
) -> u64 {
    0
}

pub(super) fn evaluate(
    _task: &VideoTextTask,
    _evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    Ok(Evaluated {
        scores: Scores::default(),
        skipped: Vec::new(),
        files: Vec::new(),
    })
}

pub(super) fn metric(scores: &Scores, name: &str) -> Option<f64> {
    scores.number(name)
}

pub(super) fn best_metric(
    _task: &VideoTextTask,
    asked: Option<&str>,
) -> Result<(String, Direction), TrainError> {
    Ok((asked.unwrap_or("mean_r1").to_owned(), Direction::Higher))
}

pub(super) fn describe_size(_scores: &Scores) -> Option<String> {
    None
}

pub(super) fn describe_scores(_scores: &Scores) -> String {
    String::new()
}
