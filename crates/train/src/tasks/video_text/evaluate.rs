//! Evaluation of a video-text model: retrieval in both directions, caption loss, generated captions, and heads.
//!
//! ```text
//! clips      every clip once: features, outputs of the heads, caption loss
//! texts      every distinct text once
//! ranks      exact, in both directions; the similarity matrix is never stored
//! captions   generated for a seeded random selection of clips, which are read again
//! ```
//!
//! Features are kept on the host; everything else is counted in a stream.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::loader::{Course, Loader, Share, Skipped};
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_metrics::contrastive::{PairedFeatures, Positives};
use holdall_metrics::features::{FeatureGather, Features, OrderedFeatures};
use holdall_metrics::retrieval::{Found, Ties};
use holdall_processes::Group;
use serde_json::{Map, Value};

use super::super::block_loss::{self, BlockLoss};
use super::super::classify::{self, Tallies, tally_bytes};
use super::super::ranking;
use super::captions::{CAPTION_BYTES, WrittenCaptions};
use super::examples::{EXAMPLES_BYTES, thumbnails};
use super::predict::ClipReader;
use super::programs::decoder_tokens;
use super::scores::{CaptionLoss, Retrieval, VideoTextScores};
use super::{CONTRASTIVE, TokenizedTexts, VideoTextTask};
use crate::config::{SameText, Subset};
use crate::engine::scores::{EvaluatedLoss, Scores};
use crate::engine::step::LossSum;
use crate::engine::task::{Evaluated, Evaluation, SampleRanks, Task, Unfinished, nothing_readable};
use crate::planning::loader_budget::read_course;
use crate::planning::processes::share_of;
use crate::run::shared_evaluation::{PartWriter, exchange, result_of_first};

/// Host memory of an evaluation, in bytes.
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
        + block_loss::host_bytes(clips)
        + tally_bytes(&task.heads, clips)
        + written
}

/// Evaluates samples. Unreadable clips are skipped and listed.
pub(super) fn evaluate(
    task: &VideoTextTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let (step, subset) = (evaluation.step, evaluation.subset);
    let device = evaluation.device;
    let is_wanted = evaluation.is_wanted;
    let contrastive = BlockLoss::new(&evaluation.forward, evaluation.effective_batch)?;
    let mut pass = Pass::new(task, evaluation);
    let clips = pass.clips()?;
    let texts = pass.texts()?;
    let group = device.group();
    let projection = task.model.projection_dim;
    let num_texts = texts.len() / projection;
    // The first process ranks. If ranking fails, the process still writes its captions, because the other processes wait for them.
    let ranked = (group.rank() == 0).then(|| {
        let found = device.cpu().scope(|| {
            let texts = Features::of(&texts, projection);
            ranking::rank(&clips.features.rows, &texts, &clips.text_of, &mut |_| {
                is_wanted()
            })
        });
        found.map_err(|error| ranking::failed(error, ["clip", "text"]))
    });
    let ranked = match (ranked, group.size()) {
        (Some(Err(error)), 1) => return Err(error),
        (ranked, _) => ranked,
    };
    let losses = match contrastive.filter(|_| group.rank() == 0) {
        Some(contrastive) => {
            let features = PairedFeatures {
                queries: &clips.features.rows,
                texts: &texts,
                text_of: &clips.text_of,
                dimension: projection,
            };
            let (sum, tokens) = clips.caption_sum;
            let caption = LossSum {
                sum,
                count: tokens as f64,
            };
            let mut sums = vec![LossSum::default()];
            sums.extend(task.decoder().map(|_| caption));
            let mut losses = classify::evaluated(task.losses(), &sums);
            losses.extend(clips.head_losses);
            let positives = match task.same_text {
                SameText::Negative => Positives::OwnPair,
                SameText::Positive => Positives::EqualTexts,
            };
            let found = device.cpu().scope(|| {
                contrastive.set(&mut losses[CONTRASTIVE], features, positives, is_wanted)
            });
            match (found, group.size()) {
                (Err(error), 1) => return Err(error),
                // Without losses if they are not finite or were interrupted: the error of the ranks reaches all processes.
                (found, _) => found.map(|()| losses).unwrap_or_default(),
            }
        }
        None => Vec::new(),
    };
    // Captions need little memory of their own; dropping the text features makes room for them.
    drop(texts);
    let ranks = ClipRanks {
        clips: clips.features.samples,
        found: ranked.as_ref().and_then(|ranked| ranked.as_ref().ok()),
    };
    let written = match task.decoder() {
        Some(_) if task.evaluation.captions > 0 => Some(pass.captions(&ranks)?),
        _ => None,
    };
    let read_clips = ranks.clips;
    let num_clips = read_clips.len();
    let samples = &pass.samples;
    let mut sample_ranks = None;
    let scores = result_of_first(group, || {
        let found = ranked.expect("of the first process")?;
        let retrieval = Retrieval::of(&found, num_texts);
        sample_ranks = Some(SampleRanks::new(read_clips, clips.text_of, found));
        let mut scores = Scores::of(&VideoTextScores {
            retrieval,
            chance_r1: 1.0 / retrieval.texts as f64,
            caption: task
                .decoder()
                .map(|decoder| CaptionLoss::of(clips.caption_sum, decoder.vocab_size)),
            written: written.as_ref().map(WrittenCaptions::scores),
            skipped: samples.len() - num_clips,
            heads: clips.heads,
        });
        scores.set_losses(&losses);
        Ok(scores)
    })?;
    let files = match (&written, step) {
        (Some(written), Some(step)) if group.rank() == 0 => {
            let decoder = task.decoder().expect("captions were written");
            let settings = task.generation.describe(&decoder_tokens(task, decoder));
            written.files(step, subset, samples, &settings)?
        }
        _ => Vec::new(),
    };
    Ok(Evaluated {
        scores,
        skipped: clips.skipped,
        files,
        ranks: sample_ranks,
    })
}

