//! Tables, configs and headers that would take more than the budget: refused before they are held, by file and row.
#![cfg(target_os = "linux")]

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::typed::{Answer, BAD_INPUT, DOES_NOT_FIT, DONE, FOUND, holdall_words};

const LIMITS: &str = "--model small --device cpu --num-threads 1 --memory 120MiB --effective-batch 4 --set train.max_steps=1";

fn train(folder: &Path, data: &str) -> Answer {
    train_within(LIMITS, folder, data)
}

fn train_within(limits: &str, folder: &Path, data: &str) -> Answer {
    let mut words: Vec<OsString> = vec!["train".into(), folder.join(data).into()];
    words.extend(["--out".into(), folder.join("run").into()]);
    words.extend(limits.split(' ').map(OsString::from));
    holdall_words(words)
}

/// A header and three rows of a picture that is there.
fn rows() -> String {
    let rows = (0..3).map(|row| format!("1.png,a red car {row}\n"));
    format!("image,caption\n{}", rows.collect::<String>())
}

#[test]
fn what_the_budget_has_no_room_for_is_refused_by_row() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    image::RgbImage::new(32, 32)
        .save(folder.join("1.png"))
        .unwrap();
    let mut words = rows();
    for word in 0..150_000u32 {
        // Different words, as a tokenizer counts them.
        let letters = (0..9).map(|at| char::from(b'a' + ((word >> (2 * at)) % 4 + at) as u8));
        let word: String = letters.collect();
        writeln!(words, "1.png,{word}").unwrap();
    }
    let columns: String = (0..700_000).map(|column| format!(",c{column}")).collect();
    let tables = [
        (
            "text.csv",
            rows() + "1.png," + &"word ".repeat(600_000),
            "text.csv, row 5, caption `{caption}`: a text of 2.9 MiB",
        ),
        (
            "line.csv",
            rows() + "1.png," + &"x".repeat(12 << 20),
            "line.csv, row 5: the first bytes of this row",
        ),
        (
            "columns.csv",
            format!("image,caption{columns}\n1.png,red"),
            "columns.csv, row 1: a header of 700,002 columns",
        ),
        (
            "words.csv",
            words,
            "training a tokenizer on the captions: the first ",
        ),
        (
            "line.jsonl",
            format!(
                "{{\"file_name\":\"1.png\",\"text\":\"{}\"}}\n",
                "w ".repeat(3 << 20)
            ),
            "line.jsonl, row 1: a line of 6.0 MiB",
        ),
    ];
    for (name, text, place) in tables {
        fs::write(folder.join(name), text).unwrap();
        train(folder, name).ends_with(DOES_NOT_FIT, &[place, "the budget leaves", "hint: "]);
        assert!(!folder.join("run").exists(), "{name}");
    }
}

#[test]
fn a_config_of_many_megabytes_is_refused_unread() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "task: clip\nmodel: small\nnotes: [{}]\n",
        "a,".repeat(3 << 20)
    );
    fs::write(home.path().join("long.yml"), text).unwrap();
    let parts = [
        "long.yml: cannot be read: expected at most ",
        "hint: a config says only",
    ];
    train(home.path(), "long.yml").ends_with(BAD_INPUT, &parts);
}

#[test]
fn a_header_of_many_tensors_is_refused_unread() {
    let home = tempfile::tempdir().unwrap();
    let entry =
        |at: usize| format!("\"t{at}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    let entries: Vec<String> = (0..80_000).map(entry).collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    fs::write(home.path().join("f.safetensors"), file).unwrap();
    let path = home.path().join("f.safetensors");
    let words: Vec<OsString> = vec![
        "retrieval".into(),
        "--queries".into(),
        path.clone().into(),
        "--gallery".into(),
        path.into(),
    ];
    let options = ["--device", "cpu", "--memory", "100MiB"].map(OsString::from);
    let answer = holdall_words(words.into_iter().chain(options));
    answer.ends_with(
        DOES_NOT_FIT,
        &["f.safetensors: its header of 4.4 MiB", "the budget leaves"],
    );
}

/// `plan` and `verify` look for a label column before they plan, within the budget too: beyond it, they would read on to the end of the
/// file and miss the quote.
#[test]
fn a_label_is_searched_within_the_budget() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("quote.csv");
    let text = "some text, and more\n".repeat(600_000);
    fs::write(&path, format!("{}1.png,\"{text}", rows())).unwrap();
    for command in ["plan", "verify"] {
        let mut words: Vec<OsString> = vec![command.into(), path.clone().into()];
        words.extend(
            "--model small --device cpu --memory 120MiB"
                .split(' ')
                .map(OsString::from),
        );
        holdall_words(words).ends_with(
            DOES_NOT_FIT,
            &["quote.csv, row 5: the first bytes of this row take more"],
        );
    }
}

