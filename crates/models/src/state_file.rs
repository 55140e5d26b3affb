//! Training state of a run in one file: tensors, and a text that describes them.
//!
//! A single file needs a single rename: a process killed at any instant leaves the old state or the new one, never a mixture.
//!
//! ```text
//! NAME.partial, written and synced to disk -> renamed to NAME -> the folder synced to disk
//! ```

use std::io;
use std::path::Path;

use holdall_files::{Checksum, write_whole_file};

use crate::error::ModelError;
use crate::folder::weights_file::WeightsFile;
use crate::folder::write::{ElementFormat, NamedTensor, Values, failed, write_safetensors};

const STATE: &str = "holdall.state";
/// Values that are read at a time.
const PIECE: usize = 1 << 18;

/// A memory-mapped state file.
pub struct StateFile {
    file: WeightsFile,
}

impl StateFile {
    /// Maps a state file and checks its text against its checksum. Tensors are checked as they are read.
    pub fn open(path: &Path) -> Result<StateFile, ModelError> {
        let file = WeightsFile::open(path)?;
        match file.metadata(STATE) {
            Some(_) => Ok(StateFile { file }),
            None => Err(ModelError::Json {
                file: path.into(),
                expected: "the state of a run",
                found: "a safetensors file without one".into(),
            }),
        }
    }

    /// Text stored with the tensors.
    pub fn text(&self) -> &str {
        self.file
            .metadata(STATE)
            .expect("there: checked by StateFile::open")
    }

    /// Checksum of text and tensors together; `None` for a file of a Holdall version without checksums.
    pub fn checksum(&self) -> Option<Checksum> {
        self.file.checksum()
    }

    pub fn verify(&self) -> Result<(), ModelError> {
        self.file.verify()
    }

    /// Copies a tensor into `values`, which must match its format and length, and compares it with its checksum.
    pub fn read<T: StateElement>(&self, name: &str, values: &mut [T]) -> Result<(), ModelError> {
        let tensors = self.file.tensors();
        let known = tensors.iter().find(|(known, _)| known == name);
        let Some((_, info)) = known else {
            return Err(ModelError::UnknownTensor {
                folder: self.file.path().into(),
                tensor: name.into(),
                num_found: tensors.len(),
            });
        };
        if info.dtype != T::FORMAT.dtype() {
            return Err(ModelError::Json {
                file: self.file.path().into(),
                expected: "the state of a run with the same train.optimizer_state",
                found: format!("`{name}` as {}", info.dtype),
            });
        }
        let num_bytes = self.file.bytes(info).len();
        if num_bytes != size_of_val(values) {
            return Err(ModelError::ValueCount {
                tensor: name.into(),
                expected: num_bytes / size_of::<T>(),
                found: values.len(),
            });
        }
        let mut pieces = values.chunks_mut(PIECE);
        self.file.read(name, info, PIECE * size_of::<T>(), |bytes| {
            let values = pieces.next().expect("as many pieces as of bytes");
            T::copy_from(bytes, values);
        })
    }
}

/// Element type of a tensor in a state file.
pub trait StateElement: Copy {
    const FORMAT: ElementFormat;

    /// Decodes elements from bytes.
    fn copy_from(bytes: &[u8], values: &mut [Self]);
}

impl StateElement for f32 {
    const FORMAT: ElementFormat = ElementFormat::F32;

    fn copy_from(bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
}

/// Bits of a bfloat16.
impl StateElement for u16 {
    const FORMAT: ElementFormat = ElementFormat::Bf16;

    fn copy_from(bytes: &[u8], values: &mut [u16]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = u16::from_le_bytes(*bytes);
        }
    }
}

impl StateElement for u8 {
    const FORMAT: ElementFormat = ElementFormat::U8;

    fn copy_from(bytes: &[u8], values: &mut [u8]) {
        values.copy_from_slice(bytes);
    }
}

