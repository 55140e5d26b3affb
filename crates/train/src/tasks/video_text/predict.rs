//! Runs the forward programs: clips and texts to features, clips to captions.

use std::borrow::Cow;

use holdall_data::loader::Loaded;
use holdall_device::{DeviceError, HostRow};
use holdall_models::clip::end_token;
use holdall_models::video_text::config::TextTower;

use super::super::clip::TokenTable;
use super::VideoTextTask;
use super::programs::{
    CAPTION_LOSS, CAPTION_START, NEXT_TOKEN, TEXT_ENCODER, VIDEO_ENCODER, decoder_tokens, endpoint,
};
use crate::engine::batch::IGNORED;
use crate::engine::forward::Forward;
use crate::error::TrainError;
use crate::tasks::generation::{
    self, Asked, Candidates, DecoderTokens, Generated, Generation, Logits, NextToken,
};

/// Runs the forward programs of a video-text model.
pub struct ClipReader<'t, 'a> {
    task: &'t VideoTextTask,
    forward: Forward<'a>,
    /// Number of clips whose frame tokens are in the decoder's cache.
    num_clips: usize,
}

/// Features of clips, rows of unit length; with heads, their outputs too.
pub struct EncodedClips<'a> {
    /// `rows x projection`.
    pub features: Cow<'a, [f32]>,
    /// `rows x outputs`.
    pub logits: Option<Cow<'a, [f32]>>,
}

impl<'t, 'a> ClipReader<'t, 'a> {
    pub fn new(task: &'t VideoTextTask, forward: Forward<'a>) -> ClipReader<'t, 'a> {
        ClipReader {
            task,
            forward,
            num_clips: 0,
        }
    }

    /// Most clips or texts per call.
    pub fn batch(&self) -> usize {
        self.forward
            .rows(&endpoint(VIDEO_ENCODER, self.task.clip_endpoint()))
    }

    /// Length of a feature vector.
    pub fn projection(&self) -> usize {
        self.forward.width(&endpoint(VIDEO_ENCODER, "features"))
    }

    /// Encodes at least one clip and at most a batch. Later calls for captions refer to these clips.
    pub fn clips(&mut self, loaded: &Loaded<HostRow>) -> Result<EncodedClips<'_>, DeviceError> {
        let counts: Vec<i64> = loaded.frame_counts.iter().map(|&one| one.into()).collect();
        self.frames(&loaded.rows, &counts)
    }

    /// Like [`ClipReader::clips`] for rows of frames; `frame_counts` are read only if clips may lack frames.
    pub fn frames(
        &mut self,
        clips: &[HostRow],
        frame_counts: &[i64],
    ) -> Result<EncodedClips<'_>, DeviceError> {
        let forward = &mut self.forward;
        forward.feed_pictures(&endpoint(VIDEO_ENCODER, self.task.clip_endpoint()), clips);
        if self.task.masks_frames {
            let tokens_per_frame = self.task.model.tokens_per_frame() as i64;
            let tokens: Vec<i64> = frame_counts
                .iter()
                .map(|count| count * tokens_per_frame)
                .collect();
            forward.feed_indices(&endpoint(VIDEO_ENCODER, "frame counts"), frame_counts);
            forward.feed_indices(&endpoint(VIDEO_ENCODER, "frame token counts"), &tokens);
        }
        forward.run(VIDEO_ENCODER)?;
        self.num_clips = clips.len();
        let logits = endpoint(VIDEO_ENCODER, "logits");
        let features = endpoint(VIDEO_ENCODER, "features");
        Ok(EncodedClips {
            features: forward.read_rows(&features, clips.len())?,
            logits: if forward.has(&logits) {
                Some(forward.read_rows(&logits, clips.len())?)
            } else {
                None
            },
        })
    }

    /// Encodes the texts from `first` on, at most a batch.
    pub fn texts(
        &mut self,
        texts: &TokenTable,
        first: usize,
    ) -> Result<Cow<'_, [f32]>, DeviceError> {
        let width = self.forward.width(&endpoint(TEXT_ENCODER, "ids"));
        let rows = self.batch().min(texts.len() - first);
        let mut ids = vec![0; rows * width];
        let mut lengths = Vec::with_capacity(rows);
        for (text, ids) in (first..).zip(ids.chunks_mut(width)) {
            texts.write(text, ids);
            lengths.push(match &self.task.model.text {
                TextTower::Clip(tower) => end_token(ids, tower.pooling) as i64 + 1,
                TextTower::Bert(_) => texts.caption(text).len() as i64,
            });
        }
        let ends: Vec<i64> = lengths.iter().map(|length| length - 1).collect();
        let forward = &mut self.forward;
        forward.feed_indices(&endpoint(TEXT_ENCODER, "ids"), &ids);
        forward.feed_indices(&endpoint(TEXT_ENCODER, "lengths"), &lengths);
        let end = endpoint(TEXT_ENCODER, "end");
        if forward.has(&end) {
            forward.feed_indices(&end, &ends);
        }
        forward.run(TEXT_ENCODER)?;
        forward.read_rows(&endpoint(TEXT_ENCODER, "features"), rows)
    }

    /// Sum of the captions' negative log-likelihood for the clips that were encoded last, and the number of tokens.
    pub fn caption_loss(
        &mut self,
        captions: &TokenTable,
        caption_of: impl Iterator<Item = usize>,
    ) -> Result<(f64, usize), DeviceError> {
        let width = self.forward.width(&endpoint(CAPTION_LOSS, "ids"));
        let mut ids = vec![0; self.num_clips * width];
        // The batch's rows beyond the clips have no targets. They need labels here, because a feed of fewer rows repeats its first
        // row.
        let mut labels = vec![IGNORED; self.batch() * width];
        let mut num_tokens = 0;
        let rows = ids.chunks_mut(width).zip(labels.chunks_mut(width));
        for ((ids, labels), caption) in rows.zip(caption_of) {
            captions.write(caption, ids);
            let said = captions.caption(caption)[1..].iter();
            for (label, &id) in labels.iter_mut().zip(said) {
                *label = i64::from(id);
                num_tokens += 1;
            }
        }
        Ok((self.caption_sum(&ids, &labels)?, num_tokens))
    }

    /// The sum for token ids and labels; negative labels are no targets. `labels` has a row for every clip of a full batch.
    pub fn caption_sum(&mut self, ids: &[i64], labels: &[i64]) -> Result<f64, DeviceError> {
        let forward = &mut self.forward;
        forward.feed_indices(&endpoint(CAPTION_LOSS, "ids"), ids);
        forward.feed_indices(&endpoint(CAPTION_LOSS, "labels"), labels);
        let sum = forward.run_and_read(CAPTION_LOSS, &endpoint(CAPTION_LOSS, "sum"))?;
        Ok(f64::from(sum[0]))
    }

    /// Generates captions for the clips that were encoded last; `samples` are their sample numbers.
    ///
    /// # Panics
    /// If the model has no decoder, or the number of samples differs from that of the clips.
    pub fn captions(&mut self, samples: &[u64]) -> Result<Vec<Generated>, TrainError> {
        assert_eq!(samples.len(), self.num_clips, "a number for every clip");
        let task = self.task;
        let decoder = task.decoder().expect("a model that writes captions");
        let tokens = decoder_tokens(task, decoder);
        write_captions(&mut self.forward, &task.generation, &tokens, samples)
    }
}

