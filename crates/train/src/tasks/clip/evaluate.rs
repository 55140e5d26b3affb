//! Evaluation of a CLIP: retrieval in both directions, and label accuracy.
//!
//! Every picture and every distinct caption is encoded once, by the process that it is assigned to. Features are kept on the host;
//! the similarity matrix is never stored.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::loader::{Loader, Share, Skipped};
use holdall_data::samples::{Samples, UNSEEN};
use holdall_device::HostRow;
use holdall_metrics::classification::{LabelCounts, LabelFrequencies};
use holdall_metrics::contrastive::Positives;
use holdall_metrics::features::FeatureGather;
use holdall_metrics::retrieval::{Ranks, Ties};
use serde::{Deserialize, Serialize};

use super::super::block_loss::{self, BlockLoss};
use super::super::classify;
use super::super::ranking::{self, QueryFeatures};
use super::examples::{EXAMPLES_BYTES, Examples};
use super::{CONTRASTIVE, ClipTask, EncodedPictures, Encoder, TokenTable};
use crate::engine::scores::Scores;
use crate::engine::similarity::{percent, size_of_evaluation};
use crate::engine::step::LossSum;
use crate::engine::task::{Evaluated, Evaluation, SampleRanks, Task, Unfinished, nothing_readable};
use crate::planning::loader_budget::read_once;
use crate::run::evaluation_pass::{AllOutputs, EvaluationPass};
use crate::run::shared_evaluation::{PartWriter, result_of_first};

/// Scores of an evaluation, as in `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ClipScores {
    #[serde(flatten)]
    retrieval: Retrieval,
    /// R@1 of random guessing, image to text.
    chance_r1: f64,
    #[serde(flatten)]
    labels: LabelScores,
    /// Unreadable pictures; the other counts exclude them.
    #[serde(default)]
    skipped: usize,
}

/// Accuracies of the label head; none without one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct LabelScores {
    label_top1: Option<f64>,
    label_top5: Option<f64>,
    /// Top-1 accuracy of random guessing.
    chance_top1: Option<f64>,
    /// Top-1 accuracy of always predicting the most frequent label.
    #[serde(default)]
    chance_most_frequent_top1: Option<f64>,
    /// Number of labelled samples.
    labelled: usize,
}

/// Retrieval in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Retrieval {
    pictures: usize,
    /// Number of distinct captions.
    captions: usize,
    /// Ranks of each picture's caption.
    image_to_text: Ranks,
    /// Ranks of each caption's best picture.
    text_to_image: Ranks,
}

/// Values of `train.best_metric`.
pub const METRICS: [&str; 5] = [
    "label_top1",
    "label_top5",
    "mean_r1",
    "image_to_text_r1",
    "text_to_image_r1",
];

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

/// Host memory of an evaluation, in bytes.
pub(super) fn host_bytes(
    pictures: usize,
    captions: usize,
    projection: usize,
    threads: usize,
) -> u64 {
    ranking::host_bytes(pictures, captions, projection, threads)
        + block_loss::host_bytes(pictures)
        + EXAMPLES_BYTES
}

