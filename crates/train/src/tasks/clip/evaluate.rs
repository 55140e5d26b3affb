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
use holdall_metrics::contrastive::{PairedFeatures, Positives};
use holdall_metrics::features::{FeatureGather, Features};
use holdall_metrics::retrieval::{Ranks, Ties};
use serde::{Deserialize, Serialize};

use super::super::block_loss::{self, BlockLoss};
use super::super::{classify, ranking};
use super::examples::{EXAMPLES_BYTES, Examples};
use super::{CONTRASTIVE, ClipTask, EncodedPictures, Encoder, TokenTable};
use crate::engine::scores::Scores;
use crate::engine::similarity::{percent, size_of_evaluation};
use crate::engine::step::LossSum;
use crate::engine::task::{Evaluated, Evaluation, SampleRanks, Task, Unfinished, nothing_readable};
use crate::planning::loader_budget::read_once;
use crate::planning::processes::share_of;
use crate::run::shared_evaluation::{PartWriter, exchange, result_of_first};

/// Scores of an evaluation, as in `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ClipScores {
    #[serde(flatten)]
    retrieval: Retrieval,
    /// R@1 of random guessing, image to text.
    chance_r1: f64,
    /// Top-1 accuracy of the label head.
    label_top1: Option<f64>,
    /// Top-5 accuracy of the label head.
    label_top5: Option<f64>,
    /// Top-1 accuracy of random guessing.
    chance_top1: Option<f64>,
    /// Top-1 accuracy of always predicting the most frequent label.
    #[serde(default)]
    chance_most_frequent_top1: Option<f64>,
    /// Number of labelled samples.
    labelled: usize,
    /// Unreadable pictures; the other counts exclude them.
    #[serde(default)]
    skipped: usize,
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
        forward,
        pictures,
        subset,
        samples,
        step,
        effective_batch,
        stop,
        is_wanted,
        tell,
    } = evaluation;
    let group = device.group();
    let (share, is_alone) = (share_of(group), group.size() == 1);
    let contrastive = BlockLoss::new(&forward, effective_batch)?;
    let mut encoder = Encoder::new(task, forward);
    let (tokens, projection) = (task.tokens(subset), encoder.projection());
    let mut go_on = |done: usize, total: usize| {
        tell(done, total);
        is_wanted()
    };
    let (num_pictures, own_captions) = (share.of(samples.len()).len(), share.of(tokens.len()));
    let total = num_pictures + own_captions.len();
    let mut examples = step.map(|_| Examples::of(samples));
    let mut found = PictureResults::new(task, samples, projection);
    let (mut own, mut done) = (OwnPictures::default(), 0);
    let progressing = group.expect_progress();
    let read = encode_pictures_seeing(
        &mut encoder,
        (pictures, samples, share),
        stop,
        |read, rows, encoded| {
            if let Some(examples) = &mut examples {
                examples.see_pictures(read, rows, &encoded);
            }
            let logits = encoded.logits.as_deref().unwrap_or(&[]);
            if is_alone {
                found.add(read, &encoded.features, logits)
            } else {
                own.add(read, &encoded.features, logits)
            }
            done += read.len();
            go_on(done, total)
        },
    );
    drop(progressing);
    let mut examples_of_all = Vec::new();
    let write_own = || {
        let part = PartWriter::default().numbers(&own.samples);
        let part = part.numbers(&own.features).numbers(&own.logits);
        part.plain(&examples.as_ref().map(Examples::pictures))
    };
    let skipped = exchange(group, read, write_own, |mut part| {
        let read: Vec<u32> = part.numbers()?;
        found.add(&read, &part.numbers::<f32>()?, &part.numbers::<f32>()?);
        examples_of_all.extend(part.plain::<Option<Vec<_>>>()?.into_iter().flatten());
        Some(())
    })?;
    drop(own);
    if let (Some(examples), false) = (&mut examples, is_alone) {
        examples.set_pictures(examples_of_all);
    }
    if found.features.is_empty() {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let mut caption_features = Vec::with_capacity(own_captions.len() * projection);
    let progressing = group.expect_progress();
    let encoded = encode_captions(&mut encoder, tokens, own_captions, |features| {
        if let (Some(examples), true) = (&mut examples, is_alone) {
            examples.see_captions(features, projection);
        }
        caption_features.extend_from_slice(features);
        go_on(num_pictures + caption_features.len() / projection, total)
    });
    drop(progressing);
    let mut captions_of_all = Vec::new();
    let write_own = || PartWriter::default().numbers(&caption_features);
    exchange(group, encoded, write_own, |mut part| {
        let features: Vec<f32> = part.numbers()?;
        if let Some(examples) = &mut examples {
            examples.see_captions(&features, projection);
        }
        captions_of_all.extend(features);
        Some(())
    })?;
    let caption_features = if is_alone {
        caption_features
    } else {
        captions_of_all
    };
    let mut sample_ranks = None;
    let scores = result_of_first(group, || {
        let left_out: Vec<u32> = found.features.missing().collect();
        // Pictures that could not be read, in this evaluation or before.
        let pictures = found
            .features
            .in_order(&left_out)
            .expect("all others are there");
        let caption_of: Vec<u32> = pictures
            .samples
            .iter()
            .map(|&sample| samples.caption_id(sample as usize))
            .collect();
        let ranked = device.cpu().scope(|| {
            let captions = Features::of(&caption_features, projection);
            ranking::rank(&pictures.rows, &captions, &caption_of, &mut |_| is_wanted())
        });
        let ranked = ranked.map_err(|error| ranking::failed(error, ["picture", "caption"]))?;
        let ranks = Retrieval {
            pictures: caption_of.len(),
            captions: tokens.len(),
            image_to_text: ranked.to_gallery.ranks(Ties::Mean),
            text_to_image: ranked.to_query.ranks(Ties::Mean),
        };
        let num_pictures = caption_of.len();
        let accuracy = found.labels.accuracy();
        let num_labels = accuracy.and(found.num_labels);
        let mut scores = Scores::of(&ClipScores {
            retrieval: ranks,
            chance_r1: 1.0 / tokens.len() as f64,
            label_top1: accuracy.map(|[top1, _]| top1),
            label_top5: accuracy.map(|[_, top5]| top5),
            chance_top1: num_labels.map(|labels| 1.0 / labels as f64),
            chance_most_frequent_top1: found
                .label_frequencies
                .share_of_largest(found.labels.samples),
            labelled: found.labels.samples,
            skipped: samples.len() - num_pictures,
        });
        if let Some(contrastive) = contrastive {
            let features = PairedFeatures {
                queries: &pictures.rows,
                texts: &caption_features,
                text_of: &caption_of,
                dimension: projection,
            };
            let mut losses = classify::evaluated(task.losses(), [&LossSum::default(), &found.loss]);
            let all = device.cpu().scope(|| {
                contrastive.set(
                    &mut losses[CONTRASTIVE],
                    features,
                    Positives::OwnPair,
                    is_wanted,
                )
            });
            all?;
            scores.set_losses(&losses);
        }
        sample_ranks = Some(SampleRanks::new(pictures.samples, caption_of, ranked));
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

/// This process's results for its pictures, until all processes exchange theirs.
#[derive(Default)]
struct OwnPictures {
    samples: Vec<u32>,
    features: Vec<f32>,
    logits: Vec<f32>,
}

impl OwnPictures {
    fn add(&mut self, read: &[u32], features: &[f32], logits: &[f32]) {
        self.samples.extend(read);
        self.features.extend(features);
        self.logits.extend(logits);
    }
}

/// Results for the pictures of all processes.
struct PictureResults<'a> {
    task: &'a ClipTask,
    samples: &'a Samples,
    features: FeatureGather,
    labels: LabelCounts,
    label_frequencies: LabelFrequencies,
    num_labels: Option<usize>,
    /// Sum of the label loss.
    loss: LossSum,
}

impl<'a> PictureResults<'a> {
    fn new(task: &'a ClipTask, samples: &'a Samples, projection: usize) -> PictureResults<'a> {
        PictureResults {
            task,
            samples,
            features: FeatureGather::new(samples.len(), projection, samples.len()),
            labels: LabelCounts::default(),
            label_frequencies: LabelFrequencies::default(),
            num_labels: None,
            loss: LossSum::default(),
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
        self.num_labels = Some(width);
        for (&sample, logits) in read.iter().zip(logits.chunks(width)) {
            match self.samples.label(sample as usize) {
                UNSEEN => self.labels.add_unseen(),
                label => {
                    if let Ok(label) = usize::try_from(label) {
                        self.labels.add(logits, label);
                        self.label_frequencies.add(label);
                        let weight = f64::from(self.task.class_weight(label as i64));
                        let loss =
                            classify::cross_entropy(logits, label, self.task.label_smoothing);
                        self.loss.sum += weight * loss;
                        self.loss.count += weight;
                    }
                }
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
    let labels = (scores.label_top1, scores.label_top5, scores.chance_top1);
    if let (Some(top1), Some(top5), Some(chance)) = labels {
        let [top1, top5, chance] = [top1, top5, chance].map(percent);
        let most_frequent = scores
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
    let all = (pictures, samples, Share::default());
    encode_pictures_seeing(encoder, all, stop, |read, _, encoded| each(read, encoded))
}

/// Like [`encode_pictures`] for a share of the samples; `each` gets the pixels too.
fn encode_pictures_seeing(
    encoder: &mut Encoder<'_>,
    (pictures, samples, share): (&mut Loader<HostRow>, &Arc<Samples>, Share),
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], &[HostRow], EncodedPictures<'_>) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    let batch = encoder.batch().min(pictures.num_rows());
    let read = read_once(pictures, (samples, share), batch, stop, |read, rows| {
        let encoded = encoder.pictures(rows)?;
        Ok::<bool, Unfinished>(each(read, rows, encoded))
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
