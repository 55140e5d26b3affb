//! A folder of frames: one picture per frame, in natural order. Frames are read like any picture: same decoder, same scaled decoding, same
//! limits.

use std::fs;
use std::path::{Path, PathBuf};

use super::file::FrameRows;
use crate::decode::picture::{self, Framing, PictureCost, Scratch};
use crate::error::DataError;
use crate::media::{is_picture, stem};
use crate::natural_order;

#[derive(Debug)]
pub(super) struct FrameFolder {
    root: PathBuf,
    names: Vec<String>,
}

impl FrameFolder {
    /// Lists a folder: an error without frames, or with two of the same name. Hidden files and files of other formats are ignored.
    pub(super) fn open(root: &Path) -> Result<FrameFolder, DataError> {
        let failed = |cause| DataError::Io {
            path: root.to_owned(),
            action: "list the folder",
            cause,
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(root).map_err(failed)? {
            // No stat of each file: that takes longer than decoding a small frame.
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().filter(|name| !name.starts_with('.'));
            names.extend(name.filter(|name| is_picture(name)).map(str::to_owned));
        }
        names.sort_unstable_by(|a, b| natural_order::compare(a, b));
        if names.is_empty() {
            return Err(DataError::no_pictures(
                root,
                "frames of a clip",
                "; remove its row if it is no clip",
            ));
        }
        // Natural order puts files of the same stem next to each other.
        for pair in names.windows(2) {
            if natural_order::is_same(stem(&pair[0]), stem(&pair[1])) {
                return Err(DataError::invalid(
                    root.display(),
                    "each frame once",
                    format_args!("{} and {}", pair[0], pair[1]),
                    "frames are ordered by the numbers in their names; remove one of the two",
                ));
            }
        }
        Ok(FrameFolder {
            root: root.to_owned(),
            names,
        })
    }

    pub(super) fn num_frames(&self) -> usize {
        self.names.len()
    }

    pub(super) fn frame_path(&self, frame: usize) -> PathBuf {
        self.root.join(&self.names[frame])
    }

    /// Largest cost of the first, middle and last frame: frames of a clip are alike, and each is held to the budget when it is read.
    pub(super) fn cost(&self, framing: Framing) -> Result<PictureCost, DataError> {
        let last = self.names.len() - 1;
        let mut largest = picture::cost(&self.frame_path(0), framing)?;
        for frame in [last / 2, last] {
            let cost = picture::cost(&self.frame_path(frame), framing)?;
            if cost.bytes > largest.bytes {
                largest = cost;
            }
        }
        Ok(largest)
    }

    pub(super) fn read(
        &self,
        rows: &mut FrameRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        while let Some(frame) = rows.wanted() {
            let path = self.frame_path(frame);
            rows.write_file(&path, scratch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(root.path().join(file), b"").unwrap();
        }
        root
    }

    #[test]
    fn frames_are_counted_as_people_count() {
        let root = folder_of(&["frame_10.jpg", "frame_2.jpg", "notes.txt", "._frame_3.jpg"]);
        let folder = FrameFolder::open(root.path()).unwrap();
        assert_eq!(folder.names, ["frame_2.jpg", "frame_10.jpg"]);
        assert_eq!(folder.frame_path(1), root.path().join("frame_10.jpg"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |root: &Path| FrameFolder::open(root).unwrap_err().to_string();
        let root = folder_of(&["notes.txt"]);
        assert!(error(root.path()).contains("expected frames of a clip"));
        let root = folder_of(&["frame_2.jpg", "frame_02.jpg", "frame_20.jpg"]);
        assert!(error(root.path()).contains("found frame_02.jpg and frame_2.jpg"));
    }
}
