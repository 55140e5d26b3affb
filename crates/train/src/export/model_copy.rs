//! Converts a model folder: weights in half precision, an adapter merged into the weights.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use holdall_files::{create_folders, write_whole_folder};
use holdall_graph::adapters::adapted_module;
use holdall_models::folder::{
    ElementFormat, Elements, ModelFolder, NamedTensor, Values, seal_folder, write_folder,
};

use crate::engine::lora;
use crate::engine::saved_adapter::{self, SavedAdapter};
use crate::error::TrainError;
use crate::export::model_files::SHARD_BYTES;
use crate::export::saved_inputs;

/// Files beside the weights that a model needs for use; each is optional.
const COMPANIONS: [&str; 11] = [
    saved_inputs::FILE_NAME,
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "labels.json",
    "targets.json",
    "texts.json",
    "generation_config.json",
];
/// Subfolder with such files.
const COMPANION_FOLDER: &str = "caption_tokenizer";

/// Number format of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    F32,
    /// IEEE half precision.
    F16,
}

/// Writes a converted model to a folder that must not exist.
pub fn copy_model(
    from: &ModelFolder,
    to: &Path,
    format: WeightFormat,
    adapter: Option<&Path>,
) -> Result<(), TrainError> {
    if to.exists() {
        return Err(TrainError::Config(format!(
            "{}: is there already\nhint: choose another folder with --out",
            to.display()
        )));
    }
    let adapter = match adapter {
        Some(path) => Some(adapter_for(from, path)?),
        None => None,
    };
    let tensors = from.config().tensors().into_iter().map(|(name, shape)| {
        let values = Converted {
            from,
            name: name.clone(),
            count: shape.iter().product(),
            adapter: adapter.as_ref(),
            format,
        };
        (name, shape, values)
    });
    let tensors: Vec<NamedTensor<Converted<'_>>> = tensors.collect();
    let head = from.read_head()?;
    if let Some(parent) = to.parent() {
        create_folders(parent).map_err(not_written(parent))?;
    }
    let fill = |folder: &Path| {
        copy_companions(from.path(), folder)?;
        let config = from.config().clone();
        write_folder(folder, config, &tensors, head.as_ref(), Some(SHARD_BYTES))?;
        seal_folder(folder)?;
        Ok(())
    };
    write_whole_folder(to, fill, |cause| not_written(to)(cause))
}

/// Reads an adapter and checks that the model has its layers.
fn adapter_for(model: &ModelFolder, path: &Path) -> Result<SavedAdapter, TrainError> {
    let adapter = saved_adapter::read(path)?;
    let refused = |found: String| {
        TrainError::Config(format!(
            "{}: {found}\nhint: merge an adapter into the model that it was trained on; RUN/model has its own merged already",
            path.display()
        ))
    };
    for (name, (shape, _)) in &adapter.tensors {
        let module = adapted_module(name).unwrap_or(name);
        let weight = model.tensor(&format!("{module}.weight"));
        let Some(weight) = weight.filter(|weight| weight.shape.len() == 2) else {
            return Err(refused(format!(
                "`{module}`: expected a linear layer of the model"
            )));
        };
        // A [rank, inputs], B [outputs, rank].
        let expected = if name.ends_with("lora_A.weight") {
            [adapter.rank, weight.shape[1]]
        } else {
            [weight.shape[0], adapter.rank]
        };
        if *shape != expected {
            return Err(refused(format!(
                "`{name}`: expected {expected:?}, found {shape:?}"
            )));
        }
    }
    Ok(adapter)
}

/// Copies the files beside the weights.
pub(crate) fn copy_companions(from: &Path, to: &Path) -> Result<(), TrainError> {
    for folder in ["", COMPANION_FOLDER] {
        let (from, to) = (from.join(folder), to.join(folder));
        for name in COMPANIONS.iter().filter(|name| from.join(name).is_file()) {
            create_folders(&to).map_err(not_written(&to))?;
            let path = to.join(name);
            let copied = std::fs::read(from.join(name))
                .and_then(|contents| holdall_files::write_whole(&path, &contents));
            copied.map_err(not_written(&path))?;
        }
    }
    Ok(())
}

pub(crate) fn not_written(path: &Path) -> impl FnOnce(io::Error) -> TrainError {
    move |cause| TrainError::File {
        found: format!("{} could not be written: {cause}", path.display()),
        hint: "check the folder, or choose another with --out",
    }
}

/// A tensor of another folder, read when it is written.
struct Converted<'a> {
    from: &'a ModelFolder,
    name: String,
    count: usize,
    adapter: Option<&'a SavedAdapter>,
    format: WeightFormat,
}

impl Values for Converted<'_> {
    fn num_values(&self) -> usize {
        self.count
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        let mut values = vec![0.0; self.count];
        let read = self.from.read_f32(&self.name, &mut values);
        read.map_err(|cause| io::Error::other(cause.to_string()))?;
        let module = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        if let Some(adapter) = self.adapter {
            let [a, b] = lora::names(module).map(|name| adapter.tensors.get(&name));
            if let (Some((_, a)), Some((_, b))) = (a, b) {
                let scale = adapter.alpha / adapter.rank as f64;
                lora::merge(&mut values, [a, b], adapter.rank, scale);
            }
        }
        Ok(Cow::Owned(values))
    }

    fn format(&self) -> ElementFormat {
        match self.format {
            WeightFormat::F32 => ElementFormat::F32,
            WeightFormat::F16 => ElementFormat::F16,
        }
    }

    fn elements(&self) -> io::Result<Elements<'_>> {
        let values = self.values()?;
        match self.format {
            WeightFormat::F32 => Ok(Elements::F32(values)),
            WeightFormat::F16 => {
                let largest = half::f16::MAX.to_f32();
                if let Some(value) = values.iter().find(|value| value.abs() > largest) {
                    return Err(io::Error::other(format!(
                        "{}: {value} is no number of half precision, whose largest is {largest}",
                        self.name
                    )));
                }
                let bits = values
                    .iter()
                    .map(|&value| half::f16::from_f32(value).to_bits());
                Ok(Elements::F16(bits.collect()))
            }
        }
    }
}
