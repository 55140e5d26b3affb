//! Downloads models of the Hugging Face hub into the cache of Hugging Face's own tools. The transfer is done by the system's `curl`, whose
//! TLS the system keeps up to date and which handles proxies.
//!
//! ```text
//! listing     ENDPOINT/api/models/NAME/revision/REVISION?blobs=true     the commit; files with sizes and hashes
//! choice      config, tokenizer, preprocessor, and weights as safetensors; no format that executes code on loading
//! download    blobs/HASH.incomplete, resumed after an interruption -> size and hash compared -> blobs/HASH
//! snapshot    snapshots/COMMIT/FILE -> ../../blobs/HASH, config.json last; refs/REVISION = COMMIT
//! ```
//!
//! HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE have the meaning that Hugging Face's tools give them.

mod blob_hash;
mod curl;
mod listing;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use curl::Curl;
use listing::{Listing, RemoteFile};

use crate::hub_cache::{self, ModelName};

/// Error of a model download.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The text is not a model name.
    #[error(
        "{name}: expected a model of the hub, OWNER/NAME\nhint: holdall model get openai/clip-vit-base-patch32"
    )]
    Name {
        /// The text as typed.
        name: String,
    },
    /// The network must not be used.
    #[error("{name}: not in {}, and HF_HUB_OFFLINE is set\nhint: unset HF_HUB_OFFLINE to download it", cache.display())]
    Offline {
        name: String,
        /// Folder where the model would be.
        cache: PathBuf,
    },
    /// There is no cache folder.
    #[error("there is no home folder to keep models in\nhint: set HF_HOME to a folder")]
    NoCache,
    /// `curl` is not installed.
    #[error(
        "curl: {cause}\nhint: install curl, or download with Hugging Face's own tool: pip install huggingface_hub; hf download {name}"
    )]
    NoCurl {
        cause: io::Error,
        /// Name of the model, for the hint.
        name: String,
    },
    /// The server or the connection failed.
    #[error("{url}: {found}\nhint: {hint}")]
    Server {
        url: String,
        /// Answer or error.
        found: String,
        hint: String,
    },
    /// The model has no weights as safetensors.
    #[error("{name}: expected model.safetensors, found {found}\nhint: {hint}")]
    NoSafetensors {
        name: String,
        /// Files of the model, in words.
        found: String,
        hint: String,
    },
    /// A downloaded file has the wrong size or hash.
    #[error(
        "{file}: expected {expected}, found {found}; it was removed\nhint: run the same command again"
    )]
    Damaged {
        file: String,
        /// Size or hash promised by the server.
        expected: String,
        /// Size or hash of the file.
        found: String,
    },
    /// The cache cannot be written.
    #[error("{}: {cause}\nhint: check the folder and its free space, or set HF_HOME to another", path.display())]
    Disk {
        /// File or folder of the failed write.
        path: PathBuf,
        cause: io::Error,
    },
    /// The download was interrupted; what arrived is kept.
    #[error("stopped; what came so far stays, and the same command goes on from there")]
    Stopped,
}

/// Receives messages and progress of a download.
pub trait Watcher {
    /// Called with a line of text for the user.
    fn tell(&mut self, line: &str);
    /// Called with the downloaded and the total bytes of a file.
    fn progress(&mut self, file: &str, done: u64, total: u64);
}

/// A model that is in the cache now.
#[derive(Debug)]
pub struct Downloaded {
    pub folder: PathBuf,
    pub commit: String,
    /// Bytes transferred over the network.
    pub bytes: u64,
    /// Names of the files in the folder.
    pub files: Vec<String>,
}

/// Author and title of the pull request in which Hugging Face's conversion bot offers safetensors.
const CONVERTER: &str = "SFconvertbot";
const CONVERTER_TITLE: &str = "safetensors";

