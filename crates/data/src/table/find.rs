//! Finds the table of a data path: the named file, the cleanest CSV of a folder, or the folder itself where its files are the rows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::table::folder::{entries, folders, kind_of};
use crate::table::partners::check_readable;
use crate::table::shards::{self, folder_of_shards};
use crate::table::{class_folders, pair_layout, picture_folder};

/// Suffixes of a CSV's stem that mark a cleaned copy, best first.
const CLEANER: [&str; 2] = ["_filtered", "_cleaned"];
const USUAL_STEM: &str = "image_labels";

/// The CSV to read, or the folder of class folders, shards or pictures.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub csv: PathBuf,
    /// Notes for the user about the choice.
    pub notes: Vec<String>,
}

/// Resolves the path `train`: a file is itself; a folder is its best CSV, else the folder itself if it holds class folders, shards or
/// pictures. Without a path, the best CSV of the current folder or its `data`.
pub fn find(train: Option<&Path>) -> Result<Found, DataError> {
    match train {
        None => find_in_folders(&[PathBuf::from("."), PathBuf::from("data")]),
        Some(path) if path.is_dir() => match find_in_folders(&[path.to_owned()]) {
            Err(DataError::NoTable { .. }) if class_folders::is_layout(path)? => Ok(Found {
                csv: path.to_owned(),
                notes: vec![format!("Data: class folders of {}", path.display())],
            }),
            Err(no_table @ DataError::NoTable { .. }) => match folder_of_shards(path) {
                Some(folder) => Ok(Found {
                    notes: vec![format!("Data: shards of {}", folder.display())],
                    csv: folder,
                }),
                None if has_tables(path)?
                    || pair_layout::place(path)?.is_some()
                    || !picture_folder::has_pictures(path)? =>
                {
                    check_formats_below(path)?;
                    Err(no_table)
                }
                None => Ok(Found {
                    csv: path.to_owned(),
                    notes: Vec::new(),
                }),
            },
            found => found,
        },
        Some(path) if path.exists() || shards::are_meant(path) => Ok(Found {
            csv: path.to_owned(),
            notes: notes_on(path),
        }),
        Some(path) => Err(DataError::NoFile {
            path: path.to_owned(),
        }),
    }
}

/// Refuses subfolders of DICOM files or volumes by that name: they look like class folders, and hold no pictures. Arrays of NumPy may be
/// clips, which need a table.
fn check_formats_below(root: &Path) -> Result<(), DataError> {
    for name in folders(root)? {
        let folder = root.join(name);
        let mut names = entries(&folder)?.files;
        names.retain(|name| !name.ends_with(".npy") && !name.ends_with(".npz"));
        check_readable(&folder, &names)?;
    }
    Ok(())
}

fn find_in_folders(folders: &[PathBuf]) -> Result<Found, DataError> {
    let usual = CLEANER.iter().copied().chain([""]);
    let usual: Vec<String> = usual.map(|s| format!("{USUAL_STEM}{s}.csv")).collect();
    for folder in folders {
        if let Some(csv) = usual.iter().map(|n| folder.join(n)).find(|p| p.is_file()) {
            return Ok(found(csv));
        }
    }
    let mut others = Vec::new();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let files = files_in(folder)?;
        let (mut tables, rest): (Vec<PathBuf>, Vec<PathBuf>) =
            files.into_iter().partition(|file| is_table(file));
        // `metadata.csv` and `metadata.jsonl` have the same content.
        if tables.iter().filter(|file| is_csv(file)).count() == 1 {
            tables.retain(|file| is_csv(file));
        }
        match tables.len() {
            1 => return Ok(found(tables.remove(0))),
            0 => others.extend(rest),
            _ => return Err(no_table(folders, &tables)),
        }
    }
    Err(no_table(folders, &others))
}

fn found(csv: PathBuf) -> Found {
    let csv = csv.strip_prefix(".").map(Path::to_owned).unwrap_or(csv);
    let mut notes = vec![format!("Data: {} (found by its name)", csv.display())];
    notes.extend(older_than_source(&csv));
    Found { csv, notes }
}

