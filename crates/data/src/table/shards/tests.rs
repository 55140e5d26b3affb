use std::path::PathBuf;

use super::tar::tests::tar;
use super::*;
use crate::table::Table;

fn rows(path: &Path) -> Result<(Vec<String>, Vec<Vec<String>>), DataError> {
    let table = Table::open(path)?;
    let mut all = Vec::new();
    let mut rows = table.rows()?;
    let mut number = 0;
    while let Some(row) = rows.read()? {
        number += 1;
        assert_eq!(row.line(), number);
        all.push(row.cells().map(str::to_owned).collect());
    }
    Ok((table.columns().to_vec(), all))
}

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn cars(first: u32, captions: &[&str]) -> Vec<u8> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (at, caption) in captions.iter().enumerate() {
        let key = format!("{:06}", first + at as u32);
        files.push((format!("{key}.jpg"), vec![at as u8; 10 + at]));
        files.push((format!("{key}.txt"), format!("{caption}\n").into_bytes()));
        files.push((
            format!("{key}.json"),
            br#"{"make": "Ford", "size": {"w": 7}, "caption": "other", "image": "x"}"#.to_vec(),
        ));
    }
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    tar(&files)
}

#[test]
fn members_of_one_name_are_a_row() {
    let folder = folder(&[
        ("cars-000.tar", cars(0, &["a red, fast car", "two\nlines"])),
        ("cars-001.tar", cars(2, &["blue"])),
    ]);
    for path in ["cars-{000..001}.tar", "cars-*.tar", ""] {
        let (columns, rows) = rows(&folder.path().join(path)).unwrap();
        assert_eq!(columns, ["image", "caption", "make", "size.w", "__key__"]);
        assert_eq!(rows.len(), 3, "{path}");
        assert_eq!(rows[0][0], "cars-000.tar#000000.jpg@512+10");
        assert_eq!(rows[1][1], "two\nlines");
        assert_eq!(rows[2][1..], ["blue", "Ford", "7", "000002"]);
        assert!(rows[2][0].starts_with("cars-001.tar#000002.jpg@"));
    }
    let error = rows(&folder.path().join("cars-{000..002}.tar")).unwrap_err();
    assert!(
        error.to_string().contains("cars-002.tar: expected"),
        "{error}"
    );
}

#[test]
fn a_list_is_made_once_and_again_when_a_file_changes() {
    let folder = folder(&[("cars.tar", cars(0, &["red", "blue"]))]);
    let path = folder.path().join("cars.tar");
    let (index, notes) = Index::open(&path).unwrap();
    let expected = "2 rows of 1 file, listed once in ";
    assert!(notes[0].starts_with(expected), "{notes:?}");
    assert!(index.file.ends_with(".cars.tar.index"));
    let table = Table::open(&path).unwrap();
    let written = fs::metadata(&index.file).unwrap().modified().unwrap();
    // Notes are repeated, and nothing is listed again.
    assert_eq!(Index::open(&path).unwrap().1, notes);
    let again = fs::metadata(&index.file).unwrap().modified().unwrap();
    assert_eq!(again, written);
    fs::write(&path, cars(0, &["red", "blue", "green"])).unwrap();
    assert_eq!(rows(&path).unwrap().1.len(), 3);
    assert!(matches!(table.rows(), Err(DataError::Changed { .. })));
    fs::write(&index.file, "holdall index 1 nonsense").unwrap();
    assert_eq!(rows(&path).unwrap().1.len(), 3);
    let left: Vec<String> = entries_of(folder.path());
    assert_eq!(left, [".cars.tar.index", "cars.tar"]);
}

