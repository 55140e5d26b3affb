//! Presets: the sizes of OpenAI's released models, and a small one.

use super::config::{Activation, ClipConfig, Normalization, TextConfig, TextPooling, VisionConfig};

/// Normalisation of pictures for OpenAI's models.
pub const NORMALIZATION: Normalization = Normalization {
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
};

impl ClipConfig {
    /// Names that [`ClipConfig::preset`] accepts.
    pub const PRESETS: &'static [&'static str] = &[
        "openai/clip-vit-base-patch32",
        "openai/clip-vit-base-patch16",
        "openai/clip-vit-large-patch14",
        "openai/clip-vit-large-patch14-336",
        "small",
    ];

    /// A preset's configuration, for models that start from random weights.
    pub fn preset(name: &str) -> Option<ClipConfig> {
        match name {
            "openai/clip-vit-base-patch32" => Some(base(32)),
            "openai/clip-vit-base-patch16" => Some(base(16)),
            "openai/clip-vit-large-patch14" => Some(large(224)),
            "openai/clip-vit-large-patch14-336" => Some(large(336)),
            "small" => Some(small()),
            _ => None,
        }
    }
}

/// Also transformers' defaults, at patches of 32.
pub(super) fn base(patch_size: usize) -> ClipConfig {
    ClipConfig {
        text: TextConfig {
            hidden_size: 512,
            intermediate_size: 2048,
            num_layers: 12,
            num_heads: 8,
            vocab_size: 49408,
            max_positions: 77,
            activation: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            pooling: TextPooling::HighestId,
        },
        vision: VisionConfig {
            hidden_size: 768,
            intermediate_size: 3072,
            num_layers: 12,
            num_heads: 12,
            image_size: 224,
            patch_size,
            num_channels: 3,
            activation: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            normalization: NORMALIZATION,
        },
        projection_dim: 512,
        logit_scale_init: 2.6592,
    }
}

fn large(image_size: usize) -> ClipConfig {
    let base = base(14);
    ClipConfig {
        text: TextConfig {
            hidden_size: 768,
            intermediate_size: 3072,
            num_heads: 12,
            ..base.text
        },
        vision: VisionConfig {
            hidden_size: 1024,
            intermediate_size: 4096,
            num_layers: 24,
            num_heads: 16,
            image_size,
            ..base.vision
        },
        projection_dim: 768,
        ..base
    }
}

/// Trains on a laptop's processor in minutes: for tests, examples and first tries.
fn small() -> ClipConfig {
    let base = base(8);
    ClipConfig {
        text: TextConfig {
            hidden_size: 128,
            intermediate_size: 512,
            num_layers: 4,
            num_heads: 4,
            vocab_size: 1024,
            max_positions: 32,
            pooling: TextPooling::FirstEos(1023),
            ..base.text
        },
        vision: VisionConfig {
            hidden_size: 128,
            intermediate_size: 512,
            num_layers: 4,
            num_heads: 4,
            image_size: 64,
            ..base.vision
        },
        projection_dim: 128,
        ..base
    }
}
