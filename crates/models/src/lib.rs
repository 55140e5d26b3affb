//! Models as graphs, and the folders they are kept in.
//!
//! A model is a pure function from a config to a graph: [`clip`] writes CLIP, [`vit`] vision transformers with a
//! classifier, [`bert`] a text tower, all of the blocks of `transformer`; [`decoder`] writes captions, [`video_text`] puts towers and decoder
//! together; [`unet`] writes U-Nets. Beside each graph are its sizes, Hugging Face's names and what its weights
//! start as. [`model_config`] tells which of them a config.json describes, [`folder`] reads and writes Hugging Face
//! folders, [`init`] draws numbers where there is no folder, [`hub_cache`] finds folders by name, [`hub_download`] brings them, [`state_file`] keeps the
//! state of a run.

pub mod bert;
pub mod clip;
mod config_json;
pub mod decoder;
pub mod error;
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
