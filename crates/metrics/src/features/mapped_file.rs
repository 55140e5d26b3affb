//! Memory-mapped files: bytes are loaded from disk on access, and their pages may be dropped at any time.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::InputError;

/// A mapped file, not empty.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<MappedFile, InputError> {
        let failed = |action| {
            move |cause| InputError::Io {
                path: path.into(),
                action,
                cause,
            }
        };
        let file = File::open(path).map_err(failed("open it"))?;
        if file.metadata().map_err(failed("read its size"))?.len() == 0 {
            return Err(InputError::EmptyFile { path: path.into() });
        }
        // SAFETY: the map is read-only and private to this struct, and its bytes are only ever read as integers and floats,
        // for which every bit pattern is valid. The remaining risk is that another process truncates the file while it is mapped,
        // which kills this process with SIGBUS; docs/retrieval.md says so.
        let map = unsafe { Mmap::map(&file) }.map_err(failed("map it into memory"))?;
        Ok(MappedFile { map })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Drops pages from resident memory. Pages that have been read count as this process's memory until then; they are loaded
    /// from the file again on the next access, also while another thread reads them.
    pub(crate) fn give_back(&self) {
        #[cfg(unix)]
        // SAFETY: the map is read-only and backed by a file, so dropping its pages loses nothing.
        let _ = unsafe {
            self.map
                .unchecked_advise(memmap2::UncheckedAdvice::DontNeed)
        };
    }
}
