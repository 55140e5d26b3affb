//! Reads data into batches: CSV rows, pictures, captions, labels, and the order in which a run uses them. No device code.

#![forbid(unsafe_code)]

pub mod allowance;
pub mod cars;
pub mod check;
mod class_folders;
pub mod clips;
pub mod columns;
pub mod config;
mod drawn_file;
pub mod error;
pub mod find;
mod fingerprint;
pub mod folder;
pub mod hostile;
pub mod image_processor;
pub mod loader;
pub mod mixing;
pub mod moving_shapes;
mod natural_order;
pub mod order;
pub mod overlap;
pub mod pack;
mod packed_strings;
mod parquet;
pub mod picture;
mod picture_folder;
pub mod picture_record;
mod random;
pub mod rows_file;
pub mod samples;
pub mod segmentation;
mod shards;
pub mod sides;
pub mod source;
pub mod split;
mod stored_file;
pub mod stored_rows;
pub mod table;
pub mod target;
pub mod template;
pub mod text;
pub mod unique_texts;
pub mod vessels;
mod words;

pub use config::DataConfig;
pub use error::DataError;
pub use order::{Order, Sampling};
pub use samples::Samples;
pub use sides::Side;
pub use source::{Captions, DataSet, evidence, read, read_with_labels, read_with_targets};
pub use target::{Target, TargetConfig, TargetKind, TargetValues};
pub use text::TextEncoder;
