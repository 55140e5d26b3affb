//! Entry points that feed arbitrary bytes to the readers, for the fuzz targets in `fuzz/` and the mutations of `tests/hostile`.
//!
//! For any bytes, a reader must end in moderate time, within [`LIMITS`] and without a panic: with a complete result, or with an error that
//! names the file and ends with a hint.

use std::fs;
use std::path::Path;

use crate::decode::{self, CHANNELS, ClipFile, FrameView, Framing, Limits, Scratch};
use crate::error::DataError;
use crate::segmentation::MaskCoding;
use crate::table::{ParquetLimits, Table, list_file};

/// Limits of hostile pictures: small, so that excess memory is noticed and fuzzing is quick.
pub const LIMITS: Limits = Limits {
    most_pixels: 1 << 20,
    most_file_bytes: 1 << 20,
};

const NAME: &str = "hostile";
const SIZE: u32 = 16;

/// Reads every cell of a CSV. Tables are read from files, so the bytes are written to one first.
pub fn csv(bytes: &[u8]) -> Result<(), DataError> {
    // A Latin-1 letter has up to three bytes in UTF-8.
    in_file(bytes, "csv", |path| cells(path, bytes.len() * 3))
}

/// Reads every cell of JSON lines.
pub fn json_lines(bytes: &[u8]) -> Result<(), DataError> {
    // A cell can be longer than its source: numbers such as `1e9` are written out, and nested keys are joined.
    in_file(bytes, "jsonl", |path| cells(path, bytes.len() * 64))
}

/// Lists the samples of a tar.
pub fn tar(bytes: &[u8]) -> Result<(), DataError> {
    in_file(bytes, "tar", |path| {
        let list = list_file(path, parquet_limits())?;
        // The list repeats each member's name, its texts, and the name of the shard.
        assert!(
            list.len() <= 64 * bytes.len(),
            "{} bytes of list",
            list.len()
        );
        Ok(())
    })
}

/// Lists a Parquet file: every cell, and copies of its pictures.
pub fn parquet(bytes: &[u8]) -> Result<(), DataError> {
    in_file(bytes, "parquet", |path| {
        list_file(path, parquet_limits()).map(|_| ())
    })
}

fn parquet_limits() -> ParquetLimits {
    ParquetLimits {
        most_page_bytes: LIMITS.most_file_bytes,
        most_footer_bytes: LIMITS.most_file_bytes,
    }
}

/// Reads the first, middle and last frame of a clip, by any reader but `ffmpeg`.
pub fn clip(bytes: &[u8]) -> Result<(), DataError> {
    in_file(bytes, "clip", |path| {
        let mut clip = ClipFile::open_by(path, LIMITS, |path| {
            Err(DataError::NoFfmpeg {
                path: path.to_owned(),
                program: "ffmpeg".to_owned(),
            })
        })?;
        let last = clip.num_frames() - 1;
        let view = FrameView::evaluated(Framing::clip(SIZE));
        let mut out = vec![0; 3 * view.frame_bytes()];
        let mut scratch = Scratch::with_limits(LIMITS);
        clip.read(&[0, last / 2, last], &view, &mut scratch, &mut out)
    })
}

/// Writes the bytes to a temporary file and reads that.
fn in_file(
    bytes: &[u8],
    kind: &str,
    read: impl FnOnce(&Path) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let thread = std::thread::current().id();
    let name = format!("holdall-{}-{thread:?}.{kind}", std::process::id());
    let path = std::env::temp_dir().join(name);
    fs::write(&path, bytes).expect("the folder for temporary files can be written to");
    let read = checked(&path.display().to_string(), read(&path));
    // If it cannot be removed, the folder is a temporary one.
    let _ = fs::remove_file(&path);
    read
}

fn cells(path: &Path, num_bytes: usize) -> Result<(), DataError> {
    let table = Table::open(path)?;
    let mut rows = table.rows()?;
    while let Some(row) = rows.read()? {
        let in_cells: usize = row.cells().map(str::len).sum();
        assert!(in_cells <= num_bytes, "a row has {in_cells} bytes");
        assert!(row.line() > 0);
    }
    Ok(())
}

/// Reads a picture like evaluation.
pub fn picture(bytes: &[u8]) -> Result<(), DataError> {
    let mut out = vec![0; (SIZE * SIZE) as usize * CHANNELS];
    let mut scratch = Scratch::with_limits(LIMITS);
    let path = Path::new(NAME);
    let read = decode::evaluated_from(path, bytes, Framing::clip(SIZE), &mut scratch, &mut out);
    checked(NAME, read)
}

/// Estimated peak memory of [`picture`](fn@picture), the bytes included, from the header.
pub fn picture_cost(bytes: &[u8]) -> u64 {
    decode::cost_from(bytes, Framing::clip(SIZE))
}

/// Reads a mask, once with a threshold and once strictly.
pub fn mask(bytes: &[u8]) -> Result<(), DataError> {
    let mut scratch = Scratch::with_limits(LIMITS);
    let mut read = |coding: MaskCoding| {
        let mut pixels = Vec::new();
        let path = Path::new(NAME);
        let read_as = coding.read_as();
        let native = decode::decode_native(path, bytes, read_as, &mut scratch, &mut pixels);
        let native = checked(NAME, native)?;
        assert_eq!(pixels.len(), native.num_bytes());
        let mut classes = vec![9; native.num_pixels()];
        checked(NAME, coding.encode(path, &pixels, native, &mut classes))?;
        assert!(classes.iter().all(|class| *class <= 1));
        Ok(())
    };
    read(MaskCoding::threshold(128))?;
    read(MaskCoding::pair(255))
}

fn checked<T>(name: &str, result: Result<T, DataError>) -> Result<T, DataError> {
    if let Err(error) = &result {
        let text = error.to_string();
        assert!(
            text.starts_with(name) && text.contains("\nhint: "),
            "{text}"
        );
    }
    result
}
