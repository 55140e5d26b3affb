//! The training run: whatever the split of the batch, the gradient of the whole; whenever it is killed, the same losses.
//!
//! From a config to a run, each room with what leaves it:
//!
//! ```text
//! config        RunConfig           what the user wrote, checked
//! tasks         Prepared            the samples are read, the model is opened; `site` says for which device or card
//!   setup         Setup             what is computed, within which budget
//! planned_run   PlannedRun          where every byte goes; `plan_race` lets a GPU decide between plans
//! reserve       Step                the memory is reserved, the weights are in it
//! trainer       Trainer             the loop
//! ```
//!
//! Nothing here but [`tasks`] knows what is trained: [`task`] is what they are asked.
//!
//! Follow one step: `feed` brings the [`batch`] as [`loader_budget`] says, [`step_graph`] writes what is computed, the planner
//! places it, [`step`] runs the programs in order, [`optimizer`] and [`schedule`] say how weights move, [`scaler`] is fp16's loss
//! scale. Beside it: [`forward`] runs forward programs alone, [`generation`] decodes captions token by token, [`checkpoint`], [`journal`] (an [`appended_file`]) and [`run_folder`]
//! keep what must survive a kill, [`disk_space`] says what that takes, [`skipped`] what could not be read, [`report`] and
//! [`scores`] are what a run says, [`requests`] what it is asked meanwhile, [`recorder`] what its memory did, [`failure_file`] how
//! it failed, [`export`] writes a model folder, [`model_copy`] one in another form, [`onnx`] what other runtimes load, [`lora`] says which layers have low-rank adapters, [`adapter_files`] writes those, [`verify`] certifies that the split changed nothing.

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
