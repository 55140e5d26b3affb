//! What a model is worth: retrieval ranks and label accuracy, from features as they come.
//!
//! [`feature_file`] and [`pair_file`] read what any framework wrote, [`collected`] takes what a model says batch by batch,
//! [`captions`] finds equal ones; [`retrieval`] ranks.

#![deny(unsafe_code)]

pub mod captions;
pub mod collected;
pub mod error;
pub mod exact;
pub mod feature_file;
pub mod features;
pub mod hostile;
pub mod labels;
#[allow(unsafe_code, reason = "memory maps")]
mod mapped;
mod npy;
pub mod pair_file;
pub mod pairs;
pub mod retrieval;
mod tensor_file;

pub use error::InputError;
