//! A clip in any format. The format is detected by the first bytes, not by the name.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::MOST_FRAMES;
use super::animation::Animation;
use super::avi::{Avi, AviContent};
use super::frame_folder::FrameFolder;
use super::npy::Npy;
use super::video::Video;
use crate::decode::picture::{
    self, FrameView, Framing, Limits, PictureCost, Scratch, SmallerFrame, SmallerFrames,
    check_frame_size,
};
use crate::error::DataError;
use crate::media::needs_ffmpeg;
use crate::stored_file::{self, StoredFile};
use crate::words::thousands;

/// Bytes and modification time of a clip that is a file or a part of one; `None` for a folder or a missing file.
pub fn size_and_time(path: &Path) -> Option<(u64, Option<SystemTime>)> {
    let stored = stored_file::stamp(path)?;
    Some((stored.num_bytes, stored.modified))
}

/// An opened clip, with known format and number of frames.
#[derive(Debug)]
pub struct ClipFile {
    path: PathBuf,
    limits: Limits,
    frames: Frames,
}

#[derive(Debug)]
enum Frames {
    Folder(FrameFolder),
    Animation(Animation),
    Npy(Npy),
    Avi(Avi),
    Video(Video),
}

impl ClipFile {
    /// Opens a file or a folder of frames.
    pub fn open(path: &Path) -> Result<ClipFile, DataError> {
        ClipFile::open_within(path, Limits::default())
    }

    /// Like [`ClipFile::open`], with limits other than the default.
    pub(crate) fn open_within(path: &Path, limits: Limits) -> Result<ClipFile, DataError> {
        ClipFile::open_by(path, limits, Video::open)
    }

    /// Like [`ClipFile::open_within`]; `open_video` opens formats without a reader in this module.
    pub(crate) fn open_by(
        path: &Path,
        limits: Limits,
        open_video: fn(&Path) -> Result<Video, DataError>,
    ) -> Result<ClipFile, DataError> {
        let frames = Frames::open(path, limits, open_video)?;
        let clip = ClipFile {
            path: path.to_owned(),
            limits,
            frames,
        };
        match clip.num_frames() {
            0 => Err(DataError::invalid(
                path.display(),
                "a clip with at least one frame",
                "none",
                "remove its row",
            )),
            frames if frames > MOST_FRAMES => Err(DataError::invalid(
                path.display(),
                format_args!("a clip of at most {} frames", thousands(MOST_FRAMES)),
                format_args!("{}", thousands(frames)),
                "cut it into clips: `ffmpeg -i FILE -c copy -f segment -segment_time 10 part_%03d.mp4`",
            )),
            _ => Ok(clip),
        }
    }

    /// Number of frames; at least 1.
    pub fn num_frames(&self) -> usize {
        match &self.frames {
            Frames::Folder(folder) => folder.num_frames(),
            Frames::Animation(animation) => animation.num_frames,
            Frames::Npy(npy) => npy.num_frames,
            Frames::Avi(avi) => avi.num_frames(),
            Frames::Video(video) => video.num_frames,
        }
    }

    /// Peak memory of reading any of its frames, and the size of the frames.
    pub fn cost(&mut self, framing: Framing) -> Result<PictureCost, DataError> {
        let (path, limits) = (&self.path, self.limits);
        let of = |(width, height): (u32, u32), cost: crate::decode::picture::Cost| {
            check_frame_size(path, (width, height), limits)?;
            Ok(PictureCost {
                width,
                height,
                bytes: cost.total(),
            })
        };
        match &mut self.frames {
            Frames::Folder(folder) => folder.cost(framing),
            Frames::Animation(animation) => of(animation.size, animation.cost(framing)),
            Frames::Npy(npy) => of(npy.size, npy.cost(framing)),
            Frames::Avi(avi) => {
                let (size, cost) = avi.cost(path, framing)?;
                of(size, cost)
            }
            Frames::Video(video) => of(video.size, video.cost(framing)),
        }
    }

    /// Writes the frames of these ascending numbers to `out` one after another, transformed by `view`. A repeated number is decoded once.
    pub(crate) fn read(
        &mut self,
        numbers: &[usize],
        view: &FrameView,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        assert!(out.len() == numbers.len() * view.frame_bytes());
        self.read_into(numbers, FrameOutput::Rows { view, out }, scratch)
    }

    /// Reads the frames of these ascending numbers, resized and encoded.
    pub(crate) fn smaller_frames(
        &mut self,
        numbers: &[usize],
        smaller: SmallerFrames,
        scratch: &mut Scratch,
    ) -> Result<Vec<SmallerFrame>, DataError> {
        let mut frames = Vec::with_capacity(numbers.len());
        let output = FrameOutput::Smaller {
            smaller,
            frames: &mut frames,
        };
        self.read_into(numbers, output, scratch)?;
        Ok(frames)
    }

