//! Finds the weight files of a model folder: one file, shards by their index, or an error that says what is missing.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::weights_file::WeightsFile;
use super::{CONFIG_FILE, INDEX_FILE, SINGLE_FILE};
use crate::error::ModelError;

const MOST_JSON_BYTES: u64 = 4 << 20;

pub(super) fn refuse_other_than_folder(path: &Path) -> Result<(), ModelError> {
    let found = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) if is_pickle(path) => return Err(pickle(path)),
        Ok(_) => "a file",
        Err(cause) if cause.kind() == ErrorKind::NotFound => "nothing",
        Err(cause) => {
            return Err(ModelError::Io {
                path: path.into(),
                action: "look at it",
                cause,
            });
        }
    };
    Err(ModelError::NotAFolder {
        path: path.into(),
        found,
    })
}

pub(super) fn open_weights(folder: &Path) -> Result<Vec<WeightsFile>, ModelError> {
    let single = folder.join(SINGLE_FILE);
    if file_exists(&single)? {
        return Ok(vec![WeightsFile::open(&single)?]);
    }
    let index = folder.join(INDEX_FILE);
    if file_exists(&index)? {
        return open_shards(folder, &index);
    }
    Err(no_weights(folder)?)
}

fn open_shards(folder: &Path, index: &Path) -> Result<Vec<WeightsFile>, ModelError> {
    let mut tensors_of_shard: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in read_index(index)? {
        tensors_of_shard.entry(shard).or_default().push(tensor);
    }
    let mut files = Vec::new();
    for (shard, tensors) in &tensors_of_shard {
        let path = folder.join(shard);
        if !file_exists(&path)? {
            let (index, num_shards) = (index.into(), tensors_of_shard.len());
            return Err(ModelError::ShardMissing {
                index,
                shard: path,
                num_shards,
            });
        }
        let file = WeightsFile::open(&path)?;
        let mut found: Vec<&str> = file
            .tensors()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        found.sort_unstable();
        let absent = |tensor: &&String| found.binary_search(&tensor.as_str()).is_err();
        if let Some(tensor) = tensors.iter().find(absent) {
            return Err(ModelError::NotInShard {
                index: index.into(),
                shard: path,
                tensor: tensor.clone(),
                num_found: found.len(),
            });
        }
        files.push(file);
    }
    Ok(files)
}

/// Reads pairs of tensor and shard.
fn read_index(index: &Path) -> Result<Vec<(String, String)>, ModelError> {
    let wrong = |found: String| ModelError::Json {
        file: index.into(),
        expected: "an object with a `weight_map` from tensors to shards",
        found,
    };
    let value: Value =
        serde_json::from_str(&read_json(index)?).map_err(|cause| wrong(cause.to_string()))?;
    let weight_map = match value.get("weight_map").and_then(Value::as_object) {
        None => return Err(wrong("no such object".into())),
        Some(map) if map.is_empty() => return Err(wrong("an empty one".into())),
        Some(map) => map,
    };
    let mut pairs = Vec::with_capacity(weight_map.len());
    for (tensor, shard) in weight_map {
        let Some(shard) = shard.as_str() else {
            return Err(wrong(format!("something other than a name for `{tensor}`")));
        };
        let plain = !shard.contains(['/', '\\', ':', '\0']) && shard.ends_with(".safetensors");
        if !plain {
            return Err(ModelError::ShardName {
                index: index.into(),
                found: shard.into(),
            });
        }
        pairs.push((tensor.clone(), shard.to_string()));
    }
    Ok(pairs)
}

/// Error for a folder without safetensors: names a pickle if there is one, otherwise the files found.
fn no_weights(folder: &Path) -> Result<ModelError, ModelError> {
    const LONGEST_LIST: usize = 8;
    let failed = |cause| ModelError::Io {
        path: folder.into(),
        action: "list it",
        cause,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.push(
            entry
                .map_err(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
    }
    names.sort();
    if let Some(name) = names.iter().find(|name| is_pickle(Path::new(name))) {
        return Ok(pickle(&folder.join(name)));
    }
    let mut found = names
        .iter()
        .take(LONGEST_LIST)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.is_empty() {
        found = "an empty folder".into();
    } else if names.len() > LONGEST_LIST {
        found += &format!(" and {} more", names.len() - LONGEST_LIST);
    }
    Ok(ModelError::NoWeights {
        folder: folder.into(),
        found,
    })
}

fn is_pickle(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let extension = name.rsplit('.').next().unwrap_or_default();
    match extension {
        // Other .bin files, such as training_args.bin, are no weights.
        "bin" => name.contains("pytorch_model"),
        "pt" | "pth" | "ckpt" => true,
        _ => false,
    }
}

fn pickle(file: &Path) -> ModelError {
    let folder = file.parent().unwrap_or(Path::new("."));
    let from_hugging_face = file
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("pytorch_model"));
    let conversion = if from_hugging_face {
        let architecture = named_architecture(folder).unwrap_or("CLIPModel".into());
        format!(
            "from transformers import {architecture}\n\
             {architecture}.from_pretrained({folder:?}).save_pretrained({folder:?})"
        )
    } else {
        let target = folder.join(SINGLE_FILE);
        format!(
            "import torch, safetensors.torch\n\
             safetensors.torch.save_file(torch.load({file:?}, weights_only=True), {target:?}, {{\"format\": \"pt\"}})"
        )
    };
    ModelError::Pickle {
        file: file.into(),
        conversion,
    }
}

/// First architecture in a config.json, if it is a plain name that is safe in a line of Python.
fn named_architecture(folder: &Path) -> Option<String> {
    let config: Value = serde_json::from_str(&read_json(&folder.join(CONFIG_FILE)).ok()?).ok()?;
    let name = config.get("architectures")?.get(0)?.as_str()?;
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain.then(|| name.to_owned())
}

pub(super) fn file_exists(path: &Path) -> Result<bool, ModelError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file()),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(ModelError::Io {
            path: path.into(),
            action: "look for it",
            cause,
        }),
    }
}

pub(super) fn read_json(file: &Path) -> Result<String, ModelError> {
    let failed = |cause| ModelError::Io {
        path: file.into(),
        action: "read it",
        cause,
    };
    let found_bytes = fs::metadata(file).map_err(failed)?.len();
    if found_bytes > MOST_JSON_BYTES {
        return Err(ModelError::JsonTooLarge {
            file: file.into(),
            limit_bytes: MOST_JSON_BYTES,
            found_bytes,
        });
    }
    String::from_utf8(fs::read(file).map_err(failed)?).map_err(|error| ModelError::NotUtf8 {
        file: file.into(),
        part: "it",
        valid_bytes: error.utf8_error().valid_up_to(),
    })
}
