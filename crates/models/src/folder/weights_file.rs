//! One safetensors file, mapped into memory, with a validated header.
//!
//! ```text
//! | length of header: u64 | header: JSON, name -> type, shape, offsets | data, tensor after tensor |
//! ```
//!
//! The safetensors crate parses types and entries. The layout is checked here, because the crate's reader names neither file nor
//! numbers in its errors, accepts duplicate names, and adds offsets of a hostile header with overflow. After
//! [`WeightsFile::open`] every tensor lies within the map and has the bytes that its shape and type need.
//!
//! Files that Holdall wrote have checksums in the header's metadata: one per tensor, in the order of their data, and one of length
//! field and header, computed with zeros in its own place. The header's checksum is compared when a file is opened, a tensor's when it
//! is read. The header's checksum identifies the whole file, since it covers those of the tensors.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use holdall_files::{Checksum, RunningChecksum, check_memory};
use memmap2::Mmap;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::ModelError;
use crate::tensor_list::num_values;

const LENGTH_BYTES: u64 = 8;
/// Limit of the format's own reader.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// Peak memory of parsing, per byte of the header: measured as 9 for many tensors, and as 39 for a shape of many dimensions.
const PARSED_PER_BYTE: u64 = 40;

/// Keys of the metadata. Checksums are text, as all metadata is.
pub(super) const TENSOR_CHECKSUMS: &str = "holdall.checksums";
pub(super) const HEADER_CHECKSUM: &str = "holdall.header_checksum";
/// Placeholder for the header's checksum while it is computed.
pub(super) const NO_CHECKSUM: &str = "0000000000000000";

/// Position of the digits of the header's own checksum; `None` unless there is exactly one.
pub(super) fn header_checksum_place(header: &[u8]) -> Option<Range<usize>> {
    let key = format!("\"{HEADER_CHECKSUM}\":\"");
    let windows = header.windows(key.len()).enumerate();
    let mut places = windows.filter(|(_, bytes)| *bytes == key.as_bytes());
    let start = places.next()?.0 + key.len();
    let place = start..start + Checksum::DIGITS;
    (places.next().is_none() && place.end <= header.len()).then_some(place)
}

pub(crate) struct WeightsFile {
    path: PathBuf,
    map: Mmap,
    data_start: usize,
    /// In the order of their data.
    tensors: Vec<(String, TensorInfo)>,
    /// Header entries besides tensors.
    metadata: serde_json::Map<String, serde_json::Value>,
    /// `None` where another program wrote the file.
    checksums: Option<Checksums>,
}

struct Checksums {
    header: Checksum,
    /// In the order of their data.
    tensors: Vec<Checksum>,
}

impl WeightsFile {
    pub(crate) fn open(path: &Path) -> Result<WeightsFile, ModelError> {
        let failed = |action| {
            move |cause| ModelError::Io {
                path: path.into(),
                action,
                cause,
            }
        };
        let file = File::open(path).map_err(failed("open it"))?;
        let found_bytes = file.metadata().map_err(failed("read its size"))?.len();
        let truncated = |expected_bytes| ModelError::Truncated {
            file: path.into(),
            expected_bytes,
            found_bytes,
        };
        if found_bytes < LENGTH_BYTES {
            return Err(truncated(LENGTH_BYTES.into()));
        }
        // SAFETY: the map is read-only and private to this struct, and its bytes are only read as integers and floats, for which
        // every bit pattern is valid. The remaining hazard is another process that shortens the file while it is mapped, which
        // kills this process with SIGBUS. `write_folder` never does so: it renames a new file over the old, and the map keeps
        // the old one.
        let map = unsafe { Mmap::map(&file) }.map_err(failed("map it into memory"))?;

        let mut length_field = [0; LENGTH_BYTES as usize];
        length_field.copy_from_slice(&map[..LENGTH_BYTES as usize]);
        let header_bytes = u64::from_le_bytes(length_field);
        if header_bytes > MOST_HEADER_BYTES {
            return Err(ModelError::HeaderLength {
                file: path.into(),
                limit_bytes: MOST_HEADER_BYTES,
                found_bytes: header_bytes,
            });
        }
        let data_start = (LENGTH_BYTES + header_bytes) as usize;
        let Some(header) = map.get(LENGTH_BYTES as usize..data_start) else {
            return Err(truncated(data_start as u128));
        };
        check_memory(header_bytes.saturating_mul(PARSED_PER_BYTE)).map_err(|over| {
            ModelError::HeaderOverBudget {
                file: path.into(),
                header_bytes,
                over,
            }
        })?;
        let header = std::str::from_utf8(header).map_err(|error| ModelError::NotUtf8 {
            file: path.into(),
            part: "its header",
            valid_bytes: error.valid_up_to(),
        })?;
        let Entries {
            mut tensors,
            metadata,
        } = serde_json::from_str(header).map_err(|cause| ModelError::Json {
            file: path.into(),
            expected: "a safetensors header",
            found: cause.to_string(),
        })?;
        let checksums = checksums(path, &map[..data_start], &metadata, tensors.len())?;
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        check_names(path, &tensors)?;
        check_layout(path, data_start, map.len(), &tensors)?;
        Ok(WeightsFile {
            path: path.into(),
            map,
            data_start,
            tensors,
            metadata,
            checksums,
        })
    }

