//! Number formatting for messages.

use std::fmt::Display;

/// An integer with thousands separators: `2,400`.
pub fn thousands(number: impl Display) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 row`, `2,400 rows`.
pub fn counted(number: impl Display, noun: &str) -> String {
    let number = thousands(number);
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Bytes in binary units: `3.10 GiB`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(2400), "2,400");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(counted(1, "row"), "1 row");
        assert_eq!(counted(2400, "row"), "2,400 rows");
    }
}
