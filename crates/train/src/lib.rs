//! The training run. The gradient is that of the whole batch under any split, and a resumed run continues with the same losses.
//!
//! Rooms, each importing those above it. Two edges run the other way: [`planning`] opens the feed and the memory recorder of [`run`],
//! and asks [`tasks`] to open the data and the model.
//!
//! ```text
//! config       RunConfig              what the user wrote, checked
//! engine       Task, Step             what a task must provide; a batch, the graph of a step, the programs, the update
//! run_folder   Checkpoint, Journal    files of a run that survive a kill
//! planning     Prepared -> Setup -> PlannedRun -> Step
//!                                     data and model opened; what is computed, within which budget; every byte placed; reserved
//! export       SavedModel, OnnxFile   models as files
//! run          Trainer                the loop: feed, step, evaluate, save, report
//! tasks        clip, classify, segment, video_text
//! ```
//!
//! Nothing here but [`tasks`] knows what is trained: [`engine::task`] is the interface.
//!
//! One step, in order: [`run`]'s feed brings the [`engine::batch`] as [`planning::loader_budget`] allows, [`engine::step_graph`] writes
//! the graph, the planner places it, [`engine::step`] runs the programs, [`engine::optimizer`] and [`engine::schedule`] give the
//! numbers of the update, [`engine::scaler`] the loss scale of fp16.

#![forbid(unsafe_code)]

pub mod config;
pub mod engine;
pub mod error;
pub mod export;
pub mod planning;
pub mod run;
pub mod run_folder;
pub mod tasks;

pub use error::TrainError;
