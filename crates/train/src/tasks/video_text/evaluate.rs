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

use holdall_data::loader::{Course, Loaded, Skipped};
use holdall_data::samples::Samples;
use holdall_device::HostRow;
use holdall_device::cpu::Cpu;
use holdall_metrics::contrastive::Positives;
use holdall_metrics::features::FeatureGather;
use holdall_metrics::retrieval::{Found, Ties};
use serde_json::{Map, Value};

use super::super::block_loss::{self, BlockLoss};
use super::super::classify::{self, Tallies, tally_bytes};
use super::super::clip::TokenTable;
use super::super::ranking::{self, QueryFeatures};
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
use crate::run::evaluation_pass::{AllOutputs, EvaluationPass};
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
    let Evaluation {
        device,
        samples,
        subset,
        step,
        effective_batch,
        is_wanted,
        ..
    } = evaluation;
    let contrastive = BlockLoss::new(&evaluation.forward, effective_batch)?;
    let mut pass = ClipPass::new(task, evaluation);
    let clips = pass.clips(step.is_none())?;
    let texts = pass.texts()?;
    let group = device.group();
    let num_texts = texts.len() / task.model.projection_dim;
    // The first process ranks. If ranking fails, the process still writes its captions, because the other processes wait for them.
    let retrieved = (group.rank() == 0)
        .then(|| retrieve(task, device.cpu(), &clips, &texts, contrastive, is_wanted));
    let retrieved = match (retrieved, group.size()) {
        (Some(Err(error)), 1) => return Err(error),
        (retrieved, _) => retrieved,
    };
    // Captions need little memory of their own; dropping the text features makes room for them.
    drop(texts);
    let QueryFeatures {
        samples: read,
        text_of,
        ..
    } = clips.features;
    let ranks = ClipRanks {
        clips: &read,
        found: retrieved
            .as_ref()
            .and_then(|one| Some(&one.as_ref().ok()?.found)),
    };
    let written = match task.decoder() {
        Some(_) if task.evaluation.captions > 0 => Some(pass.captions(&ranks)?),
        _ => None,
    };
    let mut sample_ranks = None;
    let scores = result_of_first(group, || {
        let Retrieved { found, losses } = retrieved.expect("of the first process")?;
        let retrieval = Retrieval::of(&found, num_texts);
        let num_clips = read.len();
        sample_ranks = Some(SampleRanks::new(read, text_of, found));
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

/// Ranks, and the losses if they are asked for.
struct Retrieved {
    found: Found,
    losses: Vec<EvaluatedLoss>,
}

fn retrieve(
    task: &VideoTextTask,
    cpu: &Cpu,
    clips: &ClipResults,
    texts: &[f32],
    contrastive: Option<BlockLoss>,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<Retrieved, Unfinished> {
    let features = clips.features.paired_with(texts, task.model.projection_dim);
    let found = ranking::rank(cpu, features, ["clip", "text"], is_wanted)?;
    let mut losses = Vec::new();
    if let Some(contrastive) = contrastive {
        let mut sums = vec![LossSum::default()];
        sums.extend(task.decoder().map(|_| clips.caption_sum));
        losses = classify::evaluated(task.losses(), &sums);
        losses.extend_from_slice(&clips.head_losses);
        let positives = match task.loss.same_text {
            SameText::Negative => Positives::OwnPair,
            SameText::Positive => Positives::EqualTexts,
        };
        let loss = &mut losses[CONTRASTIVE];
        contrastive.set(cpu, loss, features, positives, is_wanted)?;
    }
    Ok(Retrieved { found, losses })
}

/// Retrieval ranks by sample number.
pub(super) struct ClipRanks<'a> {
    /// Sample numbers, ascending.
    clips: &'a [u32],
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
    features: QueryFeatures,
    /// Negative log-likelihoods of the captions' tokens.
    caption_sum: LossSum,
    heads: Map<String, Value>,
    head_losses: Vec<EvaluatedLoss>,
    skipped: Vec<Skipped>,
}

/// An evaluation in progress: clips, then texts, then captions.
struct ClipPass<'t, 'a> {
    task: &'t VideoTextTask,
    reader: ClipReader<'t, 'a>,
    texts: &'t TokenizedTexts,
    pass: EvaluationPass<'a>,
}

impl<'t, 'a> ClipPass<'t, 'a> {
    fn new(task: &'t VideoTextTask, evaluation: Evaluation<'a>) -> ClipPass<'t, 'a> {
        let num_samples = evaluation.samples.len();
        let texts = task.data().texts(evaluation.subset);
        let written = match task.decoder() {
            Some(_) => task.evaluation.captions.min(num_samples),
            None => 0,
        };
        let lengths = [num_samples, texts.texts.len(), written];
        let (pass, forward) = EvaluationPass::new(evaluation, lengths);
        ClipPass {
            task,
            reader: ClipReader::new(task, forward),
            texts,
            pass,
        }
    }

    /// Encodes every readable clip; `detailed` adds the scores of each class to those of the heads.
    fn clips(&mut self, detailed: bool) -> Result<ClipResults, Unfinished> {
        let (task, samples) = (self.task, self.pass.samples);
        let projection = task.model.projection_dim;
        let mut features = FeatureGather::new(samples.len(), projection, samples.len());
        let mut tallies = Tallies::new(&task.heads, samples.len());
        let mut outputs = AllOutputs::new(self.pass.group, |read, clips, logits| {
            let taken = features.add(read, clips);
            taken.expect("a loader gives each sample once");
            if !logits.is_empty() {
                let width = logits.len() / read.len();
                for (&sample, outputs) in read.iter().zip(logits.chunks(width)) {
                    tallies.add(samples, sample as usize, outputs);
                }
            }
        });
        let (reader, captions) = (&mut self.reader, self.texts.captions.as_ref());
        let mut caption_sum = LossSum::default();
        let read = self.pass.read_once(reader.batch(), |loaded| {
            let encoded = reader.clips(loaded)?;
            let logits = encoded.logits.as_deref().unwrap_or(&[]);
            outputs.add(&loaded.samples, &encoded.features, logits);
            if let Some(captions) = captions {
                let (sum, tokens) = captions_of_batch(reader, captions, samples, loaded)?;
                caption_sum.sum += sum;
                caption_sum.count += tokens as f64;
            }
            Ok(())
        });
        let mut sum_of_all = LossSum::default();
        let own_sum = [caption_sum.sum, caption_sum.count];
        let write_sum = |part: PartWriter| part.numbers(&own_sum);
        let skipped = outputs.finish(read, write_sum, |mut part| {
            let [sum, count] = part.numbers::<f64>()?.try_into().ok()?;
            sum_of_all.sum += sum;
            sum_of_all.count += count;
            Some(())
        })?;
        if features.is_empty() {
            return Err(nothing_readable(samples, &skipped).into());
        }
        let heads = tallies.scores(detailed).into_iter();
        Ok(ClipResults {
            heads: heads.map(|(name, scores)| (name, scores.into())).collect(),
            head_losses: tallies.losses(),
            features: QueryFeatures::new(features, samples),
            caption_sum: match self.pass.group.size() {
                1 => caption_sum,
                _ => sum_of_all,
            },
            skipped,
        })
    }

    /// Encodes every text, in the order of the table.
    fn texts(&mut self) -> Result<Vec<f32>, Unfinished> {
        let (reader, texts) = (&mut self.reader, &self.texts.texts);
        let projection = self.task.model.projection_dim;
        let own = self.pass.share.of(texts.len());
        self.pass.gather(|go_on| {
            let mut rows = Vec::with_capacity(own.len() * projection);
            for first in own.clone().step_by(reader.batch()) {
                let encoded = reader.texts(texts, first)?;
                // The last batch may extend beyond this process's share.
                let wanted = (own.end - first) * projection;
                rows.extend_from_slice(&encoded[..encoded.len().min(wanted)]);
                if !go_on(rows.len() / projection) {
                    return Err(Unfinished::Stopped);
                }
            }
            Ok(rows)
        })
    }

    /// Generates captions for a random selection of clips. They are read again, so that every batch is full of selected clips.
    fn captions(&mut self, ranks: &ClipRanks<'_>) -> Result<WrittenCaptions, Unfinished> {
        let (task, samples, group) = (self.task, self.pass.samples, self.pass.group);
        let course = Course::Drawn {
            count: task.evaluation.captions,
            seed: task.evaluation.seed,
            share: self.pass.share,
        };
        let mut written = WrittenCaptions::new(samples.len());
        let frames_per_clip = task.model.frames();
        let reader = &mut self.reader;
        // The first stage has reported the unreadable clips.
        let read = self.pass.read(course, reader.batch(), |loaded| {
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
            Ok(())
        });
        let write_own = || {
            let texts: Vec<(u32, &str)> = written.texts().collect();
            let frames: HashMap<u32, &Vec<String>> = written.frames().collect();
            PartWriter::default().plain(&texts).plain(&frames)
        };
        let mut of_all = WrittenCaptions::new(samples.len());
        exchange(group, read, write_own, |mut part| {
            let texts: Vec<(u32, String)> = part.plain()?;
            let mut frames: HashMap<u32, Vec<String>> = part.plain()?;
            for (clip, caption) in texts {
                // A clip without thumbnails is not among the best or worst of its process, and so not of all.
                let frames = || frames.remove(&clip).unwrap_or_default();
                of_all.add(samples, (clip, ranks.of(clip)), caption, frames);
            }
            Some(())
        })?;
        Ok(match group.size() {
            1 => written,
            _ => of_all,
        })
    }
}

/// Caption loss of the clips that were encoded last: its sum, and the number of tokens.
fn captions_of_batch(
    reader: &mut ClipReader<'_, '_>,
    captions: &TokenTable,
    samples: &Samples,
    loaded: &Loaded<HostRow>,
) -> Result<(f64, usize), Unfinished> {
    let read = loaded.samples.iter();
    let text_of = read.map(|&sample| samples.caption_id(sample as usize) as usize);
    let (sum, tokens) = reader.caption_loss(captions, text_of)?;
    if !sum.is_finite() {
        let first = samples.image(loaded.samples[0] as usize);
        return Err(Unfinished::NotFinite(format!(
            "the caption loss of {} clips from {first} on is not finite: found {sum}",
            loaded.rows.len()
        )));
    }
    Ok((sum, tokens))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use holdall_device::cpu::{peak_resident_bytes, resident_bytes};
    use holdall_files::SplitMix64;
    use holdall_metrics::contrastive::PairedFeatures;

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
        let features = PairedFeatures {
            queries: &clips.rows,
            texts: &texts,
            text_of: &text_of,
            dimension: WIDTH,
        };
        let found = ranking::rank(&cpu, features, ["clip", "text"], &|| true);
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
