//! A low-rank adapter as peft saves it, read.

use std::fs;
use std::path::Path;

use holdall_graph::adapters::adapted_module;
use holdall_models::folder::{TensorsByName, read_tensors};
use serde_json::Value;

use crate::error::TrainError;

/// Folder name inside the model folder.
pub const ADAPTER_FOLDER: &str = "adapter";
pub(crate) const CONFIG_FILE: &str = "adapter_config.json";
pub(crate) const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// Prefix that peft puts before a model's tensor names.
pub(crate) const PREFIX: &str = "base_model.model";

/// An adapter read from disk.
pub(crate) struct SavedAdapter {
    pub rank: usize,
    pub alpha: f64,
    /// Shape and values of both matrices of every layer, under the parameter names of this crate.
    pub tensors: TensorsByName,
}

/// peft settings that change what an adapter computes and are not supported here.
const UNKNOWN_KINDS: [&str; 7] = [
    "use_dora",
    "use_rslora",
    "fan_in_fan_out",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
];

/// Reads an adapter folder that peft or a run wrote.
pub(crate) fn read(folder: &Path) -> Result<SavedAdapter, TrainError> {
    let path = folder.join(CONFIG_FILE);
    let text = fs::read_to_string(&path).map_err(|cause| {
        TrainError::Config(format!(
            "train.lora.adapter: {}: {cause}\nhint: expected a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, such as RUN/model/{ADAPTER_FOLDER}",
            path.display()
        ))
    })?;
    let refused = |found: &str| {
        TrainError::Config(format!(
            "{}: {found}\nhint: expected a plain LoRA adapter, as peft's LoraConfig makes it by default",
            path.display()
        ))
    };
    let config: Value = serde_json::from_str(&text).map_err(|cause| refused(&cause.to_string()))?;
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    };
    if let Some(kind) = UNKNOWN_KINDS.iter().find(|key| is_set(&config[**key])) {
        return Err(refused(&format!("`{kind}` is set")));
    }
    let (Some("LORA"), Some(rank), Some(alpha)) = (
        config["peft_type"].as_str(),
        config["r"].as_u64().filter(|&rank| rank > 0),
        config["lora_alpha"].as_f64(),
    ) else {
        return Err(refused("expected `peft_type` LORA, `r` and `lora_alpha`"));
    };
    let is_adapter = |name: &str| adapted_module(name).is_some();
    let tensors = read_tensors(&folder.join(WEIGHTS_FILE))?.into_iter();
    let tensors = tensors.filter_map(|(name, tensor)| {
        let name = name.strip_prefix(PREFIX)?.strip_prefix('.')?;
        is_adapter(name).then(|| (name.to_owned(), tensor))
    });
    Ok(SavedAdapter {
        rank: rank as usize,
        alpha,
        tensors: tensors.collect(),
    })
}
