//! Atomic file writes: a sibling file, then a rename.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// The sibling file that is written before the rename. Its name is fixed, so the leftover of a killed process is overwritten.
pub fn partial(path: &Path) -> PathBuf {
    path.with_added_extension("partial")
}

/// Writes a file atomically: readers see the old one or the new one, after a power loss too.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_whole_by(path, |file| file.write_all(contents))
}

/// Like [`write_whole`], for contents too long for memory: `fill` writes them piece by piece.
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

/// Like [`write_whole`], for writers that seek: `fill` gets the file itself.
pub fn write_whole_file(
    path: &Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    write_as(&partial(path), path, fill)
}

/// Like [`write_whole`], for a file that several processes may write at once, such as a cache entry: the last writer wins, with a complete
/// file.
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
    let renamed = written.and_then(|()| rename(partial, path));
    if renamed.is_err() {
        // The partial file is useless, and on a full disk its bytes are needed.
        let _ = fs::remove_file(partial);
        return renamed;
    }
    sync_folder(path.parent().unwrap_or(Path::new("")))
}

/// Renames a file or a folder; an existing file is replaced. On Windows a scanner, an indexer or a reader may have it open for a moment:
/// up to ten seconds are waited for them.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    retry(|| fs::rename(from, to), is_held, sleep).map_err(|cause| {
        if !is_held(&cause) {
            return cause;
        }
        let [from, to] = [from.display(), to.display()];
        let held = format!("{cause}; another program may have {from} or {to} open");
        io::Error::new(cause.kind(), held)
    })
}

/// Removes a file, with the patience of [`rename`].
pub fn remove_file(path: &Path) -> io::Result<()> {
    retry(|| fs::remove_file(path), is_held, sleep)
}

/// Whether another program has the file open in a way that forbids to rename and remove it.
pub(crate) fn is_held(cause: &io::Error) -> bool {
    const ACCESS_DENIED: i32 = 5;
    const SHARING_VIOLATION: i32 = 32;
    const LOCK_VIOLATION: i32 = 33;
    let held = [ACCESS_DENIED, SHARING_VIOLATION, LOCK_VIOLATION];
    cfg!(windows)
        && cause
            .raw_os_error()
            .is_some_and(|code| held.contains(&code))
}

/// Tries until it succeeds or fails for another reason, ten times at most; the waits double from 10 ms and make ten seconds together.
pub(crate) fn retry(
    mut attempt: impl FnMut() -> io::Result<()>,
    is_held: impl Fn(&io::Error) -> bool,
    mut wait: impl FnMut(Duration),
) -> io::Result<()> {
    for number in 0..10 {
        match attempt() {
            Err(cause) if is_held(&cause) => wait(Duration::from_millis(10 << number)),
            done => return done,
        }
    }
    attempt()
}

/// Syncs a folder: a rename survives a power loss only once its folder is synced.
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
        // Some network file systems do not support this; nothing better can be done there.
        Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_file_is_waited_for_and_other_errors_are_not() {
        let held = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let is_held = |cause: &io::Error| cause.kind() == io::ErrorKind::PermissionDenied;
        let (mut attempts, mut waited) = (0, Duration::ZERO);
        let released = |attempts: &mut u32| {
            *attempts += 1;
            if *attempts < 4 { held() } else { Ok(()) }
        };
        let released = retry(|| released(&mut attempts), is_held, |time| waited += time);
        assert!(released.is_ok());
        assert_eq!((attempts, waited), (4, Duration::from_millis(70)));

        let mut waited = Duration::ZERO;
        let never = retry(held, is_held, |time| waited += time);
        assert!(is_held(&never.unwrap_err()));
        assert_eq!(waited.as_secs(), 10);

        let missing = || Err(io::Error::from(io::ErrorKind::NotFound));
        assert!(retry(missing, is_held, |_| panic!("waited")).is_err());
    }

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
