//! What runs a planned program.
//!
//! A device replays instructions at addresses that the plan chose: it allocates one arena, and decides nothing.
//! [`Device`] and [`Machine`] are what training sees; [`cpu`] and [`cuda`] are behind them.

#[macro_use]
mod plain_operations;

pub mod cpu;
pub mod cuda;
mod dynamic_map;
pub mod gauge;
mod machine;
mod rows;

pub use machine::{Arithmetic, Device, DeviceChoice, DeviceError, Machine};
pub use rows::HostRow;
