//! Pair files: which gallery item belongs to which query, as a CSV of `query,gallery` or a `.npy` of N x 2 integers. Rows are
//! counted from 0, and a query or a gallery item may occur in several pairs.

use std::path::Path;

use crate::error::InputError;
use crate::features::MappedFile;
use crate::features::npy_header;
use crate::retrieval::Side;

const EXPECTED: &str = "two whole numbers, query and gallery item";
const HINT: &str = "a line is `0,17`: query 0 belongs to gallery item 17, both counted from 0";
/// Longest line; a line holds two numbers or a header.
const MOST_LINE_BYTES: usize = 64 << 10;
const QUERY_NAMES: [&str; 4] = ["query", "query_index", "query_id", "queries"];
const GALLERY_NAMES: [&str; 4] = ["gallery", "gallery_index", "gallery_id", "gallery_item"];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Numbers of queries and gallery items, the bounds of the pairs' indices.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub queries: usize,
    pub gallery: usize,
}

/// Reads pairs of a query and a gallery item.
///
/// # Errors
/// See [`InputError`]; errors name the line or row.
pub fn read(path: &Path, counts: Counts) -> Result<Vec<(u32, u32)>, InputError> {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv" | "txt") => csv(path, MappedFile::open(path)?.bytes(), counts),
        Some("npy") => npy(path, MappedFile::open(path)?.bytes(), counts),
        _ => Err(InputError::Kind {
            path: path.into(),
            expected: "pairs in a file named .csv or .npy",
            hint: "np.savetxt(\"pairs.csv\", pairs, fmt=\"%d\", delimiter=\",\"), or np.save(\"pairs.npy\", pairs)",
        }),
    }
}

/// One pair, with both indices in range.
fn pair(
    path: &Path,
    place: impl Fn() -> String,
    [query, gallery]: [i128; 2],
    counts: Counts,
) -> Result<(u32, u32), InputError> {
    let item = |side, found: i128, count: usize| match u32::try_from(found) {
        Ok(item) if (item as usize) < count => Ok(item),
        _ => Err(InputError::PairRange {
            path: path.into(),
            place: place(),
            side,
            found,
            count,
        }),
    };
    Ok((
        item(Side::Query, query, counts.queries)?,
        item(Side::Gallery, gallery, counts.gallery)?,
    ))
}

/// CSV lines of integers, with an optional header. Quoted commas and line breaks are not supported.
pub(crate) fn csv(path: &Path, file: &[u8], counts: Counts) -> Result<Vec<(u32, u32)>, InputError> {
    let file = file.strip_prefix(BYTE_ORDER_MARK).unwrap_or(file);
    let mut pairs = Vec::new();
    let mut columns: Option<[usize; 2]> = None;
    for (line, bytes) in (1usize..).zip(file.split(|&byte| byte == b'\n')) {
        let bytes = bytes.trim_ascii();
        if bytes.is_empty() {
            continue;
        }
        let wrong = |expected, hint| InputError::Pair {
            path: path.into(),
            place: format!("line {line}"),
            expected,
            found: shown(bytes),
            hint,
        };
        if bytes.len() > MOST_LINE_BYTES {
            return Err(wrong(EXPECTED, HINT));
        }
        let found = match columns {
            Some(found) => found,
            None => {
                let (found, is_header) = first_line(bytes).map_err(|hint| wrong(EXPECTED, hint))?;
                columns = Some(found);
                if is_header {
                    continue;
                }
                found
            }
        };
        pairs.push(line_pair(path, line, bytes, found, counts)?);
    }
    if pairs.is_empty() {
        return Err(InputError::EmptyFile { path: path.into() });
    }
    Ok(pairs)
}

fn line_pair(
    path: &Path,
    line: usize,
    bytes: &[u8],
    columns: [usize; 2],
    counts: Counts,
) -> Result<(u32, u32), InputError> {
    let place = || format!("line {line}");
    let number = |column: usize| cells(bytes).nth(column).and_then(whole);
    match columns.map(number) {
        [Some(query), Some(gallery)] => pair(path, place, [query, gallery], counts),
        _ => Err(InputError::Pair {
            path: path.into(),
            place: place(),
            expected: EXPECTED,
            found: shown(bytes),
            hint: HINT,
        }),
    }
}

