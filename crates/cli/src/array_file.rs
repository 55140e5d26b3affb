//! Writes arrays for other programs: `.safetensors`, or `.npy` in NumPy's format 1.0.

use std::path::Path;

use anyhow::Result;
use holdall_train::TrainError;
use holdall_train::run_folder::folder::write_whole;
use safetensors::tensor::{Dtype, TensorView, serialize};

/// Refuses other extensions before any work is done.
pub fn check_name(option: &str, path: &Path) -> Result<()> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy" | "safetensors") => Ok(()),
        _ => Err(TrainError::Config(format!(
            "{option} {}: expected a name that ends in .npy or .safetensors\nhint: {option} features.npy",
            path.display()
        ))
        .into()),
    }
}

/// Writes rows of `width` numbers atomically.
pub fn write(path: &Path, name: &str, values: &[f32], width: usize) -> Result<()> {
    let rows = values.len() / width;
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let file = if path.extension().is_some_and(|extension| extension == "npy") {
        [npy_header("<f4", rows, width), bytes].concat()
    } else {
        let view = TensorView::new(Dtype::F32, vec![rows, width], &bytes)?;
        serialize([(name, view)], None)?
    };
    Ok(write_whole(path, &file)?)
}

/// A `.npy` header: magic, version, header length, a Python dictionary padded to 64 bytes. The numbers follow, row by row.
pub fn npy_header(format: &str, rows: usize, width: usize) -> Vec<u8> {
    npy_header_of(format, &[rows, width])
}

/// Like [`npy_header`], for two or more dimensions.
pub fn npy_header_of(format: &str, shape: &[usize]) -> Vec<u8> {
    const BEFORE_HEADER: usize = 10;
    let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
    let shape = shape.join(", ");
    let mut header =
        format!("{{'descr': '{format}', 'fortran_order': False, 'shape': ({shape}), }}");
    let length = (BEFORE_HEADER + header.len() + 1).next_multiple_of(64) - BEFORE_HEADER;
    header.push_str(&" ".repeat(length - header.len() - 1));
    header.push('\n');
    let length = u16::try_from(length).expect("a few numbers take few digits");
    [
        b"\x93NUMPY\x01\x00",
        &length.to_le_bytes()[..],
        header.as_bytes(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_starts_at_a_multiple_of_64_bytes() {
        for (rows, width) in [(1, 1), (12345, 512), (0, 7)] {
            let file = npy_header("<f4", rows, width);
            let length = u16::from_le_bytes([file[8], file[9]]) as usize;
            assert_eq!((10 + length) % 64, 0);
            assert_eq!(file.len(), 10 + length);
            let header = std::str::from_utf8(&file[10..10 + length]).unwrap();
            assert!(header.contains(&format!("({rows}, {width})")) && header.ends_with('\n'));
        }
    }
}
