//! Lists folders in natural order, and recognises pictures by their names.

use std::fs;
use std::path::Path;

use crate::error::DataError;
use crate::natural_order;

/// Extensions of pictures, matched in any case.
pub const EXTENSIONS: [&str; 12] = [
    "jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm", "pgm", "pbm", "pnm",
];

/// Supported formats, for messages.
pub(crate) const FORMATS: &str = "JPEG, PNG, WebP, BMP, TIFF, GIF (its first frame) and PNM";

/// Extensions and names of unsupported picture formats.
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

/// Name of the unsupported picture format of a file name's extension.
pub(crate) fn unread_format(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let mut unread = UNREAD.iter();
    let found = unread.find(|(known, _)| known.eq_ignore_ascii_case(extension));
    found.map(|(_, format)| *format)
}

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

/// Whether a file name has the extension of a picture.
pub fn is_picture(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|found| EXTENSIONS.iter().any(|e| e.eq_ignore_ascii_case(found)))
}

/// Whether a file name has the extension of a picture or mask of a segmentation set: PNM may be packed by gzip.
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

pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}
