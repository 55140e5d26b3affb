//! Random clips, texts and captions, for benchmarks and tests of the arithmetic.

use holdall_models::config::TextPooling;
use holdall_models::init::Draw;
use holdall_models::video_text::config::TextTower;

use super::super::classify::{self, Targets};
use super::batch::{Texts, batch_of};
use super::{ClipInput, VideoTextTask};
use crate::engine::batch::{Batch, IGNORED, random_bytes};
use crate::engine::task::Task;

/// Random clips, texts of full length, and captions of a quarter to nearly all of their positions, as the benchmarks of other
/// frameworks draw them.
pub(super) fn random(task: &VideoTextTask, num_samples: usize, seed: u64) -> Batch {
    let mut draw = Draw::new(seed, "batch");
    let mut pixels = random_bytes(&mut draw, num_samples * task.picture_bytes());
    if let ClipInput::FrameTokens(dtype) = task.clip_input {
        // Random bytes could be infinite numbers: setting the highest byte of each number makes it small and finite.
        let numbers = pixels.chunks_mut(dtype.bytes());
        numbers.for_each(|number| number[dtype.bytes() - 1] = 0x3c | (number[0] & 0x80));
    }
    let mut below = |bound: usize| (draw.bits() % bound as u64) as usize;
    let frames = task.model.frames();
    let frame_counts: Vec<i64> = (0..num_samples)
        .map(|_| (frames - below(frames.div_ceil(2))) as i64)
        .collect();
    let (width, vocabulary) = (task.num_text_tokens, task.model.text_vocab_size());
    let end = match &task.model.text {
        TextTower::Clip(text) => match text.pooling {
            TextPooling::HighestId => vocabulary as i64 - 1,
            TextPooling::FirstEos(end) => end,
        },
        TextTower::Bert(_) => vocabulary as i64 - 1,
    };
    let mut texts = Texts {
        ids: Vec::with_capacity(num_samples * width),
        lengths: vec![width as i64; num_samples],
        caption_ids: Vec::new(),
        caption_labels: Vec::new(),
        groups: Vec::new(),
    };
    for sample in 0..num_samples {
        for position in 0..width {
            let id = below(vocabulary - 1) as i64;
            // Only the last token ends a text.
            texts.ids.push(if position + 1 == width {
                end
            } else if id == end {
                (id + 1) % vocabulary as i64
            } else {
                id
            });
        }
        // Some samples have the same text.
        texts.groups.push((sample - sample % (1 + below(3))) as i64);
    }
    if let Some(decoder) = task.decoder() {
        let width = task.num_caption_tokens;
        for _ in 0..num_samples {
            let shortest = (width / 4).max(1);
            let length = shortest + below((width - shortest).max(1));
            let mut id = below(decoder.vocab_size) as i64;
            for position in 0..width {
                texts.caption_ids.push(id);
                id = below(decoder.vocab_size) as i64;
                let is_target = position < length;
                let label = if is_target { id } else { IGNORED };
                texts.caption_labels.push(label);
            }
        }
    }
    let drawn = classify::random_targets(&task.heads, &mut draw, num_samples);
    let targets: Vec<Targets<'_>> = drawn.iter().map(|one| one.targets()).collect();
    batch_of(task, &pixels, &frame_counts, &texts, &targets)
}
