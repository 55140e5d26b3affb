//! The `video_text:` section: what differs from the model that `model:` names, and how clips with equal texts count.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{Wrong, check};

/// What a model of clips and texts is made of; what is left out is as the model has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VideoTextSection {
    /// A BERT that takes the place of the text tower: a folder, or a name in the local Hugging Face cache.
    pub text_model: Option<String>,
    /// How frames become one feature.
    pub pooling: Option<PoolingName>,
    /// Layers of the transformer over frames.
    pub temporal_layers: Option<usize>,
    /// Learned queries of attention pooling.
    pub queries: Option<usize>,
    /// What writes captions.
    pub decoder: DecoderChoice,
    /// The decoder's tokenizer, a folder or a `tokenizer.json`; the text tower's by default.
    pub tokenizer: Option<String>,
    /// What clips with equal texts are to each other.
    pub same_text: SameText,
    /// What a frozen vision tower computes once, before the first step.
    pub cache: FrameCacheChoice,
    /// Where that is kept; beside the data by default.
    pub cache_folder: Option<PathBuf>,
}

/// What a frozen vision tower computes once and leaves on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameCacheChoice {
    /// Nothing: it runs in every step.
    #[default]
    None,
    /// All that the model reads of each frame.
    Features,
    /// The class token of each frame, for models that read no other.
    ClassTokens,
}

/// How frames become one feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolingName {
    /// The mean of the frames' features.
    Mean,
    /// A transformer over the frames, then the mean.
    Temporal,
    /// Learned queries over all tokens of all frames.
    Attention,
}

/// What clips with equal texts are to each other in the contrastive loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SameText {
    /// Negatives, as any other two clips.
    #[default]
    Negative,
    /// Positives: each of them is as right as the clip itself.
    Positive,
}

/// A decoder's sizes, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum DecoderChoice {
    /// No captions: retrieval alone.
    None,
    /// What differs from the model's decoder, or from the usual one.
    Sizes(DecoderSection),
}

impl Default for DecoderChoice {
    fn default() -> DecoderChoice {
        DecoderChoice::Sizes(DecoderSection::default())
    }
}

/// The `decoder:` section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecoderSection {
    /// Layers; 6 by default.
    pub layers: Option<usize>,
    /// Width; 512 by default.
    pub width: Option<usize>,
    /// Heads of its attention; 8 by default.
    pub heads: Option<usize>,
    /// Width of what lies between its linear layers; 1,024 by default.
    pub inner: Option<usize>,
    /// Whether its head is its table of words.
    pub tied: Option<bool>,
    /// Tokens of the longest caption, the end token included.
    pub tokens: Option<usize>,
}

impl Serialize for DecoderChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            DecoderChoice::None => serializer.serialize_str("none"),
            DecoderChoice::Sizes(sizes) => sizes.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DecoderChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DecoderChoice, D::Error> {
        struct ChoiceVisitor;

        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = DecoderChoice;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("none, or sizes such as {layers: 6, width: 512, heads: 8}")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<DecoderChoice, E> {
                match word {
                    "none" => Ok(DecoderChoice::None),
                    _ => Err(E::custom(format!(
                        "`{word}`, expected none, or sizes such as {{layers: 6, width: 512, heads: 8}}"
                    ))),
                }
            }

            fn visit_unit<E: de::Error>(self) -> Result<DecoderChoice, E> {
                Ok(DecoderChoice::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DecoderChoice, A::Error> {
                let sizes = DecoderSection::deserialize(MapAccessDeserializer::new(map))?;
                Ok(DecoderChoice::Sizes(sizes))
            }
        }

        deserializer.deserialize_any(ChoiceVisitor)
    }
}

impl VideoTextSection {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == VideoTextSection::default()
    }

    /// Each value on its own.
    pub(crate) fn check_values(&self) -> Result<(), Wrong> {
        let positive = |path: &str, number: Option<usize>, hint: &'static str| {
            let most = 1 << 16;
            let is_right = number.is_none_or(|number| (1..=most).contains(&number));
            let found = number.unwrap_or_default();
            check(is_right, path, found, "1 to 65,536", hint)
        };
        let hint = "`video_text: {pooling: temporal, temporal_layers: 4}`";
        positive("video_text.temporal_layers", self.temporal_layers, hint)?;
        let hint = "`video_text: {pooling: attention, queries: 64}`";
        positive("video_text.queries", self.queries, hint)?;
        let DecoderChoice::Sizes(decoder) = &self.decoder else {
            return Ok(());
        };
        let hint = "`decoder: {layers: 6, width: 512, heads: 8, inner: 1024, tokens: 64}`";
        for (key, number) in [
            ("layers", decoder.layers),
            ("width", decoder.width),
            ("heads", decoder.heads),
            ("inner", decoder.inner),
            ("tokens", decoder.tokens),
        ] {
            positive(&format!("video_text.decoder.{key}"), number, hint)?;
        }
        Ok(())
    }
}
