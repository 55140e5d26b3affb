//! What the user may spend: `8GiB`, `8GB`, `80%`, `auto`.

use holdall_telemetry::words;
use serde::{Deserialize, Serialize};

pub use holdall_files::show_bytes;

/// A memory budget as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Memory {
    /// 95% of the device, or what is free at the start less a reserve, whichever is smaller.
    #[default]
    Auto,
    /// A promise in bytes.
    Bytes(u64),
    /// A share of the device.
    Percent(f64),
}

/// On `auto`, what is left to others; in small containers one part in [`AUTO_RESERVE_PART`].
const AUTO_RESERVE_BYTES: u64 = 256 << 20;
const AUTO_RESERVE_PART: u64 = 16;

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl std::str::FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Memory, String> {
        let wrong = || {
            format!(
                "memory `{text}`: expected a size such as 8GiB or 8GB, a share such as 80%, or auto\n\
                 hint: --memory 8GiB"
            )
        };
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("auto") {
            return Ok(Memory::Auto);
        }
        let positive = |number: &str| {
            let number: f64 = number.trim().parse().ok()?;
            (number.is_finite() && number > 0.0).then_some(number)
        };
        if let Some(number) = trimmed.strip_suffix('%') {
            return positive(number)
                .filter(|&percent| percent <= 100.0)
                .map(Memory::Percent)
                .ok_or_else(wrong);
        }
        let lower = trimmed.to_ascii_lowercase();
        for (unit, bytes) in UNITS {
            if let Some(number) = lower.strip_suffix(&unit.to_ascii_lowercase()) {
                let total = positive(number).ok_or_else(wrong)? * bytes as f64;
                return if total < u64::MAX as f64 {
                    Ok(Memory::Bytes(total as u64))
                } else {
                    Err(wrong())
                };
            }
        }
        Err(wrong())
    }
}

impl TryFrom<String> for Memory {
    type Error = String;

    fn try_from(text: String) -> Result<Memory, String> {
        // Whoever reads a file adds a hint of its own.
        text.parse().map_err(|error: String| {
            error
                .split_once('\n')
                .map_or(error.clone(), |(what, _)| what.to_owned())
        })
    }
}

impl From<Memory> for String {
    fn from(memory: Memory) -> String {
        match memory {
            Memory::Auto => "auto".to_owned(),
            Memory::Bytes(bytes) => format!("{bytes}B"),
            Memory::Percent(percent) => format!("{percent}%"),
        }
    }
}

impl Memory {
    /// Bytes, given what the machine has and what is free.
    pub fn resolve(self, total_bytes: u64, free_bytes: u64) -> u64 {
        match self {
            Memory::Auto => {
                let reserve = AUTO_RESERVE_BYTES.min(total_bytes / AUTO_RESERVE_PART);
                (total_bytes / 100 * 95).min(free_bytes.saturating_sub(reserve))
            }
            Memory::Bytes(bytes) => bytes,
            Memory::Percent(percent) => (total_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

/// Milliseconds for people: `41 ms`, `2.5 s`, `12 min`, `3.1 h`.
pub fn show_time(milliseconds: f64) -> String {
    words::show_duration(milliseconds / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        let parse = |text: &str| text.parse::<Memory>();
        assert_eq!(parse("8GiB"), Ok(Memory::Bytes(8 << 30)));
        assert_eq!(parse("8 GB"), Ok(Memory::Bytes(8_000_000_000)));
        assert_eq!(parse("1.5gib"), Ok(Memory::Bytes(3 << 29)));
        assert_eq!(parse("512MiB"), Ok(Memory::Bytes(512 << 20)));
        assert_eq!(parse("80%"), Ok(Memory::Percent(80.0)));
        assert_eq!(parse("auto"), Ok(Memory::Auto));
        for wrong in [
            "",
            "8",
            "GiB",
            "-1GiB",
            "0%",
            "120%",
            "8 gallons",
            "nanGiB",
            "1e30TiB",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn auto_leaves_a_reserve() {
        let gib = 1 << 30;
        assert_eq!(Memory::Auto.resolve(100 * gib, 200 * gib), 95 * gib);
        assert_eq!(Memory::Auto.resolve(100 * gib, gib), gib - (256 << 20));
        assert_eq!(Memory::Auto.resolve(gib / 4, gib / 4), gib / 4 - gib / 64);
        assert_eq!(Memory::Percent(50.0).resolve(100 * gib, gib), 50 * gib);
    }
}
