//! What a model is worth on samples: retrieval both ways, and labels.
//!
//! Every picture is encoded once, and every different caption once. Features wait on the host; similarities are never
//! held.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::loader::{Loader, Skipped};
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_metrics::feature_gather::FeatureGather;
use holdall_metrics::features::Features;
use holdall_metrics::labels::LabelCounts;
use holdall_metrics::retrieval::{Ranks, Ties};
use serde::{Deserialize, Serialize};

use super::super::ranking;
use super::examples::{EXAMPLES_BYTES, Examples};
use super::{ClipTask, EncodedPictures, Encoder, TokenTable};
use crate::loader_budget::read_once;
use crate::scores::Scores;
use crate::similarity::{matrix, percent, unique_texts};
use crate::task::{Evaluated, Evaluation, Unfinished, nothing_readable};

/// What an evaluation found; a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ClipScores {
    /// Pictures against captions.
    #[serde(flatten)]
    retrieval: Retrieval,
    /// R@1 of guessing, pictures looking for captions.
    chance_r1: f64,
    /// Share of labels that the head has right.
    label_top1: Option<f64>,
    /// Share of labels among the head's first five.
    label_top5: Option<f64>,
    /// Top-1 of guessing.
    chance_top1: Option<f64>,
    /// Labelled samples.
    labelled: usize,
    /// Pictures that could not be read, and are not among those counted.
    #[serde(default)]
    skipped: usize,
}

/// Both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Retrieval {
    /// Pictures.
    pictures: usize,
    /// Different captions.
    captions: usize,
    /// Pictures looking for their caption.
    image_to_text: Ranks,
    /// Captions looking for a picture of theirs.
    text_to_image: Ranks,
}

/// Names that `best_metric` may have.
pub const METRICS: [&str; 5] = [
    "label_top1",
    "label_top5",
    "mean_r1",
    "image_to_text_r1",
    "text_to_image_r1",
];

/// A metric by its name; `None` where there is none.
pub(super) fn metric(scores: &Scores, name: &str) -> Option<f64> {
    let [to_text, to_image] = ["image_to_text.r1", "text_to_image.r1"];
    match name {
        "label_top1" | "label_top5" => scores.number(name),
        "mean_r1" => Some((scores.number(to_text)? + scores.number(to_image)?) / 2.0),
        "image_to_text_r1" => scores.number(to_text),
        "text_to_image_r1" => scores.number(to_image),
        _ => None,
    }
}

/// Bytes that an evaluation holds on the host.
pub(super) fn host_bytes(
    pictures: usize,
    captions: usize,
    projection: usize,
    threads: usize,
) -> u64 {
    ranking::host_bytes(pictures, captions, projection, threads) + EXAMPLES_BYTES
}

