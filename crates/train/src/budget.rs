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
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

impl std::str::FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Memory, String> {
        Memory::try_from(text.to_owned()).map_err(|what| format!("{what}\nhint: --memory 8GiB"))
    }
}

impl TryFrom<String> for Memory {
    type Error = String;

    /// Without a hint: whoever reads a file adds one of its own.
    fn try_from(text: String) -> Result<Memory, String> {
        Memory::parse(&text.trim().to_ascii_lowercase()).ok_or_else(|| match text.trim().parse() {
            Ok(number @ 1_u64..) => {
                format!("memory `{text}`: {number} what? {number}GiB, {number}GB or {number}%")
            }
            _ => format!(
                "memory `{text}`: expected a size such as 8GiB or 8GB, a share such as 80%, or auto"
            ),
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
    fn parse(text: &str) -> Option<Memory> {
        if text == "auto" {
            return Some(Memory::Auto);
        }
        let positive = |number: &str| {
            let number: f64 = number.trim().parse().ok()?;
            (number.is_finite() && number > 0.0).then_some(number)
        };
        if let Some(number) = text.strip_suffix('%') {
            let percent = positive(number).filter(|&percent| percent <= 100.0);
            return percent.map(Memory::Percent);
        }
        let amount = |&(unit, bytes): &(&str, u64)| Some((text.strip_suffix(unit)?, bytes));
        let (number, bytes) = UNITS.iter().find_map(amount)?;
        let total = positive(number)? * bytes as f64;
        (total < u64::MAX as f64).then_some(Memory::Bytes(total as u64))
    }

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
