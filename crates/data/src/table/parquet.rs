//! Reader of Parquet tables that hold pictures: cells of columns, row by row, with one page of each column in memory.
//!
//! ```text
//! "PAR1" | row group 0: chunk of column 0: [dictionary page] data page, data page, ... | chunk of column 1 ... | ... | footer | length | "PAR1"
//! ```
//!
//! A page is levels (which cells are null, where lists begin) and values, encoded, then compressed. The sizes that a page claims are
//! checked before memory is reserved: hostile bytes take at most [`Limits`]. docs/decisions/0031-parquet-by-hand.md says why no library
//! does this.

mod codec;
mod column;
mod encodings;
mod footer;
mod hybrid;
mod thrift;

use std::fs::File;
use std::path::{Path, PathBuf};

use holdall_files::OverLimit;

use crate::error::DataError;
pub(crate) use column::{ColumnReader, Value};
pub(crate) use footer::{Footer, Leaf, Physical};

/// Memory limits for reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of a page, compressed and decompressed alike.
    pub(crate) most_page_bytes: u64,
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

/// A reading error before the file's name is known.
#[derive(Debug)]
pub(crate) enum ParquetFault {
    /// Bytes that no Parquet writer produces.
    Damaged(String),
    /// A feature of the format that is not supported, by its name.
    Unsupported(&'static str),
    /// A page that takes more memory than the budget leaves.
    OverBudget(OverLimit),
    Io(std::io::Error),
}

impl ParquetFault {
    pub(crate) fn damaged(what: impl Into<String>) -> ParquetFault {
        ParquetFault::Damaged(what.into())
    }

    /// The error, with the file's path.
    pub(crate) fn of(self, path: &Path) -> DataError {
        match self {
            ParquetFault::Damaged(what) => DataError::invalid(
                path.display(),
                "a whole Parquet file",
                what,
                "copy or download it again",
            ),
            ParquetFault::Unsupported(what) => DataError::invalid(
                path.display(),
                "a Parquet file of a kind that is read",
                what,
                format_args!(
                    "write it again: `python -c \"import pyarrow.parquet as q; q.write_table(q.read_table('{0}'), 'again.parquet')\"`",
                    path.display()
                ),
            ),
            ParquetFault::OverBudget(over) => DataError::OverBudget {
                place: path.display().to_string(),
                what: "a page of one column".to_owned(),
                over,
                hint: "write it again with smaller pages (data_page_size of pyarrow)",
                is_all: true,
            },
            ParquetFault::Io(cause) => DataError::Io {
                path: path.to_owned(),
                action: "read it",
                cause,
            },
        }
    }
}

impl From<std::io::Error> for ParquetFault {
    fn from(cause: std::io::Error) -> ParquetFault {
        match cause.kind() {
            std::io::ErrorKind::UnexpectedEof => ParquetFault::damaged("one that is cut short"),
            _ => ParquetFault::Io(cause),
        }
    }
}

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
        let opened = || -> Result<ParquetFile, ParquetFault> {
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

    pub(crate) fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// Reader of a column's cells in a row group.
    pub(crate) fn column(&self, group: usize, leaf: usize) -> Result<ColumnReader, DataError> {
        let opened = || -> Result<ColumnReader, ParquetFault> {
            let file = self.file.try_clone()?;
            let missing = || ParquetFault::damaged("a row group without one of its columns");
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
