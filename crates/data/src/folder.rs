//! What is in a folder, in natural order.

use std::fs;
use std::path::Path;

use crate::error::DataError;
use crate::natural;

/// What names of pictures end with, in any case.
const EXTENSIONS: [&str; 7] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff"];

/// Names of the pictures in a folder. Others are left alone: notes, thumbnails' databases, hidden files.
pub(crate) fn pictures(folder: &Path) -> Result<Vec<String>, DataError> {
    let mut names = names(folder, |kind| !kind.is_dir())?;
    names.retain(|name| {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|found| EXTENSIONS.iter().any(|e| e.eq_ignore_ascii_case(found)))
    });
    Ok(names)
}

/// Names of the folders in a folder.
pub(crate) fn folders(folder: &Path) -> Result<Vec<String>, DataError> {
    names(folder, fs::FileType::is_dir)
}

/// A name without its extension.
pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

fn names(folder: &Path, wanted: impl Fn(&fs::FileType) -> bool) -> Result<Vec<String>, DataError> {
    let failed = |cause| DataError::Io {
        path: folder.to_owned(),
        action: "list the folder",
        cause,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Through links: data sets are often made of them.
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        if !wanted(&metadata.file_type()) {
            continue;
        }
        match entry.file_name().into_string() {
            Ok(name) if name.starts_with('.') => {}
            Ok(name) => names.push(name),
            Err(_) => return Err(DataError::FileName { path: entry.path() }),
        }
    }
    names.sort_unstable_by(|a, b| natural::compare(a, b));
    Ok(names)
}
