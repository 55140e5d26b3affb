//! Checks which settings changed between a run and its resumption, and whether they may.

use serde_json::Value;

use crate::config::budget::{Memory, show_bytes};
use crate::config::{RunConfig, differences};
use crate::error::TrainError;

/// Keys that may change: length, learning rates, times of evaluation and checkpoints, and resources.
const MAY_CHANGE: [&str; 25] = [
    "train.epochs",
    "train.max_steps",
    "train.lr",
    "train.lr_head",
    "train.lr_by",
    "train.lr_end",
    "train.schedule",
    "train.warmup",
    "train.eval_every",
    "train.eval_on",
    "train.eval_batch_size",
    "train.save_every",
    "train.early_stop",
    "train.recompute",
    "data.bad_pictures",
    "data.max_skipped",
    "data.replaced_pictures",
    "data.picture_check",
    "video_text.cache_folder",
    "memory",
    "host_memory",
    "num_threads",
    "num_workers",
    "prefetch",
    "run_name",
];

/// Lines that describe the changes; an error if they would make it another run. Paths are compared by the files that they
/// lead to.
pub fn changes(begun: &RunConfig, now: &RunConfig) -> Result<Vec<String>, TrainError> {
    let mut lines = Vec::new();
    let tree = |config: &RunConfig| {
        serde_json::to_value(config.with_real_paths()).expect("a config is plain data")
    };
    for (key, before, after) in differences("", &tree(begun), &tree(now)) {
        let may = MAY_CHANGE
            .iter()
            .any(|known| key == *known || key.starts_with(&format!("{known}.")));
        if !may {
            let what = match (&before, &after) {
                (Value::Null, after) => {
                    let after = in_words(&key, after);
                    let has = split_of(&key, begun).unwrap_or("none".to_owned());
                    format!("cannot resume with {key}: {after}; the run has {has}")
                }
                (before, Value::Null) => format!(
                    "cannot resume without {key}; the run has {}",
                    in_words(&key, before)
                ),
                (before, after) => format!(
                    "cannot resume with {key}: {}; the run has {}",
                    in_words(&key, after),
                    in_words(&key, before)
                ),
            };
            let keep = if after.is_null() { "keep" } else { "leave out" };
            return Err(TrainError::Config(format!(
                "{what}\nhint: {keep} {key} to resume; another {key} is another run, with its own --out"
            )));
        }
        lines.push(format!(
            "Changed: {key} {} -> {}",
            in_words(&key, &before),
            in_words(&key, &after)
        ));
    }
    Ok(lines)
}

/// Batch size and accumulation, if the run has those instead of an effective batch.
fn split_of(key: &str, begun: &RunConfig) -> Option<String> {
    let (size, accumulation) = (begun.train.batch_size?, begun.train.gradient_accumulation?);
    (key == "train.effective_batch").then(|| {
        format!("train.batch_size: {size} and train.gradient_accumulation: {accumulation}")
    })
}

/// A value as people write it: sizes in GiB, no quotes, `none` for null.
fn in_words(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) if key.ends_with("memory") => match text.parse() {
            Ok(Memory::Bytes(bytes)) => show_bytes(bytes),
            _ => text.clone(),
        },
        Value::String(text) => text.clone(),
        value => value.to_string().replace('"', ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_may_change_and_the_seed_may_not() {
        let mut begun = RunConfig::default();
        begun.train.epochs = Some(10);
        let mut now = begun.clone();
        assert!(changes(&begun, &now).unwrap().is_empty());
        now.train.epochs = Some(15);
        assert_eq!(
            changes(&begun, &now).unwrap(),
            ["Changed: train.epochs 10 -> 15"]
        );
        now.train.batch_size = Some(16);
        let error = changes(&begun, &now).unwrap_err().to_string();
        let expected = "cannot resume with train.batch_size: 16; the run has none\nhint: leave out train.batch_size";
        assert!(error.starts_with(expected), "{error}");
        begun.train.batch_size = Some(1);
        begun.train.gradient_accumulation = Some(16);
        now.train.batch_size = Some(1);
        now.train.effective_batch = Some(8);
        let error = changes(&begun, &now).unwrap_err().to_string();
        let expected = "cannot resume with train.effective_batch: 8; the run has train.batch_size: 1 and \
                        train.gradient_accumulation: 16\nhint: ";
        assert!(error.starts_with(expected), "{error}");
        for config in [&mut begun, &mut now] {
            config.train.effective_batch = None;
            config.train.batch_size = None;
            config.train.gradient_accumulation = None;
        }
        now.seed = 7;
        let error = changes(&begun, &now).unwrap_err().to_string();
        let expected = "cannot resume with seed: 7; the run has 0\nhint: leave out seed to resume";
        assert!(error.starts_with(expected), "{error}");
        now.seed = 0;
        now.memory = Memory::Bytes(6 << 30);
        now.train.max_steps = Some(50);
        now.train.epochs = begun.train.epochs;
        assert_eq!(
            changes(&begun, &now).unwrap(),
            [
                "Changed: memory auto -> 6.00 GiB",
                "Changed: train.max_steps none -> 50"
            ]
        );
    }
}