/// Evaluates samples. Unreadable pictures are skipped and listed.
pub(super) fn evaluate(
    task: &ClipTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let Evaluation {
        device,
        subset,
        samples,
        step,
        effective_batch,
        is_wanted,
        ..
    } = evaluation;
    let contrastive = BlockLoss::new(&evaluation.forward, effective_batch)?;
    let tokens = task.tokens(subset);
    let (mut pass, forward) = EvaluationPass::new(evaluation, [samples.len(), tokens.len()]);
    let group = pass.group;
    let mut encoder = Encoder::new(task, forward);
    let projection = encoder.projection();
    let mut examples = step.map(|_| Examples::of(samples));
    let mut found = PictureResults::new(task, samples, projection);
    let skipped = read_pictures(&mut pass, &mut encoder, &mut found, &mut examples)?;
    if found.features.is_empty() {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let own = pass.share.of(tokens.len());
    let captions = pass.gather(|go_on| {
        let mut rows = Vec::with_capacity(own.len() * projection);
        encode_captions(&mut encoder, tokens, own, |features| {
            rows.extend_from_slice(features);
            go_on(rows.len() / projection)
        })?;
        Ok(rows)
    })?;
    if let Some(examples) = &mut examples {
        examples.see_captions(&captions, projection);
    }
    let mut sample_ranks = None;
    let scores = result_of_first(group, || {
        let PictureResults {
            features, labels, ..
        } = found;
        let pictures = QueryFeatures::new(features, samples);
        let features = pictures.paired_with(&captions, projection);
        let ranked = ranking::rank(device.cpu(), features, ["picture", "caption"], is_wanted)?;
        let mut scores = Scores::of(&ClipScores {
            retrieval: Retrieval {
                pictures: pictures.samples.len(),
                captions: tokens.len(),
                image_to_text: ranked.to_gallery.ranks(Ties::Mean),
                text_to_image: ranked.to_query.ranks(Ties::Mean),
            },
            chance_r1: 1.0 / tokens.len() as f64,
            labels: labels.scores(),
            skipped: samples.len() - pictures.samples.len(),
        });
        if let Some(contrastive) = contrastive {
            let sums = [&LossSum::default(), &labels.loss];
            let mut losses = classify::evaluated(task.losses(), sums);
            contrastive.set(
                device.cpu(),
                &mut losses[CONTRASTIVE],
                features,
                Positives::OwnPair,
                is_wanted,
            )?;
            scores.set_losses(&losses);
        }
        sample_ranks = Some(SampleRanks::new(pictures.samples, pictures.text_of, ranked));
        Ok(scores)
    })?;
    let seen = examples.zip(step).filter(|_| group.rank() == 0);
    let json = seen.and_then(|(seen, step)| seen.json(step, subset, samples, task));
    Ok(Evaluated {
        scores,
        skipped,
        files: json
            .map(|json| ("samples.json", json))
            .into_iter()
            .collect(),
        ranks: sample_ranks,
    })
}

/// Encodes every readable picture. Returns the unreadable ones.
fn read_pictures(
    pass: &mut EvaluationPass<'_>,
    encoder: &mut Encoder<'_>,
    found: &mut PictureResults<'_>,
    examples: &mut Option<Examples>,
) -> Result<Vec<Skipped>, Unfinished> {
    let group = pass.group;
    let mut outputs = AllOutputs::new(group, |read, features, logits| {
        found.add(read, features, logits);
    });
    let read = pass.read_once(encoder.batch(), |loaded| {
        let encoded = encoder.pictures(&loaded.rows)?;
        if let Some(examples) = &mut *examples {
            examples.see_pictures(&loaded.samples, &loaded.rows, &encoded);
        }
        let logits = encoded.logits.as_deref().unwrap_or(&[]);
        outputs.add(&loaded.samples, &encoded.features, logits);
        Ok(())
    });
    let mut examples_of_all = Vec::new();
    let own = examples.as_ref().map(Examples::pictures);
    let write_examples = |part: PartWriter| part.plain(&own);
    let skipped = outputs.finish(read, write_examples, |mut part| {
        examples_of_all.extend(part.plain::<Option<Vec<_>>>()?.into_iter().flatten());
        Some(())
    })?;
    if let (Some(examples), true) = (examples, group.size() > 1) {
        examples.set_pictures(examples_of_all);
    }
    Ok(skipped)
}

/// Results for the pictures of all processes.
struct PictureResults<'a> {
    task: &'a ClipTask,
    samples: &'a Samples,
    features: FeatureGather,
    labels: LabelResults,
}

/// Results of the label head.
#[derive(Default)]
struct LabelResults {
    counts: LabelCounts,
    frequencies: LabelFrequencies,
    /// `None` without a label head.
    num_labels: Option<usize>,
    loss: LossSum,
}

impl LabelResults {
    fn scores(&self) -> LabelScores {
        let accuracy = self.counts.accuracy();
        let num_labels = accuracy.and(self.num_labels);
        LabelScores {
            label_top1: accuracy.map(|[top1, _]| top1),
            label_top5: accuracy.map(|[_, top5]| top5),
            chance_top1: num_labels.map(|labels| 1.0 / labels as f64),
            chance_most_frequent_top1: self.frequencies.share_of_largest(self.counts.samples),
            labelled: self.counts.samples,
        }
    }
}

