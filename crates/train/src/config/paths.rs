//! Paths in a config file are relative to that file, and absolute in a resolved config.

use std::path::{Component, Path, PathBuf};

use holdall_data::config::{TokenizerChoice, Validation};
use serde_json::Value;

use super::RunConfig;

/// Values that are paths, or may be paths.
pub(super) const PATHS: [&str; 11] = [
    "/out",
    "/model",
    "/data/train",
    "/data/image_root",
    "/data/validation",
    "/data/validation/file",
    "/data/tokenizer",
    "/video_text/cache_folder",
    "/video_text/text_model",
    "/video_text/tokenizer",
    "/train/lora/adapter",
];

/// Expands `~` in the paths of a layer, because no shell does.
pub(super) fn expand_home(layer: &mut Value) {
    let home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE"));
    let Some(home) = home.filter(|home| !home.is_empty()) else {
        return;
    };
    let home = PathBuf::from(home);
    for pointer in PATHS {
        if let Some(Value::String(path)) = layer.pointer_mut(pointer) {
            let below = path.strip_prefix("~/").or((path == "~").then_some(""));
            if let Some(below) = below {
                *path = home.join(below).display().to_string();
            }
        }
    }
}

/// Resolves the paths of a layer against the folder of its file.
pub(super) fn start_paths_at(folder: &Path, layer: &mut Value) {
    let start = |value: &mut Value| {
        // `validation: {file: val.csv, group: patient}` has the path inside.
        let value = match value {
            Value::Object(keys) => keys.get_mut("file"),
            value => Some(value),
        };
        if let Some(Value::String(path)) = value {
            *path = folder.join(&*path).display().to_string();
        }
    };
    if let Some(out) = layer.get_mut("out") {
        start(out);
    }
    if let Some(data) = layer.get_mut("data").and_then(Value::as_object_mut) {
        for (key, value) in data {
            let is_path = match key.as_str() {
                "train" | "image_root" => true,
                "validation" => matches!(read(value), Some(Validation::File { .. })),
                "tokenizer" => matches!(read(value), Some(TokenizerChoice::File(_))),
                _ => false,
            };
            if is_path {
                start(value);
            }
        }
    }
    // A model is a path if the folder exists, and a name otherwise.
    let is_there = |value: &Value, is: fn(&Path) -> bool| {
        value.as_str().is_some_and(|name| is(&folder.join(name)))
    };
    if let Some(model) = layer.get_mut("model")
        && is_there(model, Path::is_dir)
    {
        start(model);
    }
    let section = layer.get_mut("video_text");
    if let Some(value) = section.and_then(|section| section.get_mut("cache_folder")) {
        start(value);
    }
    let lora = layer
        .get_mut("train")
        .and_then(|train| train.get_mut("lora"));
    if let Some(adapter) = lora.and_then(|lora| lora.get_mut("adapter")) {
        start(adapter);
    }
    for key in ["text_model", "tokenizer"] {
        let value = layer
            .get_mut("video_text")
            .and_then(|section| section.get_mut(key));
        if let Some(value) = value.filter(|value| is_there(value, Path::exists)) {
            start(value);
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

/// The same config with absolute paths. Symbolic links stay, because their target may change; `..` is resolved.
pub(super) fn absolute(config: &RunConfig) -> RunConfig {
    with_paths(config, &|path| {
        let path = from_root(path);
        let climbs = path.components().any(|part| part == Component::ParentDir);
        if climbs { real(&path) } else { path }
    })
}

/// The same config with canonical paths: two configs with the same files compare equal.
pub(crate) fn real_paths(config: &RunConfig) -> RunConfig {
    with_paths(config, &|path| real(&from_root(path)))
}

/// Absolute path; unchanged if there is no current folder.
fn from_root(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Canonical path, as far as the path exists; the rest stays as written.
fn real(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|there| {
        let rest = path.strip_prefix(there).ok()?;
        let there = there.canonicalize().ok()?;
        // Joining an empty path would add a separator.
        let is_whole = rest.as_os_str().is_empty();
        Some(if is_whole { there } else { there.join(rest) })
    });
    found.unwrap_or_else(|| path.to_owned())
}

fn with_paths(config: &RunConfig, change: &dyn Fn(&Path) -> PathBuf) -> RunConfig {
    let full = |path: &mut PathBuf| {
        // YAML is text: bytes that are not UTF-8 are replaced.
        *path = change(path).to_string_lossy().into_owned().into();
    };
    let mut config = config.clone();
    let data = &mut config.data;
    for path in [&mut data.train, &mut data.image_root, &mut config.out] {
        path.as_mut().map(full);
    }
    if let Validation::File { path, .. } = &mut data.validation {
        full(path);
    }
    if let TokenizerChoice::File(path) = &mut data.tokenizer {
        full(path);
    }
    let lora = config.train.lora.as_mut();
    lora.and_then(|lora| lora.adapter.as_mut()).map(full);
    let section = &mut config.video_text;
    section.cache_folder.as_mut().map(full);
    let named = [&mut section.text_model, &mut section.tokenizer];
    let of_section = named.into_iter().flatten().map(|name| (name, false));
    for (name, is_model) in of_section.chain([(&mut config.model, true)]) {
        let found = Path::new(name.as_str());
        if found.is_dir() || (found.exists() && !is_model) {
            let mut path = PathBuf::from(name.as_str());
            full(&mut path);
            *name = path.display().to_string();
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{folder, parse};

    #[test]
    fn a_resolved_config_reads_back_as_itself() {
        let files = [
            ("clip/config.json", "{}"),
            (
                "run.yml",
                "model: clip\nlabels: 3\nmemory: 80%\nout: runs/1\nnum_workers: 0\n\
                 data: {train: cars.csv, validation: val.csv, image_root: pictures, tokenizer: t.json,\n  \
                 image: \"2020\", caption: \"a {year}: {make} # yes\", label: \"null\"}\n\
                 train: {effective_batch: 128, lr: 1.7e-5, warmup: 7%, clip_norm: none, early_stop: 2,\n  \
                 lora: {rank: 4, targets: [\"*.fc1\", q_proj], adapter: before},\n  \
                 lr_by: {\"*\": 3e-7, \"a.*\": 0}, eval_every: 5, save_every: 9, best_metric: mean_r1}\n",
            ),
        ];
        let folder = folder(&files);
        let config = RunConfig::read(&folder.path().join("run.yml")).unwrap();
        let text = config.resolved();
        assert!(text.starts_with("# "), "{text}");
        let again = parse(&text).unwrap();
        assert_eq!(again, absolute(&config));
        assert_eq!(again.resolved(), text);
        let data = &again.data;
        assert_eq!(data.train, Some(folder.path().join("cars.csv")));
        assert_eq!(
            again.model,
            folder.path().join("clip").display().to_string()
        );
        assert_eq!(again.out, Some(folder.path().join("runs/1")));
        let adapter = again.train.lora.and_then(|lora| lora.adapter);
        assert_eq!(adapter, Some(folder.path().join("before")));
        let defaults = RunConfig::default();
        assert_eq!(parse(&defaults.resolved()).unwrap(), defaults);
    }

    #[cfg(unix)]
    #[test]
    fn the_same_file_by_another_path_is_the_same() {
        let folder = folder(&[("data/cars.csv", ""), ("configs/run.yml", "")]);
        std::os::unix::fs::symlink(folder.path().join("data"), folder.path().join("link")).unwrap();
        let at = |path: &str| RunConfig {
            out: Some(folder.path().join("configs/../runs/1")),
            data: holdall_data::DataConfig {
                train: Some(folder.path().join(path)),
                ..holdall_data::DataConfig::default()
            },
            ..RunConfig::default()
        };
        let direct = at("data/cars.csv");
        for path in [
            "configs/../data/cars.csv",
            "link/cars.csv",
            "./data/./cars.csv",
        ] {
            assert_eq!(real_paths(&at(path)), real_paths(&direct), "{path}");
        }
        assert_ne!(real_paths(&at("data/other.csv")), real_paths(&direct));
        let written = absolute(&at("configs/../data/cars.csv"));
        assert!(!written.resolved().contains(".."), "{}", written.resolved());
        let linked = absolute(&at("link/cars.csv")).data.train.unwrap();
        assert!(linked.ends_with("link/cars.csv"), "{}", linked.display());
    }

    #[test]
    fn a_tilde_is_the_home_folder() {
        let Some(home) = std::env::var_os("HOME").map(PathBuf::from) else {
            return;
        };
        let files = [(
            "run.yml",
            "data: {train: ~/cars.csv, validation: {file: ~/val.csv}}\nout: ~/runs/1\n",
        )];
        let folder = folder(&files);
        let sets = ["data.image_root=~/pictures".to_owned()];
        let config = RunConfig::load(Some(&folder.path().join("run.yml")), &sets).unwrap();
        assert_eq!(config.data.train, Some(home.join("cars.csv")));
        assert_eq!(config.data.image_root, Some(home.join("pictures")));
        assert_eq!(config.out, Some(home.join("runs/1")));
        let validation = config.data.validation;
        assert_eq!(validation, Validation::file(home.join("val.csv")));
    }

    #[cfg(unix)]
    #[test]
    fn a_name_that_is_no_text_is_written_as_well_as_it_can_be() {
        use std::os::unix::ffi::OsStringExt;
        let out = PathBuf::from(std::ffi::OsString::from_vec(b"caf\xe9".to_vec()));
        let config = RunConfig {
            out: Some(out),
            ..RunConfig::default()
        };
        assert!(config.resolved().contains("caf\u{fffd}"));
    }
}
