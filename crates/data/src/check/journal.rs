//! Journal of finished looks at pictures, in a hidden file beside the CSV, so that a check of a million pictures can be stopped and
//! resumed.
//!
//! One line per picture: a hash of its path, its size and modification time, and the result. A picture that changed since is decoded again.
//! Lines are appended whole, and a torn last line is cut off. The file is deleted when the check is complete.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::picture_state::{Look, PictureState};
use crate::decode::Fingerprint;
use crate::stored_file;

/// Results of another version are discarded: it may judge pictures differently.
const HEADER: &str = concat!("holdall ", env!("CARGO_PKG_VERSION"), " check 2\n");
const LETTERS: [(PictureState, &str); 8] = [
    (PictureState::Good, "g"),
    (PictureState::ZeroSize, "z"),
    (PictureState::NotAnImage, "n"),
    (PictureState::CutShort, "c"),
    (PictureState::Broken, "b"),
    (PictureState::TooManyPixels, "p"),
    (PictureState::NotAClip, "v"),
    (PictureState::OtherFormat, "f"),
];

/// Size and modification time of a file when it was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    num_bytes: u64,
    modified_ns: u64,
}

impl FileStamp {
    pub(super) fn of(path: &Path) -> Option<FileStamp> {
        let stored = stored_file::stamp(path)?;
        let modified = stored.modified?.duration_since(UNIX_EPOCH).ok()?;
        Some(FileStamp {
            num_bytes: stored.num_bytes,
            modified_ns: u64::try_from(modified.as_nanos()).ok()?,
        })
    }
}

/// Results of earlier runs, and the file for those of this run.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: Option<File>,
    known: HashMap<u64, (FileStamp, Look)>,
}

impl Journal {
    /// Opens the journal of a CSV; where no file can be written, the second value says why.
    pub(super) fn open(csv: &Path) -> (Journal, Option<String>) {
        let path = stored_file::hidden_beside(csv, ".check");
        let (file, known, note) = match open_file(&path) {
            Ok((file, known)) => (Some(file), known, None),
            Err(cause) => {
                let note = format!(
                    "{}: cannot be written ({cause}), so this check cannot go on where it was stopped",
                    path.display()
                );
                (None, HashMap::new(), Some(note))
            }
        };
        (Journal { path, file, known }, note)
    }

    /// Number of results from earlier runs.
    pub(super) fn num_known(&self) -> usize {
        self.known.len()
    }

    /// Whether results of this run are saved.
    pub(super) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Saved result of a picture that has not changed since.
    pub(super) fn look(&self, path_hash: u64, stamp: FileStamp) -> Option<Look> {
        let (then, look) = self.known.get(&path_hash)?;
        (*then == stamp).then_some(*look)
    }

    /// Appends results. When the disk is full the journal stops and the check continues.
    pub(super) fn append(&mut self, looks: impl Iterator<Item = (u64, FileStamp, Look)>) {
        let Some(file) = &mut self.file else {
            return;
        };
        let lines: String = looks.filter_map(line).collect();
        if file.write_all(lines.as_bytes()).is_err() {
            self.file = None;
        }
    }

    /// Deletes the file after a complete check.
    pub(super) fn remove(self) {
        drop(self.file);
        let _ = fs::remove_file(&self.path);
    }
}

type Known = HashMap<u64, (FileStamp, Look)>;

fn open_file(path: &Path) -> io::Result<(File, Known)> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).append(true).create(true).open(path)?;
    let mut known = HashMap::new();
    let mut whole_bytes = 0;
    let mut reader = BufReader::new(&file);
    let mut text = Vec::new();
    while reader.read_until(b'\n', &mut text)? > 0 && text.ends_with(b"\n") {
        let is_first = whole_bytes == 0;
        if is_first && text != HEADER.as_bytes() {
            break;
        }
        whole_bytes += text.len() as u64;
        if !is_first && let Some((path_hash, stamp, look)) = parse(&text) {
            known.insert(path_hash, (stamp, look));
        }
        text.clear();
    }
    file.set_len(whole_bytes)?;
    if whole_bytes == 0 {
        file.rewind()?;
        file.write_all(HEADER.as_bytes())?;
    }
    Ok((file, known))
}

/// A result as a line; `None` for states that may change without the file, such as a missing file.
fn line((path_hash, stamp, look): (u64, FileStamp, Look)) -> Option<String> {
    let (_, letter) = LETTERS.iter().find(|(state, _)| *state == look.state)?;
    let FileStamp {
        num_bytes,
        modified_ns,
    } = stamp;
    let Look {
        width,
        height,
        num_frames,
        contents,
        fingerprint,
        ..
    } = look;
    let (bits, colours) = match fingerprint {
        Some(Fingerprint { bits, colours }) => {
            let colours = colours.iter().map(|colour| format!("{colour:02x}"));
            (format!("{bits:x}"), colours.collect())
        }
        None => ("-".to_owned(), "-".to_owned()),
    };
    Some(format!(
        "{path_hash:x} {num_bytes} {modified_ns} {letter} {width} {height} {num_frames} {contents:x} {bits} {colours}\n"
    ))
}

