//! Convolution weights: `[a, b, height, width]` in PyTorch and in model folders, `[a, height, width, b]` here.

/// From a folder's layout to that of the graph.
pub fn to_channels_last(shape: &[usize], values: &[f32]) -> Vec<f32> {
    let Some([outer, channels, pixels]) = sizes(shape) else {
        return values.to_vec();
    };
    transpose_each(values, outer, channels, pixels)
}

/// From the graph's layout to that of a folder; `shape` is the folder's.
pub fn to_channels_first(shape: &[usize], values: &[f32]) -> Vec<f32> {
    let Some([outer, channels, pixels]) = sizes(shape) else {
        return values.to_vec();
    };
    transpose_each(values, outer, pixels, channels)
}

/// Outermost, channels and pixels of a weight that has four dimensions.
fn sizes(shape: &[usize]) -> Option<[usize; 3]> {
    match *shape {
        [outer, channels, height, width] => Some([outer, channels, height * width]),
        _ => None,
    }
}

/// Each of `outer` matrices of `rows x columns`, transposed.
fn transpose_each(values: &[f32], outer: usize, rows: usize, columns: usize) -> Vec<f32> {
    let each = rows * columns;
    assert_eq!(values.len(), outer * each, "values of a weight");
    let mut transposed = Vec::with_capacity(values.len());
    for matrix in values.chunks(each.max(1)) {
        for column in 0..columns {
            transposed.extend((0..rows).map(|row| matrix[row * columns + column]));
        }
    }
    transposed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_comes_back_and_its_channels_are_last_between() {
        let shape = [2, 3, 1, 2];
        let values: Vec<f32> = (0..12).map(|number| number as f32).collect();
        let last = to_channels_last(&shape, &values);
        assert_eq!(&last[..6], [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        assert_eq!(to_channels_first(&shape, &last), values);
        assert_eq!(to_channels_last(&[12], &values), values);
    }
}
