//! Pictures in archives: WebDataset's tars, and Parquet. Their contents are listed once, as a CSV would list them, and the list is kept
//! beside the archives (`.NAME.index`) until one of them changes, so a set of a million pictures opens in the time of reading the list.
//!
//! ```text
//! holdall index 2 KEY pictures ["notes"]      KEY: names, sizes and times of the files
//! image,caption,label,__key__
//! cars-000.tar#000000.jpg@1024+20480,a red car,Ford,000000
//! ```
//!
//! Pictures in a tar are read in place. Pictures in a Parquet file are compressed in pages of many, so their bytes are copied once into a
//! file beside the list (`.NAME.pictures`).

mod parquet_rows;
mod pattern;
pub(crate) mod tar;
#[cfg(test)]
mod tests;
mod web_dataset;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::DataError;
use crate::stored_file::hidden_beside;
use crate::table::folder::entries;
use crate::table::sides::Side;
use crate::table::{TextRecords, parquet};
use crate::words::{counted, thousands};

const VERSION: &str = "holdall index 2";
const MOST_FIRST_LINE: u64 = 1 << 16;
/// Name of the column of sides that is derived from shard names; a name that no table uses.
pub(crate) const SPLIT: &str = "__split__";

/// Archive format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArchiveKind {
    WebDataset,
    Parquet,
}

impl ArchiveKind {
    /// Format by file extension.
    fn of(path: &Path) -> Option<ArchiveKind> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let packed = [".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz"];
        if name.ends_with(".parquet") || name.ends_with(".pq") {
            Some(ArchiveKind::Parquet)
        } else if name.ends_with(".tar") || packed.iter().any(|end| name.ends_with(end)) {
            Some(ArchiveKind::WebDataset)
        } else {
            None
        }
    }
}

/// An archive file.
#[derive(Clone, Debug)]
struct Shard {
    path: PathBuf,
    /// Path relative to the set's folder, with `/`.
    name: String,
    /// Side of the split in its name; `None` if the names tell no sides.
    side: Option<Side>,
}

/// Summary of a listing.
#[derive(Debug)]
struct Listed {
    num_rows: usize,
    /// Whether rows name parts of the archives instead of files.
    has_pictures: bool,
    notes: Vec<String>,
}

/// Whether a path means shards: an archive, a pattern of archives, or a folder that has archives.
pub(crate) fn are_meant(path: &Path) -> bool {
    if path.is_dir() {
        folder_of_shards(path).is_some()
    } else if pattern::is_pattern(path) {
        let first = pattern::expand(path).ok();
        let first = first.and_then(|files| files.into_iter().next());
        first.is_some_and(|file| ArchiveKind::of(&file).is_some())
    } else {
        ArchiveKind::of(path).is_some()
    }
}

/// The folder itself, or its `data` as Hugging Face lays it out, if it has shards.
pub(crate) fn folder_of_shards(folder: &Path) -> Option<PathBuf> {
    let has_shards = |folder: &Path| {
        let found = entries(folder).ok();
        found.is_some_and(|found| {
            found
                .files
                .iter()
                .any(|name| ArchiveKind::of(Path::new(name)).is_some())
        })
    };
    let inner = folder.join("data");
    if has_shards(folder) {
        Some(folder.to_owned())
    } else if inner.is_dir() && has_shards(&inner) {
        Some(inner)
    } else {
        None
    }
}

/// List of the contents of shards.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    file: PathBuf,
    key: String,
    folder: PathBuf,
    has_pictures: bool,
    /// Notes for the log, repeated whenever the list is opened.
    notes: Vec<String>,
}

impl Index {
    /// Opens the kept list or makes a new one; returns the notes too.
    pub(crate) fn open(path: &Path) -> Result<(Index, Vec<String>), DataError> {
        let (shards, folder, kind) = shards(path)?;
        let key = key(&shards)?;
        let places = places(path, &folder);
        let kept = |place: &PathBuf| Index::kept(place, &key, &folder);
        if let Some(index) = places.iter().find_map(kept) {
            let notes = index.notes.clone();
            return Ok((index, notes));
        }
        let mut failed = None;
        for place in &places {
            match Index::make(place, &key, &folder, kind, &shards) {
                Err(DataError::Io {
                    path,
                    action,
                    cause,
                }) if path.as_os_str().is_empty() => {
                    // This folder is not writable; the next one may be.
                    let path = place.clone();
                    failed = Some(DataError::Io {
                        path,
                        action,
                        cause,
                    });
                }
                made => return made,
            }
        }
        Err(failed.unwrap_or_else(|| unwritten(io::ErrorKind::NotFound.into())))
    }

