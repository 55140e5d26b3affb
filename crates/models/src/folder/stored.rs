//! Tensors as stored in a file, and their conversion to `f32`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::weights_file::WeightsFile;
use crate::error::ModelError;

/// Number formats of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats with 5 bits of exponent.
    F16,
    /// 16-bit floats with 8 bits of exponent.
    Bf16,
    /// 64-bit floats.
    F64,
}

/// A tensor as stored in its file.
#[derive(Debug, Clone, Copy)]
pub struct StoredTensor<'a> {
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    pub stored_type: StoredType,
    /// Values, little-endian, unaligned.
    pub bytes: &'a [u8],
}

pub(super) fn stored_type(
    file: &WeightsFile,
    name: &str,
    info: &TensorInfo,
) -> Result<StoredType, ModelError> {
    match info.dtype {
        Dtype::F32 => Ok(StoredType::F32),
        Dtype::F16 => Ok(StoredType::F16),
        Dtype::BF16 => Ok(StoredType::Bf16),
        Dtype::F64 => Ok(StoredType::F64),
        other => Err(ModelError::TensorType {
            file: file.path().into(),
            tensor: name.into(),
            found: other.to_string(),
        }),
    }
}

/// Converts `bytes`, which hold as many values as `values`.
pub(super) fn convert(stored_type: StoredType, bytes: &[u8], values: &mut [f32]) {
    match stored_type {
        StoredType::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        StoredType::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        StoredType::F64 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f64::from_le_bytes(*bytes) as f32;
            }
        }
        StoredType::F16 => {
            // The vectorised conversion needs aligned input: a small buffer.
            let mut aligned = [f16::ZERO; 1024];
            for (values, bytes) in values.chunks_mut(1024).zip(bytes.chunks(2 * 1024)) {
                let aligned = &mut aligned[..values.len()];
                for (half, bytes) in aligned.iter_mut().zip(bytes.as_chunks().0) {
                    *half = f16::from_le_bytes(*bytes);
                }
                aligned.convert_to_f32_slice(values);
            }
        }
    }
}
