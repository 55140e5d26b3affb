//! Forward programs: encoders, the caption loss, and one step of the decoder.
//!
//! ```text
//! video encoder   frames -> features, outputs of the heads; frame tokens into a cache
//! text encoder    texts -> features
//! caption loss    captions of the clips whose frame tokens are cached -> sum over their tokens; logits are never stored
//! caption start   cached frame tokens -> keys and values of every cross-attention, into caches
//! next token      one token per row -> the best next tokens; its keys and values join a cache
//! ```
//!
//! Caches have planned places in the arena. Legend: `b` clips, `s` frame tokens of a clip, `t` caption tokens, `r` rows of
//! decoding (clips x beams), `l` longest caption, `d` width, `v` vocabulary.

use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::fill::Fill;
use holdall_graph::{DType, Graph, ValueId};
use holdall_models::decoder::config::DecoderConfig;
use holdall_models::video_text::config::TextTower;
use holdall_models::video_text::{
    self, CaptionInputs, Clips, DecodingCaches, FrameCounts, TextInputs, TokenInputs,
};
use holdall_models::{decoder, vit};

use super::VideoTextTask;
use super::batch::{
    CAPTION_IDS, CAPTION_LABELS, FRAME_COUNTS, FRAME_TOKEN_COUNTS, TEXT_END, TEXT_IDS, TEXT_LENGTHS,
};
use super::step::FEATURES;
use crate::tasks::generation::{DecoderTokens, Generation};

pub(super) const VIDEO_ENCODER: &str = "video encoder";
pub(super) const TEXT_ENCODER: &str = "text encoder";
pub(super) const CAPTION_LOSS: &str = "caption loss";
pub(super) const CAPTION_START: &str = "caption start";
pub(super) const NEXT_TOKEN: &str = "next token";

/// Full name of a program's endpoint.
pub(super) fn endpoint(program: &str, name: &str) -> String {
    format!("{program}/{name}")
}

/// Special tokens and the longest caption, for decoding.
pub(super) fn decoder_tokens(task: &VideoTextTask, decoder: &DecoderConfig) -> DecoderTokens {
    DecoderTokens {
        bos: decoder.bos,
        eos: vec![decoder.eos],
        pad: decoder.pad,
        longest: task.num_caption_tokens,
    }
}

/// Writes the forward programs for `batch` clips at a time. If the step's inputs and features have the same batch size, the
/// programs share them.
pub(super) fn write_programs(task: &VideoTextTask, g: &mut Graph, batch: usize) {
    let model = &task.model;
    let mut inputs = Inputs { g, batch };
    let clips = task.clips(|name, dims, dtype| inputs.input(name, dims, dtype));
    let (Clips::Pixels(clip_input) | Clips::FrameTokens(clip_input)) = clips;
    let frame_counts = task.masks_frames.then(|| FrameCounts {
        frames: inputs.input(FRAME_COUNTS, &[], DType::I64),
        tokens: inputs.input(FRAME_TOKEN_COUNTS, &[], DType::I64),
    });
    let text_inputs = TextInputs {
        ids: inputs.input(TEXT_IDS, &[task.num_text_tokens], DType::I64),
        lengths: inputs.input(TEXT_LENGTHS, &[], DType::I64),
        end: matches!(model.text, TextTower::Clip(_))
            .then(|| inputs.input(TEXT_END, &[], DType::I64)),
        order: None,
    };
    let [video, text] = FEATURES.map(|name| match g.endpoint(name) {
        Some(value) if g.endpoint(task.clip_endpoint()) == Some(clip_input) => {
            g.rows(value, 0, batch)
        }
        _ => g.output(&format!("evaluated {name}"), &[batch, model.projection_dim]),
    });
    let frame_tokens = g.forward_program(VIDEO_ENCODER, |g| {
        g.name_endpoint(task.clip_endpoint(), clip_input);
        if let Some(counts) = frame_counts {
            g.name_endpoint("frame counts", counts.frames);
            g.name_endpoint("frame token counts", counts.tokens);
        }
        g.name_endpoint("features", video);
        let frame_tokens = video_text::video(g, model, clips, frame_counts, video);
        if !task.heads.is_empty() {
            let logits = vit::classifier(g, video, task.num_outputs());
            let outputs = g.output("logits", &[batch, task.num_outputs()]);
            g.push_new(AddInto {}, vec![logits], &[outputs]);
        }
        task.decoder()?;
        let tokens_bsd = frame_tokens?;
        let dims = g.shape(tokens_bsd);
        let cache = g.forward_cache("frame tokens", dims.dims());
        g.push_new(AddInto {}, vec![tokens_bsd], &[cache]);
        Some(cache)
    });
    g.forward_program(TEXT_ENCODER, |g| {
        g.name_endpoint("ids", text_inputs.ids);
        g.name_endpoint("lengths", text_inputs.lengths);
        if let Some(end) = text_inputs.end {
            g.name_endpoint("end", end);
        }
        g.name_endpoint("features", text);
        video_text::text(g, model, &text_inputs, text, None);
    });
    if let (Some(decoder), Some(frame_tokens)) = (task.decoder(), frame_tokens) {
        let clips = CachedClips {
            batch,
            frame_tokens,
            frame_counts,
        };
        write_caption_loss(task, g, &clips);
        let tokens = decoder_tokens(task, decoder);
        write_decoding(g, decoder, (&task.generation, &tokens), &clips);
    }
}

