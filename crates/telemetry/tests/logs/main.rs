//! Logs drawn at random, logs that are broken, logs of real runs, and one that is very long.

#![allow(clippy::unwrap_used)]

#[path = "../../../data/tests/hostile/counting.rs"]
mod counting;
mod draw;
mod hostile;
mod large;
mod leaks;
mod messages;
mod real;
mod verdicts;
