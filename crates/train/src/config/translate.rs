//! Translates configs of other tools to configs of Holdall.
//!
//! ```text
//! trainer: {gradient_accumulation_steps: 4, mixed_precision: fp16}      train: {gradient_accumulation: 4, batch_size: 1}
//! dataset: {FIVES: {batch_size: 1, image_size: 1024}}                   precision: fp16
//!                                                                       data: {train: FIVES, image_size: 1024}
//! ```
//!
//! A file counts as one of another tool if it has a section of a PyTorch script, or two settings of such scripts. Each setting
//! goes through the table of [`super::pytorch_keys`]: it becomes a key, it is not needed, or it differs in effect, which the
//! user has to accept.

mod value;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use holdall_files::counted;
use serde_json::{Map, Value};

use self::value::{convert, plain, word};
use super::keys::{ALIASES, defaults, homes, nearest_anywhere};
use super::paths::start_paths_at;
use super::pytorch_keys::{Becomes, ForeignSetting, setting};
use crate::config::shell_words::quoted;
use crate::error::TrainError;

/// Scope of settings in flat files of multi-task video projects.
const MULTITASK: &str = "multitask";

/// Text tower of multi-task video projects, which no setting names.
const MULTITASK_TEXT_MODEL: &str = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract";

/// Sections with one subsection per data set.
const DATASETS: [&str; 2] = ["dataset", "datasets"];

/// Name of the conversion of loss names.
const LOSS_NAME: &str = "loss name";

/// A file of another tool, setting by setting.
#[derive(Clone, Debug)]
pub struct Translation {
    pub file: PathBuf,
    settings: Vec<TranslatedSetting>,
    config: Map<String, Value>,
}

/// A setting of the translated file.
#[derive(Clone, Debug)]
struct TranslatedSetting {
    /// The setting as text: `trainer.lr: 0.001`.
    written: String,
    outcome: Outcome,
}

#[derive(Clone, Debug)]
enum Outcome {
    /// Keys with their values: `train.lr: 0.001`.
    Became(Vec<String>),
    /// Not needed: the result is the same without it.
    Unneeded,
    /// Keys with another effect, if any, and the reason.
    Differs { keys: Vec<String>, reason: String },
}

impl Translation {
    /// Translates a file; `None` if it is not a file of another tool.
    pub(super) fn of(file: &Path, layer: &Value, is_known_foreign: bool) -> Option<Translation> {
        let entries = layer.as_object()?;
        if !is_known_foreign && !is_foreign(entries) {
            return None;
        }
        let is_of_clips = |key: &&String| setting("", key).is_some_and(ForeignSetting::is_of_clips);
        let is_multitask = entries.keys().filter(is_of_clips).count() > 1;
        let mut translator = Translator {
            chosen_dataset: chosen_dataset(entries),
            scope: if is_multitask { MULTITASK } else { "" },
            ..Translator::default()
        };
        translator.read_section("", entries, &defaults());
        translator.read_deferred();
        if is_multitask {
            translator.complete_multitask(entries);
        }
        Some(Translation {
            file: file.to_owned(),
            settings: translator.settings,
            config: translator.config,
        })
    }

    /// Error that lists the settings with another effect; `None` if there are none.
    pub fn refusal(&self) -> Option<TrainError> {
        let differences = self.differences();
        let (num_differences, file) = (differences.len(), self.file.display());
        let settings: Vec<String> = differences
            .iter()
            .map(|(written, became)| format!("  {written}: {became}"))
            .collect();
        (num_differences > 0).then(|| {
            TrainError::Config(format!(
                "{file}: {} of this file {} another effect here\n{}\nhint: --accept runs it all the same; \
                 holdall config translate {} --out holdall.yml writes it down, to be changed",
                counted(num_differences, "setting"),
                if num_differences == 1 { "has" } else { "have" },
                settings.join("\n"),
                quoted(&self.file),
            ))
        })
    }

    /// The translated config as YAML.
    pub(super) fn config(&self) -> String {
        yaml(&Value::Object(self.config.clone()))
    }

