//! Memory-mapped feature files of any framework: `.npy` and `.safetensors`, in f32, f16 and bf16.
//!
//! ```python
//! np.save("images.npy", features)                                              # rows x values, float32 or float16
//! safetensors.torch.save_file({"images": features}, "images.safetensors")      # bfloat16 too
//! ```
//!
//! NumPy has no bf16: arrays of `ml_dtypes.bfloat16` are saved as `<V2`, two bytes of a type unknown to NumPy. `<V2` and
//! `bfloat16` are therefore read as bf16; `|V2`, two untyped bytes, is refused.

use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::error::InputError;
use crate::features::mapped_file::MappedFile;
use crate::features::npy_header;
use crate::features::{Element, Features, Segment, safetensors_header};

const EXPECTED: &str = "f32, f16 or bf16, least significant byte first";

/// Location and format of a file's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeatureLayout {
    element: Element,
    num_rows: usize,
    dimension: usize,
    data_start: usize,
    num_bytes: usize,
}

/// File format, by the file name's extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suffix {
    Npy,
    Safetensors,
}

impl FeatureLayout {
    /// Parses untrusted bytes of a file of this kind; the layout lies within them.
    pub(crate) fn read(
        path: &Path,
        kind: Suffix,
        file: &[u8],
        tensor: Option<&str>,
    ) -> Result<FeatureLayout, InputError> {
        let (element, shape, data_start) = match kind {
            Suffix::Npy => {
                let header = npy_header::read(path, file)?;
                let element = npy_element(path, &header.format)?;
                npy_header::check_length(&header, path, file, element.num_bytes())?;
                if header.columns_first && header.shape.iter().filter(|&&size| size > 1).count() > 1
                {
                    return Err(InputError::ColumnsFirst { path: path.into() });
                }
                (element, header.shape, header.data_start)
            }
            Suffix::Safetensors => {
                let found = safetensors_header::find(path, file, tensor)?;
                let element = tensor_element(path, &found)?;
                (element, found.shape, found.data_start)
            }
        };
        let [num_rows, dimension] = shape[..] else {
            return Err(InputError::Shape {
                path: path.into(),
                expected: "rows x values",
                found: shape,
                hint: "one row per item: features.reshape(len(features), -1)",
            });
        };
        for (size, what) in [(num_rows, "row"), (dimension, "value in a row")] {
            if size == 0 {
                return Err(InputError::NoRows {
                    path: path.into(),
                    what,
                    shape: shape.clone(),
                });
            }
        }
        Ok(FeatureLayout {
            element,
            num_rows,
            dimension,
            data_start,
            // In bounds: the length of the file was checked.
            num_bytes: num_rows * dimension * element.num_bytes(),
        })
    }

    pub(crate) fn segment<'a>(&self, file: &'a [u8]) -> Segment<'a> {
        Segment {
            bytes: &file[self.data_start..][..self.num_bytes],
            element: self.element,
        }
    }

    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }
}

fn npy_element(path: &Path, format: &str) -> Result<Element, InputError> {
    let hint = match format {
        "<f4" => return Ok(Element::F32),
        "<f2" => return Ok(Element::F16),
        "<V2" | "bfloat16" => return Ok(Element::Bf16),
        _ if format.starts_with("|O") => return Err(InputError::Objects { path: path.into() }),
        "<f8" | ">f8" => "np.save(\"features.npy\", features.astype(np.float32))",
        ">f4" => "the bytes are the other way round: features.astype(\"<f4\")",
        ">f2" => "the bytes are the other way round: features.astype(\"<f2\")",
        "|V2" => "bf16 is saved as `<V2` by ml_dtypes, and by safetensors.torch.save_file",
        _ => "np.save(\"features.npy\", features.astype(np.float32))",
    };
    Err(InputError::Element {
        path: path.into(),
        expected: EXPECTED,
        found: format!("`{}`", format.escape_debug()),
        hint,
    })
}

fn tensor_element(
    path: &Path,
    found: &safetensors_header::HeaderTensor,
) -> Result<Element, InputError> {
    match found.element {
        Dtype::F32 => Ok(Element::F32),
        Dtype::F16 => Ok(Element::F16),
        Dtype::BF16 => Ok(Element::Bf16),
        other => Err(InputError::Element {
            path: path.into(),
            expected: EXPECTED,
            found: format!("{other} in tensor `{}`", found.name.escape_debug()),
            hint: "save features.float(), or features.half()",
        }),
    }
}

/// One mapped file.
#[derive(Debug)]
pub struct FeatureFile {
    path: PathBuf,
    map: MappedFile,
    layout: FeatureLayout,
}

impl FeatureFile {
    /// Opens `features.npy`, `features.safetensors`, or `features.safetensors:TENSOR` to choose one of several tensors.
    ///
    /// # Errors
    /// See [`InputError`].
    pub fn open(named: &Path) -> Result<FeatureFile, InputError> {
        let (path, tensor) = parted(named, ".safetensors");
        let kind = match extension(&path).as_deref() {
            Some("npy") => Suffix::Npy,
            Some("safetensors") => Suffix::Safetensors,
            other => return Err(unknown(&path, other)),
        };
        let map = MappedFile::open(&path)?;
        let layout = FeatureLayout::read(&path, kind, map.bytes(), tensor.as_deref())?;
        Ok(FeatureFile { path, map, layout })
    }