/// Downloads the files of a model that the cache lacks. Without a revision, `main` is used, or, if `main` has no safetensors, the
/// pull request of Hugging Face's conversion bot.
pub fn download(
    name: &str,
    revision: Option<&str>,
    stop: &AtomicBool,
    watcher: &mut dyn Watcher,
) -> Result<Downloaded, DownloadError> {
    let model = ModelName::parse(name).ok_or_else(|| DownloadError::Name {
        name: name.to_owned(),
    })?;
    let cache = hub_cache::cache_folder().ok_or(DownloadError::NoCache)?;
    if is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE") {
        return from_cache(&model, cache);
    }
    let hub = Hub::from_environment(&model, stop);
    let asked = revision.unwrap_or("main");
    let mut listing = hub.listing(asked)?;
    let mut files = listing.choose();
    if files.is_none()
        && revision.is_none()
        && let Some(converted) = hub.converted_revision()?
    {
        watcher.tell(&format!(
                "{name} has no safetensors of its own; taking {converted}, where {CONVERTER} converted them"
            ));
        listing = hub.listing(&converted)?;
        files = listing.choose();
    }
    let files = files.ok_or_else(|| no_safetensors(&model, &listing))?;
    let place = CacheFolders::new(&cache, &model, &listing)?;
    let mut bytes = 0;
    for file in files {
        bytes += hub.fetch(file, &listing.commit, &place, watcher)?;
    }
    place.finish(&listing)?;
    Ok(Downloaded {
        folder: place.snapshot,
        commit: listing.commit.clone(),
        bytes,
        files: files_of(&listing),
    })
}

fn files_of(listing: &Listing) -> Vec<String> {
    let chosen = listing.choose().unwrap_or_default();
    chosen.into_iter().map(|file| file.name.clone()).collect()
}

fn from_cache(model: &ModelName, cache: PathBuf) -> Result<Downloaded, DownloadError> {
    let name = model.to_string();
    match hub_cache::find(&name) {
        Some(folder) => Ok(Downloaded {
            commit: folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            folder,
            bytes: 0,
            files: Vec::new(),
        }),
        None => Err(DownloadError::Offline { name, cache }),
    }
}

fn no_safetensors(model: &ModelName, listing: &Listing) -> DownloadError {
    let is_pickle =
        |name: &&str| name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
    let pickle = listing.names().find(is_pickle);
    let (found, hint) = match pickle {
        Some(pickle) => (
            format!("{pickle}, a pickle, which runs code when it is read"),
            format!(
                "if you trust it, these lines of Python convert it into a folder:\n\
                 from transformers import AutoModel\n\
                 AutoModel.from_pretrained(\"{model}\").save_pretrained(\"{0}\")\n\
                 then: --model {0}",
                model.name
            ),
        ),
        None => (
            "no weights".to_owned(),
            "the models that Holdall trains are listed by holdall train --help and docs/configuration.md".to_owned(),
        ),
    };
    DownloadError::NoSafetensors {
        name: model.to_string(),
        found,
        hint,
    }
}

/// Whether an environment variable is set to a true value.
fn is_set(name: &str) -> bool {
    let value = env::var(name).unwrap_or_default().to_lowercase();
    !matches!(value.as_str(), "" | "0" | "false" | "no" | "off")
}

/// The hub's server, for one model.
struct Hub<'a> {
    endpoint: String,
    model: &'a ModelName,
    curl: Curl<'a>,
}

impl<'a> Hub<'a> {
    fn from_environment(model: &'a ModelName, stop: &'a AtomicBool) -> Hub<'a> {
        let endpoint = env::var("HF_ENDPOINT").unwrap_or_default();
        let endpoint = endpoint.trim_end_matches('/');
        let endpoint = if endpoint.is_empty() {
            "https://huggingface.co"
        } else {
            endpoint
        };
        Hub {
            curl: Curl {
                token: token(),
                is_plain: endpoint.starts_with("http://"),
                model,
                stop,
            },
            endpoint: endpoint.to_owned(),
            model,
        }
    }

    fn listing(&self, revision: &str) -> Result<Listing, DownloadError> {
        let escaped = revision.replace('/', "%2F");
        let url = format!(
            "{}/api/models/{}/revision/{escaped}?blobs=true",
            self.endpoint, self.model
        );
        let answer = self.curl.read(&url)?;
        Listing::parse(&answer, revision).map_err(|found| DownloadError::Server {
            url,
            found,
            hint: "HF_ENDPOINT names the server; without it, it is Hugging Face's own".to_owned(),
        })
    }

    /// The open pull request in which Hugging Face's conversion bot offers safetensors.
    fn converted_revision(&self) -> Result<Option<String>, DownloadError> {
        let url = format!("{}/api/models/{}/discussions", self.endpoint, self.model);
        let Ok(answer) = self.curl.read(&url) else {
            // Mirrors may lack discussions.
            return Ok(None);
        };
        Ok(listing::pull_request(&answer, CONVERTER, CONVERTER_TITLE)
            .map(|number| format!("refs/pr/{number}")))
    }

    /// Downloads a file unless the cache has it; returns the bytes transferred.
    fn fetch(
        &self,
        file: &RemoteFile,
        commit: &str,
        place: &CacheFolders,
        watcher: &mut dyn Watcher,
    ) -> Result<u64, DownloadError> {
        let blob = place.blobs.join(file.blob_name());
        let mut brought = 0;
        if !is_whole(&blob, file) {
            let partial = blob.with_added_extension("incomplete");
            let before = fs::metadata(&partial).map_or(0, |data| data.len());
            let url = format!(
                "{}/{}/resolve/{commit}/{}",
                self.endpoint, self.model, file.name
            );
            self.curl.save(&url, &partial, file, watcher)?;
            check(&partial, file)?;
            let failed = disk(&blob);
            holdall_files::rename(&partial, &blob).map_err(failed)?;
            let now = fs::metadata(&blob).map_or(0, |data| data.len());
            brought = now.saturating_sub(before);
        }
        place.link(&blob, file)?;
        Ok(brought)
    }
}

