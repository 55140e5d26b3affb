//! Detects the task that data is for, from table headers and folder names alone: nothing else is read.

use std::path::Path;

use crate::config::DataConfig;
use crate::error::DataError;
use crate::table::{
    Table, caption_by_name, clip_by_name, find, folders, guess_label, is_class_folders,
    mask_by_name, pair_layout,
};
use crate::words::listed;

/// Kind of the data, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub kind: EvidenceKind,
    /// A sentence without its full stop: `cars.csv has a column `caption``.
    pub reason: String,
}

/// Kind of annotations that data has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceKind {
    /// Pictures with captions.
    Captions,
    /// Pictures with labels or numbers, from columns or class folders.
    Labels,
    Masks,
    Clips,
}

/// Names of folders that hold clips, each clip a folder of frames.
const CLIP_FOLDERS: [&str; 3] = ["clips", "videos", "frames"];

/// Kind of the data. The config takes precedence over the files.
pub fn evidence(config: &DataConfig) -> Result<Evidence, DataError> {
    let is = |kind, reason: String| Ok(Evidence { kind, reason });
    if let Some(mask) = &config.mask {
        let reason = format!("the config has `mask: {mask}`");
        return is(EvidenceKind::Masks, reason);
    }
    if let Some(masks) = &config.label_subdir {
        let reason = format!("the config has `label_subdir: {}`", masks.display());
        return is(EvidenceKind::Masks, reason);
    }
    if let Some(video) = &config.video {
        let reason = format!("the config has `video: {video}`");
        return is(EvidenceKind::Clips, reason);
    }
    if let Some(caption) = &config.caption {
        // Clips have captions too; the reader reports what cannot be read.
        if let (None, Ok(Some(clips))) = (&config.image, clips_of_table(config)) {
            return is(EvidenceKind::Clips, clips);
        }
        return is(
            EvidenceKind::Captions,
            format!("the config has `caption: {caption}`"),
        );
    }
    if let Some(root) = config.train.as_deref().filter(|path| path.is_dir()) {
        if let Some(place) = pair_layout::place(root)? {
            let reason = format!("{} has images and masks", place.display());
            return is(EvidenceKind::Masks, reason);
        }
        if let Some(clips) = clip_folder(root)? {
            let reason = format!("{clips} has a folder of frames per clip");
            return is(EvidenceKind::Clips, reason);
        }
    }
    let csv = find(config.train.as_deref())?.csv;
    if csv.is_dir() && is_class_folders(&csv)? {
        let reason = format!("{} has a folder per class", csv.display());
        return is(EvidenceKind::Labels, reason);
    }
    let table = Table::open_separated(&csv, config.separator)?;
    let has = |column: &str| format!("{} has a column `{column}`", csv.display());
    if let Some(column) = mask_by_name(&table) {
        return is(EvidenceKind::Masks, has(column));
    }
    if let (None, Some(column)) = (&config.image, clip_by_name(config, &table)) {
        return is(EvidenceKind::Clips, has(column));
    }
    if let Some(column) = caption_by_name(&table) {
        return is(EvidenceKind::Captions, has(column));
    }
    let targets = config.targets();
    if let Some((name, _)) = targets.first() {
        let reason = if config.label.is_some() {
            "a `label` is named".to_owned()
        } else {
            format!("the config has `targets: {{{name}: ...}}`")
        };
        let reason = format!("{reason}, and {} has no captions", csv.display());
        return is(EvidenceKind::Labels, reason);
    }
    match guess_label(&table) {
        Some(column) => is(
            EvidenceKind::Labels,
            format!("{} and no captions", has(column)),
        ),
        None if csv.is_dir() && table.columns().len() == 1 => Err(DataError::invalid(
            csv.display(),
            "something to learn: a folder per class, a caption.txt beside each picture, or a CSV",
            "pictures alone",
            format_args!(
                "move pictures of a class into a folder of its name, or write 1.txt beside 1.jpg; `holdall predict RUN {}` needs neither",
                csv.display()
            ),
        )),
        None => Err(DataError::invalid(
            csv.display(),
            "a column of captions, labels, masks or clips",
            listed(table.columns()),
            "say what is to be learnt: `caption: COLUMN` or `label: COLUMN` under `data:`",
        )),
    }
}

/// Reason why a table has clips, if it has.
fn clips_of_table(config: &DataConfig) -> Result<Option<String>, DataError> {
    let csv = find(config.train.as_deref())?.csv;
    if csv.is_dir() && is_class_folders(&csv)? {
        return Ok(None);
    }
    let table = Table::open_separated(&csv, config.separator)?;
    let column = match mask_by_name(&table) {
        Some(_) => None,
        None => clip_by_name(config, &table),
    };
    Ok(column.map(|column| format!("{} has a column `{column}`", csv.display())))
}

/// A folder of clips: named so itself, or with a subfolder named so.
fn clip_folder(root: &Path) -> Result<Option<String>, DataError> {
    let is_named = |name: &str| {
        CLIP_FOLDERS
            .iter()
            .any(|clips| clips.eq_ignore_ascii_case(name))
    };
    let name = root.file_name().map(|name| name.to_string_lossy());
    if name.is_some_and(|name| is_named(&name)) && is_class_folders(root)? {
        return Ok(Some(root.display().to_string()));
    }
    for name in folders(root)? {
        let inner = root.join(&name);
        if is_named(&name) && !folders(&inner)?.is_empty() {
            return Ok(Some(inner.display().to_string()));
        }
    }
    Ok(None)
}
