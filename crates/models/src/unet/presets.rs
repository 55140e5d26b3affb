//! Presets of U-Nets: common sizes, and a small one.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::normalize_pixels::PixelDepth;

use super::config::{Down, Norm, PictureInput, UnetConfig, UnetKind, Up};
use crate::vit::presets::IMAGENET;

impl UnetConfig {
    /// Names that [`UnetConfig::preset`] accepts.
    pub const PRESETS: &'static [&'static str] =
        &["unet", "unet-small", "unet-demo", "nnunet", "nnunet-resenc"];

    /// A preset for one class in pictures of three channels.
    pub fn preset(name: &str) -> Option<UnetConfig> {
        Some(match name {
            "unet" => plain(&[64, 128, 256, 512, 1024], 1024),
            "unet-small" => plain(&[16, 32, 64, 128], 256),
            "unet-demo" => plain(&[16, 32, 64], 128),
            "nnunet" => nnunet(UnetKind::Plain),
            "nnunet-resenc" => nnunet(UnetKind::ResidualEncoder),
            _ => return None,
        })
    }
}

impl PictureInput {
    /// ImageNet's mean and standard deviation for three channels of a byte; otherwise a range of -1 to 1.
    pub fn of(channels: usize, depth: PixelDepth) -> PictureInput {
        let of_imagenet = channels == 3 && depth == PixelDepth::Eight;
        let (mean, std) = if of_imagenet {
            (
                IMAGENET.mean.map(f64::from).to_vec(),
                IMAGENET.std.map(f64::from).to_vec(),
            )
        } else {
            (vec![0.5; channels], vec![0.5; channels])
        };
        PictureInput {
            channels,
            depth,
            mean,
            std,
        }
    }
}

fn plain(channels: &[usize], image_size: usize) -> UnetConfig {
    UnetConfig {
        kind: UnetKind::Plain,
        input: PictureInput::of(3, PixelDepth::Eight),
        channels: channels.to_vec(),
        encoder_blocks: vec![2; channels.len()],
        decoder_blocks: 2,
        norm: Norm::Group { groups: 8 },
        norm_eps: 1e-5,
        activation: Activation::Relu,
        up: Up::Transposed,
        down: Down::MaxPool,
        deep_supervision: false,
        classes: vec!["foreground".to_owned()],
        image_size: Some([image_size; 2]),
        patch: None,
        threshold: 0.5,
    }
}

/// nnU-Net's plan for pictures of 512 pixels: 32 channels, doubled up to 512, until a side of 4 is left.
fn nnunet(kind: UnetKind) -> UnetConfig {
    let channels = [32, 64, 128, 256, 512, 512, 512, 512];
    let (encoder_blocks, decoder_blocks) = match kind {
        UnetKind::Plain => (vec![2; channels.len()], 2),
        UnetKind::ResidualEncoder => (vec![1, 3, 4, 6, 6, 6, 6, 6], 1),
    };
    UnetConfig {
        kind,
        encoder_blocks,
        decoder_blocks,
        norm: Norm::Instance,
        activation: Activation::LeakyRelu,
        down: Down::Strided,
        deep_supervision: true,
        ..plain(&channels, 512)
    }
}