/// Retrieval ranks by sample number.
pub(super) struct ClipRanks<'a> {
    /// Sample numbers, ascending.
    clips: Vec<u32>,
    /// Set in the first process only.
    found: Option<&'a Found>,
}

impl ClipRanks<'_> {
    /// Rank of the clip's own text among all texts.
    pub(super) fn of(&self, clip: u32) -> Option<f64> {
        let row = self.clips.binary_search(&clip).ok()?;
        let entries = &self.found?.to_gallery.entries;
        Some(entries[row].rank(Ties::Mean))
    }
}

/// Results for all clips.
struct ClipResults {
    /// In the order of the samples.
    features: OrderedFeatures,
    text_of: Vec<u32>,
    /// Sum of negative log-likelihoods, and number of tokens.
    caption_sum: (f64, usize),
    heads: Map<String, Value>,
    head_losses: Vec<EvaluatedLoss>,
    skipped: Vec<Skipped>,
}

/// An evaluation in progress.
struct Pass<'t, 'a> {
    task: &'t VideoTextTask,
    group: &'a Group,
    share: Share,
    reader: ClipReader<'t, 'a>,
    pictures: &'a mut Loader<HostRow>,
    samples: &'a Arc<Samples>,
    texts: &'t TokenizedTexts,
    stop: &'a AtomicBool,
    is_wanted: &'a (dyn Fn() -> bool + Sync),
    tell: &'a mut dyn FnMut(usize, usize),
    is_detailed: bool,
    done: usize,
    total: usize,
}

