//! Draws data sets, so that the demo, the tests and a first try need no download: cars, eyes with vessels, and clips of moving shapes.

#![forbid(unsafe_code)]

pub mod cars;
mod drawn_file;
pub mod moving_shapes;
mod random;
pub mod vessels;
