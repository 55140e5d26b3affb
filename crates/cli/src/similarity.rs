//! Lines that people look for in the log of an evaluation.

use holdall_data::words::thousands;

/// Below, the similarities may be held all at once.
pub const DENSE_BYTES: u64 = 2 << 30;

/// `23,592 unique texts out of 117,120`.
pub fn unique_texts(num_texts: usize, num_captions: usize) -> String {
    format!(
        "{} unique texts out of {}",
        thousands(num_texts),
        thousands(num_captions)
    )
}

/// How large the similarity matrix would be, and therefore what is done. `room_bytes` is what a limit leaves for it.
pub fn matrix(num_queries: usize, num_gallery: usize, room_bytes: Option<u64>) -> String {
    let bytes = num_queries as u128 * num_gallery as u128 * size_of::<f32>() as u128;
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let size = size(bytes);
    match room_bytes {
        _ if bytes >= DENSE_BYTES => {
            format!("The similarity matrix would take {size}: streaming in tiles")
        }
        Some(room_bytes) if bytes > room_bytes => format!(
            "The similarity matrix would take {size}, more than the limit leaves: streaming in tiles"
        ),
        _ => format!("The similarity matrix takes {size}, less than 2.0 GiB: no streaming needed"),
    }
}

/// One digit behind the point: `10.3 GiB`.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
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
            matrix(117_120, 23_592, None),
            "The similarity matrix would take 10.3 GiB: streaming in tiles"
        );
        assert_eq!(
            matrix(20_000, 5_000, Some(1 << 20)),
            "The similarity matrix would take 381.5 MiB, more than the limit leaves: streaming in tiles"
        );
        assert!(matrix(20_000, 5_000, None).contains("takes 381.5 MiB"));
        assert!(matrix(usize::MAX, usize::MAX, None).contains("TiB: streaming"));
    }
}
