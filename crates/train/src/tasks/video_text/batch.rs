//! Clips, texts and captions as the columns of a batch.
//!
//! ```text
//! text             <start> a red ball moves left <end>
//! caption ids      <start> a red ball moves left           input of the decoder
//! caption labels           a red ball moves left <end>     targets of the decoder, then -1
//! ```
//!
//! Samples are sorted by the number of tokens in their texts, so that a micro-batch has texts of similar length. Padding repeats
//! the first sample, which is the shortest and fits any micro-batch.

use holdall_data::config::Mixing;
use holdall_data::loader::Loaded;
use holdall_data::samples::Mix;
use holdall_device::HostRow;
use holdall_models::clip::end_token;
use holdall_models::video_text::config::TextTower;

use super::super::classify::{self, OwnedTargets, Targets};
use super::super::clip::sort_places;
use super::{CAPTION, CONTRASTIVE, VideoTextTask};
use crate::config::{SameText, Subset};
use crate::engine::batch::{Batch, Column, IGNORED, MicroBatch, Scope, Values};
use crate::engine::step_graph::{SAMPLE_IDS, STREAM};
use crate::engine::task::Task;

/// Frames, `[b, f, height, width, 3]`.
pub(super) const PIXELS: &str = "pixels";
/// Frame tokens from the frame cache, `[b, s, d]`, instead of frames.
pub(super) const FRAME_TOKENS: &str = "stored frame tokens";
/// Number of valid frames, `[b]`, if clips may lack some.
pub(super) const FRAME_COUNTS: &str = "frame counts";
/// Number of valid frame tokens, `[b]`: the frame count times the tokens per frame.
pub(super) const FRAME_TOKEN_COUNTS: &str = "frame token counts";
/// Token ids of texts, `[b, t]`.
pub(super) const TEXT_IDS: &str = "text ids";
/// Tokens per text, end token included, `[b]`.
pub(super) const TEXT_LENGTHS: &str = "text lengths";
/// Position of the end token, `[b]`.
pub(super) const TEXT_END: &str = "text end";
/// Token positions of texts, sorted by token id, `[b, t]`; for devices that add embedding gradients in that order.
pub(super) const TEXT_ORDER: &str = "text order";
/// Input token ids of the decoder, `[b, t]`.
pub(super) const CAPTION_IDS: &str = "caption ids";
/// Target token ids of the decoder, `[b, t]`, then -1.
pub(super) const CAPTION_LABELS: &str = "caption labels";
/// Weight of each caption token, `[b, t]`.
pub(super) const TOKEN_WEIGHTS: &str = "caption token weights";
/// Token positions of captions, sorted by token id, `[b, t]`; for devices that add embedding gradients in that order.
pub(super) const CAPTION_ORDER: &str = "caption order";
/// Group number of each sample's text, equal for equal texts; whole effective batch.
pub(super) const GROUPS: &str = "text groups";
/// One over the number of samples with the same text; whole effective batch.
pub(super) const SHARES: &str = "text shares";

/// Inputs that are computed from other columns.
pub(super) const DERIVED: [&str; 4] = [FRAME_TOKEN_COUNTS, TEXT_END, TEXT_ORDER, CAPTION_ORDER];
pub(super) const DERIVED_NUMBERS: [&str; 1] = [TOKEN_WEIGHTS];

/// Texts of samples as token ids; padding may be any id.
pub struct Texts {
    /// Input of the text tower, `num_text_tokens` per sample.
    pub ids: Vec<i64>,
    /// Tokens of each text.
    pub lengths: Vec<i64>,
    /// Input of the decoder, `num_caption_tokens` per sample; empty without a decoder.
    pub caption_ids: Vec<i64>,
    /// Targets of the decoder; negative for no target.
    pub caption_labels: Vec<i64>,
    /// Group number of each sample's text, equal for equal texts.
    pub groups: Vec<i64>,
}

