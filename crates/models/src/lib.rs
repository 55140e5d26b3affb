//! Models as graphs, and the folders they are kept in.
//!
//! A model is a pure function from a config to a graph: [`clip`] writes CLIP's two towers and
//! [`clip::config`] knows their sizes and Hugging Face's names for them. [`folder`] reads and writes Hugging Face folders, [`init`] draws weights
//! where there is no folder, [`hub_cache`] finds folders by name, [`state_file`] keeps the state of a run.

pub mod clip;
pub mod error;
pub mod folder;
pub mod hub_cache;
pub mod init;
pub mod state_file;
mod tensor_list;
mod transformer;

pub use clip::config;
