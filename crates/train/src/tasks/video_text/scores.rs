//! Metrics of an evaluation: the fields of `metrics.jsonl`, the values of `best_metric`, and the printed lines.

use holdall_files::thousands;
use holdall_metrics::retrieval::{Found, Ranked, Ranks, Ties};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::classify::{describe_metrics, metrics_of};
use super::VideoTextTask;
use crate::engine::scores::{Direction, Scores};
use crate::engine::similarity::{percent, size_of_evaluation};
use crate::engine::step::LossSum;
use crate::error::TrainError;

/// Scores of an evaluation, as in `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct VideoTextScores {
    #[serde(flatten)]
    pub retrieval: Retrieval,
    /// R@1 of random guessing, video to text.
    pub chance_r1: f64,
    /// Caption loss; with a decoder.
    #[serde(flatten)]
    pub caption: Option<CaptionLoss>,
    /// Scores of generated captions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<CaptionFigures>,
    /// Unreadable clips; the other counts exclude them.
    #[serde(default)]
    pub skipped: usize,
    /// Metrics of the heads, by head name.
    #[serde(flatten)]
    pub heads: Map<String, Value>,
}

/// Retrieval in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Retrieval {
    pub clips: usize,
    /// Number of distinct texts.
    pub texts: usize,
    /// Ranks of each clip's text.
    pub video_to_text: Way,
    /// Ranks of each text's best clip.
    pub text_to_video: Way,
}

/// Retrieval in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Way {
    #[serde(flatten)]
    pub ranks: Ranks,
    /// NDCG@5: the mean of `1 / log2(rank + 1)` for ranks up to 5.
    pub ndcg5: f64,
}

impl Way {
    fn of(ranked: &Ranked) -> Way {
        Way {
            ranks: ranked.ranks(Ties::Mean),
            ndcg5: ranked.ndcg(5, Ties::Mean),
        }
    }
}

impl Retrieval {
    /// From exact ranks of all clips against `num_texts` texts.
    pub(super) fn of(found: &Found, num_texts: usize) -> Retrieval {
        Retrieval {
            clips: found.to_gallery.num_items(),
            texts: num_texts,
            video_to_text: Way::of(&found.to_gallery),
            text_to_video: Way::of(&found.to_query),
        }
    }
}

/// Likelihood of the captions, with weight 1 for every token and no smoothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CaptionLoss {
    /// Mean negative log-likelihood of a token.
    pub caption_loss: f64,
    /// Caption loss of random guessing.
    pub caption_loss_chance: f64,
    /// Exponential of the caption loss.
    pub perplexity: f64,
    /// Tokens of all captions.
    pub caption_tokens: usize,
}

impl CaptionLoss {
    /// `tokens` has the negative log-likelihoods of all tokens.
    pub(super) fn of(tokens: LossSum, vocab_size: usize) -> CaptionLoss {
        let loss = tokens.mean();
        CaptionLoss {
            caption_loss: loss,
            caption_loss_chance: (vocab_size as f64).ln(),
            perplexity: loss.exp(),
            caption_tokens: tokens.count as usize,
        }
    }
}

/// Scores of generated captions against the clips' own captions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CaptionFigures {
    /// Clips with a generated caption.
    pub clips: usize,
    #[serde(flatten)]
    pub scores: CocoFigures,
}

/// Scores of pycocoevalcap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CocoFigures {
    pub bleu1: f64,
    pub bleu2: f64,
    pub bleu3: f64,
    pub bleu4: f64,
    pub rouge_l: f64,
    pub cider_d: f64,
}

/// Values of `best_metric` for any model, the default first.
const RETRIEVAL: [(&str, Direction); 9] = [
    ("mean_r1", Direction::Higher),
    ("video_to_text_r1", Direction::Higher),
    ("text_to_video_r1", Direction::Higher),
    ("video_to_text_mrr", Direction::Higher),
    ("text_to_video_mrr", Direction::Higher),
    ("video_to_text_ndcg5", Direction::Higher),
    ("text_to_video_ndcg5", Direction::Higher),
    ("video_to_text_median_rank", Direction::Lower),
    ("text_to_video_median_rank", Direction::Lower),
];