impl<'a> PictureResults<'a> {
    fn new(task: &'a ClipTask, samples: &'a Samples, projection: usize) -> PictureResults<'a> {
        PictureResults {
            task,
            samples,
            features: FeatureGather::new(samples.len(), projection, samples.len()),
            labels: LabelResults::default(),
        }
    }

    /// Adds the features of samples, and their logits if the model has a label head.
    fn add(&mut self, read: &[u32], features: &[f32], logits: &[f32]) {
        let taken = self.features.add(read, features);
        taken.expect("a loader gives each sample once");
        if logits.is_empty() {
            return;
        }
        let width = logits.len() / read.len();
        let found = &mut self.labels;
        found.num_labels = Some(width);
        for (&sample, logits) in read.iter().zip(logits.chunks(width)) {
            let label = self.samples.label(sample as usize);
            if label == UNSEEN {
                found.counts.add_unseen();
            } else if let Ok(label) = usize::try_from(label) {
                found.counts.add(logits, label);
                found.frequencies.add(label);
                let weight = f64::from(self.task.class_weight(label as i64));
                let loss = classify::cross_entropy(logits, label, self.task.label_smoothing);
                found.loss.sum += weight * loss;
                found.loss.count += weight;
            }
        }
    }
}

/// Number of encoded captions and pictures, for the log.
pub(super) fn describe_size(scores: &Scores) -> Option<String> {
    let scores: ClipScores = scores.read()?;
    let (pictures, captions) = (scores.retrieval.pictures, scores.retrieval.captions);
    Some(size_of_evaluation(captions, pictures))
}

/// One line each for labels and both retrieval directions, next to the scores of guessing.
pub(super) fn describe_scores(scores: &Scores) -> String {
    let Some(scores) = scores.read::<ClipScores>() else {
        return String::new();
    };
    let mut text = String::new();
    let labels = &scores.labels;
    let accuracies = (labels.label_top1, labels.label_top5, labels.chance_top1);
    if let (Some(top1), Some(top5), Some(chance)) = accuracies {
        let [top1, top5, chance] = [top1, top5, chance].map(percent);
        let most_frequent = labels
            .chance_most_frequent_top1
            .map_or(String::new(), |share| {
                format!(", always the most frequent: {}", percent(share))
            });
        text.push_str(&format!(
            "  labels        top-1 {top1} (chance {chance}{most_frequent}), top-5 {top5}\n"
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

/// Encodes every readable picture, in the order of the samples. `each` gets the samples of a batch and their features, and returns
/// whether to continue. Returns the unreadable pictures; setting `stop` ends it early.
pub fn encode_pictures(
    encoder: &mut Encoder<'_>,
    (pictures, samples): (&mut Loader<HostRow>, &Arc<Samples>),
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], EncodedPictures<'_>) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    let batch = encoder.batch().min(pictures.num_rows());
    let all = (samples, Share::default());
    let read = read_once(pictures, all, batch, stop, |read, rows| {
        let encoded = encoder.pictures(rows)?;
        Ok::<bool, Unfinished>(each(read, encoded))
    })?;
    read.ok_or(Unfinished::Stopped)
}

/// Encodes captions of the table. `each` gets the features of a batch, and returns whether to continue.
pub fn encode_captions(
    encoder: &mut Encoder<'_>,
    tokens: &TokenTable,
    captions: Range<usize>,
    mut each: impl FnMut(&[f32]) -> bool,
) -> Result<(), Unfinished> {
    let (batch, num_tokens) = (encoder.batch(), encoder.num_tokens());
    let mut ids = vec![0; batch * num_tokens];
    for first in captions.clone().step_by(batch) {
        let rows = batch.min(captions.end - first);
        for (row, ids) in ids.chunks_mut(num_tokens).take(rows).enumerate() {
            tokens.write(first + row, ids);
        }
        if !each(&encoder.captions(&ids[..rows * num_tokens])?) {
            return Err(Unfinished::Stopped);
        }
    }
    Ok(())
}
