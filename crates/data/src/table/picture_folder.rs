//! A folder of pictures without labels, with its subfolders: `1.jpg`, `holiday/7.png`. A text file beside a picture (`1.txt`) is its
//! caption, if at least one picture has one.
//!
//! Like class folders, the pictures are listed as a CSV would list them, in natural order; top folders `train`, `val` and `test` are the
//! sides of the split.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::error::DataError;
use crate::media::{is_picture, stem, unread_format};
use crate::table::class_folders::{self, Listing, joined, push_cell};
use crate::table::folder::{entries, folders};
use crate::table::sides::Side;
use crate::words::{counted, listed};

/// Size limit of a caption file.
const MOST_CAPTION_BYTES: u64 = 1 << 20;

/// Whether a folder or a subfolder has a picture.
pub(crate) fn has_pictures(folder: &Path) -> Result<bool, DataError> {
    let found = entries(folder)?;
    if found.files.iter().any(|name| is_picture(name)) {
        return Ok(true);
    }
    for name in &found.folders {
        if has_pictures(&folder.join(name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a picture in the folder or a subfolder has a caption beside it.
pub(crate) fn has_captions(folder: &Path) -> Result<bool, DataError> {
    let found = entries(folder)?;
    let texts = texts(&found.files);
    let has_text = |name: &String| is_picture(name) && texts.contains(stem(name));
    if found.files.iter().any(has_text) {
        return Ok(true);
    }
    for name in &found.folders {
        if has_captions(&folder.join(name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Names of the text files, without `.txt`.
fn texts(files: &[String]) -> HashSet<&str> {
    let texts = files.iter().filter_map(|name| name.strip_suffix(".txt"));
    texts.collect()
}

pub(crate) fn list(root: &Path) -> Result<Listing, DataError> {
    let mut list = List {
        has_captions: has_captions(root)?,
        ..List::default()
    };
    let names = folders(root)?;
    let has_side = |side: Side| class_folders::of_side(&names, side).is_some();
    list.is_split = has_side(Side::Train) && (has_side(Side::Validation) || has_side(Side::Test));
    list.rows.push_str("image");
    if list.has_captions {
        list.rows.push_str(",caption");
    }
    if list.is_split {
        list.rows.push_str(",split");
    }
    list.rows.push('\n');
    list.folder(root, "", Side::Train)?;
    if list.num_rows == 0 {
        return Err(DataError::no_pictures(root, "pictures", ""));
    }
    let mut notes = vec![if list.has_captions {
        format!(
            "Data: {} of {}, captions from the .txt beside each",
            counted(list.num_rows, "picture"),
            root.display()
        )
    } else {
        format!(
            "Data: {} of {}, without labels or captions",
            counted(list.num_rows, "picture"),
            root.display()
        )
    }];
    if !list.unread.is_empty() {
        notes.push(format!(
            "Careful: {} of formats that are not read: {}",
            counted(list.num_unread, "picture"),
            listed(&list.unread)
        ));
    }
    Ok(Listing {
        csv: list.rows,
        notes,
    })
}

#[derive(Default)]
struct List {
    rows: String,
    num_rows: usize,
    has_captions: bool,
    /// Whether the top folders are sides of a split.
    is_split: bool,
    num_unread: usize,
    unread: Vec<String>,
}

impl List {
    fn folder(&mut self, root: &Path, folder: &str, side: Side) -> Result<(), DataError> {
        let found = entries(&root.join(folder))?;
        let texts = texts(&found.files);
        for name in &found.files {
            if let Some(format) = unread_format(name) {
                self.num_unread += 1;
                if !self.unread.iter().any(|known| known == format) {
                    self.unread.push(format.to_owned());
                }
            }
            if !is_picture(name) {
                continue;
            }
            let path = joined(folder, name);
            push_cell(&mut self.rows, &path);
            if self.has_captions {
                self.rows.push(',');
                if texts.contains(stem(name)) {
                    let text = format!("{}.txt", stem(name));
                    push_cell(&mut self.rows, &caption(&root.join(folder).join(text))?);
                }
            }
            if self.is_split {
                self.rows.push(',');
                self.rows.push_str(side.name());
            }
            self.rows.push('\n');
            self.num_rows += 1;
        }
        for inner in &found.folders {
            let side = match folder {
                "" => Side::of(inner).unwrap_or(Side::Train),
                _ => side,
            };
            self.folder(root, &joined(folder, inner), side)?;
        }
        Ok(())
    }
}

/// Caption from a text file, as one line.
fn caption(path: &Path) -> Result<String, DataError> {
    let failed = |cause| DataError::Io {
        path: path.to_owned(),
        action: "read the caption",
        cause,
    };
    if fs::metadata(path).map_err(failed)?.len() > MOST_CAPTION_BYTES {
        return Err(DataError::invalid(
            path.display(),
            "a caption of at most 1 MiB",
            "a longer text",
            "move it away if it is no caption",
        ));
    }
    let bytes = holdall_files::read_regular(path, MOST_CAPTION_BYTES).map_err(failed)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        DataError::invalid(
            path.display(),
            "UTF-8",
            "bytes that are not",
            "save the file as UTF-8",
        )
    })?;
    let words: Vec<&str> = text
        .trim_start_matches('\u{feff}')
        .split_whitespace()
        .collect();
    Ok(words.join(" "))
}