    /// The translated config as a file with comments; settings with another effect are listed at the top. Paths are relative
    /// to the translated file; for another folder they are absolute.
    pub fn file_text(&self, folder: Option<&Path>) -> String {
        let mut text = format!("# Translated from {}.\n", self.file.display());
        let differences = self.differences();
        if !differences.is_empty() {
            text += "# Differs in effect:\n";
            for (written, became) in differences {
                let _ = writeln!(text, "#   {written}: {became}");
            }
        }
        let own = self.file.parent().unwrap_or(Path::new(""));
        let absolute = |folder: &Path| std::path::absolute(Path::new(".").join(folder)).ok();
        let is_elsewhere = folder.is_some_and(|folder| absolute(folder) != absolute(own));
        let mut config = Value::Object(self.config.clone());
        if let (true, Some(own)) = (is_elsewhere, absolute(own)) {
            start_paths_at(&own, &mut config);
        }
        text + &yaml(&config)
    }

    /// Settings with an exact counterpart: the text of the file, and the keys.
    pub fn became(&self) -> Vec<(&str, String)> {
        let became = self.settings.iter().filter_map(|one| match &one.outcome {
            Outcome::Became(keys) => Some((one.written.as_str(), keys.join(", "))),
            _ => None,
        });
        became.collect()
    }

    /// Names of settings that are not needed.
    pub fn unneeded(&self) -> Vec<&str> {
        let unneeded = self.settings.iter().filter_map(|one| match &one.outcome {
            Outcome::Unneeded => one.written.split(": ").next(),
            _ => None,
        });
        unneeded.collect()
    }

    /// Settings that differ in effect: the text of the file, and the difference.
    pub fn differences(&self) -> Vec<(&str, String)> {
        let differences = self.settings.iter().filter_map(|one| match &one.outcome {
            Outcome::Differs { keys, reason } => {
                let became = if keys.is_empty() {
                    reason.clone()
                } else {
                    format!("became {}; {reason}", keys.join(", "))
                };
                Some((one.written.as_str(), became))
            }
            _ => None,
        });
        differences.collect()
    }
}

fn yaml(config: &Value) -> String {
    serde_saphyr::to_string(config)
        .expect("made of maps, text and numbers: all of them can be written")
}

/// Whether a file has a section of a script, or two settings in places that Holdall does not know, at least one of which only
/// scripts use.
fn is_foreign(entries: &Map<String, Value>) -> bool {
    let defaults = defaults();
    let mut num_foreign = 0;
    let mut num_misplaced = 0;
    let mut count = |path: &str, key: &str, value: &Value, known: &Value| {
        if fits(path, known, key, value) {
            return;
        }
        match setting("", key) {
            Some(row) if value.is_object() => {
                num_foreign += 1;
                num_misplaced += usize::from(!matches!(row.becomes, Becomes::Unneeded));
            }
            Some(_) => num_foreign += 1,
            None if value.is_object() && known.get(key).is_some() => num_foreign += 2,
            None => num_misplaced += usize::from(!homes(key).is_empty()),
        }
    };
    for (key, value) in entries {
        match value {
            Value::Object(inside) if defaults[key.as_str()].is_object() => {
                for (inner, value) in inside {
                    count(key, inner, value, &defaults[key.as_str()]);
                }
            }
            _ => count("", key, value, &defaults),
        }
    }
    num_foreign > 0 && num_foreign + num_misplaced > 1
}

/// Whether a Holdall section has this key, and accepts the shape of the value.
fn fits(path: &str, known: &Value, key: &str, value: &Value) -> bool {
    match known.get(key) {
        // Maps with free keys, such as the patterns of `lr_by`, and sections that are `null` by default.
        Some(Value::Object(inside)) if inside.is_empty() => value.is_object(),
        Some(Value::Object(_)) => value.is_object() || key == "decoder",
        Some(Value::Null) => true,
        Some(Value::String(_)) if key == "model" => value.is_string(),
        Some(_) => true,
        None => {
            let is_alias = |alias: &(&str, &str, &str)| (alias.0, alias.1) == (path, key);
            (path, key) == ("", "base") || ALIASES.iter().any(is_alias)
        }
    }
}

