//! The first difference between two configs.

use serde_json::Value;

/// The first differing leaf of two configs: its dotted name, and both values.
pub(crate) fn first_difference(expected: &Value, found: &Value) -> Option<(String, Value, Value)> {
    differences("", expected, found).into_iter().next()
}

/// Leaves that differ, by their dotted names.
pub(crate) fn differences(
    path: &str,
    before: &Value,
    after: &Value,
) -> Vec<(String, Value, Value)> {
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