/// Builds a batch, sorted by text length. `frame_counts` are read only if clips may lack frames; `targets` has one entry per head.
pub fn batch_of(
    task: &VideoTextTask,
    pixels: &[u8],
    frame_counts: &[i64],
    texts: &Texts,
    targets: &[Targets<'_>],
) -> Batch {
    let num_samples = texts.lengths.len();
    let caption_width = task.num_caption_tokens;
    let length = |sample: usize| {
        let labels = &texts.caption_labels[sample * caption_width..][..caption_width];
        num_targets(labels).max(texts.lengths[sample] as usize)
    };
    let order = sorted_by(num_samples, length);
    let picked = |values: &[i64]| -> Vec<i64> {
        let each = values.len() / num_samples;
        let rows = order
            .iter()
            .flat_map(|&sample| &values[sample * each..][..each]);
        rows.copied().collect()
    };
    let each = task.picture_bytes();
    let pixels = order
        .iter()
        .flat_map(|&sample| &pixels[sample * each..][..each]);
    let mut batch = Batch {
        num_samples,
        columns: vec![Column {
            endpoint: task.clip_endpoint().to_owned(),
            scope: Scope::MicroBatch,
            values: Values::Bytes(pixels.copied().collect()),
        }],
    };
    let per_micro_batch = Scope::MicroBatch;
    if task.masks_frames {
        *batch.indices(FRAME_COUNTS, per_micro_batch) = picked(frame_counts);
    }
    *batch.indices(TEXT_IDS, per_micro_batch) = picked(&texts.ids);
    *batch.indices(TEXT_LENGTHS, per_micro_batch) = picked(&texts.lengths);
    if task.decoder().is_some() {
        *batch.indices(CAPTION_IDS, per_micro_batch) = picked(&texts.caption_ids);
        *batch.indices(CAPTION_LABELS, per_micro_batch) = picked(&texts.caption_labels);
    }
    set_groups(task, &mut batch, picked(&texts.groups).into_iter());
    let ids: Vec<u32> = order.iter().map(|&sample| sample as u32).collect();
    set_stream(task, &mut batch, &ids, 0);
    let sorted: Vec<OwnedTargets> = targets
        .iter()
        .map(|targets| match targets {
            Targets::Class(labels) => OwnedTargets::Class(picked(labels)),
            Targets::Numbers(numbers) => {
                let each = numbers.len() / num_samples;
                let rows = order
                    .iter()
                    .flat_map(|&sample| &numbers[sample * each..][..each]);
                OwnedTargets::Numbers(rows.copied().collect())
            }
        })
        .collect();
    let targets: Vec<Targets<'_>> = sorted.iter().map(OwnedTargets::targets).collect();
    let mixes = unmixed(task, &ids);
    classify::set_targets(&task.heads, &mut batch, &mixes, false, &targets);
    batch
}

/// Mixing that leaves every sample as it is.
fn unmixed(task: &VideoTextTask, samples: &[u32]) -> Vec<Mix> {
    let sides = [task.model.vision.image_size as u32; 2];
    Mixing::default().of_batch(0, 0, samples, sides)
}

/// Sample indices sorted by length; the sort is stable.
fn sorted_by(num_samples: usize, length: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..num_samples).collect();
    order.sort_by_key(|&sample| length(sample));
    order
}

/// Number of target tokens of a caption; every label after them is negative.
fn num_targets(labels: &[i64]) -> usize {
    labels.partition_point(|&label| label >= 0)
}

pub(super) fn fill(task: &VideoTextTask, batch: &mut Batch, loaded: &Loaded<HostRow>, epoch: u64) {
    let data = task.data();
    let texts = data.texts(Subset::Train);
    let text_of = |row: usize| data.train.caption_id(loaded.samples[row] as usize) as usize;
    let order = sorted_by(loaded.rows.len(), |row| texts.length(text_of(row)));
    batch.num_samples = order.len();
    batch.set_rows(
        task.clip_endpoint(),
        order.iter().map(|&row| &loaded.rows[row]),
    );
    if task.masks_frames {
        let counts = batch.indices(FRAME_COUNTS, Scope::MicroBatch);
        counts.clear();
        counts.extend(order.iter().map(|&row| i64::from(loaded.frame_counts[row])));
    }
    let (width, tower) = (task.num_text_tokens, &task.model.text);
    let ids = batch.indices(TEXT_IDS, Scope::MicroBatch);
    ids.resize(order.len() * width, 0);
    for (&row, ids) in order.iter().zip(ids.chunks_mut(width)) {
        texts.texts.write(text_of(row), ids);
    }
    let lengths: Vec<i64> = order
        .iter()
        .zip(ids.chunks(width))
        .map(|(&row, ids)| match tower {
            TextTower::Clip(text) => end_token(ids, text.pooling) as i64 + 1,
            TextTower::Bert(_) => texts.texts.caption(text_of(row)).len() as i64,
        })
        .collect();
    *batch.indices(TEXT_LENGTHS, Scope::MicroBatch) = lengths;
    if let Some(captions) = &texts.captions {
        let width = task.num_caption_tokens;
        let ids = batch.indices(CAPTION_IDS, Scope::MicroBatch);
        ids.resize(order.len() * width, 0);
        for (&row, ids) in order.iter().zip(ids.chunks_mut(width)) {
            captions.write(text_of(row), ids);
        }
        let labels = batch.indices(CAPTION_LABELS, Scope::MicroBatch);
        labels.clear();
        for &row in &order {
            let caption = captions.caption(text_of(row));
            let said = caption[1..].iter().map(|&id| i64::from(id));
            labels.extend(said.chain(std::iter::repeat(IGNORED)).take(width));
        }
    }
    let groups = order.iter().map(|&row| text_of(row) as i64);
    set_groups(task, batch, groups);
    let samples: Vec<u32> = order.iter().map(|&row| loaded.samples[row]).collect();
    set_stream(task, batch, &samples, epoch);
    let mixes = unmixed(task, &samples);
    classify::fill_targets(&task.heads, batch, &mixes, false, &samples, &data.train);
}

/// Writes the group of each text and its share.
fn set_groups(task: &VideoTextTask, batch: &mut Batch, groups: impl Iterator<Item = i64>) {
    if task.loss.same_text == SameText::Negative {
        return;
    }
    let column = batch.indices(GROUPS, Scope::EffectiveBatch);
    column.clear();
    column.extend(groups);
    set_shares(batch);
}