/// Evaluates samples. What cannot be read is left out, and named.
pub(super) fn evaluate(
    task: &ClipTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let Evaluation {
        device,
        forward,
        pictures,
        subset,
        samples,
        step,
        stop,
        is_wanted,
        tell,
    } = evaluation;
    let mut encoder = Encoder::new(task, forward);
    let (tokens, projection) = (task.tokens(subset), encoder.projection());
    let mut go_on = |done: usize, total: usize| {
        tell(done, total);
        is_wanted()
    };
    let total = samples.len() + tokens.len();
    let mut examples = step.map(|_| Examples::of(samples));
    let mut labels = LabelCounts::default();
    let mut picture_features = FeatureGather::new(samples.len(), projection, samples.len());
    let mut num_labels = None;
    let skipped = encode_pictures_seeing(
        &mut encoder,
        (pictures, samples),
        stop,
        |read, rows, encoded| {
            if let Some(examples) = &mut examples {
                examples.see_pictures(read, rows, &encoded);
            }
            let taken = picture_features.add(read, &encoded.features);
            taken.expect("a loader gives each sample once");
            if let Some(logits) = &encoded.logits {
                let rows = encoded.features.len() / projection;
                let width = logits.len() / rows;
                num_labels = Some(width);
                for (&sample, logits) in read.iter().zip(logits.chunks(width)) {
                    if let Ok(label) = usize::try_from(samples.label(sample as usize)) {
                        labels.add(logits, label);
                    }
                }
            }
            go_on(picture_features.len(), total)
        },
    )?;
    if picture_features.is_empty() {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let mut caption_features = Vec::with_capacity(tokens.len() * projection);
    encode_captions(&mut encoder, tokens, |features| {
        if let Some(examples) = &mut examples {
            examples.see_captions(features, projection);
        }
        caption_features.extend_from_slice(features);
        go_on(samples.len() + caption_features.len() / projection, total)
    })?;
    // What cannot be read: found now and named in `skipped`, or known from before.
    let left_out: Vec<u32> = picture_features.missing().collect();
    let pictures = picture_features
        .in_order(&left_out)
        .expect("all others are there");
    let caption_of: Vec<u32> = pictures
        .samples
        .iter()
        .map(|&sample| samples.caption_id(sample as usize))
        .collect();
    let found = device.cpu().scope(|| {
        let captions = Features::of(&caption_features, projection);
        ranking::rank(&pictures.rows, &captions, &caption_of, &mut |_| is_wanted())
    });
    let found = found.map_err(|error| ranking::failed(error, ["picture", "caption"]))?;
    let ranks = Retrieval {
        pictures: caption_of.len(),
        captions: tokens.len(),
        image_to_text: found.to_gallery.ranks(Ties::Mean),
        text_to_image: found.to_query.ranks(Ties::Mean),
    };
    let accuracy = labels.accuracy();
    let scores = Scores::of(&ClipScores {
        retrieval: ranks,
        chance_r1: 1.0 / tokens.len() as f64,
        label_top1: accuracy.map(|[top1, _]| top1),
        label_top5: accuracy.map(|[_, top5]| top5),
        chance_top1: accuracy.and(num_labels).map(|labels| 1.0 / labels as f64),
        labelled: labels.samples,
        skipped: samples.len() - caption_of.len(),
    });
    let seen = examples.zip(step);
    let json = seen.and_then(|(seen, step)| seen.json(step, subset, samples, task));
    Ok(Evaluated {
        scores,
        skipped,
        files: json
            .map(|json| ("samples.json", json))
            .into_iter()
            .collect(),
    })
}

/// How many texts were encoded and scored, and how.
pub(super) fn describe_size(scores: &Scores) -> Option<String> {
    let scores: ClipScores = scores.read()?;
    let (pictures, captions) = (scores.retrieval.pictures, scores.retrieval.captions);
    Some(format!(
        "{}\n{}",
        unique_texts(captions, pictures),
        matrix(pictures, captions)
    ))
}

/// Labels and ranks, a line each, beside what guessing gives.
pub(super) fn describe_scores(scores: &Scores) -> String {
    let Some(scores) = scores.read::<ClipScores>() else {
        return String::new();
    };
    let mut text = String::new();
    let labels = (scores.label_top1, scores.label_top5, scores.chance_top1);
    if let (Some(top1), Some(top5), Some(chance)) = labels {
        let [top1, top5, chance] = [top1, top5, chance].map(percent);
        text.push_str(&format!(
            "  labels        top-1 {top1} (chance {chance}), top-5 {top5}\n"
        ));
    }
    let ranks = |ranks: &Ranks| {
        let [r1, r5, r10] = [ranks.r1, ranks.r5, ranks.r10].map(percent);
        format!(
            "R@1 {r1}, R@5 {r5}, R@10 {r10}, median rank {}",
            ranks.median_rank
        )
    };
    text.push_str(&format!(
        "  image to text {} (R@1 by chance {})\n  text to image {}",
        ranks(&scores.retrieval.image_to_text),
        percent(scores.chance_r1),
        ranks(&scores.retrieval.text_to_image),
    ));
    text
}

/// Encodes every picture that can be read, in the order of the samples, unless it is to `stop`. `each` gets the samples of a batch and what
/// they became, and says whether to go on. Returns what could not be read.
pub fn encode_pictures(
    encoder: &mut Encoder<'_>,
    read: (&mut Loader<HostRow>, &Arc<Samples>),
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], EncodedPictures<'_>) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    encode_pictures_seeing(encoder, read, stop, |read, _, encoded| each(read, encoded))
}

/// The same, where `each` sees the pixels too.
fn encode_pictures_seeing(
    encoder: &mut Encoder<'_>,
    (pictures, samples): (&mut Loader<HostRow>, &Arc<Samples>),
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], &[HostRow], EncodedPictures<'_>) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    let batch = encoder.batch().min(pictures.num_rows());
    let read = read_once(pictures, samples, batch, stop, |read, rows| {
        let encoded = encoder.pictures(rows)?;
        Ok::<bool, Unfinished>(each(read, rows, encoded))
    })?;
    read.ok_or(Unfinished::Stopped)
}

/// Encodes every caption of the table. `each` gets the features of a batch, and says whether to go on.
pub fn encode_captions(
    encoder: &mut Encoder<'_>,
    tokens: &TokenTable,
    mut each: impl FnMut(&[f32]) -> bool,
) -> Result<(), Unfinished> {
    let (batch, num_tokens) = (encoder.batch(), encoder.num_tokens());
    let mut ids = vec![0; batch * num_tokens];
    for first in (0..tokens.len()).step_by(batch) {
        let rows = batch.min(tokens.len() - first);
        for (row, ids) in ids.chunks_mut(num_tokens).take(rows).enumerate() {
            tokens.write(first + row, ids);
        }
        if !each(&encoder.captions(&ids[..rows * num_tokens])?) {
            return Err(Unfinished::Stopped);
        }
    }
    Ok(())
}