    fn read_into(
        &mut self,
        numbers: &[usize],
        output: FrameOutput<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        assert!(numbers.is_sorted());
        let mut rows = FrameRows {
            numbers,
            output,
            next: 0,
        };
        let (path, limits) = (&self.path, self.limits);
        match &mut self.frames {
            Frames::Folder(folder) => folder.read(&mut rows, scratch),
            Frames::Animation(animation) => animation.read(path, limits, &mut rows, scratch),
            Frames::Npy(npy) => npy.read(path, limits, &mut rows, scratch),
            Frames::Avi(avi) => avi.read(path, limits, &mut rows, scratch),
            Frames::Video(video) => video.read(path, limits, &mut rows, scratch),
        }
    }

    /// Decodes every frame to see whether the clip can be read, and returns the width and height of its frames.
    pub(crate) fn probe(&mut self, scratch: &mut Scratch) -> Result<(u32, u32), DataError> {
        /// Side of the discarded frames: a smaller one saves no time, a larger one wastes memory.
        const SIDE: u32 = 8;
        let framing = Framing::clip(SIDE);
        let view = FrameView::evaluated(framing);
        let numbers: Vec<usize> = (0..self.num_frames()).collect();
        let mut out = vec![0; numbers.len() * view.frame_bytes()];
        self.read(&numbers, &view, scratch, &mut out)?;
        let cost = self.cost(framing)?;
        Ok((cost.width, cost.height))
    }

    /// Hash of the file's bytes, or of all frames of a folder.
    pub(crate) fn contents(&self) -> io::Result<u128> {
        contents_of(&self.path)
    }
}

/// Hash of a file's bytes, or of all frames of a folder.
pub(crate) fn contents_of(path: &Path) -> io::Result<u128> {
    if !path.is_dir() {
        return hash(StoredFile::open(path)?);
    }
    let folder = FrameFolder::open(path).map_err(io::Error::other)?;
    let mut all = Vec::new();
    for frame in 0..folder.num_frames() {
        let file = StoredFile::open(&folder.frame_path(frame))?;
        all.extend_from_slice(&hash(file)?.to_le_bytes());
    }
    Ok(xxh3_128(&all))
}

/// Bytes of a file, or of the first frame of a folder: files and folders of other sizes have other contents.
pub(crate) fn first_bytes(path: &Path) -> Option<u64> {
    let stored = if path.is_dir() {
        stored_file::stamp(&FrameFolder::open(path).ok()?.frame_path(0))
    } else {
        stored_file::stamp(path)
    };
    stored.map(|stored| stored.num_bytes)
}

fn hash(mut file: StoredFile) -> io::Result<u128> {
    let mut hasher = Xxh3::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.digest128()),
            length => hasher.update(&piece[..length]),
        }
    }
}

impl Frames {
    fn open(
        path: &Path,
        limits: Limits,
        open_video: fn(&Path) -> Result<Video, DataError>,
    ) -> Result<Frames, DataError> {
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            return Ok(Frames::Folder(FrameFolder::open(path)?));
        }
        let mut file = StoredFile::open(path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => DataError::PictureMissing {
                path: path.to_owned(),
            },
            io::ErrorKind::InvalidInput => DataError::PictureNotAFile {
                path: path.to_owned(),
                cause: cause.to_string(),
            },
            _ => unread(path, cause),
        })?;
        let mut start = Vec::new();
        let read = (&mut file).take(16).read_to_end(&mut start);
        read.map_err(|cause| unread(path, cause))?;
        match start.as_slice() {
            [b'G', b'I', b'F', b'8', ..] => {
                Animation::gif(path, file, limits).map(Frames::Animation)
            }
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => Animation::webp(path, file, limits).map(Frames::Animation),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Npy::open(path, file).map(Frames::Npy),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'A',
                b'V',
                b'I',
                b' ',
                ..,
            ] => match Avi::open(path, file)? {
                AviContent::MotionJpeg(avi) => Ok(Frames::Avi(avi)),
                AviContent::OtherCodec => open_video(path).map(Frames::Video),
            },
            [b'P', b'K', 3, 4, ..] => Err(DataError::invalid(
                path.display(),
                "a clip: a folder of frames, GIF, WebP, AVI, npy or a video",
                "an archive (zip or npz)",
                "save the array alone: `numpy.save(\"clip.npy\", array)`",
            )),
            _ if is_video(&start, path) => open_video(path).map(Frames::Video),
            _ => Err(not_a_clip(path, &start)),
        }
    }
}

/// Detects MP4, MOV, MKV and WebM by their first bytes, older formats by the file name.
fn is_video(start: &[u8], path: &Path) -> bool {
    const EBML: [u8; 4] = [0x1a, 0x45, 0xdf, 0xa3];
    let is_known = start.get(4..8) == Some(b"ftyp") || start.starts_with(&EBML);
    is_known || (!start.is_empty() && needs_ffmpeg(&path.to_string_lossy()))
}

fn not_a_clip(path: &Path, start: &[u8]) -> DataError {
    let is_picture = start.starts_with(b"\xff\xd8\xff") || start.starts_with(b"\x89PNG");
    let found = match start {
        [] => "an empty file".to_owned(),
        _ if is_picture => "a picture".to_owned(),
        _ => picture::refused_kind(path).unwrap_or_else(|| {
            let shown = start.iter().copied().flat_map(std::ascii::escape_default);
            let shown: String = shown.map(char::from).collect();
            format!("a file that begins with `{shown}`")
        }),
    };
    DataError::NotAClip {
        path: path.to_owned(),
        found,
    }
}

