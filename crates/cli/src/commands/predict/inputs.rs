//! What was named: pictures, folders of pictures, a table that lists them; texts, a line each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use holdall_data::DataConfig;
use holdall_data::config::Validation;
use holdall_data::find::is_list;
use holdall_data::folder::{EXTENSIONS, is_picture};
use holdall_data::samples::{Samples, SamplesBuilder};
use holdall_data::source::{self, Captions, DataSet};
use holdall_train::TrainError;

use super::clip_files::clips_under;
use crate::screen::tell;

/// What is looked at.
pub(in crate::commands) struct Inputs {
    pub samples: Arc<Samples>,
    /// Where each sample is.
    pub paths: Vec<PathBuf>,
}

impl Inputs {
    fn of_paths(paths: Vec<PathBuf>) -> Inputs {
        Inputs {
            samples: Arc::new(as_samples(&paths)),
            paths,
        }
    }

    fn of_table(data: DataSet) -> Inputs {
        data.notes.iter().for_each(|note| tell(note));
        let samples = data.train;
        Inputs {
            paths: (0..samples.len())
                .map(|sample| samples.image_path(sample))
                .collect(),
            samples: Arc::new(samples),
        }
    }
}

/// The table among what was named, which then is all that was named.
fn table_of(named: &[PathBuf]) -> Result<Option<&Path>, TrainError> {
    let is_table = |path: &&PathBuf| is_list(path);
    match (named, named.iter().find(is_table)) {
        ([_], Some(table)) => Ok(Some(table)),
        (_, Some(table)) => Err(TrainError::Config(format!(
            "{}: a table lists all pictures, and others were named beside it\nhint: name the table alone",
            table.display()
        ))),
        (_, None) => Ok(None),
    }
}

/// All rows of a table.
fn table_config(table: &Path) -> DataConfig {
    DataConfig {
        train: Some(table.to_owned()),
        validation: Validation::None,
        ..DataConfig::default()
    }
}

/// Pictures, by a table or by their names.
pub(in crate::commands) fn pictures(named: &[PathBuf]) -> Result<Inputs> {
    Ok(match table_of(named)? {
        Some(table) => {
            let data = source::read(&table_config(table), Captions::None, 0);
            Inputs::of_table(data.map_err(TrainError::from)?)
        }
        None => Inputs::of_paths(pictures_under(named)?),
    })
}

/// Clips, likewise.
pub(super) fn clips(named: &[PathBuf]) -> Result<Inputs> {
    Ok(match table_of(named)? {
        Some(table) => {
            let data =
                source::read_clips_with_targets(&table_config(table), Captions::None, &[], 0);
            Inputs::of_table(data.map_err(TrainError::from)?)
        }
        None => Inputs::of_paths(clips_under(named)?),
    })
}

/// The lines of a file, blanks around them and empty ones left out.
pub(super) fn lines_of(path: &Path, option: &str, what: &str) -> Result<Vec<String>, TrainError> {
    let refused = |found: String| {
        TrainError::Config(format!(
            "{option} {}: {found}\nhint: a text file, {what} a line",
            path.display()
        ))
    };
    const MOST_BYTES: u64 = 1 << 28;
    let bytes = holdall_files::read_regular(path, MOST_BYTES)
        .map_err(|cause| refused(cause.to_string()))?;
    let text = String::from_utf8(bytes)
        .map_err(|cause| refused(format!("expected UTF-8, found other bytes: {cause}")))?;
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    match lines.is_empty() {
        true => Err(refused("expected lines, found none".to_owned())),
        false => Ok(lines),
    }
}

/// Files as named, and the pictures in folders, sorted.
fn pictures_under(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    files_under(named, is_picture)
}

/// The same with another idea of what the names of pictures are.
pub(super) fn files_under(named: &[PathBuf], is_picture: fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for path in named {
        match path.is_dir() {
            true => folders.push(path.clone()),
            false => found.push(path.clone()),
        }
    }
    let mut in_folders = Vec::new();
    while let Some(folder) = folders.pop() {
        let unreadable = |cause| {
            TrainError::Config(format!(
                "{}: {cause}\nhint: check the path",
                folder.display()
            ))
        };
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if is_picture(&path.to_string_lossy()) {
                in_folders.push(path);
            }
        }
    }
    in_folders.sort();
    found.extend(in_folders);
    if found.is_empty() {
        return Err(TrainError::Config(format!(
            "found no pictures in what was named\nhint: files, or folders with {}",
            EXTENSIONS.join(", ")
        ))
        .into());
    }
    Ok(found)
}

fn as_samples(paths: &[PathBuf]) -> Samples {
    let mut samples = SamplesBuilder::new(PathBuf::new());
    for (row, path) in paths.iter().enumerate() {
        samples.push(&path.to_string_lossy(), Some(""), row as u32);
    }
    samples.finish(Vec::new())
}