fn no_table(folders: &[PathBuf], found: &[PathBuf]) -> DataError {
    DataError::NoTable {
        folders: folders.to_vec(),
        found: found.iter().map(|file| name_of(file)).collect(),
    }
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |cause| DataError::Io {
        path: folder.to_owned(),
        action: "list it",
        cause,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if kind_of(&entry).is_some_and(|kind| kind.is_file()) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn is_csv(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// Whether a file is a CSV, or a table read like one.
fn is_table(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_other = |extension: &str| {
        let others = ["tsv", "jsonl", "ndjson"];
        others
            .iter()
            .any(|other| other.eq_ignore_ascii_case(extension))
    };
    is_csv(path) || extension.is_some_and(is_other)
}

/// Whether a path is data (a table, shards, or a folder of pictures), and not a model or a config.
pub fn is_data(path: &Path) -> bool {
    if !path.is_dir() {
        return (path.is_file() && is_table(path)) || shards::are_meant(path);
    }
    let is_model = path.join("config.json").is_file();
    !is_model
        && (find(Some(path)).is_ok() || pair_layout::place(path).is_ok_and(|place| place.is_some()))
}

/// Whether a path is a list of pictures (a table or shards), rather than a picture or a folder of pictures.
pub fn is_list(path: &Path) -> bool {
    if !path.is_dir() {
        is_data(path)
    } else {
        let has_pictures = || picture_folder::has_pictures(path).unwrap_or(true);
        folder_of_shards(path).is_some() && !has_pictures()
    }
}

fn has_tables(folder: &Path) -> Result<bool, DataError> {
    Ok(files_in(folder)?.iter().any(|file| is_table(file)))
}

/// Notes on a named file, which is used even where a cleaner copy lies beside it.
fn notes_on(csv: &Path) -> Vec<String> {
    let (stem, cleanness) = stem_of(csv);
    let better = CLEANER[..cleanness]
        .iter()
        .map(|suffix| csv.with_file_name(format!("{stem}{suffix}.csv")))
        .find(|path| path.is_file());
    match better {
        Some(better) if is_older(&better, csv) => vec![format!(
            "{} beside {} is older than it and is not used",
            name_of(&better),
            name_of(csv)
        )],
        Some(better) => vec![format!(
            "{} is used as asked; {} lies beside it and is cleaner",
            name_of(csv),
            name_of(&better)
        )],
        None => older_than_source(csv).into_iter().collect(),
    }
}

fn older_than_source(csv: &Path) -> Option<String> {
    let (stem, cleanness) = stem_of(csv);
    let source = csv.with_file_name(format!("{stem}.csv"));
    let stale = cleanness < CLEANER.len() && is_older(csv, &source);
    stale.then(|| {
        format!(
            "{} is older than its source {}: clean again to include what changed",
            name_of(csv),
            name_of(&source)
        )
    })
}

/// The stem without a suffix of [`CLEANER`], and the index of its suffix (`CLEANER.len()` for none).
fn stem_of(csv: &Path) -> (String, usize) {
    let stem = csv
        .file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    for (at, suffix) in CLEANER.iter().enumerate() {
        if let Some(source) = stem.strip_suffix(suffix) {
            return (source.to_owned(), at);
        }
    }
    (stem, CLEANER.len())
}

/// Output files of cleaning: the CSV without unreadable rows, and the CSV without filtered rows as well.
pub(crate) fn cleaned_names(csv: &Path) -> [PathBuf; 2] {
    let (stem, _) = stem_of(csv);
    let [filtered, cleaned] = CLEANER;
    let extension = csv.extension().map(|extension| extension.to_string_lossy());
    let extension = extension.unwrap_or("csv".into());
    [cleaned, filtered].map(|suffix| csv.with_file_name(format!("{stem}{suffix}.{extension}")))
}

/// The source of a cleaned CSV; `None` if its name has no suffix of a cleaned one.
pub fn source_of(csv: &Path) -> Option<PathBuf> {
    let (stem, cleanness) = stem_of(csv);
    (cleanness < CLEANER.len()).then(|| csv.with_file_name(format!("{stem}.csv")))
}

fn is_older(a: &Path, b: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    matches!((changed(a), changed(b)), (Some(a), Some(b)) if a < b)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A folder with these files, each a minute younger than the one before.
    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let start = SystemTime::now() - Duration::from_secs(3600);
        for (minute, name) in names.iter().enumerate() {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(start + Duration::from_secs(60 * minute as u64))
                .unwrap();
        }
        folder
    }

    fn chosen(names: &[&str]) -> (String, Vec<String>) {
        let folder = folder(names);
        let found = find(Some(folder.path())).unwrap();
        (name_of(&found.csv), found.notes)
    }

    #[test]
    fn the_cleanest_of_a_folder_is_taken() {
        let all = [
            "image_labels.csv",
            "image_labels_cleaned.csv",
            "image_labels_filtered.csv",
            "z.csv",
        ];
        assert_eq!(chosen(&all).0, "image_labels_filtered.csv");
        assert_eq!(chosen(&all[..2]).0, "image_labels_cleaned.csv");
        assert_eq!(chosen(&all[..1]).0, "image_labels.csv");
        assert_eq!(chosen(&["only.CSV", "readme.txt"]).0, "only.CSV");
        assert_eq!(chosen(&all).1.len(), 1);
    }

    #[test]
    fn a_stale_choice_is_mentioned() {
        let (csv, notes) = chosen(&["image_labels_filtered.csv", "image_labels.csv"]);
        assert_eq!(csv, "image_labels_filtered.csv");
        assert!(
            notes[1].contains("older than its source image_labels.csv"),
            "{notes:?}"
        );
    }

    #[test]
    fn no_choice_lists_what_is_there() {
        let error = |names: &[&str]| {
            let folder = folder(names);
            find(Some(folder.path())).unwrap_err().to_string()
        };
        assert!(error(&["a.csv", "b.csv", "c.txt"]).contains("found a.csv, b.csv\n"));
        assert!(error(&["c.txt"]).contains("found c.txt\n"));
        assert!(error(&[]).contains("found nothing\n"));
        let nowhere = find(Some(Path::new("/nowhere/cars.csv"))).unwrap_err();
        assert!(matches!(nowhere, DataError::NoFile { .. }));
    }

    #[test]
    fn class_folders_of_dicom_files_are_named() {
        let folder = folder(&[]);
        for class in ["a", "b"] {
            std::fs::create_dir(folder.path().join(class)).unwrap();
            File::create(folder.path().join(class).join("1.dcm")).unwrap();
        }
        let error = find(Some(folder.path())).unwrap_err().to_string();
        assert!(
            error.contains("found a DICOM file\nhint: `dcmj2pnm"),
            "{error}"
        );
    }

    #[test]
    fn a_named_file_is_taken_and_a_better_one_mentioned() {
        let notes = |names: &[&str], name: &str| {
            let folder = folder(names);
            let found = find(Some(&folder.path().join(name))).unwrap();
            assert_eq!(name_of(&found.csv), name);
            found.notes.join("\n")
        };
        let fresh = ["cars.csv", "cars_cleaned.csv", "cars_filtered.csv"];
        assert!(notes(&fresh, "cars.csv").contains("cars_filtered.csv lies beside it"));
        assert!(notes(&fresh, "cars_cleaned.csv").contains("cars_filtered.csv lies beside it"));
        assert_eq!(notes(&fresh, "cars_filtered.csv"), "");
        let stale = ["cars_filtered.csv", "cars.csv"];
        assert!(notes(&stale, "cars.csv").contains("older"));
        assert!(notes(&stale, "cars_filtered.csv").contains("older than its source cars.csv"));
    }

    #[test]
    fn with_two_folders_the_first_that_has_a_choice_wins() {
        let (empty, full) = (folder(&["notes.txt"]), folder(&["cars.csv"]));
        let folders = [empty.path().to_owned(), full.path().to_owned()];
        let found = find_in_folders(&folders).unwrap();
        assert_eq!(name_of(&found.csv), "cars.csv");
    }
}
