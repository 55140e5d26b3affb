//! Arrays for other programs: `.safetensors`, or `.npy` as NumPy defines it (version 1.0).

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use holdall_train::TrainError;
use holdall_train::run_folder::write_whole;
use safetensors::tensor::{Dtype, TensorView, serialize};

/// Refuses other names before any work is done.
pub fn check_name(path: &Path) -> Result<()> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy" | "safetensors") => Ok(()),
        _ => Err(TrainError::Config(format!(
            "--features {}: expected a name that ends in .npy or .safetensors\nhint: --features features.npy",
            path.display()
        ))
        .into()),
    }
}

/// Writes rows of `width` numbers, whole or not at all.
pub fn write(path: &Path, name: &str, values: &[f32], width: usize) -> Result<()> {
    let rows = values.len() / width;
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let file = if path.extension().is_some_and(|extension| extension == "npy") {
        npy(&bytes, rows, width)?
    } else {
        let view = TensorView::new(Dtype::F32, vec![rows, width], &bytes)?;
        serialize([(name, view)], None)?
    };
    Ok(write_whole(path, &file)?)
}

/// Magic, version, length of the header, a Python dictionary padded to 64 bytes, the numbers.
fn npy(bytes: &[u8], rows: usize, width: usize) -> Result<Vec<u8>> {
    const BEFORE_HEADER: usize = 10;
    let mut header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let length = (BEFORE_HEADER + header.len() + 1).next_multiple_of(64) - BEFORE_HEADER;
    header.push_str(&" ".repeat(length - header.len() - 1));
    header.push('\n');
    let mut file = Vec::with_capacity(BEFORE_HEADER + length + bytes.len());
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&u16::try_from(length)?.to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_starts_at_a_multiple_of_64_bytes() {
        for (rows, width) in [(1, 1), (12345, 512), (0, 7)] {
            let file = npy(&vec![0; rows * width * 4], rows, width).unwrap();
            let length = u16::from_le_bytes([file[8], file[9]]) as usize;
            assert_eq!((10 + length) % 64, 0);
            assert_eq!(file.len(), 10 + length + rows * width * 4);
            let header = std::str::from_utf8(&file[10..10 + length]).unwrap();
            assert!(header.contains(&format!("({rows}, {width})")) && header.ends_with('\n'));
        }
    }
}
