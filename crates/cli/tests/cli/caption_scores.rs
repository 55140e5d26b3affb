//! `holdall caption-scores` over the files that people have: the same captions give the same scores whatever they lie in.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::typed::{BAD_INPUT, DONE, holdall_words};

/// What the real packages say of these captions.
fn golden() -> Value {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../metrics/tests/fixtures/captions.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Candidate and references.
fn pairs() -> Vec<(String, Vec<String>)> {
    let golden = golden();
    let pairs = golden["pairs"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    pairs
        .map(|pair| {
            let references = pair["references"].as_array().unwrap().iter();
            (text(&pair["candidate"]), references.map(text).collect())
        })
        .collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

fn scored(words: &[&str]) -> Value {
    let answer = holdall_words(["caption-scores", "--json"].iter().chain(words));
    answer.exits(DONE).json()
}

fn refused(words: &[&str]) -> String {
    holdall_words(["caption-scores"].iter().chain(words))
        .exits(BAD_INPUT)
        .stderr
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[test]
fn scores_are_the_packages_from_every_kind_of_file() {
    let folder = Folder::new();
    let pairs = pairs();
    let objects: Vec<Value> = (pairs.iter())
        .map(|(candidate, references)| json!({"prediction": candidate, "references": references}))
        .collect();
    let lines: Vec<String> = objects.iter().map(Value::to_string).collect();
    let list = folder.write("all.json", json!(objects).to_string());
    let lines = folder.write("all.jsonl", lines.join("\n"));
    let rows: Vec<String> = (pairs.iter())
        .map(|(candidate, references)| {
            format!(
                "{},{}",
                quoted(candidate),
                quoted(&json!(references).to_string())
            )
        })
        .collect();
    let table = folder.write("all.csv", format!("Generated,Truth\n{}\n", rows.join("\n")));
    let results: Vec<Value> = (pairs.iter().enumerate())
        .map(|(image, (candidate, _))| json!({"image_id": image, "caption": candidate}))
        .collect();
    let results = folder.write("results.json", json!(results).to_string());
    let annotations: Vec<Value> = (pairs.iter().enumerate())
        .flat_map(|(image, (_, references))| {
            let one = move |reference| json!({"image_id": image, "id": 7, "caption": reference});
            references.iter().map(one)
        })
        .collect();
    let annotations = folder.write(
        "annotations.json",
        json!({"images": [], "annotations": annotations}).to_string(),
    );
    let expected = &golden()["scores"];
    let near = |found: &Value, expected: &Value| {
        let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
        assert!(
            (found - expected).abs() < 1e-12,
            "{found}, expected {expected}"
        );
    };
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let files = [
        vec![path(&list)],
        vec![path(&lines)],
        vec![path(&table)],
        vec![
            path(&results),
            "--references".to_owned(),
            path(&annotations),
        ],
    ];
    for words in files {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let found = scored(&words);
        assert_eq!(found["samples"], pairs.len());
        let coco = &found["pycocoevalcap"];
        for n in 1..=4 {
            near(&coco[format!("bleu{n}")], &expected["bleu"][n - 1]);
        }
        near(&coco["rouge_l"], &expected["rouge_l"]);
        near(&coco["cider_d"], &expected["cider_d"]);
        near(&found["nltk"]["sentence_bleu"], &expected["sentence_bleu"]);
        near(&found["rouge_score"]["rougeL"], &expected["rouge_score"][2]);
        for package in ["pycocoevalcap", "nltk", "rouge_score"] {
            assert!(found[package]["tokenizer"].is_string());
        }
    }
}

#[test]
fn text_files_go_line_by_line_and_people_see_every_tokenizer() {
    let folder = Folder::new();
    let candidates = folder.write(
        "c.txt",
        "a red square moves left\r\nA Blue circle moves up.\n",
    );
    let first = folder.write(
        "r1.txt",
        "a red square moves left\na blue circle moves up\n",
    );
    let second = folder.write("r2.txt", "a red square goes left\na circle moves up\n");
    let [candidates, first, second] =
        [&candidates, &first, &second].map(|path| path.to_str().unwrap());
    let words = ["caption-scores", candidates, "--references", first, second];
    let answer = holdall_words(words).exits(DONE).stdout;
    for part in [
        "2 candidates against 4 references",
        "PTB tokens",
        "BLEU-4",
        "ROUGE-L",
        "CIDEr-D",
        "method1",
        "as they are",
        "Porter",
        "rougeL",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    let plain = scored(&[candidates, "--references", first]);
    assert!((plain["pycocoevalcap"]["bleu4"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    let lower = scored(&[candidates, "--references", first, "--nltk-tokens", "coco"]);
    assert!(lower["nltk"]["sentence_bleu"].as_f64() > plain["nltk"]["sentence_bleu"].as_f64());
}

#[test]
fn what_is_wrong_is_said_with_file_and_row() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.write(name, text).to_str().unwrap().to_owned();
    let three = file("three.txt", "a\nb\nc\n");
    let two = file("two.txt", "a\nb\n");
    let cases: [(Vec<String>, &str); 12] = [
        (vec![three.clone()], "expected --references"),
        (
            vec![three.clone(), "--references".into(), two.clone()],
            "two.txt: expected a line 3",
        ),
        (
            vec![two, "--references".into(), three.clone()],
            "two.txt: expected 3 lines",
        ),
        (
            vec![file("none.csv", "a,b\n1,2\n")],
            "none.csv: expected columns of the generated caption, found a, b",
        ),
        (
            vec![file("no_reference.csv", "candidate,b\n1,2\n")],
            "--reference NAME",
        ),
        (
            vec![file("empty_cell.csv", "candidate,reference\nx,y\nz,\n")],
            "empty_cell.csv, row 3: expected at least one reference",
        ),
        (
            vec![
                file("both.csv", "candidate,reference\nx,y\n"),
                "--references".into(),
                three,
            ],
            "--reference NAME says which column",
        ),
        (
            vec![file(
                "bad.jsonl",
                "{\"candidate\": \"a\", \"reference\": \"b\"}\n{\"candidate\": 5, \"reference\": \"b\"}\n",
            )],
            "bad.jsonl, line 2: expected a text as `candidate`, found 5",
        ),
        (
            vec![file("cut.json", "[{\"candidate\": ")],
            "cut.json, line 1: expected JSON",
        ),
        (
            vec![file("coco.json", "[{\"image_id\": 1, \"caption\": \"a\"}]")],
            "coco.json: expected --references",
        ),
        (
            vec![
                file("res.json", "[{\"image_id\": 1, \"caption\": \"a\"}]"),
                "--references".into(),
                file("ann.json", "[{\"image_id\": 2, \"caption\": \"a\"}]"),
            ],
            "res.json, entry 1: expected references of image 1, found none in",
        ),
        (
            vec!["/nowhere/captions.json".into()],
            "/nowhere/captions.json: could not open it",
        ),
    ];
    for (words, expected) in cases {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let error = refused(&words);
        assert!(
            error.contains(expected) && error.contains("hint: "),
            "{words:?}: {error}"
        );
    }
}
