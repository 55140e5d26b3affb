//! Finds the clips among files and folders that the user named.

use std::path::{Path, PathBuf};

use holdall_data::media::{is_clip_name, is_picture};
use holdall_train::TrainError;

/// Named clips, and clips in named folders, sorted. A folder of pictures is a clip.
pub(super) fn clips_under(named: &[PathBuf]) -> Result<Vec<PathBuf>, TrainError> {
    let mut found = Vec::new();
    for path in named {
        if path.is_dir() {
            clips_of(path, &mut found)?
        } else {
            found.push(path.clone())
        }
    }
    if found.is_empty() {
        return Err(TrainError::Config(
            "found no clips in what was named\nhint: video files, or folders of frames".to_owned(),
        ));
    }
    Ok(found)
}

fn clips_of(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), TrainError> {
    let unreadable = |cause: std::io::Error| {
        TrainError::Config(format!(
            "{}: {cause}\nhint: check the path",
            folder.display()
        ))
    };
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            folders.push(path);
        } else if is_clip_name(&name) {
            files.push(path);
        } else if is_picture(&name) {
            found.push(folder.to_owned());
            return Ok(());
        }
    }
    files.sort();
    found.extend(files);
    folders.sort();
    folders
        .iter()
        .try_for_each(|folder| clips_of(folder, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_pictures_is_a_clip_and_others_have_clips() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("within the folder")).expect("a folder");
            std::fs::write(path, "").expect("a file");
        };
        for name in [
            "b/0.jpg",
            "b/1.jpg",
            "a.avi",
            "notes.txt",
            "c/d.gif",
            "c/e/0.png",
        ] {
            file(name);
        }
        let found = clips_under(&[folder.path().to_owned()]).expect("clips");
        let names = found.iter().map(|path| path.strip_prefix(folder.path()));
        let names: Vec<&Path> = names.collect::<Result<_, _>>().expect("all within");
        assert_eq!(names, ["a.avi", "b", "c/d.gif", "c/e"].map(Path::new));
        let named = [folder.path().join("notes.txt")];
        // A named file counts as a clip, whatever its extension.
        assert_eq!(clips_under(&named).expect("one"), named);
        let empty = tempfile::tempdir().expect("a folder");
        let error = clips_under(&[empty.path().to_owned()]).expect_err("nothing");
        assert!(error.to_string().contains("found no clips"), "{error}");
    }
}
