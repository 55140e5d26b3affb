//! Robustness of the file readers against arbitrary bytes. The fuzz target in `fuzz/` and the mutation tests below call these.
//!
//! Whatever the bytes, a reader ends without a panic, with a complete result or with an error that names the file and ends with
//! a hint.

use std::path::Path;

use crate::error::InputError;
use crate::features::{FeatureLayout, Features, Suffix};
use crate::retrieval::pair_file::{self, Counts};

const NAME: &str = "hostile";

const COUNTS: Counts = Counts {
    queries: 100,
    gallery: 100,
};

/// Parses bytes as features in a `.npy` file.
pub fn npy(bytes: &[u8]) -> Result<(), InputError> {
    features(Suffix::Npy, bytes, None)
}

/// Parses bytes as features in a safetensors file, with and without a tensor name.
pub fn safetensors(bytes: &[u8]) -> Result<(), InputError> {
    let named = features(Suffix::Safetensors, bytes, Some("a"));
    features(Suffix::Safetensors, bytes, None).and(named)
}

/// Parses bytes as pairs, in CSV and in `.npy` format.
pub fn pairs(bytes: &[u8]) -> Result<(), InputError> {
    let within = |found: Vec<(u32, u32)>| {
        for (query, gallery) in found {
            assert!((query as usize) < COUNTS.queries && (gallery as usize) < COUNTS.gallery);
        }
    };
    let path = Path::new(NAME);
    let lines = checked(pair_file::csv(path, bytes, COUNTS)).map(within);
    checked(pair_file::npy(path, bytes, COUNTS))
        .map(within)
        .and(lines)
}

/// Parses a feature file and reads every row.
fn features(kind: Suffix, bytes: &[u8], tensor: Option<&str>) -> Result<(), InputError> {
    let layout = checked(FeatureLayout::read(Path::new(NAME), kind, bytes, tensor))?;
    let features = Features::new(layout.dimension(), [layout.segment(bytes)]);
    let mut room = vec![0.0; features.dimension()];
    for row in 0..features.num_rows() {
        features.row(row, &mut room);
    }
    Ok(())
}

fn checked<T>(result: Result<T, InputError>) -> Result<T, InputError> {
    if let Err(error) = &result {
        let text = error.to_string();
        assert!(
            text.starts_with(NAME) && text.contains("\nhint: "),
            "{text}"
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::npy_header::tests::{dictionary, npy as npy_file};
    use proptest::prelude::*;
    use proptest::sample::Index;

    #[derive(Clone, Debug)]
    enum Change {
        Flip(Index, u8),
        Byte(Index, u8),
        Cut(Index),
        Drop(Index),
        Insert(Index, Vec<u8>),
        /// Overwrites bytes by a number that tends to break sizes and offsets.
        Number(Index, u64, usize),
        /// Replaces digits of a header.
        Digit(Index, u8),
    }

    fn change() -> impl Strategy<Value = Change> {
        let at = any::<Index>;
        prop_oneof![
            (at(), 0u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
            (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
            at().prop_map(Change::Cut),
            at().prop_map(Change::Drop),
            (at(), prop::collection::vec(any::<u8>(), 1..20))
                .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
            (
                at(),
                prop::sample::select(vec![0, 1, u64::MAX, u64::MAX / 2, 1 << 32, 1 << 63, 0xffff]),
                1usize..9
            )
                .prop_map(|(at, number, width)| Change::Number(at, number, width)),
            (at(), b'0'..=b'9').prop_map(|(at, digit)| Change::Digit(at, digit)),
        ]
    }

    fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
        for change in changes {
            if bytes.is_empty() {
                break;
            }
            let place = |at: &Index, bytes: &[u8]| at.index(bytes.len());
            match change {
                Change::Flip(at, bit) => {
                    let at = place(at, &bytes);
                    bytes[at] ^= 1 << bit;
                }
                Change::Byte(at, byte) => {
                    let at = place(at, &bytes);
                    bytes[at] = *byte;
                }
                Change::Cut(at) => bytes.truncate(place(at, &bytes)),
                Change::Drop(at) => drop(bytes.remove(place(at, &bytes))),
                Change::Insert(at, more) => {
                    let at = place(at, &bytes);
                    bytes.splice(at..at, more.iter().copied());
                }
                Change::Number(at, number, width) => {
                    let at = place(at, &bytes);
                    let field = &number.to_le_bytes()[..*width];
                    bytes[at..]
                        .iter_mut()
                        .zip(field)
                        .for_each(|(byte, new)| *byte = *new);
                }
                Change::Digit(at, digit) => {
                    let digits: Vec<usize> = (0..bytes.len())
                        .filter(|&at| bytes[at].is_ascii_digit())
                        .collect();
                    if !digits.is_empty() {
                        bytes[digits[at.index(digits.len())]] = *digit;
                    }
                }
            }
        }
        bytes
    }

    fn seeds() -> Vec<Vec<u8>> {
        let data = [0x3c; 24];
        let header = "{\"__metadata__\":{\"a\":\"b\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\
                      \"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[16,24]}}";
        vec![
            npy_file(1, &dictionary("'<f4'", "(2, 3)"), &data),
            npy_file(2, &dictionary("'<f2'", "(3, 4)"), &data),
            npy_file(3, &dictionary("'<V2'", "(12, 1)"), &data),
            npy_file(1, &dictionary("'<i4'", "(3, 2)"), &[1, 0, 0, 0].repeat(6)),
            npy_file(1, &dictionary("[('a', '|O')]", "(3, 2)"), &data),
            [
                &(header.len() as u64).to_le_bytes(),
                header.as_bytes(),
                &data,
            ]
            .concat(),
            b"query,gallery\n0,17\n1,2\n\n99,99\n".to_vec(),
            b"\xef\xbb\xbf0,1\r\n1,0\r\n".to_vec(),
        ]
    }

    #[test]
    fn seeds_are_read() {
        let seeds = seeds();
        for seed in &seeds[..3] {
            npy(seed).unwrap();
        }
        safetensors(&seeds[5]).unwrap();
        assert!(pair_file::npy(Path::new(NAME), &seeds[3], COUNTS).is_ok());
        for seed in &seeds[6..] {
            assert!(pair_file::csv(Path::new(NAME), seed, COUNTS).is_ok());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50_000))]
        #[test]
        fn mutated_files_are_read_or_refused(
            seed in prop::sample::select(seeds()),
            changes in prop::collection::vec(change(), 0..6),
        ) {
            let bytes = changed(seed, &changes);
            let _ = (npy(&bytes), safetensors(&bytes), pairs(&bytes));
        }
    }
}