/// Name of the data set that a setting of the file selects.
fn chosen_dataset(entries: &Map<String, Value>) -> Option<String> {
    entries.iter().find_map(|(key, value)| match value {
        Value::Object(inside) => chosen_dataset(inside),
        Value::String(name) => {
            let row = setting("", key)?;
            matches!(row.becomes, Becomes::ChosenDataset).then(|| name.clone())
        }
        _ => None,
    })
}

#[derive(Default)]
struct Translator {
    settings: Vec<TranslatedSetting>,
    config: Map<String, Value>,
    chosen_dataset: Option<String>,
    scope: &'static str,
    /// Settings whose conversion needs other settings, with their index in `settings`.
    deferred: Vec<(usize, &'static ForeignSetting, Value)>,
}

impl Translator {
    /// Translates a section of the file; `known` is the Holdall section of the same name.
    fn read_section(&mut self, path: &str, entries: &Map<String, Value>, known: &Value) {
        for (key, value) in entries {
            let written_path = match path {
                "" => key.clone(),
                _ => format!("{path}.{key}"),
            };
            let value = &plain(value);
            if fits(path, known, key, value) {
                match (value, known.get(key)) {
                    (Value::Object(inside), Some(below @ Value::Object(names)))
                        if !names.is_empty() =>
                    {
                        self.read_section(&written_path, inside, below);
                    }
                    (value, _) => self.move_to(&written_path, &written_path, value.clone()),
                }
                continue;
            }
            self.read_setting(path, key, &written_path, value);
        }
    }

    fn read_setting(&mut self, path: &str, key: &str, written_path: &str, value: &Value) {
        if value.is_null() || value.as_str() == Some("") {
            return;
        }
        let section = path.rsplit('.').next().unwrap_or_default();
        let scope = if self.scope.is_empty() {
            path.split('.').next().unwrap_or_default()
        } else {
            self.scope
        };
        let row = setting(section, key)
            .filter(|_| self.scope.is_empty())
            .or_else(|| setting(scope, key));
        match (value, row.map(|row| &row.becomes)) {
            (_, Some(Becomes::Unneeded)) => self.push(written_path, value, Outcome::Unneeded),
            // `loss: {name: dice}`: its settings one by one.
            (Value::Object(inside), Some(Becomes::Converted { by: LOSS_NAME, .. })) => {
                self.read_section(written_path, inside, &Value::Null);
            }
            (Value::Object(_), Some(Becomes::Converted { .. } | Becomes::Missing))
            | (
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_),
                Some(_),
            ) => {
                let row = row.expect("matched above");
                self.apply(row, written_path, value);
            }
            (Value::Object(inside), _)
                if DATASETS.contains(&key) || DATASETS.contains(&section) =>
            {
                self.read_dataset(key, written_path, inside);
            }
            (Value::Object(inside), _) => {
                self.read_section(written_path, inside, &Value::Null);
            }
            (value, None) => match &homes(key)[..] {
                [home] => self.move_to(written_path, home, value.clone()),
                _ => {
                    let near = nearest_anywhere(key)
                        .map_or(String::new(), |near| format!("; did you mean {near}?"));
                    let reason = format!("no such setting here, left out{near}");
                    self.differ(written_path, value, Vec::new(), reason);
                }
            },
        }
    }

    /// Translates the selected, or the only, subsection of `dataset: {FIVES: {...}, DRIVE: {...}}`.
    fn read_dataset(&mut self, key: &str, path: &str, inside: &Map<String, Value>) {
        let sets: Vec<&String> = inside
            .iter()
            .filter(|(key, value)| value.is_object() && setting("dataset", key).is_none())
            .map(|(key, _)| key)
            .collect();
        let chosen = sets
            .iter()
            .find(|name| Some(name.as_str()) == self.chosen_dataset.as_deref())
            .or(sets.first())
            .map(|name| (*name).clone());
        let is_named = chosen.as_deref() == self.chosen_dataset.as_deref();
        if sets.len() > 1 && !is_named {
            let names: Vec<&str> = sets.iter().map(|name| name.as_str()).collect();
            let reason = format!("{} alone is read", chosen.as_deref().unwrap_or_default());
            let names = Value::from(names.join(", "));
            self.differ(path, &names, Vec::new(), reason);
        }
        let mut kept = inside.clone();
        for name in &sets {
            if Some(*name) != chosen.as_ref() {
                kept.remove(*name);
                let what = Value::from("not chosen");
                self.push(&format!("{path}.{name}"), &what, Outcome::Unneeded);
            }
        }
        let Some(name) = chosen.filter(|_| DATASETS.contains(&key)) else {
            return self.read_section(path, &kept, &Value::Null);
        };
        let before = self.config.clone();
        self.read_section(path, &kept, &Value::Null);
        let has_path = |config: &Map<String, Value>| {
            let data = config.get("data");
            data.and_then(|data| data.get("train")).cloned()
        };
        if has_path(&self.config) == has_path(&before) {
            self.move_to(path, "data.train", Value::from(name));
        }
    }

