//! Matches files of two folders by their names.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::media::is_segmentation_picture;
use crate::table::folder::entries;
use crate::words::{counted, listed};

/// Files of one sample, relative to the set's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairFiles {
    pub image: String,
    pub further_images: Vec<String>,
    pub mask: Option<String>,
    pub field_of_view: Option<String>,
    /// Line of the table; 0 for a pair from a folder.
    pub line: u32,
}

/// Picture files of a folder.
pub(super) struct Files {
    place: PathBuf,
    /// Relative to the root.
    folder: String,
    names: Vec<String>,
}

impl Files {
    pub(super) fn list(
        root: &Path,
        folder: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Files, DataError> {
        let place = root.join(folder);
        let found = entries(&place)?;
        check_readable(&place, &found.files)?;
        let mut names = found.files;
        names.retain(|name| is_segmentation_picture(name) && wanted(name));
        if names.is_empty() {
            return Err(DataError::no_pictures(
                &place,
                "pictures",
                ", .gif, .ppm, .pgm, .pbm or .pnm, the last four also with .gz",
            ));
        }
        Ok(Files {
            place,
            folder: folder.to_owned(),
            names,
        })
    }

    fn path(&self, name: &str) -> String {
        match self.folder.as_str() {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        }
    }

    pub(super) fn alone(&self) -> Vec<PairFiles> {
        let pair = |name: &String| PairFiles {
            image: self.path(name),
            ..PairFiles::default()
        };
        self.names.iter().map(pair).collect()
    }

    /// Finds for each file its partner among `others`: the file of the same name without extension, or else of the same name without the
    /// usual endings: `21_training.tif`, `21_manual1.gif`.
    pub(super) fn partners(
        &self,
        others: &Files,
        what: &str,
        must_all_match: bool,
    ) -> Result<Vec<String>, DataError> {
        let exact = self.matched(others, |name| stem(name).to_owned());
        let (found, lone) = match exact {
            Some((found, lone))
                if found.iter().all(Option::is_some) && (lone.is_empty() || !must_all_match) =>
            {
                (found, lone)
            }
            // Names with endings such as `_manual1`.
            exact => match self.matched(others, key) {
                Some((found, lone)) if found.iter().all(Option::is_some) => (found, lone),
                _ => match exact {
                    Some(partial) => partial,
                    None => return Err(self.two_of_a_name(others)),
                },
            },
        };
        let without: Vec<String> = (self.names.iter().zip(&found))
            .filter(|(_, partner)| partner.is_none())
            .map(|(name, _)| name.clone())
            .collect();
        if without.is_empty() && (lone.is_empty() || !must_all_match) {
            let paths = found.into_iter().flatten();
            return Ok(paths.map(|name| others.path(&name)).collect());
        }
        Err(DataError::invalid(
            self.place.display(),
            format_args!(
                "a {what} in {} for each image and an image for each {what}",
                others.place.display()
            ),
            format_args!(
                "{} and {}; images without a {what}: {}; {what}s without an image: {}",
                counted(self.names.len(), "image"),
                counted(others.names.len(), what),
                listed(&without),
                listed(&lone)
            ),
            format_args!(
                "a {what} has its image's name, whatever the extension; remove or rename what has no partner"
            ),
        ))
    }

    /// Partners by a key of the names, and the `others` without a partner; `None` where two files of a folder have the same key.
    fn matched(
        &self,
        others: &Files,
        key: impl Fn(&str) -> String,
    ) -> Option<(Vec<Option<String>>, Vec<String>)> {
        let mut by_key: HashMap<String, &String> = HashMap::new();
        for name in &others.names {
            if by_key.insert(key(name), name).is_some() {
                return None;
            }
        }
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for name in &self.names {
            let key = key(name);
            found.push(by_key.get(&key).map(|name| (*name).clone()));
            if !seen.insert(key) {
                return None;
            }
        }
        let lone = others
            .names
            .iter()
            .filter(|name| !seen.contains(&key(name)));
        Some((found, lone.cloned().collect()))
    }

    fn two_of_a_name(&self, others: &Files) -> DataError {
        for files in [self, others] {
            let mut seen = HashMap::new();
            for name in &files.names {
                if let Some(first) = seen.insert(stem(name), name) {
                    return DataError::invalid(
                        files.place.display(),
                        "one file of each name",
                        format_args!("{first} and {name}"),
                        "pairs are matched without extensions; remove one of the two",
                    );
                }
            }
        }
        DataError::no_pictures(&self.place, "pictures", "")
    }
}

/// Name without its extension, and without a second one before `.gz`.
pub(crate) fn stem(name: &str) -> &str {
    let name = if name.to_ascii_lowercase().ends_with(".gz") {
        &name[..name.len() - 3]
    } else {
        name
    };
    crate::media::stem(name)
}

/// Name endings that do not identify the picture.
const ENDS: [&str; 20] = [
    "_1stho",
    "_2ndho",
    "_manual1",
    "_manual2",
    "_manual",
    "_masks",
    "_mask",
    "_labels",
    "_label",
    "_gt",
    "_groundtruth",
    "_seg",
    "_segmentation",
    "_annotation",
    "_fov",
    "_training",
    "_train",
    "_test",
    "_image",
    ".ah",
];

/// Name of a picture in lower case without the usual endings.
fn key(name: &str) -> String {
    let mut key = stem(name).to_lowercase();
    while let Some(end) = ENDS
        .iter()
        .find(|end| key.len() > end.len() && key.ends_with(*end))
    {
        key.truncate(key.len() - end.len());
    }
    key
}

/// Extensions of volumes: three-dimensional images, which no model here supports.
const VOLUMES: [&str; 5] = [".nii", ".nii.gz", ".nrrd", ".mha", ".mhd"];

/// Unsupported files that hold pictures or volumes: extension, what the file is, and how to convert it.
const UNREAD: [(&str, &str, &str); 4] = [
    (
        ".npy",
        "an array of NumPy",
        "`PIL.Image.fromarray(numpy.load(\"x.npy\").astype(\"uint8\")).save(\"x.png\")` saves values of 0 to 255 as PNG; values in 0 to 1 times 255 first",
    ),
    (
        ".npz",
        "an archive of NumPy arrays",
        "save each array as PNG: `PIL.Image.fromarray(array.astype(\"uint8\")).save(\"x.png\")`; values in 0 to 1 times 255 first",
    ),
    (".dcm", "a DICOM file", DICOM_HINT),
    (".dicom", "a DICOM file", DICOM_HINT),
];

const DICOM_HINT: &str =
    "`dcmj2pnm --write-16-bit-png x.dcm x.png` of DCMTK, or pydicom's `pixel_array` saved as PNG";

/// Refuses files that are no two-dimensional pictures, by their names.
pub(super) fn check_readable(folder: &Path, names: &[String]) -> Result<(), DataError> {
    for name in names {
        let lower = name.to_ascii_lowercase();
        let found = if VOLUMES.iter().any(|end| lower.ends_with(end)) {
            let hint = "export its slices as PNG or TIFF: 3-D segmentation is not done here";
            Some(("a picture of two dimensions", "a volume", hint))
        } else {
            let unread = UNREAD.iter().find(|(end, ..)| lower.ends_with(end));
            unread.map(|(_, found, hint)| ("a picture", *found, *hint))
        };
        if let Some((expected, found, hint)) = found {
            return Err(DataError::invalid(
                folder.join(name).display(),
                format_args!("{expected}: PNG, TIFF, JPEG, BMP, GIF or PNM"),
                found,
                hint,
            ));
        }
    }
    Ok(())
}
