//! What is in a folder, in natural order.

use std::fs;
use std::path::Path;

use crate::error::DataError;
use crate::natural_order;

/// What names of pictures end with, in any case.
pub const EXTENSIONS: [&str; 7] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff"];

/// What is in a folder.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// Names of files, in natural order.
    pub(crate) files: Vec<String>,
    /// Names of folders, in natural order.
    pub(crate) folders: Vec<String>,
    /// Hidden ones of both.
    pub(crate) num_hidden: usize,
}

/// Lists a folder.
pub(crate) fn entries(folder: &Path) -> Result<Entries, DataError> {
    let failed = |cause| DataError::Io {
        path: folder.to_owned(),
        action: "list the folder",
        cause,
    };
    let mut found = Entries::default();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Through links: data sets are often made of them.
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        let names = match metadata.is_dir() {
            true => &mut found.folders,
            false => &mut found.files,
        };
        match entry.file_name().into_string() {
            Ok(name) if name.starts_with('.') => found.num_hidden += 1,
            // A CSV's row is a line of text, and so is what messages say.
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

/// Whether a name ends as those of pictures do.
pub fn is_picture(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|found| EXTENSIONS.iter().any(|e| e.eq_ignore_ascii_case(found)))
}

/// What names of pictures and masks of a segmentation set may end with beside [`EXTENSIONS`], in any case.
const SEGMENTATION_EXTENSIONS: [&str; 5] = ["gif", "ppm", "pgm", "pbm", "pnm"];

/// Whether a name ends as those of pictures and masks of a segmentation set do.
pub fn is_segmentation_picture(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let (name, is_packed) = match lower.strip_suffix(".gz") {
        Some(name) => (name, true),
        None => (lower.as_str(), false),
    };
    let is_more = name.rsplit_once('.').is_some_and(|(_, extension)| {
        SEGMENTATION_EXTENSIONS.contains(&extension) && !(is_packed && extension == "gif")
    });
    is_more || (!is_packed && is_picture(name))
}

/// Names of the folders in a folder.
pub(crate) fn folders(folder: &Path) -> Result<Vec<String>, DataError> {
    Ok(entries(folder)?.folders)
}

/// A name without its extension.
pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}