    /// Applies a row of the table to a setting.
    fn apply(&mut self, row: &'static ForeignSetting, written_path: &str, value: &Value) {
        match &row.becomes {
            Becomes::Unneeded | Becomes::ChosenDataset => {
                self.push(written_path, value, Outcome::Unneeded);
            }
            Becomes::Section | Becomes::Missing | Becomes::TextOnly => {
                self.differ(written_path, value, Vec::new(), row.answer());
            }
            Becomes::Moved(path) => self.move_to(written_path, path, value.clone()),
            Becomes::SameAs(_)
            | Becomes::Converted {
                by: "epochs" | "lr",
                ..
            } => {
                self.deferred
                    .push((self.settings.len(), row, value.clone()));
                self.push(written_path, value, Outcome::Unneeded);
            }
            Becomes::Converted { path, by } => match convert(by, path, value, &self.config) {
                Some(converted) => {
                    let keys = self.set_all(converted.keys);
                    match converted.difference {
                        None if keys.is_empty() => {
                            self.push(written_path, value, Outcome::Unneeded);
                        }
                        None => self.push(written_path, value, Outcome::Became(keys)),
                        Some(reason) => {
                            let reason = if reason.is_empty() {
                                row.answer()
                            } else {
                                reason
                            };
                            self.differ(written_path, value, keys, reason);
                        }
                    }
                }
                None => self.differ(written_path, value, Vec::new(), row.answer()),
            },
            Becomes::ByWord { path, rules } => {
                let said = word(value);
                let find = |said: &str| rules.iter().find(|rule| rule.words.contains(&said));
                let rule = find(&said).or_else(|| find("*"));
                let Some(rule) = rule else {
                    return self.differ(written_path, value, Vec::new(), row.answer());
                };
                let keys = match rule.value {
                    "-" => Vec::new(),
                    "*" => self.set_all(vec![((*path).to_owned(), value.clone())]),
                    other => {
                        let value = serde_saphyr::from_str(other).unwrap_or(Value::from(other));
                        self.set_all(vec![((*path).to_owned(), value)])
                    }
                };
                match (rule.is_exact, keys.is_empty()) {
                    (true, true) => self.push(written_path, value, Outcome::Unneeded),
                    (true, false) => self.push(written_path, value, Outcome::Became(keys)),
                    (false, _) => self.differ(written_path, value, keys, row.answer()),
                }
            }
        }
    }

    /// Translates the settings that needed other settings first.
    fn read_deferred(&mut self) {
        for (index, row, value) in std::mem::take(&mut self.deferred) {
            self.settings[index].outcome = match &row.becomes {
                Becomes::Converted { path, by } => match convert(by, path, &value, &self.config) {
                    Some(converted) => Outcome::Became(self.set_all(converted.keys)),
                    None => Outcome::Differs {
                        keys: Vec::new(),
                        reason: row.answer(),
                    },
                },
                Becomes::SameAs(other) => {
                    let said = format!(": {}", flow(&value));
                    let is_other = |one: &&TranslatedSetting| {
                        one.written.split(": ").next().is_some_and(|path| {
                            path == *other || path.ends_with(&format!(".{other}"))
                        })
                    };
                    let other_setting = self.settings.iter().find(is_other);
                    match other_setting {
                        Some(one) if one.written.ends_with(&said) => Outcome::Unneeded,
                        _ => Outcome::Differs {
                            keys: Vec::new(),
                            reason: row.answer(),
                        },
                    }
                }
                _ => continue,
            };
        }
    }

