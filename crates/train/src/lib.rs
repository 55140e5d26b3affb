//! The training step: whatever the split of the batch, the gradient of the whole.
//!
//! Follow one step: [`batch`] holds the samples of an effective batch, [`step_graph`] writes what is computed, the
//! planner places it, [`step`] runs the programs in order, [`optimizer`] says how weights move. [`verify`]
//! certifies that the split changed nothing; [`scaler`] is fp16's loss scale; [`export`] writes a model folder; [`config`] is what the user wrote.

#![forbid(unsafe_code)]

pub mod batch;
pub mod budget;
pub mod config;
pub mod encoder;
pub mod error;
pub mod export;
pub mod optimizer;
pub mod scaler;
pub mod setup;
pub mod step;
pub mod step_graph;
pub mod verify;

pub use error::TrainError;
