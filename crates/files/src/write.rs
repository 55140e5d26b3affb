//! Writing beside, then renaming.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a file is written before it is renamed. A fixed name: what a killed process left is overwritten, not piled up.
pub fn partial(path: &Path) -> PathBuf {
    path.with_added_extension("partial")
}

/// Writes a file: readers see the old one or the new one, after a power loss too.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_whole_by(path, |file| file.write_all(contents))
}

/// The same for what is too long to be held: `fill` writes it, piece by piece.
pub fn write_whole_by(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write_whole_file(path, |file| {
        let mut file = BufWriter::new(file);
        fill(&mut file)?;
        file.flush()
    })
}

/// The same for whoever has to go back to the beginning of the file: `fill` gets the file itself.
pub fn write_whole_file(
    path: &Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    write_as(&partial(path), path, fill)
}

/// The same for a file that several processes may write at once, such as one of a cache: the last one wins, and each is whole.
pub fn write_shared(path: &Path, contents: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let own = path.with_added_extension(format!("{}-{count}.partial", std::process::id()));
    write_as(&own, path, |file| file.write_all(contents))
}

fn write_as(
    partial: &Path,
    path: &Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let written = File::create(partial).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(partial, path));
    if renamed.is_err() {
        // What is there is half a file, and on a full disk its bytes are needed.
        let _ = fs::remove_file(partial);
        return renamed;
    }
    sync_folder(path.parent().unwrap_or(Path::new("")))
}

/// Puts a folder's names on disk: a rename is only there after a power loss once its folder is.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some network file systems cannot; they keep names in order by themselves, or nothing can be done.
        Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_whole(&path, b"old").unwrap();
        let failed = write_whole_by(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::other("full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