    /// Adds the keys that files of multi-task video projects imply.
    fn complete_multitask(&mut self, entries: &Map<String, Value>) {
        self.set_all(vec![("task".to_owned(), "video-text".into())]);
        let says = |key: &str| entries.get(key).map(word);
        // `multi_video: false` turns off the grouping of videos.
        if says("multi_video").as_deref() == Some("false")
            && let Some(Value::Object(data)) = self.config.get_mut("data")
        {
            data.remove("group");
            data.remove("num_videos");
            for one in &mut self.settings {
                if ["groupby_column", "num_videos"]
                    .iter()
                    .any(|key| one.written.starts_with(key))
                {
                    one.outcome = Outcome::Unneeded;
                }
            }
        }
        if says("pretrained").as_deref() == Some("false") && self.config.contains_key("model") {
            self.set_all(vec![("model".to_owned(), "video-text".into())]);
        }
        let section = self
            .config
            .entry("video_text")
            .or_insert_with(|| Map::new().into());
        if let Value::Object(section) = section {
            // The project's aggregator follows any pooling of the tokens of one clip.
            if section.contains_key("temporal_layers") {
                section.insert("pooling".to_owned(), "temporal".into());
                for one in &mut self.settings {
                    let Some(mode) = one.written.strip_prefix("video_pooling_mode: ") else {
                        continue;
                    };
                    let keys = vec!["video_text.pooling: temporal".to_owned()];
                    one.outcome = if ["mean", "temporal"].contains(&mode) {
                        Outcome::Became(keys)
                    } else {
                        let reason = format!("beside temporal_layers there is no {mode} pooling");
                        Outcome::Differs { keys, reason }
                    };
                }
            }
            if !section.contains_key("text_model") {
                section.insert("text_model".to_owned(), MULTITASK_TEXT_MODEL.into());
                let keys = vec![format!("video_text.text_model: {MULTITASK_TEXT_MODEL}")];
                self.settings.push(TranslatedSetting {
                    written: "(the project's text tower)".to_owned(),
                    outcome: Outcome::Became(keys),
                });
            }
        }
    }

    fn move_to(&mut self, written_path: &str, path: &str, value: Value) {
        let written = value.clone();
        let is_again = value_at(&self.config, path).is_some_and(|before| *before != value);
        let keys = self.set_all(vec![(path.to_owned(), value)]);
        if is_again {
            let reason = format!("instead of what another setting of the file gives `{path}`");
            self.differ(written_path, &written, keys, reason);
        } else {
            self.push(written_path, &written, Outcome::Became(keys));
        }
    }

    /// Sets keys, and returns them as text.
    fn set_all(&mut self, keys: Vec<(String, Value)>) -> Vec<String> {
        keys.into_iter()
            .map(|(path, value)| {
                let shown = format!("{}: {}", path.replace('"', ""), flow(&value));
                set_at(&mut self.config, &path, value);
                shown
            })
            .collect()
    }

    fn differ(&mut self, path: &str, value: &Value, keys: Vec<String>, reason: String) {
        self.push(path, value, Outcome::Differs { keys, reason });
    }

    fn push(&mut self, path: &str, value: &Value, outcome: Outcome) {
        let written = format!("{path}: {}", flow(value));
        self.settings.push(TranslatedSetting { written, outcome });
    }
}

/// Splits a dotted path; a last part in quotes may contain dots.
fn steps(path: &str) -> Vec<&str> {
    match path.split_once(".\"") {
        Some((sections, pattern)) => {
            let pattern = pattern.trim_end_matches('"');
            sections.split('.').chain([pattern]).collect()
        }
        None => path.split('.').collect(),
    }
}

fn value_at<'a>(config: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut steps = steps(path).into_iter();
    let mut value = config.get(steps.next()?)?;
    for step in steps {
        value = value.get(step)?;
    }
    Some(value)
}

