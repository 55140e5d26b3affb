//! A data set with a folder per class: `cat/1.jpg`, `dog/poodles/7.jpg`. Folders `train`, `val` and `test` around the class folders, in the
//! spellings of [`Side::of`], are the sides of the split.
//!
//! The files are listed as CSV text in natural order, so that all code that reads a CSV reads class folders too; a row number is a file's
//! place in this list.

use std::path::Path;

use crate::error::DataError;
use crate::media::{is_picture, unread_format};
use crate::table::folder::{Entries, entries, folders};
use crate::table::pair_layout;
use crate::table::picture_folder::has_pictures;
use crate::table::sides::Side;
use crate::words::{counted, listed};

/// Name of the class column.
pub(crate) const LABEL: &str = "label";
/// Name of the split column.
pub(crate) const SPLIT: &str = "split";

#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The files as CSV text.
    pub(crate) csv: String,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

/// Whether a folder has this layout: two subfolders with pictures, or a `train` folder with subfolders.
pub(crate) fn is_layout(root: &Path) -> Result<bool, DataError> {
    if pair_layout::is_layout(root)? {
        return Ok(false);
    }
    let names = folders(root)?;
    if let Some(train) = of_side(&names, Side::Train) {
        return Ok(
            !pair_layout::is_layout(&root.join(train))? && !folders(&root.join(train))?.is_empty()
        );
    }
    let mut with_pictures = 0;
    for name in &names {
        if has_pictures(&root.join(name))? {
            with_pictures += 1;
        }
        if with_pictures == 2 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first folder whose name is that of a side.
pub(crate) fn of_side(names: &[String], side: Side) -> Option<&str> {
    let found = names.iter().find(|name| Side::of(name) == Some(side));
    found.map(String::as_str)
}

pub(crate) fn list(root: &Path) -> Result<Listing, DataError> {
    let names = folders(root)?;
    let mut list = List::default();
    match of_side(&names, Side::Train) {
        None => {
            list.rows.push_str("image,label\n");
            list.classes(root, "", "")?;
        }
        Some(_) => {
            list.rows.push_str("image,label,split\n");
            let mut used = Vec::new();
            for side in Side::ALL {
                if let Some(folder) = of_side(&names, side) {
                    list.classes(root, folder, &format!(",{}", side.name()))?;
                    used.push(folder);
                }
            }
            list.note_on_others(root, &names, &used)?;
        }
    }
    if list.num_rows == 0 {
        return Err(DataError::no_pictures(root, "pictures", ""));
    }
    Ok(list.finish())
}

#[derive(Default)]
struct List {
    rows: String,
    num_rows: usize,
    others: Others,
    strays: Others,
    empty_classes: Vec<String>,
    nested_classes: Vec<String>,
    notes: Vec<String>,
}

/// Files that are left out.
#[derive(Default)]
struct Others {
    count: usize,
    first: String,
    /// Picture formats that are not supported.
    formats: Vec<String>,
}

impl Others {
    fn add(&mut self, folder: &str, name: &str) {
        if self.first.is_empty() {
            self.first = joined(folder, name);
        }
        self.count += 1;
        if let Some(format) = unread_format(name)
            && !self.formats.iter().any(|known| known == format)
        {
            self.formats.push(format.to_owned());
        }
    }
}

impl List {
    /// Adds the class folders of a folder.
    fn classes(&mut self, root: &Path, folder: &str, split: &str) -> Result<(), DataError> {
        let Entries {
            files,
            folders,
            num_hidden,
        } = entries(&root.join(folder))?;
        self.others.count += num_hidden;
        for name in &files {
            if is_picture(name) {
                self.strays.add(folder, name)
            } else {
                self.others.add(folder, name)
            }
        }
        for class in folders {
            let before = self.num_rows;
            let inside = joined(folder, &class);
            let direct = self.pictures(root, &inside, &class, split)?;
            if self.num_rows == before {
                self.empty_classes.push(inside);
            } else if direct < self.num_rows - before {
                self.nested_classes.push(inside);
            }
        }
        Ok(())
    }

    /// Adds the pictures of a class, including those in nested folders; returns how many are directly in its folder.
    fn pictures(
        &mut self,
        root: &Path,
        folder: &str,
        class: &str,
        split: &str,
    ) -> Result<usize, DataError> {
        let found = entries(&root.join(folder))?;
        self.others.count += found.num_hidden;
        let mut direct = 0;
        for name in &found.files {
            if !is_picture(name) {
                self.others.add(folder, name);
                continue;
            }
            push_cell(&mut self.rows, &joined(folder, name));
            self.rows.push(',');
            push_cell(&mut self.rows, class);
            self.rows.push_str(split);
            self.rows.push('\n');
            self.num_rows += 1;
            direct += 1;
        }
        for inner in &found.folders {
            self.pictures(root, &joined(folder, inner), class, split)?;
        }
        Ok(direct)
    }

    fn note_on_others(
        &mut self,
        root: &Path,
        names: &[String],
        used: &[&str],
    ) -> Result<(), DataError> {
        let found = entries(root)?;
        self.others.count += found.num_hidden;
        for name in &found.files {
            if is_picture(name) {
                self.strays.add("", name)
            } else {
                self.others.add("", name)
            }
        }
        let others = names.iter().filter(|name| !used.contains(&name.as_str()));
        let others: Vec<String> = others.cloned().collect();
        if !others.is_empty() {
            self.notes.push(format!(
                "Careful: {} beside `{}` is neither trained on nor held out",
                listed(&others),
                used.join("`, `")
            ));
        }
        Ok(())
    }

    fn finish(mut self) -> Listing {
        if !self.empty_classes.is_empty() {
            let names = listed(&self.empty_classes);
            self.notes
                .push(format!("Careful: class folders without pictures: {names}"));
        }
        if !self.nested_classes.is_empty() {
            let names = listed(&self.nested_classes);
            self.notes.push(format!(
                "Class folders with folders inside: {names}; their pictures count for the outer folder's class"
            ));
        }
        for (files, what) in [(&self.strays, "picture"), (&self.others, "file")] {
            if files.count > 0 {
                let why = match what {
                    "picture" => "outside of every class folder",
                    _ => "not pictures, or hidden",
                };
                let first = match files.first.as_str() {
                    "" => String::new(),
                    first => format!(" (first: {first})"),
                };
                let careful = if what == "picture" { "Careful: " } else { "" };
                self.notes.push(format!(
                    "{careful}{} left out: {why}{first}",
                    counted(files.count, what)
                ));
            }
        }
        if !self.others.formats.is_empty() {
            self.notes.push(format!(
                "Careful: pictures of these formats are not read: {} (save them as JPEG or PNG)",
                listed(&self.others.formats)
            ));
        }
        Listing {
            csv: self.rows,
            notes: self.notes,
        }
    }
}

pub(crate) fn joined(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        _ => format!("{folder}/{name}"),
    }
}

pub(crate) fn push_cell(rows: &mut String, text: &str) {
    if text.contains([',', '"']) || text.trim() != text {
        *rows += &format!("\"{}\"", text.replace('"', "\"\""));
    } else {
        rows.push_str(text);
    }
}
