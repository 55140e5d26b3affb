//! What is in a folder, in natural order.

use std::fs;
use std::path::Path;

use crate::error::DataError;
use crate::natural_order;

/// What names of pictures end with, in any case.
pub const EXTENSIONS: [&str; 12] = [
    "jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm", "pgm", "pbm", "pnm",
];

/// What is read, in messages.
pub(crate) const FORMATS: &str = "JPEG, PNG, WebP, BMP, TIFF, GIF (its first frame) and PNM";

/// Formats of pictures that are not read, by what their names end with.
const UNREAD: [(&str, &str); 15] = [
    ("heic", "HEIC"),
    ("heif", "HEIC"),
    ("avif", "AVIF"),
    ("jp2", "JPEG 2000"),
    ("j2k", "JPEG 2000"),
    ("jxl", "JPEG XL"),
    ("psd", "PSD"),
    ("svg", "SVG"),
    ("exr", "OpenEXR"),
    ("hdr", "HDR"),
    ("ico", "ICO"),
    ("dng", "raw"),
    ("cr2", "raw"),
    ("nef", "raw"),
    ("arw", "raw"),
];

/// The format of a picture that is not read, by its name.
pub(crate) fn unread_format(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let mut unread = UNREAD.iter();
    let found = unread.find(|(known, _)| known.eq_ignore_ascii_case(extension));
    found.map(|(_, format)| *format)
}

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

/// Whether an entry is a file or a folder; nothing where it leads nowhere. Through links, data sets are often made of them: only those are
/// looked at, since a list of a million files tells of all others what they are.
pub(crate) fn kind_of(entry: &fs::DirEntry) -> Option<fs::FileType> {
    match entry.file_type() {
        Ok(kind) if !kind.is_symlink() => Some(kind),
        _ => fs::metadata(entry.path()).ok().map(|file| file.file_type()),
    }
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

/// Whether a name ends as those of pictures and masks of a segmentation set do: PNM may be packed by gzip.
pub fn is_segmentation_picture(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    match lower.strip_suffix(".gz") {
        None => is_picture(name),
        Some(name) => {
            let extension = name.rsplit_once('.').map(|(_, extension)| extension);
            extension.is_some_and(|extension| ["ppm", "pgm", "pbm", "pnm"].contains(&extension))
        }
    }
}

/// Names of the folders in a folder.
pub(crate) fn folders(folder: &Path) -> Result<Vec<String>, DataError> {
    Ok(entries(folder)?.folders)
}

/// A name without its extension.
pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}
