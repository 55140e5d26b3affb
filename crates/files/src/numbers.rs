/// Bytes for people: `3.10 GiB`.
pub fn show_bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", value / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", value / 1_048_576.0),
        1_073_741_824..1_099_511_627_776 => format!("{:.2} GiB", value / 1_073_741_824.0),
        _ => format!("{:.2} TiB", value / 1_099_511_627_776.0),
    }
}
