//! The loop: feeding, stepping, evaluating, saving; and the processes that train together.

pub(crate) mod evaluation_pass;
pub mod failure_file;
pub(crate) mod feed;
pub(crate) mod picture_changes;
pub mod progress;
pub mod recorder;
pub mod report;
pub mod requests;
pub mod resume;
pub(crate) mod shared_evaluation;
pub mod trainer;
pub mod verify;
