//! Output files never replace existing files unless the user asks for it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether an output may replace files that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Default: an input named as output by mistake, or somebody's notes, stays as it is.
    #[default]
    Refuse,
    /// `--overwrite`: regular files only.
    Replace,
}

/// Error: an output path that is occupied.
#[derive(Debug, PartialEq, Eq)]
pub struct Occupied {
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug, PartialEq, Eq)]
enum Reason {
    File,
    Folder,
    NotRegular,
    NotEmpty,
}

impl Existing {
    /// Checks an output file before any work is done for it.
    pub fn check_file(self, path: &Path) -> Result<(), Occupied> {
        let occupied = |reason| {
            Err(Occupied {
                path: path.to_owned(),
                reason,
            })
        };
        match fs::metadata(path).or_else(|_| fs::symlink_metadata(path)) {
            Err(_) => Ok(()),
            Ok(found) if found.is_dir() => occupied(Reason::Folder),
            // Writing to a device or a pipe would replace it by a regular file of its name.
            Ok(found) if !found.is_file() => occupied(Reason::NotRegular),
            Ok(_) if self == Existing::Refuse => occupied(Reason::File),
            Ok(_) => Ok(()),
        }
    }

    /// Checks an output folder whose files get names that the user did not choose: it must be empty or absent.
    pub fn check_folder(self, path: &Path) -> Result<(), Occupied> {
        let reason = match fs::read_dir(path) {
            Ok(mut entries) => match (self, entries.next()) {
                (Existing::Refuse, Some(_)) => Reason::NotEmpty,
                _ => return Ok(()),
            },
            Err(_) if path.is_file() => Reason::File,
            Err(_) => return Ok(()),
        };
        Err(Occupied {
            path: path.to_owned(),
            reason,
        })
    }
}

impl fmt::Display for Occupied {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.reason {
            Reason::File => write!(
                out,
                "{path}: expected a new file, found one that exists\nhint: choose another name; --overwrite replaces the file"
            ),
            Reason::Folder => write!(
                out,
                "{path}: expected a file to write, found a folder\nhint: name a file in it"
            ),
            Reason::NotRegular => write!(
                out,
                "{path}: expected a regular file or none, found a device or a pipe\nhint: choose another name"
            ),
            Reason::NotEmpty => write!(
                out,
                "{path}: expected an empty folder or none, found files in it\n\
                 hint: choose another folder; --overwrite replaces files of the same names and leaves the others"
            ),
        }
    }
}

impl std::error::Error for Occupied {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_replaced_only_by_wish() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("labels.csv");
        assert_eq!(Existing::Refuse.check_file(&file), Ok(()));
        fs::write(&file, "mine").unwrap();
        let refused = Existing::Refuse.check_file(&file).unwrap_err().to_string();
        assert!(
            refused.contains("labels.csv: expected a new file") && refused.contains("--overwrite")
        );
        assert_eq!(Existing::Replace.check_file(&file), Ok(()));
        // Folders and special files are never replaced.
        assert!(Existing::Replace.check_file(home.path()).is_err());
        assert!(
            !cfg!(unix)
                || Existing::Replace
                    .check_file(Path::new("/dev/null"))
                    .is_err()
        );
    }

    #[test]
    fn a_folder_is_empty_or_meant() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Existing::Refuse.check_folder(home.path()), Ok(()));
        assert_eq!(
            Existing::Refuse.check_folder(&home.path().join("new")),
            Ok(())
        );
        let file = home.path().join("a");
        fs::write(&file, "").unwrap();
        assert!(Existing::Refuse.check_folder(home.path()).is_err());
        assert_eq!(Existing::Replace.check_folder(home.path()), Ok(()));
        assert!(Existing::Replace.check_folder(&file).is_err());
    }
}