/// Declares inputs of the programs.
struct Inputs<'g> {
    g: &'g mut Graph,
    batch: usize,
}

impl Inputs<'_> {
    /// The step's input of that name, if it has the same shape, or a new one; `dims` is the shape of a sample.
    fn input(&mut self, name: &str, dims: &[usize], dtype: DType) -> ValueId {
        let (g, batch) = (&mut *self.g, self.batch);
        let dims = [&[batch], dims].concat();
        match g.endpoint(name) {
            Some(value) if g.shape(value).dims() == dims => value,
            _ => g.input(&format!("evaluated {name}"), &dims, dtype),
        }
    }
}

/// Clips whose frame tokens are in a cache.
pub(super) struct CachedClips {
    pub batch: usize,
    /// `[b, s, d]`, in a cache.
    pub frame_tokens: ValueId,
    pub frame_counts: Option<FrameCounts>,
}

/// Writes the caption loss, with weight 1 for every token: weights and smoothing are for training only.
fn write_caption_loss(task: &VideoTextTask, g: &mut Graph, clips: &CachedClips) {
    let (batch, tokens) = (clips.batch, task.num_caption_tokens);
    let mut inputs = Inputs { g, batch };
    let ids = inputs.input(CAPTION_IDS, &[tokens], DType::I64);
    let labels = inputs.input(CAPTION_LABELS, &[tokens], DType::I64);
    g.forward_program(CAPTION_LOSS, |g| {
        g.name_endpoint("ids", ids);
        g.name_endpoint("labels", labels);
        let sum = g.output("sum", &[1]);
        g.push_new(Fill { value: 0.0 }, Vec::new(), &[sum]);
        let token_weights = g.statistic("token weights", &[batch, tokens]);
        let sample_weights = g.statistic("clip weights", &[batch]);
        for weights in [token_weights, sample_weights] {
            g.push_new(Fill { value: 1.0 }, Vec::new(), &[weights]);
        }
        let inputs = CaptionInputs {
            ids_bt: ids,
            order_bt: None,
        };
        let (frame_tokens, counts) = (clips.frame_tokens, clips.frame_counts);
        let states = video_text::caption_states(g, &task.model, frame_tokens, counts, &inputs);
        let head = video_text::head_weight(g, &task.model);
        g.vocabulary_loss_into(
            "caption",
            states,
            head,
            labels,
            token_weights,
            sample_weights,
            sum,
            0.0,
            task.loss.vocabulary_tile,
        );
    });
}

/// Writes the programs that start captions and extend them by a token.
pub(super) fn write_decoding(
    g: &mut Graph,
    decoder: &DecoderConfig,
    (generation, tokens): (&Generation, &DecoderTokens),
    clips: &CachedClips,
) {
    let longest = generation.num_steps(tokens);
    let beams = generation.rows_per_sample();
    let (batch, rows) = (clips.batch, clips.batch * beams);
    let frame_tokens = g.shape(clips.frame_tokens).dims()[1];
    let mut caches = |kind: &str, dims: &[usize]| -> Vec<[ValueId; 2]> {
        let of_layer = |layer: usize| {
            ["keys", "values"].map(|name| g.forward_cache(&format!("{kind} {name} {layer}"), dims))
        };
        (0..decoder.layers).map(of_layer).collect()
    };
    let cross = caches("cross", &[batch, frame_tokens, decoder.width]);
    let own = caches("caption", &[rows, longest, decoder.width]);
    g.forward_program(CAPTION_START, |g| {
        decoder::start(g, decoder, clips.frame_tokens, &cross);
    });
    g.forward_program(NEXT_TOKEN, |g| {
        let token = TokenInputs {
            ids_r: g.input("ids", &[rows], DType::I64),
            position_1: g.input("position", &[1], DType::I64),
            ancestors_rl: g.input("ancestors", &[rows, longest], DType::I64),
            beams,
        };
        let caches = DecodingCaches {
            words: &own,
            frames: &cross,
            frame_token_counts: clips.frame_counts.map(|counts| counts.tokens),
        };
        let logits = decoder::next(g, decoder, &token, &caches);
        let Some(count) = generation.candidates(tokens) else {
            let all = g.output("logits", &[rows, decoder.vocab_size]);
            g.push_new(AddInto {}, vec![logits], &[all]);
            return;
        };
        let count = count.min(decoder.vocab_size);
        // At least 1, because an operand cannot be empty.
        let width = generation.banned_width(tokens).max(1);
        let banned = g.input("banned", &[rows, width], DType::I64);
        // Consecutive, so that one read returns all.
        let best = g.output("best", &[rows * (2 * count + 1)]);
        let values = g.rows(best, 0, rows * count);
        let values = g.reshape(values, &[rows, count]);
        let ids = g.rows(best, rows * count, rows * count);
        let ids = g.reshape(ids, &[rows, count]);
        let sums = g.rows(best, 2 * rows * count, rows);
        g.top_tokens_into("next token", logits, banned, [values, ids, sums]);
    });
}
