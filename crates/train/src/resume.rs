//! Going on with a run: what may have changed since it began, and what may not.

use serde_json::Value;

use crate::config::RunConfig;
use crate::error::TrainError;

/// Keys that a run may go on with, changed: how long, how fast, when to look and save, and within what.
const MAY_CHANGE: [&str; 23] = [
    "train.epochs",
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
];

/// Lines that say what changed; an error where it would be another run.
pub fn changes(begun: &RunConfig, now: &RunConfig) -> Result<Vec<String>, TrainError> {
    let mut lines = Vec::new();
    let tree = |config: &RunConfig| serde_json::to_value(config).expect("a config is plain data");
    for (key, before, after) in differences("", &tree(begun), &tree(now)) {
        let may = MAY_CHANGE
            .iter()
            .any(|known| key == *known || key.starts_with(&format!("{known}.")));
        if !may {
            let began = match &before {
                Value::Null => "but the run began without it".to_owned(),
                before => format!("expected {before}, as the run began"),
            };
            return Err(TrainError::Config(format!(
                "{key}: {after}, {began}\n\
                 hint: leave it out to go on; a run with another {key} is a new run, with another --out"
            )));
        }
        lines.push(format!("Changed: {key} {before} -> {after}"));
    }
    Ok(lines)
}

/// The first leaf that differs between two configs: its dotted name, and both values.
pub(crate) fn first_difference(expected: &Value, found: &Value) -> Option<(String, Value, Value)> {
    differences("", expected, found).into_iter().next()
}

/// Leaves that differ, by their dotted names.
fn differences(path: &str, before: &Value, after: &Value) -> Vec<(String, Value, Value)> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
            keys.sort();
            keys.dedup();
            let child = |key: &str| match path {
                "" => key.to_owned(),
                path => format!("{path}.{key}"),
            };
            keys.into_iter()
                .flat_map(|key| {
                    let [before, after] =
                        [before, after].map(|map| map.get(key).unwrap_or(&Value::Null));
                    differences(&child(key), before, after)
                })
                .collect()
        }
        (before, after) if before == after => Vec::new(),
        _ => vec![(path.to_owned(), before.clone(), after.clone())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_may_change_and_the_seed_may_not() {
        let begun = RunConfig::default();
        let mut now = begun.clone();
        assert!(changes(&begun, &now).unwrap().is_empty());
        now.train.epochs += 5;
        assert_eq!(
            changes(&begun, &now).unwrap(),
            ["Changed: train.epochs 10 -> 15"]
        );
        now.train.batch_size = Some(16);
        let error = changes(&begun, &now).unwrap_err().to_string();
        let expected = "train.batch_size: 16, but the run began without it\nhint: ";
        assert!(error.starts_with(expected), "{error}");
        now.train.batch_size = None;
        now.seed = 7;
        let error = changes(&begun, &now).unwrap_err().to_string();
        assert!(
            error.contains("seed: 7, expected 0") && error.contains("hint:"),
            "{error}"
        );
    }
}
