use std::fs;
use std::io::Write;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A CSV of these bytes, deleted on drop.
pub(crate) struct Written {
    folder: TempDir,
}

impl Written {
    pub(crate) fn new(bytes: &[u8]) -> Written {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cars.csv"), bytes).unwrap();
        Written { folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("cars.csv")
    }

    pub(crate) fn table(&self) -> Table {
        Table::open(&self.path()).unwrap()
    }
}

/// A table read to its end.
#[derive(Debug)]
struct Parsed {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    lines: Vec<u32>,
    raw: Vec<Vec<u8>>,
}

fn parse(bytes: &[u8]) -> Result<Parsed, DataError> {
    let written = Written::new(bytes);
    let table = Table::open(&written.path())?;
    let mut parsed = Parsed {
        columns: table.columns().to_vec(),
        rows: Vec::new(),
        lines: Vec::new(),
        raw: Vec::new(),
    };
    let mut rows = table.rows()?;
    while let Some(row) = rows.read()? {
        let cells = row.cells().map(str::to_owned).collect();
        parsed.rows.push(cells);
        parsed.lines.push(row.line());
        parsed.raw.push(row.raw().to_vec());
    }
    Ok(parsed)
}

#[test]
fn reads_what_excel_and_pandas_write() {
    let table = parse(
        b"\xef\xbb\xbfimage, caption\r\n1.jpg,\"red, \"\"fast\"\"\"\r\n\r\n2.jpg,\"two\r\nlines\"\r\n3.jpg,\xc3\xa4\r\n",
    )
    .unwrap();
    assert_eq!(table.columns, ["image", "caption"]);
    let captions: Vec<&str> = table.rows.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(captions, ["red, \"fast\"", "two\r\nlines", "ä"]);
    assert_eq!(table.lines, [2, 4, 6]);
    assert_eq!(table.raw[0], b"1.jpg,\"red, \"\"fast\"\"\"");
    assert_eq!(table.raw[1], b"2.jpg,\"two\r\nlines\"");
}

#[test]
fn lines_are_those_of_an_editor_whatever_ends_them() {
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("{end}a,b{end}1,2{end}{end}{end}3,\"x{end}y\"{end}4,5");
        let table = parse(text.as_bytes()).unwrap();
        assert_eq!(table.lines, [3, 6, 8], "{end:?}");
    }
}

#[test]
fn says_which_row_is_wrong() {
    let error = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    assert!(error(b"").contains("an empty file"));
    assert!(error(b"\xef\xbb\xbf\r\n\r\n").contains("an empty file"));
    assert!(error(b"image,caption\n").contains("found none"));
    assert!(
        error(b"a,b\r\n1,2\r\n1,2,3\r\n")
            .contains("row 3: expected 2 fields as in the header, found 3")
    );
    assert!(error(b"a,b\n1,\xc3\xa4\n1,\xff\n").contains("row 3: expected UTF-8"));
    let missing = Table::open(Path::new("/nowhere/cars.csv")).unwrap_err();
    assert!(matches!(missing, DataError::NoFile { .. }));
}

#[test]
fn columns_are_found_by_name() {
    let table = Written::new(b"image,make,x,x\n1.jpg,Ford,1,2\n").table();
    assert_eq!(table.column("label", "make").unwrap(), 1);
    let error = table.column("label", "maker").unwrap_err().to_string();
    assert!(error.contains("did you mean `make`?"), "{error}");
    let error = table.column("label", "x").unwrap_err().to_string();
    assert!(error.contains("found 2"), "{error}");
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn never_panics_on_csv_like_bytes(
        bytes in proptest::collection::vec(proptest::sample::select(b"a\",;\r\n\\ \xef\xbb\xbf".to_vec()), 0..60)
    ) {
        if let Ok(table) = parse(&bytes) {
            prop_assert!(!table.rows.is_empty());
            prop_assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        }
    }

    #[test]
    fn reads_back_what_was_written(
        rows in proptest::collection::vec(proptest::collection::vec("[a-zä,\"\n\r ]{0,6}", 3), 1..8)
    ) {
        let mut writer = csv::WriterBuilder::new()
            .quote_style(csv::QuoteStyle::Always)
            .from_writer(Vec::new());
        writer.write_record(["a", "b", "c"]).unwrap();
        for row in &rows {
            writer.write_record(row).unwrap();
        }
        let bytes = writer.into_inner().unwrap();
        let table = parse(&bytes).unwrap();
        prop_assert_eq!(table.rows, rows);
    }

    /// A row's raw bytes, read again under the same header, give the same row.
    #[test]
    fn raw_rows_make_the_same_table(
        bytes in proptest::collection::vec(proptest::sample::select(b"aab\",\r\n \xc3\xa4".to_vec()), 0..80)
    ) {
        let whole = [&b"a,b\n"[..], &bytes].concat();
        if let Ok(table) = parse(&whole) {
            let mut again = b"a,b".to_vec();
            for raw in &table.raw {
                again.push(b'\n');
                again.extend(raw);
            }
            prop_assert_eq!(parse(&again).unwrap().rows, table.rows);
        }
    }
}

