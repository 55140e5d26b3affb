//! Trained adapters in peft's file format, beside the model that they are merged into.
//!
//! ```text
//! adapter/adapter_config.json          rank, alpha, which layers, of which model
//! adapter/adapter_model.safetensors    base_model.model.LAYER.lora_A.weight [rank, inputs], ....lora_B.weight [outputs, rank]
//! ```
//!
//! `PeftModel.from_pretrained(model, "adapter")` on the base model computes the same as the merged model.
//! Heads that are part of the base model are saved with the adapter; new heads lie beside the merged model.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use holdall_models::folder::{ModelFolder, NamedTensor, Values, write_tensors};
use serde_json::json;

use crate::engine::lora::{self, Lora};
pub use crate::engine::saved_adapter::ADAPTER_FOLDER;
use crate::engine::saved_adapter::{CONFIG_FILE, PREFIX, WEIGHTS_FILE};
use crate::engine::step::Step;
use crate::error::TrainError;
use crate::export::model_files::unsaved;
use crate::run_folder::folder::{failed, write_whole};

/// Tensor values in memory.
struct Read(Vec<f32>);

impl Values for Read {
    fn num_values(&self) -> usize {
        self.0.len()
    }

    fn values(&self) -> std::io::Result<std::borrow::Cow<'_, [f32]>> {
        Ok(std::borrow::Cow::Borrowed(&self.0))
    }
}

/// Writes a step's adapters into a model folder whose own files already exist.
pub(crate) fn save(step: &Step, lora: &Lora, model: &Path) -> Result<(), TrainError> {
    let folder = model.join(ADAPTER_FOLDER);
    fs::create_dir_all(&folder).map_err(failed(&folder, "created"))?;
    let heads = step.config().task.heads_of_model();
    let config = format!("{:#}\n", config_json(lora, &heads));
    write_whole(&folder.join(CONFIG_FILE), config.as_bytes())?;
    let mut tensors = adapter_tensors(step, lora)?;
    tensors.extend(head_tensors(model, &heads)?);
    let written = write_tensors(&folder.join(WEIGHTS_FILE), &tensors);
    written.map_err(|cause| unsaved(&cause))
}

fn config_json(lora: &Lora, heads: &[&str]) -> serde_json::Value {
    json!({
        "peft_type": "LORA",
        "task_type": null,
        "base_model_name_or_path": lora.base_model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": lora.target_modules,
        "modules_to_save": if heads.is_empty() { json!(null) } else { json!(heads) },
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
    })
}

fn adapter_tensors(step: &Step, lora: &Lora) -> Result<Vec<NamedTensor<Read>>, TrainError> {
    let parameters = step.parameters().iter();
    let by_name: HashMap<&str, _> = parameters.map(|one| (one.name.as_str(), one)).collect();
    let mut tensors = Vec::new();
    for name in lora.modules.iter().flat_map(|module| lora::names(module)) {
        let parameter = by_name[name.as_str()];
        let shape = step.plan().graph.shape(parameter.value);
        let values = Read(step.weight(parameter)?.into_owned());
        tensors.push((format!("{PREFIX}.{name}"), shape.dims().to_vec(), values));
    }
    Ok(tensors)
}

/// Head tensors in the number format and shape of the model's own files.
fn head_tensors(model: &Path, heads: &[&str]) -> Result<Vec<NamedTensor<Read>>, TrainError> {
    if heads.is_empty() {
        return Ok(Vec::new());
    }
    let folder = ModelFolder::open(model)?;
    let mut tensors = Vec::new();
    for name in heads
        .iter()
        .flat_map(|head| [format!("{head}.weight"), format!("{head}.bias")])
    {
        let Some(tensor) = folder.tensor(&name) else {
            continue;
        };
        let shape = tensor.shape.to_vec();
        let mut values = vec![0.0; shape.iter().product()];
        folder.read_f32(&name, &mut values)?;
        tensors.push((format!("{PREFIX}.{name}"), shape, Read(values)));
    }
    Ok(tensors)
}
