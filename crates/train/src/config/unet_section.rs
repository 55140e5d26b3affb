//! The `unet:` section: overrides of the preset that `model:` names.

use std::path::Path;

use holdall_graph::ops::normalize_pixels::PixelDepth;
use holdall_models::unet::config::{Norm, PictureInput, UnetConfig, UnetKind};
use holdall_models::unet::config_json::{
    ACTIVATIONS, DOWNS, KINDS, NO_BATCH_NORM, UPS, meaning, words,
};
use serde::{Deserialize, Serialize};

use super::{Wrong, check};
use crate::error::{TrainError, without_hint};

/// Overrides of a U-Net preset; the keys are those of a U-Net's config.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UnetSection {
    /// `plain`, or `residual-encoder`.
    pub kind: Option<String>,
    /// Channels of each stage, from the full resolution down.
    pub channels: Option<Vec<usize>>,
    /// Convolutions, or residual blocks, per encoder stage.
    pub encoder_blocks: Option<Vec<usize>>,
    /// Convolutions per decoder stage.
    pub decoder_blocks: Option<usize>,
    /// `group`, or `instance`.
    pub norm: Option<String>,
    /// Groups of a group norm.
    pub groups: Option<usize>,
    /// `relu`, `leaky-relu` or `gelu`.
    pub activation: Option<String>,
    /// `transposed`, `nearest` or `bilinear`.
    pub upsampling: Option<String>,
    /// `max-pool`, or `strided`.
    pub downsampling: Option<String>,
    /// Whether coarser decoder stages have losses of their own.
    pub deep_supervision: Option<bool>,
    /// Channels of a picture; by default those of the data.
    pub input_channels: Option<usize>,
    /// Bits per channel value, 8 or 16; by default those of the data.
    pub bits: Option<usize>,
    /// Mean per channel, subtracted after values are scaled to 0 to 1.
    pub mean: Option<Vec<f64>>,
    /// Standard deviation per channel, the divisor.
    pub std: Option<Vec<f64>>,
}

/// Default number of groups of a group norm.
const USUAL_GROUPS: usize = 8;

impl UnetSection {
    /// Checks each value on its own.
    pub(crate) fn check_values(&self) -> Result<(), Wrong> {
        let is_norm = |norm: &str| ["group", "instance"].contains(&norm);
        let norm = self.norm.as_deref().unwrap_or("group");
        let hint =
            "`unet: {norm: group, groups: 8}`, or `norm: instance`; both are exact under any split";
        check(is_norm(norm), "unet.norm", norm, NO_BATCH_NORM, hint)?;
        check(
            self.norm.as_deref() != Some("instance") || self.groups.is_none(),
            "unet.groups",
            "groups with `norm: instance`",
            "none: instance norm has a group for each channel",
            "`unet: {norm: group, groups: 8}`, or leave `groups` out",
        )?;
        let bits = self.bits.unwrap_or(8);
        let hint = "`unet: {bits: 16}`";
        check([8, 16].contains(&bits), "unet.bits", bits, "8 or 16", hint)?;
        word("unet.kind", &self.kind, KINDS, "`unet: {kind: plain}`")?;
        let hint = "`unet: {activation: relu}`";
        word("unet.activation", &self.activation, ACTIVATIONS, hint)?;
        let hint = "`unet: {upsampling: transposed}`";
        word("unet.upsampling", &self.upsampling, UPS, hint)?;
        let hint = "`unet: {downsampling: max-pool}`";
        word("unet.downsampling", &self.downsampling, DOWNS, hint)
    }

    /// Whether the preset is unchanged.
    pub fn is_empty(&self) -> bool {
        *self == UnetSection::default()
    }

