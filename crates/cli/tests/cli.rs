//! `holdall` as people type it: what it prints where, its exit codes, and whether what it forecasts comes true.

#![allow(clippy::unwrap_used)]

#[path = "cli/analyze.rs"]
mod analyze;
#[path = "cli/bad_input.rs"]
mod bad_input;
#[path = "cli/broken.rs"]
mod broken;
#[path = "cli/campaign.rs"]
mod campaign;
#[path = "cli/caption_scores.rs"]
mod caption_scores;
#[path = "cli/cards.rs"]
mod cards;
#[path = "cli/classify.rs"]
mod classify;
#[path = "cli/classify_refusals.rs"]
mod classify_refusals;
#[path = "cli/config.rs"]
mod config;
#[path = "cli/damaged.rs"]
mod damaged;
#[path = "cli/data_check.rs"]
mod data_check;
#[path = "cli/data_clean.rs"]
mod data_clean;
#[path = "cli/data_clips.rs"]
mod data_clips;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/evaluating.rs"]
mod evaluating;
#[path = "cli/exporting.rs"]
mod exporting;
#[path = "cli/folders.rs"]
mod folders;
#[path = "cli/forecast.rs"]
mod forecast;
#[path = "cli/frame_cache.rs"]
mod frame_cache;
#[path = "cli/freeze.rs"]
mod freeze;
#[cfg(unix)]
#[path = "cli/full_disk.rs"]
mod full_disk;
#[path = "cli/help.rs"]
mod help;
#[path = "cli/hostile_tables.rs"]
mod hostile_tables;
#[path = "cli/house.rs"]
mod house;
#[path = "cli/hub_server.rs"]
mod hub_server;
#[path = "cli/image_processor.rs"]
mod image_processor;
#[path = "cli/inputs.rs"]
mod inputs;
#[cfg(unix)]
#[path = "cli/interrupted.rs"]
mod interrupted;
#[path = "cli/json_keys.rs"]
mod json_keys;
#[path = "cli/killed.rs"]
mod killed;
#[path = "cli/large_pictures.rs"]
mod large_pictures;
#[cfg(target_os = "linux")]
#[path = "cli/limits.rs"]
mod limits;
#[path = "cli/lora.rs"]
mod lora;
#[path = "cli/losses.rs"]
mod losses;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/model_get.rs"]
mod model_get;
#[path = "cli/monitor.rs"]
mod monitor;
#[cfg(target_os = "linux")]
#[path = "cli/mpirun.rs"]
mod mpirun;
#[path = "cli/not_finite.rs"]
mod not_finite;
#[path = "cli/odd_numbers.rs"]
mod odd_numbers;
#[path = "cli/on_a_card.rs"]
mod on_a_card;
#[path = "cli/out_folder.rs"]
mod out_folder;
#[path = "cli/plan_table.rs"]
mod plan_table;
#[path = "cli/predicting.rs"]
mod predicting;
#[path = "cli/processes.rs"]
mod processes;
#[path = "cli/refusal.rs"]
mod refusal;
#[path = "cli/report.rs"]
mod report;
#[path = "cli/report_captions.rs"]
mod report_captions;
#[path = "cli/report_segmentation.rs"]
mod report_segmentation;
#[path = "cli/resume.rs"]
mod resume;
#[path = "cli/retrieval.rs"]
mod retrieval;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/searching.rs"]
mod searching;
#[path = "cli/segment.rs"]
mod segment;
#[cfg(target_os = "linux")]
#[path = "cli/several_processes.rs"]
mod several_processes;
#[path = "cli/telemetry.rs"]
mod telemetry;
#[path = "cli/training.rs"]
mod training;
#[path = "cli/translated.rs"]
mod translated;
#[path = "cli/typed.rs"]
mod typed;
#[path = "cli/verify.rs"]
mod verify;
#[path = "cli/vessels.rs"]
mod vessels;
#[path = "cli/video_text.rs"]
mod video_text;