fn parse(line: &[u8]) -> Option<(u64, FileStamp, Look)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let path_hash = u64::from_str_radix(words.next()?, 16).ok()?;
    let stamp = FileStamp {
        num_bytes: words.next()?.parse().ok()?,
        modified_ns: words.next()?.parse().ok()?,
    };
    let letter = words.next()?;
    let look = Look {
        state: LETTERS.iter().find(|(_, known)| *known == letter)?.0,
        width: words.next()?.parse().ok()?,
        height: words.next()?.parse().ok()?,
        num_frames: words.next()?.parse().ok()?,
        contents: u128::from_str_radix(words.next()?, 16).ok()?,
        fingerprint: match (words.next()?, words.next()?) {
            ("-", "-") => None,
            (bits, colours) => Some(Fingerprint {
                bits: u64::from_str_radix(bits, 16).ok()?,
                colours: hex_bytes(colours)?,
            }),
        },
    };
    words.next().is_none().then_some((path_hash, stamp, look))
}

/// Bytes from their hexadecimal digits, two per byte.
fn hex_bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn good(contents: u128) -> Look {
        Look {
            state: PictureState::Good,
            width: 640,
            height: 480,
            num_frames: 1,
            contents,
            fingerprint: Some(Fingerprint {
                bits: 0xabc,
                colours: std::array::from_fn(|at| 5 * at as u8),
            }),
        }
    }

    #[test]
    fn a_torn_line_is_cut_off_and_the_rest_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("cars.csv");
        fs::write(&csv, "").unwrap();
        let stamp = FileStamp::of(&csv).unwrap();
        let (mut journal, note) = Journal::open(&csv);
        assert_eq!((journal.num_known(), note), (0, None));
        let missing = Look::without_file(PictureState::Missing);
        journal.append(
            [
                (1, stamp, good(7)),
                (2, stamp, good(8)),
                (3, stamp, missing),
            ]
            .into_iter(),
        );
        drop(journal);
        let path = folder.path().join(".cars.csv.check");
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 2]).unwrap();
        let (mut journal, _) = Journal::open(&csv);
        assert_eq!(journal.num_known(), 1);
        assert_eq!(journal.look(1, stamp), Some(good(7)));
        assert_eq!(journal.look(2, stamp), None);
        let changed = FileStamp {
            num_bytes: 1,
            ..stamp
        };
        assert_eq!(journal.look(1, changed), None);
        journal.append([(2, stamp, good(9))].into_iter());
        drop(journal);
        let (journal, _) = Journal::open(&csv);
        assert_eq!(journal.look(2, stamp), Some(good(9)));
        journal.remove();
        assert!(!path.exists());
    }

    #[test]
    fn the_journal_of_another_version_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("cars.csv");
        let path = folder.path().join(".cars.csv.check");
        fs::write(&path, "holdall 0.0.1 check\n1 1 1 g 1 1 1\n").unwrap();
        let (journal, note) = Journal::open(&csv);
        assert_eq!((journal.num_known(), note), (0, None));
        drop(journal);
        assert_eq!(fs::read_to_string(&path).unwrap(), HEADER);
    }

    #[test]
    fn without_a_place_to_write_it_says_so() {
        let (journal, note) = Journal::open(Path::new("/nowhere/cars.csv"));
        assert!(!journal.is_kept());
        assert!(note.unwrap().contains("/nowhere/.cars.csv.check"));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let folder = tempfile::tempdir().unwrap();
            let text = [HEADER.as_bytes(), &bytes].concat();
            fs::write(folder.path().join(".a.csv.check"), text).unwrap();
            Journal::open(&folder.path().join("a.csv"));
        }

        #[test]
        fn reads_what_it_writes(hash: u64, num_bytes: u64, ns: u64, width: u32, height: u32, num_frames: u32, contents: u128, bits: Option<u64>, at in 0usize..LETTERS.len()) {
            let stamp = FileStamp { num_bytes, modified_ns: ns };
            let fingerprint = bits.map(|bits| Fingerprint { bits, colours: [bits as u8; 48] });
            let look = Look { state: LETTERS[at].0, width, height, num_frames, contents, fingerprint };
            let text = line((hash, stamp, look)).unwrap();
            prop_assert_eq!(parse(text.as_bytes()), Some((hash, stamp, look)));
        }
    }
}
