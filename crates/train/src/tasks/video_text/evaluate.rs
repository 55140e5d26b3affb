//! What a model is worth on clips: retrieval both ways, the likelihood of captions, captions that it writes, and heads.
//!
//! ```text
//! clips      every clip once: features, heads' outputs, the sum over its caption's tokens
//! texts      every different text once
//! ranks      exact, both ways; similarities are never held
//! captions   for clips that are drawn with a seed, read once more
//! ```
//!
//! Features wait on the host; everything else is counted as it comes.

use std::sync::Arc;

use holdall_data::loader::{Course, Skipped};
use holdall_data::samples::Samples;
use holdall_metrics::feature_gather::FeatureGather;
use holdall_metrics::features::Features;
use holdall_metrics::retrieval::{Found, Ties};

use super::super::classify::{Tallies, tally_bytes};
use super::super::ranking;
use super::captions::{CAPTION_BYTES, WrittenCaptions};
use super::examples::EXAMPLES_BYTES;
use super::predict::ClipReader;
use super::programs::decoder_tokens;
use super::scores::{CaptionLoss, Retrieval, VideoTextScores};
use super::{TokenizedTexts, VideoTextTask};
use crate::config::Subset;
use crate::loader_budget::read_course;
use crate::scores::Scores;
use crate::task::{Evaluated, Evaluation, Unfinished, nothing_readable};

/// Bytes that an evaluation holds on the host.
pub(super) fn host_bytes(
    task: &VideoTextTask,
    subset: Subset,
    samples: &Samples,
    threads: usize,
) -> u64 {
    let (clips, texts) = (samples.len(), task.data().texts(subset).texts.len());
    let written = match task.decoder() {
        Some(_) => task.evaluation.captions.min(clips) as u64 * CAPTION_BYTES + EXAMPLES_BYTES,
        None => 0,
    };
    ranking::host_bytes(clips, texts, task.model.projection_dim, threads)
        + tally_bytes(&task.heads, clips)
        + written
}

/// Evaluates samples. What cannot be read is left out, and named.
pub(super) fn evaluate(
    task: &VideoTextTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let (step, subset) = (evaluation.step, evaluation.subset);
    let device = evaluation.device;
    let is_wanted = evaluation.is_wanted;
    let mut pass = Pass::new(task, evaluation);
    let clips = pass.clips()?;
    let texts = pass.texts()?;
    let projection = task.model.projection_dim;
    let found = device.cpu().scope(|| {
        let texts = Features::of(&texts, projection);
        ranking::rank(&clips.features, &texts, &clips.text_of, &mut |_| is_wanted())
    });
    let found = found.map_err(|error| ranking::failed(error, ["clip", "text"]))?;
    let num_texts = texts.len() / projection;
    // What follows is about few clips: features make room.
    drop(texts);
    let ranks = ClipRanks {
        clips: clips.samples,
        found: &found,
    };
    let written = match task.decoder() {
        Some(_) if task.evaluation.captions > 0 => Some(pass.captions(&ranks)?),
        _ => None,
    };
    let samples = &pass.samples;
    let scores = VideoTextScores {
        retrieval: Retrieval {
            clips: ranks.clips.len(),
            texts: num_texts,
            video_to_text: found.to_gallery.ranks(Ties::Mean),
            text_to_video: found.to_query.ranks(Ties::Mean),
        },
        chance_r1: 1.0 / num_texts as f64,
        caption: task
            .decoder()
            .map(|decoder| CaptionLoss::of(clips.caption_sum, decoder.vocab_size)),
        written: written.as_ref().map(WrittenCaptions::scores),
        skipped: samples.len() - ranks.clips.len(),
        heads: clips.heads,
    };
    let files = match (&written, step) {
        (Some(written), Some(step)) => {
            let decoder = task.decoder().expect("captions were written");
            let settings = task.generation.describe(&decoder_tokens(task, decoder));
            written.files(step, subset, samples, &settings)?
        }
        _ => Vec::new(),
    };
    Ok(Evaluated {
        scores: Scores::of(&scores),
        skipped: clips.skipped,
        files,
    })
}

/// Ranks of clips by their numbers.
pub(super) struct ClipRanks<'a> {
    /// Numbers, ascending.
    clips: Vec<u32>,
    found: &'a Found,
}

impl ClipRanks<'_> {
    /// Of the clip's own text among all texts.
    pub(super) fn of(&self, clip: u32) -> Option<f64> {
        let row = self.clips.binary_search(&clip).ok()?;
        let entries = &self.found.to_gallery.entries;
        Some(entries[row].rank(Ties::Mean))
    }
}

/// What the clips became.
struct ClipResults {
    features: Vec<f32>,
    /// Numbers of the clips that were read, ascending.
    samples: Vec<u32>,
    text_of: Vec<u32>,
    /// Sum of negative log-likelihoods, and tokens.
    caption_sum: (f64, usize),
    heads: serde_json::Map<String, serde_json::Value>,
    skipped: Vec<Skipped>,
}

/// An evaluation under way.
struct Pass<'a> {
    task: &'a VideoTextTask,
    reader: ClipReader<'a>,
    pictures: &'a mut holdall_data::loader::Loader<holdall_device::HostRow>,
    samples: &'a Arc<Samples>,
    texts: &'a TokenizedTexts,
    stop: &'a std::sync::atomic::AtomicBool,
    is_wanted: &'a (dyn Fn() -> bool + Sync),
    tell: &'a mut dyn FnMut(usize, usize),
    is_detailed: bool,
    done: usize,
    total: usize,
}

