//! The graph of a training step: which operations it runs on which tensors.
//!
//! The whole step is built before it runs: [`Graph`] holds values (views of storages), nodes (operations the size of a layer)
//! and parameters. [`backward()`] appends the nodes of the backward pass, so that the planner sees the whole step. Nothing in
//! this crate knows about a device.
//!
//! ```text
//!  storage --< value --< node >-- value >-- storage
//!  (bytes)    (a view)   (work)
//! ```
//!
//! Each node belongs to a [`Section`] of the step. Micro-batch sections run once per micro-batch, the other sections once per
//! step:
//!
//! ```text
//! Begin -> Forward x k -> Loss -> Backward x k -> Update
//! ```
//!
//! Forward programs (evaluation, encoders) use the same weights beside the step. A value that is written or read from outside
//! has a name: an endpoint, which planning keeps.

#![forbid(unsafe_code)]

pub mod adapters;
mod backward;
mod cost;
mod graph;
mod op;
pub mod ops;
mod value;

pub use backward::{Backward, backward, backward_into, needs_gradients};
pub use cost::{Cost, NodeView};
pub use graph::{
    BlockId, Copies, Decay, Graph, Node, NodeId, Output, Parameter, ParameterId, Section, Write,
};
pub use op::{Op, Operation, RecomputeRule};
pub use value::{DType, MemorySpace, Role, Shape, Storage, StorageId, Value, ValueId};
