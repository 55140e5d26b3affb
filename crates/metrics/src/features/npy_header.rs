//! The header of a `.npy` file of features, and what is wrong with it.

use std::path::Path;

use holdall_files::{NpyError, NpyHeader};

use crate::error::InputError;

/// Parses the header. The array's size is not yet checked against the length of the file.
pub(crate) fn read(path: &Path, file: &[u8]) -> Result<NpyHeader, InputError> {
    NpyHeader::read(file).map_err(|error| {
        let path = path.into();
        match error {
            NpyError::NotNpy => {
                let found = String::from_utf8_lossy(&file[..file.len().min(16)]);
                let found = found.escape_debug().to_string();
                InputError::NotNpy { path, found }
            }
            NpyError::Version(found) => InputError::NpyVersion { path, found },
            NpyError::Cut(expected_bytes) => InputError::Length {
                path,
                expected_bytes: expected_bytes as u128,
                found_bytes: file.len() as u64,
            },
            NpyError::Header { expected, found } => InputError::NpyHeader {
                path,
                expected,
                found,
            },
        }
    })
}

/// Checks the length of the file, with `value_bytes` per value.
pub(crate) fn check_length(
    header: &NpyHeader,
    path: &Path,
    file: &[u8],
    value_bytes: usize,
) -> Result<(), InputError> {
    let values = header
        .shape
        .iter()
        .try_fold(1u128, |product, &size| product.checked_mul(size as u128));
    let bytes = values.and_then(|values| values.checked_mul(value_bytes as u128));
    let expected_bytes = bytes
        .and_then(|bytes| bytes.checked_add(header.data_start as u128))
        .unwrap_or(u128::MAX);
    if expected_bytes != file.len() as u128 {
        return Err(InputError::Length {
            path: path.into(),
            expected_bytes,
            found_bytes: file.len() as u64,
        });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MAGIC: &[u8] = b"\x93NUMPY";

    /// A `.npy` file of format `major` with this dictionary and data.
    pub(crate) fn npy(major: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
        let mut file = [MAGIC, &[major, 0]].concat();
        let length = dictionary.len() as u32;
        match major {
            1 => file.extend((length as u16).to_le_bytes()),
            _ => file.extend(length.to_le_bytes()),
        }
        [&file, dictionary.as_bytes(), data].concat()
    }

    pub(crate) fn dictionary(format: &str, shape: &str) -> String {
        format!("{{'descr': {format}, 'fortran_order': False, 'shape': {shape}, }}      \n")
    }

    fn read(file: &[u8]) -> Result<NpyHeader, String> {
        let path = Path::new("a.npy");
        super::read(path, file).map_err(|error| error.to_string())
    }

    #[test]
    fn every_version_and_every_habit() {
        for major in 1..=3 {
            let file = npy(major, &dictionary("'<f4'", "(3, 512)"), &[]);
            let header = read(&file).unwrap();
            assert_eq!(header.format, "<f4");
            assert_eq!(header.shape, [3, 512]);
            assert_eq!(header.data_start, file.len());
            assert!(!header.columns_first);
        }
        for (text, shape) in [
            (
                "{\"shape\":(7L,),\"fortran_order\":True,\"descr\":\"<f8\"}",
                vec![7],
            ),
            (
                "{ 'descr' : '<f8' , 'fortran_order' : True , 'shape' : ( ) }",
                vec![],
            ),
            (
                "{'descr': [('a', '<f4', (2, 3)), ('b', '|O')], 'fortran_order': True, 'shape': (1,2)}",
                vec![1, 2],
            ),
        ] {
            let header = read(&npy(1, text, &[])).unwrap();
            assert_eq!(header.shape, shape, "{text}");
            assert!(header.columns_first);
        }
    }

    #[test]
    fn what_np_save_does_not_write_is_refused() {
        for (text, part) in [
            ("", "a Python dictionary"),
            ("{'descr': '<f4'", "a Python dictionary"),
            ("{'descr': '<f4'} x", "`x` at byte 29"),
            ("['descr']", "a Python dictionary"),
            ("{'descr': '\\x3cf4'}", "a Python dictionary"),
            ("{'descr': '<f4'}", "not all of them"),
            ("{'descr': '<f4', 'descr': '<f4'}", "`descr` once more"),
            ("{'other': 1}", "`other`"),
            ("{'shape': (-1, 2)}", "a Python dictionary"),
            ("{'shape': ('a',)}", "a shape of whole numbers"),
            ("{'shape': (99999999999999999999,)}", "a Python dictionary"),
            (
                "{'descr': 4, 'fortran_order': False, 'shape': ()}",
                "`descr`",
            ),
            (&"[".repeat(2000), "a Python dictionary"),
            (&" ".repeat(70_000), "at most 65,536 bytes"),
        ] {
            let error = read(&npy(2, text, &[])).unwrap_err();
            assert!(
                error.starts_with("a.npy: ") && error.contains(part),
                "{text}: {error}"
            );
            assert!(error.contains("\nhint: "), "{error}");
        }
        let not_text = npy(1, "", &[]);
        let not_text = [&not_text[..8], &[1, 0, 0xff]].concat();
        assert!(read(&not_text).unwrap_err().contains("bytes that are none"));
        assert!(
            read(b"PK\x03\x04")
                .unwrap_err()
                .contains("`PK\\u{3}\\u{4}`")
        );
        assert!(
            read(b"\x93NUMPY\x09\0")
                .unwrap_err()
                .contains("format 1, 2 or 3, found 9")
        );
    }

    #[test]
    fn a_file_that_ends_within_its_header_is_cut() {
        let file = npy(3, &dictionary("'<f4'", "(1, 1)"), &[]);
        for length in MAGIC.len()..file.len() {
            let error = read(&file[..length]).unwrap_err();
            assert!(error.contains(&format!("found {length}\n")), "{error}");
        }
    }
}
