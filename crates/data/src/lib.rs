//! Reads data into batches: CSV rows, pictures, captions, labels, and the order in which a run uses them. No device code.
//!
//! ```text
//! media          pictures and clips by their names
//! config         the `data` section
//! decode         files -> pixels
//! table          CSV, JSON lines, Parquet, shards, folders -> rows; which columns are what
//! samples        rows -> lists of samples, their targets, splits and order
//! segmentation   pictures with masks
//! loader         samples -> batches, by worker threads
//! text           captions -> tokens
//! check, pack    what is wrong with data; data packed into shards
//! ```
//!
//! Each imports only what stands above it.

#![forbid(unsafe_code)]

pub mod check;
pub mod config;
pub mod decode;
mod error;
pub mod hostile;
pub mod loader;
pub mod media;
mod natural_order;
pub mod pack;
mod random;
pub mod samples;
pub mod segmentation;
mod stored_file;
pub mod table;
pub mod text;
mod words;

pub use config::DataConfig;
pub use error::DataError;
pub use natural_order::compare as compare_names;
pub use table::Side;
