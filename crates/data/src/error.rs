//! What can be wrong with data. Every message names the file, the row where there is one (the line
//! an editor shows), what was expected and what was found, and ends with a hint.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use holdall_files::{OverLimit, show_bytes};

use crate::columns::Media;
use crate::folder::{EXTENSIONS, FORMATS};
use crate::words::{counted, listed, percent, thousands};

/// Where something is wrong, what was expected there, what was found, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{place}: expected {expected}, found {found}\nhint: {hint}")]
pub struct Invalid {
    place: String,
    expected: String,
    found: String,
    hint: String,
}

/// A pixel of a mask that is no class: where, what was expected, what the whole mask holds, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{place}, expected {expected}; the mask holds {values}\nhint: {hint}")]
pub struct MaskValue {
    place: String,
    expected: String,
    values: String,
    hint: &'static str,
}

impl DataError {
    pub(crate) fn mask_value(
        place: String,
        expected: String,
        values: String,
        hint: &'static str,
    ) -> DataError {
        DataError::MaskValue(Box::new(MaskValue {
            place,
            expected,
            values,
            hint,
        }))
    }

    pub(crate) fn invalid(
        place: impl Display,
        expected: impl Display,
        found: impl Display,
        hint: impl Display,
    ) -> DataError {
        DataError::Invalid(Box::new(Invalid {
            place: place.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
            hint: hint.to_string(),
        }))
    }

    /// A folder without pictures.
    pub(crate) fn no_pictures(folder: &Path, expected: &str, hint: &str) -> DataError {
        DataError::invalid(
            folder.display(),
            expected,
            "none",
            format_args!("names end with .{}{hint}", EXTENSIONS.join(", .")),
        )
    }

    /// A picture that no decoder makes sense of.
    pub(crate) fn broken_picture(path: &Path, cause: impl Display) -> DataError {
        let hint = "open it in a viewer and save it again, or remove its row";
        DataError::invalid(path.display(), "a picture that can be decoded", cause, hint)
    }

    pub(crate) fn not_utf8(path: &Path, row: u32) -> DataError {
        DataError::invalid(
            at_row(path, row),
            "UTF-8",
            "bytes that are not",
            "save the file as UTF-8 (Excel: \"CSV UTF-8\"; `iconv -f ENCODING -t utf-8`)",
        )
    }

    pub(crate) fn too_many_rows(path: &Path) -> DataError {
        let most = format!("at most {} rows", thousands(u32::MAX as usize));
        DataError::invalid(path.display(), most, "more", "split the file")
    }
}

/// `cars.csv, row 7`.
pub(crate) fn at_row(path: &Path, row: u32) -> String {
    format!("{}, row {row}", path.display())
}

/// What is said of reading that does not fit.
fn over_budget(over: &OverLimit, hint: &str, is_all: bool) -> String {
    let [needed, left] = [over.needed_bytes, over.left_bytes].map(show_bytes);
    if is_all {
        format!(
            "takes {needed} to read, and the budget leaves {left}\nhint: {hint}, or --memory {}MiB",
            over.total_bytes.div_ceil(1 << 20)
        )
    } else {
        format!(
            "take more than the budget leaves, which is {left}\nhint: {hint}, or a larger --memory"
        )
    }
}

/// The name that was probably meant, or else this.
pub(crate) fn suggestion(nearest: Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => otherwise.to_owned(),
    }
}

