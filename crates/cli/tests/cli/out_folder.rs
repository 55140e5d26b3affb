//! Where a run goes: a folder that is free, and a place that can be written.

use std::fs;

use crate::training::Home;
use crate::typed::holdall_words;

const ONE_EPOCH: &str = "--effective-batch 8 --epochs 1";

#[test]
fn folders_that_are_taken() {
    let home = Home::with_cars(8);
    let notes = home.path("run/notes.txt");
    fs::create_dir(home.path("run")).unwrap();
    fs::write(&notes, "mine").unwrap();
    let expected = "expected an empty folder for a new run";
    home.train(ONE_EPOCH)
        .refused_with(&[expected, "found `notes.txt`", "another --out"]);
    assert_eq!(fs::read_to_string(&notes).unwrap(), "mine");
    let answer = holdall_words(home.words("run/notes.txt", ONE_EPOCH));
    answer.refused_with(&["notes.txt", expected, "found a file"]);
    let run = home.trained("other", ONE_EPOCH);
    let summary = fs::read(run.file("summary.json")).unwrap();
    let answer = holdall_words(home.words("other", ONE_EPOCH));
    answer.refused_with(&["other", expected, "found another run", "--resume"]);
    assert_eq!(fs::read(run.file("summary.json")).unwrap(), summary);
    // An empty folder is free.
    fs::create_dir(home.path("empty")).unwrap();
    home.trained("empty", ONE_EPOCH);
}

/// As root, permissions do not stop anyone: what the system itself refuses does.
#[cfg(target_os = "linux")]
#[test]
fn a_place_that_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    let home = Home::with_cars(8);
    let closed = home.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let closed = match fs::write(closed.join("probe"), "") {
        Ok(()) => Path::new("/sys").to_owned(),
        Err(_) => closed,
    };
    let out = closed.join("run");
    let mut words = home.words("run", ONE_EPOCH);
    *words
        .iter_mut()
        .find(|word| **word == *home.path("run"))
        .unwrap() = out.clone().into();
    let path = out.to_str().unwrap();
    holdall_words(words).ends_with(1, &[path, "cannot be created", "another --out"]);
    assert!(!out.exists());
}