    /// Checksum of the header, which covers those of the tensors: equal for equal files. `None` where another program wrote the file.
    pub(crate) fn checksum(&self) -> Option<Checksum> {
        self.checksums.as_ref().map(|checksums| checksums.header)
    }

    /// Passes a tensor's bytes to `read` in pieces of at most `piece_bytes` and compares them with the checksum, if there is one. Releases
    /// the pages after reading.
    pub(crate) fn read(
        &self,
        name: &str,
        info: &TensorInfo,
        piece_bytes: usize,
        mut read: impl FnMut(&[u8]),
    ) -> Result<(), ModelError> {
        let mut found = RunningChecksum::default();
        for piece in self.bytes(info).chunks(piece_bytes) {
            if self.checksums.is_some() {
                found.add(piece);
            }
            read(piece);
            self.give_back();
        }
        let Some(checksums) = &self.checksums else {
            return Ok(());
        };
        let place = self.tensors.iter().position(|(known, _)| known == name);
        let expected = place.map(|place| checksums.tensors[place]);
        if expected == Some(found.value()) {
            Ok(())
        } else {
            Err(ModelError::Damaged {
                file: self.path.clone(),
                part: format!("tensor `{name}`"),
                expected: expected.map_or("no such tensor".into(), |sum| format!("checksum {sum}")),
                found: found.value().to_string(),
            })
        }
    }

