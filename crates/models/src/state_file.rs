//! The state of a training run in one file: tensors, and a text that says what they belong to.
//!
//! One file means one rename: a process killed at any instant leaves the old state or the new one, never a mixture.
//!
//! ```text
//! NAME.partial, written and on disk -> renamed to NAME -> the folder on disk
//! ```

use std::fs::{self, File};
use std::path::Path;

use crate::error::ModelError;
use crate::folder::weights_file::WeightsFile;
use crate::folder::write::{NamedTensor, Values, failed, sync_folder, write_safetensors};

const STATE: &str = "holdall.state";

/// A state, mapped.
pub struct StateFile {
    file: WeightsFile,
}

impl StateFile {
    /// Maps a state and checks that it is whole.
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

    /// What was written beside the tensors.
    pub fn text(&self) -> &str {
        self.file
            .metadata(STATE)
            .expect("there: checked by StateFile::open")
    }

    /// Copies a tensor, which has the length of `values`.
    pub fn read(&self, name: &str, values: &mut [f32]) -> Result<(), ModelError> {
        let tensors = self.file.tensors();
        let known = tensors.iter().find(|(known, _)| known == name);
        let Some((_, info)) = known else {
            return Err(ModelError::UnknownTensor {
                folder: self.file.path().into(),
                tensor: name.into(),
                num_found: tensors.len(),
            });
        };
        let bytes = self.file.bytes(info);
        if bytes.len() != size_of_val(values) {
            return Err(ModelError::ValueCount {
                tensor: name.into(),
                expected: bytes.len() / size_of::<f32>(),
                found: values.len(),
            });
        }
        for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(size_of::<f32>())) {
            let bytes = bytes.try_into().expect("four bytes: chunks_exact");
            *value = f32::from_le_bytes(bytes);
        }
        self.file.give_back();
        Ok(())
    }
}

/// Writes a state over an older one, or leaves the older one as it was.
pub fn write_state<V: Values>(
    path: &Path,
    text: &str,
    tensors: &[NamedTensor<V>],
) -> Result<(), ModelError> {
    let partial = path.with_added_extension("partial");
    let written = write_partial(&partial, text, tensors);
    if let Err(error) = written {
        // What is there is no state, and on a full disk its bytes are needed.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    fs::rename(&partial, path).map_err(failed(&partial, "rename it"))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

fn write_partial<V: Values>(
    partial: &Path,
    text: &str,
    tensors: &[NamedTensor<V>],
) -> Result<(), ModelError> {
    let mut file = File::create(partial).map_err(failed(partial, "create it"))?;
    let metadata = [(STATE, text.to_owned())];
    write_safetensors(&mut file, tensors, &metadata).map_err(failed(partial, "write it"))?;
    file.sync_all().map_err(failed(partial, "write it to disk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &[NamedTensor<&[f32]>] = &[];

    #[test]
    fn a_state_reads_back_and_a_failed_write_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        let values = [1.0f32, -0.0, f32::MIN_POSITIVE / 4.0];
        let tensor = ("a".into(), vec![3], values.as_slice());
        write_state(&path, "{\"step\": 1}", &[tensor]).unwrap();
        let state = StateFile::open(&path).unwrap();
        assert_eq!(state.text(), "{\"step\": 1}");
        let mut read = [0.0f32; 3];
        state.read("a", &mut read).unwrap();
        assert_eq!(read.map(f32::to_bits), values.map(f32::to_bits));
        assert!(state.read("b", &mut read).is_err());
        assert!(state.read("a", &mut [0.0; 2]).is_err());
        // A folder in the way of the partial file: the write fails, the state stays.
        fs::create_dir(path.with_added_extension("partial")).unwrap();
        assert!(write_state(&path, "{}", NOTHING).is_err());
        assert_eq!(StateFile::open(&path).unwrap().text(), "{\"step\": 1}");
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
