//! The engine: the task interface, a batch, the graph of a step, the programs that run it, and the update of the weights.

pub mod batch;
pub(crate) mod divergence;
pub mod forward;
pub mod frozen;
pub mod lora;
pub(crate) mod operations;
pub mod optimizer;
pub(crate) mod saved_adapter;
pub mod scaler;
pub mod schedule;
pub mod scores;
pub mod similarity;
pub mod step;
pub mod step_graph;
pub mod task;
pub mod traffic;
pub(crate) mod update_graph;
