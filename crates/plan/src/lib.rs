//! Plans the memory of a training step.
//!
//! Pure functions from a graph to an allocation; no device is touched. A step is a schedule of programs over one
//! arena, and lifetimes span them all:
//!
//! ```text
//!            begin | first pass x (k-K) | kept forward x K  | loss | kept backward x K | forward+backward x(k-K)| update
//! weights    =====================================================================================================
//! features   =====================================================================================================
//! slots                                 [=========== K times the kept activations =============]
//! gradients                                                 [=========================================================]
//! transient        [.....]              [.....]             [....]  [.....]             [.......]              [....]
//! ```
//!
//! Slots are a stack: filled from the first to the last, emptied from the last to the first.
//!
//! `K` of `k` micro-batches keep their activations between the two passes; the others run forward a second time.
//! Each program's transients are packed on their own, then programs, slots and gradients are packed against each
//! other, so that regions with disjoint lifetimes may share addresses.

#![forbid(unsafe_code)]

mod advice;
mod candidate;
mod change;
mod curve;
mod error;
mod frozen_blocks;
mod host_state;
mod lanes;
mod layout;
mod lifetimes;
mod memory_map;
mod pack;
mod program;
mod recompute;
mod request;
mod search;
mod shorter;
mod target;

pub use advice::{Variant, variants_that_fit};
pub use candidate::{Build, Candidate, Choice, StepShape, WeightCopies};
pub use change::{Change, ChangeKind};
pub use curve::{knee, without_dominated};
pub use error::PlanError;
pub use frozen_blocks::num_trained_blocks;
pub use host_state::HostState;
pub use layout::{Breakdown, InputRegion, Layout, StepPlan};
pub use lifetimes::{Lifetimes, lifetimes_of};
pub use memory_map::{MappedOperation, MappedProgram, MemoryMap, PlacedBox, Tenant};
pub use pack::{Item, Packing, Spacing, liveness_peak, pack};
pub use program::{Instruction, Place, Program, ProgramId, Run, Stage, Workspace};
pub use recompute::{LaneOrder, Recompute, RecomputePolicy, Rewritten, rewrite};
pub use request::Request;
pub use search::{Plan, contenders, plan, plan_of, search};
pub use shorter::ShorterPrograms;
pub use target::Target;