    /// The kept list, if the files have not changed.
    fn kept(place: &Path, key: &str, folder: &Path) -> Option<Index> {
        let mut first = String::new();
        let file = holdall_files::open_regular(place).ok()?.0;
        let mut reader = BufReader::with_capacity(512, io::Read::take(file, MOST_FIRST_LINE));
        reader.read_line(&mut first).ok()?;
        let rest = first.strip_prefix(VERSION)?.strip_suffix('\n')?;
        let mut words = rest.trim().splitn(3, ' ');
        let found = words.next()?;
        let has_pictures = match words.next()? {
            "pictures" => true,
            "paths" => false,
            _ => return None,
        };
        let notes = serde_json::from_str(words.next()?).ok()?;
        (found == key).then(|| Index {
            file: place.to_owned(),
            key: key.to_owned(),
            folder: folder.to_owned(),
            has_pictures,
            notes,
        })
    }

    /// Lists the contents of the files. One process does it, and processes that start at the same time wait for it.
    fn make(
        place: &Path,
        key: &str,
        folder: &Path,
        kind: ArchiveKind,
        shards: &[Shard],
    ) -> Result<(Index, Vec<String>), DataError> {
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(unwritten)?;
        }
        let lock_path = hidden_beside(place, ".lock");
        let lock = File::create(&lock_path).map_err(unwritten)?;
        // Some network file systems have no locks: then two processes may list at once, and the last one wins.
        let _ = lock.lock();
        if let Some(index) = Index::kept(place, key, folder) {
            let notes = index.notes.clone();
            return Ok((index, notes));
        }
        let rows = place.with_added_extension("rows");
        let mut listed = None;
        let written = holdall_files::write_whole_by(&rows, |out| {
            let made = match kind {
                ArchiveKind::WebDataset => web_dataset::list(shards, out),
                ArchiveKind::Parquet => {
                    parquet_rows::list(shards, (place, folder), parquet::Limits::default(), out)
                }
            };
            let is_made = made.is_ok();
            listed = Some(made);
            if is_made {
                Ok(())
            } else {
                Err(io::Error::other("not listed"))
            }
        });
        let Listed {
            num_rows,
            has_pictures,
            mut notes,
        } = match listed {
            Some(listed) => listed?,
            None => {
                written.map_err(unwritten)?;
                return Err(unwritten(io::ErrorKind::Other.into()));
            }
        };
        written.map_err(unwritten)?;
        notes.insert(
            0,
            format!(
                "{} of {}, listed once in {}",
                counted(num_rows, "row"),
                counted(shards.len(), "file"),
                place.display()
            ),
        );
        // The first line is written last, because it depends on all rows.
        let joined = holdall_files::write_whole_by(place, |out| {
            let what = if has_pictures { "pictures" } else { "paths" };
            let said = serde_json::to_string(&notes).unwrap_or_default();
            writeln!(out, "{VERSION} {key} {what} {said}")?;
            io::copy(&mut File::open(&rows)?, out).map(|_| ())
        });
        let _ = fs::remove_file(&rows);
        joined.map_err(unwritten)?;
        let _ = fs::remove_file(&lock_path);
        let index = Index {
            file: place.to_owned(),
            key: key.to_owned(),
            folder: folder.to_owned(),
            has_pictures,
            notes: notes.clone(),
        };
        Ok((index, notes))
    }

    /// Folder that the list's paths are relative to.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether rows name parts of the archives instead of files.
    pub(crate) fn has_pictures(&self) -> bool {
        self.has_pictures
    }

    /// The list as rows, header first; `path` is the user's path, for messages. An error if the list has changed since it was opened.
    pub(crate) fn records(&self, path: &Path) -> Result<TextRecords, DataError> {
        let failed = |cause| DataError::Io {
            path: self.file.clone(),
            action: "read it",
            cause,
        };
        if Index::kept(&self.file, &self.key, &self.folder).is_none() {
            return Err(DataError::Changed {
                path: path.to_owned(),
            });
        }
        let (mut file, _) = holdall_files::open_regular(&self.file).map_err(failed)?;
        let mut first = Vec::new();
        BufReader::new(&mut file)
            .read_until(b'\n', &mut first)
            .map_err(failed)?;
        file.seek(SeekFrom::Start(first.len() as u64))
            .map_err(failed)?;
        Ok(TextRecords::of_list(path, file))
    }
}

/// Lists the contents of one file and keeps nothing on disk: for fuzzing.
pub(crate) fn list_file(path: &Path, limits: parquet::Limits) -> Result<Vec<u8>, DataError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let shards = [Shard {
        path: path.to_owned(),
        name: name.into_owned(),
        side: None,
    }];
    let mut out = Vec::new();
    match ArchiveKind::of(path) {
        Some(ArchiveKind::Parquet) => {
            let place = hidden_beside(path, ".index");
            let listed = parquet_rows::list(&shards, (&place, folder), limits, &mut out);
            let _ = fs::remove_file(place.with_extension("pictures"));
            listed?;
        }
        _ => {
            web_dataset::list(&shards, &mut out)?;
        }
    }
    Ok(out)
}

