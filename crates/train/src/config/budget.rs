//! Memory budgets as the user writes them: `8GiB`, `8GB`, `80%`, `auto`.

use holdall_telemetry::words;
use serde::{Deserialize, Serialize};

pub use holdall_files::show_bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Memory {
    /// 95% of the device, or the free memory at the start less a reserve, whichever is smaller.
    #[default]
    Auto,
    /// Upper bound in bytes.
    Bytes(u64),
    /// Upper bound as a share of the device.
    Percent(f64),
}

/// Memory that `auto` leaves to other processes: 256 MiB, or one part in [`AUTO_RESERVE_PART`] of a small device.
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

    /// The error has no hint: the reader of a config adds its own.
    fn try_from(text: String) -> Result<Memory, String> {
        Memory::parse(&text.trim().to_ascii_lowercase()).ok_or_else(|| match text.trim().parse() {
            Ok(number @ 1_u64..) => {
                let units = with_units(number).join(", ");
                format!("memory `{text}`: expected a size with its unit: {units}")
            }
            _ => format!(
                "memory `{text}`: expected a size such as 8GiB or 8GB, a share such as 80%, or auto"
            ),
        })
    }
}

/// A number with each unit that may have been left out: 8 is `8GiB`, `8GB`, `8%`; 8192 is `8192MiB`, `8192MB`.
pub(crate) fn with_units(number: u64) -> Vec<String> {
    let units: &[&str] = match number {
        0..=100 => &["GiB", "GB", "%"],
        101..=1_023 => &["GiB", "MiB"],
        1_024..=99_999_999 => &["MiB", "MB"],
        _ => &["B"],
    };
    units.iter().map(|unit| format!("{number}{unit}")).collect()
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

    /// Budget in bytes on a device with `total_bytes`, where `free_bytes` are held by this process or free. A requested size
    /// is kept if that much is free, and reduced to the free memory otherwise.
    pub fn resolve(self, total_bytes: u64, free_bytes: u64) -> u64 {
        let reserve = AUTO_RESERVE_BYTES.min(total_bytes / AUTO_RESERVE_PART);
        let auto = (total_bytes / 100 * 95).min(free_bytes.saturating_sub(reserve));
        let asked = self.asked_bytes(total_bytes);
        asked.map_or(auto, |bytes| bytes.min(free_bytes.min(total_bytes)))
    }

    /// The size that the user wrote, in bytes; `None` for `auto`.
    pub fn asked_bytes(self, total_bytes: u64) -> Option<u64> {
        match self {
            Memory::Auto => None,
            Memory::Bytes(bytes) => Some(bytes),
            Memory::Percent(percent) => Some((total_bytes as f64 * percent / 100.0) as u64),
        }
    }
}

/// Milliseconds as text: `41 ms`, `2.5 s`, `12 min`, `3.1 h`.
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
    }

    #[test]
    fn a_number_is_an_upper_bound_of_what_is_there() {
        let gib = 1 << 30;
        let free = 60 * gib;
        for (asked, expected) in [
            (Memory::Percent(50.0), 50 * gib),
            (Memory::Bytes(free), free),
            // More than is free: all free memory, so that asking for more never gives less.
            (Memory::Bytes(free + 1), free),
            (Memory::Percent(61.0), free),
            (Memory::Bytes(200 * gib), free),
        ] {
            assert_eq!(asked.resolve(100 * gib, free), expected, "{asked:?}");
        }
        let card = 772 * (gib / 100);
        let planned = Memory::Bytes(8 * gib).resolve(card, card);
        assert_eq!(planned, card);
    }
}
