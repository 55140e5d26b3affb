//! Writes a model folder so that it is either complete or visibly incomplete.
//!
//! ```text
//! every file -> its name + .partial, fsync
//! remove the old model.safetensors, index and checksums      the folder is visibly incomplete
//! rename shards, head, config.json into place
//! rename model.safetensors or the index into place           the folder is complete
//! ```
//!
//! A process killed at any of these points leaves either the old model or a folder that
//! [`ModelFolder::open`](super::ModelFolder::open) refuses, with every new file complete on disk. Tensors are streamed through a
//! small buffer, without a copy of the model.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use holdall_files::{Checksum, RunningChecksum};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::{Map, json};

use super::checksums::CHECKSUMS_FILE;
use super::weights_file::{HEADER_CHECKSUM, NO_CHECKSUM, TENSOR_CHECKSUMS, header_checksum_place};
use super::{CONFIG_FILE, HEAD_FILE, Head, INDEX_FILE, SINGLE_FILE, compare};
use crate::error::ModelError;
use crate::model_config::ModelConfig;
use crate::tensor_list::num_values;

/// Source of a tensor's elements, read when they are written: tensors on a device are copied one at a time.
pub trait Values {
    fn num_values(&self) -> usize;

    /// All values; an error where the device cannot copy them.
    fn values(&self) -> io::Result<Cow<'_, [f32]>>;

    fn format(&self) -> ElementFormat {
        ElementFormat::F32
    }

    /// All elements in the tensor's format.
    fn elements(&self) -> io::Result<Elements<'_>> {
        Ok(Elements::F32(self.values()?))
    }

    /// Passes the bytes to `write` in pieces, so that a conversion needs no full second copy.
    fn for_pieces(&self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.elements()?.for_pieces(write)
    }
}

/// Number format of a written tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementFormat {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 16-bit IEEE floats.
    F16,
    /// Unsigned bytes.
    U8,
}

impl ElementFormat {
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            ElementFormat::F32 => Dtype::F32,
            ElementFormat::Bf16 => Dtype::BF16,
            ElementFormat::F16 => Dtype::F16,
            ElementFormat::U8 => Dtype::U8,
        }
    }

    fn bytes(self) -> usize {
        match self {
            ElementFormat::F32 => 4,
            ElementFormat::Bf16 | ElementFormat::F16 => 2,
            ElementFormat::U8 => 1,
        }
    }
}

/// Elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements<'a> {
    /// 32-bit floats.
    F32(Cow<'a, [f32]>),
    /// Bits of bfloat16 numbers.
    Bf16(Cow<'a, [u16]>),
    /// Bits of 16-bit IEEE floats.
    F16(Cow<'a, [u16]>),
    /// Unsigned bytes.
    U8(Cow<'a, [u8]>),
}

impl Elements<'_> {
    /// Passes the elements' bytes to `write`, piece by piece.
    ///
    /// # Errors
    /// The errors of `write`.
    pub fn for_pieces(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        const AT_ONCE: usize = 1 << 18;
        let mut buffer = Vec::new();
        let mut write_all = |bytes: &mut dyn Iterator<Item = u8>| {
            buffer.clear();
            buffer.extend(bytes);
            write(&buffer)
        };
        match self {
            Elements::F32(all) => all.chunks(AT_ONCE).try_for_each(|piece| {
                write_all(&mut piece.iter().flat_map(|value| value.to_le_bytes()))
            }),
            Elements::Bf16(all) | Elements::F16(all) => all.chunks(AT_ONCE).try_for_each(|piece| {
                write_all(&mut piece.iter().flat_map(|value| value.to_le_bytes()))
            }),
            Elements::U8(all) => all.chunks(AT_ONCE).try_for_each(write),
        }
    }
}

impl Values for &[f32] {
    fn num_values(&self) -> usize {
        self.len()
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(self))
    }
}

/// Name, shape and elements.
pub type NamedTensor<V> = (String, Vec<usize>, V);

/// Writes a model folder that transformers' `from_pretrained` loads, over an older one if there is one.
///
/// `tensors` are those of [`ModelConfig::tensors`], in any order. Weights go to one file, or, where they exceed `shard_bytes`, to
/// shards of at most that many bytes (a larger tensor has its own). `head` is written beside a CLIP or a video-text model.
pub fn write_folder<V: Values>(
    folder: &Path,
    config: impl Into<ModelConfig>,
    tensors: &[NamedTensor<V>],
    head: Option<&Head>,
    shard_bytes: Option<u64>,
) -> Result<(), ModelError> {
    let config = config.into();
    let config_file = folder.join(CONFIG_FILE);
    config.validate(&config_file)?;
    let json = config.to_json(&config_file)?;
    check_tensors(folder, &config, tensors)?;
    let head = match head {
        Some(head) => Some((head, check_head(folder, &config, head)?)),
        None => None,
    };
    fs::create_dir_all(folder).map_err(failed(folder, "create it"))?;

    let mut staged = Staged {
        folder,
        names: Vec::new(),
    };
    let shards = split(tensors, shard_bytes);
    let last = if let [all] = shards.as_slice() {
        staged.write(SINGLE_FILE, |file| {
            write_safetensors(file, all, &[]).map(drop)
        })?;
        SINGLE_FILE
    } else {
        let mut weight_map = Map::new();
        for (number, shard) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len());
            staged.write(&name, |file| write_safetensors(file, shard, &[]).map(drop))?;
            let entries = shard
                .iter()
                .map(|(tensor, _, _)| (tensor.clone(), json!(name)));
            weight_map.extend(entries);
        }
        let total_size: u64 = tensors.iter().map(num_bytes).sum();
        let index = json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
        staged.write(INDEX_FILE, |file| writeln!(file, "{index:#}"))?;
        INDEX_FILE
    };
    staged.write(CONFIG_FILE, |file| file.write_all(json.as_bytes()))?;
    if let Some((head, width)) = head {
        let weight = vec![head.num_labels, width];
        let tensors = [
            ("weight".to_string(), weight, head.weight.as_slice()),
            (
                "bias".to_string(),
                vec![head.num_labels],
                head.bias.as_slice(),
            ),
        ];
        staged.write(HEAD_FILE, |file| {
            write_safetensors(file, &tensors, &[]).map(drop)
        })?;
    }
    staged.commit(last)
}

fn check_tensors<V: Values>(
    folder: &Path,
    config: &ModelConfig,
    tensors: &[NamedTensor<V>],
) -> Result<(), ModelError> {
    let mut names: Vec<&str> = tensors.iter().map(|(name, _, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ModelError::DuplicateTensor {
            tensor: pair[0].into(),
            first: folder.into(),
            second: folder.into(),
        });
    }
    let found = tensors
        .iter()
        .map(|(name, shape, _)| (name.as_str(), shape.as_slice()));
    let mismatch = compare(config, found);
    if !mismatch.is_empty() {
        return Err(ModelError::Tensors {
            folder: folder.into(),
            mismatch,
        });
    }
    for (name, shape, values) in tensors {
        let expected = num_values(shape).expect("fits: checked by ModelConfig::validate");
        let found = values.num_values();
        if found != expected {
            return Err(ModelError::ValueCount {
                tensor: name.clone(),
                expected,
                found,
            });
        }
    }
    Ok(())
}

