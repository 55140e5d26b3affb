//! Opens regular files only: reading a FIFO would hang the process, reading a device would never end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a regular file for reading. A folder, FIFO, socket or device is an immediate error that names its kind.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        // Without NONBLOCK, opening a FIFO waits for a writer; without NOCTTY, a terminal may become this process's. Regular files ignore
        // both.
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    }
    let file = match options.open(path) {
        // Windows opens no folder.
        Err(_) if path.is_dir() => return Err(not_regular("a folder")),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok((file, metadata))
    } else {
        Err(not_regular(kind(&metadata)))
    }
}

fn not_regular(found: &str) -> io::Error {
    let text = format!("expected a regular file, found {found}");
    io::Error::new(ErrorKind::InvalidInput, text)
}

/// Reads a regular file of at most `most_bytes`. A file that is larger, or grows past that while it is read, is an error.
pub fn read_regular(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_regular(path)?;
    let too_large = || {
        let text = format!("expected at most {most_bytes} bytes, found more");
        io::Error::new(ErrorKind::FileTooLarge, text)
    };
    if metadata.len() > most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "a FIFO";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    "something else"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("four");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_regular(&path, 4).unwrap(), b"four");
        let error = read_regular(&path, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        let missing = read_regular(&folder.path().join("five"), 9).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        let link = folder.path().join("zero.jpg");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for (path, found) in [
            (fifo.as_path(), "a FIFO"),
            (link.as_path(), "a device"),
            (folder.path(), "a folder"),
        ] {
            let error = open_regular(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().ends_with(found), "{error}");
        }
    }
}
