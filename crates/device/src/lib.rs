//! Devices: they run planned programs.
//!
//! A device allocates one arena and replays instructions at the addresses that the plan chose; it decides nothing. Training uses
//! [`Device`] and [`Machine`], which dispatch to [`cpu`] and [`cuda`].

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
