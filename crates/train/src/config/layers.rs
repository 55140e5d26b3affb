//! Config layers: `base`, the file, `--set`, each merged over the one before.
//!
//! Each layer is checked on its own first, so that an error names its file and line even if a later layer overrides the
//! value. Then the trees are merged: sections merge key by key, every other value replaces.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_saphyr::options::NonFiniteFloatPolicy;

use super::RunConfig;
use super::explain::{BACKSLASH, BACKSLASH_HINT, explain};
use super::keys::ALIASES;
use super::located_value::LocatedValue;
use super::paths::{PATHS, expand_home, start_paths_at};
use super::translate::Translation;
use super::validate::check_numbers;
use crate::error::TrainError;

/// Keys of `train`, of which two say the third.
const BATCH_NUMBERS: [&str; 3] = ["effective_batch", "batch_size", "gradient_accumulation"];

/// Path of the section whose keys are patterns of parameter names.
const RATES_BY_NAME: &str = "train.lr_by";

/// Largest config file. Parsing takes about three times as much memory, and the budget is known only after parsing.
pub(crate) const MOST_CONFIG_BYTES: u64 = 4 << 20;

/// Origin of a layer.
pub(super) enum LayerSource<'a> {
    File {
        path: &'a Path,
        text: &'a str,
    },
    /// A config file of another tool, translated to Holdall's keys.
    Translated {
        path: &'a Path,
    },
    Set {
        key: &'a str,
        typed: &'a str,
    },
}

impl LayerSource<'_> {
    /// Error message: file, line, path, problem and the text of the line; for `--set`, the typed text and the problem.
    pub(super) fn complain(
        &self,
        line: Option<u64>,
        path: Option<&str>,
        what: &str,
        hint: &str,
    ) -> TrainError {
        let last = |path: &str| path.rsplit('.').next().map(str::to_owned);
        let path = path
            // The path is left out if the message begins with the key.
            .filter(|path| last(path).is_none_or(|key| !what.starts_with(&format!("{key} `"))))
            .filter(|path| !matches!(self, LayerSource::Set { key, .. } if key == path))
            .map_or(String::new(), |path| format!("{path}: "));
        TrainError::Config(match self {
            LayerSource::Set { typed, .. } => format!("--set {typed}: {path}{what}\nhint: {hint}"),
            LayerSource::Translated { path: file } => {
                format!("{}: translated, {path}{what}\nhint: {hint}", file.display())
            }
            LayerSource::File { path: file, text } => {
                let file = file.display();
                let place = line.map_or(String::new(), |line| format!("line {line}: "));
                let found = line
                    .and_then(|line| {
                        text.lines()
                            .nth(usize::try_from(line).ok()?.checked_sub(1)?)
                    })
                    .map_or(String::new(), |line| format!(": found `{}`", line.trim()));
                format!("{file}: {place}{path}{what}{found}\nhint: {hint}")
            }
        })
    }
}

/// All layers of a run, merged: `files` in their order, then `sets`. Also returns the translations of other tools' files.
pub(super) fn merged(
    files: &[&Path],
    sets: &[String],
) -> Result<(Value, Vec<Translation>), TrainError> {
    let mut layers = Layers {
        whole: Value::Object(Map::new()),
        chain: Vec::new(),
        translations: Vec::new(),
    };
    for path in files {
        layers.chain.clear();
        layers.lay_file(path, false)?;
    }
    let merged = merged_over(layers.whole, sets)?;
    Ok((merged, layers.translations))
}

/// Merges each `KEY=VALUE` over a tree. Batch numbers of several are one layer: `train.batch_size=8` makes no room for itself among the
/// numbers that were typed beside it.
pub(super) fn merged_over(mut whole: Value, sets: &[String]) -> Result<Value, TrainError> {
    let mut typed_numbers = Map::new();
    for typed in sets {
        let layer = read_set(typed)?;
        for key in BATCH_NUMBERS {
            if let Some(number) = layer.get("train").and_then(|train| train.get(key)) {
                typed_numbers.insert(key.to_owned(), number.clone());
            }
        }
        lay_over(&mut whole, layer, "");
    }
    if let Some(Value::Object(train)) = whole.get_mut("train") {
        make_room(train, &typed_numbers);
        train.extend(typed_numbers);
    }
    Ok(whole)
}

/// Whether `--set` accepts this text.
pub(super) fn is_accepted(typed: &str) -> bool {
    read_set(typed).is_ok()
}

/// Files merged so far.
struct Layers {
    whole: Value,
    /// Files whose `base` is being read, outermost first.
    chain: Vec<PathBuf>,
    translations: Vec<Translation>,
}

