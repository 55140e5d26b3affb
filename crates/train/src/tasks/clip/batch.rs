//! Pictures, captions and labels as the columns of a batch.

use holdall_data::loader::Loaded;
use holdall_device::HostRow;
use holdall_models::clip::end_token;
use holdall_models::config::TextPooling;
use holdall_models::init::Draw;

use super::{CONTRASTIVE, ClipTask, LABEL};
use crate::engine::batch::{Batch, Column, IGNORED, MicroBatch, Scope, Values, random_bytes};

/// Pictures, `[b, height, width, 3]`.
pub(super) const PIXELS: &str = "pixels";
/// Token ids, `[b, t]`.
pub(super) const IDS: &str = "ids";
/// Position of the end token, `[b]`.
pub(super) const END: &str = "end";
/// Position of the end token plus one: the number of tokens that attention may see.
pub(super) const LENGTHS: &str = "lengths";
/// Token positions up to the end tokens, sorted by token id, `[b, t]`; for devices that add embedding gradients in that order.
pub(super) const ORDER: &str = "order of ids";
/// Label index per sample of the effective batch.
pub(super) const LABELS: &str = "labels";
/// Weight in the label loss per sample of the effective batch.
pub(super) const LABEL_WEIGHTS: &str = "label weights";

/// Builds a batch; a negative label means none.
pub fn batch_of(task: &ClipTask, pixels: Values, ids: Vec<i64>, labels: Vec<i64>) -> Batch {
    let mut batch = Batch {
        num_samples: labels.len(),
        columns: vec![Column {
            endpoint: PIXELS.to_owned(),
            scope: Scope::MicroBatch,
            values: pixels,
        }],
    };
    *batch.indices(IDS, Scope::MicroBatch) = ids;
    set_labels(task, &mut batch, labels.into_iter());
    find_ends(task, &mut batch);
    batch
}

pub(super) fn fill(task: &ClipTask, batch: &mut Batch, loaded: &Loaded<HostRow>) {
    let data = task.data();
    let samples = loaded.samples.iter().map(|&sample| sample as usize);
    batch.num_samples = loaded.rows.len();
    batch.set_rows(PIXELS, loaded.rows.iter());
    let ids = batch.indices(IDS, Scope::MicroBatch);
    ids.resize(loaded.rows.len() * task.num_tokens, 0);
    for (sample, ids) in samples.clone().zip(ids.chunks_mut(task.num_tokens)) {
        let caption = data.train.caption_id(sample);
        data.train_tokens.write(caption as usize, ids);
    }
    let labels = samples.map(|sample| i64::from(data.train.label(sample)).max(IGNORED));
    set_labels(task, batch, labels);
    find_ends(task, batch);
}

fn set_labels(task: &ClipTask, batch: &mut Batch, all: impl Iterator<Item = i64> + Clone) {
    if task.num_labels.is_none() {
        return;
    }
    let labels = batch.indices(LABELS, Scope::OwnBatch);
    labels.clear();
    labels.extend(all.clone());
    let weights = batch.floats(LABEL_WEIGHTS, Scope::OwnBatch);
    weights.clear();
    weights.extend(all.map(|label| task.class_weight(label)));
}

/// Finds the end token of each caption.
fn find_ends(task: &ClipTask, batch: &mut Batch) {
    let mut ends = std::mem::take(batch.indices(END, Scope::MicroBatch));
    ends.clear();
    let captions = batch.read_indices(IDS).chunks(task.num_tokens);
    ends.extend(captions.map(|caption| end_token(caption, task.model.text.pooling) as i64));
    *batch.indices(END, Scope::MicroBatch) = ends;
}

pub(super) fn derive(name: &str, micro: &MicroBatch<'_>, to: &mut [i64]) {
    let ends = micro.batch.read_indices(END);
    if name == LENGTHS {
        for (row, length) in to.iter_mut().enumerate() {
            *length = ends[micro.sample(row)] + 1;
        }
        return;
    }
    let tokens = to.len() / micro.size;
    let ids = micro.batch.read_indices(IDS);
    let captions = (0..micro.size).map(|row| {
        let sample = micro.sample(row);
        &ids[sample * tokens..][..=ends[sample] as usize]
    });
    sort_places(captions, tokens, to);
}

/// Fills `order` with the positions of all captions' tokens, sorted by id and then by position; the rest is -1. A caption has up
/// to `tokens` tokens.
pub(in crate::tasks) fn sort_places<'a>(
    captions: impl Iterator<Item = &'a [i64]>,
    tokens: usize,
    order: &mut [i64],
) {
    const PLACE_BITS: u32 = 32;
    let mut count = 0;
    for (row, caption) in captions.enumerate() {
        for (position, &id) in caption.iter().enumerate() {
            // Packs id and position into one number, for one comparison per sort step. Vocabularies are far below 2^31.
            order[count] = (id << PLACE_BITS) | (row * tokens + position) as i64;
            count += 1;
        }
    }
    order[..count].sort_unstable();
    let place = (1 << PLACE_BITS) - 1;
    order[..count]
        .iter_mut()
        .for_each(|packed| *packed &= place);
    order[count..].fill(-1);
}

pub(super) fn count_losses(task: &ClipTask, batch: &Batch, counts: &mut [f64]) {
    let vocabulary = 0..task.model.text.vocab_size as i64;
    let mut ids = batch.read_indices(IDS).iter();
    assert!(
        ids.all(|id| vocabulary.contains(id)),
        "token ids are those of the model's vocabulary"
    );
    counts[CONTRASTIVE] = batch.num_samples as f64;
    if task.num_labels.is_some() {
        let weights = batch.read_floats(LABEL_WEIGHTS).iter();
        counts[LABEL] = weights.map(|&weight| f64::from(weight)).sum();
    }
}

/// Random pictures, labels, and captions of different lengths.
pub(super) fn random(task: &ClipTask, num_samples: usize, seed: u64) -> Batch {
    let mut draw = Draw::new(seed, "batch");
    let pixels = random_bytes(
        &mut draw,
        num_samples * crate::engine::task::Task::picture_bytes(task),
    );
    let (vocabulary, num_tokens) = (task.model.text.vocab_size as u64, task.num_tokens);
    let end = match task.model.text.pooling {
        TextPooling::HighestId => vocabulary as i64 - 1,
        TextPooling::FirstEos(eos) => eos,
    };
    let mut ids = Vec::with_capacity(num_samples * num_tokens);
    let mut labels = Vec::with_capacity(num_samples);
    for _ in 0..num_samples {
        let shortest = num_tokens.div_ceil(2) as u64;
        let length = (shortest + draw.bits() % (num_tokens as u64 - shortest + 1)) as usize;
        for position in 0..num_tokens {
            let id = (draw.bits() % (vocabulary - 1)) as i64;
            ids.push(match position + 1 {
                at if at == length => end,
                at if at > length => 0,
                _ if id == end => (id + 1) % vocabulary as i64,
                _ => id,
            });
        }
        let label = |labels: usize| (draw.bits() % labels as u64) as i64;
        labels.push(task.num_labels.map_or(IGNORED, label));
    }
    batch_of(task, Values::Bytes(pixels), ids, labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_sorted_by_id_and_then_by_place() {
        let captions: [&[i64]; 2] = [&[9, 4, 9], &[4, 1]];
        let mut order = [7; 8];
        sort_places(captions.into_iter(), 4, &mut order);
        assert_eq!(order, [5, 1, 4, 0, 2, -1, -1, -1]);
    }
}
