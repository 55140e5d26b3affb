//! Lists folders in natural order.

use std::fs;
use std::path::Path;

use crate::error::DataError;
use crate::natural_order;

/// Contents of a folder.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// Names of files, in natural order.
    pub(crate) files: Vec<String>,
    /// Names of folders, in natural order.
    pub(crate) folders: Vec<String>,
    /// Number of hidden files and folders.
    pub(crate) num_hidden: usize,
}

/// Whether an entry is a file or a folder; `None` for a broken link. Links are followed, since data sets often consist of links. Only links
/// cost a stat: the directory listing has the kind of all other entries, of which a folder may have a million.
pub(crate) fn kind_of(entry: &fs::DirEntry) -> Option<fs::FileType> {
    match entry.file_type() {
        Ok(kind) if !kind.is_symlink() => Some(kind),
        _ => fs::metadata(entry.path()).ok().map(|file| file.file_type()),
    }
}

pub(crate) fn entries(folder: &Path) -> Result<Entries, DataError> {
    let failed = |cause| DataError::Io {
        path: folder.to_owned(),
        action: "list the folder",
        cause,
    };
    let mut found = Entries::default();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(kind) = kind_of(&entry) else {
            continue;
        };
        let names = if kind.is_dir() {
            &mut found.folders
        } else {
            &mut found.files
        };
        match entry.file_name().into_string() {
            Ok(name) if name.starts_with('.') => found.num_hidden += 1,
            // A CSV's row and a message are one line each.
            Ok(name) if !name.contains(['\n', '\r']) => names.push(name),
            _ => {
                return Err(DataError::invalid(
                    entry.path().display(),
                    "a name in UTF-8, without line breaks",
                    "another",
                    "rename it",
                ));
            }
        }
    }
    for names in [&mut found.files, &mut found.folders] {
        names.sort_unstable_by(|a, b| natural_order::compare(a, b));
    }
    Ok(found)
}

/// Names of the folders in a folder.
pub(crate) fn folders(folder: &Path) -> Result<Vec<String>, DataError> {
    Ok(entries(folder)?.folders)
}
