//! Memory cost of a picture, from its header alone: what its file, its pixels and its decoder take at the same time.
//!
//! ```text
//! file      the bytes of the file, held while they are decoded
//! pixels    the decoder's output: 3 bytes a pixel, or more with alpha, 16 bits or four inks
//! beside    the largest of: the decoder's memory, a second copy while the picture is turned, rows while it is resized
//! ```
//!
//! An upper bound near the true peak: `tests/hostile` checks every decoder against it, over formats, sizes and mutated files.

use std::cell::RefCell;
use std::io::{Read, Seek, SeekFrom};

use image::metadata::Orientation;

use super::geometry;
use super::tiff::{self, TiffTags};
use super::{CHANNELS, Framing, Needed};

/// Random access to the bytes of a file or a slice.
pub(super) trait Bytes {
    fn at<const N: usize>(&self, at: usize) -> Option<[u8; N]>;
}

impl Bytes for [u8] {
    fn at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..)?.first_chunk().copied()
    }
}

/// A file that is read only around the positions that are accessed.
pub(super) struct FileBytes<R>(RefCell<FilePart<R>>);

struct FilePart<R> {
    reader: R,
    start: usize,
    bytes: Vec<u8>,
}

/// Bytes per read: headers are shorter, and tags of a TIFF lie together.
const PART_BYTES: usize = 4 << 10;

impl<R: Read + Seek> FileBytes<R> {
    pub(super) fn new(reader: R) -> FileBytes<R> {
        FileBytes(RefCell::new(FilePart {
            reader,
            start: 0,
            bytes: Vec::new(),
        }))
    }
}

impl<R: Read + Seek> Bytes for FileBytes<R> {
    fn at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let part = &mut *self.0.borrow_mut();
        let is_there = at >= part.start && at + N <= part.start + part.bytes.len();
        if !is_there {
            part.bytes.clear();
            part.start = at;
            part.reader.seek(SeekFrom::Start(at as u64)).ok()?;
            let reader = &mut part.reader;
            reader
                .take(PART_BYTES as u64)
                .read_to_end(&mut part.bytes)
                .ok()?;
        }
        part.bytes.as_slice().at(at - part.start)
    }
}

