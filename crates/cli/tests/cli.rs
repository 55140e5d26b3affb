//! `holdall` as people type it: what it prints where, its exit codes, and whether what it forecasts comes true.

#![allow(clippy::unwrap_used)]

#[path = "cli/config.rs"]
mod config;
#[path = "cli/folders.rs"]
mod folders;
#[path = "cli/forecast.rs"]
mod forecast;
#[path = "cli/help.rs"]
mod help;
#[path = "cli/json_keys.rs"]
mod json_keys;
#[path = "cli/odd_numbers.rs"]
mod odd_numbers;
#[path = "cli/plan_table.rs"]
mod plan_table;
#[path = "cli/refusal.rs"]
mod refusal;
#[path = "cli/typed.rs"]
mod typed;
#[path = "cli/verify.rs"]
mod verify;
