//! Errors in data. Every message names the file, the row where the error has one (the line number in an editor), what was expected and what
//! was found, and ends with a hint.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use holdall_files::{OverLimit, show_bytes};

use crate::media::{EXTENSIONS, FORMATS, Media};
use crate::words::{counted, listed, percent, thousands};

/// Invalid data: its place, what was expected and found, and a hint.
#[derive(Debug, thiserror::Error)]
#[error("{place}: expected {expected}, found {found}\nhint: {hint}")]
pub struct Invalid {
    place: String,
    expected: String,
    found: String,
    hint: String,
}

/// A mask pixel that is no class: its place, the expected values, all values of the mask, and a hint.
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

    /// Error for a folder without pictures.
    pub(crate) fn no_pictures(folder: &Path, expected: &str, hint: &str) -> DataError {
        DataError::invalid(
            folder.display(),
            expected,
            "none",
            format_args!("names end with .{}{hint}", EXTENSIONS.join(", .")),
        )
    }

    /// Error for a picture that no decoder can read.
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

/// A place in messages: `cars.csv, row 7`.
pub(crate) fn at_row(path: &Path, row: u32) -> String {
    format!("{}, row {row}", path.display())
}

/// Text of an error about a read that exceeds the memory budget.
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

/// Hint with the nearest known name, or `otherwise`.
pub(crate) fn suggestion(nearest: Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => otherwise.to_owned(),
    }
}