/// Size, pixel format and decoder of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Width in pixels, as stored in the file.
    pub width: u32,
    /// Height in pixels, as stored in the file.
    pub height: u32,
    /// Channels without alpha: 1, 3, or those of a TIFF with more.
    pub(crate) channels: u8,
    pub(crate) is_deep: bool,
    /// Bytes of a pixel in the decoder's output.
    pixel_bytes: u64,
    kind: HeaderFormat,
    /// Whether the EXIF orientation swaps width and height.
    is_turned: bool,
    /// Bytes of profiles, texts and thumbnails.
    metadata_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderFormat {
    Jpeg(JpegFrame),
    Png,
    Webp(WebpFrame),
    Bmp,
    Gif,
    Pnm,
    Tiff {
        /// Bytes of a pixel in the decoder's own buffer.
        held_pixel_bytes: u64,
        num_values: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JpegFrame {
    is_progressive: bool,
    num_components: usize,
    /// Horizontal and vertical sampling of each component.
    sampling: [(u8, u8); 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct WebpFrame {
    is_lossless: bool,
    has_alpha: bool,
    is_animated: bool,
}

/// Memory for reading one picture, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub file: u64,
    pub pixels: u64,
    pub beside: u64,
}

impl Cost {
    /// Pixels assumed for a picture without a known header.
    pub(super) const UNKNOWN_PIXELS: u64 = 1 << 16;

    /// Bytes read of a file without a known header: enough for the error message.
    pub(super) const UNKNOWN_FILE_BYTES: u64 = 1 << 20;

    /// Cost of a file without a known header: a decoder has to say what is wrong with it.
    pub(super) fn of_no_picture(file_bytes: u64) -> Cost {
        Cost {
            file: file_bytes.min(Cost::UNKNOWN_FILE_BYTES),
            pixels: Cost::UNKNOWN_PIXELS * 8,
            beside: Cost::UNKNOWN_PIXELS * 16 + SMALL_BYTES,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.file + self.pixels + self.beside
    }
}

/// Tables, readers and other memory that does not depend on the picture.
pub(super) const SMALL_BYTES: u64 = 256 << 10;

impl Header {
    /// The header of a picture; `None` for other bytes and unsupported formats.
    pub(super) fn of(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
        match bytes.at::<4>(0)? {
            [0xff, 0xd8, 0xff, _] => jpeg(bytes),
            [0x89, b'P', b'N', b'G'] => png(bytes),
            [b'R', b'I', b'F', b'F'] if bytes.at(8)? == *b"WEBP" => webp(bytes),
            [b'B', b'M', ..] => bmp(bytes),
            [b'I', b'I', b'*', 0] | [b'M', b'M', 0, b'*'] => tiff(bytes),
            [b'G', b'I', b'F', b'8'] => gif(bytes),
            [b'P', b'1'..=b'6', space, _] if space.is_ascii_whitespace() => pnm(bytes),
            _ => None,
        }
    }

    pub(super) fn num_pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Second copy of the pixels while the picture is turned.
    pub(super) fn turned_bytes(&self) -> u64 {
        if self.is_turned {
            self.num_pixels() * self.pixel_bytes
        } else {
            0
        }
    }

    /// Memory for reading the picture; without a framing it is decoded and not resized.
    pub(super) fn cost(&self, file_bytes: u64, framing: Option<Framing>, needed: Needed) -> Cost {
        let (mut width, mut height) = (u64::from(self.width), u64::from(self.height));
        let decoder = match self.kind {
            HeaderFormat::Jpeg(frame) => {
                let divisor = u64::from(needed.divisor(self.width, self.height));
                let full = (width, height);
                (width, height) = (width.div_ceil(divisor), height.div_ceil(divisor));
                frame.decoder_bytes(full, divisor)
            }
            HeaderFormat::Png => 5 * width * self.pixel_bytes,
            HeaderFormat::Webp(frame) => frame.decoder_bytes(width, height, file_bytes),
            HeaderFormat::Bmp => 4 * width,
            // Indices of the frame, and the canvas.
            HeaderFormat::Gif => 6 * width * height,
            HeaderFormat::Pnm => 16 * width + file_bytes.min(1 << 20),
            HeaderFormat::Tiff {
                held_pixel_bytes,
                num_values,
            } => width * height * held_pixel_bytes + 80 * num_values + width * 16,
        };
        let num_pixels = width * height;
        let pixels = num_pixels * self.pixel_bytes.max(CHANNELS as u64);
        let turned = num_pixels * CHANNELS as u64;
        let (turned, upright) = if self.is_turned {
            (turned, (height, width))
        } else {
            (0, (width, height))
        };
        let resized = framing.map_or(0, |framing| resize_bytes(upright, framing));
        Cost {
            file: file_bytes,
            pixels,
            beside: (decoder + 4 * self.metadata_bytes).max(turned).max(resized) + SMALL_BYTES,
        }
    }
}

/// Memory for resizing: rows between the two passes and the weights of both passes, for evaluation or a random part, whichever is more.
pub(super) fn resize_bytes((width, height): (u64, u64), framing: Framing) -> u64 {
    let Framing { size, filter, .. } = framing;
    let (wide, high) = (width.max(1) as u32, height.max(1) as u32);
    let (first, last) = geometry::middle(wide, high, framing).rows_in_reach(high, size, filter);
    let evaluated = u64::from(last - first);
    // No random part is wider, see `geometry::random_part`; the filter reads beyond the part.
    let widest = (f64::from(wide) * f64::from(high) * 4.0 / 3.0).sqrt();
    let reach = filter.reach().max(2.0);
    let in_reach = widest * (1.0 + (2.0 * reach + 1.0) / f64::from(size)) + 4.0 * reach;
    let drawn = (in_reach.ceil() as u64).min(width);
    let rows = u64::from(size) * CHANNELS as u64 * evaluated.max(drawn);
    // Weights are held as f64 and as i16: one per filter tap for each pixel of the longer of picture and result.
    let weight_bytes = (22.0 * reach) as u64;
    let weights =
        weight_bytes * (width.min(drawn.max(evaluated)) + evaluated + 2 * u64::from(size));
    rows + weights
}

impl JpegFrame {
    fn decoder_bytes(&self, (width, height): (u64, u64), divisor: u64) -> u64 {
        let used = &self.sampling[..self.num_components];
        let most = |side: fn(&(u8, u8)) -> u8| used.iter().map(side).max().unwrap_or(1).max(1);
        let (most_h, most_v) = (u64::from(most(|s| s.0)), u64::from(most(|s| s.1)));
        let (mcus_x, mcus_y) = (width.div_ceil(8 * most_h), height.div_ceil(8 * most_v));
        let block = 8_u64.div_ceil(divisor);
        let full_plane = mcus_x * most_h * block * mcus_y * most_v * block;
        let blocks_of = |&(h, v): &(u8, u8)| mcus_x * u64::from(h) * mcus_y * u64::from(v);
        let planes: u64 = used
            .iter()
            .map(|component| match divisor {
                1 => blocks_of(component) * 64,
                // A reduced decoder may decode chroma at full size instead of enlarging it.
                _ => full_plane,
            })
            .sum();
        // A coefficient has 16 bits, and a block has a byte of its own.
        let coefficients: u64 = if self.is_progressive {
            used.iter()
                .map(|component| blocks_of(component) * 129)
                .sum()
        } else {
            0
        };
        let is_full = |&(h, v): &(u8, u8)| (u64::from(h), u64::from(v)) == (most_h, most_v);
        let num_enlarged = used.iter().filter(|component| !is_full(component)).count() as u64;
        let is_usual = self.num_components == 3
            && used[1] == used[2]
            && used[1] == (1, 1)
            && matches!(used[0], (1 | 2, 1) | (2, 2));
        let enlarged = if is_usual {
            0
        } else {
            full_plane * num_enlarged
        };
        let inks = match self.num_components {
            4 => full_plane * 4,
            _ => 0,
        };
        planes + coefficients + enlarged + inks + 16 * width
    }
}

impl WebpFrame {
    fn decoder_bytes(&self, width: u64, height: u64, file_bytes: u64) -> u64 {
        let num_pixels = width * height;
        let padded = width.next_multiple_of(16) * height.next_multiple_of(16);
        // Huffman codes of a lossless picture: a table of up to 4 KiB for each group of codes.
        let codes = num_pixels + (4 * file_bytes).min(48 << 20);
        let lossy = padded * 3 / 2 + padded / 16 + file_bytes;
        let alpha = if self.has_alpha {
            num_pixels * 5 + codes
        } else {
            0
        };
        let frame = match (self.is_lossless, self.has_alpha) {
            (true, true) => codes,
            (true, false) => num_pixels * 4 + codes,
            (false, _) => lossy + alpha,
        };
        if self.is_animated {
            // The frame and the canvas.
            lossy + alpha.max(codes) + num_pixels * 8
        } else {
            frame
        }
    }
}

fn word(bytes: [u8; 2]) -> u32 {
    u32::from(u16::from_be_bytes(bytes))
}

/// Stray bytes that are skipped before a frame; a file with more is no JPEG.
const MOST_STRAY: usize = 1 << 20;

fn jpeg(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    let (mut at, mut num_stray) = (2, 0);
    let mut frame: Option<Header> = None;
    let (mut is_turned, mut metadata_bytes) = (false, 0);
    while let Some([fill, marker]) = bytes.at(at) {
        if fill != 0xff {
            at += 1;
            num_stray += 1;
            if num_stray > MOST_STRAY {
                return None;
            }
            continue;
        }
        match marker {
            0xff => at += 1,
            // No marker: decoders skip to the next one.
            0x00 => {
                at += 2;
                num_stray += 2;
                if num_stray > MOST_STRAY {
                    return None;
                }
            }
            0x01 | 0xd0..=0xd8 => at += 2,
            0xd9 | 0xda => break,
            _ => {
                let Some(length) = bytes.at(at + 2) else {
                    break;
                };
                let length = word(length) as usize;
                match marker {
                    0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                        frame = frame.or(jpeg_frame(bytes, at + 4, marker));
                    }
                    0xe0..=0xef | 0xfe => metadata_bytes += length as u64,
                    _ => {}
                }
                if marker == 0xe1 && bytes.at(at + 4) == Some(*b"Exif\0\0") {
                    is_turned |= lies_on_its_side(bytes, at + 10, length.saturating_sub(8));
                }
                at += 2 + length;
            }
        }
    }
    let frame = frame?;
    Some(Header {
        is_turned,
        metadata_bytes,
        ..frame
    })
}

fn jpeg_frame(bytes: &(impl Bytes + ?Sized), at: usize, marker: u8) -> Option<Header> {
    let [_, h0, h1, w0, w1, num_components] = bytes.at(at)?;
    let num_components = usize::from(num_components);
    if !(1..=4).contains(&num_components) {
        return None;
    }
    let mut sampling = [(1, 1); 4];
    for (component, sampling) in sampling.iter_mut().take(num_components).enumerate() {
        let [_, factors, _] = bytes.at(at + 6 + 3 * component)?;
        *sampling = (factors >> 4, factors & 15);
    }
    let frame = JpegFrame {
        is_progressive: matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce),
        num_components,
        sampling,
    };
    Some(Header {
        width: word([w0, w1]),
        height: word([h0, h1]),
        channels: if num_components == 1 { 1 } else { 3 },
        is_deep: false,
        pixel_bytes: if num_components == 4 { 4 } else { 3 },
        kind: HeaderFormat::Jpeg(frame),
        is_turned: false,
        metadata_bytes: 0,
    })
}

/// Whether EXIF swaps width and height.
fn lies_on_its_side(bytes: &(impl Bytes + ?Sized), at: usize, length: usize) -> bool {
    let exif: Vec<u8> = (at..at + length.min(usize::from(u16::MAX)))
        .map_while(|at| bytes.at::<1>(at))
        .flatten()
        .collect();
    Orientation::from_exif_chunk(&exif).is_some_and(is_on_its_side)
}

pub(crate) fn is_on_its_side(orientation: Orientation) -> bool {
    matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    )
}

fn png(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    let number = |at: usize| bytes.at(at).map(u32::from_be_bytes);
    let (width, height) = (number(16)?, number(20)?);
    let [depth, colour] = bytes.at(24)?;
    let (mut at, mut metadata_bytes) = (33_usize, 0);
    let (mut has_exif, mut has_transparent) = (false, false);
    while let (Some(length), Some(name)) = (number(at), bytes.at::<4>(at + 4)) {
        match &name {
            b"IDAT" => break,
            b"tRNS" => has_transparent = true,
            b"PLTE" => {}
            _ => metadata_bytes += u64::from(length) + 16,
        }
        has_exif |= &name == b"eXIf";
        at = at.checked_add(length as usize + 12)?;
    }
    let num_channels = match (colour, has_transparent) {
        (0, false) => 1,
        (0, true) | (4, _) => 2,
        (2 | 3, false) => 3,
        _ => 4,
    };
    Some(Header {
        width,
        height,
        channels: if matches!(colour, 0 | 4) { 1 } else { 3 },
        is_deep: depth == 16,
        pixel_bytes: num_channels * if depth == 16 { 2 } else { 1 },
        kind: HeaderFormat::Png,
        is_turned: has_exif,
        metadata_bytes,
    })
}

fn webp(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    const ALPHA: u8 = 0x10;
    const EXIF: u8 = 0x08;
    const ANIMATION: u8 = 0x02;
    let mut frame = WebpFrame::default();
    let mut size = None;
    let (mut at, mut is_turned, mut metadata_bytes) = (12_usize, false, 0);
    while let Some(name) = bytes.at::<4>(at) {
        let length = u32::from_le_bytes(bytes.at(at + 4)?) as usize;
        let payload = at + 8;
        match &name {
            b"VP8X" => {
                let [flags, _, _, _, a, b, c, d, e, f] = bytes.at(payload)?;
                let side = |a, b, c| u32::from_le_bytes([a, b, c, 0]) + 1;
                size = Some((side(a, b, c), side(d, e, f)));
                frame.has_alpha = flags & ALPHA != 0;
                frame.is_animated = flags & ANIMATION != 0;
                is_turned = flags & EXIF != 0;
            }
            b"VP8 " => {
                let [.., a, b, c, d] = bytes.at::<10>(payload)?;
                let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
                size = size.or(Some((side(a, b), side(c, d))));
                break;
            }
            b"VP8L" => {
                let [_, a, b, c, d] = bytes.at(payload)?;
                let header = u32::from_le_bytes([a, b, c, d]);
                let found = ((header & 0x3fff) + 1, (header >> 14 & 0x3fff) + 1);
                frame.is_lossless = true;
                // A simple file has no VP8X header: the decoder trusts the alpha bit here.
                frame.has_alpha |= size.is_none() && header >> 28 & 1 == 1;
                size = size.or(Some(found));
                break;
            }
            b"ANMF" => break,
            _ => metadata_bytes += length as u64,
        }
        at = payload.checked_add(length + length % 2)?;
    }
    let (width, height) = size?;
    Some(Header {
        width,
        height,
        channels: 3,
        is_deep: false,
        pixel_bytes: if frame.has_alpha { 4 } else { 3 },
        kind: HeaderFormat::Webp(frame),
        is_turned,
        metadata_bytes,
    })
}

fn bmp(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    const CORE: u32 = 12;
    let word = |at: usize| bytes.at(at).map(u32::from_le_bytes);
    let half = |at: usize| bytes.at(at).map(u16::from_le_bytes);
    let (width, height, bits) = match word(14)? {
        CORE => (u32::from(half(18)?), u32::from(half(20)?), half(24)?),
        _ => {
            let side = |at| word(at).map(|side| (side as i32).unsigned_abs());
            (side(18)?, side(22)?, half(28)?)
        }
    };
    Some(Header {
        width,
        height,
        channels: 3,
        is_deep: false,
        pixel_bytes: if matches!(bits, 16 | 32) { 4 } else { 3 },
        kind: HeaderFormat::Bmp,
        is_turned: false,
        metadata_bytes: 0,
    })
}

fn tiff(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    let tags = TiffTags::new(bytes)?;
    let (width, height) = (tags.first(tiff::WIDTH)?, tags.first(tiff::HEIGHT)?);
    let bits = u64::from(tags.first(tiff::BITS).unwrap_or(1));
    let num_samples = u64::from(tags.first(tiff::SAMPLES).unwrap_or(1));
    let held_pixel_bytes = num_samples * bits.div_ceil(8).max(1);
    let is_turned = tags
        .first(tiff::ORIENTATION)
        .and_then(|orientation| Orientation::from_exif(orientation.min(255) as u8))
        .is_some_and(is_on_its_side);
    Some(Header {
        width,
        height,
        channels: if num_samples < 3 { 1 } else { 3 },
        is_deep: bits == 16,
        pixel_bytes: held_pixel_bytes,
        kind: HeaderFormat::Tiff {
            held_pixel_bytes,
            num_values: u64::from(tags.most_values()),
        },
        is_turned,
        metadata_bytes: 0,
    })
}

fn gif(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    let [a, b, c, d] = bytes.at(6)?;
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]));
    Some(Header {
        width: side(a, b),
        height: side(c, d),
        channels: 3,
        is_deep: false,
        pixel_bytes: 4,
        kind: HeaderFormat::Gif,
        is_turned: false,
        metadata_bytes: 0,
    })
}

