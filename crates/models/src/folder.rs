//! A model on disk, in Hugging Face's layout:
//!
//! ```text
//! config.json
//! model.safetensors          or   model.safetensors.index.json and the shards that it names
//! head.safetensors           beside a CLIPModel or a video-text model: a trained label head on the projection
//! holdall.json               checksums of all files, where Holdall trained the model
//! ```
//!
//! [`ModelFolder::open`] maps the weights and validates everything in their headers; [`ModelFolder::check`] compares the tensors
//! with the configuration; [`ModelFolder::read_f32`] converts straight from the map, so that no second copy of the weights is
//! held. [`write_folder`] writes a folder that transformers' `from_pretrained` loads.

mod checksums;
mod find;
mod stored;
pub(crate) mod weights_file;
pub(crate) mod write;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorInfo;

use crate::clip::config::ClipConfig;
use crate::error::{Misshaped, ModelError, TensorMismatch};
use crate::model_config::ModelConfig;
use crate::tensor_list::num_values;
use crate::vit;
pub use checksums::{CHECKSUMS_FILE, seal_folder, sealed_files, verify_folder};
use find::{file_exists, open_weights, read_json, refuse_other_than_folder};
pub use stored::{StoredTensor, StoredType};
use stored::{convert, stored_type};
use weights_file::WeightsFile;
pub use write::{ElementFormat, Elements, NamedTensor, Values, write_folder, write_tensors};

const CONFIG_FILE: &str = "config.json";
const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
const HEAD_FILE: &str = "head.safetensors";
/// Values that are converted at a time.
const PIECE: usize = 1 << 18;

/// A linear classifier on the projected image features.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Number of classes.
    pub num_labels: usize,
    /// `[num_labels, projection_dim]`, row by row.
    pub weight: Vec<f32>,
    /// `[num_labels]`.
    pub bias: Vec<f32>,
}

/// A folder whose files are open and pass the integrity checks.
pub struct ModelFolder {
    path: PathBuf,
    config: ModelConfig,
    notes: Vec<String>,
    files: Vec<WeightsFile>,
    tensors: BTreeMap<String, TensorEntry>,
}

struct TensorEntry {
    file: usize,
    /// Name in the file.
    stored_name: String,
    stored_type: StoredType,
    info: TensorInfo,
}

