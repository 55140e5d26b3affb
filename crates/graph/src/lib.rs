//! What a training step computes.
//!
//! A step is written down before it runs: [`Graph`] holds values (views of storages), nodes (operations the
//! size of a layer) and parameters. [`backward()`] appends the nodes that carry gradients back, so that the planner
//! sees the whole step, and nothing here knows about a device.
//!
//! ```text
//!  storage --< value --< node >-- value >-- storage
//!  (bytes)    (a view)   (work)
//! ```
//!
//! Nodes belong to a [`Section`] of the step. Micro-batch sections run once per micro-batch, the others once
//! per step:
//!
//! ```text
//! Begin -> Forward x k -> Loss -> Backward x k -> Update
//! ```
//!
//! Forward programs (evaluation, encoders) stand beside the step, over the same weights. What is fed and read from outside
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
