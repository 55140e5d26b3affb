//! Video-text models as graphs: clips and texts embedded in one space, and captions for clips.
//!
//! ```text
//! frames -> CLIP's vision tower, each by itself -> frame tokens (+ an embedding per video)
//!   pooled over time -> visual_projection -> unit-length features        against the text tower's: contrastive
//!   (+ frame_positions) -> frame_projection -> what the decoder attends to      captions
//! ```
//!
//! Where only class tokens are pooled and there is no decoder, the last block of the vision tower computes the class token alone.
//!
//! Legend: `b` samples, `f` frames of a clip (all videos together), `p` tokens of a frame, `s = f * p` frame tokens, `t` caption
//! tokens, `d` width.

pub mod config;
mod config_json;
pub mod init;
mod parts;
mod pooling;
mod presets;
pub mod weights;

pub use crate::clip::TextInputs;
pub use crate::decoder::{CaptionInputs, DecodingCaches, TokenInputs};
pub use crate::transformer::Regularization;
pub use parts::Submodel;

use holdall_graph::{Decay, Graph, ValueId};

use crate::clip::{LARGEST_LOGIT_SCALE, TEXT_LANE, VISION_LANE, project, write_text};
use crate::transformer::{Use, linear_parameters};
use crate::{bert, decoder, vit};
use config::{TextTower, VideoTextConfig};

pub(crate) const MODEL_TYPE: &str = "holdall-video-text";
/// Class name in docs/scripts/video_text.py.
pub(crate) const ARCHITECTURE: &str = "VideoText";

pub(crate) const VIDEO_EMBEDDING: &str = "video_embedding";
pub(crate) const FRAME_POSITIONS: &str = "frame_positions";
pub(crate) const FRAME_PROJECTION: &str = "frame_projection";

/// Valid part of each clip, where clips differ in length.
#[derive(Clone, Copy, Debug)]
pub struct FrameCounts {
    /// Number of frames, at least one, `[b]`.
    pub frames: ValueId,
    /// Number of frame tokens: frames times [`VideoTextConfig::tokens_per_frame`], `[b]`.
    pub tokens: ValueId,
}

/// Form of the input clips.
#[derive(Clone, Copy, Debug)]
pub enum Clips {
    Pixels(ValueId),
    /// Precomputed outputs of [`encode_frames`], `[b, s, d]`: the vision tower does not run.
    FrameTokens(ValueId),
}

/// Writes the video half: clips to unit-length features in `features_bp`. Returns the frame tokens for the decoder,
/// `[b, s, decoder's width]`, if the model has one.
pub fn video(
    graph: &mut Graph,
    config: &VideoTextConfig,
    clips: Clips,
    counts: Option<FrameCounts>,
    features_bp: ValueId,
) -> Option<ValueId> {
    graph.in_lane(VISION_LANE, |graph| {
        let tokens_bsd = frame_tokens(graph, config, clips);
        pooling::write(graph, config, tokens_bsd, counts, features_bp);
        let decoder = config.decoder.as_ref()?;
        let tokens_bsd = if config.frame_positions {
            add_frame_positions(graph, config, tokens_bsd)
        } else {
            tokens_bsd
        };
        let sizes = [decoder.width, config.vision.hidden_size];
        let [weight, bias] = linear_parameters(graph, FRAME_PROJECTION, sizes);
        Some(graph.linear(FRAME_PROJECTION, tokens_bsd, weight, Some(bias), None))
    })
}

/// Adds positions of frames: without them the decoder attends to an unordered set.
fn add_frame_positions(
    graph: &mut Graph,
    config: &VideoTextConfig,
    tokens_bsd: ValueId,
) -> ValueId {
    let shape = [config.frames(), config.vision.hidden_size];
    let table = graph.parameter(FRAME_POSITIONS, &shape, Decay::Yes);
    graph.add_positions(
        "frames in order",
        tokens_bsd,
        table,
        config.tokens_per_frame(),
    )
}

