use std::time::{Duration, SystemTime};

use super::*;
use crate::samples::SamplesBuilder;

struct Home {
    folder: tempfile::TempDir,
    train: Samples,
    held: Samples,
}

/// Three training pictures, one of them missing, and one validation picture.
fn home() -> Home {
    let folder = tempfile::tempdir().unwrap();
    let list = |names: &[&str]| {
        let mut samples = SamplesBuilder::new(folder.path().to_owned());
        for (name, row) in names.iter().zip(2..) {
            samples.push(name, Some("a car"), row);
        }
        samples.finish(Vec::new())
    };
    let (train, held) = (list(&["0.jpg", "1.jpg", "missing.jpg"]), list(&["9.jpg"]));
    let home = Home {
        train,
        held,
        folder,
    };
    for name in ["0.jpg", "1.jpg", "9.jpg"] {
        home.write(name, name.as_bytes(), 0);
    }
    home
}

impl Home {
    /// Writes a file with a fixed modification time, so that no test depends on the clock.
    fn write(&self, name: &str, bytes: &[u8], seconds: u64) {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds);
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_modified(time))
            .unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("pictures.bin")
    }

    fn record(&self, check: PictureCheck) {
        record(&self.file(), &[&self.train, &self.held], check).unwrap();
    }

    fn compare(&self, check: PictureCheck) -> Compared {
        compare(&self.file(), &[&self.train, &self.held], check, |_, _| {
            false
        })
        .unwrap()
    }

    /// Replaced and touched pictures, as messages name them.
    fn changes(&self, check: PictureCheck) -> (Vec<String>, Vec<String>) {
        match self.compare(check) {
            Compared::With {
                replaced, touched, ..
            } => {
                assert_eq!(
                    (replaced.count, touched.count),
                    (replaced.first.len(), touched.first.len())
                );
                (replaced.first, touched.first)
            }
            other => panic!("{other:?}"),
        }
    }
}

const BOTH: [PictureCheck; 2] = [PictureCheck::Time, PictureCheck::Hash];

#[test]
fn nothing_changed() {
    let home = home();
    assert_eq!(home.compare(PictureCheck::Time), Compared::NoRecord);
    for recorded in BOTH {
        home.record(recorded);
        for check in BOTH {
            assert_eq!(home.changes(check), (vec![], vec![]));
        }
    }
}

#[test]
fn another_size_is_another_picture_however_it_is_checked() {
    for recorded in BOTH {
        for check in BOTH {
            let home = home();
            home.record(recorded);
            home.write("1.jpg", b"another", 0);
            home.write("missing.jpg", b"there now", 0);
            fs::remove_file(home.folder.path().join("9.jpg")).unwrap();
            let expected = [
                "1.jpg (7 bytes, was 5)",
                "missing.jpg (was missing)",
                "9.jpg (gone)",
            ];
            assert_eq!(home.changes(check).0, expected);
        }
    }
}

#[test]
fn what_is_left_out_anyway_does_not_matter() {
    let home = home();
    home.record(PictureCheck::Time);
    for name in ["1.jpg", "missing.jpg", "9.jpg"] {
        home.write(name, b"another", 0);
    }
    let (file, parts) = (home.file(), [&home.train, &home.held]);
    let is_left_out = |part, sample| (part, sample) == (0, 2) || (part, sample) == (1, 0);
    let compared = compare(&file, &parts, PictureCheck::Time, is_left_out).unwrap();
    let Compared::With { replaced, .. } = compared else {
        panic!("{compared:?}");
    };
    assert_eq!(replaced.first, ["1.jpg (7 bytes, was 5)"]);
}

#[test]
fn a_touched_picture_is_the_same_where_its_contents_are_known() {
    for check in BOTH {
        let home = home();
        home.record(PictureCheck::Hash);
        home.write("1.jpg", b"1.jpg", 5);
        assert_eq!(home.changes(check), (vec![], vec![]));
        home.write("1.jpg", b"2.jpg", 5);
        let replaced = vec!["1.jpg (other contents)".to_owned()];
        assert_eq!(home.changes(check), (replaced, vec![]));
    }
    // A record of sizes and times only cannot tell.
    for check in BOTH {
        let home = home();
        home.record(PictureCheck::Time);
        home.write("1.jpg", b"2.jpg", 5);
        assert_eq!(home.changes(check), (vec![], vec!["1.jpg".to_owned()]));
    }
}

#[test]
fn hashes_see_what_size_and_time_do_not() {
    let home = home();
    home.record(PictureCheck::Hash);
    home.write("1.jpg", b"2.jpg", 0);
    assert_eq!(home.changes(PictureCheck::Time), (vec![], vec![]));
    let replaced = vec!["1.jpg (other contents)".to_owned()];
    assert_eq!(home.changes(PictureCheck::Hash), (replaced, vec![]));
}

#[test]
fn a_record_that_is_damaged_or_of_other_pictures_tells_nothing() {
    let home = home();
    home.record(PictureCheck::Time);
    let whole = fs::read(home.file()).unwrap();
    assert_eq!(whole.len(), 24 + 4 * 16 + 8);
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(home.file(), flipped).unwrap();
        assert_eq!(home.compare(PictureCheck::Time), Compared::Damaged, "{at}");
    }
    for length in [0, 5, 24, 40, whole.len() - 1] {
        fs::write(home.file(), &whole[..length]).unwrap();
        assert_eq!(home.compare(PictureCheck::Time), Compared::Damaged);
    }
    fs::write(home.file(), &whole).unwrap();
    let compared = compare(&home.file(), &[&home.train], PictureCheck::Time, |_, _| {
        false
    })
    .unwrap();
    assert_eq!(compared, Compared::Damaged);
}

#[test]
fn the_first_few_are_named() {
    let mut changed = Changed::default();
    for at in 0..1234 {
        changed.add(|| format!("{at}.jpg"));
    }
    assert_eq!(
        changed.named(),
        "0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg and 1,229 more"
    );
}

/// A mask that is replaced under its name is noticed like a replaced picture.
#[test]
fn masks_belong_to_their_pictures() {
    let home = home();
    home.write("0_mask.png", b"mask", 0);
    let mut samples = SamplesBuilder::new(home.folder.path().to_owned());
    let companions = crate::samples::Companions {
        mask: Some("0_mask.png"),
        ..Default::default()
    };
    samples.push_with("0.jpg", &companions, 1);
    let samples = samples.finish(Vec::new());
    for check in BOTH {
        home.write("0_mask.png", b"mask", 0);
        record(&home.file(), &[&samples], check).unwrap();
        let replaced = || match compare(&home.file(), &[&samples], check, |_, _| false).unwrap() {
            Compared::With {
                replaced, touched, ..
            } => (replaced.count, touched.count),
            other => panic!("{other:?}"),
        };
        assert_eq!(replaced(), (0, 0));
        home.write("0_mask.png", b"sham", 7);
        let expected = if check == PictureCheck::Hash {
            (1, 0)
        } else {
            (0, 1)
        };
        assert_eq!(replaced(), expected);
        home.write("0_mask.png", b"another", 0);
        assert_eq!(replaced(), (1, 0));
    }
}
