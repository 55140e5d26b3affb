//! Log lines about the size of a retrieval evaluation.

use holdall_files::{show_bytes, thousands};

/// Lines about the number of texts and the size of the similarity matrix.
pub(crate) fn size_of_evaluation(num_texts: usize, num_rows: usize) -> String {
    let lines = [
        Some(unique_texts(num_texts, num_rows)),
        matrix(num_rows, num_texts),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// For example `23,592 unique texts out of 117,120`.
pub fn unique_texts(num_texts: usize, num_rows: usize) -> String {
    format!(
        "{} unique texts out of {}",
        thousands(num_texts),
        thousands(num_rows)
    )
}

/// Smallest similarity matrix that is mentioned.
const LARGE_BYTES: u64 = 2 << 30;

/// Size of the similarity matrix, with the remark that it is never stored; `None` for a small one.
pub fn matrix(num_queries: usize, num_gallery: usize) -> Option<String> {
    let bytes = num_queries as u128 * num_gallery as u128 * size_of::<f32>() as u128;
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let size = show_bytes(bytes);
    (bytes >= LARGE_BYTES)
        .then(|| format!("The similarity matrix would take {size}: streaming in tiles"))
}

/// A share in percent: values below 0.1% keep a second digit.
pub fn percent(share: f64) -> String {
    match 100.0 * share {
        share if share > 0.0 && share < 0.1 => format!("{share:.2}%"),
        share => format!("{share:.1}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_people_look_for_them() {
        assert_eq!(
            unique_texts(23_592, 117_120),
            "23,592 unique texts out of 117,120"
        );
        assert_eq!(
            matrix(117_120, 23_592).unwrap(),
            "The similarity matrix would take 10.29 GiB: streaming in tiles"
        );
        assert_eq!(matrix(20_000, 5_000), None);
        assert!(
            matrix(usize::MAX, usize::MAX)
                .unwrap()
                .contains("TiB: streaming")
        );
    }
}
