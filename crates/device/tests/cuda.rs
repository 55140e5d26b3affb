//! The GPU against the CPU on the same graphs, in every number format.
//!
//! Each case runs forward and backward, on the CPU in f32 and on the card in the format at hand, over inputs and weights
//! that the format holds exactly; what is compared is the difference's norm over the result's. Every case runs twice, and
//! the bits must be the same.
//!
//! Every operation is also walked through on its own, on the CPU too.
//!
//! Without a card all comparisons are skipped, aloud; with `HOLDALL_REQUIRE_GPU` set that fails. `--nocapture` shows the errors.

#![allow(clippy::unwrap_used)] // a test that fails here fails with a backtrace, which says more than a message

#[path = "cuda/attention.rs"]
mod attention;
#[path = "cuda/convolution.rs"]
mod convolution;
#[path = "cuda/elements.rs"]
mod elements;
#[path = "cuda/every_operation.rs"]
mod every_operation;
#[path = "cuda/graphs.rs"]
mod graphs;
#[path = "cuda/group_norm.rs"]
mod group_norm;
#[path = "cuda/guards.rs"]
mod guards;
#[path = "cuda/harness.rs"]
mod harness;
#[path = "cuda/images.rs"]
mod images;
#[path = "cuda/layer_norm.rs"]
mod layer_norm;
#[path = "cuda/linear.rs"]
mod linear;
#[path = "cuda/losses.rs"]
mod losses;
#[path = "cuda/pixel_losses.rs"]
mod pixel_losses;
#[path = "cuda/recipes.rs"]
mod recipes;
#[path = "cpu/step.rs"]
#[allow(dead_code)]
// these tests draw numbers and compare as the CPU's do, and have machines where those have arenas
mod step;
#[path = "cuda/tokens.rs"]
mod tokens;
#[path = "cuda/update.rs"]
mod update;
#[path = "cuda/video.rs"]
mod video;
#[path = "cuda/video_attention.rs"]
mod video_attention;
