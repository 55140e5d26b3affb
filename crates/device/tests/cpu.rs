//! The CPU against mathematics, and planned programs against each other.
//!
//! Gradients are checked in f64 against finite differences; threads, recomputation, kept micro-batches and
//! placement must not change a bit. Everything runs as it would in training: graph, plan, arena, program.

#![allow(clippy::unwrap_used)] // a test that fails here fails with a backtrace, which says more than a message

#[path = "cpu/captions.rs"]
mod captions;
#[path = "cpu/convolutions.rs"]
mod convolutions;
#[path = "cpu/decoding.rs"]
mod decoding;
#[path = "cpu/definitions.rs"]
mod definitions;
#[path = "cpu/dropout.rs"]
mod dropout;
#[path = "cpu/golden_captions.rs"]
mod golden_captions;
#[path = "cpu/golden_images.rs"]
mod golden_images;
#[path = "cpu/gradient_check.rs"]
mod gradient_check;
#[path = "cpu/gradients_of_captions.rs"]
mod gradients_of_captions;
#[path = "cpu/gradients_of_graphs.rs"]
mod gradients_of_graphs;
#[path = "cpu/gradients_of_images.rs"]
mod gradients_of_images;
#[path = "cpu/gradients_of_operations.rs"]
mod gradients_of_operations;
#[path = "cpu/moment_formats.rs"]
mod moment_formats;
#[path = "cpu/optimizer.rs"]
mod optimizer;
#[path = "cpu/placement.rs"]
mod placement;
#[path = "cpu/random_graphs.rs"]
mod random_graphs;
#[path = "cpu/recompute.rs"]
mod recompute;
#[path = "cpu/shadow.rs"]
mod shadow;
#[path = "cpu/step.rs"]
mod step;
#[path = "cpu/threads.rs"]
mod threads;
#[path = "cpu/two_branches.rs"]
mod two_branches;
