//! Unsupported picture formats by their names: a user who reads "a HEIC" knows what to do, a user who reads "invalid
//! signature" does not. Only beginnings and headers are read.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use super::tiff::{self, TiffTags};
use crate::stored_file::StoredFile;

/// Name of an unsupported format, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub found: Cow<'static, str>,
    pub hint: &'static str,
}

const SAVE_AS_PNG: &str = "save it as PNG or JPEG";
const SAVE_AS_JPEG: &str = "open it in an editor and save it as an ordinary JPEG";
const SAVE_FRAMES: &str = "save its frames, or the first of them, as PNG or JPEG";

/// Position of a format's magic bytes, the bytes, its name and a hint.
const FORMATS: &[(usize, &[u8], &str, &str)] = &[
    (4, b"ftypavif", "an AVIF", SAVE_AS_PNG),
    (4, b"ftypavis", "an animated AVIF", SAVE_FRAMES),
    (4, b"ftyphei", "a HEIC", SAVE_AS_PNG),
    (4, b"ftyphev", "a HEIC", SAVE_AS_PNG),
    (4, b"ftypmif1", "a HEIF", SAVE_AS_PNG),
    (4, b"jP  \r\n\x87\n", "a JPEG 2000", SAVE_AS_PNG),
    (0, b"\xff\x4f\xff\x51", "a JPEG 2000", SAVE_AS_PNG),
    (0, b"\xff\x0a", "a JPEG XL", SAVE_AS_PNG),
    (4, b"JXL \r\n\x87\n", "a JPEG XL", SAVE_AS_PNG),
    (0, b"\0\0\x01\0", "an icon (ICO)", SAVE_AS_PNG),
    (0, b"8BPS", "a Photoshop file (PSD)", SAVE_AS_PNG),
    (0, b"%PDF", "a PDF", SAVE_AS_PNG),
    (0, b"\x93NUMPY", "an array of NumPy", SAVE_AS_PNG),
    (
        128,
        b"DICM",
        "a DICOM file",
        "`dcmj2pnm --write-16-bit-png x.dcm x.png` of DCMTK makes a PNG of it",
    ),
    (0, b"DDS ", "a DirectDraw surface (DDS)", SAVE_AS_PNG),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR picture", SAVE_AS_PNG),
    (0, b"qoif", "a QOI picture", SAVE_AS_PNG),
    (0, b"#?RADIANCE", "a Radiance picture (HDR)", SAVE_AS_PNG),
    (0, b"II+\0", "a BigTIFF", "save it as TIFF or PNG"),
    (0, b"MM\0+", "a BigTIFF", "save it as TIFF or PNG"),
];

/// Bytes read from the beginning: enough even where EXIF data stand before a JPEG's frame.
const BEGINNING_BYTES: u64 = 1 << 20;

/// Name of a file's unsupported format: `an AVIF`.
pub(crate) fn refused_kind(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = StoredFile::open(path).ok()?;
    file.take(BEGINNING_BYTES).read_to_end(&mut bytes).ok()?;
    Some(refused(&bytes)?.found.into_owned())
}

/// The refusal of a file in an unsupported format; `None` for other files.
pub(super) fn refused(bytes: &[u8]) -> Option<Refusal> {
    let has = |at: usize, magic: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(magic));
    if let Some((_, _, found, hint)) = FORMATS.iter().find(|(at, magic, ..)| has(*at, magic)) {
        let found = Cow::Borrowed(*found);
        return Some(Refusal { found, hint });
    }
    if has(0, b"\xff\xd8") {
        return jpeg(bytes);
    }
    if has(0, b"II*\0") || has(0, b"MM\0*") {
        return tiff(bytes);
    }
    None
}

/// Refuses a JPEG whose coding process no decoder here supports.
fn jpeg(bytes: &[u8]) -> Option<Refusal> {
    let (process, precision) = jpeg_frame(bytes)?;
    let found = match process {
        0xc3 => "a lossless JPEG",
        0xc5..=0xc7 | 0xcd..=0xcf => "a hierarchical JPEG",
        0xc9..=0xcb => "an arithmetic-coded JPEG",
        _ if precision == 12 => "a JPEG with 12 bits per colour",
        _ => return None,
    };
    Some(Refusal {
        found: Cow::Borrowed(found),
        hint: SAVE_AS_JPEG,
    })
}

/// Marker of the first frame and its bits per channel.
fn jpeg_frame(bytes: &[u8]) -> Option<(u8, u8)> {
    let mut at = 2;
    loop {
        let [fill, marker] = *bytes.get(at..)?.first_chunk()?;
        if fill != 0xff {
            // Like the decoder, skip stray bytes: they must not hide a frame.
            at += 1;
            continue;
        }
        match marker {
            0xff => at += 1,
            // Restarts, TEM and starts have no length; no frame begins after a scan or the end.
            0x01 | 0xd0..=0xd8 => at += 2,
            0xd9 | 0xda => return None,
            // Frame markers, except those of Huffman tables, arithmetic codes and JPEG extensions in the same range.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((marker, *bytes.get(at + 4)?));
            }
            _ => at += 2 + usize::from(u16::from_be_bytes(*bytes.get(at + 2..)?.first_chunk()?)),
        }
    }
}

/// Refuses a TIFF with an unsupported colour space, or with several pages, of which a decoder would read the first.
fn tiff(bytes: &[u8]) -> Option<Refusal> {
    let tags = TiffTags::new(bytes)?;
    let found = match (
        tags.first(tiff::PHOTOMETRIC),
        tags.first(tiff::SAMPLE_FORMAT),
    ) {
        (Some(3), _) => "a TIFF with a palette",
        (Some(6), _) => "a TIFF in YCbCr colours",
        (Some(8..=10), _) => "a TIFF in Lab colours",
        (_, Some(2)) => "a TIFF of signed numbers",
        (_, Some(3)) => "a TIFF of floating-point numbers",
        _ => {
            let num_pages = tags.num_pages();
            return (num_pages > 1).then(|| Refusal {
                found: Cow::Owned(format!("a TIFF of {num_pages} pages")),
                hint: "save each page as a file of its own, such as by `tiffsplit` or `magick x.tif x-%d.png`",
            });
        }
    };
    Some(Refusal {
        found: Cow::Borrowed(found),
        hint: "save it as PNG, or as TIFF with 8 or 16 bits of grey or RGB",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::picture::test_tiff::grey_pages;

    #[test]
    fn tiffs_of_several_pages_arrays_and_dicom_are_refused_by_name() {
        let page: &[u8] = &[1; 6];
        let found = |file: &[u8]| refused(file).map(|refusal| refusal.found.into_owned());
        assert_eq!(found(&grey_pages((3, 2), 1, 0, &[page])), None);
        let stack = grey_pages((3, 2), 1, 2, &[page; 5]);
        assert_eq!(found(&stack).as_deref(), Some("a TIFF of 5 pages"));
        // A smaller copy of the first page does not count as a page.
        assert_eq!(found(&grey_pages((3, 2), 1, 1, &[page; 2])), None);
        let array = b"\x93NUMPY\x01\0".to_vec();
        assert_eq!(found(&array).as_deref(), Some("an array of NumPy"));
        let dicom = [&[0; 128][..], b"DICM"].concat();
        assert_eq!(found(&dicom).as_deref(), Some("a DICOM file"));
    }
}
