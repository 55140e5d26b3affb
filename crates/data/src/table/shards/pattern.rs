//! Expansion of path patterns: `cars-{000..127}.tar`, `{train,extra}.parquet`, `cars-*.tar`.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::table::folder::entries;

/// Limit of the files of a pattern.
const MOST_FILES: usize = 1_000_000;

/// Whether a path is a pattern and not the name of an existing file.
pub(super) fn is_pattern(path: &Path) -> bool {
    let text = path.to_string_lossy();
    (text.contains('{') && text.contains('}') || text.contains('*')) && !path.exists()
}

/// Files of a pattern, in its order; for `*`, in natural order.
pub(super) fn expand(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let text = path.to_string_lossy();
    let wrong = |found: &str| {
        DataError::invalid(
            path.display(),
            "a pattern such as cars-{000..127}.tar",
            found,
            "numbers in braces count up and have as many digits as the first: {000..127}; names stand with commas between: {train,extra}",
        )
    };
    let names = braces(&text).map_err(wrong)?;
    let mut files = Vec::new();
    for name in names {
        if !name.contains('*') {
            files.push(PathBuf::from(name))
        } else {
            files.extend(starred(Path::new(&name))?)
        }
    }
    if files.is_empty() {
        Err(wrong("no file that fits"))
    } else {
        Ok(files)
    }
}

fn braces(text: &str) -> Result<Vec<String>, &'static str> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after.split_once('}').ok_or("a brace that is not closed")?;
        let choices = choices(inside)?;
        if all.len().saturating_mul(choices.len()) > MOST_FILES {
            return Err("more than a million files");
        }
        let with = |start: &String| {
            let each = choices
                .iter()
                .map(|choice| format!("{start}{before}{choice}"));
            each.collect::<Vec<String>>()
        };
        all = all.iter().flat_map(with).collect();
        rest = after;
    }
    all.iter_mut().for_each(|name| name.push_str(rest));
    Ok(all)
}

fn choices(inside: &str) -> Result<Vec<String>, &'static str> {
    let Some((first, last)) = inside.split_once("..") else {
        return Ok(inside.split(',').map(str::to_owned).collect());
    };
    let number = |text: &str| -> Result<u64, &'static str> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            text.parse().map_err(|_| "a number that is too large")
        } else {
            Err("no number in its braces")
        }
    };
    let (start, end) = (number(first)?, number(last)?);
    if end < start || end - start >= MOST_FILES as u64 {
        return Err("numbers that do not count up, or too many");
    }
    let width = first.len();
    Ok((start..=end).map(|at| format!("{at:0width$}")).collect())
}

/// Files of a folder that match a name with stars.
fn starred(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let place = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let files = entries(place)?.files;
    let fitting = files.iter().filter(|file| fits(file, &name));
    Ok(fitting.map(|file| folder.join(file)).collect())
}

/// Whether a name matches a pattern, with at least one character for each star.
fn fits(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_name_files() {
        assert_eq!(
            braces("a-{008..011}.tar").unwrap(),
            ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]
        );
        assert_eq!(
            braces("{x,y}/{0..1}").unwrap(),
            ["x/0", "x/1", "y/0", "y/1"]
        );
        for wrong in [
            "{0..",
            "{3..1}",
            "{a..b}",
            "{0..99999999999}",
            "{0..999}{0..999}{0..9}",
        ] {
            assert!(braces(wrong).is_err(), "{wrong}");
        }
        assert!(!is_pattern(Path::new("cars.tar")));
        assert!(is_pattern(Path::new("nowhere/cars-{0..3}.tar")));
    }

    #[test]
    fn stars_fit_what_is_there() {
        assert!(fits("cars-000.tar", "cars-*.tar") && fits("cars.tar", "*.tar"));
        assert!(fits("a-b-c", "a*b*c") && fits("abc", "abc"));
        assert!(
            !fits("cars-000.csv", "cars-*.tar") && !fits("abcd", "abc") && !fits("a-c", "a*b*c")
        );
    }
}