fn entries_of(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn masks_labels_and_strangers() {
    let bytes = tar(&[
        ("a/1.jpg", b"picture"),
        ("a/1.seg.png", b"mask"),
        ("a/1.cls", b"3\n"),
        ("a/._1.jpg", b"hidden"),
        ("a/1.npy", b"array"),
        ("a/2.png", b"picture"),
        ("3.cls", b"4"),
    ]);
    let folder = folder(&[("x.tar", bytes)]);
    let path = folder.path().join("x.tar");
    let (_, notes) = Index::open(&path).unwrap();
    assert!(
        notes[1].contains("1 of 3 samples has neither picture nor clip"),
        "{notes:?}"
    );
    assert!(notes[2].contains("end with npy"), "{notes:?}");
    let (columns, rows) = rows(&path).unwrap();
    assert_eq!(columns, ["image", "mask", "label", "__key__"]);
    assert!(
        rows[0][1].starts_with("x.tar#a/1.seg.png@"),
        "{:?}",
        rows[0]
    );
    assert_eq!(rows[0][2..], ["3", "a/1"]);
    assert_eq!(rows[1][1..], ["", "", "a/2"]);
    assert_eq!(rows[2], ["", "", "4", "3"]);
}

#[test]
fn clips_are_rows_and_arrays_beside_pictures_are_not() {
    let clips = tar(&[
        ("0.avi", b"RIFF"),
        ("0.txt", b"a ball"),
        ("0.json", br#"{"video": "elsewhere", "split": "train"}"#),
        ("1.MP4", b"...."),
        ("1.txt", b"a cup"),
    ]);
    let beside = tar(&[("0.jpg", b"."), ("0.npy", b"."), ("1.npy", b".")]);
    let folder = folder(&[("a.tar", clips), ("b.tar", beside)]);
    let (columns, found) = rows(&folder.path().join("a.tar")).unwrap();
    assert_eq!(columns, ["video", "caption", "split", "__key__"]);
    assert_eq!(found[0], ["a.tar#0.avi@512+4", "a ball", "train", "0"]);
    assert!(found[1][0].starts_with("a.tar#1.MP4@"), "{found:?}");
    let (columns, found) = rows(&folder.path().join("b.tar")).unwrap();
    assert_eq!(columns, ["image", "video", "__key__"]);
    assert_eq!(found[0][1], "");
}

#[test]
fn shards_called_train_and_val_are_a_split() {
    let files = [
        "train-0.tar",
        "train-1.tar",
        "validation-0.tar",
        "test-0.tar",
    ];
    let folder = folder(&files.map(|name| (name, cars(0, &[name]))));
    let (columns, found) = rows(folder.path()).unwrap();
    assert_eq!(columns.last().unwrap(), SPLIT);
    let sides: Vec<[&str; 2]> = found
        .iter()
        .map(|row| [row[1].as_str(), row.last().unwrap()])
        .collect();
    assert_eq!(
        sides,
        [
            ["test-0.tar", "test"],
            ["train-0.tar", "train"],
            ["train-1.tar", "train"],
            ["validation-0.tar", "validation"]
        ]
    );
    // A single shard is not split by its name.
    let (columns, _) = rows(&folder.path().join("test-0.tar")).unwrap();
    assert!(!columns.contains(&SPLIT.to_owned()));
    assert!(split("trainer.tar").is_none() && split("mytest-0.tar").is_none());
}

fn split(name: &str) -> Option<Side> {
    let shard = |name: &str| Shard {
        path: PathBuf::from(name),
        name: name.to_owned(),
        side: None,
    };
    let mut shards = vec![shard(name), shard("train-0.tar"), shard("val-0.tar")];
    split_by_name(&mut shards);
    shards[0].side
}

#[test]
fn what_cannot_be_listed_is_said() {
    let folder = folder(&[
        ("cut.tar", cars(0, &["red"])[..700].to_vec()),
        ("texts.tar", tar(&[("1.txt", b"x"), ("2.txt", b"y")])),
        ("list.tar", tar(&[("1.jpg", b"x"), ("1.json", b"[1]")])),
        ("a.tar.gz", b"\x1f\x8b\x08".to_vec()),
        ("b.parquet", b"PAR1".to_vec()),
        ("empty.tar", vec![0; 1024]),
    ]);
    let error = |name: &str| rows(&folder.path().join(name)).unwrap_err().to_string();
    assert!(error("cut.tar").contains("cut.tar: expected a whole tar, found the end of the file"));
    assert!(error("texts.tar").contains("found 2 samples without one"));
    assert!(error("list.tar").contains("list.tar, `1.json`: expected a JSON object"));
    assert!(error("a.tar.gz").contains("found a compressed one"));
    assert!(error("b.parquet").contains("expected a whole Parquet file"));
    assert!(error("empty.tar").contains("found none"));
    assert!(error("{cut.tar,b.parquet}").contains("found some of both"));
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/parquet")
        .join(name)
}

/// Picture bytes, as `make_parquet.py` writes them.
fn picture(row: usize) -> Vec<u8> {
    let bytes = (0..20 + 7 * row).map(|at| ((31 * row + 17 * at) % 256) as u8);
    bytes.collect()
}

/// Every codec, page version and encoding gives the same rows, pictures included.
#[test]
fn parquet_of_every_kind_has_the_same_rows() {
    let table = Table::open(&fixture("expected.csv")).unwrap();
    let expected_columns = table.columns().to_vec();
    let mut expected: Vec<Vec<String>> = Vec::new();
    let mut lines = table.rows().unwrap();
    while let Some(row) = lines.read().unwrap() {
        expected.push(row.cells().map(str::to_owned).collect());
    }
    let mut num_files = 0;
    for entry in fs::read_dir(fixture("")).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_none_or(|end| end != "parquet") {
            continue;
        }
        num_files += 1;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cars.parquet");
        fs::copy(&source, &path).unwrap();
        let (columns, found) = rows(&path).unwrap_or_else(|error| panic!("{source:?}: {error}"));
        assert_eq!(columns[0], "image", "{source:?}");
        assert_eq!(columns[1..], expected_columns, "{source:?}");
        assert_eq!(found.len(), expected.len(), "{source:?}");
        for (at, (row, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(row[1..], *expected, "{source:?}, row {at}");
            if at == 5 {
                assert_eq!(row[0], "5.jpg");
                continue;
            }
            let mut bytes = Vec::new();
            let part = folder.path().join(&row[0]);
            let mut stored = crate::stored_file::StoredFile::open(&part).unwrap();
            io::Read::read_to_end(&mut stored, &mut bytes).unwrap();
            assert_eq!(bytes, picture(at), "{source:?}, row {at}");
            assert!(
                row[0].contains(&format!("#cars.parquet row {}@", at + 1)),
                "{}",
                row[0]
            );
        }
        let left = entries_of(folder.path());
        assert_eq!(
            left,
            [
                ".cars.parquet.index",
                ".cars.parquet.pictures",
                "cars.parquet"
            ]
        );
    }
    assert_eq!(num_files, 14);
}

#[test]
fn parquet_files_of_one_table_are_read_one_behind_the_other() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    for (name, source) in [
        ("train-00000-of-00002.parquet", "zstd-1.parquet"),
        ("train-00001-of-00002.parquet", "plain.parquet"),
    ] {
        fs::copy(fixture(source), folder.path().join("data").join(name)).unwrap();
    }
    let (_, found) = rows(folder.path()).unwrap();
    assert_eq!(found.len(), 24);
    assert!(
        found[12][0].contains("#train-00001-of-00002.parquet row 1@"),
        "{:?}",
        found[12]
    );
    assert_eq!(found[0][1..], found[12][1..]);
}
