//! Layouts of convolution weights: `[a, b, height, width]` in PyTorch and in model folders, `[a, height, width, b]` in graphs.

/// Converts from a folder's layout to the graph's, in place; `shape` is the folder's.
pub fn to_channels_last(shape: &[usize], values: &mut [f32]) {
    if let [_, channels, height, width] = *shape {
        let pixels = height * width;
        let mut transposed = Vec::new();
        for matrix in values.chunks_mut((channels * pixels).max(1)) {
            transpose(matrix, [channels, pixels], &mut transposed);
            matrix.copy_from_slice(&transposed);
        }
    }
}

/// Converts from the graph's layout to a folder's, which has this `shape`, one output channel at a time: no second copy of the weight.
///
/// # Errors
/// The errors of `write`.
pub fn for_channels_first<E>(
    shape: &[usize],
    values: &[f32],
    mut write: impl FnMut(&[f32]) -> Result<(), E>,
) -> Result<(), E> {
    let [_, channels, height, width] = *shape else {
        return write(values);
    };
    let pixels = height * width;
    let mut transposed = Vec::new();
    for matrix in values.chunks((channels * pixels).max(1)) {
        transpose(matrix, [pixels, channels], &mut transposed);
        write(&transposed)?;
    }
    Ok(())
}

/// Transposes a matrix of `rows x columns`.
fn transpose(matrix: &[f32], [rows, columns]: [usize; 2], to: &mut Vec<f32>) {
    assert_eq!(matrix.len(), rows * columns, "values of a weight");
    to.clear();
    for column in 0..columns {
        to.extend((0..rows).map(|row| matrix[row * columns + column]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_comes_back_and_its_channels_are_last_between() {
        let shape = [2, 3, 1, 2];
        let values: Vec<f32> = (0..12).map(|number| number as f32).collect();
        let mut last = values.clone();
        to_channels_last(&shape, &mut last);
        assert_eq!(&last[..6], [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        let mut pieces: Vec<Vec<f32>> = Vec::new();
        let keep = |piece: &[f32]| -> Result<(), ()> {
            pieces.push(piece.to_vec());
            Ok(())
        };
        for_channels_first(&shape, &last, keep).unwrap();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces.concat(), values);
        let mut flat = values.clone();
        to_channels_last(&[12], &mut flat);
        assert_eq!(flat, values);
    }
}