/// Checks the head's sizes and returns the width of the projection that it reads.
fn check_head(folder: &Path, config: &ModelConfig, head: &Head) -> Result<usize, ModelError> {
    let Some(projection_dim) = config.projection_dim() else {
        return Err(ModelError::Head {
            file: folder.join(HEAD_FILE),
            expected: "a head only beside a CLIPModel or a video-text model".into(),
            found: config.describe(),
        });
    };
    let num_weights = num_values(&[head.num_labels, projection_dim]);
    let fits = num_weights == Some(head.weight.len()) && head.num_labels == head.bias.len();
    if fits && head.num_labels > 0 {
        return Ok(projection_dim);
    }
    Err(ModelError::Head {
        file: folder.join(HEAD_FILE),
        expected: format!("weight [labels, {}] and bias [labels]", projection_dim),
        found: format!(
            "{} labels, {} weights, {} biases",
            head.num_labels,
            head.weight.len(),
            head.bias.len()
        ),
    })
}

/// Splits tensors into at least one run of consecutive ones, each within `shard_bytes` or one tensor long.
fn split<V: Values>(
    tensors: &[NamedTensor<V>],
    shard_bytes: Option<u64>,
) -> Vec<&[NamedTensor<V>]> {
    let limit_bytes = shard_bytes.unwrap_or(u64::MAX);
    let mut shards = Vec::new();
    let (mut start, mut held_bytes) = (0, 0u64);
    for (position, tensor) in tensors.iter().enumerate() {
        let bytes = num_bytes(tensor);
        if position > start && held_bytes.saturating_add(bytes) > limit_bytes {
            shards.push(&tensors[start..position]);
            (start, held_bytes) = (position, 0);
        }
        held_bytes += bytes;
    }
    shards.push(&tensors[start..]);
    shards
}

fn num_bytes<V: Values>((_, _, values): &NamedTensor<V>) -> u64 {
    (values.num_values() * values.format().bytes()) as u64
}

/// Writes tensors to a file atomically.
pub fn write_tensors<V: Values>(path: &Path, tensors: &[NamedTensor<V>]) -> Result<(), ModelError> {
    let write = |file: &mut File| write_safetensors(file, tensors, &[]).map(drop);
    holdall_files::write_whole_file(path, write).map_err(failed(path, "write it"))
}

/// Writes a safetensors file: a header without checksums, the tensors, then the header again with their checksums.
pub(crate) fn write_safetensors<V: Values>(
    file: &mut File,
    tensors: &[NamedTensor<V>],
    metadata: &[(&str, &str)],
) -> io::Result<Checksum> {
    let unknown = vec![Checksum::of(b""); tensors.len()];
    file.write_all(&header(tensors, metadata, &unknown)?.0)?;
    let mut checksums = Vec::with_capacity(tensors.len());
    for (_, _, values) in tensors {
        let mut checksum = RunningChecksum::default();
        values.for_pieces(&mut |piece| {
            checksum.add(piece);
            file.write_all(piece)
        })?;
        checksums.push(checksum.value());
    }
    let (header, checksum) = header(tensors, metadata, &checksums)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header)?;
    Ok(checksum)
}

/// Length field and header, and the checksum in it. The header's length does not depend on the checksums.
fn header<V: Values>(
    tensors: &[NamedTensor<V>],
    metadata: &[(&str, &str)],
    checksums: &[Checksum],
) -> io::Result<(Vec<u8>, Checksum)> {
    let checksums: Vec<String> = checksums.iter().map(Checksum::to_string).collect();
    let checksums = checksums.join(" ");
    // transformers refuses files without the format key, which names the framework of the layout. It ignores unknown keys.
    let known = [
        ("format", "pt"),
        (TENSOR_CHECKSUMS, &checksums),
        (HEADER_CHECKSUM, NO_CHECKSUM),
    ];
    // Written by hand: a fixed order of keys makes equal models equal files.
    let mut header = Vec::from(*b"{\"__metadata__\":{");
    for (place, (key, text)) in known.iter().chain(metadata).enumerate() {
        if place > 0 {
            header.push(b',');
        }
        serde_json::to_writer(&mut header, key)?;
        header.push(b':');
        serde_json::to_writer(&mut header, text)?;
    }
    header.push(b'}');
    let mut end = 0;
    for (name, shape, values) in tensors {
        let start = end;
        end += values.num_values() * values.format().bytes();
        let info = TensorInfo {
            dtype: values.format().dtype(),
            shape: shape.clone(),
            data_offsets: (start, end),
        };
        header.push(b',');
        serde_json::to_writer(&mut header, name)?;
        header.push(b':');
        serde_json::to_writer(&mut header, &info)?;
    }
    header.push(b'}');
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut header);
    let checksum = Checksum::of(&bytes);
    let place = header_checksum_place(&bytes).ok_or(io::Error::other(
        "a tensor has the name of the header's checksum",
    ))?;
    bytes[place].copy_from_slice(checksum.to_string().as_bytes());
    Ok((bytes, checksum))
}