/// An error in data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// All errors that no caller distinguishes.
    #[error("{0}")]
    Invalid(Box<Invalid>),

    /// The output file exists already.
    #[error(transparent)]
    Occupied(#[from] holdall_files::Occupied),

    /// The operating system refused an operation.
    #[error(
        "{}: could not {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room",
        path.display()
    )]
    Io {
        path: PathBuf,
        action: &'static str,
        /// The system's error. Not a `source`: the message contains it.
        cause: io::Error,
    },

    /// A setting of the `data` section is out of range.
    #[error("data.{key}: {found}, expected {expected}\nhint: {hint}")]
    Setting {
        /// The key, with dots.
        key: &'static str,
        expected: &'static str,
        found: String,
        hint: &'static str,
    },

    /// The data's path does not exist.
    #[error(
        "{}: expected a CSV, JSON lines, Parquet, a tar of pictures or a folder, found nothing\n\
         hint: check the path; in a config it is relative to the config's folder",
        path.display()
    )]
    NoFile { path: PathBuf },

    /// A folder has no CSV, or several to choose from.
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
        /// The CSVs in them, or else the files.
        found: Vec<String>,
    },

    /// A file changed while it was read.
    #[error(
        "{}: expected a file that stays as it is while it is read, found that it changed\n\
         hint: start again once the program that writes it is done",
        path.display()
    )]
    Changed { path: PathBuf },

    /// More rows are unusable than may be skipped.
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
        path: PathBuf,
        /// The first unusable rows, and the defect of each.
        named: String,
        /// Number of unusable rows.
        num_bad: usize,
        /// Number of all rows.
        num_rows: usize,
        /// Largest share of rows that may be skipped; `None` if none may.
        max_skipped: Option<f64>,
        /// Whether some rows have more or fewer fields than the header.
        has_other_fields: bool,
    },

    /// More image or clip files are missing than may be skipped.
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
        path: PathBuf,
        /// Line number of the first row with a missing file.
        row: u32,
        /// Path of the missing file.
        image: PathBuf,
        /// Kind of file that rows name.
        media: Media,
        /// Samples whose file is missing.
        num_missing: usize,
        /// Number of samples.
        num_images: usize,
        /// Rows without a path, caption or valid cells.
        num_bad_rows: u32,
        /// Largest share of rows that may be skipped; `None` if none may.
        max_skipped: Option<f64>,
        hint: String,
    },

    /// A picture does not exist.
    #[error(
        "{}: expected a picture, found no file\n\
         hint: check whether it was moved or removed since the run began",
        path.display()
    )]
    PictureMissing { path: PathBuf },

    /// A file is not a picture.
    #[error(
        "{}: expected a picture, found {found}\n\
         hint: {FORMATS} are read; a failed download is often a web page",
        path.display()
    )]
    NotAPicture {
        path: PathBuf,
        /// Detected content of the file.
        found: String,
    },

    /// A picture has an unsupported format, or an unsupported variant of one.
    #[error(
        "{}: expected a JPEG, PNG, WebP, BMP, TIFF, GIF or PNM of a kind that is read, found {found}\nhint: {hint}",
        path.display()
    )]
    PictureRefused {
        path: PathBuf,
        found: Cow<'static, str>,
        hint: &'static str,
    },

    /// A file is not a clip.
    #[error(
        "{}: expected a clip, found {found}\n\
         hint: a folder of frames, GIF, WebP, AVI, npy and videos are read; a row names the folder, not a frame in it",
        path.display()
    )]
    NotAClip {
        path: PathBuf,
        /// Detected content of the file.
        found: String,
    },

    /// A clip is truncated.
    #[error(
        "{}: expected a whole clip, found one that is cut short\n\
         hint: copy or download it again, or remove its row",
        path.display()
    )]
    ClipTruncated { path: PathBuf },

    /// A video needs a program that is not installed.
    #[error(
        "{}: expected `{program}` to read it with, found none in PATH\n\
         hint: install it: `apt install ffmpeg`, `dnf install ffmpeg-free`, `brew install ffmpeg` or `conda install -c conda-forge ffmpeg`; \
         folders of frames, GIF, WebP, AVI with Motion JPEG and npy are read without it",
        path.display()
    )]
    NoFfmpeg {
        path: PathBuf,
        /// The missing program.
        program: String,
    },

    /// A picture is truncated.
    #[error(
        "{}: expected a whole picture, found one that is cut short\n\
         hint: copy or download it again, or remove its row",
        path.display()
    )]
    PictureTruncated { path: PathBuf },

    /// A picture has no pixels.
    #[error(
        "{}: expected at least 1 x 1 pixels, found {width} x {height}\nhint: remove its row",
        path.display()
    )]
    PictureEmpty {
        path: PathBuf,
        width: u32,
        height: u32,
    },

    /// A picture has more pixels than the limit.
    #[error(
        "{}: expected at most {} megapixels, found {width} x {height}\n\
         hint: scale it down before training",
        path.display(),
        most_pixels / 1_000_000
    )]
    PictureTooLarge {
        path: PathBuf,
        width: u32,
        height: u32,
        most_pixels: u64,
    },

    /// A picture's file is larger than the limit.
    #[error(
        "{}: expected a picture of at most {} MiB, found a larger file\n\
         hint: check whether it is a picture; if so, scale it down before training",
        path.display(),
        most_bytes >> 20
    )]
    PictureFileTooLarge { path: PathBuf, most_bytes: u64 },

    /// Decoding a picture takes more memory than the budget of all decoding threads together.
    #[error(
        "{}: {width} x {height} pixels take {} to decode, and the budget leaves {} for it\n\
         hint: scale it down before training, or give a larger budget",
        path.display(),
        show_bytes(*needed_bytes),
        show_bytes(*allowed_bytes)
    )]
    PictureOverBudget {
        path: PathBuf,
        width: u32,
        height: u32,
        needed_bytes: u64,
        allowed_bytes: u64,
    },

    /// Reading takes more memory than the budget leaves.
    #[error("{place}: {what} {}", over_budget(over, hint, *is_all))]
    OverBudget {
        /// File, row and column.
        place: String,
        /// Subject of the message: a row, a text, the rows so far.
        what: String,
        over: OverLimit,
        hint: &'static str,
        /// Whether `over` counts the whole read; otherwise the read stopped early and its total is unknown.
        is_all: bool,
    },

    /// Opening a tokenizer takes more memory than the budget leaves.
    #[error(
        "{}: a tokenizer of {} takes {} to open, and the budget leaves {}\n\
         hint: give a larger budget, or check that this is the model's tokenizer",
        path.display(),
        show_bytes(*file_bytes),
        show_bytes(*needed_bytes),
        show_bytes(*allowed_bytes)
    )]
    TokenizerOverBudget {
        path: PathBuf,
        file_bytes: u64,
        needed_bytes: u64,
        allowed_bytes: u64,
    },

    /// The path of a picture is a folder, a FIFO, a socket or a device.
    #[error(
        "{}: {cause}\nhint: name a picture, or remove its row",
        path.display()
    )]
    PictureNotAFile {
        path: PathBuf,
        /// Expected and found, in words.
        cause: String,
    },

    /// A mask pixel is no class.
    #[error(transparent)]
    MaskValue(Box<MaskValue>),
}

fn folders_text(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    names.join(" and ")
}