/// The line end after an unclosed quote in the last line belongs to no cell.
#[test]
fn a_quote_that_opens_in_the_last_line() {
    for end in ["", "\n", "\r", "\r\n"] {
        let table = parse(format!("a,b\n1,\"x{end}").as_bytes()).unwrap();
        assert_eq!(table.rows, [["1", "x"]], "{end:?}");
        assert_eq!(table.raw, [b"1,\"x"], "{end:?}");
    }
    for end in ["\n", "\r", "\r\n"] {
        for first in ["1", "5\" wheels"] {
            let text = format!("a,b{end}{first},\"x{end}2,y{end}");
            assert!(parse(text.as_bytes()).is_err(), "{end:?}");
            // A closed quote may hold line ends.
            let text = format!("a,b{end}{first},\"x{end}y\"{end}");
            assert_eq!(parse(text.as_bytes()).unwrap().rows.len(), 1, "{end:?}");
        }
    }
}

/// Buffers may end within a row, within a quoted field or between `\r` and `\n`; line numbers stay right.
#[test]
fn rows_across_buffers() {
    for end in ["\n", "\r\n", "\r"] {
        for width in [1, 7, 90] {
            let mut text = format!("a,b{end}");
            let mut lines = Vec::new();
            let mut line = 2;
            let cell = "x".repeat(width);
            for row in 0..200_000 / (width + 16) {
                text += &format!("{row},\"{cell}{end}{cell}\"{end}{end}");
                lines.push(line);
                line += 3;
            }
            let table = parse(text.as_bytes()).unwrap();
            assert_eq!(table.lines, lines);
            assert!(table.raw.iter().all(|raw| raw.ends_with(b"x\"")));
        }
    }
}

#[test]
fn the_header_is_known_as_it_stands() {
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("\u{feff}\"a\", b{end}1,2{end}");
        let written = Written::new(text.as_bytes());
        let mut rows = written.table().rows().unwrap();
        rows.read().unwrap();
        assert_eq!(rows.header(), "\u{feff}\"a\", b".as_bytes());
        assert_eq!(rows.line_end(), end.as_bytes());
    }
}

#[test]
fn a_quote_that_is_never_closed() {
    let many = "1,2\n".repeat(50_000);
    let text = format!("a,b\n1,2\n1,\"2\n{many}");
    let error = parse(text.as_bytes()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("row 3: expected a closing quote"),
        "{error}"
    );
    assert_eq!(parse(b"a,b\n1,2\" wheels\n").unwrap().rows.len(), 1);
}