/// Tokens of the vision tower for each frame, plus the embedding of the frame's video, `[b, s, d]`.
fn frame_tokens(graph: &mut Graph, config: &VideoTextConfig, clips: Clips) -> ValueId {
    let x_bsd = match clips {
        Clips::Pixels(pixels) => encode_frames(graph, config, pixels),
        Clips::FrameTokens(tokens_bsd) => {
            declare_tower(graph, config);
            tokens_bsd
        }
    };
    if config.num_videos == 1 {
        return x_bsd;
    }
    let width = config.vision.hidden_size;
    let table = graph.parameter(VIDEO_EMBEDDING, &[config.num_videos, width], Decay::Yes);
    let repeat = config.num_frames * config.encoded_tokens_per_frame();
    graph.add_positions("video.tokens", x_bsd, table, repeat)
}

/// Declares the vision tower's parameters: they belong to the model, although this program does not read them.
fn declare_tower(graph: &mut Graph, config: &VideoTextConfig) {
    let tensors = config.tensors().into_iter();
    let of_tower = tensors.filter(|(name, _)| {
        name.starts_with("vision_model.") && !name.starts_with(pooling::POST_NORM)
    });
    for (name, dims) in of_tower {
        graph.parameter(&name, &dims, Decay::No);
    }
}

/// Writes the vision tower over frames `[b, f, height, width, 3]`; returns its tokens, `[b, s, d]`: all tokens, or only the class
/// token where nothing reads the others.
pub fn encode_frames(graph: &mut Graph, config: &VideoTextConfig, pixels: ValueId) -> ValueId {
    let [batch, frames, height, width, channels] = *graph.shape(pixels).dims() else {
        panic!("clips: pixels, expected [batch, frames, height, width, channels]");
    };
    assert_eq!(frames, config.frames(), "clips: frames of all videos");
    let backbone = config.backbone();
    let pictures = graph.reshape(pixels, &[batch * frames, height, width, channels]);
    let x = vit::embed(graph, &backbone, "vision", pictures);
    let usage = Use {
        one_token: (!config.reads_all_tokens()).then_some(vit::CLASS_TOKEN),
        ..Use::default()
    };
    let x = backbone.blocks().write(graph, "vision", x, &usage);
    let [_, tokens, width] = *graph.shape(x).dims() else {
        unreachable!("blocks keep three dimensions");
    };
    graph.reshape(x, &[batch, frames * tokens, width])
}

/// Writes the text half; unit-length features go to `features_bp`. Forward-only programs have no `regularization`.
pub fn text(
    graph: &mut Graph,
    config: &VideoTextConfig,
    inputs: &TextInputs,
    features_bp: ValueId,
    regularization: Option<&Regularization>,
) {
    let projection = config.projection_dim;
    graph.in_lane(TEXT_LANE, |graph| match &config.text {
        TextTower::Clip(text) => write_text(graph, text, inputs, projection, features_bp),
        TextTower::Bert(text) => {
            let class_token = bert::class_token(graph, text, inputs, regularization);
            project(
                graph,
                "text_projection",
                class_token,
                projection,
                features_bp,
            );
        }
    });
}

/// Writes the decoder over captions; returns the input of the head, `[b, t, d]`.
///
/// # Panics
/// If the model has no decoder.
pub fn caption_states(
    graph: &mut Graph,
    config: &VideoTextConfig,
    frame_tokens_bsd: ValueId,
    counts: Option<FrameCounts>,
    captions: &CaptionInputs,
) -> ValueId {
    let decoder = config.expect_decoder();
    let counts = counts.map(|counts| counts.tokens);
    graph.in_lane(VISION_LANE, |graph| {
        decoder::states(graph, decoder, frame_tokens_bsd, counts, captions)
    })
}

/// Matrix of the caption head, `[vocabulary, d]`.
///
/// # Panics
/// If the model has no decoder.
pub fn head_weight(graph: &mut Graph, config: &VideoTextConfig) -> ValueId {
    decoder::head_weight(graph, config.expect_decoder())
}

/// Declares the logarithm of the contrastive scale.
pub fn logit_scale(graph: &mut Graph) -> ValueId {
    let logit_scale = graph.parameter("logit_scale", &[], Decay::No);
    graph.configure_parameters(|parameter| {
        if parameter.name == "logit_scale" {
            parameter.maximum = Some(LARGEST_LOGIT_SCALE);
        }
    });
    logit_scale
}

#[cfg(test)]
mod tests;