/// Column numbers of the query and the gallery item, and whether the line is a header. The error is a hint.
fn first_line(bytes: &[u8]) -> Result<([usize; 2], bool), &'static str> {
    let count = cells(bytes).count();
    if count == 1 && bytes.iter().any(|byte| b";\t ".contains(byte)) {
        return Err("columns are parted by commas");
    }
    if cells(bytes).all(|cell| whole(cell).is_some()) {
        return match count {
            2 => Ok(([0, 1], false)),
            _ => Err("two columns, or a header that names `query` and `gallery`"),
        };
    }
    let named = |names: &[&str]| {
        cells(bytes).position(|cell| {
            let name = String::from_utf8_lossy(cell).to_lowercase();
            names.contains(&name.as_str())
        })
    };
    match (named(&QUERY_NAMES), named(&GALLERY_NAMES)) {
        (Some(query), Some(gallery)) => Ok(([query, gallery], true)),
        _ => Err("the first line is a header `query,gallery`, or already a pair such as `0,17`"),
    }
}

/// Cells of a line, without the spaces and quotes around them.
fn cells(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b',').map(|cell| {
        let cell = cell.trim_ascii();
        let inner = cell
            .strip_prefix(b"\"")
            .and_then(|cell| cell.strip_suffix(b"\""));
        inner.unwrap_or(cell).trim_ascii()
    })
}

fn whole(cell: &[u8]) -> Option<i128> {
    std::str::from_utf8(cell).ok()?.parse().ok()
}

/// A line for a message, at most 60 bytes.
fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]);
    let more = if bytes.len() > MOST { "..." } else { "" };
    format!("`{}{more}`", text.escape_debug())
}

