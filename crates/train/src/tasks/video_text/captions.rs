//! Generated captions of an evaluation: their scores, and the files about them.

use holdall_data::samples::Samples;
use holdall_files::thousands;
use holdall_metrics::captions::CaptionScores;
use serde_json::json;

use super::examples::Examples;
use super::scores::{CaptionFigures, CocoFigures};
use crate::config::Subset;
use crate::error::TrainError;

/// Memory per caption: the caption and its reference, tokens of both during scoring, and its lines in the files.
pub(super) const CAPTION_BYTES: u64 = 8 << 10;

/// A generated caption and its scores against the clip's own caption.
struct Written {
    clip: u32,
    rank: Option<f64>,
    caption: String,
    scores: CocoFigures,
}

/// All generated captions of an evaluation.
pub(super) struct WrittenCaptions {
    written: Vec<Written>,
    pairs: Vec<(String, Vec<String>)>,
    examples: Examples,
    num_samples: usize,
}

impl WrittenCaptions {
    pub(super) fn new(num_samples: usize) -> WrittenCaptions {
        WrittenCaptions {
            written: Vec::new(),
            pairs: Vec::new(),
            examples: Examples::default(),
            num_samples,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.written.len()
    }

    /// Clips and their captions, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = (u32, &str)> {
        self.written.iter().map(|one| (one.clip, &*one.caption))
    }

    /// Thumbnails of the example clips.
    pub(super) fn frames(&self) -> impl Iterator<Item = (u32, &Vec<String>)> {
        self.examples.frames()
    }

    /// Adds the caption of a clip with its retrieval rank; `frames` makes thumbnails.
    pub(super) fn add(
        &mut self,
        samples: &Samples,
        (clip, rank): (u32, Option<f64>),
        caption: String,
        frames: impl FnOnce() -> Vec<String>,
    ) {
        let truth = samples.caption(clip as usize).to_owned();
        let pair = (caption.clone(), vec![truth]);
        let scores = figures(std::slice::from_ref(&pair)).scores;
        self.examples
            .see(clip, scores.bleu4, rank, &caption, frames);
        self.pairs.push(pair);
        self.written.push(Written {
            clip,
            rank,
            caption,
            scores,
        });
    }

    /// Scores of all captions together.
    pub(super) fn scores(&self) -> CaptionFigures {
        figures(&self.pairs)
    }

    /// The contents of `predictions.csv` and `captions.json`; `settings` describes the generation.
    pub(super) fn files(
        &self,
        step: u64,
        on: Subset,
        samples: &Samples,
        settings: &str,
    ) -> Result<Vec<(&'static str, String)>, TrainError> {
        let protocol = format!(
            "{} of {} clips, {settings}",
            thousands(self.len()),
            thousands(self.num_samples)
        );
        let CaptionFigures { clips: _, scores } = self.scores();
        let captions = json!({
            "step": step,
            "on": on,
            "protocol": protocol,
            "scores": scores,
            "best": self.examples.best(samples),
            "worst": self.examples.worst(samples),
        });
        Ok(vec![
            ("predictions.csv", self.csv(samples)?),
            ("captions.json", captions.to_string()),
        ])
    }

    fn csv(&self, samples: &Samples) -> Result<String, TrainError> {
        let failed = |cause: csv::Error| TrainError::Run(format!("predictions.csv: {cause}"));
        let mut rows = csv::Writer::from_writer(Vec::new());
        let header = ["video", "truth", "caption", "rank", "bleu4", "rouge_l"];
        rows.write_record(header).map_err(failed)?;
        for one in &self.written {
            let clip = one.clip as usize;
            let rank = one.rank.map_or(String::new(), |rank| rank.to_string());
            let [bleu4, rouge_l] =
                [one.scores.bleu4, one.scores.rouge_l].map(|score| format!("{score:.4}"));
            let (video, truth) = (samples.image(clip), samples.caption(clip));
            rows.write_record([video, truth, &one.caption, &rank, &bleu4, &rouge_l])
                .map_err(failed)?;
        }
        let bytes = rows.into_inner().expect("memory takes all that is written");
        Ok(String::from_utf8(bytes).expect("rows of text are text"))
    }
}

fn figures(pairs: &[(String, Vec<String>)]) -> CaptionFigures {
    let scores = CaptionScores::of(pairs);
    let [bleu1, bleu2, bleu3, bleu4] = scores.bleu;
    CaptionFigures {
        clips: pairs.len(),
        scores: CocoFigures {
            bleu1,
            bleu2,
            bleu3,
            bleu4,
            rouge_l: scores.rouge_l,
            cider_d: scores.cider_d,
        },
    }
}
