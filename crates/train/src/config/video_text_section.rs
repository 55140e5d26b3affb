//! The `video_text:` section: overrides of the model that `model:` names, and the treatment of clips with equal texts.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{Wrong, check};

/// Overrides of a video-text model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VideoTextSection {
    /// A BERT that replaces the text tower: a folder, or a name in the local Hugging Face cache.
    pub text_model: Option<String>,
    /// Pooling of frame features into one clip feature.
    pub pooling: Option<PoolingName>,
    /// Layers of the temporal transformer.
    pub temporal_layers: Option<usize>,
    /// Learned queries of attention pooling.
    pub queries: Option<usize>,
    /// The caption decoder.
    pub decoder: DecoderChoice,
    /// The decoder's tokenizer, a folder or a `tokenizer.json`; by default the text tower's.
    pub tokenizer: Option<String>,
    /// Treatment of clips with equal texts in the contrastive loss.
    pub same_text: SameText,
    /// Outputs of a frozen vision tower that are computed once, before the first step.
    pub cache: FrameCacheChoice,
    /// Folder of those outputs; beside the data by default.
    pub cache_folder: Option<PathBuf>,
}

/// Outputs of a frozen vision tower that are computed once and stored on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameCacheChoice {
    /// Nothing: the vision tower runs in every step.
    #[default]
    None,
    /// All frame features that the model reads.
    Features,
    /// The class token of each frame, for models that read no other token.
    ClassTokens,
}

/// Pooling of frame features into one clip feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolingName {
    /// Mean of the frame features.
    Mean,
    /// A transformer over the frames, then the mean.
    Temporal,
    /// Learned queries over all tokens of all frames.
    Attention,
}

/// Treatment of clips with equal texts in the contrastive loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SameText {
    /// Negatives, like any other two clips.
    #[default]
    Negative,
    /// Positives, with the same weight as the clip itself.
    Positive,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DecoderChoice {
    /// No decoder and no captions, only retrieval.
    None,
    /// Overrides of the model's decoder, or of the default decoder.
    Sizes(DecoderSection),
}

impl Default for DecoderChoice {
    fn default() -> DecoderChoice {
        DecoderChoice::Sizes(DecoderSection::default())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecoderSection {
    /// Number of layers; 6 by default.
    pub layers: Option<usize>,
    /// Width; 512 by default.
    pub width: Option<usize>,
    /// Attention heads; 8 by default.
    pub heads: Option<usize>,
    /// Inner width of the feed-forward layers; 1,024 by default.
    pub inner: Option<usize>,
    /// Whether the output layer shares the token embedding.
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
    /// Whether the model is unchanged.
    pub fn is_empty(&self) -> bool {
        *self == VideoTextSection::default()
    }

    /// Checks each value on its own.
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