/// Values of `best_metric` with a decoder.
const CAPTIONS: [(&str, Direction); 5] = [
    ("caption_loss", Direction::Lower),
    ("perplexity", Direction::Lower),
    ("bleu4", Direction::Higher),
    ("rouge_l", Direction::Higher),
    ("cider_d", Direction::Higher),
];

pub(super) fn metric(scores: &Scores, name: &str) -> Option<f64> {
    match name {
        "mean_r1" => {
            let both = ["video_to_text.r1", "text_to_video.r1"].map(|path| scores.number(path));
            Some((both[0]? + both[1]?) / 2.0)
        }
        "bleu4" | "rouge_l" | "cider_d" => scores.number(&format!("written.{name}")),
        _ => ["video_to_text", "text_to_video"]
            .iter()
            .find_map(|way| {
                let field = name.strip_prefix(way)?.strip_prefix('_')?;
                scores.number(&format!("{way}.{field}"))
            })
            .or_else(|| scores.number(name)),
    }
}

pub(super) fn best_metric(
    task: &VideoTextTask,
    asked: Option<&str>,
) -> Result<(String, Direction), TrainError> {
    let mut known: Vec<(String, Direction)> = Vec::new();
    let mut add = |metrics: &[(&str, Direction)], prefix: &str| {
        let metrics = metrics.iter();
        known.extend(metrics.map(|&(name, way)| (format!("{prefix}{name}"), way)));
    };
    add(&RETRIEVAL, "");
    if task.decoder().is_some() {
        add(&CAPTIONS, "");
    }
    for head in &task.heads {
        add(metrics_of(head), &format!("{}.", head.name));
    }
    let Some(asked) = asked else {
        return Ok(known.swap_remove(0));
    };
    let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
    let Some(place) = names.iter().position(|name| *name == asked) else {
        return Err(TrainError::Config(format!(
            "train.best_metric: {asked}, expected one of {}, loss\nhint: leave it out for {}",
            names.join(", "),
            names[0]
        )));
    };
    Ok(known.swap_remove(place))
}

/// Number of encoded texts and clips, for the log.
pub(super) fn describe_size(scores: &Scores) -> Option<String> {
    let scores: VideoTextScores = scores.read()?;
    let (clips, texts) = (scores.retrieval.clips, scores.retrieval.texts);
    Some(size_of_evaluation(texts, clips))
}

/// One line each for both retrieval directions, captions and heads, next to the scores of guessing.
pub(super) fn describe_scores(task: &VideoTextTask, scores: &Scores) -> String {
    let Some(found) = scores.read::<VideoTextScores>() else {
        return String::new();
    };
    let ranks = |way: &Way| {
        let ranks = &way.ranks;
        let [r1, r5, r10] = [ranks.r1, ranks.r5, ranks.r10].map(percent);
        format!(
            "R@1 {r1}, R@5 {r5}, R@10 {r10}, median rank {}, MRR {:.3}, NDCG@5 {:.3}",
            ranks.median_rank, ranks.mrr, way.ndcg5
        )
    };
    let mut lines = vec![
        format!(
            "  video to text {} (R@1 by chance {})",
            ranks(&found.retrieval.video_to_text),
            percent(found.chance_r1)
        ),
        format!("  text to video {}", ranks(&found.retrieval.text_to_video)),
    ];
    lines.extend(found.caption.map(|caption| {
        format!(
            "  caption loss  {:.3} (chance {:.3}), perplexity {:.2} over {} tokens",
            caption.caption_loss,
            caption.caption_loss_chance,
            caption.perplexity,
            thousands(caption.caption_tokens)
        )
    }));
    lines.extend(found.written.map(|written| {
        let scores = written.scores;
        format!(
            "  captions      BLEU-1 {:.3}, BLEU-4 {:.3}, ROUGE-L {:.3}, CIDEr-D {:.3} on {} clips",
            scores.bleu1,
            scores.bleu4,
            scores.rouge_l,
            scores.cider_d,
            thousands(written.clips)
        )
    }));
    lines.extend(task.heads.iter().map(|head| {
        describe_metrics(head, |name| scores.number(&format!("{}.{name}", head.name)))
    }));
    lines.join("\n")
}
