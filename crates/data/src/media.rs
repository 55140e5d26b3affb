//! Kinds of media files, recognised by their names.

use crate::stored_file::extension;

/// Kind of file that rows name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Media {
    /// A picture per row.
    #[default]
    Pictures,
    /// A clip per row: a file, or a folder of frames.
    Clips,
}

impl Media {
    /// Singular noun for messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Media::Pictures => "image",
            Media::Clips => "clip",
        }
    }
}

/// Extensions of pictures, matched in any case.
pub const EXTENSIONS: [&str; 12] = [
    "jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm", "pgm", "pbm", "pnm",
];

/// Supported formats, for messages.
pub(crate) const FORMATS: &str = "JPEG, PNG, WebP, BMP, TIFF, GIF (its first frame) and PNM";

/// Extensions and names of unsupported picture formats.
const UNREAD: [(&str, &str); 15] = [
    ("heic", "HEIC"),
    ("heif", "HEIC"),
    ("avif", "AVIF"),
    ("jp2", "JPEG 2000"),
    ("j2k", "JPEG 2000"),
    ("jxl", "JPEG XL"),
    ("psd", "PSD"),
    ("svg", "SVG"),
    ("exr", "OpenEXR"),
    ("hdr", "HDR"),
    ("ico", "ICO"),
    ("dng", "raw"),
    ("cr2", "raw"),
    ("nef", "raw"),
    ("arw", "raw"),
];

/// Name of the unsupported picture format of a file name's extension.
pub(crate) fn unread_format(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let mut unread = UNREAD.iter();
    let found = unread.find(|(known, _)| known.eq_ignore_ascii_case(extension));
    found.map(|(_, format)| *format)
}

/// Whether a file name has the extension of a picture.
pub fn is_picture(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|found| EXTENSIONS.iter().any(|e| e.eq_ignore_ascii_case(found)))
}

/// Whether a file name has the extension of a picture or mask of a segmentation set: PNM may be packed by gzip.
pub fn is_segmentation_picture(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    match lower.strip_suffix(".gz") {
        None => is_picture(name),
        Some(name) => {
            let extension = name.rsplit_once('.').map(|(_, extension)| extension);
            extension.is_some_and(|extension| ["ppm", "pgm", "pbm", "pnm"].contains(&extension))
        }
    }
}

pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Extensions of clip files that `ffmpeg` is not needed for; pictures and WebP are not among them. Matched in any case.
const CLIP_EXTENSIONS: [&str; 3] = ["avi", "gif", "npy"];

/// Extensions of files that `ffmpeg` reads.
const VIDEO_EXTENSIONS: [&str; 12] = [
    "mp4", "m4v", "mov", "mkv", "webm", "mpg", "mpeg", "wmv", "flv", "ts", "ogv", "3gp",
];

/// Whether a file name has the extension of a clip.
pub fn is_clip_name(name: &str) -> bool {
    needs_ffmpeg(name) || CLIP_EXTENSIONS.contains(&extension(name).as_str())
}

/// Whether a file name has the extension of a format that only `ffmpeg` reads.
pub(crate) fn needs_ffmpeg(name: &str) -> bool {
    VIDEO_EXTENSIONS.contains(&extension(name).as_str())
}
