//! nnU-Net's raw folders: `imagesTr/NAME_0000.png` (a file per channel), `labelsTr/NAME.png`, `imagesTs`, `labelsTs`, and a `dataset.json`
//! that names channels and classes; without it, file names and mask values decide. Natural images are one RGB file per case,
//! `NAME_0000.png` or `NAME.png`, which has all three channels.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::pair_layout::PairLayout;
use super::partners::{PairFiles, check_readable, stem};
use crate::config::MOST_CLASSES;
use crate::decode::{Limits, native_cost};
use crate::error::DataError;
use crate::media::is_segmentation_picture;
use crate::table::folder::entries;
use crate::words::listed;

const FILE_NAME: &str = "dataset.json";
/// Size limit of `dataset.json`: it lists at most every file.
const MOST_BYTES: u64 = 64 << 20;

/// Whether a folder has nnU-Net's layout.
pub(crate) fn is_layout(folder: &Path) -> bool {
    let is_there = |name: &str| folder.join(name).is_dir();
    is_there("imagesTr") && (folder.join(FILE_NAME).is_file() || is_there("labelsTr"))
}

/// Contents of a `dataset.json`, or the same derived from file names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Description {
    /// Names of the classes, by number.
    pub classes: Vec<String>,
    /// Mask value that is not counted.
    pub ignore: Option<u16>,
    num_channels: usize,
}

pub(crate) fn describe(folder: &Path) -> Result<Description, DataError> {
    let path = folder.join(FILE_NAME);
    if !path.is_file() {
        return without_description(folder);
    }
    let bytes = holdall_files::read_regular(&path, MOST_BYTES).map_err(|cause| DataError::Io {
        path: path.clone(),
        action: "read it",
        cause,
    })?;
    let wrong = |expected: &str, found: String| {
        Err(DataError::invalid(
            path.display(),
            expected,
            found,
            "nnU-Net's documentation of `dataset.json` has examples",
        ))
    };
    let json: Value = match serde_json::from_slice(&bytes) {
        Ok(json) => json,
        Err(cause) => return wrong("JSON", cause.to_string()),
    };
    let Some(labels) = json.get("labels").and_then(Value::as_object) else {
        return wrong("`labels`: a number for each class", "none".to_owned());
    };
    let mut by_number = BTreeMap::new();
    let mut ignore = None;
    for (name, number) in labels {
        // Version 1 of the format maps numbers to names.
        let (name, number) = match (number.as_u64(), name.parse::<u64>(), number.as_str()) {
            (Some(number), ..) => (name.as_str(), number),
            (None, Ok(number), Some(name)) => (name, number),
            _ => {
                return wrong(
                    "a number for each class (regions are not read)",
                    format!("`{name}: {number}`"),
                );
            }
        };
        match name {
            "ignore" => ignore = u16::try_from(number).ok(),
            _ => {
                by_number.insert(number, name.to_owned());
            }
        }
    }
    let is_gapless = by_number
        .keys()
        .enumerate()
        .all(|(at, number)| at as u64 == *number);
    if !is_gapless || by_number.len() < 2 || by_number.len() > MOST_CLASSES {
        let names: Vec<String> = by_number
            .iter()
            .map(|(number, name)| format!("{number}: {name}"))
            .collect();
        return wrong(
            "`labels` numbered from 0 without gaps, at least two",
            listed(&names),
        );
    }
    let channels = json.get("channel_names").or_else(|| json.get("modality"));
    let num_channels = channels
        .and_then(Value::as_object)
        .map_or(1, |names| names.len());
    Ok(Description {
        classes: by_number.into_values().collect(),
        ignore,
        num_channels: num_channels.max(1),
    })
}

/// Description from file names: the channels in `imagesTr`; class names stay empty.
fn without_description(folder: &Path) -> Result<Description, DataError> {
    let files = entries(&folder.join("imagesTr"))?.files;
    let channels: HashSet<&str> = files.iter().filter_map(|name| channel(name)).collect();
    Ok(Description {
        num_channels: channels.len().max(1),
        ..Description::default()
    })
}

/// Channel number at the end of a name: `0000` of `NAME_0000.png`.
fn channel(name: &str) -> Option<&str> {
    let (_, channel) = stem(name).rsplit_once('_')?;
    let is_number = channel.len() == 4 && channel.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(channel)
}

/// Finds the pairs of a set.
pub(crate) fn find(folder: &Path) -> Result<PairLayout, DataError> {
    let description = describe(folder)?;
    let mut layout = PairLayout {
        root: folder.to_owned(),
        train: pairs(folder, "imagesTr", "labelsTr", &description)?,
        ..PairLayout::default()
    };
    if folder.join("imagesTs").is_dir() && folder.join("labelsTs").is_dir() {
        layout.test = Some(pairs(folder, "imagesTs", "labelsTs", &description)?);
    }
    Ok(layout)
}

fn pairs(
    root: &Path,
    images: &str,
    labels: &str,
    description: &Description,
) -> Result<Vec<PairFiles>, DataError> {
    let list = |folder: &str| -> Result<Vec<String>, DataError> {
        let found = entries(&root.join(folder))?.files;
        check_readable(&root.join(folder), &found)?;
        Ok(found
            .into_iter()
            .filter(|name| is_segmentation_picture(name))
            .collect())
    };
    let (image_names, label_names) = (list(images)?, list(labels)?);
    let cases: HashSet<&str> = label_names.iter().map(|name| stem(name)).collect();
    // Channel files of each case.
    let mut by_case: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    let mut strays = Vec::new();
    for name in &image_names {
        let case = channel(name).and_then(|channel| stem(name).strip_suffix(channel));
        match case.and_then(|case| case.strip_suffix('_')) {
            Some(case) => by_case.entry(case).or_default().push(name),
            None if cases.contains(stem(name)) => by_case.entry(stem(name)).or_default().push(name),
            None => strays.push(name.clone()),
        }
    }
    let place = root.join(images);
    if !strays.is_empty() {
        return Err(DataError::invalid(
            place.display(),
            "names of labels, or names that end with the channel: NAME_0000.png",
            listed(&strays),
            "rename them as nnU-Net expects, or take the folders as they are with `image_subdir` and `label_subdir`",
        ));
    }
    let is_rgb = |files: &[&String]| {
        let [only] = files else {
            return false;
        };
        let header = native_cost(&place.join(only), Limits::default());
        description.num_channels == 3 && header.is_ok_and(|cost| cost.native.channels == 3)
    };
    let mut pairs = Vec::new();
    let mut missing = Vec::new();
    for label in &label_names {
        let case = stem(label);
        let files = by_case.remove(case).unwrap_or_default();
        if files.len() != description.num_channels && !is_rgb(&files) {
            missing.push(format!(
                "{case} ({} of {})",
                files.len(),
                description.num_channels
            ));
            continue;
        }
        let mut files = files.into_iter().map(|name| format!("{images}/{name}"));
        pairs.push(PairFiles {
            image: files.next().unwrap_or_default(),
            further_images: files.collect(),
            mask: Some(format!("{labels}/{label}")),
            ..PairFiles::default()
        });
    }
    missing.extend(by_case.into_keys().map(|case| format!("{case} (no label)")));
    if missing.is_empty() && !pairs.is_empty() {
        return Ok(pairs);
    }
    Err(DataError::invalid(
        place.display(),
        format_args!(
            "{} or one RGB file for each label of {}, as `channel_names` in {FILE_NAME} says",
            crate::words::counted(description.num_channels, "channel file"),
            root.join(labels).display()
        ),
        listed(&missing),
        "add what is missing, or remove what has no partner",
    ))
}
