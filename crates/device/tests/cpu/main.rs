//! The CPU against mathematics, and planned programs against each other.
//!
//! Gradients are checked in f64 against finite differences; threads, recomputation, kept micro-batches and
//! placement must not change a bit. Everything runs as it would in training: graph, plan, arena, program.

#![allow(clippy::unwrap_used)] // a test that fails here fails with a backtrace, which says more than a message

mod captions;
mod convolutions;
mod decoding;
mod definitions;
mod dropout;
mod golden_captions;
mod golden_images;
mod gradient_check;
mod gradients_of_captions;
mod gradients_of_graphs;
mod gradients_of_images;
mod gradients_of_operations;
mod moment_formats;
mod optimizer;
mod placement;
mod random_graphs;
mod recompute;
mod shadow;
mod step;
mod threads;
mod two_branches;
