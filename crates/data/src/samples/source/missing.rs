//! Checks that every image that a row names exists: a run should not find out hours later.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{Media, Source};
use crate::config::{BadPictures, DataConfig};
use crate::error::DataError;
use crate::samples::Samples;
use crate::stored_file;
use crate::table::not_downloaded;
use crate::words::{counted, thousands};

/// Number of images from which on their existence is checked by several threads.
pub(super) const MANY_IMAGES: usize = 10_000;

/// Number of missing images, and the line and sample of the first.
#[derive(Clone, Copy, Default)]
struct Missing {
    count: usize,
    first: Option<(u32, usize)>,
}

impl Missing {
    fn and(self, other: Missing) -> Missing {
        let firsts = [self.first, other.first];
        Missing {
            count: self.count + other.count,
            first: firsts.into_iter().flatten().min(),
        }
    }
}

/// Missing images are an error, or a note where the config allows to skip that many together with the bad rows.
pub(super) fn check_images(
    config: &DataConfig,
    source: &Source,
    all: &[&Samples],
    num_bad_rows: usize,
) -> Result<Option<String>, DataError> {
    let found = all
        .iter()
        .map(|samples| missing_images(samples, source.media));
    let found: Vec<Missing> = found.collect();
    let num_missing: usize = found.iter().map(|missing| missing.count).sum();
    let num_images: usize = all.iter().map(|samples| samples.len()).sum();
    let firsts = found.iter().zip(all).filter_map(|(missing, samples)| {
        let (row, sample) = missing.first?;
        Some((row, samples, sample))
    });
    let Some((row, samples, sample)) = firsts.min_by_key(|(row, ..)| *row) else {
        return Ok(None);
    };
    let most = config.max_skipped.get();
    let num_skipped = num_missing + num_bad_rows;
    // If all images are missing, they are in another folder.
    let may_be_skipped =
        num_missing < num_images && num_skipped as f64 <= (num_images + num_bad_rows) as f64 * most;
    if config.bad_pictures == BadPictures::Skip && may_be_skipped {
        return Ok(Some(format!(
            "Careful: {} of {} {} missing (first: {}, row {row}, {}): skipped, as `bad_pictures: skip` says",
            thousands(num_missing),
            counted(
                num_images,
                match source.media {
                    Media::Pictures => "picture",
                    Media::Clips => "clip",
                }
            ),
            if num_missing == 1 { "is" } else { "are" },
            source.table.path().display(),
            samples.image(sample)
        )));
    }
    let image = samples.image_path(sample);
    Err(DataError::MissingImages {
        path: source.path(),
        row,
        hint: if stored_file::is_url(samples.image(sample)) {
            not_downloaded(&source.table, source.columns.image)
        } else {
            hint_on_root(source, &image)
        },
        image: if stored_file::is_url(samples.image(sample)) {
            PathBuf::from(samples.image(sample))
        } else {
            image
        },
        num_missing,
        num_images,
        media: source.media,
        num_bad_rows: num_bad_rows as u32,
        max_skipped: (config.bad_pictures == BadPictures::Skip && most < 1.0).then_some(most),
    })
}

fn missing_images(samples: &Samples, media: Media) -> Missing {
    let look = |path: &mut PathBuf, sample: usize| {
        samples.image_path_into(sample, path);
        let is_there = match media {
            Media::Pictures => stored_file::stamp(path).is_some(),
            // A clip may be a folder of frames.
            Media::Clips => path.exists() || stored_file::stamp(path).is_some(),
        };
        if is_there {
            Missing::default()
        } else {
            Missing {
                count: 1,
                first: Some((samples.row(sample), sample)),
            }
        }
    };
    let all = 0..samples.len();
    if samples.len() > MANY_IMAGES {
        all.into_par_iter()
            .map_init(PathBuf::new, look)
            .reduce(Missing::default, Missing::and)
    } else {
        let mut path = PathBuf::new();
        all.map(|sample| look(&mut path, sample))
            .fold(Missing::default(), Missing::and)
    }
}

/// Hint for `image_root`: paths in a CSV often start at the folder that a script was run in, not at the CSV's.
fn hint_on_root(source: &Source, image: &Path) -> String {
    let relative = image.strip_prefix(&source.root).unwrap_or(image);
    let beside = source.table.folder();
    let above = beside.parent().unwrap_or(Path::new(""));
    let elsewhere = [beside, above, Path::new(".")];
    match elsewhere.iter().find(|root| root.join(relative).exists()) {
        Some(root) if root.as_os_str().is_empty() => "`image_root: .` would find it".to_owned(),
        Some(root) => format!("`image_root: {}` would find it", root.display()),
        None => format!(
            "{} paths start at {}; `image_root: FOLDER` says otherwise",
            source.media.noun(),
            if source.root.as_os_str().is_empty() {
                Path::new(".").display()
            } else {
                source.root.display()
            }
        ),
    }
}