    fn segment(&self) -> Segment<'_> {
        self.layout.segment(self.map.bytes())
    }
}

fn extension(path: &Path) -> Option<String> {
    let extension = path.extension()?.to_string_lossy();
    Some(extension.to_lowercase())
}

/// Splits `FILE.ext:NAME`. A colon elsewhere belongs to the path.
pub fn parted(named: &Path, extension: &str) -> (PathBuf, Option<String>) {
    let text = named.to_string_lossy();
    let mark = format!("{extension}:");
    match text.to_lowercase().rfind(&mark) {
        Some(at) if text.is_char_boundary(at + mark.len()) && !named.is_file() => {
            let at = at + mark.len();
            (PathBuf::from(&text[..at - 1]), Some(text[at..].to_owned()))
        }
        _ => (named.to_owned(), None),
    }
}

fn unknown(path: &Path, extension: Option<&str>) -> InputError {
    let hint = match extension {
        Some("pt" | "pth" | "bin" | "pkl" | "pickle") => {
            "a pickle runs code, and is not read: \
             safetensors.torch.save_file({\"features\": torch.load(\"FILE\").contiguous()}, \"features.safetensors\")"
        }
        Some("npz") => "np.save(\"features.npy\", np.load(\"FILE.npz\")[\"NAME\"])",
        _ => {
            "np.save(\"features.npy\", features), or \
             safetensors.torch.save_file({\"features\": features}, \"features.safetensors\")"
        }
    };
    InputError::Kind {
        path: path.into(),
        expected: "features in a file named .npy or .safetensors",
        hint,
    }
}

/// The rows of one side, from one file or from the shards of several processes, in the given order.
#[derive(Debug)]
pub struct FeatureFiles {
    files: Vec<FeatureFile>,
}

impl FeatureFiles {
    /// Opens all files.
    ///
    /// # Errors
    /// The first file that cannot be read, or whose rows have another length than the first file's.
    ///
    /// # Panics
    /// If `named` is empty.
    pub fn open<P: AsRef<Path>>(named: &[P]) -> Result<FeatureFiles, InputError> {
        assert!(!named.is_empty(), "at least one file");
        let files = named.iter().map(|named| FeatureFile::open(named.as_ref()));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let first = &files[0];
        for file in &files {
            let (expected, found) = (first.layout.dimension, file.layout.dimension);
            if expected != found {
                return Err(InputError::Dimension {
                    path: file.path.clone(),
                    first: first.path.clone(),
                    expected,
                    found,
                });
            }
        }
        Ok(FeatureFiles { files })
    }

    /// All rows, without copying.
    pub fn features(&self) -> Features<'_> {
        let segments = self.files.iter().map(FeatureFile::segment);
        Features::new(self.dimension(), segments)
    }

    /// The rows with these ascending numbers; consecutive rows share a segment.
    ///
    /// # Panics
    /// If a row is out of range.
    pub fn chosen(&self, rows: &[u32]) -> Features<'_> {
        let mut segments: Vec<Segment<'_>> = Vec::new();
        let mut rows = rows.iter().map(|&row| row as usize).peekable();
        let mut first = 0;
        for file in &self.files {
            let (whole, end) = (file.segment(), first + file.layout.num_rows);
            let row_bytes = file.layout.dimension * file.layout.element.num_bytes();
            while let Some(start) = rows.next_if(|&row| row < end) {
                let mut after = start + 1;
                while rows.next_if(|&row| row == after && row < end).is_some() {
                    after += 1;
                }
                segments.push(Segment {
                    bytes: &whole.bytes[(start - first) * row_bytes..(after - first) * row_bytes],
                    element: whole.element,
                });
            }
            first = end;
        }
        assert!(rows.next().is_none(), "rows of these files, in order");
        Features::new(self.dimension(), segments)
    }

    /// Values per row.
    pub fn dimension(&self) -> usize {
        self.files[0].layout.dimension
    }

    /// Rows of all files.
    pub fn num_rows(&self) -> usize {
        self.files.iter().map(|file| file.layout.num_rows).sum()
    }

    /// Bytes of all rows in their files.
    pub fn num_bytes(&self) -> u64 {
        let files = self.files.iter();
        files.map(|file| file.layout.num_bytes as u64).sum()
    }

    /// Number formats of the files, each once.
    pub fn elements(&self) -> Vec<Element> {
        let mut elements = Vec::new();
        for file in &self.files {
            if !elements.contains(&file.layout.element) {
                elements.push(file.layout.element);
            }
        }
        elements
    }

    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// The file of a row, and the row's number in that file.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn place(&self, row: usize) -> (&Path, usize) {
        let mut row = row;
        for file in &self.files {
            match row.checked_sub(file.layout.num_rows) {
                None => return (&file.path, row),
                Some(behind) => row = behind,
            }
        }
        panic!("a row of these files");
    }

    /// Drops pages from resident memory. Pages that have been read count as this process's memory until then; reading them again loads them
    /// from the file.
    pub fn give_back(&self) {
        for file in &self.files {
            file.map.give_back();
        }
    }
}

#[cfg(test)]
mod tests;
