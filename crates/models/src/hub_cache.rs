//! Finds models by name in the local cache of Hugging Face's tools and of [`hub_download`](crate::hub_download).
//!
//! ```text
//! CACHE/models--openai--clip-vit-base-patch32/refs/main            the commit of a snapshot
//! CACHE/models--openai--clip-vit-base-patch32/snapshots/COMMIT/    a model folder
//! ```

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Path in an environment variable that is not empty.
fn named(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Home folder of Hugging Face's tools.
fn home() -> Option<PathBuf> {
    named("HF_HOME")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| {
            let home = named("HOME").or_else(|| named("USERPROFILE"))?;
            Some(home.join(".cache/huggingface"))
        })
}

/// Cache folder, by the tools' precedence of variables.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    named("HF_HUB_CACHE")
        .or_else(|| named("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(home()?.join("hub")))
}

/// File in which `hf auth login` stores the token.
pub(crate) fn token_file() -> Option<PathBuf> {
    named("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))
}

/// Name of a model of the hub: `owner/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    owner: String,
    pub(crate) name: String,
}

impl ModelName {
    /// Parses a name; `None` for any other text.
    pub fn parse(text: &str) -> Option<ModelName> {
        let (owner, name) = text.split_once('/')?;
        let is_plain = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
        };
        (is_plain(owner) && is_plain(name)).then(|| ModelName {
            owner: owner.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Folder name in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// Command that downloads a missing model, for messages. `None` where the text is no model name, or is rather a path: its first
/// folder exists, or is the folder of runs.
pub fn command_for(name: &str) -> Option<String> {
    let model = ModelName::parse(name)?;
    let is_path = model.owner == "runs" || Path::new(&model.owner).is_dir();
    (!is_path).then(|| format!("holdall model get {model}"))
}

/// The command as a hint at the end of an error message.
pub fn hint_for(name: &str) -> String {
    let command = command_for(name);
    command.map_or(String::new(), |command| {
        format!("\nhint: {command} downloads it from the Hugging Face hub")
    })
}

/// The snapshot of `name` (`owner/model`) in the local cache.
pub fn find(name: &str) -> Option<PathBuf> {
    find_in(&cache_folder()?, name)
}

fn find_in(cache: &Path, name: &str) -> Option<PathBuf> {
    let folder = cache.join(ModelName::parse(name)?.folder());
    let snapshots = folder.join("snapshots");
    let is_model = |snapshot: &PathBuf| snapshot.join("config.json").is_file();
    let has_weights = |snapshot: &PathBuf| {
        let files = ["model.safetensors", "model.safetensors.index.json"];
        files.iter().any(|file| snapshot.join(file).is_file())
    };
    let main = fs::read_to_string(folder.join("refs/main")).ok();
    let main = main.map(|commit| snapshots.join(commit.trim()));
    // After the main reference, the newest first.
    let entries = fs::read_dir(&snapshots).ok()?;
    let mut others: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    others.sort_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok());
    let models: Vec<PathBuf> = (main.into_iter().chain(others.into_iter().rev()))
        .filter(is_model)
        .collect();
    // Other tools leave snapshots without safetensors; those with supported weights come first.
    let with_weights = models.iter().find(|model| has_weights(model));
    with_weights.or(models.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_reference_comes_first_and_other_names_find_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--openai--clip");
        for commit in ["aaa", "bbb"] {
            fs::create_dir_all(model.join("snapshots").join(commit)).unwrap();
            fs::write(
                model.join("snapshots").join(commit).join("config.json"),
                "{}",
            )
            .unwrap();
        }
        assert!(find_in(cache.path(), "openai/clip").is_some());
        fs::create_dir(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), "aaa\n").unwrap();
        let found = find_in(cache.path(), "openai/clip").unwrap();
        assert!(found.ends_with("snapshots/aaa"));
        // A snapshot with supported weights takes precedence over the reference.
        fs::write(model.join("snapshots/bbb/model.safetensors"), "").unwrap();
        let found = find_in(cache.path(), "openai/clip").unwrap();
        assert!(found.ends_with("snapshots/bbb"));
        for name in [
            "openai",
            "openai/other",
            "a/b/c",
            "../clip",
            "openai/..",
            "a\\b/c",
            "/a",
        ] {
            assert_eq!(find_in(cache.path(), name), None, "{name}");
        }
    }
}