impl ModelFolder {
    /// Reads the configuration, maps the weights and checks every file for damage. [`ModelFolder::check`] compares the tensors
    /// with the configuration.
    pub fn open(path: &Path) -> Result<ModelFolder, ModelError> {
        refuse_other_than_folder(path)?;
        checksums::check_files(path)?;
        let files = open_weights(path)?;
        let config_file = path.join(CONFIG_FILE);
        if !file_exists(&config_file)? {
            return Err(ModelError::NoConfig { file: config_file });
        }
        let (config, mut notes) = ModelConfig::from_json(&read_json(&config_file)?, &config_file)?;

        let names = files.iter().flat_map(WeightsFile::tensors);
        let mut names = names.map(|(name, _)| name);
        let prefix = config.prefix();
        let has_prefix = prefix.is_none_or(|prefix| names.any(|name| name.starts_with(prefix)));
        let mut unused = Vec::new();
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for (file, weights) in files.iter().enumerate() {
            for (name, info) in weights.tensors() {
                if config.ignores(name) {
                    unused.push(name.as_str());
                    continue;
                }
                let place = TensorEntry {
                    file,
                    stored_name: name.clone(),
                    stored_type: stored_type(weights, name, info)?,
                    info: info.clone(),
                };
                let name = config.full_name(name, has_prefix);
                if let Some(first) = tensors.insert(name.clone(), place) {
                    return Err(ModelError::DuplicateTensor {
                        tensor: name,
                        first: files[first.file].path().into(),
                        second: weights.path().into(),
                    });
                }
            }
        }
        let unused_by = match config {
            ModelConfig::Clip(_) => None,
            ModelConfig::Bert(_) => Some("a text tower"),
            _ => Some("a classifier"),
        };
        if let Some(reader) = unused_by.filter(|_| !unused.is_empty()) {
            notes.push(format!(
                "{}: {reader} does not use {}",
                path.display(),
                unused.join(", ")
            ));
        }
        Ok(ModelFolder {
            path: path.into(),
            config,
            notes,
            files,
            tensors,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The configuration of a CLIP folder; an error for any other architecture.
    pub fn clip_config(&self) -> Result<&ClipConfig, ModelError> {
        match &self.config {
            ModelConfig::Clip(config) => Ok(config),
            other => Err(ModelError::NotClip {
                folder: self.path.clone(),
                found: other.describe(),
                use_of_it: match other {
                    ModelConfig::Clip(_)
                    | ModelConfig::Backbone(_)
                    | ModelConfig::Classifier(_) => {
                        "`task: classify` trains it; `task: clip` needs the text half too"
                    }
                    ModelConfig::Unet(_) => "`task: segment` trains it",
                    ModelConfig::VideoText(_) => "`task: video-text` trains it",
                    ModelConfig::Bert(_) => {
                        "a BERT reads text, not pictures; --task video-text takes it as its text tower, --set video_text.text_model=FOLDER"
                    }
                    ModelConfig::CaptionDecoder(_) => "it is a part of a video-text model",
                },
            }),
        }
    }

    /// Notes on ignored settings and unused tensors.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reason why a classifier for these labels cannot continue from the folder's classifier and needs new weights; `None` where it can.
    pub fn new_classifier_reason(&self, labels: &[String]) -> Option<String> {
        let Some(classifier) = self.config.classifier() else {
            return Some(format!("{} has no classifier", self.path.display()));
        };
        let known = &classifier.labels;
        if known.len() != labels.len() {
            return Some(format!(
                "the classifier of {} has {} outputs, {} are asked for",
                self.path.display(),
                known.len(),
                labels.len()
            ));
        }
        let other = |(known, label): &(&String, &String)| known != label;
        let pair = known.iter().zip(labels).find(other)?;
        if vit::is_unnamed(known) {
            return None;
        }
        Some(format!(
            "the classifier of {} knows other labels: `{}` where `{}` is asked for",
            self.path.display(),
            pair.0,
            pair.1
        ))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor as stored in its file.
    pub fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let place = self.tensors.get(name)?;
        Some(StoredTensor {
            shape: &place.info.shape,
            stored_type: place.stored_type,
            bytes: self.files[place.file].bytes(&place.info),
        })
    }

    /// Checks that the tensors are exactly those of the configuration, with its shapes. All differences are listed in one
    /// error.
    pub fn check(&self) -> Result<(), ModelError> {
        let tensors = self.tensors.iter();
        let found = tensors.map(|(name, place)| (name.as_str(), place.info.shape.as_slice()));
        let mismatch = compare(&self.config, found);
        if mismatch.is_empty() {
            return Ok(());
        }
        Err(ModelError::Tensors {
            folder: self.path.clone(),
            mismatch,
        })
    }

    /// Converts a tensor into `values`, which has its length. 64-bit values are rounded, all other formats convert exactly.
    /// Values that are not finite are refused.
    pub fn read_f32(&self, name: &str, values: &mut [f32]) -> Result<(), ModelError> {
        let tensor = self.tensor(name).ok_or_else(|| ModelError::UnknownTensor {
            folder: self.path.clone(),
            tensor: name.into(),
            num_found: self.tensors.len(),
        })?;
        let expected = num_values(tensor.shape).expect("fits: checked by WeightsFile::open");
        if values.len() != expected {
            return Err(ModelError::ValueCount {
                tensor: name.into(),
                expected,
                found: values.len(),
            });
        }
        // Releases the map's pages after each piece, so that reading takes no memory besides `values`.
        let place = &self.tensors[name];
        let bytes_each = tensor.bytes.len() / values.len().max(1);
        let mut pieces = values.chunks_mut(PIECE);
        let file = &self.files[place.file];
        file.read(
            &place.stored_name,
            &place.info,
            PIECE * bytes_each.max(1),
            |bytes| {
                let values = pieces.next().expect("as many pieces as of bytes");
                convert(tensor.stored_type, bytes, values);
            },
        )?;
        check_finite(file.path(), name, tensor.shape, values)
    }

    /// The label head beside the weights, if any.
    pub fn read_head(&self) -> Result<Option<Head>, ModelError> {
        let file = self.path.join(HEAD_FILE);
        if !file_exists(&file)? {
            return Ok(None);
        }
        let weights = WeightsFile::open(&file)?;
        let entry = |wanted| weights.tensors().iter().find(|(name, _)| name == wanted);
        let Some(width) = self.config.projection_dim() else {
            self.clip_config()?;
            return Ok(None);
        };
        if let (2, Some((_, weight)), Some((_, bias))) =
            (weights.tensors().len(), entry("weight"), entry("bias"))
            && let &[num_labels] = bias.shape.as_slice()
            && num_labels > 0
            && weight.shape == [num_labels, width]
        {
            return Ok(Some(Head {
                num_labels,
                weight: read_all(&weights, "weight", weight)?,
                bias: read_all(&weights, "bias", bias)?,
            }));
        }
        let tensors = weights.tensors().iter().take(4);
        let found: Vec<String> = tensors
            .map(|(name, info)| format!("{name} {:?}", info.shape))
            .collect();
        Err(ModelError::Head {
            file,
            expected: format!("weight [labels, {width}] and bias [labels]"),
            found: if found.is_empty() {
                "no tensors".into()
            } else {
                found.join(", ")
            },
        })
    }
}

/// Shape and values of tensors, by name.
pub type TensorsByName = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Reads every tensor of a safetensors file.
pub fn read_tensors(path: &Path) -> Result<TensorsByName, ModelError> {
    let file = WeightsFile::open(path)?;
    let read = |(name, info): &(String, TensorInfo)| {
        let values = read_all(&file, name, info)?;
        Ok((name.clone(), (info.shape.clone(), values)))
    };
    file.tensors().iter().map(read).collect()
}

/// Compares tensors with those of a configuration.
fn compare<'a>(
    config: &ModelConfig,
    found: impl Iterator<Item = (&'a str, &'a [usize])>,
) -> TensorMismatch {
    let mut mismatch = TensorMismatch::default();
    let expected = config.tensors();
    let mut not_seen: HashMap<&str, &[usize]> = expected
        .iter()
        .map(|(name, shape)| (name.as_str(), shape.as_slice()))
        .collect();
    for (name, shape) in found {
        match not_seen.remove(name) {
            None => mismatch.unexpected.push(name.into()),
            Some(expected) if expected != shape => mismatch.misshaped.push(Misshaped {
                name: name.into(),
                expected: expected.into(),
                found: shape.into(),
            }),
            Some(_) => {}
        }
    }
    let names = expected.iter().map(|(name, _)| name);
    mismatch.missing = names
        .filter(|name| not_seen.contains_key(name.as_str()))
        .cloned()
        .collect();
    mismatch
}

fn read_all(file: &WeightsFile, name: &str, info: &TensorInfo) -> Result<Vec<f32>, ModelError> {
    let stored_type = stored_type(file, name, info)?;
    let num_values = num_values(&info.shape).expect("fits: checked by WeightsFile::open");
    let mut values = vec![0.0; num_values];
    let whole = info.data_offsets.1 - info.data_offsets.0;
    file.read(name, info, whole.max(1), |bytes| {
        convert(stored_type, bytes, &mut values);
    })?;
    check_finite(file.path(), name, &info.shape, &values)?;
    Ok(values)
}

/// Refuses infinite and NaN weights, which make training and evaluation meaningless.
fn check_finite(
    file: &Path,
    tensor: &str,
    shape: &[usize],
    values: &[f32],
) -> Result<(), ModelError> {
    let Some(first) = values.iter().position(|value| !value.is_finite()) else {
        return Ok(());
    };
    let mut at = vec![0; shape.len()];
    let mut rest = first;
    for (index, &extent) in at.iter_mut().zip(shape).rev() {
        *index = rest % extent;
        rest /= extent;
    }
    Err(ModelError::NotFinite {
        file: file.into(),
        tensor: tensor.into(),
        found: values[first],
        at,
        num_bad: values.iter().filter(|value| !value.is_finite()).count(),
        num_values: values.len(),
    })
}
