//! `samples.json`: a dozen held-out pictures with what the model makes of them, for people to look at.
//!
//! An evaluation decodes every picture and encodes every caption; this looks on, and keeps of a few pictures the pixels as
//! a small JPEG, the label head's first choices and the captions that are nearest. Nothing is decoded or computed again but
//! a dozen similarities a caption, and training does not see it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdall_data::picture::thumbnail;
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_metrics::classification::top_k;
use serde::{Deserialize, Serialize};

use super::{ClipTask, EncodedPictures};
use crate::config::Subset;

/// Pictures that are kept.
const MAX_EXAMPLES: usize = 12;
/// Captions and labels of each.
const NUM_BEST: usize = 3;
/// Longest side of what is kept of a picture.
const MAX_SIDE: u32 = 224;

/// What they take: features, JPEGs, and the file while it is written.
pub const EXAMPLES_BYTES: u64 = 1 << 20;

/// A picture that is looked at.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Example {
    sample: u32,
    jpeg: Vec<u8>,
    feature: Vec<f32>,
    /// Label and share, best first.
    labels: Vec<(usize, f64)>,
    /// Caption and cosine, best first.
    captions: Vec<(usize, f64)>,
    own_similarity: Option<f64>,
    own_caption: usize,
}

/// Collects examples while an evaluation runs.
pub struct Examples {
    chosen: Vec<u32>,
    caption_ids: Vec<u32>,
    examples: Vec<Example>,
    captions_seen: usize,
}

#[derive(Serialize)]
struct SamplesFile<'a> {
    step: u64,
    on: Subset,
    captions: usize,
    samples: Vec<SampleLine<'a>>,
}

#[derive(Serialize)]
struct SampleLine<'a> {
    image: &'a str,
    /// In base64.
    jpeg: String,
    caption: &'a str,
    /// Cosine of the picture and its own caption.
    similarity: Option<f64>,
    label: Option<&'a str>,
    labels: Vec<LabelLine<'a>>,
    captions: Vec<CaptionLine<'a>>,
}

#[derive(Serialize)]
struct LabelLine<'a> {
    label: &'a str,
    share: f64,
}

#[derive(Serialize)]
struct CaptionLine<'a> {
    caption: &'a str,
    similarity: f64,
    own: bool,
}

impl Examples {
    /// Evenly spread over the samples: the same ones at every evaluation.
    pub fn of(samples: &Samples) -> Examples {
        let count = samples.len().min(MAX_EXAMPLES);
        let chosen: Vec<u32> = (0..count)
            .map(|index| (index * samples.len() / count) as u32)
            .collect();
        let caption_ids = chosen
            .iter()
            .map(|&sample| samples.caption_id(sample as usize));
        Examples {
            caption_ids: caption_ids.collect(),
            chosen,
            examples: Vec::new(),
            captions_seen: 0,
        }
    }

    /// Pictures of a batch, and what they became.
    pub(crate) fn see_pictures(
        &mut self,
        read: &[u32],
        rows: &[HostRow],
        encoded: &EncodedPictures<'_>,
    ) {
        let projection = encoded.features.len() / read.len().max(1);
        for (row, &sample) in read.iter().enumerate() {
            let Ok(index) = self.chosen.binary_search(&sample) else {
                continue;
            };
            let Some(jpeg) = thumbnail(rows[row].as_ref(), MAX_SIDE) else {
                continue;
            };
            let labels = encoded.logits.as_ref().map_or(Vec::new(), |logits| {
                let width = logits.len() / read.len();
                top_k(&logits[row * width..][..width], NUM_BEST)
            });
            self.examples.push(Example {
                sample,
                jpeg,
                feature: encoded.features[row * projection..][..projection].to_vec(),
                labels,
                captions: Vec::new(),
                own_similarity: None,
                own_caption: self.caption_ids[index] as usize,
            });
        }
    }

    /// What was seen so far.
    pub(super) fn pictures(&self) -> Vec<Example> {
        self.examples.clone()
    }

    /// What all processes have seen, in the order of the samples.
    pub(super) fn set_pictures(&mut self, examples: Vec<Example>) {
        self.examples = examples;
    }

    /// Captions of a batch, in the order of the table.
    pub(crate) fn see_captions(&mut self, features: &[f32], projection: usize) {
        for caption_d in features.chunks(projection) {
            let caption = self.captions_seen;
            self.captions_seen += 1;
            for example in &mut self.examples {
                let pairs = example.feature.iter().zip(caption_d);
                let similarity: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                if caption == example.own_caption {
                    example.own_similarity = Some(similarity);
                }
                keep_best(&mut example.captions, (caption, similarity));
            }
        }
    }

    /// The file; `None` where no picture was seen.
    pub(crate) fn json(
        &self,
        step: u64,
        on: Subset,
        samples: &Samples,
        task: &ClipTask,
    ) -> Option<String> {
        let names = &task.data().labels;
        let label = |index: usize| names.get(index).map(String::as_str);
        let lines: Vec<SampleLine<'_>> = self
            .examples
            .iter()
            .map(|example| SampleLine {
                image: samples.image(example.sample as usize),
                jpeg: STANDARD.encode(&example.jpeg),
                caption: samples.caption(example.sample as usize),
                similarity: example.own_similarity,
                label: usize::try_from(samples.label(example.sample as usize))
                    .ok()
                    .and_then(label),
                labels: example
                    .labels
                    .iter()
                    .filter_map(|&(index, share)| {
                        let label = label(index)?;
                        Some(LabelLine { label, share })
                    })
                    .collect(),
                captions: example
                    .captions
                    .iter()
                    .map(|&(caption, similarity)| CaptionLine {
                        caption: &samples.captions()[caption],
                        similarity,
                        own: caption == example.own_caption,
                    })
                    .collect(),
            })
            .collect();
        let file = SamplesFile {
            step,
            on,
            captions: self.captions_seen,
            samples: lines,
        };
        (!file.samples.is_empty())
            .then(|| serde_json::to_string(&file).expect("samples are plain data"))
    }
}

fn keep_best(best: &mut Vec<(usize, f64)>, candidate: (usize, f64)) {
    let at = best.partition_point(|(_, value)| *value >= candidate.1);
    if at < NUM_BEST {
        best.truncate(NUM_BEST - 1);
        best.insert(at, candidate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_kept_in_order_and_the_first_of_equals_comes_first() {
        let mut best = Vec::new();
        for (index, value) in [0.1, 0.5, 0.3, 0.5, 0.2, 0.9].into_iter().enumerate() {
            keep_best(&mut best, (index, value));
        }
        assert_eq!(best, [(5, 0.9), (1, 0.5), (3, 0.5)]);
    }
}
