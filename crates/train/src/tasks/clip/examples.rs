//! `samples.json`: a dozen validation pictures with their predictions, for the report.
//!
//! The evaluation decodes every picture and encodes every caption anyway. [`Examples`] keeps a few pictures as small JPEGs, with
//! the label head's best labels and the nearest captions. It adds only a dozen similarities per caption, and does not affect
//! training.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdall_data::decode::thumbnail;
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_metrics::classification::top_k;
use serde::{Deserialize, Serialize};

use super::{ClipTask, EncodedPictures};
use crate::config::Subset;

const MAX_EXAMPLES: usize = 12;
/// Captions and labels that are kept per picture.
const NUM_BEST: usize = 3;
/// Longest side of a thumbnail.
const MAX_SIDE: u32 = 224;

/// Memory of the examples: features, JPEGs, and the file while it is written.
pub const EXAMPLES_BYTES: u64 = 1 << 20;

/// A chosen picture and its predictions.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Example {
    sample: u32,
    jpeg: Vec<u8>,
    feature: Vec<f32>,
    /// Label index and probability, best first.
    labels: Vec<(usize, f64)>,
    /// Caption index and cosine similarity, best first.
    captions: Vec<(usize, f64)>,
    own_similarity: Option<f64>,
    own_caption: usize,
}

/// Collects examples during an evaluation.
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
    jpeg: String,
    caption: &'a str,
    /// Cosine similarity of the picture and its own caption.
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
    /// Chooses pictures evenly spread over the samples: the same ones at every evaluation.
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

    /// Offers the pictures of a batch.
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

    /// Copies the examples of this process.
    pub(super) fn pictures(&self) -> Vec<Example> {
        self.examples.clone()
    }

    /// Sets the examples of all processes, in the order of the samples.
    pub(super) fn set_pictures(&mut self, examples: Vec<Example>) {
        self.examples = examples;
    }

    /// Offers the captions of a batch, in the order of the table.
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

    /// The file's contents; `None` without examples.
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
