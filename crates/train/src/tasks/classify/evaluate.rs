//! Evaluation of a classifier: one forward pass over every picture, with streaming counts and scores.

use serde_json::{Value, json};

use super::examples::{EXAMPLES_BYTES, Examples};
use super::head_scores::{Tallies, describe_metrics, metrics_of, tally_bytes};
use super::step::{LOGITS, PROGRAM, PROGRAM_PIXELS};
use super::{ClassifyTask, Head};
use crate::engine::scores::{Direction, Scores};
use crate::engine::similarity::percent;
use crate::engine::task::{Evaluated, Evaluation, Unfinished, nothing_readable};
use crate::error::TrainError;
use crate::planning::loader_budget::read_once;
use crate::planning::processes::share_of;
use crate::run::shared_evaluation::{PartWriter, exchange};

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
        device,
        mut forward,
        pictures,
        subset,
        samples,
        step,
        effective_batch,
        stop,
        is_wanted,
        tell,
    } = evaluation;
    let (group, share) = (device.group(), share_of(device.group()));
    let is_alone = group.size() == 1;
    let heads = &task.heads;
    let num_outputs = task.num_outputs();
    let mut tallies = Tallies::new(heads, samples.len());
    let mut examples = step.map(|_| Examples::of(samples));
    let mut done = 0;
    let (mut own_samples, mut own_outputs) = (Vec::new(), Vec::new());
    let mut not_finite = None;
    let batch = forward.rows(PROGRAM_PIXELS).min(pictures.num_rows());
    let total = share.of(samples.len()).len();
    let progressing = group.expect_progress();
    let read = read_once(pictures, (samples, share), batch, stop, |read, rows| {
        forward.feed_pictures(PROGRAM_PIXELS, rows);
        forward.run(PROGRAM)?;
        let mut outputs = forward.read_rows(LOGITS, rows.len())?.into_owned();
        if !is_alone {
            own_samples.extend_from_slice(read);
            own_outputs.extend_from_slice(&outputs);
        }
        for (row, (&sample, outputs)) in
            read.iter().zip(outputs.chunks_mut(num_outputs)).enumerate()
        {
            if let Some(value) = outputs.iter().find(|value| !value.is_finite()) {
                not_finite.get_or_insert((sample, *value));
            }
            tallies.add(samples, sample as usize, outputs);
            if let Some(examples) = &mut examples {
                examples.see(heads, samples, sample, &rows[row], outputs);
            }
        }
        done += rows.len();
        tell(done, total);
        Ok::<bool, Unfinished>(is_wanted() && not_finite.is_none())
    });
    drop(progressing);
    let read = match not_finite {
        Some((sample, value)) => Err(Unfinished::NotFinite(format!(
            "the outputs for {} are not finite: found {value}",
            samples.image(sample as usize)
        ))),
        None => read.and_then(|read| read.ok_or(Unfinished::Stopped)),
    };
    if !is_alone {
        // Counts again over the outputs of all processes, in the order of samples.
        tallies = Tallies::new(heads, samples.len());
        done = 0;
    }
    let own_examples = examples.take();
    let write_own = || {
        let part = PartWriter::default().numbers(&own_samples);
        part.numbers(&own_outputs).plain(&own_examples)
    };
    let skipped = exchange(group, read, write_own, |mut part| {
        let read: Vec<u32> = part.numbers()?;
        let mut outputs: Vec<f32> = part.numbers()?;
        for (&sample, outputs) in read.iter().zip(outputs.chunks_mut(num_outputs)) {
            tallies.add(samples, sample as usize, outputs);
        }
        done += read.len();
        let more: Option<Examples> = part.plain()?;
        match (&mut examples, more) {
            (Some(examples), Some(more)) => examples.add(more),
            (none, more) => *none = more,
        }
        Some(())
    })?;
    let examples = examples.or(own_examples);
    if done == 0 {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let mut scores = match heads.as_slice() {
        [_] => tallies.scores(step.is_none()).remove(0).1,
        _ => tallies
            .scores(step.is_none())
            .into_iter()
            .map(|(name, scores)| (name, Value::Object(scores)))
            .collect(),
    };
    scores.insert("pictures".to_owned(), json!(done));
    scores.insert("skipped".to_owned(), json!(samples.len() - done));
    let mut files = Vec::new();
    if let (Some(examples), Some(step), 0) = (examples, step, group.rank()) {
        let confusions = tallies.confusions();
        files = examples.files(step, subset, samples, heads, confusions);
    }
    let mut scores = Scores::of(&Value::Object(scores));
    if effective_batch.is_some() {
        scores.set_losses(&tallies.losses());
    }
    Ok(Evaluated {
        scores,
        skipped,
        files,
        ranks: None,
    })
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