/// Generates captions for the clips in the decoder's cache; `samples` are their sample numbers.
pub(super) fn write_captions(
    forward: &mut Forward<'_>,
    settings: &Generation,
    tokens: &DecoderTokens,
    samples: &[u64],
) -> Result<Vec<Generated>, TrainError> {
    forward.run(CAPTION_START)?;
    let mut decoding = Decoding {
        forward,
        longest: settings.num_steps(tokens),
        takes_bans: settings.candidates(tokens).is_some(),
    };
    generation::search(&mut decoding, settings, tokens, samples)
}

/// Runs the decoder for one token per call.
struct Decoding<'f, 'a> {
    forward: &'f mut Forward<'a>,
    longest: usize,
    takes_bans: bool,
}

impl NextToken for Decoding<'_, '_> {
    fn next(&mut self, asked: &Asked<'_>) -> Result<Candidates<'_>, TrainError> {
        let forward = &mut *self.forward;
        let input = |name: &str| endpoint(NEXT_TOKEN, name);
        let rows = forward.rows(&input("ids"));
        forward.feed_indices(&input("ids"), asked.ids);
        forward.feed_indices(&input("position"), &[asked.position as i64]);
        match asked.ancestors {
            Some(ancestors) => forward.feed_indices(&input("ancestors"), ancestors),
            // Ancestors never change: they are fed at the first token.
            None if asked.position == 0 => {
                let own = (0..rows as i64).flat_map(|row| std::iter::repeat_n(row, self.longest));
                forward.feed_indices(&input("ancestors"), &own.collect::<Vec<i64>>());
            }
            None => {}
        }
        if !self.takes_bans {
            let all = forward.run_and_read(NEXT_TOKEN, &input("logits"))?;
            let logits = Logits::All(all);
            return Ok(Candidates { rows, logits });
        }
        match asked.banned {
            Some(banned) => forward.feed_indices(&input("banned"), banned),
            None if asked.position == 0 => {
                let width = forward.width(&input("banned"));
                forward.feed_indices(&input("banned"), &vec![-1; width]);
            }
            None => {}
        }
        let best = forward.run_and_read(NEXT_TOKEN, &input("best"))?;
        let logits = Logits::Best(best);
        Ok(Candidates { rows, logits })
    }
}
