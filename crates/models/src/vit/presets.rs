//! Presets of backbones with random weights: the sizes of released models, and a small one.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::patchify::Normalization;

use crate::clip;

use super::config::{Family, VisionConfig, VisionTransformerConfig};

/// Bytes to -1..1: normalisation of Google's ViT.
pub(crate) const HALVES: Normalization = Normalization {
    mean: [0.5; 3],
    std: [0.5; 3],
};

/// Mean and standard deviation of ImageNet: normalisation of DeiT and DINOv2.
pub(crate) const IMAGENET: Normalization = Normalization {
    mean: [0.485, 0.456, 0.406],
    std: [0.229, 0.224, 0.225],
};

impl VisionTransformerConfig {
    /// Names that [`VisionTransformerConfig::preset`] accepts.
    pub const PRESETS: &'static [&'static str] = &[
        "vit-demo",
        "vit-tiny-patch16-224",
        "vit-small-patch16-224",
        "google/vit-base-patch16-224",
        "vit-base-patch32-224",
        "google/vit-large-patch16-224",
        "facebook/deit-tiny-distilled-patch16-224",
        "facebook/deit-small-distilled-patch16-224",
        "facebook/deit-base-distilled-patch16-224",
        "dinov2-small-patch14-224",
        "dinov2-base-patch14-224",
        "dinov2-large-patch14-224",
    ];

    /// A preset's configuration; the owner's name may be left out.
    pub fn preset(name: &str) -> Option<VisionTransformerConfig> {
        let of_owner = |listed: &str| listed.split_once('/').is_some_and(|(_, own)| own == name);
        let mut presets = VisionTransformerConfig::PRESETS.iter();
        let name = *presets.find(|&&listed| listed == name || of_owner(listed))?;
        let base = defaults(Family::Vit);
        let of_width = |family, width| of_width(defaults(family), width);
        Some(match name {
            "vit-demo" => demo(),
            "vit-tiny-patch16-224" => of_width(Family::Vit, 192),
            "vit-small-patch16-224" => of_width(Family::Vit, 384),
            "google/vit-base-patch16-224" => base,
            "vit-base-patch32-224" => VisionTransformerConfig {
                vision: VisionConfig {
                    patch_size: 32,
                    ..base.vision
                },
                ..base
            },
            "google/vit-large-patch16-224" => large(base),
            "facebook/deit-tiny-distilled-patch16-224" => of_width(Family::Deit, 192),
            "facebook/deit-small-distilled-patch16-224" => of_width(Family::Deit, 384),
            "facebook/deit-base-distilled-patch16-224" => defaults(Family::Deit),
            "dinov2-small-patch14-224" => of_width(Family::Dinov2, 384),
            "dinov2-base-patch14-224" => defaults(Family::Dinov2),
            "dinov2-large-patch14-224" => large(defaults(Family::Dinov2)),
            _ => return None,
        })
    }
}

/// Transformers' defaults: the base model of each family.
pub(crate) fn defaults(family: Family) -> VisionTransformerConfig {
    let (patch_size, layer_norm_eps, normalization) = match family {
        Family::Vit => (16, 1e-12, HALVES),
        Family::Deit => (16, 1e-12, IMAGENET),
        Family::Dinov2 => (14, 1e-6, IMAGENET),
        Family::Clip => (32, 1e-5, clip::NORMALIZATION),
    };
    let activation = match family {
        Family::Clip => Activation::QuickGelu,
        Family::Vit | Family::Deit | Family::Dinov2 => Activation::Gelu,
    };
    VisionTransformerConfig {
        family,
        vision: VisionConfig {
            hidden_size: 768,
            intermediate_size: 3072,
            num_layers: 12,
            num_heads: 12,
            image_size: 224,
            patch_size,
            num_channels: 3,
            activation,
            layer_norm_eps,
            normalization,
        },
        qkv_bias: true,
        layer_scale_init: 1.0,
    }
}

/// The config with another width, heads of 64 and an MLP four times as wide.
fn of_width(config: VisionTransformerConfig, width: usize) -> VisionTransformerConfig {
    VisionTransformerConfig {
        vision: VisionConfig {
            hidden_size: width,
            intermediate_size: 4 * width,
            num_heads: width / 64,
            ..config.vision
        },
        ..config
    }
}

fn large(config: VisionTransformerConfig) -> VisionTransformerConfig {
    let config = of_width(config, 1024);
    VisionTransformerConfig {
        vision: VisionConfig {
            num_layers: 24,
            ..config.vision
        },
        ..config
    }
}

/// Trains on a laptop's processor in a minute or two: for tests, examples and first tries.
fn demo() -> VisionTransformerConfig {
    let config = of_width(defaults(Family::Vit), 128);
    VisionTransformerConfig {
        vision: VisionConfig {
            num_layers: 4,
            num_heads: 4,
            image_size: 64,
            patch_size: 8,
            layer_norm_eps: 1e-6,
            ..config.vision
        },
        ..config
    }
}