impl<'a> Pass<'a> {
    fn new(task: &'a VideoTextTask, evaluation: Evaluation<'a>) -> Pass<'a> {
        let samples = evaluation.samples;
        let texts = task.data().texts(evaluation.subset);
        let written = match task.decoder() {
            Some(_) => task.evaluation.captions.min(samples.len()),
            None => 0,
        };
        Pass {
            task,
            reader: ClipReader::new(task, evaluation.forward),
            pictures: evaluation.pictures,
            samples,
            texts,
            stop: evaluation.stop,
            is_wanted: evaluation.is_wanted,
            tell: evaluation.tell,
            is_detailed: evaluation.step.is_none(),
            done: 0,
            total: samples.len() + texts.texts.len() + written,
        }
    }

    /// Every clip that can be read.
    fn clips(&mut self) -> Result<ClipResults, Unfinished> {
        let (task, samples) = (self.task, self.samples);
        let projection = task.model.projection_dim;
        let mut features = FeatureGather::new(samples.len(), projection, samples.len());
        let mut tallies = Tallies::new(&task.heads, samples.len());
        let mut caption_sum = (0.0, 0);
        let batch = self.reader.batch().min(self.pictures.num_rows());
        let (reader, captions) = (&mut self.reader, self.texts.captions.as_ref());
        let mut not_finite = None;
        let course = (samples, Course::Once);
        let skipped = read_course(self.pictures, course, batch, self.stop, |loaded| {
            let encoded = reader.clips(loaded)?;
            let taken = features.add(&loaded.samples, &encoded.features);
            taken.expect("a loader gives each sample once");
            if let Some(logits) = encoded.logits {
                let mut logits = logits.into_owned();
                let width = logits.len() / loaded.rows.len();
                let rows = loaded.samples.iter().zip(logits.chunks_mut(width));
                for (&sample, outputs) in rows {
                    tallies.add(samples, sample as usize, outputs);
                }
            }
            if let Some(captions) = captions {
                let read = loaded.samples.iter();
                let text_of = read.map(|&sample| samples.caption_id(sample as usize) as usize);
                let (sum, tokens) = reader.caption_loss(captions, text_of)?;
                if !sum.is_finite() {
                    let first = samples.image(loaded.samples[0] as usize);
                    not_finite = Some(format!(
                        "the caption loss of {} clips from {first} on is not finite: found {sum}",
                        loaded.rows.len()
                    ));
                }
                caption_sum.0 += sum;
                caption_sum.1 += tokens;
            }
            self.done = features.len();
            (self.tell)(self.done, self.total);
            Ok::<bool, Unfinished>((self.is_wanted)() && not_finite.is_none())
        })?;
        if let Some(found) = not_finite {
            return Err(Unfinished::NotFinite(found));
        }
        let skipped = skipped.ok_or(Unfinished::Stopped)?;
        if features.is_empty() {
            return Err(nothing_readable(samples, &skipped).into());
        }
        // What cannot be read: found now and named in `skipped`, or known from before.
        let left_out: Vec<u32> = features.missing().collect();
        let features = features.in_order(&left_out);
        let features = features.expect("all others are there");
        let text_of = features.samples.iter();
        let text_of = text_of.map(|&sample| samples.caption_id(sample as usize));
        let heads = tallies.scores(self.is_detailed).into_iter();
        self.done = samples.len();
        Ok(ClipResults {
            text_of: text_of.collect(),
            features: features.rows,
            samples: features.samples,
            caption_sum,
            heads: heads.map(|(name, scores)| (name, scores.into())).collect(),
            skipped,
        })
    }

    /// Features of every text, in the order of the table.
    fn texts(&mut self) -> Result<Vec<f32>, Unfinished> {
        let texts = &self.texts.texts;
        let projection = self.task.model.projection_dim;
        let mut features = Vec::with_capacity(texts.len() * projection);
        for first in (0..texts.len()).step_by(self.reader.batch()) {
            features.extend_from_slice(&self.reader.texts(texts, first)?);
            let done = features.len() / projection;
            (self.tell)(self.done + done, self.total);
            if !(self.is_wanted)() {
                return Err(Unfinished::Stopped);
            }
        }
        self.done += texts.len();
        Ok(features)
    }

    /// Captions for clips that are drawn: they are read once more, so that every batch is full of them.
    fn captions(&mut self, ranks: &ClipRanks<'_>) -> Result<WrittenCaptions, Unfinished> {
        let (task, samples) = (self.task, self.samples);
        let course = Course::Drawn {
            count: task.evaluation.captions,
            seed: task.evaluation.seed,
        };
        let batch = self.reader.batch().min(self.pictures.num_rows());
        let mut written = WrittenCaptions::new(task, samples.len());
        let reader = &mut self.reader;
        let course = (samples, course);
        // What cannot be read was found before.
        let read = read_course(self.pictures, course, batch, self.stop, |loaded| {
            reader.clips(loaded)?;
            let numbers: Vec<u64> = loaded.samples.iter().map(|&one| one.into()).collect();
            for (row, generated) in reader.captions(&numbers)?.iter().enumerate() {
                let clip = loaded.samples[row];
                let caption = task.data().caption_text().decode(&generated.tokens)?;
                let frames = loaded.rows[row].as_ref();
                written.add(samples, (clip, ranks.of(clip)), caption, frames);
            }
            (self.tell)(self.done + written.len(), self.total);
            Ok::<bool, Unfinished>((self.is_wanted)())
        })?;
        read.ok_or(Unfinished::Stopped)?;
        Ok(written)
    }
}
