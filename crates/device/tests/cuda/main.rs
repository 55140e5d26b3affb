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

mod attention;
mod convolution;
mod elements;
mod every_operation;
mod graphs;
mod group_norm;
mod guards;
mod harness;
mod images;
mod layer_norm;
mod linear;
mod losses;
mod pixel_losses;
mod recipes;
#[path = "../cpu/step.rs"]
#[allow(dead_code)]
// these tests draw numbers and compare as the CPU's do, and have machines where those have arenas
mod step;
mod tokens;
mod update;
mod video;
mod video_attention;
