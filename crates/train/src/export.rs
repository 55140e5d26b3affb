//! A trained step as a model folder that `transformers` loads.

use std::path::Path;

use holdall_models::folder::{Head, write_folder};

use crate::error::TrainError;
use crate::step::Step;

/// Writes `config.json`, `model.safetensors` (in shards where it would exceed `shard_bytes`) and, beside them, the label
/// head. An interrupted write leaves no folder that looks complete.
pub fn save_model(step: &Step, folder: &Path, shard_bytes: Option<u64>) -> Result<(), TrainError> {
    let config = &step.config().model;
    let by_name = |name: &str| {
        let mut parameters = step.parameters().iter();
        parameters
            .find(|parameter| parameter.name == name)
            .map(|parameter| step.weight(parameter))
    };
    let tensors: Vec<(String, Vec<usize>, &[f32])> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let values =
                by_name(&name).expect("the graph has every tensor of the state dict: tested");
            (name, shape, values)
        })
        .collect();
    let head = match (by_name("head.weight"), by_name("head.bias")) {
        (Some(weight), Some(bias)) => Some(Head {
            num_labels: bias.len(),
            weight: weight.to_vec(),
            bias: bias.to_vec(),
        }),
        _ => None,
    };
    write_folder(folder, config, &tensors, head.as_ref(), shard_bytes)?;
    Ok(())
}
