//! A trained video-text model as a folder.
//!
//! ```text
//! config.json, model.safetensors       the whole model; docs/scripts/video_text.py loads it in PyTorch
//! tokenizer.json, tokenizer_config.json, preprocessor_config.json     AutoTokenizer, CLIPImageProcessor
//! caption_tokenizer/                   the decoder's tokenizer, if it differs
//! generation_config.json               settings of caption generation
//! decoder/                             BlenderbotForCausalLM.from_pretrained, with generation_config.json
//! clip/                                CLIPModel.from_pretrained, if clips are pooled by the mean over frames
//! head.safetensors, targets.json       heads of labels and numbers, and the names of their outputs
//! texts.json                           text template, and lengths of the longest texts
//! holdall.json                         checksums of all of them
//! ```

use std::path::Path;

use holdall_data::decode::PROCESSOR_FILE;
use holdall_models::folder::{Head, NamedTensor, write_folder};
use holdall_models::video_text::config::VideoTextConfig;
use serde::{Deserialize, Serialize};

use super::super::classify;
use super::VideoTextTask;
use super::programs::decoder_tokens;
use crate::engine::step::{Step, Stored};
use crate::error::TrainError;
use crate::export::model_files::{
    SHARD_BYTES, exported, exported_tensors, read_beside, unsaved, write_beside,
};
use crate::run_folder::folder::{failed, write_whole};
use crate::tasks::generation::{GENERATION_CONFIG, generation_config_json};

/// Folder of the decoder's own tokenizer.
pub(super) const CAPTION_TOKENIZER: &str = "caption_tokenizer";
const TEXTS_FILE: &str = "texts.json";

/// `texts.json`: the text template, and the lengths of the longest texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedTexts {
    /// Text template of the training.
    pub caption: String,
    /// Tokens of the longest text.
    pub text_tokens: usize,
    /// Decoder input tokens of the longest caption.
    pub caption_tokens: usize,
}

impl SavedTexts {
    /// Reads `texts.json`; `None` without that file.
    pub fn read(folder: &Path) -> Result<Option<SavedTexts>, TrainError> {
        let hint = "expected what training writes there; leave the file out to do without";
        read_beside(folder, TEXTS_FILE, hint)
    }
}

/// Writes the model folder.
pub(super) fn save(task: &VideoTextTask, step: &Step, folder: &Path) -> Result<(), TrainError> {
    let data = task.data();
    let unsaved_text = |cause: holdall_data::DataError| unsaved(&cause);
    data.text.save(folder).map_err(unsaved_text)?;
    if let Some(own) = &data.own_caption_text {
        let place = folder.join(CAPTION_TOKENIZER);
        std::fs::create_dir_all(&place).map_err(failed(&place, "created"))?;
        own.save(&place).map_err(unsaved_text)?;
    }
    write_whole(&folder.join(PROCESSOR_FILE), data.processor.as_bytes())?;
    let texts = SavedTexts {
        caption: data.caption_template.clone(),
        text_tokens: task.num_text_tokens,
        caption_tokens: task.num_caption_tokens,
    };
    write_beside(folder, TEXTS_FILE, &texts)?;
    if !task.heads.is_empty() {
        classify::save_targets(&task.heads, folder)?;
    }
    save_parts(task, step, folder)?;
    save_weights(task, step, folder, Some(SHARD_BYTES)).map_err(|cause| unsaved(&cause))
}

/// Writes `config.json`, `model.safetensors` (in shards beyond `shard_bytes`) and the heads.
pub fn save_weights(
    task: &VideoTextTask,
    step: &Step,
    folder: &Path,
    shard_bytes: Option<u64>,
) -> Result<(), TrainError> {
    let tensors = exported_tensors(step, task.model.tensors());
    let head = if task.heads.is_empty() {
        None
    } else {
        let [weight, bias] = classify::CLASSIFIER.map(|name| {
            let mut values = exported(step, name).read()?.into_owned();
            classify::restore(&task.heads, name, &mut values);
            Ok::<Vec<f32>, TrainError>(values)
        });
        Some(Head {
            num_labels: task.num_outputs(),
            weight: weight?,
            bias: bias?,
        })
    };
    write_folder(folder, &task.model, &tensors, head.as_ref(), shard_bytes)?;
    Ok(())
}

/// Size of the parts that transformers loads, in bytes.
pub(super) fn part_bytes(model: &VideoTextConfig) -> u64 {
    let parts = model.parts();
    let tensors = parts.iter().flat_map(|part| &part.tensors);
    let values = tensors.map(|tensor| tensor.shape.iter().product::<usize>() as u64);
    values.sum::<u64>() * size_of::<f32>() as u64
}

/// Writes the parts that transformers loads, and the settings of caption generation.
fn save_parts(task: &VideoTextTask, step: &Step, folder: &Path) -> Result<(), TrainError> {
    for part in task.model.parts() {
        let place = folder.join(part.folder);
        let tensors: Vec<NamedTensor<Stored<'_>>> = part
            .tensors
            .into_iter()
            .map(|tensor| {
                let values = exported(step, &tensor.whole_name);
                (tensor.name, tensor.shape, values)
            })
            .collect();
        let written = write_folder(&place, part.config, &tensors, None, Some(SHARD_BYTES));
        written.map_err(|cause| unsaved(&cause))?;
    }
    let Some(decoder) = task.decoder() else {
        return Ok(());
    };
    // In the model folder for Holdall, in the decoder's folder for transformers.
    let settings = generation_config_json(&task.generation, &decoder_tokens(task, decoder));
    let places = [folder.to_owned(), folder.join("decoder")];
    for place in places.iter().filter(|place| place.is_dir()) {
        write_whole(&place.join(GENERATION_CONFIG), settings.as_bytes())?;
    }
    Ok(())
}