fn set_at(config: &mut Map<String, Value>, path: &str, value: Value) {
    let mut steps = steps(path);
    let Some(key) = steps.pop() else { return };
    let mut section = config;
    for step in steps {
        let below = section.entry(step).or_insert_with(|| Map::new().into());
        if !below.is_object() {
            *below = Map::new().into();
        }
        let Value::Object(below) = below else { return };
        section = below;
    }
    section.insert(key.to_owned(), value);
}

/// A value on one line, sections in braces.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Counterpart of a script's command-line option.
pub enum TypedOption {
    /// Equivalent options of `holdall train`.
    Means {
        /// For example `--set`, `train.optimizer.weight_decay=0.05`.
        words: Vec<String>,
        /// Whether the word after the option is its value.
        takes_value: bool,
    },
    /// No exact counterpart; the text says what to do instead.
    Answer(String),
}

/// Counterpart of `--OPTION VALUE` of a script; `None` for an unknown option. `next` is the word after the option, if that
/// may be a value.
pub fn typed_option(option: &str, next: Option<&str>) -> Option<TypedOption> {
    let key = option
        .trim_start_matches('-')
        .replace('-', "_")
        .to_lowercase();
    let row = setting("", &key);
    let Some(row) = row else {
        let homes = homes(&key);
        // `label` and `caption` are columns under `data:` and weights under `losses:`.
        let is_number = next.is_some_and(|value| value.parse::<f64>().is_ok());
        let of_data = homes.iter().find(|home| home.starts_with("data."));
        let home = match (&homes[..], of_data) {
            ([], _) => return None,
            ([home], _) => home,
            (_, Some(home)) if !is_number => home,
            _ => {
                let options: Vec<String> = homes
                    .iter()
                    .map(|home| format!("--set {home}=VALUE"))
                    .collect();
                return Some(TypedOption::Answer(options.join(", or ")));
            }
        };
        let Some(value) = next else {
            return Some(TypedOption::Answer(format!("--set {home}=VALUE")));
        };
        return Some(TypedOption::Means {
            words: vec!["--set".to_owned(), format!("{home}={value}")],
            takes_value: true,
        });
    };
    let is_switch = |value: &str| ["true", "false"].contains(&value.to_lowercase().as_str());
    let knows = |value: &str| match &row.becomes {
        Becomes::ByWord { rules, .. } => {
            let value = value.to_lowercase();
            let mut words = rules.iter().flat_map(|rule| &rule.words);
            words.any(|known| *known == "*" || *known == value)
        }
        _ => false,
    };
    let value = match &row.becomes {
        // A switch takes no value: in `--fp16 photos.csv`, the file is an argument.
        Becomes::ByWord { rules, .. } if rules.iter().any(|rule| rule.words.contains(&"true")) => {
            next.filter(|value| is_switch(value) || knows(value))
        }
        _ => next,
    };
    let takes_value = value.is_some();
    if let (Becomes::Moved("base"), Some(value)) = (&row.becomes, value) {
        return Some(TypedOption::Means {
            words: vec![value.to_owned()],
            takes_value,
        });
    }
    let typed: Value = match value {
        Some(value) => {
            serde_saphyr::from_str(value).unwrap_or_else(|_| Value::from(value.to_owned()))
        }
        None if matches!(row.becomes, Becomes::ByWord { .. } | Becomes::Unneeded) => true.into(),
        None => return Some(TypedOption::Answer(row.answer())),
    };
    let mut translator = Translator::default();
    translator.apply(row, &key, &plain(&typed));
    let outcome = translator.settings.pop().map(|one| one.outcome);
    let is_deferred = !translator.deferred.is_empty();
    Some(match outcome {
        Some(Outcome::Became(keys)) if !is_deferred => TypedOption::Means {
            words: keys
                .iter()
                .filter_map(|key| key.split_once(": "))
                .flat_map(|(path, value)| ["--set".to_owned(), format!("{path}={value}")])
                .collect(),
            takes_value,
        },
        Some(Outcome::Unneeded) if !is_deferred => TypedOption::Means {
            words: Vec::new(),
            takes_value,
        },
        _ => TypedOption::Answer(row.answer()),
    })
}

#[cfg(test)]
mod tests;
