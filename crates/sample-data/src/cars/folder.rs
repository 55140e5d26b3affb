//! A set of cars on disk: pictures first, then the CSV that names them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use rayon::prelude::*;

use super::{Car, CarsConfig, describe, draw};
use crate::drawn_file::write_drawn;

const LABELS: &str = "image_labels.csv";
const IMAGES: &str = "images";
const JPEG_QUALITY: u8 = 92;

/// Result of [`write()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The CSV; its image paths are relative to its folder.
    pub labels: PathBuf,
    /// Number of pictures.
    pub count: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CarsError {
    /// The folder holds labels or pictures of another set.
    #[error("{}: expected a file of this set or none, found another\nhint: choose another folder, or delete this one", .0.display())]
    OtherSet(PathBuf),
    #[error("{} cannot be read or written: {source}\nhint: check the path, and who may write there", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("a picture cannot be encoded: {0}\nhint: another --size")]
    Encode(#[from] image::ImageError),
    #[error("labels cannot be put into rows: {0}\nhint: another --seed")]
    Rows(#[from] csv::Error),
}

/// Draws a set into a folder: `images/000000.jpg` and so on, then `image_labels.csv`.
///
/// The CSV is written last and atomically, so a folder with a CSV has every picture that it names. A folder that holds this set already is
/// written again; a folder with other labels is refused before any file changes. Calls `on_progress` from several threads with the number
/// of finished pictures; when it returns false, writing stops and the result is `None`.
pub fn write(
    folder: &Path,
    config: &CarsConfig,
    on_progress: impl Fn(usize) -> bool + Sync,
) -> Result<Option<Written>, CarsError> {
    let labels = folder.join(LABELS);
    let rows = label_rows(config)?;
    let is_own_set = is_there(&labels, &rows)?;
    let images = folder.join(IMAGES);
    fs::create_dir_all(&images).map_err(at(&images))?;
    let done = AtomicUsize::new(0);
    let is_stopped = AtomicBool::new(false);
    (0..config.count).into_par_iter().try_for_each(|index| {
        if is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = folder.join(image_name(index));
        replace_picture(&path, &jpeg(&draw(index, config))?, is_own_set)?;
        if !on_progress(done.fetch_add(1, Ordering::Relaxed) + 1) {
            is_stopped.store(true, Ordering::Relaxed);
        }
        Ok::<(), CarsError>(())
    })?;
    if is_stopped.into_inner() {
        return Ok(None);
    }
    holdall_files::write_whole(&labels, &rows).map_err(at(&labels))?;
    Ok(Some(Written {
        labels,
        count: config.count,
    }))
}

/// Whether the CSV of this set exists already; a different CSV is an error.
fn is_there(labels: &Path, rows: &[u8]) -> Result<bool, CarsError> {
    match fs::read(labels) {
        Ok(present) if present == rows => Ok(true),
        Ok(_) => Err(CarsError::OtherSet(labels.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(at(labels)(error)),
    }
}

fn image_name(index: usize) -> String {
    format!("{IMAGES}/{index:06}.jpg")
}

fn jpeg(car: &Car) -> Result<Vec<u8>, CarsError> {
    let mut bytes = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
    encoder.write_image(&car.pixels, car.size, car.size, ExtendedColorType::Rgb8)?;
    Ok(bytes)
}

fn label_rows(config: &CarsConfig) -> Result<Vec<u8>, CarsError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "image",
        "caption",
        "make",
        "model",
        "body",
        "color",
        "year",
        "background",
        "viewpoint",
    ])?;
    for index in 0..config.count {
        let facts = describe(index, config);
        writer.write_record([
            image_name(index).as_str(),
            &facts.caption,
            facts.make.name(),
            facts.body.model(),
            facts.body.name(),
            facts.colour.name(),
            &facts.year.to_string(),
            facts.background.name(),
            facts.viewpoint.name(),
        ])?;
    }
    writer
        .into_inner()
        .map_err(|error| CarsError::Rows(error.into_error().into()))
}

/// Writes one picture of the set; a different file in its place is an error.
fn replace_picture(path: &Path, bytes: &[u8], is_own_set: bool) -> Result<(), CarsError> {
    if write_drawn(path, bytes, is_own_set).map_err(at(path))? {
        Ok(())
    } else {
        Err(CarsError::OtherSet(path.to_owned()))
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CarsError {
    let path = path.to_owned();
    move |source| CarsError::Io { path, source }
}