/// HF_TOKEN, or the token stored by `hf auth login`.
fn token() -> Option<String> {
    let text = match env::var("HF_TOKEN") {
        Ok(token) => token,
        Err(_) => fs::read_to_string(hub_cache::token_file()?).ok()?,
    };
    let token = text.trim();
    // Any other character could end the line of the HTTP header.
    let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then(|| token.to_owned())
}

/// Whether a blob exists with the right size; its hash was compared on download. A blob without a known hash may be of another commit.
fn is_whole(blob: &Path, file: &RemoteFile) -> bool {
    file.hash.is_some()
        && fs::metadata(blob).is_ok_and(|data| file.size.is_none_or(|size| data.len() == size))
}

/// Compares size and hash of a download.
fn check(partial: &Path, file: &RemoteFile) -> Result<(), DownloadError> {
    let found = fs::metadata(partial).map_err(disk(partial))?.len();
    let damaged = |expected: String, found: String| {
        // A damaged file must not be resumed.
        let _ = fs::remove_file(partial);
        DownloadError::Damaged {
            file: file.name.clone(),
            expected,
            found,
        }
    };
    if let Some(size) = file.size.filter(|&size| size != found) {
        return Err(damaged(format!("{size} bytes"), found.to_string()));
    }
    if let Some(hash) = &file.hash {
        let found = hash.of_file(partial, found).map_err(disk(partial))?;
        if found != hash.digits() {
            return Err(damaged(format!("{} {}", hash.kind(), hash.digits()), found));
        }
    }
    Ok(())
}

fn disk(path: &Path) -> impl FnOnce(io::Error) -> DownloadError {
    let path = path.to_owned();
    move |cause| DownloadError::Disk { path, cause }
}

/// Folders of a model in the cache.
struct CacheFolders {
    refs: PathBuf,
    blobs: PathBuf,
    snapshot: PathBuf,
}

impl CacheFolders {
    fn new(
        cache: &Path,
        model: &ModelName,
        listing: &Listing,
    ) -> Result<CacheFolders, DownloadError> {
        let folder = cache.join(model.folder());
        let place = CacheFolders {
            refs: folder.join("refs"),
            blobs: folder.join("blobs"),
            snapshot: folder.join("snapshots").join(&listing.commit),
        };
        for path in [&place.blobs, &place.snapshot] {
            fs::create_dir_all(path).map_err(disk(path))?;
        }
        Ok(place)
    }

    /// Adds a file to the snapshot: a symbolic link where the system has them.
    fn link(&self, blob: &Path, file: &RemoteFile) -> Result<(), DownloadError> {
        let path = self.snapshot.join(&file.name);
        let failed = disk(&path);
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        #[cfg(unix)]
        let linked = std::os::unix::fs::symlink(
            Path::new("../../blobs").join(blob.file_name().unwrap_or_default()),
            &path,
        );
        #[cfg(not(unix))]
        let linked = fs::copy(blob, &path).map(drop);
        linked.map_err(failed)
    }

    /// Records the snapshot's commit under the revision.
    fn finish(&self, listing: &Listing) -> Result<(), DownloadError> {
        let path = self.refs.join(&listing.revision);
        let folder = path.parent().unwrap_or(&self.refs);
        fs::create_dir_all(folder).map_err(disk(folder))?;
        holdall_files::write_whole(&path, listing.commit.as_bytes()).map_err(disk(&path))
    }
}
