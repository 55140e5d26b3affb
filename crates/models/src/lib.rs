//! Models as graphs, and their folders on disk.
//!
//! A model is a pure function from a config to a graph: [`clip`] builds CLIP, [`vit`] vision transformers with a classifier, and
//! [`bert`] a text tower, all from the blocks of `transformer`; [`decoder`] builds a captioning decoder, [`video_text`] combines
//! towers and decoder; [`unet`] builds U-Nets. Beside each graph are its sizes, its tensor names in Hugging Face's convention and
//! its initialisation. [`model_config`] recognises the architecture in a config.json, [`folder`] reads and writes Hugging Face
//! folders, [`init`] draws random weights, [`hub_cache`] finds downloaded models by name, [`hub_download`] downloads them, and
//! [`state_file`] stores the training state of a run.

pub mod bert;
pub mod clip;
mod config_json;
pub mod decoder;
mod error;
pub mod folder;
pub mod hub_cache;
pub mod hub_download;
pub mod init;
pub mod model_config;
mod size_checks;
pub mod state_file;
mod tensor_list;
mod transformer;
pub mod unet;
pub mod video_text;
pub mod vit;

pub use clip::config;
pub use error::ModelError;
