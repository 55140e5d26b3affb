//! `holdall predict --texts`: pictures that fit texts; features of texts; pictures and labels from files.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::training::{Home, RunFiles};
use crate::typed::{Answer, DONE, holdall_words};

/// `holdall predict RUN OPTIONS`, options parted by blanks.
fn predict(run: &RunFiles, options: &str) -> Answer {
    let words: [OsString; 2] = ["predict".into(), run.path.clone().into()];
    let options = options.split_whitespace().map(OsString::from);
    holdall_words(words.into_iter().chain(options))
}

/// Rows of a two-dimensional `.npy` of f32.
fn rows(path: &Path, width: usize) -> Vec<Vec<f32>> {
    let bytes = fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values: Vec<f32> = bytes[start..]
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
        .collect();
    values.chunks(width).map(<[f32]>::to_vec).collect()
}

#[test]
fn the_pictures_of_each_text_are_those_of_the_highest_cosine() {
    let home = Home::with_cars(24);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let [texts, images, features, found, sheet, table] = [
        "texts.txt",
        "images.npy",
        "texts.npy",
        "found.csv",
        "found.html",
        "photos.csv",
    ]
    .map(|name| home.path(name));
    fs::write(&texts, "\u{feff}a red car\n\n  <b>blue</b> & small  \n").unwrap();
    let options = format!(
        "--texts {} --search {} --top 3 --features {} --text-features {} --csv {} --sheet {} --json",
        texts.display(),
        home.path("cars/images").display(),
        images.display(),
        features.display(),
        found.display(),
        sheet.display()
    );
    let json = predict(&run, &options).exits(DONE).json();
    let searches = json["searches"].as_array().unwrap();
    let said: Vec<&Value> = searches.iter().map(|search| &search["text"]).collect();
    assert_eq!(said, ["a red car", "<b>blue</b> & small"]);
    let width = 128;
    let (images, texts_d) = (rows(&images, width), rows(&features, width));
    assert_eq!((images.len(), texts_d.len()), (24, 2));
    for (search, text) in searches.iter().zip(&texts_d) {
        let cosine = |image: &Vec<f32>| -> f64 {
            image
                .iter()
                .zip(text)
                .map(|(&a, &b)| f64::from(a) * f64::from(b))
                .sum()
        };
        let mut expected: Vec<f64> = images.iter().map(cosine).collect();
        expected.sort_by(|a, b| b.total_cmp(a));
        let found = search["found"].as_array().unwrap();
        assert_eq!(found.len(), 3);
        for (one, expected) in found.iter().zip(expected) {
            assert!((one["similarity"].as_f64().unwrap() - expected).abs() < 1e-9);
        }
    }
    let csv = fs::read_to_string(&found).unwrap();
    assert_eq!(
        (csv.lines().next(), csv.lines().count()),
        (Some("text,rank,image,similarity"), 7)
    );
    let page = fs::read_to_string(&sheet).unwrap();
    assert!(page.contains("&lt;b&gt;blue") && !page.contains("<b>blue"));
    assert_eq!(page.matches("data:image/jpeg;base64,").count(), 6);
    // The same pictures from a table, and the same page of words.
    let csv = fs::read_to_string(home.csv()).unwrap();
    fs::write(
        &table,
        csv.replace(",images/", ",cars/images/")
            .replace("\nimages/", "\ncars/images/"),
    )
    .unwrap();
    let options = format!(
        "--texts {} --search {} --top 3 --json",
        texts.display(),
        table.display()
    );
    let listed = predict(&run, &options).exits(DONE).json();
    let best = |json: &Value| json["searches"][0]["found"][0]["similarity"].clone();
    assert_eq!(best(&listed), best(&json));
    let options = format!(
        "--texts {} {} --top 2",
        texts.display(),
        home.path("cars/images").display()
    );
    let shown = predict(&run, &options).exits(DONE).stdout;
    assert_eq!(shown.lines().count(), 6, "{shown}");
}

#[test]
fn texts_alone_have_features_and_labels_come_from_a_file() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let [texts, features, labels] =
        ["texts.txt", "texts.safetensors", "labels.txt"].map(|name| home.path(name));
    fs::write(&texts, "a red car\n").unwrap();
    let options = format!(
        "--texts {} --text-features {}",
        texts.display(),
        features.display()
    );
    predict(&run, &options).exits(DONE);
    assert!(features.is_file());
    predict(&run, &format!("--texts {}", texts.display()))
        .refused_with(&["search where?", "--search"]);
    let options = format!(
        "--texts {0} --search {0} --sheet found.png",
        texts.display()
    );
    predict(&run, &options).refused_with(&["--sheet found.png", "expected FILE.html"]);
    let options = format!("--texts {} --features new.npy", texts.display());
    predict(&run, &options).refused_with(&["--features", "--text-features"]);
    fs::write(&labels, "red car\nblue car\n").unwrap();
    let csv = home.csv();
    let options = format!(
        "{} --labels-file {} --json",
        csv.display(),
        labels.display()
    );
    let json = predict(&run, &options).exits(DONE).json();
    let predictions = json["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 16, "every row of the table");
    let mut names: Vec<&str> = predictions[0]["labels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|label| label["label"].as_str().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["blue car", "red car"]);
    fs::write(&labels, "\n").unwrap();
    predict(&run, &options).refused_with(&["--labels-file", "found none"]);
}
