//! A set of clips on disk: clips first, then the CSV that names them.
//!
//! ```text
//! clips.csv              video, caption, split, direction, speed, shape, colour, change
//! clips/000000/00.jpg    a folder of frames each, or clips/000000.gif, .avi, .npy
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use image::codecs::gif::GifEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use rayon::prelude::*;

use super::{MAX_SIZE, MIN_SIZE, MovingShapesConfig, describe, draw};
use crate::drawn_file::write_drawn;
use holdall_data::decode::{avi, npy};

const LABELS: &str = "clips.csv";
const CLIPS: &str = "clips";
const JPEG_QUALITY: u8 = 92;
/// One clip of this many is for validation.
const VALIDATION: usize = 5;

/// File format of clips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClipFormat {
    /// A folder of JPEG.
    #[default]
    Frames,
    /// An animated GIF.
    Gif,
    /// An AVI of Motion JPEG.
    Avi,
    /// An array `[t, h, w, 3]`.
    Npy,
}

impl ClipFormat {
    /// A clip's path in the CSV.
    fn name(self, index: usize) -> String {
        let end = match self {
            ClipFormat::Frames => "",
            ClipFormat::Gif => ".gif",
            ClipFormat::Avi => ".avi",
            ClipFormat::Npy => ".npy",
        };
        format!("{CLIPS}/{index:06}{end}")
    }
}

/// Result of [`write()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClipsFolder {
    /// The CSV; its paths are relative to its folder.
    pub labels: PathBuf,
    pub num_train: usize,
    pub num_validation: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum MovingShapesError {
    /// The folder holds a CSV or a clip of another set.
    #[error("{}: expected a file of this set or none, found another\nhint: choose another folder, or delete this one", .0.display())]
    OtherSet(PathBuf),
    #[error("{} cannot be read or written: {source}\nhint: check the path, and who may write there", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("a frame cannot be encoded: {0}\nhint: another --size")]
    Encode(#[from] image::ImageError),
    #[error("labels cannot be put into rows: {0}\nhint: another --seed")]
    Rows(#[from] csv::Error),
}

/// Draws a set into a folder: `clips/000000` and so on, then `clips.csv`.
///
/// The CSV is written last and atomically, so a folder with a CSV has every clip that it names. A folder that holds this set already is
/// written again; a folder with another set is refused before any file changes. Calls `on_progress` from several threads with the number of
/// finished clips; when it returns false, writing stops and the result is `None`.
pub fn write(
    folder: &Path,
    config: &MovingShapesConfig,
    on_progress: impl Fn(usize) -> bool + Sync,
) -> Result<Option<ClipsFolder>, MovingShapesError> {
    let labels = folder.join(LABELS);
    let rows = label_rows(config)?;
    let is_own_set = is_there(&labels, &rows)?;
    let clips = folder.join(CLIPS);
    fs::create_dir_all(&clips).map_err(at(&clips))?;
    let done = AtomicUsize::new(0);
    let is_stopped = AtomicBool::new(false);
    (0..config.count).into_par_iter().try_for_each(|index| {
        if is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = folder.join(config.format.name(index));
        write_clip(&path, index, config, is_own_set)?;
        if !on_progress(done.fetch_add(1, Ordering::Relaxed) + 1) {
            is_stopped.store(true, Ordering::Relaxed);
        }
        Ok::<(), MovingShapesError>(())
    })?;
    if is_stopped.into_inner() {
        return Ok(None);
    }
    holdall_files::write_whole(&labels, &rows).map_err(at(&labels))?;
    let num_validation = config.count / VALIDATION;
    Ok(Some(ClipsFolder {
        labels,
        num_train: config.count - num_validation,
        num_validation,
    }))
}

fn write_clip(
    path: &Path,
    index: usize,
    config: &MovingShapesConfig,
    is_own_set: bool,
) -> Result<(), MovingShapesError> {
    let size = config.size.clamp(MIN_SIZE, MAX_SIZE);
    let frames = draw(index, config);
    let jpegs = || -> Result<Vec<Vec<u8>>, MovingShapesError> {
        frames.iter().map(|frame| jpeg(frame, size)).collect()
    };
    match config.format {
        ClipFormat::Frames => {
            fs::create_dir_all(path).map_err(at(path))?;
            let digits = (config.frames.max(2) - 1).to_string().len().max(2);
            for (number, jpeg) in jpegs()?.iter().enumerate() {
                replace_file(
                    &path.join(format!("{number:0digits$}.jpg")),
                    jpeg,
                    is_own_set,
                )?;
            }
            Ok(())
        }
        ClipFormat::Gif => replace_file(path, &gif(&frames, size)?, is_own_set),
        ClipFormat::Avi => replace_file(path, &avi(&jpegs()?, (size, size)), is_own_set),
        ClipFormat::Npy => replace_file(path, &npy(&frames, (size, size)), is_own_set),
    }
}

fn jpeg(pixels: &[u8], size: u32) -> Result<Vec<u8>, MovingShapesError> {
    let mut bytes = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
    encoder.write_image(pixels, size, size, ExtendedColorType::Rgb8)?;
    Ok(bytes)
}

fn gif(frames: &[Vec<u8>], size: u32) -> Result<Vec<u8>, MovingShapesError> {
    let mut bytes = Vec::new();
    {
        // A higher speed gives coarser colours; 10 is the default of most programs.
        let mut encoder = GifEncoder::new_with_speed(&mut bytes, 10);
        for frame in frames {
            encoder.encode(frame, size, size, ExtendedColorType::Rgb8)?;
        }
    }
    Ok(bytes)
}

/// Whether the CSV of this set exists already; a different CSV is an error.
fn is_there(labels: &Path, rows: &[u8]) -> Result<bool, MovingShapesError> {
    match fs::read(labels) {
        Ok(present) if present == rows => Ok(true),
        Ok(_) => Err(MovingShapesError::OtherSet(labels.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(at(labels)(error)),
    }
}

fn label_rows(config: &MovingShapesConfig) -> Result<Vec<u8>, MovingShapesError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "video",
        "caption",
        "split",
        "direction",
        "speed",
        "shape",
        "colour",
        "change",
    ])?;
    let num_train = config.count - config.count / VALIDATION;
    for index in 0..config.count {
        let story = describe(index, config.seed);
        writer.write_record([
            config.format.name(index).as_str(),
            &story.caption,
            if index < num_train {
                "train"
            } else {
                "validation"
            },
            story.direction.name(),
            story.speed.name(),
            story.shape.name(),
            story.paint.name(),
            story.change.name(),
        ])?;
    }
    writer
        .into_inner()
        .map_err(|error| MovingShapesError::Rows(error.into_error().into()))
}

/// Writes one file of the set; a different file in its place is an error.
fn replace_file(path: &Path, bytes: &[u8], is_own_set: bool) -> Result<(), MovingShapesError> {
    if write_drawn(path, bytes, is_own_set).map_err(at(path))? {
        Ok(())
    } else {
        Err(MovingShapesError::OtherSet(path.to_owned()))
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> MovingShapesError {
    let path = path.to_owned();
    move |source| MovingShapesError::Io { path, source }
}
