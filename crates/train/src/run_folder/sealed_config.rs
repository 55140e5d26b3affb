//! `config.yml` of a run, with a checksum of its text in the last line, because a changed digit would make it another run.
//!
//! The line is a comment, so the file remains a valid config. Only resuming compares the checksum: the file may be edited for
//! a new run.

use std::path::Path;

use holdall_files::Checksum;

use crate::config::MOST_CONFIG_BYTES;
use crate::error::TrainError;
use crate::run_folder::folder::failed;

const MARK: &str = "# checksum of the lines above, compared by --resume: ";

/// Appends the checksum line.
pub(crate) fn seal(text: &str) -> String {
    let text = format!("{}\n", text.trim_end());
    let checksum = Checksum::of(text.as_bytes());
    format!("{text}{MARK}{checksum}\n")
}

/// Checks that a run's config is unchanged.
pub fn check(path: &Path) -> Result<(), TrainError> {
    let bytes =
        holdall_files::read_regular(path, MOST_CONFIG_BYTES).map_err(failed(path, "read"))?;
    let wrong = |expected: &str, found: &str| {
        TrainError::Config(format!(
            "{}: expected {expected}, found {found}: the file was changed since the run wrote it\n\
             hint: restore it to go on; settings are changed by their flags, or by --set KEY=VALUE",
            path.display()
        ))
    };
    let start = bytes
        .windows(MARK.len())
        .rposition(|window| window == MARK.as_bytes())
        .ok_or_else(|| wrong("a checksum in its last line", "none"))?;
    let (text, last) = bytes.split_at(start);
    let (found, expected) = (Checksum::of(text).to_string(), &last[MARK.len()..]);
    if expected == format!("{found}\n").as_bytes() {
        Ok(())
    } else {
        let expected = String::from_utf8_lossy(expected);
        Err(wrong(
            &format!("the checksum {}", expected.trim_end()),
            &found,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yml");
        let sealed = seal("train:\n  lr: 0.001\n  epochs: 3\n\n");
        let checked = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            check(&path)
        };
        checked(sealed.as_bytes()).unwrap();
        for at in 0..sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[at] ^= 1;
            let error = checked(&bytes).unwrap_err().to_string();
            assert!(
                error.contains("config.yml") && error.contains("hint: "),
                "{error}"
            );
            assert!(checked(&sealed.as_bytes()[..at]).is_err(), "cut at {at}");
        }
        assert!(checked(format!("{sealed}seed: 4\n").as_bytes()).is_err());
        assert!(checked(b"seed: 4\n").is_err());
    }
}
