//! One file per operation: its shape rule (a method of [`crate::Graph`]), its backward rule and its cost.
//!
//! A new operation is a new file here, a line in the list of `op.rs`, a kernel per device, and an arm in the `target` of each device:
//! until then it does not compile. A test that walks all operations fails until one of its examples has the operation.

pub mod activation;
pub mod add;
pub mod add_positions;
pub mod attention;
pub mod cached_attention;
pub mod cast;
pub mod class_token;
pub mod collective;
pub mod contrastive;
pub mod conv2d;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod fill;
pub mod gather_rows;
pub mod group_norm;
pub mod layer_norm;
pub mod linear;
pub mod mean_tokens;
pub mod mix_pictures;
pub mod normalize;
pub mod normalize_pixels;
pub mod overlap;
pub mod patchify;
pub mod pixel_loss;
pub mod pointwise_loss;
pub mod pool2d;
pub mod repeat;
pub mod scale_columns;
pub mod top_tokens;
pub mod update;
pub mod upsample2d;
pub mod vocabulary_loss;
