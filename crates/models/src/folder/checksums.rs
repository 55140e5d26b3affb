//! `holdall.json`: checksums of the files of a model folder that Holdall wrote.
//!
//! ```text
//! {"files": {"config.json": {"bytes": 611, "checksum": "..."}, "model.safetensors": {...}, ...}}
//! ```
//!
//! For a safetensors file, holdall.json has the checksum of its header, which in turn has the checksums of its tensors. Tensors are
//! compared as they are read, so that opening a folder does not read all of its weights. Any other file is compared when the folder is
//! opened.
//!
//! A file that differs or is missing is refused, even if the change may be intended: a changed digit in config.json gives other results,
//! without labels.json labels are numbers, and an edit cannot be told from damage. To keep an edit, remove holdall.json.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use holdall_files::{Checksum, write_whole};
use serde::{Deserialize, Serialize};

use super::find::{file_exists, read_json};
use super::weights_file::WeightsFile;
use super::write::failed;
use crate::error::ModelError;

pub const CHECKSUMS_FILE: &str = "holdall.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    files: BTreeMap<String, SealedFile>,
}

impl Sealed {
    /// Checks that every file exists and, except for tensors, matches its checksum.
    fn compare(&self, folder: &Path) -> Result<(), ModelError> {
        for (name, expected) in &self.files {
            let path = folder.join(name);
            if !file_exists(&path)? {
                return Err(missing(&path));
            }
            compare(&path, expected)?;
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealedFile {
    bytes: u64,
    checksum: String,
}

/// Writes the checksums of all files in a folder, and returns the checksum of that list: equal for equal folders.
pub fn seal_folder(folder: &Path) -> Result<Checksum, ModelError> {
    let mut files = BTreeMap::new();
    add_files(folder, "", &mut files)?;
    let json = serde_json::to_string_pretty(&Sealed { files }).expect("text and numbers");
    let text = format!("{json}\n");
    let path = folder.join(CHECKSUMS_FILE);
    write_whole(&path, text.as_bytes()).map_err(failed(&path, "write it"))?;
    Ok(Checksum::of(text.as_bytes()))
}

/// Adds the files of a folder and of its subfolders: `decoder/config.json`.
fn add_files(
    folder: &Path,
    prefix: &str,
    files: &mut BTreeMap<String, SealedFile>,
) -> Result<(), ModelError> {
    for entry in fs::read_dir(folder).map_err(failed(folder, "list it"))? {
        let entry = entry.map_err(failed(folder, "list it"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name == CHECKSUMS_FILE || name.ends_with(".partial") {
            continue;
        }
        if path.is_dir() {
            add_files(&path, &format!("{prefix}{name}/"), files)?;
        } else if path.is_file() {
            let (checksum, bytes) = checksum_of(&path)?;
            let checksum = checksum.to_string();
            files.insert(format!("{prefix}{name}"), SealedFile { bytes, checksum });
        }
    }
    Ok(())
}

/// Names of the files with checksums; `None` for a folder without checksums.
pub fn sealed_files(folder: &Path) -> Result<Option<Vec<String>>, ModelError> {
    let sealed = read(folder)?;
    Ok(sealed.map(|(sealed, _)| sealed.files.into_keys().collect()))
}

/// Compares every byte of a folder with its checksums, which must exist, and returns the same checksum as [`seal_folder`].
pub fn verify_folder(folder: &Path) -> Result<Checksum, ModelError> {
    let Some((sealed, checksum)) = read(folder)? else {
        return Err(missing(&folder.join(CHECKSUMS_FILE)));
    };
    sealed.compare(folder)?;
    for path in sealed.files.keys().map(|name| folder.join(name)) {
        if is_weights(&path) {
            WeightsFile::open(&path)?.verify()?;
        }
    }
    Ok(checksum)
}

/// Compares the files of a folder with its checksums, if it has any. Tensors are compared as they are read.
pub(super) fn check_files(folder: &Path) -> Result<(), ModelError> {
    match read(folder)? {
        Some((sealed, _)) => sealed.compare(folder),
        None => Ok(()),
    }
}

fn read(folder: &Path) -> Result<Option<(Sealed, Checksum)>, ModelError> {
    let path = folder.join(CHECKSUMS_FILE);
    if !file_exists(&path)? {
        return Ok(None);
    }
    let text = read_json(&path)?;
    let sealed = serde_json::from_str(&text).map_err(|cause| ModelError::Damaged {
        file: path,
        part: "its contents".into(),
        expected: "checksums of files".into(),
        found: cause.to_string(),
    })?;
    Ok(Some((sealed, Checksum::of(text.as_bytes()))))
}

fn compare(path: &Path, expected: &SealedFile) -> Result<(), ModelError> {
    let damaged = |expected: String, found: String| ModelError::Damaged {
        file: path.into(),
        part: "its contents".into(),
        expected,
        found,
    };
    let length = fs::metadata(path).map_err(failed(path, "read its size"))?;
    if length.len() != expected.bytes {
        return Err(damaged(
            format!("{} bytes", expected.bytes),
            length.len().to_string(),
        ));
    }
    let (found, _) = checksum_of(path)?;
    if found.to_string() == expected.checksum {
        Ok(())
    } else {
        Err(damaged(
            format!("checksum {}", expected.checksum),
            found.to_string(),
        ))
    }
}

/// Checksum and length of a file; for a safetensors file with checksums, only its header is read.
fn checksum_of(path: &Path) -> Result<(Checksum, u64), ModelError> {
    if is_weights(path) {
        let bytes = fs::metadata(path).map_err(failed(path, "read its size"))?;
        if let Some(checksum) = WeightsFile::open(path)?.checksum() {
            return Ok((checksum, bytes.len()));
        }
    }
    Checksum::of_file(path).map_err(failed(path, "read it"))
}

fn is_weights(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "safetensors")
}

fn missing(path: &Path) -> ModelError {
    ModelError::Damaged {
        file: path.into(),
        part: "its contents".into(),
        expected: "a file that Holdall wrote".into(),
        found: "none".into(),
    }
}
