//! `captions.json`: captions that a model wrote beside the true ones, with their frames, bounded to what a page can show.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::segmentation::is_picture;

/// Scores, at most.
const MAX_SCORES: usize = 20;
/// Clips that are shown of the best and of the worst, at most.
const MAX_CLIPS: usize = 12;
/// Frames of a clip, at most.
const MAX_FRAMES: usize = 8;
/// Characters of a caption, at most.
const MAX_CHARACTERS: usize = 2000;

/// The file: written at every best evaluation.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Captions {
    /// Optimizer steps done.
    pub step: Option<u64>,
    /// Which samples.
    on: Option<String>,
    /// How many clips were captioned, and how.
    protocol: Option<String>,
    /// Numbers by name: `bleu4`, `cider_d` and whatever else there is.
    scores: Map<String, Value>,
    best: Vec<Clip>,
    worst: Vec<Clip>,
}

/// A clip with what is said of it.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Clip {
    name: String,
    /// Data URIs.
    frames: Vec<String>,
    truth: String,
    caption: String,
    bleu4: Option<f64>,
    /// Where the true caption stands among all, from 1.
    rank: Option<f64>,
}

impl Captions {
    /// With as many clips, frames and letters as a page can show.
    pub fn bounded(mut self) -> Captions {
        let scores = std::mem::take(&mut self.scores).into_iter();
        let numbers = scores.filter(|(_, value)| value.is_number());
        self.scores = numbers.take(MAX_SCORES).collect();
        for clips in [&mut self.best, &mut self.worst] {
            clips.truncate(MAX_CLIPS);
            for clip in clips {
                clip.frames.retain(|frame| is_picture(frame));
                clip.frames.truncate(MAX_FRAMES);
                for text in [&mut clip.truth, &mut clip.caption] {
                    shorten(text);
                }
            }
        }
        self
    }
}

fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARACTERS) {
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_cannot_show_is_left_out() {
        let clip = serde_json::json!({
            "name": "clips/1", "truth": "é".repeat(3000), "caption": "short", "rank": 2.5,
            "frames": vec!["data:image/jpeg;base64,AAAA"; 20].into_iter().chain(["javascript:alert(1)"]).collect::<Vec<_>>(),
        });
        let file = serde_json::json!({
            "step": 7, "scores": {"bleu4": 0.5, "note": "none", "cider_d": 1.5}, "best": vec![clip.clone(); 30],
            "worst": [{"frames": ["javascript:alert(1)"]}], "later": true,
        });
        let captions: Captions = serde_json::from_value(file).unwrap();
        let captions = captions.bounded();
        assert_eq!(
            captions.scores.keys().collect::<Vec<_>>(),
            ["bleu4", "cider_d"]
        );
        assert_eq!(captions.best.len(), MAX_CLIPS);
        assert_eq!(captions.best[0].frames.len(), MAX_FRAMES);
        assert_eq!(captions.best[0].truth.chars().count(), MAX_CHARACTERS + 1);
        assert_eq!(captions.best[0].caption, "short");
        assert!(captions.worst[0].frames.is_empty());
    }
}
