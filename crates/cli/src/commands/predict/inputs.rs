//! Inputs of `predict`: pictures, folders of pictures or a table of them; texts, one per line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdall_data::config::{BadPictures, Share, Validation};
use holdall_data::media::{EXTENSIONS, is_picture};
use holdall_data::samples::{self, BadRow, Captions, DataSet, Samples, SamplesBuilder};
use holdall_data::table::{Table, is_list};
use holdall_data::{DataConfig, DataError};
use holdall_files::{check_memory, show_bytes, thousands};
use holdall_train::TrainError;
use holdall_train::export::saved_inputs::{self, Reader};
use holdall_train::tasks::Saved;

use super::PredictArguments;
use super::clip_files::clips_under;
use crate::options::{output_is_input, resolved};
use crate::screen::tell;

/// The table among the named inputs; a table must be the only input.
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

/// Preprocessing settings: those of training, overridden by `--set`. An unreadable picture does not stop the others.
pub(super) fn settings(
    arguments: &PredictArguments,
    saved: &Saved,
) -> Result<DataConfig, TrainError> {
    let sets = &arguments.sets;
    let named = arguments.images.iter().chain(&arguments.search.search);
    let named: Vec<&PathBuf> = named.collect();
    let reader = if named.iter().any(|path| is_list(path)) {
        Reader::Predict
    } else {
        Reader::PredictFiles
    };
    saved_inputs::check_sets(sets, saved.task_name(), reader)?;
    let mut config = saved_inputs::config_of(&arguments.model, saved.model(), sets)?;
    let place = match named.as_slice() {
        [only] => only.as_path(),
        _ => Path::new(""),
    };
    let note = saved_inputs::take_data(&mut config, place, sets);
    note.iter().for_each(|note| tell(note));
    let warnings = saved_inputs::warnings_of_sets(&config, sets, saved.task_name());
    warnings.iter().for_each(|warning| tell(warning));
    config.data.train = None;
    Ok(DataConfig {
        bad_pictures: BadPictures::Skip,
        max_skipped: Share(1.0),
        ..config.data.without_targets()
    })
}

/// Refuses outputs that are also inputs, regardless of `--overwrite`.
pub(super) fn check_outputs(
    arguments: &PredictArguments,
    samples: &Samples,
) -> Result<(), TrainError> {
    for (option, path) in arguments.outputs() {
        let Some(path) = path.as_deref().filter(|path| path.exists()) else {
            continue;
        };
        let place = resolved(path);
        let is_input =
            |file: PathBuf| file.file_name() == place.file_name() && resolved(&file) == place;
        if (0..samples.len()).any(|sample| samples.clip_paths(sample).any(is_input)) {
            return Err(output_is_input(option, path));
        }
    }
    Ok(())
}

/// The data config for all rows of a table.
fn read_all(table: &Path, data: &DataConfig) -> DataConfig {
    DataConfig {
        train: Some(table.to_owned()),
        validation: Validation::UNSPLIT,
        ..data.clone()
    }
}

/// Named samples, and table rows without a file.
pub(in crate::commands) struct Named {
    pub samples: Arc<Samples>,
    pub bad_rows: Vec<BadRow>,
}

impl Named {
    fn of_files(paths: &[PathBuf]) -> Named {
        Named {
            samples: Arc::new(as_samples(paths)),
            bad_rows: Vec::new(),
        }
    }

    fn of_table(data: DataSet) -> Named {
        data.notes.iter().for_each(|note| tell(note));
        Named {
            samples: Arc::new(data.train),
            bad_rows: data.bad_rows,
        }
    }
}

/// Pictures from a table, or by their paths.
pub(in crate::commands) fn pictures(
    named: &[PathBuf],
    data: &DataConfig,
) -> Result<Named, TrainError> {
    Ok(match table_of(named)? {
        Some(table) => Named::of_table(samples::read(&read_all(table, data), Captions::None, 0)?),
        None => Named::of_files(&pictures_under(named)?),
    })
}

/// Clips, with the group of each sample if the table has groups.
pub(super) struct Clips {
    pub named: Named,
    pub groups: Option<ClipGroups>,
}

/// Group name of each sample.
pub(super) struct ClipGroups {
    pub column: String,
    name_of_line: HashMap<u32, String>,
}