/// Error of writing the list, before its path is known.
fn unwritten(cause: io::Error) -> DataError {
    DataError::Io {
        path: PathBuf::new(),
        action: "write the list of what is in these files",
        cause,
    }
}

/// Files that a path means, the folder their names are relative to, and their format.
fn shards(path: &Path) -> Result<(Vec<Shard>, PathBuf, ArchiveKind), DataError> {
    let (files, folder) = if let (true, Some(folder)) = (path.is_dir(), folder_of_shards(path)) {
        let names = entries(&folder)?.files.into_iter();
        let names = names.filter(|name| ArchiveKind::of(Path::new(name)).is_some());
        (names.map(|name| folder.join(name)).collect(), folder)
    } else {
        let files = if pattern::is_pattern(path) {
            pattern::expand(path)?
        } else {
            vec![path.to_owned()]
        };
        // Their common folder.
        let mut folder = path.parent().unwrap_or(Path::new("")).to_owned();
        while folder.to_string_lossy().contains(['{', '*']) && !folder.exists() {
            folder = folder.parent().unwrap_or(Path::new("")).to_owned();
        }
        (files, folder)
    };
    if let Some(missing) = files.iter().find(|file| !file.is_file()) {
        return Err(DataError::NoFile {
            path: missing.clone(),
        });
    }
    let kinds: Vec<ArchiveKind> = files
        .iter()
        .filter_map(|file| ArchiveKind::of(file))
        .collect();
    let is_one_kind = kinds.windows(2).all(|pair| pair[0] == pair[1]);
    let (Some(kind), true) = (kinds.first(), is_one_kind && kinds.len() == files.len()) else {
        return Err(DataError::invalid(
            path.display(),
            "tars, or Parquet files",
            "some of both",
            "name those that are meant: `train-*.parquet`",
        ));
    };
    let name = |file: &PathBuf| {
        let name = file.strip_prefix(&folder).unwrap_or(file).to_string_lossy();
        name.replace('\\', "/")
    };
    let mut shards: Vec<Shard> = files
        .iter()
        .map(|file| Shard {
            path: file.clone(),
            name: name(file),
            side: None,
        })
        .collect();
    split_by_name(&mut shards);
    Ok((shards, folder, *kind))
}

/// Assigns sides by file names: `train...`, and `val...` or `test...`.
fn split_by_name(shards: &mut [Shard]) {
    let side = |shard: &Shard| {
        let name = shard.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let word = name.split(|c: char| !c.is_alphabetic()).next();
        Side::of(word?)
    };
    let sides: Vec<Option<Side>> = shards.iter().map(side).collect();
    let has = |wanted: Side| sides.contains(&Some(wanted));
    if !(has(Side::Train) && (has(Side::Validation) || has(Side::Test))) || sides.contains(&None) {
        return;
    }
    for (shard, side) in shards.iter_mut().zip(sides) {
        shard.side = side;
    }
}

/// Value of the split column for a file's rows.
fn split_cell(shard: &Shard) -> &'static str {
    shard.side.unwrap_or(Side::Train).name()
}

/// Hash of the shards' names, sizes and times.
fn key(shards: &[Shard]) -> Result<String, DataError> {
    let mut hasher = Xxh3::new();
    for shard in shards {
        let metadata = fs::metadata(&shard.path).map_err(|cause| DataError::Io {
            path: shard.path.clone(),
            action: "read it",
            cause,
        })?;
        let time = metadata.modified().ok();
        let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        hasher.update(shard.name.as_bytes());
        hasher.update(&[0, shard.side.map_or(3, |side| side.index() as u8)]);
        hasher.update(&metadata.len().to_le_bytes());
        hasher.update(&time.map_or(0, |time| time.as_nanos() as u64).to_le_bytes());
    }
    Ok(format!("{:016x}", hasher.digest()))
}

/// Candidate paths for the list: beside the files, then in the cache folder.
fn places(path: &Path, folder: &Path) -> Vec<PathBuf> {
    let name = if path.is_dir() {
        "shards".to_owned()
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.replace(['{', '}', '*', ','], "_")
    };
    let beside = folder.join(format!(".{name}.index"));
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let hash = xxh3_64(whole.as_os_str().as_encoded_bytes());
    let cache = holdall_files::cache_folder();
    let elsewhere = cache.map(|cache| {
        cache
            .join("indexes")
            .join(format!("{hash:016x}-{name}.index"))
    });
    [Some(beside), elsewhere].into_iter().flatten().collect()
}

/// `12,345 pictures (1.2 GiB)`.
fn pictures_text(num_pictures: usize, num_bytes: u64) -> String {
    format!(
        "{} pictures ({})",
        thousands(num_pictures),
        holdall_files::show_bytes(num_bytes)
    )
}