impl<'t, 'a> Pass<'t, 'a> {
    fn new(task: &'t VideoTextTask, evaluation: Evaluation<'a>) -> Pass<'t, 'a> {
        let samples = evaluation.samples;
        let texts = task.data().texts(evaluation.subset);
        let written = match task.decoder() {
            Some(_) => task.evaluation.captions.min(samples.len()),
            None => 0,
        };
        let group = evaluation.device.group();
        let share = share_of(group);
        let parts = [samples.len(), texts.texts.len(), written];
        Pass {
            task,
            group,
            share,
            reader: ClipReader::new(task, evaluation.forward),
            pictures: evaluation.pictures,
            samples,
            texts,
            stop: evaluation.stop,
            is_wanted: evaluation.is_wanted,
            tell: evaluation.tell,
            is_detailed: evaluation.step.is_none(),
            done: 0,
            total: parts.map(|count| share.of(count).len()).iter().sum(),
        }
    }

    /// Encodes every readable clip.
    fn clips(&mut self) -> Result<ClipResults, Unfinished> {
        let (task, samples) = (self.task, self.samples);
        let projection = task.model.projection_dim;
        let mut features = FeatureGather::new(samples.len(), projection, samples.len());
        let mut tallies = Tallies::new(&task.heads, samples.len());
        let mut caption_sum = (0.0, 0);
        let batch = self.reader.batch().min(self.pictures.num_rows());
        let (reader, captions) = (&mut self.reader, self.texts.captions.as_ref());
        let mut not_finite = None;
        let mut take = |read: &[u32], clips: &[f32], logits: &mut [f32]| {
            let taken = features.add(read, clips);
            taken.expect("a loader gives each sample once");
            if !logits.is_empty() {
                let width = logits.len() / read.len();
                for (&sample, outputs) in read.iter().zip(logits.chunks_mut(width)) {
                    tallies.add(samples, sample as usize, outputs);
                }
            }
        };
        let is_alone = self.group.size() == 1;
        let mut own = OwnClips::default();
        let mut done = 0;
        let course = (samples, Course::Once(self.share));
        let progressing = self.group.expect_progress();
        let read = read_course(self.pictures, course, batch, self.stop, |loaded| {
            let encoded = reader.clips(loaded)?;
            let mut logits = encoded.logits.map_or(Vec::new(), Cow::into_owned);
            if is_alone {
                take(&loaded.samples, &encoded.features, &mut logits)
            } else {
                own.add(&loaded.samples, &encoded.features, &logits)
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
            done += loaded.rows.len();
            (self.tell)(done, self.total);
            Ok::<bool, Unfinished>((self.is_wanted)() && not_finite.is_none())
        });
        drop(progressing);
        let read = match not_finite {
            Some(found) => Err(Unfinished::NotFinite(found)),
            None => read.and_then(|read| read.ok_or(Unfinished::Stopped)),
        };
        let (own_sum, own_tokens) = caption_sum;
        let write_own = || {
            let part = PartWriter::default().numbers(&own.samples);
            let part = part.numbers(&own.features).numbers(&own.logits);
            part.numbers(&[own_sum]).numbers(&[own_tokens as u64])
        };
        if !is_alone {
            caption_sum = (0.0, 0);
        }
        let skipped = exchange(self.group, read, write_own, |mut part| {
            let read: Vec<u32> = part.numbers()?;
            let clips: Vec<f32> = part.numbers()?;
            take(&read, &clips, &mut part.numbers::<f32>()?);
            caption_sum.0 += part.numbers::<f64>()?.first()?;
            caption_sum.1 += *part.numbers::<u64>()?.first()? as usize;
            Some(())
        })?;
        if features.is_empty() {
            return Err(nothing_readable(samples, &skipped).into());
        }
        // Clips that could not be read, in this evaluation or before.
        let left_out: Vec<u32> = features.missing().collect();
        let features = features.in_order(&left_out);
        let features = features.expect("all others are there");
        let text_of = features.samples.iter();
        let text_of = text_of.map(|&sample| samples.caption_id(sample as usize));
        let heads = tallies.scores(self.is_detailed).into_iter();
        let head_losses = tallies.losses();
        self.done = done;
        Ok(ClipResults {
            text_of: text_of.collect(),
            features,
            caption_sum,
            heads: heads.map(|(name, scores)| (name, scores.into())).collect(),
            head_losses,
            skipped,
        })
    }

    /// Encodes every text, in the order of the table.
    fn texts(&mut self) -> Result<Vec<f32>, Unfinished> {
        let texts = &self.texts.texts;
        let projection = self.task.model.projection_dim;
        let own = self.share.of(texts.len());
        let mut features = Vec::with_capacity(own.len() * projection);
        let progressing = self.group.expect_progress();
        let encoded = self.encode_texts(own, &mut features);
        drop(progressing);
        let mut all = Vec::new();
        let write_own = || PartWriter::default().numbers(&features);
        exchange(self.group, encoded, write_own, |mut part| {
            all.extend(part.numbers::<f32>()?);
            Some(())
        })?;
        Ok(match self.group.size() {
            1 => features,
            _ => all,
        })
    }

    fn encode_texts(&mut self, own: Range<usize>, to: &mut Vec<f32>) -> Result<(), Unfinished> {
        let projection = self.task.model.projection_dim;
        for first in own.clone().step_by(self.reader.batch()) {
            let encoded = self.reader.texts(&self.texts.texts, first)?;
            // The last batch may extend beyond this process's share.
            let wanted = (own.end - first) * projection;
            to.extend_from_slice(&encoded[..encoded.len().min(wanted)]);
            let done = to.len() / projection;
            (self.tell)(self.done + done, self.total);
            if !(self.is_wanted)() {
                return Err(Unfinished::Stopped);
            }
        }
        self.done += own.len();
        Ok(())
    }

    /// Generates captions for a random selection of clips. They are read again, so that every batch is full of selected clips.
    fn captions(&mut self, ranks: &ClipRanks<'_>) -> Result<WrittenCaptions, Unfinished> {
        let (task, samples) = (self.task, self.samples);
        let course = Course::Drawn {
            count: task.evaluation.captions,
            seed: task.evaluation.seed,
            share: self.share,
        };
        let batch = self.reader.batch().min(self.pictures.num_rows());
        let mut written = WrittenCaptions::new(samples.len());
        let frames_per_clip = task.model.frames();
        let reader = &mut self.reader;
        let course = (samples, course);
        let progressing = self.group.expect_progress();
        // The first pass has reported the unreadable clips.
        let read = read_course(self.pictures, course, batch, self.stop, |loaded| {
            reader.clips(loaded)?;
            let numbers: Vec<u64> = loaded.samples.iter().map(|&one| one.into()).collect();
            for (row, generated) in reader.captions(&numbers)?.iter().enumerate() {
                let clip = loaded.samples[row];
                let caption = task.data().caption_text().decode(&generated.tokens)?;
                let frames = || {
                    let frames = match &task.frame_cache {
                        None => Cow::Borrowed(loaded.rows[row].as_ref()),
                        Some(cache) => Cow::Owned(cache.frames(samples, clip as usize)),
                    };
                    thumbnails(&frames, frames_per_clip)
                };
                written.add(samples, (clip, ranks.of(clip)), caption, frames);
            }
            (self.tell)(self.done + written.len(), self.total);
            Ok::<bool, Unfinished>((self.is_wanted)())
        });
        drop(progressing);
        let read = read.and_then(|read| read.ok_or(Unfinished::Stopped));
        let write_own = || {
            let texts: Vec<(u32, &str)> = written.texts().collect();
            let frames: HashMap<u32, &Vec<String>> = written.frames().collect();
            PartWriter::default().plain(&texts).plain(&frames)
        };
        let mut of_all = WrittenCaptions::new(samples.len());
        exchange(self.group, read, write_own, |mut part| {
            let texts: Vec<(u32, String)> = part.plain()?;
            let mut frames: HashMap<u32, Vec<String>> = part.plain()?;
            for (clip, caption) in texts {
                // A clip without thumbnails is not among the best or worst of its process, and so not of all.
                let frames = || frames.remove(&clip).unwrap_or_default();
                of_all.add(samples, (clip, ranks.of(clip)), caption, frames);
            }
            Some(())
        })?;
        Ok(match self.group.size() {
            1 => written,
            _ => of_all,
        })
    }
}

/// This process's results for its clips, until all processes exchange theirs.
#[derive(Default)]
struct OwnClips {
    samples: Vec<u32>,
    features: Vec<f32>,
    logits: Vec<f32>,
}

impl OwnClips {
    fn add(&mut self, read: &[u32], features: &[f32], logits: &[f32]) {
        self.samples.extend(read);
        self.features.extend(features);
        self.logits.extend(logits);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use holdall_device::cpu::{Cpu, peak_resident_bytes, resident_bytes};
    use holdall_files::SplitMix64;

    use super::*;

    fn row(random: &mut SplitMix64, to: &mut [f32], around: Option<&[f32]>) {
        for (place, value) in to.iter_mut().enumerate() {
            let drawn = (random.unit() - 0.5) as f32;
            *value = drawn + around.map_or(0.0, |around| 2.0 * around[place]);
        }
        let length = to.iter().map(|value| value * value).sum::<f32>().sqrt();
        to.iter_mut().for_each(|value| *value /= length);
    }

    /// As many clips and texts as a hospital's reports have, through the stages of an evaluation after the encoders.
    #[test]
    #[ignore = "takes a minute and 400 MB; prints its figures"]
    fn ranks_of_117_120_clips_against_23_592_texts_take_less_than_2_gb() {
        const CLIPS: usize = 117_120;
        const TEXTS: usize = 23_592;
        const WIDTH: usize = 512;
        let cpu = Cpu::open(None).expect("threads");
        let threads = cpu.num_threads();
        let before = resident_bytes().expect("a system that tells");
        let mut random = SplitMix64(17);
        let mut texts = vec![0.0; TEXTS * WIDTH];
        texts
            .chunks_mut(WIDTH)
            .for_each(|text| row(&mut random, text, None));
        let text_of: Vec<u32> = (0..CLIPS as u32)
            .map(|clip| {
                if clip < TEXTS as u32 {
                    clip
                } else {
                    (random.bits() % TEXTS as u64) as u32
                }
            })
            .collect();
        let mut gathered = FeatureGather::new(CLIPS, WIDTH, CLIPS);
        let mut batch = vec![0.0; 64 * WIDTH];
        for first in (0..CLIPS).step_by(64) {
            let clips: Vec<u32> = (first as u32..CLIPS.min(first + 64) as u32).collect();
            for (&clip, to) in clips.iter().zip(batch.chunks_mut(WIDTH)) {
                let own = text_of[clip as usize] as usize;
                row(&mut random, to, Some(&texts[own * WIDTH..][..WIDTH]));
            }
            let added = gathered.add(&clips, &batch[..clips.len() * WIDTH]);
            added.expect("each clip once");
        }
        let clips = gathered.in_order(&[]).expect("all are there");
        let began = Instant::now();
        let found = cpu.scope(|| {
            let texts = Features::of(&texts, WIDTH);
            ranking::rank(&clips.rows, &texts, &text_of, &mut |_| true)
        });
        let seconds = began.elapsed().as_secs_f64();
        let found = found.expect("features are finite");
        let retrieval = Retrieval::of(&found, TEXTS);
        let peak = peak_resident_bytes().expect("a system that tells");
        let planned = ranking::host_bytes(CLIPS, TEXTS, WIDTH, threads);
        println!(
            "{:.1} s on {threads} threads; process {} MB, {} MB more than before, planned {} MB; {retrieval:?}",
            seconds,
            peak / 1_000_000,
            (peak - before) / 1_000_000,
            planned / 1_000_000
        );
        assert!(peak < 2_000_000_000, "{peak} bytes");
        assert!(peak - before <= planned, "{} of {planned}", peak - before);
        let r1 = retrieval.video_to_text.ranks.r1;
        assert!((0.1..1.0).contains(&r1), "{r1}");
    }
}
