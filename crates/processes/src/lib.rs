//! Processes that train together: how they start, connect, communicate, and detect the loss of one.
//!
//! ```text
//! launch variables -> rendezvous (token, addresses) -> Group
//!                                                       control: TCP, a star through rank 0: small messages, heartbeats, errors
//!                                                       bulk:    MPI or TCP, every pair: tensors, added in rank order
//! ```
//!
//! [`Group`] is the interface for the rest of Holdall; this crate knows neither graphs nor devices nor tasks.

mod address;
mod bulk;
mod connect;
mod connection;
mod control;
mod deadlines;
mod door;
mod error;
mod frame;
mod group;
mod hello;
pub mod hostile;
pub mod launch;
pub mod launcher;
pub mod mpi;
mod pulse;
mod rendezvous;
mod start;
mod state;
mod tcp;
pub mod testing;
mod wire;

pub use deadlines::Deadlines;
pub use error::GroupError;
pub use group::Group;
pub use hello::MOST_PROCESSES;
pub use launch::{Launch, Launcher};
pub use pulse::Stretch;
pub use start::DEADLINE_VARIABLE;

#[cfg(test)]
mod tests;