/// Files written under temporary names, which are deleted unless they are committed.
struct Staged<'a> {
    folder: &'a Path,
    names: Vec<String>,
}

impl Staged<'_> {
    fn write(
        &mut self,
        name: &str,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), ModelError> {
        let path = self.partial(name);
        let mut file = File::create(&path).map_err(failed(&path, "create it"))?;
        self.names.push(name.into());
        content(&mut file).map_err(failed(&path, "write it"))?;
        file.sync_all().map_err(failed(&path, "write it to disk"))
    }

    /// Renames the files into place, `last` last: it makes the folder look complete.
    fn commit(mut self, last: &str) -> Result<(), ModelError> {
        // No cleanup from here on: once the old model is removed, these files are the only copy.
        let names = std::mem::take(&mut self.names);
        for name in [INDEX_FILE, SINGLE_FILE, CHECKSUMS_FILE] {
            remove_if_there(&self.folder.join(name))?;
        }
        if !names.iter().any(|name| name == HEAD_FILE) {
            remove_if_there(&self.folder.join(HEAD_FILE))?;
        }
        sync_folder(self.folder)?;
        for name in names.iter().filter(|name| *name != last) {
            self.rename(name)?;
        }
        sync_folder(self.folder)?;
        self.rename(last)?;
        sync_folder(self.folder)?;
        remove_old_shards(self.folder, &names)
    }

    fn rename(&self, name: &str) -> Result<(), ModelError> {
        let partial = self.partial(name);
        holdall_files::rename(&partial, &self.folder.join(name))
            .map_err(failed(&partial, "rename it"))
    }

    /// A fixed name: the partial file of a killed process is overwritten by the next write.
    fn partial(&self, name: &str) -> PathBuf {
        holdall_files::partial(&self.folder.join(name))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            // The original error is the one to report.
            let _ = fs::remove_file(self.partial(name));
        }
    }
}

/// Removes shards of an older model: they would never be read again, and would double the disk usage.
fn remove_old_shards(folder: &Path, written: &[String]) -> Result<(), ModelError> {
    for entry in fs::read_dir(folder).map_err(failed(folder, "list it"))? {
        let name = entry.map_err(failed(folder, "list it"))?.file_name();
        let name = name.to_string_lossy();
        if is_shard(&name) && !written.contains(&name.to_string()) {
            remove_if_there(&folder.join(&*name))?;
        }
    }
    Ok(())
}

/// `model-00001-of-00003.safetensors`
fn is_shard(name: &str) -> bool {
    let numbers = name
        .strip_prefix("model-")
        .and_then(|rest| rest.strip_suffix(".safetensors"));
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|rest| rest.split_once("-of-"))
        .is_some_and(|(a, b)| is_number(a) && is_number(b))
}

fn remove_if_there(path: &Path) -> Result<(), ModelError> {
    match holdall_files::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(failed(path, "remove it")(cause)),
        _ => Ok(()),
    }
}

/// A rename is only durable once its folder is synced.
fn sync_folder(folder: &Path) -> Result<(), ModelError> {
    holdall_files::sync_folder(folder).map_err(failed(folder, "write it to disk"))
}

pub(crate) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> ModelError {
    let path = path.to_path_buf();
    move |cause| ModelError::Io {
        path,
        action,
        cause,
    }
}