/// N x 2 integers. Fortran order is accepted, because `np.array([queries, gallery]).T` is saved that way.
pub(crate) fn npy(path: &Path, file: &[u8], counts: Counts) -> Result<Vec<(u32, u32)>, InputError> {
    let header = npy_header::read(path, file)?;
    let (value_bytes, is_signed) = match header.format.as_str() {
        "<i4" => (4, true),
        "<u4" => (4, false),
        "<i8" => (8, true),
        "<u8" => (8, false),
        format if format.starts_with("|O") => {
            return Err(InputError::Objects { path: path.into() });
        }
        format => {
            return Err(InputError::Element {
                path: path.into(),
                expected: "whole numbers of 4 or 8 bytes, least significant byte first",
                found: format!("`{}`", format.escape_debug()),
                hint: "np.save(\"pairs.npy\", pairs.astype(\"<i8\"))",
            });
        }
    };
    npy_header::check_length(&header, path, file, value_bytes)?;
    let &[num_pairs, 2] = header.shape.as_slice() else {
        return Err(InputError::Shape {
            path: path.into(),
            expected: "pairs x 2: query, gallery item",
            found: header.shape,
            hint: "np.stack([queries, gallery], axis=1)",
        });
    };
    if num_pairs == 0 {
        return Err(InputError::NoRows {
            path: path.into(),
            what: "pair",
            shape: header.shape,
        });
    }
    let data = &file[header.data_start..];
    let value = |at: usize| {
        let bytes = &data[at * value_bytes..][..value_bytes];
        let mut wide = if is_signed && bytes[value_bytes - 1] >= 0x80 {
            [0xff; 16]
        } else {
            [0; 16]
        };
        wide[..value_bytes].copy_from_slice(bytes);
        i128::from_le_bytes(wide)
    };
    let at = |row: usize, column: usize| {
        if header.columns_first {
            column * num_pairs + row
        } else {
            row * 2 + column
        }
    };
    let rows = (0..num_pairs).map(|row| {
        let both = [value(at(row, 0)), value(at(row, 1))];
        pair(path, || format!("row {row}"), both, counts)
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::npy_header::tests::{dictionary, npy as npy_file};

    const COUNTS: Counts = Counts {
        queries: 3,
        gallery: 20,
    };

    fn read_csv(text: &str) -> Result<Vec<(u32, u32)>, String> {
        csv(Path::new("p.csv"), text.as_bytes(), COUNTS).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_under_a_header_or_not() {
        let expected = [(0, 17), (2, 0), (0, 3)];
        for text in [
            "0,17\n2,0\n0,3",
            "query,gallery\n0,17\n2,0\n0,3\n",
            "\u{feff}Query_index , score, GALLERY\r\n0,0.5,17\r\n\r\n2,0.25, 0\r\n0,x,3\r\n",
            "gallery,query\n\"17\",\"0\"\n0,2\n3,0\n",
        ] {
            assert_eq!(read_csv(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_with_its_number() {
        for (text, parts) in [
            ("", ["p.csv", "an empty file"]),
            ("query,gallery\n\n", ["p.csv", "an empty file"]),
            ("query,gallery\n\n0,17\n1\n", ["line 4", "found `1`"]),
            ("0,17\r\n1,x\r\n", ["line 2", "found `1,x`"]),
            ("0,17\n1,3.0\n", ["line 2", "two whole numbers"]),
            ("0,17\n3,0\n", ["line 2", "a query from 0 to 2, found 3"]),
            (
                "0,20\n",
                ["line 1", "a gallery item from 0 to 19, found 20"],
            ),
            ("0,-1\n", ["line 1", "found -1"]),
            (
                "0,99999999999999999999\n",
                ["line 1", "found 99999999999999999999"],
            ),
            ("0;17\n", ["line 1", "parted by commas"]),
            ("0,1,2\n", ["line 1", "two columns"]),
            ("image,text\n0,1\n", ["line 1", "a header `query,gallery`"]),
        ] {
            let error = read_csv(text).unwrap_err();
            assert!(
                error.starts_with("p.csv") && error.contains("\nhint: "),
                "{error}"
            );
            for part in parts {
                assert!(error.contains(part), "{text}: lacks `{part}`: {error}");
            }
        }
    }

    #[test]
    fn arrays_of_every_whole_number() {
        let path = Path::new("p.npy");
        let numbers = [0i64, 17, 2, 0, 0, 3];
        let wide: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let narrow: Vec<u8> = numbers
            .iter()
            .flat_map(|&number| (number as i32).to_le_bytes())
            .collect();
        for (format, data) in [
            ("'<i8'", &wide),
            ("'<u8'", &wide),
            ("'<i4'", &narrow),
            ("'<u4'", &narrow),
        ] {
            let file = npy_file(1, &dictionary(format, "(3, 2)"), data);
            assert_eq!(npy(path, &file, COUNTS).unwrap(), [(0, 17), (2, 0), (0, 3)]);
        }
        // Fortran order: all queries, then all gallery items.
        let by_column: Vec<u8> = [0i32, 2, 0, 17, 0, 3]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let columns = dictionary("'<i4'", "(3, 2)").replace("False", "True");
        let file = npy_file(1, &columns, &by_column);
        assert_eq!(npy(path, &file, COUNTS).unwrap(), [(0, 17), (2, 0), (0, 3)]);
    }

    #[test]
    fn what_is_wrong_with_an_array_is_said_with_its_row() {
        let data: Vec<u8> = [0i32, 17, -1, 0]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        for (format, shape, parts) in [
            ("'<i4'", "(2, 2)", ["row 1", "found -1"]),
            ("'<u4'", "(2, 2)", ["row 1", "found 4294967295"]),
            ("'<f4'", "(2, 2)", ["`<f4`", "astype"]),
            ("'|O'", "(2, 2)", ["Python objects", "p.npy"]),
            ("'<i4'", "(3, 2)", ["cut short", "p.npy"]),
            ("'<i4'", "(4, 1)", ["pairs x 2", "(4, 1)"]),
            ("'<i4'", "(4,)", ["pairs x 2", "(4,)"]),
        ] {
            let file = npy_file(1, &dictionary(format, shape), &data);
            let error = npy(Path::new("p.npy"), &file, COUNTS)
                .unwrap_err()
                .to_string();
            for part in parts {
                assert!(error.contains(part), "lacks `{part}`: {error}");
            }
        }
        let none = npy_file(1, &dictionary("'<i4'", "(0, 2)"), b"");
        let error = npy(Path::new("p.npy"), &none, COUNTS)
            .unwrap_err()
            .to_string();
        assert!(error.contains("at least one pair"), "{error}");
    }
}