/// Writes a state over an older one; if that fails, the older one is unchanged. `keep_old` is called once the new state is on disk and
/// before it takes the name, and may link the old file to another name. Returns the checksum of text and tensors.
pub fn write_state<V: Values>(
    path: &Path,
    text: &str,
    tensors: &[NamedTensor<V>],
    keep_old: impl FnOnce() -> io::Result<()>,
) -> Result<Checksum, ModelError> {
    let mut checksum = None;
    let written = write_whole_file(path, |file| {
        checksum = Some(write_safetensors(file, tensors, &[(STATE, text)])?);
        file.sync_all()?;
        keep_old()
    });
    written.map_err(failed(path, "write it"))?;
    Ok(checksum.expect("set: the file was written"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fs::{self, File};

    use super::*;
    use crate::folder::Elements;

    const NOTHING: &[NamedTensor<&[f32]>] = &[];

    #[test]
    fn a_state_reads_back_and_a_failed_write_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        let values = [1.0f32, -0.0, f32::MIN_POSITIVE / 4.0];
        let tensor = ("a".into(), vec![3], values.as_slice());
        write_state(&path, "{\"step\": 1}", &[tensor], || Ok(())).unwrap();
        let state = StateFile::open(&path).unwrap();
        assert_eq!(state.text(), "{\"step\": 1}");
        let mut read = [0.0f32; 3];
        state.read("a", &mut read).unwrap();
        assert_eq!(read.map(f32::to_bits), values.map(f32::to_bits));
        assert!(state.read("b", &mut read).is_err());
        assert!(state.read("a", &mut [0.0f32; 2]).is_err());
        // A folder has the name of the partial file: the write fails, and the state is unchanged.
        fs::create_dir(path.with_added_extension("partial")).unwrap();
        assert!(write_state(&path, "{}", NOTHING, || Ok(())).is_err());
        assert_eq!(StateFile::open(&path).unwrap().text(), "{\"step\": 1}");
    }

    /// Tensors of one, two and four bytes an element in one file.
    #[test]
    fn codes_and_halves_read_back_in_their_own_format_only() {
        struct All(Elements<'static>);

        impl Values for All {
            fn num_values(&self) -> usize {
                3
            }

            fn values(&self) -> io::Result<Cow<'_, [f32]>> {
                unreachable!("asked for as they are")
            }

            fn format(&self) -> ElementFormat {
                match self.0 {
                    Elements::F32(_) => ElementFormat::F32,
                    Elements::Bf16(_) => ElementFormat::Bf16,
                    Elements::F16(_) => ElementFormat::F16,
                    Elements::U8(_) => ElementFormat::U8,
                }
            }

            fn elements(&self) -> io::Result<Elements<'_>> {
                Ok(self.0.clone())
            }
        }

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        let tensors = [
            ("codes", Elements::U8(vec![0, 127, 255].into())),
            ("numbers", Elements::F32(vec![1.5, -0.0, 2.0].into())),
            ("halves", Elements::Bf16(vec![0, 0x3f80, 0xffff].into())),
        ];
        let tensors = tensors.map(|(name, elements)| (name.to_owned(), vec![3], All(elements)));
        write_state(&path, "{}", &tensors, || Ok(())).unwrap();
        let state = StateFile::open(&path).unwrap();
        state.verify().unwrap();
        let (mut codes, mut halves, mut numbers) = ([0u8; 3], [0u16; 3], [0f32; 3]);
        state.read("codes", &mut codes).unwrap();
        state.read("halves", &mut halves).unwrap();
        state.read("numbers", &mut numbers).unwrap();
        assert_eq!(codes, [0, 127, 255]);
        assert_eq!(halves, [0, 0x3f80, 0xffff]);
        assert_eq!(
            numbers.map(f32::to_bits),
            [1.5, -0.0, 2.0].map(f32::to_bits)
        );
        for error in [
            state.read("codes", &mut numbers).unwrap_err(),
            state.read("numbers", &mut codes).unwrap_err(),
            state.read("halves", &mut codes).unwrap_err(),
        ] {
            assert!(error.to_string().contains("optimizer_state"), "{error}");
        }
    }

    #[test]
    fn weights_are_not_a_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let mut file = File::create(&path).unwrap();
        write_safetensors(&mut file, NOTHING, &[]).unwrap();
        assert!(StateFile::open(&path).is_err());
    }
}