impl Layers {
    /// Merges a file, after the file that it names as `base`. The base of another tool's file is that tool's too, however little it says.
    fn lay_file(&mut self, path: &Path, is_foreign: bool) -> Result<(), TrainError> {
        let fail = |what: String| TrainError::Config(format!("{}: {what}", path.display()));
        let bytes = holdall_files::read_regular(path, MOST_CONFIG_BYTES).map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::FileTooLarge => {
                    "a config says only what differs from the defaults"
                }
                _ => "check the path",
            };
            fail(format!("cannot be read: {error}\nhint: {hint}"))
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| fail("is not UTF-8 text\nhint: save it as UTF-8".to_owned()))?;
        let source = LayerSource::File { path, text: &text };
        let num_translations = self.translations.len();
        let (tree, mut layer) = match check(&text, &source) {
            Ok(checked) => checked,
            Err(wrong) => {
                // A duplicate key is an error in a file of any tool.
                let tree = parse::<Option<LocatedValue>>(&text)
                    .map_err(|error| explain(&error, &source, None))?;
                let translation =
                    tree.and_then(|tree| Translation::of(path, &tree.value(), is_foreign));
                let Some(translation) = translation else {
                    return Err(wrong);
                };
                let checked = check(&translation.config(), &LayerSource::Translated { path })?;
                self.translations.push(translation);
                checked
            }
        };
        let is_translated = self.translations.len() > num_translations;
        let folder = path.parent().unwrap_or(Path::new(""));

        let base = layer.as_object_mut().and_then(|map| map.remove("base"));
        if let Some(Value::String(base)) = base {
            let line = tree.line_of("base");
            let base_path = folder.join(&base);
            let found = base_path.canonicalize().map_err(|error| {
                source.complain(
                    line,
                    Some("base"),
                    &format!("{} cannot be read: {error}", base_path.display()),
                    "`base` is relative to the file that says it",
                )
            })?;
            if self.chain.is_empty() {
                self.chain.extend(path.canonicalize());
            }
            if let Some(start) = self.chain.iter().position(|earlier| *earlier == found) {
                let around = self.chain[start..].iter().chain([&found]);
                let around: Vec<_> = around.map(|path| path.display().to_string()).collect();
                return Err(source.complain(
                    line,
                    Some("base"),
                    &format!("a config that builds on itself: {}", around.join(" -> ")),
                    "one of these files stands on its own, without `base`",
                ));
            }
            self.chain.push(found);
            self.lay_file(&base_path, is_translated)?;
        }
        expand_home(&mut layer);
        start_paths_at(folder, &mut layer);
        lay_over(&mut self.whole, layer, "");
        Ok(())
    }
}

/// Parses `--set KEY=VALUE` as a layer; paths stay relative to the current folder.
fn read_set(typed: &str) -> Result<Value, TrainError> {
    let wrong = |what: &str| {
        TrainError::Config(format!(
            "--set {typed}: {what}\nhint: --set train.lr=1e-4, or --set 'losses={{label: 1.0}}'"
        ))
    };
    let (key, value) = typed
        .split_once('=')
        .ok_or_else(|| wrong("expected KEY=VALUE"))?;
    let key = key.trim();
    // Parameter names contain dots.
    let pattern = key
        .strip_prefix(RATES_BY_NAME)
        .and_then(|rest| rest.strip_prefix('.'));
    let steps: Vec<&str> = match pattern {
        Some(pattern) => RATES_BY_NAME.split('.').chain([pattern]).collect(),
        None => key.split('.').collect(),
    };
    if steps.iter().any(|step| step.trim().is_empty()) {
        return Err(wrong("expected a key such as train.lr before the `=`"));
    }
    if steps == ["base"] {
        return Err(wrong("expected a key of a run; `base` is for files"));
    }
    // Built as a YAML text, so that the value may be any YAML.
    let mut text = String::new();
    for (depth, step) in steps.iter().enumerate() {
        let quoted = Value::from(step.trim()).to_string();
        text += &format!("\n{:indent$}{quoted}:", "", indent = 2 * depth);
    }
    let indent = " ".repeat(2 * steps.len());
    text += &format!(" {}", value.replace('\n', &format!("\n{indent}")));
    let (_, mut layer) = check(&text, &LayerSource::Set { key, typed })?;
    expand_home(&mut layer);
    Ok(layer)
}

