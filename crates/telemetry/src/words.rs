//! Formatting of numbers in messages.

pub(crate) use holdall_files::{counted, thousands};

/// `1.50 GiB`, `-3.0 MiB`.
pub fn show_bytes(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "-" } else { "" };
    let bytes = bytes.abs().round() as u64;
    format!("{sign}{}", holdall_files::show_bytes(bytes))
}

/// `41 ms`, `2.5 s`, `12 min`, `3.1 h`, `4 days`.
pub fn show_duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// A share as a percentage: `8%`, `0.12%`.
pub fn percent(share: f64) -> String {
    match share.abs() * 100.0 {
        p if p >= 10.0 || p == 0.0 => format!("{:.0}%", share * 100.0),
        p if p >= 1.0 => format!("{:.1}%", share * 100.0),
        _ => format!("{:.2}%", share * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(show_bytes(1.5 * 1_073_741_824.0), "1.50 GiB");
        assert_eq!(show_bytes(-3.0 * 1_048_576.0), "-3.0 MiB");
        assert_eq!(show_bytes(12.0), "12 B");
        assert_eq!(show_duration(0.041), "41 ms");
        assert_eq!(show_duration(11_160.0), "3.1 h");
        assert_eq!(percent(0.08), "8.0%");
        assert_eq!(percent(0.95), "95%");
        assert_eq!(percent(0.0012), "0.12%");
    }
}
