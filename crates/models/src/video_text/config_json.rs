//! config.json of a video-text model: `"model_type": "holdall-video-text"`. docs/scripts/video_text.py reads the same keys.

use serde_json::{Value, json};

use super::config::{
    BertConfig, DecoderConfig, Pooling, TemporalInput, TextTower, VideoTextConfig,
};
use super::{ARCHITECTURE, MODEL_TYPE};
use crate::bert;
use crate::clip::config_json::{TEXT_MODEL_TYPE, read_text, read_vision, text_to_json};
use crate::config_json::Section;
use crate::error::ModelError;

const PLACES: [(&str, TemporalInput); 2] = [
    ("hidden", TemporalInput::Hidden),
    ("projected", TemporalInput::Projected),
];

impl VideoTextConfig {
    pub(crate) fn read(top: &Section<'_>) -> Result<VideoTextConfig, ModelError> {
        let text = top.nested("text_config", "")?;
        let text = match text.get("model_type").and_then(Value::as_str) {
            Some(bert::MODEL_TYPE) => TextTower::Bert(BertConfig::read(&text)?),
            Some(TEXT_MODEL_TYPE) => TextTower::Clip(read_text(&text)?),
            _ => {
                let expected = format!("\"{TEXT_MODEL_TYPE}\" or \"{}\"", bert::MODEL_TYPE);
                let found = text.get("model_type").unwrap_or(&Value::Null);
                return Err(text.wrong("model_type", &expected, found));
            }
        };
        let decoder = top.nested("decoder_config", "")?;
        let decoder = match decoder.entries {
            Some(_) => Some(DecoderConfig::read(&decoder)?),
            None => None,
        };
        let config = VideoTextConfig {
            vision: read_vision(top)?,
            text,
            projection_dim: top.size("projection_dim", 512)?,
            num_frames: top.size("num_frames", 8)?,
            num_videos: top.size("num_videos", 1)?,
            pooling: read_pooling(&top.nested("pooling", "")?)?,
            decoder,
            frame_positions: top.flag("frame_positions", false)?,
            position_spread: match top.get("position_spread") {
                None | Some(Value::Null) => None,
                Some(_) => Some(top.number("position_spread", 0.0)?),
            },
            logit_scale_init: top.number("logit_scale_init_value", 2.6592)?,
        };
        config.validate(top.file)?;
        Ok(config)
    }

    pub fn to_json(&self) -> String {
        let mut vision = self.vision.to_json();
        vision.insert("model_type".into(), json!("clip_vision_model"));
        vision.insert("projection_dim".into(), json!(self.projection_dim));
        let text = match &self.text {
            TextTower::Clip(text) => text_to_json(text, self.projection_dim),
            TextTower::Bert(text) => Value::Object(text.to_json()),
        };
        let pooling = match self.pooling {
            Pooling::Mean => json!({"kind": "mean"}),
            Pooling::Temporal {
                layers,
                heads,
                inner,
                place,
            } => {
                let mut places = PLACES.iter();
                let place = places.find_map(|&(name, of)| (of == place).then_some(name));
                json!({"kind": "temporal", "layers": layers, "heads": heads, "inner": inner, "place": place})
            }
            Pooling::Attention { queries, heads } => {
                json!({"kind": "attention", "queries": queries, "heads": heads})
            }
        };
        let decoder = self.decoder.as_ref().map(DecoderConfig::to_json);
        let value = json!({
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "dtype": "float32",
            "projection_dim": self.projection_dim,
            "logit_scale_init_value": self.logit_scale_init,
            "num_frames": self.num_frames,
            "num_videos": self.num_videos,
            "pooling": pooling,
            "vision_config": vision,
            "text_config": text,
            "decoder_config": decoder,
            "frame_positions": self.frame_positions,
            "position_spread": self.position_spread,
        });
        format!("{value:#}\n")
    }
}

fn read_pooling(section: &Section<'_>) -> Result<Pooling, ModelError> {
    let required = |key: &str| match section.get(key) {
        Some(_) => section.size(key, 0),
        None => Err(section.wrong(key, "a whole number", &Value::Null)),
    };
    match section.get("kind").and_then(Value::as_str) {
        Some("mean") => Ok(Pooling::Mean),
        Some("temporal") => Ok(Pooling::Temporal {
            layers: required("layers")?,
            heads: required("heads")?,
            inner: required("inner")?,
            place: {
                let value = section.get("place").unwrap_or(&Value::Null);
                let known = PLACES.iter().find(|(name, _)| value == name);
                let expected = PLACES.map(|(name, _)| format!("\"{name}\"")).join(" or ");
                let wrong = || section.wrong("place", &expected, value);
                known.map(|&(_, place)| place).ok_or_else(wrong)?
            },
        }),
        Some("attention") => Ok(Pooling::Attention {
            queries: required("queries")?,
            heads: required("heads")?,
        }),
        _ => {
            let expected = "\"mean\", \"temporal\" or \"attention\"";
            let found = section.get("kind").unwrap_or(&Value::Null);
            Err(section.wrong("kind", expected, found))
        }
    }
}