/// Limit of a PNM header with its comments.
const MOST_PNM_HEADER: usize = 4 << 10;

/// Parses `P6 width height maximum`, with white space and comments between; a bitmap has no maximum.
fn pnm(bytes: &(impl Bytes + ?Sized)) -> Option<Header> {
    let [_, kind] = bytes.at(0)?;
    let mut at = 2;
    let mut number = || {
        let mut found = None;
        let mut is_comment = false;
        while at < MOST_PNM_HEADER {
            let [byte] = bytes.at(at)?;
            match byte {
                b'\n' | b'\r' if is_comment => is_comment = false,
                _ if is_comment => {}
                b'0'..=b'9' => {
                    let digit = u32::from(byte - b'0');
                    found = Some(found.unwrap_or(0_u32).checked_mul(10)?.checked_add(digit)?);
                }
                _ if found.is_some() => return found,
                b'#' => is_comment = true,
                _ if byte.is_ascii_whitespace() => {}
                _ => return None,
            }
            at += 1;
        }
        None
    };
    let (width, height) = (number()?, number()?);
    let maximum = match kind {
        b'1' | b'4' => 1,
        _ => number()?,
    };
    let channels = if matches!(kind, b'3' | b'6') { 3 } else { 1 };
    let is_deep = maximum > 255;
    Some(Header {
        width,
        height,
        channels,
        is_deep,
        pixel_bytes: u64::from(channels) * if is_deep { 2 } else { 1 },
        kind: HeaderFormat::Pnm,
        is_turned: false,
        metadata_bytes: 0,
    })
}
