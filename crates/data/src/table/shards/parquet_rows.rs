//! Rows of Parquet files: columns of pictures become parts of a file that they are copied into, all other columns become text.
//!
//! A picture is a column of bytes, or a group of `bytes` and `path` as Hugging Face writes it; without bytes, the path is used. A list is
//! joined by `|`, null is an empty cell, and label numbers become the names in Hugging Face's metadata.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::Value as Json;

use super::{Listed, SPLIT, Shard, pictures_text, split_cell, unwritten};
use crate::error::DataError;
use crate::stored_file::part_path;
use crate::table::parquet::{
    ColumnReader, Leaf, Limits, ParquetFault, ParquetFile, Physical, Value,
};
use crate::words::listed;

/// Longest byte string that may be text: unmarked byte columns up to this length are checked, because a name or a caption is no picture.
const MOST_TEXT_BYTES: usize = 4096;

/// A column of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    name: String,
    /// Leaf column with the values.
    leaf: usize,
    kind: ColumnKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ColumnKind {
    Text,
    /// Label numbers, with their names.
    Names(Vec<String>),
    /// Picture bytes, and the leaf with the path that is used where the bytes are null.
    Picture {
        path: Option<usize>,
    },
}

/// Writes a line of the list for each row.
pub(super) fn list(
    shards: &[Shard],
    (place, folder): (&Path, &Path),
    limits: Limits,
    out: &mut dyn Write,
) -> Result<Listed, DataError> {
    let Some(first) = shards.first() else {
        return Err(unwritten(std::io::ErrorKind::NotFound.into()));
    };
    let file = ParquetFile::open(&first.path, limits)?;
    let first_names = names(&file);
    let (columns, mut notes) = columns(&file)?;
    let has_pictures = columns
        .iter()
        .any(|column| matches!(column.kind, ColumnKind::Picture { .. }));
    let mut pictures = if has_pictures {
        Some(CopiedPictures::create(place, folder)?)
    } else {
        None
    };
    let is_split = shards.iter().any(|shard| shard.side.is_some());
    let mut rows = csv::Writer::from_writer(out);
    let mut header: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    if is_split {
        header.push(SPLIT);
    }
    let failed = |cause: csv::Error| unwritten(std::io::Error::other(cause));
    rows.write_record(&header).map_err(failed)?;
    let mut num_rows = 0;
    for shard in shards {
        let file = ParquetFile::open(&shard.path, limits)?;
        if names(&file) != first_names {
            return Err(DataError::invalid(
                shard.path.display(),
                format_args!("the columns of {}", first.path.display()),
                "others",
                "name those that belong together: `train-*.parquet`",
            ));
        }
        // Every picture or its name takes more than a byte: a file that claims more rows than bytes is hostile.
        let num_cells = file.footer.num_rows().saturating_mul(columns.len() as u64);
        let most_cells = file.num_bytes().saturating_mul(64);
        if file.footer.num_rows() > file.num_bytes() || num_cells > most_cells {
            return Err(ParquetFault::damaged("more rows than bytes").of(&shard.path));
        }
        let mut of_file = 0;
        for group in 0..file.footer.row_groups.len() {
            let mut readers = Readers::open(&file, &columns, group)?;
            for _ in 0..file.footer.row_groups[group].num_rows {
                of_file += 1;
                let row = (shard.name.as_str(), of_file);
                readers.read(&file, &columns, pictures.as_mut(), row)?;
                let cells = readers.cells.iter().map(String::as_str);
                let split = is_split.then(|| split_cell(shard));
                rows.write_record(cells.chain(split)).map_err(failed)?;
            }
        }
        num_rows += of_file as usize;
    }
    rows.flush().map_err(unwritten)?;
    if let Some(pictures) = pictures {
        notes.push(pictures.finish()?);
    }
    Ok(Listed {
        num_rows,
        has_pictures,
        notes,
    })
}

/// Names of the leaves; files of one table have equal names.
fn names(file: &ParquetFile) -> Vec<String> {
    file.footer
        .leaves
        .iter()
        .map(|leaf| leaf.path.join("."))
        .collect()
}

/// Name of a column without the levels that lists add.
fn name(leaf: &Leaf) -> String {
    let in_list = |part: &&String| {
        leaf.most_repetition == 0
            || !matches!(part.as_str(), "list" | "element" | "item" | "array" | "bag")
    };
    let first = leaf.path.first().into_iter();
    let rest = leaf.path.iter().skip(1).filter(in_list);
    let parts: Vec<&str> = first.chain(rest).map(String::as_str).collect();
    parts.join(".")
}

