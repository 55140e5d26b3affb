//! The clips with the best and the worst captions, with thumbnails of their frames, for the report.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdall_data::decode::thumbnail;
use holdall_data::samples::Samples;
use serde_json::{Value, json};

/// Clips per list.
const NUM_CLIPS: usize = 6;
/// Frames per clip, at most.
const NUM_FRAMES: usize = 8;
/// Longest side of a thumbnail.
const MAX_SIDE: u32 = 160;

/// Memory of the examples: JPEGs in base64, and the file while it is written.
pub(super) const EXAMPLES_BYTES: u64 = 6 << 20;

#[derive(Clone)]
struct Example {
    clip: u32,
    bleu4: f64,
    rank: Option<f64>,
    caption: String,
    frames: Vec<String>,
}

/// Collects the best and the worst captions during an evaluation.
#[derive(Default)]
pub(super) struct Examples {
    /// In descending order of BLEU-4.
    best: Vec<Example>,
    /// In ascending order of BLEU-4.
    worst: Vec<Example>,
}

impl Examples {
    /// Thumbnails of every clip in either list.
    pub(super) fn frames(&self) -> impl Iterator<Item = (u32, &Vec<String>)> {
        let kept = self.best.iter().chain(&self.worst);
        kept.map(|one| (one.clip, &one.frames))
    }

    /// Offers a clip with its caption; `frames` makes thumbnails. Among equal scores the first clip stays.
    pub(super) fn see(
        &mut self,
        clip: u32,
        bleu4: f64,
        rank: Option<f64>,
        caption: &str,
        frames: impl FnOnce() -> Vec<String>,
    ) {
        let among_best = self.best.partition_point(|other| other.bleu4 >= bleu4);
        let among_worst = self.worst.partition_point(|other| other.bleu4 <= bleu4);
        if among_best >= NUM_CLIPS && among_worst >= NUM_CLIPS {
            return;
        }
        let example = Example {
            clip,
            bleu4,
            rank,
            caption: caption.to_owned(),
            frames: frames(),
        };
        for (list, place) in [(&mut self.best, among_best), (&mut self.worst, among_worst)] {
            if place < NUM_CLIPS {
                list.truncate(NUM_CLIPS - 1);
                list.insert(place, example.clone());
            }
        }
    }

    pub(super) fn best(&self, samples: &Samples) -> Value {
        lines(&self.best, samples)
    }

    /// The worst clips, without those that are among the best too.
    pub(super) fn worst(&self, samples: &Samples) -> Value {
        let is_best = |clip: u32| self.best.iter().any(|one| one.clip == clip);
        let mut worst = self.worst.clone();
        worst.retain(|one| !is_best(one.clip));
        lines(&worst, samples)
    }
}

fn lines(examples: &[Example], samples: &Samples) -> Value {
    let line = |one: &Example| {
        json!({
            "name": samples.image(one.clip as usize),
            "frames": one.frames,
            "truth": samples.caption(one.clip as usize),
            "caption": one.caption,
            "bleu4": one.bleu4,
            "rank": one.rank,
        })
    };
    examples.iter().map(line).collect()
}

/// Up to [`NUM_FRAMES`] of a clip's frames, evenly spread, as `data:` URIs.
pub(super) fn thumbnails(clip: &[u8], num_frames: usize) -> Vec<String> {
    if clip.is_empty() {
        return Vec::new();
    }
    let shown = num_frames.min(NUM_FRAMES);
    let bytes = clip.len() / num_frames.max(1);
    let frame = |index: usize| {
        let frame = index * num_frames / shown;
        let jpeg = thumbnail(&clip[frame * bytes..][..bytes], MAX_SIDE)?;
        Some(format!("data:image/jpeg;base64,{}", STANDARD.encode(jpeg)))
    };
    (0..shown).filter_map(frame).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use holdall_data::samples::SamplesBuilder;

    use super::*;

    #[test]
    fn the_best_and_the_worst_are_kept_in_order_and_nobody_is_both() {
        let mut builder = SamplesBuilder::new(PathBuf::new());
        let mut examples = Examples::default();
        let clip = vec![90; 10 * 4 * 4 * 3];
        for index in 0..20_u32 {
            builder.push(&format!("clips/{index}"), Some("a text"), index + 2);
            let bleu4 = f64::from((index * 7) % 20) / 20.0;
            examples.see(index, bleu4, Some(1.0), "a caption", || {
                thumbnails(&clip, 10)
            });
        }
        let samples = builder.finish(Vec::new());
        let scores = |value: Value| -> Vec<f64> {
            let lines = value.as_array().expect("a list").clone();
            let each = lines.iter();
            each.map(|line| line["bleu4"].as_f64().expect("a number"))
                .collect()
        };
        let best = examples.best(&samples);
        let frames = best[0]["frames"].as_array().expect("a list");
        assert_eq!(frames.len(), NUM_FRAMES);
        assert!(
            frames[0]
                .as_str()
                .is_some_and(|one| one.starts_with("data:image/jpeg;base64,"))
        );
        assert_eq!(scores(best), [0.95, 0.9, 0.85, 0.8, 0.75, 0.7]);
        assert_eq!(
            scores(examples.worst(&samples)),
            [0.0, 0.05, 0.1, 0.15, 0.2, 0.25]
        );
        // With few clips, all of them count as best.
        let mut few = Examples::default();
        for index in 0..8 {
            few.see(index, 0.5, None, "a caption", || thumbnails(&clip[..48], 1));
        }
        assert_eq!(scores(few.best(&samples)).len(), 6);
        assert!(scores(few.worst(&samples)).is_empty());
    }
}
