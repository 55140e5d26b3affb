//! A trained model, opened to be used: its folder, its tokenizer, what its label head calls things.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::config::DataConfig;
use holdall_data::image_processor::ImageProcessor;
use holdall_data::samples::Samples;
use holdall_data::text::{TextEncoder, bucket};
use holdall_device::Device;
use holdall_models::config::ClipConfig;
use holdall_models::folder::ModelFolder;

use crate::checkpoint::best_so_far;
use crate::encoder::Encoders;
use crate::error::TrainError;
use crate::export::LabelNames;
use crate::picture_costs::{self, PictureCosts, READING_BYTES};
use crate::prepare::TokenTable;
use crate::setup::{OpenedModel, Weights, open_model};
use crate::step_graph::StepConfig;

/// A model with all that lies beside it.
pub struct SavedModel {
    folder: ModelFolder,
    model: ClipConfig,
    /// What pictures go through.
    pub processor: ImageProcessor,
    /// Names of the label head's outputs; empty where there is no head.
    pub labels: Vec<String>,
    /// Captions to ids.
    pub text: TextEncoder,
}

/// The model of a run: the finished one, or the best so far.
pub fn model_of(path: &Path) -> Option<PathBuf> {
    let is_model = |folder: &PathBuf| folder.join("config.json").is_file();
    let finished = Some(path.join("model")).filter(is_model);
    finished.or_else(|| best_so_far(path).filter(is_model))
}

impl SavedModel {
    /// Opens a model folder, the folder of a run, or a name in the local Hugging Face cache, in at most so many bytes.
    pub fn open(name: &str, most_bytes: u64) -> Result<SavedModel, TrainError> {
        let path = Path::new(name);
        let named = model_of(path).unwrap_or(path.to_owned());
        if named == path && path.join("config.yml").is_file() {
            return Err(TrainError::Config(format!(
                "{name}: expected a model, found a run that has saved none yet\n\
                 hint: holdall train --resume --out {name} goes on with it"
            )));
        }
        let OpenedModel {
            model,
            weights,
            processor,
        } = open_model(&named.to_string_lossy())?;
        let Weights::Folder(folder) = weights else {
            return Err(TrainError::Config(format!(
                "{name}: expected a trained model, found a preset, which has random weights\n\
                 hint: a folder that `holdall train` or transformers wrote"
            )));
        };
        let tokenizer = folder.path().join("tokenizer.json");
        let (vocabulary, positions) = (model.text.vocab_size, model.text.max_positions);
        let text = TextEncoder::open(&tokenizer, vocabulary, positions, most_bytes)?;
        let names = LabelNames::read(folder.path())?;
        let head = folder.read_head()?;
        let labels = match (&head, &names) {
            (Some(head), Some(names)) if names.labels.len() == head.num_labels => {
                names.labels.clone()
            }
            (Some(head), _) => (0..head.num_labels)
                .map(|label| format!("label {label}"))
                .collect(),
            (None, _) => Vec::new(),
        };
        Ok(SavedModel {
            folder: *folder,
            model,
            processor,
            labels,
            text,
        })
    }

    /// Where the weights are.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of a picture.
    pub fn picture_bytes(&self) -> usize {
        self.model.vision.image_size.pow(2) * 3
    }

    /// Length of a feature.
    pub fn projection(&self) -> usize {
        self.model.projection_dim
    }

    /// Token ids of captions.
    pub fn tokens(&self, captions: &[String]) -> Result<TokenTable, TrainError> {
        TokenTable::new(&self.text, captions, self.model.text.max_positions)
    }

    /// What a contrastive similarity is multiplied by.
    pub fn logit_scale(&self) -> Result<f32, TrainError> {
        let mut value = [0.0];
        self.folder.read_f32("logit_scale", &mut value)?;
        Ok(value[0].exp())
    }

    /// The towers in memory, for captions of up to `longest` tokens.
    pub fn encoders(
        &self,
        device: &Device,
        longest: usize,
        batch: Option<usize>,
        budget_bytes: Option<u64>,
        host_bytes: u64,
    ) -> Result<Encoders, TrainError> {
        let model = self.model.clone();
        let positions = model.text.max_positions;
        let head = self.folder.read_head()?;
        // In f32, the default of a step: what a model is worth should not depend on what a device likes best.
        let mut config = StepConfig::new(model, head.as_ref().map(|head| head.num_labels));
        config.num_tokens = bucket(longest.max(1), positions);
        let mut encoders = Encoders::new(device, &config, batch, budget_bytes, host_bytes)?;
        encoders.set_weights(device, |name, values| -> Result<(), TrainError> {
            match (name, &head) {
                ("head.weight", Some(head)) => values.copy_from_slice(&head.weight),
                ("head.bias", Some(head)) => values.copy_from_slice(&head.bias),
                _ => self.folder.read_f32(name, values)?,
            }
            Ok(())
        })?;
        Ok(encoders)
    }
}

/// A model that is ready to look at pictures.
pub struct Opened {
    /// The towers.
    pub encoders: Encoders,
    /// What decoding pictures may take beside them.
    pub decode_bytes: u64,
    /// Which pictures are left out, if any are.
    pub note: Option<String>,
}

/// What pictures are read for, and within what.
pub struct Sight<'a> {
    /// The pictures.
    pub samples: &'a Arc<Samples>,
    /// What becomes of those that do not fit.
    pub policy: &'a DataConfig,
    /// Tokens of the longest caption.
    pub longest: usize,
    /// Samples at a time, if the user says so.
    pub batch: Option<usize>,
    /// What the process may hold.
    pub budget_bytes: Option<u64>,
    /// What it holds on the host beside the model, decoding aside.
    pub host_bytes: u64,
}

impl SavedModel {
    /// Reads the headers of all pictures and plans the towers with room to decode them, unless it is to `stop`: then there is none.
    pub fn open_for(
        &self,
        device: &Device,
        sight: &Sight<'_>,
        stop: &AtomicBool,
    ) -> Result<Option<Opened>, TrainError> {
        let lists = [sight.samples];
        let Some(mut costs) = PictureCosts::read(device, &lists, self.processor.framing, stop)
        else {
            return Ok(None);
        };
        let workers = device.cpu().num_threads();
        let planned = |host_bytes: u64| {
            let (batch, budget) = (sight.batch, sight.budget_bytes);
            let host_bytes = host_bytes + READING_BYTES;
            self.encoders(device, sight.longest, batch, budget, host_bytes)
        };
        if device.is_gpu() {
            // The card's budget is no bound for the host: as much as an automatic `host_memory` has for reading.
            let free = holdall_device::cpu::available_bytes().unwrap_or(u64::MAX);
            let decode_bytes = costs.together_bytes(workers).min(free / 4);
            return Ok(Some(Opened {
                encoders: planned(sight.host_bytes)?,
                decode_bytes,
                note: None,
            }));
        }
        let (mut encoders, least, refused) = costs.plan(sight.policy, |decode_bytes| {
            planned(sight.host_bytes + decode_bytes)
        })?;
        let process_bytes = encoders.plan().process_bytes;
        let budget = sight.budget_bytes;
        let decode_bytes = picture_costs::share(&costs, workers, least, process_bytes, budget);
        encoders.hold_more(decode_bytes - least);
        Ok(Some(Opened {
            encoders,
            decode_bytes,
            note: picture_costs::describe(&refused),
        }))
    }
}
