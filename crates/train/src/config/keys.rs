//! All config keys, and hints for unknown ones.
//!
//! Known keys are read off the default config, so no second list can go stale.

use serde_json::Value;

use super::RunConfig;
use super::layers::is_accepted;
use super::pytorch_keys::answer_to;

/// Aliases of keys: section, alias, key. `serde(alias)` accepts them; layers are merged under the real key.
pub(super) const ALIASES: [(&str, &str, &str); 3] = [
    (
        "train",
        "gradient_accumulation_steps",
        "gradient_accumulation",
    ),
    ("train", "scheduler", "schedule"),
    ("train", "lr_scheduler_type", "schedule"),
];

/// Smallest Jaro-Winkler similarity of a key that is suggested.
const NEAR: f64 = 0.85;

/// A section's dotted path and its keys.
struct Section {
    path: String,
    keys: Vec<String>,
}

/// The default config as a tree.
pub(super) fn defaults() -> Value {
    serde_json::to_value(RunConfig::default()).unwrap_or_default()
}

fn sections() -> Vec<Section> {
    fn collect(path: &str, value: &Value, sections: &mut Vec<Section>) {
        let Value::Object(entries) = value else {
            return;
        };
        let mut keys: Vec<String> = entries.keys().cloned().collect();
        let aliases = ALIASES.iter().filter(|(section, ..)| *section == path);
        keys.extend(aliases.map(|(_, alias, _)| (*alias).to_owned()));
        if path.is_empty() {
            keys.push("base".to_owned()); // Read, but never written out.
        }
        if !keys.is_empty() {
            let path = path.to_owned();
            sections.push(Section { path, keys });
        }
        for (key, value) in entries {
            let below = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            collect(&below, value, sections);
        }
    }
    let mut sections = Vec::new();
    collect("", &defaults(), &mut sections);
    sections
}

/// `train.optimizer` as a place in a file: ``under `train: optimizer:` ``.
fn place(path: &str) -> String {
    match path {
        "" => "at the top level".to_owned(),
        _ => format!("under `{}:`", path.replace('.', ": ")),
    }
}

/// Place of the section with these keys: `under `train:``; `None` for the top level.
pub(super) fn section_of(expected: &[&str]) -> Option<String> {
    let all_expected =
        |section: &Section| section.keys.iter().all(|key| expected.contains(&&**key));
    sections()
        .into_iter()
        .find(all_expected)
        .filter(|section| !section.path.is_empty())
        .map(|section| place(&section.path))
}

/// The most similar known word, if it is similar enough.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    known
        .into_iter()
        .map(|known| (strsim::jaro_winkler(&word, known), known))
        .filter(|(nearness, _)| *nearness >= NEAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// Sections whose keys have the same meaning in other tools.
const PLAIN_SECTIONS: [&str; 5] = ["", "train", "train.optimizer", "data", "losses"];

/// Dotted paths of a key in [`PLAIN_SECTIONS`].
pub(super) fn homes(key: &str) -> Vec<String> {
    let sections = sections().into_iter();
    sections
        .filter(|section| PLAIN_SECTIONS.contains(&section.path.as_str()))
        .filter(|section| section.keys.iter().any(|known| known == key))
        .map(|section| dotted(&section.path, key))
        .collect()
}

fn dotted(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

/// The most similar key of any section, if one is similar enough: `` `precision`, at the top level ``.
pub(super) fn nearest_anywhere(key: &str) -> Option<String> {
    sections().iter().find_map(|section| {
        let near = nearest(key, section.keys.iter().map(String::as_str))?;
        Some(format!("`{near}`, {}", place(&section.path)))
    })
}

/// Turns the config line that a hint has in backquotes into a command-line option: `image_root: .` becomes `--set
/// data.image_root=.`. `None` if `--set` would not accept the result.
pub fn as_typed(hint: &str) -> Option<String> {
    if hint.contains("--") {
        return None;
    }
    if let Some(path) = path_of_belonging(hint) {
        return Some(format!("--set {path}=VALUE"));
    }
    let mut quoted = hint.split('`').skip(1).step_by(2);
    quoted.find_map(|line| {
        let (key, value) = line.split_once(": ")?;
        let is_key = |c: char| c.is_ascii_lowercase() || c == '_';
        if !key.chars().all(is_key) {
            return None;
        }
        let sections = sections();
        let has_key = |section: &&Section| section.keys.iter().any(|known| known == key);
        // `label` is both a data key and a loss; hints mean the data key. `train` is a section and a data key; hints mean the
        // section.
        let rank = |section: &&Section| match section.path.as_str() {
            "" => 0,
            "data" => 1,
            _ => 2,
        };
        let mut homes: Vec<&Section> = sections.iter().filter(has_key).collect();
        homes.sort_by_key(rank);
        homes.into_iter().find_map(|home| {
            let (path, value) = innermost(dotted(&home.path, key), value.trim(), &sections);
            let value = value.trim_matches('"');
            let set = format!("{path}={value}");
            let is_plain = !value.contains([' ', '{', '[', '*', '$', '|']);
            is_accepted(&set).then(|| {
                if is_plain {
                    format!("--set {set}")
                } else {
                    format!("--set '{set}'")
                }
            })
        })
    })
}

/// Splits nested keys: `data`, `{label: COLUMN}` and `data`, `label: COLUMN` become `data.label`, `COLUMN`.
fn innermost<'a>(path: String, value: &'a str, sections: &[Section]) -> (String, &'a str) {
    let braced = value
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    let inside = braced.unwrap_or(value);
    let is_section = sections.iter().any(|section| section.path == path);
    match inside.split_once(": ") {
        Some((key, inner)) if is_section && has_one_entry(inside) && !key.contains(' ') => {
            innermost(format!("{path}.{key}"), inner.trim(), sections)
        }
        _ => (path, value),
    }
}

/// Whether no comma stands outside of brackets.
fn has_one_entry(text: &str) -> bool {
    let mut depth = 0;
    text.chars().all(|c| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        c != ',' || depth > 0
    })
}