/// The columns of the list, and notes.
fn columns(file: &ParquetFile) -> Result<(Vec<Column>, Vec<String>), DataError> {
    let leaves = &file.footer.leaves;
    let class_names = class_names(file);
    let mut columns: Vec<Column> = Vec::new();
    let mut left_out = Vec::new();
    // A path beside the bytes of a picture belongs to the picture.
    let mut path_of: HashMap<usize, usize> = HashMap::new();
    for (at, leaf) in leaves.iter().enumerate() {
        let (Some("bytes"), 0) = (leaf.path.last().map(String::as_str), leaf.most_repetition)
        else {
            continue;
        };
        let group = &leaf.path[..leaf.path.len() - 1];
        let path = leaves.iter().position(|other| {
            let parts = other.path.split_last();
            parts.is_some_and(|(last, rest)| last == "path" && rest == group)
        });
        if let Some(path) = path.filter(|_| !group.is_empty()) {
            path_of.insert(at, path);
        }
    }
    for (at, leaf) in leaves.iter().enumerate() {
        if path_of.values().any(|path| *path == at) {
            continue;
        }
        let column_name = name(leaf);
        let is_bytes = leaf.physical == Physical::Bytes && !leaf.is_text;
        let kind = if leaf.most_repetition > 1 || (is_bytes && leaf.most_repetition > 0) {
            left_out.push(column_name);
            continue;
        } else if let Some(path) = path_of.get(&at) {
            ColumnKind::Picture { path: Some(*path) }
        } else if is_bytes && !is_text(file, at)? {
            ColumnKind::Picture { path: None }
        } else if let Some(names) = class_names.get(&column_name) {
            ColumnKind::Names(names.clone())
        } else {
            ColumnKind::Text
        };
        let column_name = match &kind {
            ColumnKind::Picture { path: Some(_) } => {
                column_name.trim_end_matches(".bytes").to_owned()
            }
            _ => column_name,
        };
        columns.push(Column {
            name: column_name,
            leaf: at,
            kind,
        });
    }
    let notes = if left_out.is_empty() {
        Vec::new()
    } else {
        vec![format!(
            "Not read of {}: {} (lists of pictures, or of lists)",
            file.path.display(),
            listed(&left_out)
        )]
    };
    if columns.is_empty() {
        return Err(DataError::invalid(
            file.path.display(),
            "columns of pictures, texts or numbers",
            "none that is read",
            "write a table with a picture per row",
        ));
    }
    Ok((columns, notes))
}

/// Whether the first value of a column that is not null reads as a short text.
fn is_text(file: &ParquetFile, leaf: usize) -> Result<bool, DataError> {
    let failed = |fault: ParquetFault| fault.of(&file.path);
    for group in 0..file.footer.row_groups.len() {
        let mut reader = file.column(group, leaf)?;
        for _ in 0..file.footer.row_groups[group].num_rows.min(1000) {
            if let Some(Value::Bytes(bytes)) = reader.next().map_err(failed)? {
                let text = std::str::from_utf8(bytes).ok();
                let text = text.filter(|text| text.len() <= MOST_TEXT_BYTES);
                return Ok(text.is_some_and(|text| !text.chars().any(char::is_control)));
            }
        }
    }
    Ok(true)
}

/// Label names by column, from Hugging Face's metadata.
fn class_names(file: &ParquetFile) -> HashMap<String, Vec<String>> {
    let mut found = HashMap::new();
    let notes = file.footer.notes.iter();
    let text = notes
        .filter(|(key, _)| key == "huggingface")
        .map(|(_, text)| text);
    for json in text.filter_map(|text| serde_json::from_str::<Json>(text).ok()) {
        let features = json.pointer("/info/features").and_then(Json::as_object);
        for (column, feature) in features.into_iter().flatten() {
            let names = feature.get("names").and_then(Json::as_array);
            let names: Option<Vec<String>> = names.and_then(|names| {
                let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                names.collect()
            });
            if let Some(names) = names {
                found.insert(column.clone(), names);
            }
        }
    }
    found
}

/// The columns of a row group, read in parallel.
struct Readers {
    readers: Vec<ColumnReader>,
    paths: Vec<Option<ColumnReader>>,
    cells: Vec<String>,
}

impl Readers {
    fn open(file: &ParquetFile, columns: &[Column], group: usize) -> Result<Readers, DataError> {
        let mut readers = Vec::new();
        let mut paths = Vec::new();
        for column in columns {
            readers.push(file.column(group, column.leaf)?);
            paths.push(match column.kind {
                ColumnKind::Picture { path: Some(path) } => Some(file.column(group, path)?),
                _ => None,
            });
        }
        Ok(Readers {
            readers,
            paths,
            cells: vec![String::new(); columns.len()],
        })
    }