/// Data is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Anything else that no caller tells apart.
    #[error("{0}")]
    Invalid(Box<Invalid>),

    /// A file to write is there already.
    #[error(transparent)]
    Occupied(#[from] holdall_files::Occupied),

    /// The operating system refused.
    #[error(
        "{}: could not {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room",
        path.display()
    )]
    Io {
        /// What was acted on.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// What the system said. Not a `source`: it is already in the message.
        cause: io::Error,
    },

    /// A setting of the `data` section is out of range.
    #[error("data.{key}: {found}, expected {expected}\nhint: {hint}")]
    Setting {
        /// The key, with dots.
        key: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
        /// What to write.
        hint: &'static str,
    },

    /// The path of the data leads nowhere.
    #[error(
        "{}: expected a CSV, JSON lines, Parquet, a tar of pictures or a folder, found nothing\n\
         hint: check the path; in a config it is relative to the config's folder",
        path.display()
    )]
    NoFile {
        /// The path given.
        path: PathBuf,
    },

    /// No CSV of a folder can be chosen.
    #[error(
        "{}: expected image_labels_filtered.csv, image_labels_cleaned.csv, image_labels.csv or a \
         single .csv, found {}\n\
         hint: name the file: `train: path/to/file.csv`, or `holdall train path/to/file.csv`",
        folders_text(folders),
        listed(found)
    )]
    NoTable {
        /// The folders searched.
        folders: Vec<PathBuf>,
        /// The CSVs, or else the files, that are there.
        found: Vec<String>,
    },

    /// A file is not what it was a moment ago.
    #[error(
        "{}: expected a file that stays as it is while it is read, found that it changed\n\
         hint: start again once the program that writes it is done",
        path.display()
    )]
    Changed {
        /// The CSV.
        path: PathBuf,
    },

    /// Rows lack what a sample needs, and may not be skipped, or not so many.
    #[error(
        "{}: {} of {} cannot be used, {}: {named}\n\
         hint: `holdall data clean {}` writes a list without them{}{}",
        path.display(),
        thousands(*num_bad),
        counted(*num_rows, "row"),
        max_skipped.map_or_else(
            || "`bad_pictures: fail` allows none".to_owned(),
            |most| format!("`max_skipped` allows {}", percent(most))
        ),
        path.display(),
        if *num_bad < *num_rows && max_skipped.is_none() { "; `bad_pictures: skip` skips them" } else { "" },
        if *has_other_fields { "; a field with a comma or a line break needs quotes around it" } else { "" }
    )]
    BadRows {
        /// The CSV.
        path: PathBuf,
        /// The first of them, and what is wrong with each.
        named: String,
        /// How many.
        num_bad: usize,
        /// Of so many.
        num_rows: usize,
        /// The share that may be, unless none may.
        max_skipped: Option<f64>,
        /// Whether some have more or fewer fields than the header.
        has_other_fields: bool,
    },

    /// Files that rows name are not there.
    #[error(
        "{}, row {row}: expected {} at {}, found nothing; {} of {} {} missing{}{}\n\
         hint: {hint}",
        path.display(),
        match media {
            Media::Pictures => "an image",
            Media::Clips => "a clip",
        },
        image.display(),
        thousands(*num_missing),
        counted(*num_images, media.noun()),
        if *num_missing == 1 { "is" } else { "are" },
        match num_bad_rows {
            0 => String::new(),
            bad => format!(" and {} cannot be used", counted(*bad as usize, "row")),
        },
        max_skipped.map_or_else(String::new, |most| format!(", `max_skipped` allows {}", percent(most)))
    )]
    MissingImages {
        /// The CSV.
        path: PathBuf,
        /// The first such row's line.
        row: u32,
        /// Where its image should be.
        image: PathBuf,
        /// What rows name.
        media: Media,
        /// Rows without one.
        num_missing: usize,
        /// Rows.
        num_images: usize,
        /// Rows that name none, or say nothing.
        num_bad_rows: u32,
        /// The share that may be, unless none may.
        max_skipped: Option<f64>,
        /// Where they may be instead.
        hint: String,
    },

    /// A picture is not there.
    #[error(
        "{}: expected a picture, found no file\n\
         hint: check whether it was moved or removed since the run began",
        path.display()
    )]
    PictureMissing {
        /// The file.
        path: PathBuf,
    },

    /// A file is no picture.
    #[error(
        "{}: expected a picture, found {found}\n\
         hint: {FORMATS} are read; a failed download is often a web page",
        path.display()
    )]
    NotAPicture {
        /// The file.
        path: PathBuf,
        /// What it is, as far as can be told.
        found: String,
    },

    /// A picture is of a format, or of a kind, that is not read.
    #[error(
        "{}: expected a JPEG, PNG, WebP, BMP, TIFF, GIF or PNM of a kind that is read, found {found}\nhint: {hint}",
        path.display()
    )]
    PictureRefused {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: Cow<'static, str>,
        /// What to do about it.
        hint: &'static str,
    },

    /// A file is no clip.
    #[error(
        "{}: expected a clip, found {found}\n\
         hint: a folder of frames, GIF, WebP, AVI, npy and videos are read; a row names the folder, not a frame in it",
        path.display()
    )]
    NotAClip {
        /// The file.
        path: PathBuf,
        /// What it is, as far as can be told.
        found: String,
    },

    /// A clip stops before its end.
    #[error(
        "{}: expected a whole clip, found one that is cut short\n\
         hint: copy or download it again, or remove its row",
        path.display()
    )]
    ClipTruncated {
        /// The file.
        path: PathBuf,
    },

    /// A video needs a program that is not there.
    #[error(
        "{}: expected `{program}` to read it with, found none in PATH\n\
         hint: install it: `apt install ffmpeg`, `dnf install ffmpeg-free`, `brew install ffmpeg` or `conda install -c conda-forge ffmpeg`; \
         folders of frames, GIF, WebP, AVI with Motion JPEG and npy are read without it",
        path.display()
    )]
    NoFfmpeg {
        /// The file.
        path: PathBuf,
        /// What is missing.
        program: String,
    },

    /// A picture stops before its end.
    #[error(
        "{}: expected a whole picture, found one that is cut short\n\
         hint: copy or download it again, or remove its row",
        path.display()
    )]
    PictureTruncated {
        /// The file.
        path: PathBuf,
    },

    /// A picture has no pixels.
    #[error(
        "{}: expected at least 1 x 1 pixels, found {width} x {height}\nhint: remove its row",
        path.display()
    )]
    PictureEmpty {
        /// The file.
        path: PathBuf,
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },

    /// A picture would take more memory than any should.
    #[error(
        "{}: expected at most {} megapixels, found {width} x {height}\n\
         hint: scale it down before training",
        path.display(),
        most_pixels / 1_000_000
    )]
    PictureTooLarge {
        /// The file.
        path: PathBuf,
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// Pixels that are allowed.
        most_pixels: u64,
    },

    /// A picture's file is larger than any should be.
    #[error(
        "{}: expected a picture of at most {} MiB, found a larger file\n\
         hint: check whether it is a picture; if so, scale it down before training",
        path.display(),
        most_bytes >> 20
    )]
    PictureFileTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that are allowed.
        most_bytes: u64,
    },

    /// Decoding a picture takes more than all readers together may hold.
    #[error(
        "{}: {width} x {height} pixels take {} to decode, and the budget leaves {} for it\n\
         hint: scale it down before training, or give a larger budget",
        path.display(),
        show_bytes(*needed_bytes),
        show_bytes(*allowed_bytes)
    )]
    PictureOverBudget {
        /// The file.
        path: PathBuf,
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// What it takes.
        needed_bytes: u64,
        /// What is allowed.
        allowed_bytes: u64,
    },

    /// Reading takes more than the budget leaves.
    #[error("{place}: {what} {}", over_budget(over, hint, *is_all))]
    OverBudget {
        /// File, row and column.
        place: String,
        /// A row, a text, the rows so far.
        what: String,
        /// By how much.
        over: OverLimit,
        /// What makes it smaller.
        hint: &'static str,
        /// Whether this is all that there is to read; otherwise nobody knows yet how much more it is.
        is_all: bool,
    },

    /// Opening a tokenizer takes more than the budget leaves.
    #[error(
        "{}: a tokenizer of {} takes {} to open, and the budget leaves {}\n\
         hint: give a larger budget, or check that this is the model's tokenizer",
        path.display(),
        show_bytes(*file_bytes),
        show_bytes(*needed_bytes),
        show_bytes(*allowed_bytes)
    )]
    TokenizerOverBudget {
        /// The file.
        path: PathBuf,
        /// Its length.
        file_bytes: u64,
        /// What it takes.
        needed_bytes: u64,
        /// What is allowed.
        allowed_bytes: u64,
    },

    /// The name of a picture is that of a folder, a FIFO, a socket or a device.
    #[error(
        "{}: {cause}\nhint: name a picture, or remove its row",
        path.display()
    )]
    PictureNotAFile {
        /// The path.
        path: PathBuf,
        /// What was expected and found.
        cause: String,
    },

    /// A pixel of a mask is no class.
    #[error(transparent)]
    MaskValue(Box<MaskValue>),
}

fn folders_text(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    names.join(" and ")
}
