//! Writes a set of pictures to disk, in the layout of FIVES.
//!
//! ```text
//! vessels.json                      config of the set
//! train/Original/1_N.png            red, green, blue
//! train/Ground truth/1_N.png        255 on vessels, else 0
//! test/...
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use rayon::prelude::*;

use super::{VesselsConfig, condition, draw};
use crate::drawn_file::write_drawn;

pub(super) const ORIGINAL: &str = "Original";
pub(super) const GROUND_TRUTH: &str = "Ground truth";
/// File with the config of a folder's set.
const SET: &str = "vessels.json";
const TRAIN: &str = "train";
const TEST: &str = "test";

/// Counts of the pictures that [`write()`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VesselsFolder {
    /// Training pictures.
    pub num_train: usize,
    /// Test pictures.
    pub num_test: usize,
}

/// Error of writing or reading a set.
#[derive(Debug, thiserror::Error)]
pub enum VesselsError {
    /// The folder holds other pictures.
    #[error("{}: expected this set of drawn pictures or none, found {found}\nhint: choose another folder, or delete this one", path.display())]
    OtherSet {
        path: PathBuf,
        /// Contents of the folder.
        found: &'static str,
    },
    #[error("{} cannot be read or written: {source}\nhint: check the path, and who may write there", path.display())]
    Io {
        /// File or folder of the failed call.
        path: PathBuf,
        source: io::Error,
    },
    /// A picture could not be encoded or decoded.
    #[error("a picture cannot be read or written: {0}\nhint: draw the set again")]
    Picture(#[from] image::ImageError),
}

/// Draws a set into a folder.
///
/// A folder that holds this set already, or a part of it, is drawn again; a folder with other pictures is refused before anything is
/// changed. `on_progress` gets the number of finished pictures, from several threads, and returns whether to continue; `None` is returned
/// where it stopped the drawing.
pub fn write(
    folder: &Path,
    config: &VesselsConfig,
    on_progress: impl Fn(usize) -> bool + Sync,
) -> Result<Option<VesselsFolder>, VesselsError> {
    claim(folder, config)?;
    for part in [TRAIN, TEST] {
        for kind in [ORIGINAL, GROUND_TRUTH] {
            let path = folder.join(part).join(kind);
            fs::create_dir_all(&path).map_err(at(&path))?;
        }
    }
    let num_test = config.num_test();
    let num_train = config.count - num_test;
    let done = AtomicUsize::new(0);
    let is_stopped = AtomicBool::new(false);
    (0..config.count).into_par_iter().try_for_each(|index| {
        if is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        // FIVES numbers the files of each part from 1.
        let (part, number) = if index < num_train {
            (TRAIN, index + 1)
        } else {
            (TEST, index - num_train + 1)
        };
        let name = format!("{number}_{}.png", condition(index, config).letter());
        let fundus = draw(index, config);
        for (kind, bytes, colours) in [
            (GROUND_TRUTH, &fundus.mask, ExtendedColorType::L8),
            (ORIGINAL, &fundus.pixels, ExtendedColorType::Rgb8),
        ] {
            let path = folder.join(part).join(kind).join(&name);
            write_drawn(&path, &png(bytes, fundus.size, colours)?, true).map_err(at(&path))?;
        }
        if !on_progress(done.fetch_add(1, Ordering::Relaxed) + 1) {
            is_stopped.store(true, Ordering::Relaxed);
        }
        Ok::<(), VesselsError>(())
    })?;
    if is_stopped.into_inner() {
        return Ok(None);
    }
    Ok(Some(VesselsFolder {
        num_train,
        num_test,
    }))
}

/// Records in the folder which set it will hold, unless it holds another one: a downloaded FIVES has the same file names.
fn claim(folder: &Path, config: &VesselsConfig) -> Result<(), VesselsError> {
    let path = folder.join(SET);
    let refused = |found| VesselsError::OtherSet {
        path: folder.to_owned(),
        found,
    };
    match fs::read(&path) {
        Ok(bytes) => {
            let present: Option<VesselsConfig> = serde_json::from_slice(&bytes).ok();
            return if present.as_ref() == Some(config) {
                Ok(())
            } else {
                Err(refused("another set"))
            };
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path)(error)),
        Err(_) => {}
    }
    if [TRAIN, TEST].iter().any(|part| folder.join(part).exists()) {
        return Err(refused("pictures that were not drawn"));
    }
    fs::create_dir_all(folder).map_err(at(folder))?;
    let text = serde_json::to_vec_pretty(config).expect("numbers are JSON");
    holdall_files::write_whole(&path, &text).map_err(at(&path))
}

fn png(bytes: &[u8], size: u32, colours: ExtendedColorType) -> Result<Vec<u8>, VesselsError> {
    let mut file = Vec::new();
    // Noise does not compress: more effort would take seconds and save little.
    let encoder = PngEncoder::new_with_quality(&mut file, CompressionType::Fast, FilterType::Sub);
    encoder.write_image(bytes, size, size, colours)?;
    Ok(file)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> VesselsError {
    let path = path.to_owned();
    move |source| VesselsError::Io { path, source }
}