    /// Reads a row into `cells`, and copies its pictures.
    fn read(
        &mut self,
        file: &ParquetFile,
        columns: &[Column],
        mut pictures: Option<&mut CopiedPictures>,
        (shard, row): (&str, u64),
    ) -> Result<(), DataError> {
        let failed = |fault: ParquetFault| fault.of(&file.path);
        for (at, column) in columns.iter().enumerate() {
            let (reader, out) = (&mut self.readers[at], &mut self.cells[at]);
            out.clear();
            let is_unsigned = file.footer.leaves[column.leaf].is_unsigned;
            match (&column.kind, pictures.as_deref_mut()) {
                (ColumnKind::Picture { .. }, Some(pictures)) => {
                    let cell = reader.next().map_err(failed)?;
                    if let Some(Value::Bytes(bytes @ [_, ..])) = cell {
                        *out = pictures.add(bytes, shard, row)?;
                    }
                    if let Some(path) = &mut self.paths[at] {
                        let cell = path.next().map_err(failed)?;
                        if let (Some(Value::Bytes(bytes)), true) = (cell, out.is_empty()) {
                            out.push_str(&String::from_utf8_lossy(bytes));
                        }
                    }
                }
                (kind, _) => {
                    push_text(out, reader.next().map_err(failed)?, kind, is_unsigned);
                    while reader.row_continues().map_err(failed)? {
                        out.push('|');
                        push_text(out, reader.next().map_err(failed)?, kind, is_unsigned);
                    }
                }
            }
        }
        Ok(())
    }
}

fn push_text(out: &mut String, cell: Option<Value<'_>>, kind: &ColumnKind, is_unsigned: bool) {
    let Some(value) = cell else {
        return;
    };
    let written = match (value, kind) {
        (Value::Int(number), ColumnKind::Names(names)) => {
            let name = usize::try_from(number).ok().and_then(|at| names.get(at));
            // Hugging Face writes -1 for no label.
            match name {
                Some(name) => write!(out, "{name}"),
                None => Ok(()),
            }
        }
        (Value::Int(number), _) if is_unsigned => write!(out, "{}", number as u64),
        (Value::Int(number), _) => write!(out, "{number}"),
        (Value::Float(number), _) if number.is_nan() => Ok(()),
        (Value::Float(number), _) => write!(out, "{number}"),
        (Value::Double(number), _) if number.is_nan() => Ok(()),
        (Value::Double(number), _) => write!(out, "{number}"),
        (Value::Bool(is_true), _) => write!(out, "{is_true}"),
        (Value::Bytes(bytes), _) => write!(out, "{}", String::from_utf8_lossy(bytes)),
    };
    // Writing to a string cannot fail.
    let _ = written;
}

/// File that pictures are copied into.
struct CopiedPictures {
    file: Option<BufWriter<File>>,
    path: std::path::PathBuf,
    /// Name of the file in the list.
    name: String,
    at: u64,
    num_pictures: usize,
}

impl CopiedPictures {
    fn create(place: &Path, folder: &Path) -> Result<CopiedPictures, DataError> {
        let path = place.with_extension("pictures");
        let name = if place.parent() == Some(folder) {
            path.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        } else {
            path.to_string_lossy().into_owned()
        };
        let partial = holdall_files::partial(&path);
        Ok(CopiedPictures {
            file: Some(BufWriter::with_capacity(
                1 << 20,
                File::create(partial).map_err(unwritten)?,
            )),
            path,
            name,
            at: 0,
            num_pictures: 0,
        })
    }

    fn add(&mut self, bytes: &[u8], shard: &str, row: u64) -> Result<String, DataError> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes).map_err(unwritten)?;
        }
        let member = format!("{shard} row {row}");
        let part = part_path(&self.name, &member, self.at, bytes.len() as u64);
        self.at += bytes.len() as u64;
        self.num_pictures += 1;
        Ok(part)
    }

    /// Completes the file and renames it.
    fn finish(mut self) -> Result<String, DataError> {
        if let Some(file) = self.file.take() {
            let file = file.into_inner();
            let file = file.map_err(|error| unwritten(error.into_error()))?;
            file.sync_all().map_err(unwritten)?;
        }
        holdall_files::rename(&holdall_files::partial(&self.path), &self.path)
            .map_err(unwritten)?;
        Ok(format!(
            "Copied {} to {}: pages of Parquet hold many at once, and training reads them in any order",
            pictures_text(self.num_pictures, self.at),
            self.path.display()
        ))
    }
}

impl Drop for CopiedPictures {
    fn drop(&mut self) {
        // Has no effect once the file is renamed.
        let _ = std::fs::remove_file(holdall_files::partial(&self.path));
    }
}
