//! MP4, MOV, MKV and all other formats that an installed `ffmpeg` reads. It runs as a separate process, once per clip: it outputs only the
//! sampled frames, and stops after the last of them.
//!
//! Files are untrusted: arguments are passed as a list, the file is named with its protocol (no `concat:`, no `http:`), only files may be
//! opened, and output is read up to a limit.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};
use std::thread::JoinHandle;

use serde::Deserialize;

use super::file::{FrameRows, broken_clip};
use super::mp4_boxes::first_video;
use crate::decode::picture::{
    CHANNELS, Cost, Framing, Limits, Scratch, check_frame_size, frame_cost,
};
use crate::error::DataError;
use crate::stored_file::{self, FilePart, StoredFile};

const FFMPEG: &str = "ffmpeg";
const FFPROBE: &str = "ffprobe";

/// Limit on the output of `ffprobe`.
const MOST_PROBE_BYTES: u64 = 64 << 10;
/// Limit on the kept error output.
const MOST_COMPLAINT_BYTES: u64 = 4 << 10;
/// Limit on the processor time of `ffmpeg` per clip, in seconds.
const TIME_LIMIT: &str = "600";

/// Estimated memory of `ffmpeg`: its code and container buffers, and reference pictures.
const PROCESS_BYTES: u64 = 48 << 20;
const REFERENCE_PICTURES: u64 = 24;

/// A clip that `ffmpeg` reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Video {
    pub(super) num_frames: usize,
    pub(super) size: (u32, u32),
}

/// Key of a probed file: hash of its path, bytes, modification time.
type Stamp = (u64, u64, Option<std::time::SystemTime>);

/// Cache of probed videos: a probe takes as long as decoding several frames, and a clip is opened once per epoch.
static LOOKED_AT: LazyLock<Mutex<HashMap<Stamp, Video>>> = LazyLock::new(Mutex::default);

impl Video {
    pub(super) fn open(path: &Path) -> Result<Video, DataError> {
        let stamp = stamp(path);
        let known = || LOOKED_AT.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(video) = stamp.and_then(|stamp| known().get(&stamp).copied()) {
            return Ok(video);
        }
        let video = probe(path)?;
        if let Some(stamp) = stamp {
            known().insert(stamp, video);
        }
        Ok(video)
    }

    pub(super) fn cost(&self, framing: Framing) -> Cost {
        let num_pixels = u64::from(self.size.0) * u64::from(self.size.1);
        let process_bytes = PROCESS_BYTES + REFERENCE_PICTURES * num_pixels * 3 / 2;
        frame_cost(self.size, 0, process_bytes, framing)
    }

