//! Files that grow line by line. A checkpoint remembers the prefix that belongs to it: length and checksum.
//!
//! Resuming compares the prefix and cuts off the lines after it; the run writes those again.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use holdall_files::{RunningChecksum, open_regular, sync_folder};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::run_folder::folder::failed;

/// The part of a file that belongs to a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    pub bytes: u64,
    /// Hexadecimal; not compared where there are no bytes.
    pub checksum: String,
}

impl Prefix {
    /// Compares a file with this prefix and changes nothing. Returns the running checksum that appending continues from.
    pub(crate) fn check(&self, path: &Path) -> Result<RunningChecksum, TrainError> {
        let mut sum = RunningChecksum::default();
        if self.bytes == 0 {
            return Ok(sum);
        }
        let file = match open_regular(path) {
            Ok((file, _)) => Some(file),
            Err(cause) if cause.kind() == ErrorKind::NotFound => None,
            Err(cause) => return Err(failed(path, "read")(cause)),
        };
        if let Some(file) = file {
            let mut rest = file.take(self.bytes);
            let mut piece = vec![0; 1 << 16];
            loop {
                match rest.read(&mut piece) {
                    Ok(0) => break,
                    Ok(bytes) => sum.add(&piece[..bytes]),
                    Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                    Err(cause) => return Err(failed(path, "read")(cause)),
                }
            }
        }
        let wrong = |expected: String, found: String| {
            TrainError::Run(format!(
                "{}: expected {expected} that the checkpoint remembers, found {found}\n\
                 hint: the file was changed or cut since; restore it, or begin a new run",
                path.display()
            ))
        };
        let (bytes, found) = (self.bytes, sum.value().to_string());
        if sum.num_bytes() != bytes {
            return Err(wrong(
                format!("the {bytes} bytes"),
                sum.num_bytes().to_string(),
            ));
        }
        if self.checksum != found {
            let checksum = &self.checksum;
            let expected = format!("in its first {bytes} bytes the checksum {checksum}");
            return Err(wrong(expected, found));
        }
        Ok(sum)
    }
}

pub(crate) struct AppendedFile {
    path: PathBuf,
    /// `None` until the first write.
    file: Option<File>,
    /// Checksum of all complete writes.
    sum: RunningChecksum,
}

impl AppendedFile {
    /// Opens the file behind `prefix`, which must match, and cuts off the rest.
    pub fn open(path: &Path, prefix: &Prefix) -> Result<AppendedFile, TrainError> {
        let sum = prefix.check(path)?;
        let file = match prefix.bytes {
            0 => {
                match holdall_files::remove_file(path) {
                    Err(cause) if cause.kind() != ErrorKind::NotFound => {
                        return Err(failed(path, "removed")(cause));
                    }
                    _ => {}
                }
                None
            }
            bytes => {
                let file = OpenOptions::new().write(true).open(path);
                let file = file.map_err(failed(path, "opened"))?;
                let cut = file.set_len(bytes);
                cut.map_err(failed(path, "cut to the checkpoint"))?;
                Some(file)
            }
        };
        Ok(AppendedFile {
            path: path.to_owned(),
            file,
            sum,
        })
    }

    /// Appends in one write. A failed write does not count: the next write overwrites it, and [`AppendedFile::sync`] leaves
    /// it out.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        let start = self.sum.num_bytes();
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = create(&self.path).map_err(failed(&self.path, "created"))?;
                self.file.insert(file)
            }
        };
        // Overwrites the remains of a failed write.
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.write_all(bytes))
            .map_err(failed(&self.path, "written"))?;
        self.sum.add(bytes);
        Ok(())
    }

    /// Flushes the file to disk and returns the prefix for a checkpoint.
    pub fn sync(&mut self) -> Result<Prefix, TrainError> {
        if let Some(file) = &self.file {
            let synced = file.sync_data();
            synced.map_err(failed(&self.path, "written to disk"))?;
        }
        Ok(Prefix {
            bytes: self.sum.num_bytes(),
            checksum: self.sum.value().to_string(),
        })
    }
}

/// Creates a file whose directory entry survives a power loss.
fn create(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    sync_folder(path.parent().unwrap_or(Path::new("")))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_prefix_that_changed_is_named_and_what_follows_it_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = AppendedFile::open(&path, &Prefix::default()).unwrap();
        file.add(b"1\n").unwrap();
        let remembered = file.sync().unwrap();
        file.add(b"2\n").unwrap();
        drop(file);
        // The process was killed in the middle of a line.
        fs::write(&path, "1\n2\n{\"st").unwrap();
        let mut file = AppendedFile::open(&path, &remembered).unwrap();
        file.add(b"3\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n3\n");
        for (damaged, found) in [("7\n3\n", "checksum"), ("1", "the 2 bytes")] {
            fs::write(&path, damaged).unwrap();
            let Err(error) = AppendedFile::open(&path, &remembered) else {
                panic!("{damaged} was taken");
            };
            assert!(error.to_string().contains(found), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    /// A half-written line is overwritten by the next write and is not part of the prefix.
    #[test]
    fn what_a_failed_write_left_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = AppendedFile::open(&path, &Prefix::default()).unwrap();
        file.add(b"1\n").unwrap();
        file.file.as_mut().unwrap().write_all(b"half").unwrap();
        assert_eq!(file.sync().unwrap().bytes, 2);
        file.add(b"whole\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\nwhole\n");
    }
}
