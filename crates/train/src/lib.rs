//! The training run. The gradient is that of the whole batch under any split, and a resumed run continues with the same losses.
//!
//! From a config to a run, each module with its result:
//!
//! ```text
//! config        RunConfig           the user's settings, checked
//! tasks         Prepared            the samples and the model, opened; `site` is the device, or a card to plan for
//!   setup         Setup             the step to compute, and the budget
//! planned_run   PlannedRun          the place of every byte; `plan_race` lets a GPU decide between plans
//! reserve       Step                the reserved memory with the weights
//! trainer       Trainer             the loop
//! ```
//!
//! Only [`tasks`] knows what is trained; all other modules use the interface [`task`].
//!
//! The modules along one step: `feed` delivers the [`batch`] within [`loader_budget`], [`step_graph`] writes the computation, the planner
//! places it, [`step`] runs the programs in order, [`optimizer`] and [`schedule`] set the update, [`scaler`] is fp16's loss scale.
//! Beside the step: [`forward`] runs forward programs alone, [`generation`] decodes captions token by token, [`checkpoint`], [`journal`]
//! (an [`appended_file`]) and [`run_folder`] keep everything that must survive a kill, [`disk_space`] computes the space for that,
//! [`skipped`] lists unreadable samples, [`report`] and [`scores`] are the run's output, [`requests`] its signals, [`recorder`] its memory
//! log, [`failure_file`] its error report. [`export`] writes a model folder, [`model_copy`] converts one, [`onnx`] writes ONNX files,
//! [`lora`] selects the layers with low-rank adapters, [`adapter_files`] writes the adapters, [`verify`] certifies that the split changed
//! nothing.

#![forbid(unsafe_code)]

pub mod adapter_files;
pub mod appended_file;
pub mod batch;
pub mod budget;
pub mod checkpoint;
pub mod config;
pub mod disk_space;
pub mod diverged;
pub mod epoch_losses;
pub mod error;
pub mod export;
pub mod failure_file;
mod feed;
pub mod forward;
pub mod frozen;
pub mod generation;
pub mod journal;
pub mod loader_budget;
pub mod lora;
pub mod model_copy;
pub mod onnx;
mod operations;
pub mod optimizer;
mod picture_changes;
pub mod picture_costs;
pub mod plan_race;
pub mod plan_together;
pub mod planned_run;
pub mod prepare;
pub mod processes;
pub mod progress;
pub mod recorder;
pub mod report;
pub mod requests;
pub mod reserve;
pub mod resume;
pub mod run_folder;
pub mod saved_inputs;
pub mod saved_model;
pub mod scaler;
pub mod schedule;
pub mod scores;
pub mod sealed_config;
pub mod setup;
mod shared_evaluation;
pub mod shell_words;
pub mod similarity;
pub mod site;
pub mod skipped;
pub mod step;
pub mod step_graph;
pub mod task;
pub mod tasks;
pub mod traffic;
pub mod trainer;
mod update_graph;
pub mod verify;

pub use error::TrainError;
