//! Reports failures to the user: on stderr, with a hint, and as an exit code.

use std::process::ExitCode;

use holdall_data::DataError;
use holdall_device::DeviceError;
use holdall_files::show_bytes;
use holdall_metrics::InputError;
use holdall_models::ModelError;
use holdall_plan::PlanError;
use holdall_processes::GroupError;
use holdall_train::TrainError;
use holdall_train::config::budget::show_time;
use holdall_train::config::{TypedOption, typed_option};

use crate::screen::{self, tell};

/// A check found something, or a run failed.
pub const FOUND: u8 = 1;
/// Bad arguments, config or data.
pub const BAD_INPUT: u8 = 2;
/// Does not fit the budget.
pub const DOES_NOT_FIT: u8 = 3;

/// Prints an error and returns its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    screen::everything();
    if let Some(error) = group_error(error) {
        tell(&format!("error: {error}"));
        return ExitCode::from(if error.is_bad_input() {
            BAD_INPUT
        } else {
            FOUND
        });
    }
    if let Some(InputError::HeaderOverBudget { .. }) = error.downcast_ref() {
        tell(&format!("error: {error}"));
        return ExitCode::from(DOES_NOT_FIT);
    }
    match error.downcast_ref::<TrainError>() {
        Some(TrainError::Plan(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes,
            changes,
            available_bytes,
            note,
        })) => {
            tell(&format!(
                "error: the run does not fit: the budget is {}, the smallest that would do is {}",
                show_bytes(*budget_bytes),
                show_bytes(*smallest_bytes)
            ));
            if let Some(note) = note {
                tell(note);
            }
            let is_there = available_bytes.is_none_or(|available| *smallest_bytes <= available);
            if changes.is_empty() && !is_there {
                tell("hint: a smaller model, smaller pictures, or a machine with more memory");
            } else if changes.is_empty() {
                tell(&format!(
                    "hint: --memory {}MiB",
                    smallest_bytes.div_ceil(1 << 20)
                ));
            }
            for change in changes {
                tell(&format!(
                    "hint: {}: {}, about {} a step",
                    change.change,
                    show_bytes(change.process_bytes),
                    show_time(change.step_ms)
                ));
            }
            ExitCode::from(DOES_NOT_FIT)
        }
        Some(TrainError::Device(error)) => {
            tell(&format!("error: {error}"));
            ExitCode::from(match error {
                DeviceError::Missing(_) => BAD_INPUT,
                DeviceError::Memory { .. } => DOES_NOT_FIT,
                DeviceError::Failed(_) => FOUND,
            })
        }
        Some(
            TrainError::DoesNotFit(_)
            | TrainError::Data(DataError::TokenizerOverBudget { .. } | DataError::OverBudget { .. }),
        ) => {
            tell(&format!("error: {error}"));
            ExitCode::from(DOES_NOT_FIT)
        }
        Some(TrainError::Model(model))
            if matches!(**model, ModelError::HeaderOverBudget { .. }) =>
        {
            tell(&format!("error: {error}"));
            ExitCode::from(DOES_NOT_FIT)
        }
        Some(TrainError::Run(_) | TrainError::File { .. } | TrainError::Diverged(_)) => {
            tell(&format!("error: {error}"));
            ExitCode::from(FOUND)
        }
        _ => {
            tell(&for_who_typed(
                &format!("error: {error:#}"),
                std::env::args(),
            ));
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// The error as one between processes, if it is one.
fn group_error(error: &anyhow::Error) -> Option<&GroupError> {
    match error.downcast_ref() {
        Some(TrainError::Processes(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Extends a hint about config keys by the `--set` option to type, for commands without a config file.
fn for_who_typed(text: &str, mut typed: impl Iterator<Item = String>) -> String {
    const TAKE_SETS: [&str; 4] = ["train", "plan", "verify", "data"];
    let command = typed.nth(1).unwrap_or_default();
    let words: Vec<String> = typed.collect();
    let is_config = |word: &String| word.ends_with(".yml") || word.ends_with(".yaml");
    let has_config = words.iter().any(is_config);
    let hint = text.rsplit_once("\nhint: ").map(|(_, hint)| hint);
    let typed = words
        .iter()
        .find_map(|word| meant_by_set(text, word))
        .or_else(|| hint.and_then(holdall_train::config::as_typed));
    // A key that was typed at the wrong place keeps its value; without a value, there is no command to suggest.
    let typed = typed.and_then(|typed| {
        let Some(path) = typed.strip_suffix("=VALUE") else {
            return Some(typed);
        };
        words.iter().find_map(|word| {
            let (key, value) = word.split_once('=')?;
            let name = key.rsplit('.').next()?;
            let is_meant = text.starts_with(&format!("error: --set {word}: unknown key `{name}`"));
            let is_elsewhere = path != format!("--set {key}");
            (is_meant && is_elsewhere).then(|| format!("{path}={value}"))
        })
    });
    match typed.filter(|_| TAKE_SETS.contains(&command.as_str()) && !has_config) {
        Some(typed) => format!("{text}; on the command line: {typed}"),
        None => text.to_owned(),
    }
}

/// Suggestion for a refused `--set mixed_precision=fp16`: `--set precision=fp16`.
fn meant_by_set(error: &str, word: &str) -> Option<String> {
    let (key, value) = word.split_once('=')?;
    let is_refused = error.starts_with(&format!("error: --set {word}: unknown key `{key}`"));
    match typed_option(key, Some(value)).filter(|_| is_refused)? {
        TypedOption::Means { words, .. } => Some(words.join(" ")).filter(|text| !text.is_empty()),
        TypedOption::Answer(_) => None,
    }
}

/// A plan error as JSON, for `--json`; `None` for other errors.
pub fn does_not_fit_json(device: &str, error: &TrainError) -> Option<serde_json::Value> {
    match error {
        TrainError::Plan(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes,
            changes,
            ..
        }) => Some(serde_json::json!({
            "device": device,
            "budget_bytes": budget_bytes,
            "chosen": null,
            "alternatives": [],
            "smallest_budget_bytes": smallest_bytes,
            "changes": changes,
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_typed_no_config_is_told_what_to_type() {
        let say = |line: &str| {
            let text = "error: 1.jpg: not there\nhint: `image_root: .` would find it";
            let words = line.split(' ').map(str::to_owned);
            for_who_typed(text, words).contains("; on the command line: --set data.image_root=.")
        };
        assert!(say("holdall train photos.csv") && say("holdall data check photos.csv"));
        let text = "error: --set max_steps=5: unknown key `max_steps`\nhint: `max_steps` belongs under `train:`";
        let words = ["holdall", "train", "photos.csv", "--set", "max_steps=5"];
        let said = for_who_typed(text, words.into_iter().map(str::to_owned));
        assert!(
            said.ends_with("on the command line: --set train.max_steps=5"),
            "{said}"
        );
        let text = "error: --set data.rotation=10: unknown key `rotation` under `data:`\n\
                    hint: `rotation` belongs under `data: pair_augment:`";
        let words = ["holdall", "train", "photos", "--set", "data.rotation=10"];
        let said = for_who_typed(text, words.into_iter().map(str::to_owned));
        assert!(
            said.ends_with("on the command line: --set data.pair_augment.rotation=10"),
            "{said}"
        );
        assert!(!say("holdall train cars.yml") && !say("holdall predict RUN 1.jpg"));
    }
}