#[test]
fn a_file_that_changes_under_the_reader() {
    let written = Written::new(b"a,b\n1,2\n");
    let table = written.table();
    let mut rows = table.rows().unwrap();
    rows.read().unwrap();
    let file = fs::OpenOptions::new().append(true).open(written.path());
    file.unwrap().write_all(b"3,4\n").unwrap();
    let error = loop {
        match rows.read() {
            Ok(row) => assert!(row.is_some(), "the end came without an error"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DataError::Changed { .. }), "{error}");
    let error = table.rows().unwrap_err();
    assert!(matches!(error, DataError::Changed { .. }), "{error}");
    fs::remove_file(written.path()).unwrap();
    assert!(matches!(table.rows(), Err(DataError::NoFile { .. })));
}

#[test]
fn columns_are_separated_by_what_the_header_has() {
    for separator in [",", ";", "\t", "|", "α"] {
        let text = ["video", "caption", "split"].join(separator)
            + "\r\n"
            + &["a.avi", "\"x, y; \t|α \"\"z\"\"\"", "train"].join(separator)
            + "\n"
            + &["b λ.avi", "", ""].join(separator);
        let table = parse(text.as_bytes()).unwrap();
        assert_eq!(table.columns, ["video", "caption", "split"], "{separator}");
        assert_eq!(table.rows[0], ["a.avi", "x, y; \t|α \"z\"", "train"]);
        assert_eq!(table.rows[1], ["b λ.avi", "", ""]);
        assert_eq!(table.lines, [2, 3]);
        let raw = String::from_utf8(table.raw[0].clone()).unwrap();
        assert!(text.contains(&raw) && raw.starts_with("a.avi") && raw.ends_with("train"));
    }
    let written = Written::new(b"a;b,c;d\n1;2,3;4\n");
    let table = Table::open(&written.path()).unwrap();
    assert_eq!(table.columns(), ["a", "b,c", "d"]);
    assert!(table.notes()[0].contains("separated by semicolons"));
    let asked = Table::open_separated(&written.path(), Some(Separator::Comma)).unwrap();
    assert_eq!(asked.columns(), ["a;b", "c;d"]);
    assert!(asked.notes().is_empty());
    assert_eq!(
        asked.rows().unwrap().read().unwrap().unwrap().cell(1),
        "3;4"
    );
}

#[test]
fn letters_of_other_encodings_are_converted_and_it_is_said() {
    let written = Written::new(b"image;caption\n1.jpg;caf\xe9\n2.jpg;\x80 5\n");
    let table = written.table();
    assert!(
        table.notes()[1].contains("cars.csv is Latin-1"),
        "{:?}",
        table.notes()
    );
    let mut rows = table.rows().unwrap();
    assert_eq!(rows.read().unwrap().unwrap().cell(1), "café");
    let row = rows.read().unwrap().unwrap();
    assert_eq!((row.cell(1), row.line()), ("€ 5", 3));
    assert_eq!(row.raw(), "2.jpg;€ 5".as_bytes());
    let text = "\u{feff}image\tcaption\r\n1.jpg\tcafé\r\n";
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let written = Written::new(&bytes);
    let table = written.table();
    assert_eq!(table.columns(), ["image", "caption"]);
    assert!(
        table.notes()[0].contains("separated by tabs"),
        "{:?}",
        table.notes()
    );
    assert!(table.notes()[1].contains("UTF-16"), "{:?}", table.notes());
    let mut rows = table.rows().unwrap();
    assert_eq!(rows.read().unwrap().unwrap().cell(1), "café");
    assert_eq!(rows.header(), "image\tcaption".as_bytes());
}

#[test]
fn json_lines_are_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metadata.jsonl");
    let text = "{\"file_name\": \"1.jpg\", \"n\": 1.5, \"in\": {\"a\": [1, \"x\"], \"b\": null}}\n\n\
                {\"text\": \"a, \\\"b\\\"\", \"file_name\": \"2.jpg\", \"ok\": true}\r\n";
    fs::write(&path, text).unwrap();
    let table = Table::open(&path).unwrap();
    assert_eq!(
        table.columns(),
        ["file_name", "n", "in.a", "in.b", "text", "ok"]
    );
    let mut rows = table.rows().unwrap();
    let row = rows.read().unwrap().unwrap();
    let cells: Vec<&str> = row.cells().collect();
    assert_eq!(cells, ["1.jpg", "1.5", "1|x", "", "", ""]);
    let row = rows.read().unwrap().unwrap();
    let cells: Vec<&str> = row.cells().collect();
    assert_eq!(
        (cells, row.line()),
        (vec!["2.jpg", "", "", "", "a, \"b\"", "true"], 3)
    );
    assert!(row.raw().starts_with(b"{\"text\"") && row.raw().ends_with(b"}"));
    assert!(rows.read().unwrap().is_none());
    assert!(rows.header().is_empty());
    for (text, expected) in [
        (
            "{\"a\": 1}\n[1]\n",
            "row 2: expected a JSON object, found a list",
        ),
        ("{\"a\": \n", "row 1: expected a JSON object, found column"),
        ("\n", "expected a JSON object per line"),
    ] {
        fs::write(&path, text).unwrap();
        let error = Table::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let array = folder.path().join("photos.json");
    fs::write(&array, "[{}]").unwrap();
    let error = Table::open(&array).unwrap_err().to_string();
    assert!(
        error.contains("jq -c '.[]'") && error.contains("photos.jsonl"),
        "{error}"
    );
}
