//! Evaluation of a classifier: one forward pass over every picture, with streaming counts and scores.

use holdall_data::samples::Samples;
use serde_json::{Value, json};

use super::examples::{EXAMPLES_BYTES, Examples};
use super::head_scores::{Tallies, describe_metrics, metrics_of, tally_bytes};
use super::heads::to_data_units;
use super::step::{LOGITS, PROGRAM, PROGRAM_PIXELS};
use super::{ClassifyTask, Head};
use crate::engine::scores::{Direction, Scores};
use crate::engine::similarity::percent;
use crate::engine::task::{Evaluated, Evaluation, Unfinished, nothing_readable};
use crate::error::TrainError;
use crate::run::evaluation_pass::{AllOutputs, EvaluationPass};
use crate::run::shared_evaluation::PartWriter;

/// Host memory of an evaluation, in bytes.
pub(super) fn host_bytes(task: &ClassifyTask, num_samples: usize) -> u64 {
    tally_bytes(&task.heads, num_samples) + EXAMPLES_BYTES
}

/// Evaluates samples. Unreadable pictures are skipped and listed.
pub(super) fn evaluate(
    task: &ClassifyTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let Evaluation {
        subset,
        samples,
        step,
        effective_batch,
        ..
    } = evaluation;
    let (heads, num_outputs) = (&task.heads, task.num_outputs());
    let (mut pass, mut forward) = EvaluationPass::new(evaluation, [samples.len()]);
    let group = pass.group;
    let mut tallies = Tallies::new(heads, samples.len());
    let mut scored = 0;
    let mut outputs = AllOutputs::new(group, |read, _, outputs| {
        for (&sample, outputs) in read.iter().zip(outputs.chunks(num_outputs)) {
            tallies.add(samples, sample as usize, outputs);
        }
        scored += read.len();
    });
    let mut examples = step.map(|_| Examples::of(samples));
    let read = pass.read_once(forward.rows(PROGRAM_PIXELS), |loaded| {
        forward.feed_pictures(PROGRAM_PIXELS, &loaded.rows);
        forward.run(PROGRAM)?;
        let mut found = forward.read_rows(LOGITS, loaded.rows.len())?.into_owned();
        check_finite(samples, &loaded.samples, &found, num_outputs)?;
        outputs.add(&loaded.samples, &[], &found);
        if let Some(examples) = &mut examples {
            let found = found.chunks_mut(num_outputs).zip(&loaded.rows);
            for (&sample, (outputs, row)) in loaded.samples.iter().zip(found) {
                to_data_units(heads, outputs);
                examples.see(heads, samples, sample, row, outputs);
            }
        }
        Ok(())
    });
    let mut examples_of_all: Option<Examples> = None;
    let write_examples = |part: PartWriter| part.plain(&examples);
    let skipped = outputs.finish(read, write_examples, |mut part| {
        let more: Option<Examples> = part.plain()?;
        match (&mut examples_of_all, more) {
            (Some(all), Some(more)) => all.add(more),
            (all, more) => *all = more,
        }
        Some(())
    })?;
    if scored == 0 {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let mut fields = tallies.fields(step.is_none());
    fields.insert("pictures".to_owned(), json!(scored));
    fields.insert("skipped".to_owned(), json!(samples.len() - scored));
    let mut scores = Scores::of(&Value::Object(fields));
    if effective_batch.is_some() {
        scores.set_losses(&tallies.losses());
    }
    let mut files = Vec::new();
    if let (Some(examples), Some(step), 0) = (examples_of_all.or(examples), step, group.rank()) {
        let confusions = tallies.confusions();
        files = examples.files(step, subset, samples, heads, confusions);
    }
    Ok(Evaluated {
        scores,
        skipped,
        files,
        ranks: None,
    })
}

/// Refuses outputs that are infinite or not a number.
fn check_finite(
    samples: &Samples,
    read: &[u32],
    outputs: &[f32],
    num_outputs: usize,
) -> Result<(), Unfinished> {
    let Some(at) = outputs.iter().position(|value| !value.is_finite()) else {
        return Ok(());
    };
    Err(Unfinished::NotFinite(format!(
        "the outputs for {} are not finite: found {}",
        samples.image(read[at / num_outputs] as usize),
        outputs[at]
    )))
}

pub(super) fn best_metric(
    task: &ClassifyTask,
    asked: Option<&str>,
) -> Result<(String, Direction), TrainError> {
    let known: Vec<(String, Direction)> = task
        .heads
        .iter()
        .flat_map(|head| {
            let metrics = metrics_of(head).iter();
            metrics.map(|&(metric, direction)| match task.heads.len() {
                1 => (metric.to_owned(), direction),
                _ => (format!("{}.{metric}", head.name), direction),
            })
        })
        .collect();
    // Metrics are grouped by head, leading metric first.
    let before = task.heads[..task.leading_head].iter();
    let usual: usize = before.map(|head| metrics_of(head).len()).sum();
    match asked {
        None => Ok(known[usual].clone()),
        Some(asked) => {
            let found = known.iter().find(|(name, _)| name == asked);
            found.cloned().ok_or_else(|| {
                let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
                TrainError::Config(format!(
                    "train.best_metric: {asked}, expected one of {}, loss\nhint: leave it out for {}",
                    names.join(", "),
                    names[usual]
                ))
            })
        }
    }
}

/// One line per head, and a table of classes if the scores are detailed.
pub(super) fn describe_scores(task: &ClassifyTask, scores: &Scores) -> String {
    let mut lines = Vec::new();
    for head in &task.heads {
        let prefix = match task.heads.len() {
            1 => String::new(),
            _ => format!("{}.", head.name),
        };
        lines.push(describe_metrics(head, |name| {
            scores.number(&format!("{prefix}{name}"))
        }));
        lines.extend(class_table(scores, &prefix, head));
    }
    lines.join("\n")
}

/// Rows of the printed class table, at most.
const MOST_CLASSES: usize = 40;

fn class_table(scores: &Scores, prefix: &str, head: &Head) -> Vec<String> {
    let path = format!("{prefix}classes");
    let Some(classes) = scores.list(&path) else {
        return Vec::new();
    };
    let widest = classes.iter().filter_map(|class| class["label"].as_str());
    let widest = widest.map(|label| label.chars().count()).max().unwrap_or(0);
    let widest = widest.clamp(5, 32);
    let mut lines = vec![format!(
        "    {:widest$}  support  precision  recall      F1",
        "label"
    )];
    let share = |value: &Value| value.as_f64().map_or("-".to_owned(), percent);
    for class in classes.iter().take(MOST_CLASSES) {
        let label: String = class["label"]
            .as_str()
            .unwrap_or("")
            .chars()
            .take(widest)
            .collect();
        lines.push(format!(
            "    {label:widest$}  {:>7}  {:>9}  {:>6}  {:>6}",
            class["support"].as_u64().unwrap_or(0),
            share(&class["precision"]),
            share(&class["recall"]),
            share(&class["f1"])
        ));
    }
    if classes.len() > MOST_CLASSES {
        let more = classes.len() - MOST_CLASSES;
        lines.push(format!("    and {more} more: --json has them all"));
    }
    lines.extend(worst_confusions(scores, prefix, head));
    lines
}

/// The most frequent confusions of two labels.
fn worst_confusions(scores: &Scores, prefix: &str, head: &Head) -> Option<String> {
    let entries = scores.list(&format!("{prefix}confusion"))?;
    let name = |value: &Value| {
        let index = value.as_u64()? as usize;
        head.kind.names().get(index).map(String::as_str)
    };
    let mut mistakes: Vec<(u64, &str, &str)> = entries
        .iter()
        .filter(|entry| entry[0] != entry[1])
        .filter_map(|entry| Some((entry[2].as_u64()?, name(&entry[0])?, name(&entry[1])?)))
        .collect();
    mistakes.sort_by(|a, b| b.cmp(a));
    let words: Vec<String> = mistakes
        .iter()
        .take(3)
        .map(|(count, truth, found)| format!("{truth} taken for {found} ({count})"))
        .collect();
    (!words.is_empty()).then(|| format!("    most frequent mistakes: {}", words.join(", ")))
}
