//! `holdall` as people type it: what it prints where, its exit codes, and whether what it forecasts comes true.

#![allow(clippy::unwrap_used)]

mod analyze;
mod bad_input;
mod broken;
mod campaign;
mod caption_scores;
mod cards;
mod classify;
mod classify_refusals;
mod config;
mod damaged;
mod data_check;
mod data_clean;
mod data_clips;
mod doctor;
mod evaluating;
mod exporting;
mod folders;
mod forecast;
mod frame_cache;
mod freeze;
#[cfg(unix)]
mod full_disk;
mod help;
mod hostile_tables;
mod house;
mod hub_server;
mod image_processor;
mod inputs;
#[cfg(unix)]
mod interrupted;
mod json_keys;
mod killed;
mod large_pictures;
#[cfg(target_os = "linux")]
mod limits;
mod lora;
mod losses;
mod memory;
mod model_get;
mod monitor;
#[cfg(target_os = "linux")]
mod mpirun;
mod not_finite;
mod odd_numbers;
#[cfg(target_os = "linux")]
mod on_a_card;
mod out_folder;
mod plan_table;
mod predicting;
mod processes;
mod refusal;
mod report;
mod report_captions;
mod report_segmentation;
mod resume;
mod retrieval;
mod run;
mod searching;
mod segment;
#[cfg(target_os = "linux")]
mod several_processes;
mod telemetry;
#[cfg(unix)]
mod terminal;
mod training;
mod translated;
mod typed;
mod verify;
mod vessels;
mod video_text;
