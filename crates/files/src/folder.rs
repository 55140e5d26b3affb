//! Folders that are written atomically: complete or absent.
//!
//! ```text
//! NAME.partial/ with every file on disk -> exchanged with NAME -> the old folder is removed
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use std::thread::sleep;

use crate::write::{is_held, partial, remove_file, rename, retry, sync_folder};

/// Makes a folder and its parents durably: they survive a power loss.
pub fn create_folders(path: &Path) -> io::Result<()> {
    let mut missing: Vec<&Path> = Vec::new();
    for folder in path.ancestors() {
        if folder.as_os_str().is_empty() || folder.is_dir() {
            break;
        }
        missing.push(folder);
    }
    fs::create_dir_all(path)?;
    for folder in missing.into_iter().rev() {
        sync_folder(folder.parent().unwrap_or(Path::new("")))?;
    }
    Ok(())
}

/// Writes a folder atomically: readers see the old one or the new one, after a power loss too. `fill` writes into the path it gets;
/// its files must be on disk when it returns, as [`write_whole`](crate::write_whole) leaves them. `failed` converts the system's errors.
pub fn write_whole_folder<T, E>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<T, E> {
    let partial = partial(path);
    let filled = || {
        remove_folder(&partial)
            .and_then(|()| fs::create_dir(&partial))
            .map_err(&failed)?;
        let filled = fill(&partial)?;
        sync_folder(&partial).map_err(&failed)?;
        put_in_place(&partial, path).map_err(&failed)?;
        Ok(filled)
    };
    let placed = filled();
    // An incomplete folder, or the old one after the exchange. If removing fails, the next write removes it.
    let _ = remove_folder(&partial);
    if placed.is_ok() {
        let _ = remove_folder(&replaced(path));
    }
    placed
}

/// Puts the old folder back where a two-step replacement (no exchange in one call) was interrupted after its first step.
pub fn repair_folder(path: &Path) -> io::Result<()> {
    let replaced = replaced(path);
    if !path.exists() && replaced.is_dir() {
        rename(&replaced, path)?;
        return sync_folder(path.parent().unwrap_or(Path::new("")));
    }
    Ok(())
}

/// Removes a folder and its contents; an absent folder is no error.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    retry(|| fs::remove_dir_all(path), is_held, sleep).or_else(|cause| match cause.kind() {
        ErrorKind::NotFound => Ok(()),
        ErrorKind::NotADirectory => remove_file(path),
        _ => Err(cause),
    })
}

/// Copies a file into a folder that is being written, and syncs it to disk.
pub fn copy_whole(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    // Opened for writing: Windows syncs only writable files.
    File::options().write(true).open(to)?.sync_all()
}

/// Name of the old folder while the new one takes its place, where one call cannot exchange them.
fn replaced(path: &Path) -> PathBuf {
    path.with_added_extension("replaced")
}

fn put_in_place(partial: &Path, path: &Path) -> io::Result<()> {
    if !path.exists() {
        rename(partial, path)?;
    } else if !exchange(partial, path)? {
        let replaced = replaced(path);
        remove_folder(&replaced)?;
        rename(path, &replaced)?;
        if let Err(cause) = rename(partial, path) {
            let _ = rename(&replaced, path);
            return Err(cause);
        }
    }
    sync_folder(path.parent().unwrap_or(Path::new("")))
}

/// Exchanges two names in one call; `false` where the operating system or the file system does not support it.
#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_one: &Path, _other: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_with(text: &'static str) -> impl FnOnce(&Path) -> io::Result<()> {
        move |folder| crate::write_whole(&folder.join("a"), text.as_bytes())
    }

    #[test]
    fn a_folder_is_replaced_whole_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("runs/one/model");
        create_folders(path.parent().unwrap()).unwrap();
        let write = |text| write_whole_folder(&path, fill_with(text), |cause| cause);
        write("old").unwrap();
        // Leftovers of a killed process are not reused.
        fs::create_dir(partial(&path)).unwrap();
        fs::write(partial(&path).join("b"), "left").unwrap();
        let fill = |folder: &Path| -> io::Result<()> {
            fill_with("ne")(folder)?;
            Err(io::Error::other("full"))
        };
        let failed = write_whole_folder(&path, fill, |cause| cause);
        assert_eq!(failed.unwrap_err().to_string(), "full");
        assert_eq!(fs::read(path.join("a")).unwrap(), b"old");
        write("new").unwrap();
        assert_eq!(fs::read(path.join("a")).unwrap(), b"new");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_replacement_that_was_interrupted_is_undone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("model");
        fs::create_dir(replaced(&path)).unwrap();
        repair_folder(&path).unwrap();
        assert!(path.is_dir() && !replaced(&path).exists());
        repair_folder(&path).unwrap();
        assert!(path.is_dir());
    }
}
