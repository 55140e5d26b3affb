//! config.json of a U-Net: `"model_type": "holdall-unet"`. docs/scripts/unet.py reads the same keys.

use serde_json::{Value, json};

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::normalize_pixels::PixelDepth;

use super::config::{Down, Norm, PictureInput, UnetConfig, UnetKind, Up};
use crate::config_json::Section;
use crate::error::ModelError;

/// Words of config.json and of a run's config, with their meanings.
pub type Words<T> = &'static [(&'static str, T)];

/// Words for the kind of encoder.
pub const KINDS: Words<UnetKind> = &[
    ("plain", UnetKind::Plain),
    ("residual-encoder", UnetKind::ResidualEncoder),
];
/// Words for activation functions.
pub const ACTIVATIONS: Words<Activation> = &[
    ("relu", Activation::Relu),
    ("leaky-relu", Activation::LeakyRelu),
    ("gelu", Activation::Gelu),
];
/// Words for upsampling.
pub const UPS: Words<Up> = &[
    ("transposed", Up::Transposed),
    ("nearest", Up::Nearest),
    ("bilinear", Up::Bilinear),
];
/// Words for downsampling.
pub const DOWNS: Words<Down> = &[("max-pool", Down::MaxPool), ("strided", Down::Strided)];

/// Message where a batch norm is configured.
pub const NO_BATCH_NORM: &str = "group or instance: a batch norm's statistics depend on how the batch is split, so no split of it is exact";

fn word<T: PartialEq>(words: Words<T>, meaning: &T) -> &'static str {
    let found = words.iter().find(|(_, known)| known == meaning);
    found.map_or("", |(word, _)| word)
}

/// Meaning of a word, if it is known.
pub fn meaning<T: Copy>(words: Words<T>, written: &str) -> Option<T> {
    let found = words.iter().find(|(word, _)| *word == written);
    found.map(|&(_, meaning)| meaning)
}

/// All words, for a message.
pub fn words<T>(words: Words<T>) -> String {
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    words.join(", ")
}

impl UnetConfig {
    pub(crate) fn read(top: &Section<'_>) -> Result<UnetConfig, ModelError> {
        let channels = numbers(top, "channels", whole)?.unwrap_or_default();
        let stages = channels.len();
        let num_input_channels = top.size("input_channels", 3)?;
        let depth = match top.size("bits", 8)? {
            8 => PixelDepth::Eight,
            16 => PixelDepth::Sixteen,
            bits => return Err(top.wrong("bits", "8 or 16", &json!(bits))),
        };
        // A larger count would only fill the memory with defaults.
        if num_input_channels > crate::size_checks::LARGEST_SIZE {
            let found = json!(num_input_channels);
            return Err(top.wrong("input_channels", "channels of a picture", &found));
        }
        let mut input = PictureInput::of(num_input_channels, depth);
        if let Some(mean) = numbers(top, "mean", Value::as_f64)? {
            input.mean = mean;
        }
        if let Some(std) = numbers(top, "std", Value::as_f64)? {
            input.std = std;
        }
        let norm = match top.get("norm").and_then(Value::as_str) {
            Some("group") => Norm::Group {
                groups: top.size("groups", 8)?,
            },
            Some("instance") => Norm::Instance,
            _ => {
                let found = top.get("norm").unwrap_or(&Value::Null);
                return Err(top.wrong("norm", NO_BATCH_NORM, found));
            }
        };
        let config = UnetConfig {
            kind: choice(top, "kind", KINDS)?,
            input,
            encoder_blocks: numbers(top, "encoder_blocks", whole)?.unwrap_or(vec![2; stages]),
            channels,
            decoder_blocks: top.size("decoder_blocks", 2)?,
            norm,
            norm_eps: top.number("norm_eps", 1e-5)?,
            activation: choice(top, "activation", ACTIVATIONS)?,
            up: choice(top, "upsampling", UPS)?,
            down: choice(top, "downsampling", DOWNS)?,
            deep_supervision: top.flag("deep_supervision", false)?,
            classes: names(top, "classes")?,
            image_size: image_size(top)?,
            patch: match top.get("patch") {
                None | Some(Value::Null) => None,
                Some(_) => Some(top.size("patch", 0)?),
            },
            threshold: top.number("threshold", 0.5)?,
        };
        config.validate(top.file)?;
        Ok(config)
    }

    pub fn to_json(&self) -> String {
        let bits = match self.input.depth {
            PixelDepth::Eight => 8,
            PixelDepth::Sixteen => 16,
        };
        let (norm, groups) = match self.norm {
            Norm::Group { groups } => ("group", json!(groups)),
            Norm::Instance => ("instance", Value::Null),
        };
        let value = json!({
            "architectures": [super::ARCHITECTURE],
            "model_type": super::MODEL_TYPE,
            "dtype": "float32",
            "kind": word(KINDS, &self.kind),
            "input_channels": self.input.channels,
            "bits": bits,
            "mean": self.input.mean,
            "std": self.input.std,
            "channels": self.channels,
            "encoder_blocks": self.encoder_blocks,
            "decoder_blocks": self.decoder_blocks,
            "norm": norm,
            "groups": groups,
            "norm_eps": self.norm_eps,
            "activation": word(ACTIVATIONS, &self.activation),
            "upsampling": word(UPS, &self.up),
            "downsampling": word(DOWNS, &self.down),
            "deep_supervision": self.deep_supervision,
            "classes": self.classes,
            "image_size": self.image_size,
            "patch": self.patch,
            "threshold": self.threshold,
        });
        format!("{value:#}\n")
    }
}

fn choice<T: Copy>(top: &Section<'_>, key: &str, known: Words<T>) -> Result<T, ModelError> {
    let found = top.get(key).unwrap_or(&Value::Null);
    let meant = known.iter().find(|(word, _)| found == word);
    meant
        .map(|&(_, meaning)| meaning)
        .ok_or_else(|| top.wrong(key, &format!("one of {}", words(known)), found))
}

fn whole(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn numbers<T>(
    top: &Section<'_>,
    key: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, ModelError> {
    let Some(value) = top.get(key) else {
        return Ok(None);
    };
    let list = value.as_array();
    let numbers = list.and_then(|list| list.iter().map(read).collect());
    match numbers {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(top.wrong(key, "a list of numbers", value)),
    }
}

fn names(top: &Section<'_>, key: &str) -> Result<Vec<String>, ModelError> {
    let value = top.get(key).unwrap_or(&Value::Null);
    let list = value.as_array();
    let names = list.and_then(|list| {
        let names = list.iter().map(|name| Some(name.as_str()?.to_owned()));
        names.collect::<Option<Vec<String>>>()
    });
    names.ok_or_else(|| top.wrong(key, "a list of names", value))
}

fn image_size(top: &Section<'_>) -> Result<Option<[usize; 2]>, ModelError> {
    match top.get("image_size") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let sides = numbers(top, "image_size", whole)?.unwrap_or_default();
            match sides[..] {
                [height, width] => Ok(Some([height, width])),
                _ => Err(top.wrong("image_size", "[height, width], or null", value)),
            }
        }
    }
}
