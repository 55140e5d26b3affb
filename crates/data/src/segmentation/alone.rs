//! Pictures without masks, the input of a trained model; one file per channel if the model was trained with channel files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::DataConfig;
use crate::error::DataError;
use crate::samples::{Companions, Samples, SamplesBuilder};
use crate::table::{pair_layout, stem};
use crate::words::{counted, listed};

/// Picture files as samples: one file each, or one file for each channel, `NAME_0000.png`, `NAME_0001.png` and so on.
pub fn without_masks(
    root: PathBuf,
    files: &[String],
    channel_files: usize,
) -> Result<Samples, DataError> {
    let mut builder = SamplesBuilder::new(root);
    if channel_files == 1 {
        for (at, file) in files.iter().enumerate() {
            builder.push_with(file, &Companions::default(), at as u32 + 1);
        }
        return Ok(builder.finish(Vec::new()));
    }
    let mut channels_of: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    let mut strays = Vec::new();
    for file in files {
        match case_of(stem(file)) {
            Some(case) => channels_of.entry(case).or_default().push(file),
            None => strays.push(file.clone()),
        }
    }
    let mut incomplete = channels_of
        .iter()
        .filter(|(_, channels)| channels.len() != channel_files)
        .map(|(case, channels)| format!("{case} ({} of {channel_files})", channels.len()))
        .collect::<Vec<String>>();
    incomplete.extend(strays);
    if !incomplete.is_empty() {
        return Err(DataError::invalid(
            "pictures",
            format_args!(
                "{} each, as the model was trained: NAME_0000.png, NAME_0001.png, ...",
                counted(channel_files, "channel file")
            ),
            listed(&incomplete),
            "add the channels that are missing, or name the others alone",
        ));
    }
    for (at, mut channels) in channels_of.into_values().enumerate() {
        channels.sort();
        let further: Vec<String> = channels[1..].iter().map(|file| (*file).clone()).collect();
        let companions = Companions {
            further_images: &further,
            ..Companions::default()
        };
        builder.push_with(channels[0], &companions, at as u32 + 1);
    }
    Ok(builder.finish(Vec::new()))
}

/// Name of a picture without its channel number: `case` of `case_0002`.
pub fn case_of(stem: &str) -> Option<&str> {
    let (case, channel) = stem.rsplit_once('_')?;
    let is_channel = channel.len() == 4 && channel.bytes().all(|byte| byte.is_ascii_digit());
    is_channel.then_some(case)
}

/// Whether a config names a folder of images and masks, with the usual subfolder names or with its own.
pub fn is_set(config: &DataConfig) -> Result<bool, DataError> {
    match &config.train {
        Some(root) if root.is_dir() => pair_layout::is_layout_of(config, root),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn channel_files_of_one_picture_are_one_sample() {
        let files = ["a_0001.png", "a_0000.png", "b_0000.png", "b_0001.png"].map(str::to_owned);
        let samples = without_masks(PathBuf::from("in"), &files, 2).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!(samples.image_path(0), Path::new("in/a_0000.png"));
        let further: Vec<PathBuf> = samples.further_image_paths(0).collect();
        assert_eq!(further, [Path::new("in/a_0001.png")]);
        assert_eq!(without_masks(PathBuf::new(), &files, 1).unwrap().len(), 4);
        let error = without_masks(PathBuf::new(), &files[..3], 2).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("2 channel files each") && error.contains("b (1 of 2)"),
            "{error}"
        );
    }
}
