//! Reader of transformers' config.json: getters with transformers' defaults for absent keys, and errors that name file and key.

use std::path::Path;

use holdall_graph::ops::activation::Activation;
use serde_json::{Map, Value};

use crate::error::ModelError;

const ACTIVATIONS: [(&str, Activation); 2] = [
    ("quick_gelu", Activation::QuickGelu),
    ("gelu", Activation::Gelu),
];

/// Parses a file's text, which must be one object.
pub(crate) fn read_object(json: &str, file: &Path) -> Result<Map<String, Value>, ModelError> {
    let wrong = |found: String| ModelError::Json {
        file: file.into(),
        expected: "a JSON object",
        found,
    };
    match serde_json::from_str(json) {
        Ok(Value::Object(entries)) => Ok(entries),
        Ok(other) => Err(wrong(shown(&other))),
        Err(cause) => Err(wrong(cause.to_string())),
    }
}

/// One object of the file. Its getters return the default where the key is absent; `null` does not count as absent, because
/// transformers does not accept it for these keys either.
pub(crate) struct Section<'a> {
    pub file: &'a Path,
    pub name: &'static str,
    pub entries: Option<&'a Map<String, Value>>,
}

impl<'a> Section<'a> {
    /// A nested object. Files from before 2023 may repeat it under `old_name`; like transformers, that copy, completed with
    /// defaults, overrides every key of the other.
    pub fn nested(
        &self,
        name: &'static str,
        old_name: &'static str,
    ) -> Result<Section<'a>, ModelError> {
        let entry = |name| self.get(name).filter(|value| !value.is_null());
        let (name, value) = match entry(old_name) {
            Some(value) => (old_name, Some(value)),
            None => (name, entry(name)),
        };
        let entries = match value {
            None => None,
            Some(Value::Object(entries)) => Some(entries),
            Some(other) => return Err(self.wrong(name, "an object", other)),
        };
        Ok(Section {
            file: self.file,
            name,
            entries,
        })
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.entries?.get(key)
    }

    pub fn size(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.wrong(key, "a whole number", value))
    }

    pub fn token_id(&self, key: &str, default: i64) -> Result<i64, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_i64()
            .ok_or_else(|| self.wrong(key, "one token id", value))
    }

    pub fn number(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_f64()
            .ok_or_else(|| self.wrong(key, "a number", value))
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_bool()
            .ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub fn activation(&self, default: Activation) -> Result<Activation, ModelError> {
        self.activation_of("hidden_act", default)
    }

    pub fn activation_of(&self, key: &str, default: Activation) -> Result<Activation, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        let known = ACTIVATIONS.iter().find(|(name, _)| value == name);
        known
            .map(|&(_, activation)| activation)
            .ok_or_else(|| ModelError::Activation {
                file: self.file.into(),
                key: self.key(key),
                expected: ACTIVATIONS
                    .map(|(name, _)| format!("\"{name}\""))
                    .join(" or "),
                found: shown(value),
            })
    }

    /// Refuses dropout inside attention, which is not supported and would change the training.
    pub fn refuse_dropout(&self, key: &str) -> Result<(), ModelError> {
        match self.get(key) {
            Some(value) if !value.is_null() && value.as_f64() != Some(0.0) => Err(self.wrong(
                key,
                "0.0 (dropout inside attention is not supported)",
                value,
            )),
            _ => Ok(()),
        }
    }

    pub fn key(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_string()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    pub fn wrong(&self, key: &str, expected: &str, found: &Value) -> ModelError {
        ModelError::Setting {
            file: self.file.into(),
            key: self.key(key),
            expected: expected.into(),
            found: shown(found),
        }
    }
}

pub(crate) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::QuickGelu => "quick_gelu",
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
        Activation::LeakyRelu => "leaky_relu",
    }
}

/// JSON text of a value, shortened for a message.
pub(crate) fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}