/// `inputs.json` beside a model is a page of settings.
#[test]
fn a_file_of_inputs_of_many_megabytes_is_refused_unread() {
    let home = tempfile::tempdir().unwrap();
    let run = home.path().join("run");
    let table = home.path().join("photos.csv");
    image::RgbImage::new(32, 32)
        .save(home.path().join("1.png"))
        .unwrap();
    fs::write(&table, rows()).unwrap();
    train(home.path(), "photos.csv").exits(DONE);
    fs::remove_file(run.join("model/holdall.json")).unwrap();
    fs::write(run.join("model/inputs.json"), vec![b' '; 5 << 20]).unwrap();
    let words: [OsString; 3] = ["predict".into(), run.join("model").into(), table.into()];
    holdall_words(words).ends_with(
        FOUND,
        &[
            "inputs.json cannot be read: expected at most ",
            "hint: the file was probably overwritten",
        ],
    );
}

/// A page of a column is held whole, unpacked: 10 KiB of a file may be 96 MiB.
#[test]
fn a_page_of_parquet_is_bounded_before_it_is_unpacked() {
    let home = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../data/tests/fixtures/parquet/large/page.parquet");
    fs::copy(file, home.path().join("cars.parquet")).unwrap();
    let parts = [
        "cars.parquet: a page of one column takes 96.0 MiB to read, and the budget leaves",
        "hint: write it again with smaller pages",
    ];
    let limits = LIMITS.replace("120MiB", "96MiB");
    train_within(&limits, home.path(), "cars.parquet").ends_with(DOES_NOT_FIT, &parts);
}

/// Captions of `retrieval` are counted while they are read: ten bytes a line are many times that as a table of texts.
#[test]
fn a_list_of_captions_is_bounded_while_it_is_read() {
    let home = tempfile::tempdir().unwrap();
    let lines: String = (0..1_000_000).map(|line| format!("{line}\n")).collect();
    let list = home.path().join("captions.txt");
    fs::write(&list, lines).unwrap();
    let features = home.path().join("f.npy");
    let header =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }                      \n";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend([0; 8]);
    fs::write(&features, file).unwrap();
    let mut words: Vec<OsString> = vec!["retrieval".into(), "--queries".into()];
    words.extend([features.clone().into(), "--gallery".into(), features.into()]);
    words.extend(["--captions".into(), list.into()]);
    words.extend("--device cpu --memory 60MiB".split(' ').map(OsString::from));
    let parts = ["captions.txt: the first ", "the budget leaves", "hint: "];
    holdall_words(words).ends_with(DOES_NOT_FIT, &parts);
}

/// A line is tokenized whole, and a file is held with its lines.
#[test]
fn files_of_labels_are_bounded_too() {
    let home = tempfile::tempdir().unwrap();
    let many: String = (0..900_000).map(|label| format!("{label}\n")).collect();
    for (name, text, part) in [
        (
            "long.txt",
            "word ".repeat(800_000),
            "long.txt, line 1: a text of 3.8 MiB",
        ),
        ("many.txt", many, "many.txt: 900,000 lines"),
    ] {
        let path = home.path().join(name);
        fs::write(&path, text).unwrap();
        let mut words: Vec<OsString> = vec!["predict".into(), home.path().join("run").into()];
        words.extend(["1.png".into(), "--labels-file".into(), path.into()]);
        let options = ["--device", "cpu", "--memory", "60MiB"].map(OsString::from);
        let answer = holdall_words(words.into_iter().chain(options));
        answer.ends_with(DOES_NOT_FIT, &[part, "the budget leaves", "hint: "]);
    }
}
