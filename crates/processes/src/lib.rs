//! Processes that train together: how they start, find each other, talk, and notice that one of them is gone.
//!
//! ```text
//! launch variables -> rendezvous (token, addresses) -> Group
//!                                                       control: TCP, a star through rank 0: small messages, heartbeats, errors
//!                                                       bulk:    MPI or TCP, every pair: tensors, added in rank order
//! ```
//!
//! [`Group`] is what the rest of Holdall sees; this crate knows neither graphs nor devices nor tasks.

mod bulk;
mod connect;
mod control;
mod error;
mod frame;
mod group;
mod hello;
mod rendezvous;
mod tcp;
pub mod testing;
mod wire;

pub use error::GroupError;
pub use group::{Deadlines, Group};
pub use hello::MOST_PROCESSES;

#[cfg(test)]
mod tests;
