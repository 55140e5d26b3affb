//! TensorBoard event files: scalars over steps.
//!
//! ```text
//! file    = record...                     the first one says `brain.Event:2`
//! record  = length: u64  crc(length): u32  event  crc(event): u32        little-endian, TFRecord
//! crc(x)  = rotate_right(crc32c(x), 15) + 0xa282ead8                     masked, as in TFRecord
//! event   = 1 wall_time: double  2 step: int64  3 file_version: string  5 summary     protobuf, tensorflow.Event
//! summary = 1 value...                                                    tensorflow.Summary
//! value   = 1 tag: string  2 simple_value: float                          tensorflow.Summary.Value
//! ```
//!
//! Seven fields do not justify a protobuf library: a key is `number << 3 | wire type`, and lengths are varints. A record is
//! appended in one write. A resumed run starts a new file beside the old one, because a record that a kill cut would hide all
//! records after it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{TelemetryError, failed};
use crate::run_files::flatten;

/// Folder of the event files in a run's folder.
pub const FOLDER_NAME: &str = "tensorboard";

/// Version string at the start of every file.
const VERSION: &str = "brain.Event:2";

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
    record: Vec<u8>,
}

impl EventFile {
    /// Creates a new file, and its folder if needed. `time` is in seconds since 1970.
    pub fn create(folder: &Path, time: f64) -> Result<EventFile, TelemetryError> {
        fs::create_dir_all(folder).map_err(failed(&folder.display().to_string(), "created"))?;
        let seconds = time as u64;
        let process = std::process::id();
        // TensorBoard reads files in the order of their names; files of the same second differ in the last number.
        let names = (0..)
            .map(|number| format!("events.out.tfevents.{seconds:010}.holdall.{process}.{number}"));
        let path = names
            .map(|name| folder.join(name))
            .find(|path| !path.exists())
            .expect("numbers do not end");
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.map_err(failed(&path.display().to_string(), "created"))?;
        let mut events = EventFile {
            path,
            file,
            record: Vec::new(),
        };
        let mut event = Vec::new();
        put_double(&mut event, 1, time);
        put_bytes(&mut event, 3, VERSION.as_bytes());
        events.write(&event)?;
        Ok(events)
    }

    /// Appends the scalars of a step in one write.
    pub fn add(
        &mut self,
        time: f64,
        step: u64,
        scalars: &[(String, f64)],
    ) -> Result<(), TelemetryError> {
        let mut event = Vec::new();
        put_double(&mut event, 1, time);
        put_varint_field(&mut event, 2, step);
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut of_tag = Vec::new();
            put_bytes(&mut of_tag, 1, tag.as_bytes());
            put_float(&mut of_tag, 2, *value as f32);
            put_bytes(&mut summary, 1, &of_tag);
        }
        put_bytes(&mut event, 5, &summary);
        self.write(&event)
    }

    fn write(&mut self, event: &[u8]) -> Result<(), TelemetryError> {
        put_record(&mut self.record, event);
        let written = self.file.write_all(&self.record);
        written.map_err(failed(&self.path.display().to_string(), "written"))
    }
}

/// All numbers of a line, named with a prefix: `train/loss`, `validation/outer/inner`.
pub fn scalars(prefix: &str, line: &impl Serialize) -> Vec<(String, f64)> {
    let line = serde_json::to_value(line).unwrap_or_default();
    let numbers = flatten(&line).into_iter();
    // The position of a line is not a scalar.
    numbers
        .filter(|(name, _)| !matches!(name.as_str(), "step" | "time"))
        .map(|(name, number)| (format!("{prefix}/{name}"), number))
        .collect()
}

/// Frames an event as a record.
fn put_record(record: &mut Vec<u8>, event: &[u8]) {
    record.clear();
    let length = (event.len() as u64).to_le_bytes();
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(event);
    record.extend(masked_crc(event).to_le_bytes());
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
fn put_key(to: &mut Vec<u8>, field: u64, wire_type: u64) {
    put_varint(to, field << 3 | wire_type);
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_varint_field(to: &mut Vec<u8>, field: u64, value: u64) {
    // Protobuf omits zeros.
    if value != 0 {
        put_key(to, field, 0);
        put_varint(to, value);
    }
}

fn put_double(to: &mut Vec<u8>, field: u64, value: f64) {
    put_key(to, field, 1);
    to.extend(value.to_le_bytes());
}

/// A member of a `oneof` is written even if it is zero.
fn put_float(to: &mut Vec<u8>, field: u64, value: f32) {
    put_key(to, field, 5);
    to.extend(value.to_le_bytes());
}

fn put_bytes(to: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_key(to, field, 2);
    put_varint(to, bytes.len() as u64);
    to.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by TensorBoard's own writer: `tests/fixtures/tensorboard.py`.
    const REFERENCE: &[u8] = include_bytes!("../tests/fixtures/tensorboard.tfevents");

    #[test]
    fn the_bytes_are_those_of_tensorboards_own_writer() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("run/tensorboard");
        let mut events = EventFile::create(&inner, 1700000000.25).unwrap();
        let loss = [("train/loss".to_owned(), 4.852)];
        events.add(1700000001.5, 0, &loss).unwrap();
        let two = [
            ("train/loss".to_owned(), 0.0),
            ("memory/process_bytes".to_owned(), 3328599654.0),
        ];
        events.add(1700000002.5, 300, &two).unwrap();
        let long = [("é".repeat(100), -1e-9)];
        events.add(1700000003.5, 1 << 40, &long).unwrap();
        assert!(fs::read(&events.path).unwrap() == REFERENCE);
        // A second file is created beside the first and does not overwrite it.
        let other = EventFile::create(&inner, 1700000000.75).unwrap();
        assert_ne!(other.path, events.path);
        assert!(fs::read(&events.path).unwrap() == REFERENCE);
    }

    #[test]
    fn every_number_is_a_scalar() {
        let line = serde_json::json!({
            "kind": "step", "step": 3, "loss": 1.5, "label": null, "samples": 8,
            "image_to_text": {"r1": 0.25, "name": "x"}, "list": [1, 2],
        });
        let expected = [
            ("train/loss", 1.5),
            ("train/samples", 8.0),
            ("train/image_to_text/r1", 0.25),
        ];
        let found = scalars("train", &line);
        let found: Vec<(&str, f64)> = found
            .iter()
            .map(|(tag, value)| (tag.as_str(), *value))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = EventFile::create(&file, 0.0).unwrap_err().to_string();
        assert!(
            error.starts_with(&file.display().to_string()) && error.contains("\nhint: "),
            "{error}"
        );
    }
}
