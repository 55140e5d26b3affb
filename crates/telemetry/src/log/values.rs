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
    const WORDS: &str = "|n/a|na|nan|inf|-inf|infinity|-infinity|none|null|-|not supported|unknown error|gpu is lost|\
                         gpu requires reset|err!|insufficient permissions|requested functionality has been deprecated";
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let text = text.trim().trim_matches(['[', ']']).to_ascii_lowercase();
    WORDS.split('|').any(|word| word == text)
}

/// Seconds since 1970 of a date and time: with `/` or `-` or nothing between the parts of the date, a blank or a `T`, `.` or `,` before
/// the fraction, with or without a time zone. A time without a date is of 1970-01-01.
pub(super) fn timestamp(text: &str) -> Option<f64> {
    let text = text.trim();
    let (date, time) = text.split_once([' ', 'T']).unwrap_or(("1970-01-01", text));
    let (clock, zone) = time.split_at(time.find(['Z', '+', '-']).unwrap_or(time.len()));
    let clock = clock.replace(',', ".");
    let mut parts = clock.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let second = parts.next()?;
    let is_plain = second
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let second: f64 = second.parse().ok().filter(|_| is_plain)?;
    let is_time = hour < 24 && minute < 60 && second < 61.0;
    let day_seconds = 86_400 * days_since_1970(date)?;
    let whole = day_seconds + 3_600 * hour + 60 * minute - zone_seconds(zone)?;
    is_time.then_some(whole as f64 + second)
}

/// A number of few digits.
fn number(digits: &str) -> Option<i64> {
    let is_plain = digits.len() <= 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain)
}

/// Offset in seconds of a time zone: `Z`, `+01:00`, `-0500`, or none.
fn zone_seconds(text: &str) -> Option<i64> {
    if matches!(text, "" | "Z") {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits = text[1..].replace(':', "");
    let number = number(&digits).filter(|_| digits.len() == 4)?;
    Some(sign * (number / 100 * 3_600 + number % 100 * 60))
}

/// Howard Hinnant's `days_from_civil`: years begin in March, so that the leap day comes last.
fn days_since_1970(date: &str) -> Option<i64> {
    let parts: Vec<&str> = if date.len() == 8 && date.is_ascii() {
        vec![&date[..4], &date[4..6], &date[6..]]
    } else {
        date.split(['/', '-']).collect()
    };
    let [year, month, day] = parts[..] else {
        return None;
    };
    let (year, month, day) = (number(year)?, number(month)?, number(day)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
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
