//! Models by name, where Hugging Face's tools left them on this machine. Nothing is downloaded.
//!
//! ```text
//! CACHE/models--openai--clip-vit-base-patch32/refs/main            the name of a snapshot
//! CACHE/models--openai--clip-vit-base-patch32/snapshots/COMMIT/    a model folder
//! ```

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the tools look, in their order.
fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("HF_HUB_CACHE")
        .or_else(|| named("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(named("HF_HOME")?.join("hub")))
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("huggingface/hub")))
        .or_else(|| {
            let home = named("HOME").or_else(|| named("USERPROFILE"))?;
            Some(home.join(".cache/huggingface/hub"))
        })
}

/// The snapshot of `name` (`owner/model`) in the local cache.
pub fn find(name: &str) -> Option<PathBuf> {
    find_in(&cache_folder()?, name)
}

fn find_in(cache: &Path, name: &str) -> Option<PathBuf> {
    let mut parts = name.split('/');
    let (owner, model) = (parts.next()?, parts.next()?);
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('\\');
    if parts.next().is_some() || !is_plain(owner) || !is_plain(model) {
        return None;
    }
    let folder = cache.join(format!("models--{owner}--{model}"));
    let snapshots = folder.join("snapshots");
    let is_model = |snapshot: &PathBuf| snapshot.join("config.json").is_file();
    let main = fs::read_to_string(folder.join("refs/main")).ok();
    main.map(|commit| snapshots.join(commit.trim()))
        .filter(is_model)
        .or_else(|| {
            // Without a reference, the newest.
            let entries = fs::read_dir(&snapshots).ok()?;
            let models = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(is_model);
            models.max_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok())
        })
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
        for name in ["openai", "openai/other", "a/b/c", "../clip", "openai/.."] {
            assert_eq!(find_in(cache.path(), name), None, "{name}");
        }
    }
}
