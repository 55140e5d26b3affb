//! Parquet, as far as tables of pictures need it: cells of columns, row by row, a page of each column in memory.
//!
//! ```text
//! "PAR1" | row group 0: chunk of column 0: [dictionary page] data page, data page, ... | chunk of column 1 ... | ... | footer | length | "PAR1"
//! ```
//!
//! A page is levels (which cells are null, where lists begin) and values, encoded, then compressed. What a page says of its size is checked
//! before memory is set aside: a file of any bytes takes at most [`Limits`]. Why no library does this is in
//! docs/decisions/0031-parquet-by-hand.md.

mod codec;
mod column;
mod encodings;
mod footer;
mod hybrid;
mod thrift;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::DataError;
pub(crate) use column::{ColumnReader, Value};
pub(crate) use footer::{Footer, Leaf, Physical};

/// What a file may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of a page, as stored and as unpacked.
    pub(crate) most_page_bytes: u64,
    /// Bytes of a footer.
    pub(crate) most_footer_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            most_page_bytes: 1 << 30,
            most_footer_bytes: 256 << 20,
        }
    }
}

/// What is wrong with a file, before it is known which.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Bytes that no writer of Parquet writes.
    Damaged(String),
    /// What is not read, by its name.
    Unsupported(&'static str),
    /// The system would not read it.
    Io(std::io::Error),
}

impl Fault {
    pub(crate) fn damaged(what: impl Into<String>) -> Fault {
        Fault::Damaged(what.into())
    }

    /// Of this file.
    pub(crate) fn of(self, path: &Path) -> DataError {
        match self {
            Fault::Damaged(what) => DataError::invalid(
                path.display(),
                "a whole Parquet file",
                what,
                "copy or download it again",
            ),
            Fault::Unsupported(what) => DataError::invalid(
                path.display(),
                "a Parquet file of a kind that is read",
                what,
                format_args!(
                    "write it again: `python -c \"import pyarrow.parquet as q; q.write_table(q.read_table('{0}'), 'again.parquet')\"`",
                    path.display()
                ),
            ),
            Fault::Io(cause) => DataError::Io {
                path: path.to_owned(),
                action: "read it",
                cause,
            },
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(cause: std::io::Error) -> Fault {
        match cause.kind() {
            std::io::ErrorKind::UnexpectedEof => Fault::damaged("one that is cut short"),
            _ => Fault::Io(cause),
        }
    }
}

/// A Parquet file whose footer was read.
#[derive(Debug)]
pub(crate) struct ParquetFile {
    pub(crate) path: PathBuf,
    pub(crate) footer: Footer,
    file: File,
    num_bytes: u64,
    limits: Limits,
}

impl ParquetFile {
    pub(crate) fn open(path: &Path, limits: Limits) -> Result<ParquetFile, DataError> {
        let opened = || -> Result<ParquetFile, Fault> {
            let (mut file, metadata) = holdall_files::open_regular(path)?;
            let num_bytes = metadata.len();
            let footer = Footer::read(&mut file, num_bytes, limits)?;
            Ok(ParquetFile {
                path: path.to_owned(),
                footer,
                file,
                num_bytes,
                limits,
            })
        };
        opened().map_err(|fault| fault.of(path))
    }

    /// Bytes of the file.
    pub(crate) fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// The cells of a column in a row group.
    pub(crate) fn column(&self, group: usize, leaf: usize) -> Result<ColumnReader, DataError> {
        let opened = || -> Result<ColumnReader, Fault> {
            let file = self.file.try_clone()?;
            let missing = || Fault::damaged("a row group without one of its columns");
            let of_group = self.footer.row_groups.get(group).ok_or_else(missing)?;
            let chunk = of_group.chunks.get(leaf).ok_or_else(missing)?;
            let leaf = self.footer.leaves.get(leaf).ok_or_else(missing)?;
            ColumnReader::new(file, self.num_bytes, leaf, chunk, self.limits)
        };
        opened().map_err(|fault| fault.of(&self.path))
    }
}

#[cfg(test)]
mod tests;