    pub(crate) fn verify(&self) -> Result<(), ModelError> {
        const PIECE_BYTES: usize = 1 << 20;
        let mut tensors = self.tensors.iter();
        tensors.try_for_each(|(name, info)| self.read(name, info, PIECE_BYTES, |_| ()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn tensors(&self) -> &[(String, TensorInfo)] {
        &self.tensors
    }

    /// A text value of the header's metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key)?.as_str()
    }

    pub(crate) fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let (start, end) = info.data_offsets;
        &self.map[self.data_start + start..self.data_start + end]
    }

    /// Releases the map's resident pages, which count as this process's memory; they are read from the file again on the next
    /// access.
    pub(crate) fn give_back(&self) {
        #[cfg(unix)]
        // SAFETY: the map is read-only and backed by a file, so dropping its pages loses nothing.
        let _ = unsafe {
            self.map
                .unchecked_advise(memmap2::UncheckedAdvice::DontNeed)
        };
    }
}

/// Parses the header's checksums and verifies the header's own.
fn checksums(
    path: &Path,
    header: &[u8],
    metadata: &serde_json::Map<String, serde_json::Value>,
    num_tensors: usize,
) -> Result<Option<Checksums>, ModelError> {
    let [of_header, of_tensors] = [HEADER_CHECKSUM, TENSOR_CHECKSUMS].map(|key| metadata.get(key));
    if of_header.is_none() && of_tensors.is_none() {
        return Ok(None);
    }
    let damaged = |expected: String, found: String| ModelError::Damaged {
        file: path.into(),
        part: "its header".into(),
        expected,
        found,
    };
    let text = |value: Option<&serde_json::Value>| -> String {
        let text = value.and_then(serde_json::Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let written = text(of_header).parse::<Checksum>();
    let (Ok(written), Some(place)) = (written, header_checksum_place(header)) else {
        let found = format!("`{HEADER_CHECKSUM}`: {of_header:?}");
        return Err(damaged("one checksum of itself".into(), found));
    };
    let mut blank = header.to_vec();
    blank[place].copy_from_slice(NO_CHECKSUM.as_bytes());
    let found = Checksum::of(&blank);
    if found != written {
        return Err(damaged(format!("checksum {written}"), found.to_string()));
    }
    let texts = text(of_tensors);
    let parsed: Result<Vec<Checksum>, _> = texts.split_whitespace().map(str::parse).collect();
    match parsed {
        Ok(tensors) if tensors.len() == num_tensors => Ok(Some(Checksums {
            header: written,
            tensors,
        })),
        _ => Err(damaged(
            format!("{num_tensors} checksums of tensors"),
            format!("{} words", texts.split_whitespace().count()),
        )),
    }
}

fn check_names(path: &Path, tensors: &[(String, TensorInfo)]) -> Result<(), ModelError> {
    let mut names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(ModelError::DuplicateTensor {
            tensor: pair[0].into(),
            first: path.into(),
            second: path.into(),
        }),
    }
}

/// Checks that the tensors, in the order of their offsets, fill the data part without gaps, each with exactly the bytes that
/// its shape and type need.
fn check_layout(
    path: &Path,
    data_start: usize,
    file_bytes: usize,
    tensors: &[(String, TensorInfo)],
) -> Result<(), ModelError> {
    let data_end = tensors
        .iter()
        .map(|(_, info)| info.data_offsets.1)
        .max()
        .unwrap_or(0);
    let expected_bytes = data_start as u128 + data_end as u128;
    if expected_bytes > file_bytes as u128 {
        return Err(ModelError::Truncated {
            file: path.into(),
            expected_bytes,
            found_bytes: file_bytes as u64,
        });
    }
    if expected_bytes < file_bytes as u128 {
        return Err(ModelError::TrailingBytes {
            file: path.into(),
            expected_bytes,
            found_bytes: file_bytes as u64,
        });
    }
    let mut expected_start = 0;
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        let bits =
            num_values(&info.shape).and_then(|count| count.checked_mul(info.dtype.bitsize()));
        let fits =
            bits.is_some_and(|bits| bits % 8 == 0 && start.checked_add(bits / 8) == Some(end));
        if !fits {
            let bytes = match bits {
                Some(bits) => bits.div_ceil(8).to_string(),
                None => "impossibly many".into(),
            };
            return Err(ModelError::TensorBytes {
                file: path.into(),
                tensor: name.clone(),
                expected: format!("{bytes} bytes for shape {:?} of {}", info.shape, info.dtype),
                found_bytes: end as i128 - start as i128,
            });
        }
        if start != expected_start {
            return Err(ModelError::Placement {
                file: path.into(),
                tensor: name.clone(),
                expected: expected_start,
                found: start,
            });
        }
        expected_start = end;
    }
    Ok(())
}

/// Entries of a header in file order, duplicate names included.
#[derive(Default)]
struct Entries {
    tensors: Vec<(String, TensorInfo)>,
    metadata: serde_json::Map<String, serde_json::Value>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Entries::default();
        while let Some(name) = map.next_key::<String>()? {
            let value: serde_json::Value = map.next_value()?;
            if name == "__metadata__" {
                if let serde_json::Value::Object(metadata) = value {
                    entries.metadata = metadata;
                }
                continue;
            }
            let info = TensorInfo::deserialize(value)
                .map_err(|cause| A::Error::custom(format!("in `{name}`, {cause}")))?;
            entries.tensors.push((name, info));
        }
        Ok(entries)
    }
}