pub(super) fn unread(path: &Path, cause: io::Error) -> DataError {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => cut_short(path),
        _ => DataError::Io {
            path: path.to_owned(),
            action: "read the clip",
            cause,
        },
    }
}

pub(super) fn cut_short(path: &Path) -> DataError {
    DataError::ClipTruncated {
        path: path.to_owned(),
    }
}

/// Error for a clip that cannot be decoded.
pub(super) fn broken_clip(path: &Path, found: impl std::fmt::Display) -> DataError {
    DataError::invalid(
        path.display(),
        "a clip that can be decoded",
        found,
        "play it and save it again, or remove its row",
    )
}

/// The frame numbers to read, in ascending order, and the output of their frames.
pub(super) struct FrameRows<'a> {
    numbers: &'a [usize],
    output: FrameOutput<'a>,
    /// Index in `numbers` of the next frame to write.
    next: usize,
}

/// Output of frames.
enum FrameOutput<'a> {
    /// Pixels for a model, one frame after another.
    Rows {
        view: &'a FrameView,
        out: &'a mut [u8],
    },
    /// Resized and encoded frames, for packing.
    Smaller {
        smaller: SmallerFrames,
        frames: &'a mut Vec<SmallerFrame>,
    },
}

/// Source of a frame's pixels.
enum FrameAt<'a> {
    /// A file of its own.
    File(&'a Path),
    /// An encoded frame in `Scratch::file`; the path is for messages.
    Loaded(&'a Path),
    /// Pixels in `Scratch::rgb`, of this size; the path is for messages.
    Pixels(&'a Path, (u32, u32)),
}

impl FrameRows<'_> {
    /// Size that frames are resized to, for counting their cost.
    pub(super) fn framing(&self) -> Framing {
        match &self.output {
            FrameOutput::Rows { view, .. } => view.framing,
            FrameOutput::Smaller { smaller, .. } => smaller.framing(),
        }
    }

    /// Writes the next frame from a file of its own.
    pub(super) fn write_file(
        &mut self,
        path: &Path,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        self.write(FrameAt::File(path), scratch)
    }

    /// Writes the next frame from its encoded bytes in `Scratch::file`; the caller has claimed its cost.
    pub(super) fn write_loaded(
        &mut self,
        path: &Path,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        self.write(FrameAt::Loaded(path), scratch)
    }

    /// Writes the next frame from its pixels in `Scratch::rgb`.
    pub(super) fn write_pixels(
        &mut self,
        path: &Path,
        size: (u32, u32),
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        self.write(FrameAt::Pixels(path, size), scratch)
    }

    /// Number of the next frame to write; `None` when all are written.
    pub(super) fn wanted(&self) -> Option<usize> {
        self.numbers.get(self.next).copied()
    }

    /// The frame numbers that remain, each once.
    pub(super) fn all_wanted(&self) -> Vec<usize> {
        let mut numbers = self.numbers[self.next..].to_vec();
        numbers.dedup();
        numbers
    }

    /// Writes the next frame, as often as its number is repeated.
    fn write(&mut self, frame: FrameAt<'_>, scratch: &mut Scratch) -> Result<(), DataError> {
        let Some(number) = self.wanted() else {
            return Ok(());
        };
        match &mut self.output {
            FrameOutput::Rows { view, out } => {
                let frame_bytes = view.frame_bytes();
                let out = &mut out[self.next * frame_bytes..][..frame_bytes];
                match frame {
                    FrameAt::File(path) => view.file_into(path, scratch, out)?,
                    FrameAt::Loaded(path) => view.loaded_into(path, scratch, out)?,
                    FrameAt::Pixels(path, size) => view.pixels_into(path, size, scratch, out)?,
                }
            }
            FrameOutput::Smaller { smaller, frames } => frames.push(match frame {
                FrameAt::File(path) => smaller.of_file(path, scratch)?,
                FrameAt::Loaded(path) => smaller.of_loaded(path, scratch)?,
                FrameAt::Pixels(path, size) => smaller.of_pixels(path, size, scratch)?,
            }),
        }
        self.next += 1;
        while self.wanted() == Some(number) {
            self.repeat();
        }
        Ok(())
    }

    /// Whether any frame was written.
    pub(super) fn has_any(&self) -> bool {
        self.next > 0
    }

    /// Writes the previous frame once more as the next one.
    pub(super) fn repeat(&mut self) {
        match &mut self.output {
            FrameOutput::Rows { view, out } => {
                let frame_bytes = view.frame_bytes();
                let start = self.next * frame_bytes;
                out.copy_within(start - frame_bytes..start, start);
            }
            FrameOutput::Smaller { frames, .. } => frames.extend_from_within(self.next - 1..),
        }
        self.next += 1;
    }
}
