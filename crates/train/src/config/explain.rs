//! Turns parser errors of a config into messages: file and line, the value found, the value expected, a hint.

use serde_json::Value;
use serde_saphyr::Error;

use super::keys::{defaults, hint_for_unknown, nearest, section_of};
use super::layers::LayerSource;
use super::located_value::LocatedValue;
use super::pytorch_keys;
use crate::config::budget::with_units;
use crate::error::TrainError;

/// Message for Windows paths in double quotes.
pub(super) const BACKSLASH: &str = "a backslash in double quotes begins an escape such as \\n";
pub(super) const BACKSLASH_HINT: &str =
    "in single quotes it stands for itself, 'C:\\Users'; C:/Users works too";

/// Message and hint.
struct Complaint {
    what: String,
    hint: Option<String>,
}

impl Complaint {
    fn new(what: impl Into<String>) -> Complaint {
        let what = what.into();
        Complaint { what, hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> Complaint {
        let hint = Some(hint.into());
        Complaint { hint, ..self }
    }
}

/// Message for a parser error in a layer. `tree` is `None` if the text is not YAML at all.
pub(super) fn explain(
    error: &Error,
    source: &LayerSource,
    tree: Option<&LocatedValue>,
) -> TrainError {
    let location = error.location();
    let line = location.map(|location| location.line());
    let path = location
        .and_then(|location| tree?.path_at(location.line(), location.column()))
        .filter(|path| !path.is_empty() && !is_about_a_key(error));
    let Complaint { what, hint } = match (path.as_deref(), error.without_snippet()) {
        (Some("memory" | "host_memory"), Error::QuotingRequired { value, .. }) => {
            let key = path.as_deref().unwrap_or_default();
            let units = value.parse().map_or(vec!["8GiB".to_owned()], with_units);
            let mut hint = format!("`{key}: {}`", units[0]);
            for other in &units[1..] {
                hint += &format!(", {other}");
            }
            Complaint::new("a size needs its unit").hint(hint)
        }
        (Some("train.warmup"), Error::Message { msg, .. }) => {
            let typed = msg.split('`').nth(1).and_then(|typed| typed.parse().ok());
            let complaint = Complaint::new(msg);
            match typed.filter(|share: &f64| *share > 0.0 && *share < 1.0) {
                Some(share) => complaint.hint(format!("`warmup: {}%`", as_percent(share))),
                None => complaint,
            }
        }
        (
            Some("task"),
            Error::SerdeUnknownVariant {
                variant, expected, ..
            },
        ) if variant.contains("detect") => {
            let expected = one_of(expected.as_slice());
            Complaint::new(format!(
                "`{variant}`: objects are not detected here; expected {expected}"
            ))
        }
        (
            _,
            Error::Unexpected {
                expected: "mapping start",
                ..
            },
        ) => section_complaint(source),
        _ => complaint(error),
    };
    let hint = hint.unwrap_or_else(|| hint_for_value(path.as_deref()));
    source.complain(line, path.as_deref(), &what, &hint)
}

/// `0.1` as `10`, without the digits that floating point adds.
fn as_percent(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}

/// Message for a single value in place of a section. The typed value may be the data file, or a key of the section.
fn section_complaint(source: &LayerSource) -> Complaint {
    let complaint = Complaint::new("expected keys with values, `key: value`");
    let LayerSource::Set { key, typed } = source else {
        return complaint;
    };
    let value = typed.split_once('=').map_or("", |(_, value)| value.trim());
    if *key == "train" {
        return complaint.hint(format!(
            "`train` has the keys of training; what to train on is `data: {{train: {value}}}`"
        ));
    }
    let inner = value.split(':').next().unwrap_or_default().trim();
    let pointer = format!("/{}", key.replace('.', "/"));
    let defaults = defaults();
    match defaults
        .pointer(&pointer)
        .and_then(|section| section.get(inner))
    {
        Some(Value::Object(keys)) => {
            let example = keys.keys().next().map_or("KEY", String::as_str);
            complaint.hint(format!("--set '{key}.{inner}={{{example}: VALUE}}'"))
        }
        Some(_) => complaint.hint(format!("--set {key}.{inner}=VALUE")),
        None if *key == "data" => {
            complaint.hint(format!("`data: {{train: {value}}}` names what to train on"))
        }
        None => complaint.hint(format!("--set {key}.KEY=VALUE")),
    }
}

/// Whether the error names the key itself, so that the path of a value would add nothing.
fn is_about_a_key(error: &Error) -> bool {
    matches!(
        error,
        Error::SerdeUnknownField { .. } | Error::DuplicateMappingKey { .. }
    )
}

fn complaint(error: &Error) -> Complaint {
    match error.without_snippet() {
        Error::AliasError { error, .. } => complaint(error),
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            if expected == TARGET_KEYS {
                return Complaint::new(format!("unknown key `{field}` of a target")).hint(
                    "a target is a column: `targets: {make: make}` has one label a cell, \
                     `{column: tags, separator: \"|\"}` several, `{number: age}` numbers",
                );
            }
            let place = section_of(expected).map_or(String::new(), |place| format!(" {place}"));
            Complaint::new(format!("unknown key `{field}`{place}"))
                .hint(hint_for_unknown(field, expected))
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => {
            let complaint = Complaint::new(format!(
                "`{variant}`, expected {}",
                one_of(expected.as_slice())
            ));
            match nearest(variant, expected.iter().copied()) {
                Some(near) => complaint.hint(format!("did you mean `{near}`?")),
                None => complaint,
            }
        }
        Error::InvalidScalar { ty, .. } => Complaint::new(format!("expected {}", type_name(ty))),
        Error::InvalidBooleanStrict { .. } => Complaint::new("expected true or false"),
        Error::NullIntoString { .. } => Complaint::new("expected text, found nothing"),
        Error::Unexpected { expected, .. } => match *expected {
            "mapping start" => Complaint::new("expected keys with values, `key: value`"),
            "sequence start" => Complaint::new("expected a list in brackets, `[one, another]`"),
            "string scalar" => Complaint::new("expected a single value"),
            other => Complaint::new(format!("expected {other}")),
        },
        Error::QuotingRequired { value, .. } => Complaint::new(format!("`{value}`, expected text")),
        Error::DuplicateMappingKey { key, .. } => {
            let key = key
                .as_ref()
                .map_or(String::new(), |key| format!(" `{key}`"));
            Complaint::new(format!("the key{key} stands there twice")).hint("keep one of them")
        }
        Error::MultipleDocuments { .. } => {
            Complaint::new("`---` begins a second document, expected one")
                .hint("one file for each config; `base: other.yml` builds on another")
        }
        Error::Message { msg, .. } if msg.starts_with("data did not match any variant") => {
            Complaint::new("not a value of this key")
        }
        Error::Message { msg, .. } => Complaint::new(msg),
        Error::SerdeInvalidType {
            unexpected,
            expected,
            ..
        }
        | Error::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        } => Complaint::new(format!("expected {expected}, found {unexpected}")),
        other => {
            let text = other.to_string();
            let text = text
                .rsplit_once(" at line ")
                .map_or(&*text, |(what, _)| what);
            if text.contains("quoted scalar") {
                return Complaint::new(BACKSLASH).hint(BACKSLASH_HINT);
            }
            Complaint::new(format!("is not YAML: {text}"))
                .hint("brackets are closed, lines of a section are indented alike, text with `: ` or `#` is in quotes")
        }
    }
}

/// Keys of a target that is not a plain column.
const TARGET_KEYS: &[&str] = &["column", "separator", "columns", "number"];

fn one_of(names: &[&str]) -> String {
    match names {
        [only] => (*only).to_owned(),
        _ => format!("one of {}", names.join(", ")),
    }
}

fn type_name(name: &str) -> &str {
    match name {
        "floating point" => "a number",
        "u64" | "usize" | "u32" | "u16" | "u8" => "a whole number of at least 0",
        other => other,
    }
}

/// Hint with a valid value for this path.
fn hint_for_value(path: Option<&str>) -> String {
    const EXAMPLE: &str = "the README has an example of a config";
    let Some(path) = path else {
        return EXAMPLE.to_owned();
    };
    let key = path.rsplit('.').next().unwrap_or(path);
    let default = defaults()
        .pointer(&format!("/{}", path.replace('.', "/")))
        .cloned();
    match (path, default) {
        ("memory" | "host_memory", _) => format!("`{key}: 8GiB`, 8GB, 80% or auto"),
        ("task", _) => "leave `task` out, and the data says what it is: captions (clip), labels or numbers (classify), masks (segment; boxes are not detected), clips (video-text)".to_owned(),
        ("train.lr" | "train.lr_head", _) => format!("`{key}: 1e-3`; without it, task and weights decide"),
        ("train.epochs" | "train.effective_batch", _) => {
            format!("`{key}: 16`; without it, task and data decide")
        }
        ("data.validation", _) => "`validation: 10%`, a CSV, {column: split}, {column: fold, value: 3}, {group: patient}, or none".to_owned(),
        ("train.optimizer", _) => {
            pytorch_keys::answer_to("adamw").unwrap_or_else(|| EXAMPLE.to_owned())
        }
        ("losses.class_weights", _) => {
            "`class_weights: balanced`, or a number for each class of masks: `[1, 5]`".to_owned()
        }
        ("train.freeze", _) => {
            "`freeze: [vision_model]`, `freeze: {vision_model: all but 2}` or `freeze: all but heads`"
                .to_owned()
        }
        ("train.lora", _) => "`lora: {rank: 16, alpha: 32, targets: [q_proj, v_proj]}`".to_owned(),
        ("train.lr_by", _) => "`lr_by: {\"vision_model.*\": 1e-6}`".to_owned(),
        (_, Some(Value::Object(_))) => {
            format!("`{path}` is a section: its keys go below it, indented")
        }
        (_, Some(Value::Null)) => {
            format!("leave `{key}` out; text that looks like a number goes in quotes")
        }
        (_, Some(default)) => format!("by default it is `{key}: {}`", show(&default)),
        (_, None) => EXAMPLE.to_owned(),
    }
}

/// A value as people write it: no quotes, small numbers as powers of ten.
fn show(value: &Value) -> String {
    match value.as_f64() {
        Some(small) if small != 0.0 && small.abs() < 1e-3 => format!("{small:e}"),
        _ => value.to_string().replace('"', ""),
    }
}