/// Dotted path in a hint: `` `weight_decay` belongs under `train: optimizer:` `` gives `train.optimizer.weight_decay`. `None` for a key of
/// several inner sections, such as `flip`.
fn path_of_belonging(hint: &str) -> Option<String> {
    let (key, place) = hint.strip_prefix('`')?.split_once("` belongs ")?;
    if place.starts_with("under `data: ") && place.contains("` or under `") {
        return None;
    }
    let path = match place.strip_prefix("under `") {
        Some(place) => place.split_once(":`")?.0.replace(": ", ".") + ".",
        None if place.starts_with("at the top level") => String::new(),
        None => return None,
    };
    Some(path + key)
}

/// Hint for an unknown key of a section that has the `expected` keys.
pub(super) fn hint_for_unknown(key: &str, expected: &[&str]) -> String {
    let sections = sections();
    let homes: Vec<String> = sections
        .iter()
        .filter(|section| section.keys.iter().any(|known| known == key))
        .map(|section| place(&section.path))
        .collect();
    let near = nearest(key, expected.iter().copied());
    // A key from a PyTorch script may be a key of another section here.
    if let (Some(answer), false) = (answer_to(key), homes.is_empty()) {
        return format!("{answer}; or `{key}` belongs {}", homes.join(" or "));
    }
    if !homes.is_empty() {
        let or_else = near.map_or(String::new(), |near| format!("; or did you mean `{near}`?"));
        return format!("`{key}` belongs {}{or_else}", homes.join(" or "));
    }
    if let Some(answer) = answer_to(key) {
        return answer;
    }
    if let Some(near) = near {
        return format!("did you mean `{near}`?");
    }
    nearest_anywhere(key).map_or_else(
        || format!("the keys here are {}", expected.join(", ")),
        |near| format!("did you mean {near}?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_section_is_sent_there() {
        for (key, expected) in [
            ("batch_size", "`batch_size` belongs under `train:`"),
            (
                "weight_decay",
                "`weight_decay` belongs under `train: optimizer:`",
            ),
            (
                "flip",
                "`flip` belongs under `data: augment:` or under `data: pair_augment:`",
            ),
            ("num_workers", "`num_workers` belongs at the top level"),
            ("label", "`label` belongs under `data:` or under `losses:`"),
            (
                "gradient_accumulation_steps",
                "`gradient_accumulation_steps` belongs under `train:`",
            ),
        ] {
            assert_eq!(hint_for_unknown(key, &["x"]), expected);
        }
    }

    #[test]
    fn a_hint_for_a_file_can_be_typed() {
        for (hint, expected) in [
            (
                "`image_root: .` would find it",
                Some("--set data.image_root=."),
            ),
            (
                "say what is to be learnt: `caption: COLUMN` or `label: COLUMN` under `data:`",
                Some("--set data.caption=COLUMN"),
            ),
            (
                "name it, or write a template: `caption: \"a photo of a {make}\"`",
                Some("--set 'data.caption=a photo of a {make}'"),
            ),
            (
                "`train: {max_steps: 1000}` counts",
                Some("--set train.max_steps=1000"),
            ),
            ("`memory: 8GiB`, 8GB", Some("--set memory=8GiB")),
            (
                "name a folder: `train: path`",
                Some("--set data.train=path"),
            ),
            (
                "masks have `data: pair_augment: {flip: true, rotation: 10}`",
                Some("--set 'data.pair_augment={flip: true, rotation: 10}'"),
            ),
            (
                "`data: {pair_augment: {flip: true}}`",
                Some("--set data.pair_augment.flip=true"),
            ),
            ("`precision: sixteen`", None),
            (
                "`weight_decay` belongs under `train: optimizer:`",
                Some("--set train.optimizer.weight_decay=VALUE"),
            ),
            (
                "`flip` belongs under `data: augment:` or under `data: pair_augment:`",
                None,
            ),
            (
                "`memory` belongs at the top level; or did you mean `x`?",
                Some("--set memory=VALUE"),
            ),
            ("`holdall data clean x.csv` writes: `a: b`", None),
            ("name the file: `--out RUN`", None),
            ("check the path", None),
        ] {
            assert_eq!(as_typed(hint).as_deref(), expected, "{hint}");
        }
    }

    #[test]
    fn the_nearest_key_is_offered_where_it_is_near() {
        let here = ["batch_size", "epochs", "lr"];
        let hint = |key| hint_for_unknown(key, &here);
        assert_eq!(hint("batch_sise"), "did you mean `batch_size`?");
        assert_eq!(hint("batch-size"), "did you mean `batch_size`?");
        assert_eq!(hint("Epoch"), "did you mean `epochs`?");
        assert_eq!(
            hint("precison"),
            "did you mean `precision`, at the top level?"
        );
        assert_eq!(hint("xyz"), "the keys here are batch_size, epochs, lr");
    }

    #[test]
    fn every_alias_is_accepted() {
        for (section, alias, key) in ALIASES {
            let value = if key == "schedule" { "linear" } else { "1" };
            let text = format!("{section}: {{{alias}: {value}}}");
            serde_saphyr::from_str::<RunConfig>(&text).unwrap();
        }
    }
}
