//! Values of cells: `1234 MiB`, `45 %`, `[N/A]`, `2026/01/02 03:04:05.678`.

/// Bytes per unit. `MB` and `GB` are read as MiB and GiB, because scripts divide by `1024 ** 2`.
pub(super) fn unit_bytes(unit: &str) -> Option<f64> {
    let power = match unit {
        "b" | "byte" | "bytes" => 0,
        "k" | "kb" | "kib" | "kilobytes" => 1,
        "m" | "mb" | "mib" | "megabytes" | "mebibytes" => 2,
        "g" | "gb" | "gib" | "gigabytes" | "gibibytes" => 3,
        "tb" | "tib" => 4,
        _ => return None,
    };
    Some(1024f64.powi(power))
}

/// A number and the unit after it, in lower case.
pub(super) fn number_and_unit(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E')))
        .unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|n| n.is_finite())?;
    let unit = text[end..].trim();
    (unit.len() <= 16).then(|| (number, unit.to_ascii_lowercase()))
}

/// Whether Python wrote NaN or infinity.
pub(super) fn is_not_finite(text: &str) -> bool {
    let text = text.trim().trim_start_matches(['-', '+']);
    ["nan", "inf", "infinity"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
}

/// Whether a cell says that the value is unknown.
pub(super) fn is_unknown(text: &str) -> bool {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let text = text.trim().trim_matches(['[', ']']);
    matches!(
        text.to_ascii_lowercase().as_str(),
        "" | "n/a"
            | "na"
            | "nan"
            | "inf"
            | "-inf"
            | "infinity"
            | "-infinity"
            | "none"
            | "null"
            | "-"
            | "not supported"
            | "unknown error"
            | "gpu is lost"
            | "gpu requires reset"
            | "err!"
            | "insufficient permissions"
            | "requested functionality has been deprecated"
    )
}

/// Seconds since 1970 of a date and time: with `/` or `-`, a blank or a `T`, `.` or `,` before the fraction, with or without a
/// time zone.
pub(super) fn timestamp(text: &str) -> Option<f64> {
    let text = text.trim();
    let bytes = text.as_bytes();
    if bytes.len() < 19 || !text.is_ascii() {
        return None;
    }
    let separators = (bytes[4], bytes[7], bytes[10], bytes[13], bytes[16]);
    if !matches!(
        separators,
        (b'/', b'/', b' ', b':', b':') | (b'-', b'-', b' ' | b'T', b':', b':')
    ) {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = &text[from..to];
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let rest = &text[19..];
    let fraction_end = match rest.as_bytes().first() {
        Some(b'.' | b',') => rest[1..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(rest.len(), |at| at + 1),
        _ => 0,
    };
    let fraction = match fraction_end {
        0 | 1 => 0.0,
        end => format!("0.{}", &rest[1..end]).parse::<f64>().ok()?,
    };
    let zone_seconds = zone(&rest[fraction_end..])?;
    let whole = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some((whole - zone_seconds) as f64 + fraction)
}

/// Offset in seconds of a time zone: `Z`, `+01:00`, `-0500`, or none.
fn zone(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first() {
        None => return Some(0),
        Some(b'Z') if text.len() == 1 => return Some(0),
        Some(b'+') => 1,
        Some(b'-') => -1,
        Some(_) => return None,
    };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    let number: i64 = digits.parse().ok().filter(|_| digits.len() == 4)?;
    Some(sign * (number / 100 * 3_600 + number % 100 * 60))
}

/// Howard Hinnant's `days_from_civil`: years begin in March, so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps() {
        let at = 1_767_323_045.678;
        for text in [
            "2026/01/02 03:04:05.678",
            "2026-01-02 03:04:05,678",
            "2026-01-02T03:04:05.678Z",
            "2026-01-02T04:04:05.678+01:00",
            "2026-01-01T22:04:05.678-0500",
        ] {
            let found = timestamp(text).unwrap();
            assert!((found - at).abs() < 1e-6, "{text}: {found}");
        }
        assert_eq!(timestamp("1970/01/01 00:00:00"), Some(0.0));
        assert_eq!(timestamp("2000-02-29 00:00:00."), Some(951_782_400.0));
        for wrong in [
            "",
            "2026/01/02",
            "2026/13/02 03:04:05",
            "2026/01/02 25:04:05",
            "2026/01/02 03:04:05 later",
            "2026/01/0x 03:04:05",
            "2026/01/02 03:04:05+1",
        ] {
            assert_eq!(timestamp(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cells() {
        assert_eq!(
            number_and_unit("1234 MiB"),
            Some((1234.0, "mib".to_owned()))
        );
        assert_eq!(number_and_unit(" 45 %"), Some((45.0, "%".to_owned())));
        assert_eq!(number_and_unit("12.5GB"), Some((12.5, "gb".to_owned())));
        assert_eq!(number_and_unit("-1e3"), Some((-1000.0, String::new())));
        assert_eq!(number_and_unit("1e999"), None);
        assert_eq!(number_and_unit("NVIDIA"), None);
        assert!(is_unknown("[N/A]") && is_unknown("[Not Supported]") && is_unknown("NaN"));
        assert!(!is_unknown("0"));
        assert_eq!(unit_bytes("mib"), unit_bytes("mb"));
    }
}