/// Checks the keys, types and numbers of a single layer.
fn check(text: &str, source: &LayerSource) -> Result<(LocatedValue, Value), TrainError> {
    let tree: Result<Option<LocatedValue>, _> = parse(text);
    let config: RunConfig = parse(text)
        .map_err(|error| explain(&error, source, tree.as_ref().ok().and_then(Option::as_ref)))?;
    let tree = tree.map_err(|error| explain(&error, source, None))?;
    let Some(tree) = tree else {
        return Ok((LocatedValue::empty(), Value::Object(Map::new())));
    };
    check_numbers(&config).map_err(|wrong| {
        let line = tree.line_of(&wrong.path);
        source.complain(line, Some(&wrong.path), &wrong.what(), wrong.hint)
    })?;
    let mut value = tree.value();
    let is_escaped = |path: &&&str| {
        let text = value.pointer(path).and_then(Value::as_str);
        text.is_some_and(|text| text.contains(char::is_control))
    };
    if let Some(path) = PATHS.iter().find(is_escaped) {
        let path = path.trim_start_matches('/').replace('/', ".");
        let line = tree.line_of(&path);
        return Err(source.complain(line, Some(&path), BACKSLASH, BACKSLASH_HINT));
    }
    tidy(&mut value);
    // The YAML reader accepts a quoted number as a number; the merged JSON tree does not.
    if let Err(error) = serde_json::from_value::<RunConfig>(value.clone()) {
        let (path, line) = tree.quoted_number().unzip();
        let what = match path {
            Some(_) => "a word in quotes, expected a number".to_owned(),
            None => error.to_string(),
        };
        let hint = "numbers are written without quotes";
        return Err(source.complain(line, path.as_deref(), &what, hint));
    }
    Ok((tree, value))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `yes` is a word, and a word that reads as a number needs quotes. Both readings of a layer then agree.
        strict_booleans: true,
        no_schema: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// Drops empty sections and replaces aliases by their keys.
fn tidy(layer: &mut Value) {
    let Some(map) = layer.as_object_mut() else {
        return;
    };
    let defaults = super::keys::defaults();
    drop_empty(map, &defaults);
    for (section, alias, key) in ALIASES {
        let Some(section) = map.get_mut(section).and_then(Value::as_object_mut) else {
            continue;
        };
        if let Some(value) = section.remove(alias) {
            section.insert(key.to_owned(), value);
        }
    }
}

fn drop_empty(map: &mut Map<String, Value>, defaults: &Value) {
    map.retain(|key, value| !(value.is_null() && defaults[key.as_str()].is_object()));
    for (key, value) in map.iter_mut() {
        if let Value::Object(section) = value {
            drop_empty(section, &defaults[key.as_str()]);
        }
    }
}

/// Merges one layer over another: sections key by key, every other value replaces.
fn lay_over(under: &mut Value, over: Value, path: &str) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) if path == RATES_BY_NAME => {
            // The first matching pattern wins, so the patterns of the upper layer come first.
            let before = std::mem::replace(under, over);
            for (pattern, rate) in before {
                under.entry(pattern).or_insert(rate);
            }
        }
        (Value::Object(under), Value::Object(over)) => {
            if path == "train" {
                make_room(under, &over);
            }
            for (key, value) in over {
                let below = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{key}"),
                };
                lay_over(under.entry(key).or_insert(Value::Null), value, &below);
            }
        }
        (under, over) => *under = over,
    }
}

/// Merges effective batch, batch size and accumulation, of which two determine the third. Numbers of `over` are kept; numbers
/// of `under` fill the gaps as far as they fit, the effective batch first.
fn lay_batch_numbers(under: [Option<usize>; 3], over: [Option<usize>; 3]) -> [Option<usize>; 3] {
    let bound = over.iter().flatten().count();
    if bound == 0 {
        return under;
    }
    let mut numbers = over;
    if bound < 2 {
        for (number, below) in numbers.iter_mut().zip(under) {
            *number = number.or(below);
        }
    }
    // With all three given, the accumulation is dropped, or else the batch size.
    if numbers.iter().all(Option::is_some) && over[2].is_none() {
        numbers[2] = None;
    } else if numbers.iter().all(Option::is_some) && over[1].is_none() {
        numbers[1] = None;
    }
    numbers
}

/// Removes the batch numbers of the lower layer that conflict with those of the upper one.
fn make_room(under: &mut Map<String, Value>, over: &Map<String, Value>) {
    let numbers = |map: &Map<String, Value>| {
        BATCH_NUMBERS.map(|key| map.get(key)?.as_u64().and_then(|n| usize::try_from(n).ok()))
    };
    let left = lay_batch_numbers(numbers(under), numbers(over));
    for (key, number) in BATCH_NUMBERS.iter().zip(left) {
        if number.is_none() {
            under.remove(*key);
        }
    }
}