    pub(super) fn read(
        &self,
        path: &Path,
        limits: Limits,
        rows: &mut FrameRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        check_frame_size(path, self.size, limits)?;
        scratch.claim_frame(path, self.size, self.cost(rows.framing()))?;
        let wanted = rows.all_wanted();
        let mut process = Process::start(path, FFMPEG, &decode_arguments(path, &wanted))?;
        for _ in &wanted {
            let Some(size) = picture_header(path, &mut process.output, limits)? else {
                break;
            };
            // A frame of a rotated video, or of one that changes its size, counts with its own size.
            let mut cost = self.cost(rows.framing());
            cost.pixels = cost.pixels.max(u64::from(size.0) * u64::from(size.1) * 3);
            scratch.claim_frame(path, size, cost)?;
            let pixels = scratch.pixel_buffer(size.0 as usize * size.1 as usize * CHANNELS);
            let read = process.output.read_exact(pixels);
            read.map_err(|cause| super::file::unread(path, cause))?;
            rows.write_pixels(path, size, scratch)?;
        }
        let complaint = process.end();
        if !rows.has_any() {
            return Err(refused(path, &complaint));
        }
        // Containers count packets, and the last packets may show no frame: the last decoded frame is repeated.
        while rows.wanted().is_some() {
            rows.repeat();
        }
        Ok(())
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = stored_file::stamp(path)?;
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    Some((hasher.finish(), file.num_bytes, file.modified))
}

/// Checks that `ffmpeg` and `ffprobe` are installed.
pub(crate) fn find_ffmpeg(path: &Path) -> Result<(), DataError> {
    for program in [FFPROBE, FFMPEG] {
        let mut process = Process::start(path, program, &["-version".into()])?;
        // Drains the output: a full pipe would block the process.
        let _ = io::copy(&mut process.output, &mut io::sink());
        process.end();
    }
    Ok(())
}

/// Protocols that `ffmpeg` may open: files, and parts of files.
const PROTOCOLS: &str = "file,subfile";

/// With its protocol in front, no name is taken for an option or for another protocol.
fn file_argument(path: &Path) -> std::ffi::OsString {
    let mut name = std::ffi::OsString::new();
    let part = FilePart::of(path).filter(|_| !path.exists());
    if let Some(part) = &part {
        let bytes = part.bytes();
        name.push(format!(
            "subfile,,start,{},end,{},,:",
            bytes.start, bytes.end
        ));
    }
    name.push("file:");
    name.push(part.map_or(path, |part| part.path()));
    name
}

fn arguments(words: &[&str]) -> Vec<std::ffi::OsString> {
    words.iter().map(Into::into).collect()
}

fn decode_arguments(path: &Path, wanted: &[usize]) -> Vec<std::ffi::OsString> {
    let chosen: Vec<String> = wanted.iter().map(|n| format!("eq(n\\,{n})")).collect();
    // Timestamps are evenly spaced: otherwise `ffmpeg` would repeat and drop frames to reach its constant rate.
    let filters = format!("select={},setpts=N/(25*TB)", chosen.join("+"));
    let mut all = arguments(&["-v", "error", "-nostdin", "-protocol_whitelist", PROTOCOLS]);
    // One thread per process: loader workers read several clips at once.
    all.extend(arguments(&["-threads", "1", "-i"]));
    all.push(file_argument(path));
    all.extend(arguments(&["-map", "0:v:0", "-vf", &filters, "-r", "25"]));
    all.extend(arguments(&["-frames:v", &wanted.len().to_string()]));
    all.extend(arguments(&["-timelimit", TIME_LIMIT, "-threads", "1"]));
    all.extend(arguments(&["-c:v", "ppm", "-pix_fmt", "rgb24"]));
    all.extend(arguments(&["-f", "image2pipe", "pipe:1"]));
    all
}

/// Reads `P6 width height 255`, the header that `ffmpeg` writes before the pixels of a frame; `None` at the end.
fn picture_header(
    path: &Path,
    output: &mut impl BufRead,
    limits: Limits,
) -> Result<Option<(u32, u32)>, DataError> {
    const MOST_HEADER_BYTES: u64 = 64;
    let mut words = Vec::new();
    for _ in 0..3 {
        let mut line = Vec::new();
        let read = (&mut *output)
            .take(MOST_HEADER_BYTES)
            .read_until(b'\n', &mut line);
        if read.map_err(|cause| super::file::unread(path, cause))? == 0 && words.is_empty() {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        words.extend(line.split_ascii_whitespace().map(str::to_owned));
    }
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok());
    match (
        words.first().map(String::as_str),
        number(1),
        number(2),
        number(3),
    ) {
        (Some("P6"), Some(width), Some(height), Some(255)) => {
            check_frame_size(path, (width, height), limits)?;
            Ok(Some((width, height)))
        }
        _ => Err(broken_clip(path, "no picture from `ffmpeg`")),
    }
}

#[derive(Deserialize)]
struct Probe {
    #[serde(default)]
    streams: Vec<ProbeStream>,
}

#[derive(Deserialize)]
struct ProbeStream {
    width: Option<u32>,
    height: Option<u32>,
    nb_frames: Option<String>,
    nb_read_packets: Option<String>,
}

fn probe(path: &Path) -> Result<Video, DataError> {
    let opened = StoredFile::open(path).ok();
    let found = opened.and_then(|mut file| {
        let num_bytes = file.num_bytes();
        first_video(&mut file, num_bytes)
    });
    if let Some((num_frames, size)) = found {
        return Ok(Video { num_frames, size });
    }
    // Most containers store their number of frames; for the others all packets are counted.
    for counting in [&[][..], &["-count_packets"]] {
        let mut all = arguments(&["-v", "error", "-protocol_whitelist", PROTOCOLS]);
        all.extend(arguments(counting));
        all.extend(arguments(&["-select_streams", "v:0", "-show_entries"]));
        all.extend(arguments(&[
            "stream=width,height,nb_frames,nb_read_packets",
        ]));
        all.extend(arguments(&["-of", "json", "-i"]));
        all.push(file_argument(path));
        let mut process = Process::start(path, FFPROBE, &all)?;
        let mut text = Vec::new();
        let read = (&mut process.output)
            .take(MOST_PROBE_BYTES)
            .read_to_end(&mut text);
        let complaint = process.end();
        let probe: Option<Probe> = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
        let stream = probe.and_then(|probe| probe.streams.into_iter().next());
        let Some((stream, size)) = stream.and_then(|stream| {
            let size = stream.width.zip(stream.height)?;
            Some((stream, size))
        }) else {
            return Err(refused(path, &complaint));
        };
        let count = stream.nb_frames.or(stream.nb_read_packets);
        let count = count.and_then(|count| count.parse().ok());
        if let Some(num_frames) = count.filter(|count| *count > 0) {
            return Ok(Video { num_frames, size });
        }
    }
    Err(broken_clip(path, "a video without frames"))
}

/// Error with the last line of `ffmpeg`'s messages.
fn refused(path: &Path, complaint: &str) -> DataError {
    let said = complaint.lines().last().unwrap_or_default().trim();
    match said {
        "" => broken_clip(path, "no frames"),
        said => broken_clip(path, format_args!("what `ffmpeg` cannot read ({said})")),
    }
}

/// A running program; killed on drop.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    complaints: Option<JoinHandle<String>>,
}

impl Process {
    fn start(
        path: &Path,
        program: &str,
        arguments: &[std::ffi::OsString],
    ) -> Result<Process, DataError> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |cause: io::Error| match cause.kind() {
            io::ErrorKind::NotFound => DataError::NoFfmpeg {
                path: path.to_owned(),
                program: program.to_owned(),
            },
            _ => DataError::Io {
                path: path.to_owned(),
                action: "start `ffmpeg` for it",
                cause,
            },
        };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed(io::Error::other("its output is not there")));
        };
        // A thread drains stderr: a full pipe would block the process.
        let complaints = std::thread::Builder::new()
            .name("complaints of ffmpeg".to_owned())
            .spawn(move || complaints(errors))
            .ok();
        Ok(Process {
            child,
            output: BufReader::with_capacity(1 << 16, output),
            complaints,
        })
    }

    /// Ends the process and returns its error output.
    fn end(mut self) -> String {
        self.stop();
        let complaints = self.complaints.take();
        let text = complaints.and_then(|thread| thread.join().ok());
        text.unwrap_or_default()
    }

    fn stop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The start of the error output; the rest is read and dropped.
fn complaints(mut errors: ChildStderr) -> String {
    let mut text = Vec::new();
    let _ = (&mut errors)
        .take(MOST_COMPLAINT_BYTES)
        .read_to_end(&mut text);
    let _ = io::copy(&mut errors, &mut io::sink());
    String::from_utf8_lossy(&text).into_owned()
}
