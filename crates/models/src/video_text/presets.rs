//! Presets of video-text models with random weights.

use super::config::{DecoderConfig, TemporalInput, VideoTextConfig};
use crate::clip::config::{ClipConfig, TextConfig, TextPooling, VisionConfig};

impl VideoTextConfig {
    /// Names that [`VideoTextConfig::preset`] accepts.
    pub const PRESETS: &'static [&'static str] =
        &["video-text", "video-text-small", "video-text-demo"];

    pub fn preset(name: &str) -> Option<VideoTextConfig> {
        match name {
            "video-text" => base(),
            "video-text-small" => small(),
            "video-text-demo" => demo(),
            _ => None,
        }
    }
}

/// ViT-B/32 over 8 frames, four temporal layers, a decoder of 6 layers.
fn base() -> Option<VideoTextConfig> {
    let clip = ClipConfig::preset("openai/clip-vit-base-patch32")?;
    let vocab_size = clip.text.vocab_size;
    Some(with_decoder(
        VideoTextConfig::of_clip(&clip, 8),
        4,
        DecoderConfig::new(vocab_size, 64, [49406, 49407, 49407]),
    ))
}

/// Trains on a laptop's processor: for tests and first tries.
fn small() -> Option<VideoTextConfig> {
    let clip = ClipConfig::preset("small")?;
    let decoder = DecoderConfig {
        layers: 2,
        width: 128,
        heads: 4,
        inner: 256,
        ..DecoderConfig::new(clip.text.vocab_size, 24, [1022, 1023, 0])
    };
    Some(with_decoder(VideoTextConfig::of_clip(&clip, 4), 4, decoder))
}

/// Learns which shape moves where in minutes on two cores: four small frames, and positions that are large enough to matter from the
/// first step on.
fn demo() -> Option<VideoTextConfig> {
    let small = ClipConfig::preset("small")?;
    let clip = ClipConfig {
        text: TextConfig {
            hidden_size: 96,
            intermediate_size: 384,
            num_layers: 2,
            num_heads: 3,
            vocab_size: 640,
            max_positions: 32,
            pooling: TextPooling::FirstEos(639),
            ..small.text
        },
        vision: VisionConfig {
            hidden_size: 96,
            intermediate_size: 384,
            num_layers: 2,
            num_heads: 3,
            image_size: 32,
            patch_size: 8,
            ..small.vision
        },
        projection_dim: 96,
        ..small
    };
    let decoder = DecoderConfig {
        layers: 2,
        width: 96,
        heads: 3,
        inner: 192,
        ..DecoderConfig::new(640, 32, [638, 639, 0])
    };
    let ordered = VideoTextConfig {
        frame_positions: true,
        position_spread: Some(1.0),
        ..VideoTextConfig::of_clip(&clip, 4)
    };
    Some(with_decoder(ordered, 2, decoder))
}

fn with_decoder(
    config: VideoTextConfig,
    temporal_layers: usize,
    decoder: DecoderConfig,
) -> VideoTextConfig {
    VideoTextConfig {
        pooling: config.temporal(temporal_layers, TemporalInput::Hidden),
        decoder: Some(decoder),
        ..config
    }
}
