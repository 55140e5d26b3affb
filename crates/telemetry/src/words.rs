//! Numbers as messages write them.

/// `2,400`.
pub fn thousands(number: u64) -> String {
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

/// `1 line`, `2,400 lines`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number))
}

/// `1.50 GiB`.
pub fn show_bytes(bytes: f64) -> String {
    const UNITS: [(f64, &str, usize); 4] = [
        (1_099_511_627_776.0, "TiB", 2),
        (1_073_741_824.0, "GiB", 2),
        (1_048_576.0, "MiB", 1),
        (1_024.0, "KiB", 1),
    ];
    let unit = UNITS.iter().find(|(size, _, _)| bytes.abs() >= *size);
    match unit {
        Some((size, name, digits)) => format!("{:.*} {name}", digits, bytes / size),
        None => format!("{bytes:.0} B"),
    }
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
        assert_eq!(counted(1, "line"), "1 line");
        assert_eq!(counted(1_234_567, "line"), "1,234,567 lines");
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