    /// Applies the overrides to a preset and checks the result.
    pub fn apply(&self, preset: UnetConfig) -> Result<UnetConfig, TrainError> {
        let mut config = preset;
        let copy = |to: &mut Vec<usize>, from: &Option<Vec<usize>>| {
            if let Some(numbers) = from {
                to.clone_from(numbers);
            }
        };
        let kind = meant(&self.kind, KINDS).unwrap_or(config.kind);
        let is_other_kind = std::mem::replace(&mut config.kind, kind) != kind;
        copy(&mut config.channels, &self.channels);
        if is_other_kind || config.encoder_blocks.len() != config.channels.len() {
            config.encoder_blocks = usual_blocks(kind, config.channels.len());
        }
        copy(&mut config.encoder_blocks, &self.encoder_blocks);
        config.decoder_blocks = self.decoder_blocks.unwrap_or(config.decoder_blocks);
        config.norm = match (self.norm.as_deref(), self.groups, config.norm) {
            (Some("instance"), _, _) => Norm::Instance,
            (Some(_), None, Norm::Instance) => Norm::Group {
                groups: USUAL_GROUPS,
            },
            (_, Some(groups), _) => Norm::Group { groups },
            (_, None, norm) => norm,
        };
        config.activation = meant(&self.activation, ACTIVATIONS).unwrap_or(config.activation);
        config.up = meant(&self.upsampling, UPS).unwrap_or(config.up);
        config.down = meant(&self.downsampling, DOWNS).unwrap_or(config.down);
        config.deep_supervision = self.deep_supervision.unwrap_or(config.deep_supervision);
        if config.deep_supervision && config.num_heads() == 1 {
            // Without an extra head the setting of a preset is dropped, while that of the user is an error.
            config.deep_supervision = false;
            if self.deep_supervision.is_some() {
                return Err(TrainError::Config(format!(
                    "unet.deep_supervision: true, expected four stages or more: all decoder stages but the coarsest have a head, \
                     and {} stages leave one\n\
                     hint: `unet: {{channels: [32, 64, 128, 256], deep_supervision: true}}`, or leave it out",
                    config.num_stages()
                )));
            }
        }
        let channels = self.input_channels.unwrap_or(config.input.channels);
        let depth = match self.bits {
            Some(16) => PixelDepth::Sixteen,
            Some(_) => PixelDepth::Eight,
            None => config.input.depth,
        };
        if (channels, depth) != (config.input.channels, config.input.depth) {
            config.input = PictureInput::of(channels, depth);
        }
        for (to, from) in [
            (&mut config.input.mean, &self.mean),
            (&mut config.input.std, &self.std),
        ] {
            if let Some(numbers) = from {
                to.clone_from(numbers);
            }
        }
        config.validate(Path::new("unet")).map_err(|wrong| {
            TrainError::Config(format!(
                "{}\nhint: `unet: {{channels: [64, 128, 256], encoder_blocks: [2, 2, 2], groups: 8}}`",
                without_hint(&wrong)
            ))
        })?;
        Ok(config)
    }
}

/// Default block counts: two convolutions per stage; residual blocks as in nnU-Net.
fn usual_blocks(kind: UnetKind, stages: usize) -> Vec<usize> {
    match kind {
        UnetKind::Plain => vec![2; stages],
        UnetKind::ResidualEncoder => [1, 3, 4]
            .into_iter()
            .chain(std::iter::repeat(6))
            .take(stages)
            .collect(),
    }
}

fn meant<T: Copy>(written: &Option<String>, known: &'static [(&'static str, T)]) -> Option<T> {
    meaning(known, written.as_deref()?)
}

fn word<T: Copy>(
    path: &str,
    written: &Option<String>,
    known: &'static [(&'static str, T)],
    hint: &'static str,
) -> Result<(), Wrong> {
    let Some(written) = written.as_deref() else {
        return Ok(());
    };
    let is_known = meaning(known, written).is_some();
    check(is_known, path, written, &words(known), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_supervision_needs_stages_for_more_than_one_head() {
        let section = |deep_supervision, stages: usize| UnetSection {
            channels: Some(vec![16; stages]),
            deep_supervision,
            ..UnetSection::default()
        };
        let preset = || UnetConfig::preset("nnunet").expect("listed");
        let error = section(Some(true), 3)
            .apply(preset())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("unet.deep_supervision: true, expected four stages or more")
                && error.contains("\nhint: "),
            "{error}"
        );
        let four = section(Some(true), 4).apply(preset()).expect("two heads");
        assert_eq!((four.deep_supervision, four.num_heads()), (true, 2));
        let three = section(None, 3).apply(preset()).expect("one head");
        assert_eq!((three.deep_supervision, three.num_heads()), (false, 1));
    }

    #[test]
    fn groups_of_an_instance_norm_are_refused() {
        let section = UnetSection {
            norm: Some("instance".to_owned()),
            groups: Some(4),
            ..UnetSection::default()
        };
        assert!(section.check_values().is_err());
    }
}