/// Writes one over the size of each group. The groups may come from all processes, with padding.
pub(super) fn set_shares(batch: &mut Batch) {
    let groups = batch.indices(GROUPS, Scope::EffectiveBatch).clone();
    let mut sorted = groups.clone();
    sorted.sort_unstable();
    let number_of = |group: i64| {
        sorted.partition_point(|&other| other <= group)
            - sorted.partition_point(|&other| other < group)
    };
    let share = |group: i64| match group {
        IGNORED => 0.0,
        group => (1.0 / number_of(group) as f64) as f32,
    };
    let shares = groups.into_iter().map(share).collect();
    *batch.floats(SHARES, Scope::EffectiveBatch) = shares;
}

/// Writes the inputs of the dropout masks: sample ids, and seed and epoch.
fn set_stream(task: &VideoTextTask, batch: &mut Batch, samples: &[u32], epoch: u64) {
    if !task.drops() {
        return;
    }
    let ids = batch.indices(SAMPLE_IDS, Scope::MicroBatch);
    ids.clear();
    ids.extend(samples.iter().map(|&sample| i64::from(sample)));
    let stream = batch.indices(STREAM, Scope::Step);
    stream.clear();
    stream.extend([task.seed as i64, epoch as i64]);
}

pub(super) fn derive(task: &VideoTextTask, name: &str, micro: &MicroBatch<'_>, to: &mut [i64]) {
    if name == FRAME_TOKEN_COUNTS {
        let counts = micro.batch.read_indices(FRAME_COUNTS);
        for (row, tokens) in to.iter_mut().enumerate() {
            *tokens = counts[micro.sample(row)] * task.model.tokens_per_frame() as i64;
        }
        return;
    }
    let lengths = micro.batch.read_indices(TEXT_LENGTHS);
    if name == TEXT_END {
        for (row, end) in to.iter_mut().enumerate() {
            *end = lengths[micro.sample(row)] - 1;
        }
        return;
    }
    // The micro-batch may be padded to fewer tokens than the columns.
    let tokens = to.len() / micro.size;
    if name == TEXT_ORDER {
        let (width, ids) = (task.num_text_tokens, micro.batch.read_indices(TEXT_IDS));
        let texts = (0..micro.size).map(|row| {
            let sample = micro.sample(row);
            &ids[sample * width..][..lengths[sample] as usize]
        });
        return sort_places(texts, tokens, to);
    }
    let width = task.num_caption_tokens;
    let ids = micro.batch.read_indices(CAPTION_IDS);
    let labels = micro.batch.read_indices(CAPTION_LABELS);
    let captions = (0..micro.size).map(|row| {
        let start = micro.sample(row) * width;
        &ids[start..][..num_targets(&labels[start..][..width])]
    });
    sort_places(captions, tokens, to);
}

/// Writes the weight of each target of a micro-batch.
pub(super) fn derive_token_weights(task: &VideoTextTask, micro: &MicroBatch<'_>, to: &mut [f32]) {
    let (tokens, width) = (to.len() / micro.size, task.num_caption_tokens);
    let labels = micro.batch.read_indices(CAPTION_LABELS);
    for (row, weights) in to.chunks_mut(tokens).enumerate() {
        let labels = &labels[micro.sample(row) * width..][..tokens];
        for (weight, &label) in weights.iter_mut().zip(labels) {
            *weight = task.token_weight(label);
        }
    }
}

/// Tokens of the micro-batch's longest text or caption.
pub(super) fn longest(task: &VideoTextTask, micro: &MicroBatch<'_>) -> usize {
    let lengths = micro.batch.read_indices(TEXT_LENGTHS);
    let width = task.num_caption_tokens;
    let labels = match width {
        0 => &[],
        _ => micro.batch.read_indices(CAPTION_LABELS),
    };
    let of_sample = |row: usize| {
        let sample = micro.sample(row);
        num_targets(&labels[sample * width..][..width]).max(lengths[sample] as usize)
    };
    (0..micro.size).map(of_sample).max().unwrap_or(0)
}

pub(super) fn count_losses(task: &VideoTextTask, batch: &Batch, counts: &mut [f64]) {
    check_ids(batch.read_indices(TEXT_IDS), task.model.text_vocab_size());
    counts[CONTRASTIVE] = batch.num_samples as f64;
    if let Some(decoder) = task.decoder() {
        check_ids(batch.read_indices(CAPTION_IDS), decoder.vocab_size);
        let labels = batch.read_indices(CAPTION_LABELS).iter();
        counts[CAPTION] = labels
            .map(|&label| f64::from(task.token_weight(label)))
            .sum();
    }
    let of_heads = &mut counts[task.first_head()..];
    classify::count_heads(&task.heads, batch, false, of_heads);
}

fn check_ids(ids: &[i64], vocab_size: usize) {
    let vocabulary = 0..vocab_size as i64;
    assert!(
        ids.iter().all(|id| vocabulary.contains(id)),
        "token ids are those of the model's vocabulary"
    );
}