impl ClipGroups {
    pub fn name(&self, samples: &Samples, sample: u32) -> &str {
        let name = self.name_of_line.get(&samples.row(sample as usize));
        name.map_or("", String::as_str)
    }

    fn read(table: &Table, column: &str) -> Result<ClipGroups, DataError> {
        let at = table.column("group", column)?;
        let mut name_of_line = HashMap::new();
        let mut rows = table.rows()?;
        while let Some(row) = rows.read_any()? {
            name_of_line.insert(row.line(), row.cell(at).trim().to_owned());
        }
        Ok(ClipGroups {
            column: column.to_owned(),
            name_of_line,
        })
    }
}

/// Clips from a table, or by their paths. Clips of one group are one sample, as in training.
pub(super) fn clips(named: &[PathBuf], data: &DataConfig) -> Result<Clips, TrainError> {
    let Some(path) = table_of(named)? else {
        tell_ungrouped(data, "files have no groups");
        let paths = clips_under(named)?;
        return Ok(Clips {
            named: Named::of_files(&paths),
            groups: None,
        });
    };
    let mut data = read_all(path, data);
    let mut groups = None;
    if let Some(column) = data.group.clone() {
        let table = Table::open_separated(path, data.separator)?;
        if table.columns().contains(&column) {
            groups = Some(ClipGroups::read(&table, &column)?);
        } else {
            tell_ungrouped(&data, "the table has no such column");
            (data.group, data.num_videos) = (None, None);
        }
    }
    let read = samples::read_clips(&data, Captions::None, 0)?;
    Ok(Clips {
        named: Named::of_table(read),
        groups,
    })
}

/// Notes that the model was trained on groups of clips, and the input has none.
fn tell_ungrouped(data: &DataConfig, why: &str) {
    if let Some(column) = &data.group {
        tell(&format!(
            "Every clip is a sample of its own: the model was trained on groups by `{column}`, and {why}"
        ));
    }
}

/// Non-empty lines of a file, trimmed.
pub(super) fn lines_of(path: &Path, option: &str, what: &str) -> Result<Vec<String>, TrainError> {
    let refused = |found: String| {
        TrainError::Config(format!(
            "{option} {}: {found}\nhint: a text file, {what} a line",
            path.display()
        ))
    };
    const MOST_BYTES: u64 = 1 << 28;
    // Memory of the file's text plus its lines: short lines take their length again, plus overhead.
    const LINE_BYTES: u64 = 64;
    let file_bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let check = |needed_bytes: u64, what: String| {
        check_memory(needed_bytes).map_err(|over| DataError::OverBudget {
            place: format!("{option} {}", path.display()),
            what,
            over,
            hint: "several smaller files, one after the other",
            is_all: true,
        })
    };
    check(
        2 * file_bytes,
        format!("a file of {}", show_bytes(file_bytes)),
    )?;
    let bytes = holdall_files::read_regular(path, MOST_BYTES)
        .map_err(|cause| refused(cause.to_string()))?;
    let text = String::from_utf8(bytes)
        .map_err(|cause| refused(format!("expected UTF-8, found other bytes: {cause}")))?;
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut num_lines = 0;
    for (number, line) in (1..).zip(lines.clone()) {
        samples::check_text(line, || format!("{}, line {number}", path.display()))?;
        num_lines = number;
    }
    if num_lines == 0 {
        return Err(refused("expected lines, found none".to_owned()));
    }
    let needed_bytes = file_bytes + num_lines * LINE_BYTES;
    check(needed_bytes, format!("{} lines", thousands(num_lines)))?;
    Ok(lines.map(str::to_owned).collect())
}

/// Named files, and the pictures in named folders, sorted.
fn pictures_under(named: &[PathBuf]) -> Result<Vec<PathBuf>, TrainError> {
    files_under(named, is_picture)
}

/// Like [`pictures_under`], with another test for picture names.
pub(super) fn files_under(
    named: &[PathBuf],
    is_picture: fn(&str) -> bool,
) -> Result<Vec<PathBuf>, TrainError> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for path in named {
        if path.is_dir() {
            folders.push(path.clone())
        } else {
            found.push(path.clone())
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
        )));
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
