//! Finds one tensor of rows and columns in a safetensors file.
//!
//! ```text
//! | length of header: u64 | header: JSON, name -> type, shape, offsets | data, tensor after tensor |
//! ```
//!
//! The safetensors crate parses types and entries; offsets are checked here, because the errors of its reader name neither the file nor
//! the numbers.

use std::path::Path;

use holdall_files::check_memory;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use crate::error::InputError;

const LENGTH_BYTES: usize = 8;

/// Peak memory of parsing, per byte of the header: measured as 39 for a shape of many dimensions.
const PARSED_PER_BYTE: u64 = 40;

/// Key of the optional string map in a header.
const TEXTS: &str = "__metadata__";

/// A tensor and the place of its data.
#[derive(Debug)]
pub(crate) struct HeaderTensor {
    pub(crate) name: String,
    pub(crate) element: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data_start: usize,
}

/// The tensor of this name or, without a name, the only two-dimensional one.
pub(crate) fn find(
    path: &Path,
    file: &[u8],
    wanted: Option<&str>,
) -> Result<HeaderTensor, InputError> {
    let (tensors, data_start) = header(path, file)?;
    let names = |tensors: &[&(String, TensorInfo)]| -> Vec<String> {
        tensors.iter().map(|(name, _)| name.clone()).collect()
    };
    let choice: Vec<&(String, TensorInfo)> = match wanted {
        Some(wanted) => tensors.iter().filter(|(name, _)| name == wanted).collect(),
        None => tensors
            .iter()
            .filter(|(_, info)| info.shape.len() == 2)
            .collect(),
    };
    let [(name, info)] = choice.as_slice() else {
        // Without a two-dimensional tensor, or without one of that name, the error lists all tensors.
        let tensors = if choice.is_empty() {
            names(&tensors.iter().collect::<Vec<_>>())
        } else {
            names(&choice)
        };
        return Err(InputError::Tensor {
            path: path.into(),
            wanted: wanted.map(str::to_owned),
            tensors,
        });
    };
    let bits = info
        .shape
        .iter()
        .try_fold(info.dtype.bitsize() as u128, |product, &size| {
            product.checked_mul(size as u128)
        });
    let expected_bytes = bits.map_or(u128::MAX, |bits| bits.div_ceil(8));
    let (start, end) = info.data_offsets;
    let place = end
        .checked_sub(start)
        .filter(|&found| found as u128 == expected_bytes);
    let (Some(_), Some(data_start)) = (place, data_start.checked_add(start)) else {
        return Err(InputError::TensorPlace {
            path: path.into(),
            tensor: name.clone(),
            expected_bytes,
            start,
            end,
        });
    };
    Ok(HeaderTensor {
        name: name.clone(),
        element: info.dtype,
        shape: info.shape.clone(),
        data_start,
    })
}

/// Tensors of the file, with a checked total length, and the offset of the data.
fn header(path: &Path, file: &[u8]) -> Result<(Vec<(String, TensorInfo)>, usize), InputError> {
    let length = |expected_bytes: u128| InputError::Length {
        path: path.into(),
        expected_bytes,
        found_bytes: file.len() as u64,
    };
    let wrong = |found: String| InputError::TensorHeader {
        path: path.into(),
        found,
    };
    let Some(header_bytes) = file.first_chunk::<LENGTH_BYTES>() else {
        return Err(length(LENGTH_BYTES as u128));
    };
    let header_bytes = u64::from_le_bytes(*header_bytes);
    let text = usize::try_from(header_bytes)
        .ok()
        .and_then(|bytes| file.get(LENGTH_BYTES..)?.get(..bytes));
    let Some(text) = text else {
        return Err(length(LENGTH_BYTES as u128 + u128::from(header_bytes)));
    };
    let header_bytes = text.len() as u64;
    check_memory(header_bytes.saturating_mul(PARSED_PER_BYTE)).map_err(|over| {
        InputError::HeaderOverBudget {
            path: path.into(),
            header_bytes,
            over,
        }
    })?;
    let entries: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(text).map_err(|cause| wrong(cause.to_string()))?;
    let mut tensors = Vec::new();
    for (name, entry) in entries {
        if name == TEXTS {
            continue;
        }
        let info: TensorInfo = serde_json::from_value(entry)
            .map_err(|cause| wrong(format!("`{}`: {cause}", name.escape_debug())))?;
        tensors.push((name, info));
    }
    let data_start = LENGTH_BYTES + text.len();
    let last = tensors.iter().map(|(_, info)| info.data_offsets.1).max();
    let expected_bytes = data_start as u128 + last.unwrap_or(0) as u128;
    if expected_bytes == file.len() as u128 {
        Ok((tensors, data_start))
    } else {
        Err(length(expected_bytes))
    }
}
