//! The files of a run, each of which survives a kill at any instant.

pub mod appended_file;
pub mod checkpoint;
pub mod epoch_losses;
pub mod folder;
pub mod journal;
pub mod sealed_config;
pub mod skipped;
