//! `captions.json`: generated captions next to the true ones, with frames, limited to what a page can show.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::segmentation::is_picture;

const MAX_SCORES: usize = 20;
/// Clips per list.
const MAX_CLIPS: usize = 12;
/// Frames per clip.
const MAX_FRAMES: usize = 8;
/// Characters per caption.
const MAX_CHARACTERS: usize = 2000;

/// Contents of `captions.json`, which is written at every best evaluation.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Captions {
    /// Completed optimizer steps.
    pub step: Option<u64>,
    /// Evaluated samples.
    on: Option<String>,
    /// Number of captioned clips, and settings of the generation.
    protocol: Option<String>,
    /// Scores by name, such as `bleu4` and `cider_d`.
    scores: Map<String, Value>,
    best: Vec<Clip>,
    worst: Vec<Clip>,
}

/// A clip with its true and its generated caption.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Clip {
    name: String,
    /// Data URIs.
    frames: Vec<String>,
    truth: String,
    caption: String,
    bleu4: Option<f64>,
    /// Rank of the true caption among all, from 1.
    rank: Option<f64>,
}

impl Captions {
    /// Limits clips, frames and characters to what a page can show.
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
