//! `holdall predict`: labels, captions that were never trained, and features for other programs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::training::{Home, RunFiles, on};
use crate::typed::{Answer, DONE, FOUND, holdall_words};

/// A run, and a folder with four of its pictures and a text.
fn trained() -> (Home, RunFiles, PathBuf) {
    let home = Home::with_cars(24);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let photos = home.path("photos");
    fs::create_dir(&photos).unwrap();
    for number in 1..5 {
        let name = format!("{number:06}.jpg");
        fs::copy(home.path("cars/images").join(&name), photos.join(&name)).unwrap();
    }
    fs::write(photos.join("readme.txt"), "no picture").unwrap();
    (home, run, photos)
}

/// `holdall predict RUN IMAGES OPTIONS`, options parted by `|` because labels have spaces.
fn predict(run: &RunFiles, images: &Path, options: &str) -> Answer {
    let words: [OsString; 3] = ["predict".into(), run.path.clone().into(), images.into()];
    let options = options
        .split('|')
        .filter(|word| !word.is_empty())
        .map(OsString::from);
    holdall_words(words.into_iter().chain(options))
}

fn predictions(json: &Value) -> &Vec<Value> {
    json["predictions"].as_array().unwrap()
}

/// Labels of a prediction, with probabilities that fall from one to the next.
fn labels(prediction: &Value) -> Vec<String> {
    let labels = prediction["labels"].as_array().unwrap();
    let probability = |label: &Value| label["probability"].as_f64().unwrap();
    assert!(
        labels.is_sorted_by(|a, b| probability(a) >= probability(b)),
        "{prediction}"
    );
    let total: f64 = labels.iter().map(probability).sum();
    assert!(total > 0.0 && total < 1.0 + 1e-9, "{prediction}");
    labels
        .iter()
        .map(|label| label["label"].as_str().unwrap().to_owned())
        .collect()
}

/// CLIP has one label head, whatever its target is called; what more is asked for is for classifiers.
#[test]
fn the_label_head_of_clip_is_of_one_target() {
    let home = Home::with_cars(24);
    let few = "--effective-batch 8 --epochs 1 --task clip --set";
    for (targets, words) in [
        (
            r#"{"make":"make","body":"body"}"#,
            ["body and make", "`data: {label: body}`"],
        ),
        (
            r#"{"year":{"number":"year"}}"#,
            ["data.targets.year", "a column of numbers, `year`"],
        ),
        (
            r#"{"tags":{"column":"caption","separator":"|"}}"#,
            ["data.targets.tags", "several labels per picture"],
        ),
    ] {
        let answer = home.train(&format!("{few} data.targets={targets}"));
        answer.refused_with(&[words[0], words[1], "`task: classify` trains"]);
    }
    let body = r#"data.targets={"body":"body"}"#;
    let run = home.trained("run", &format!("{few} {body}"));
    assert_eq!(run.json("model/labels.json")["target"], "body");
    let scores = on("eval", &run.path, "--json").exits(DONE).json();
    assert!(scores["label_top1"].is_number(), "{scores}");
    let csv = home.path("answers.csv");
    let options = format!("--csv|{}", csv.display());
    predict(&run, &home.path("cars/images"), &options).exits(DONE);
    let header = fs::read_to_string(csv).unwrap();
    assert!(header.starts_with("image,body,"), "{header}");
}

#[test]
fn the_head_names_labels() {
    let (_home, run, photos) = trained();
    let answer = predict(&run, &photos, "--json|--top|99").exits(DONE);
    let json = answer.json();
    assert_eq!(
        predictions(&json).len(),
        4,
        "a text beside pictures is none"
    );
    assert_eq!(json["skipped"], Value::Array(Vec::new()));
    let known = run.json("model/labels.json")["labels"]
        .as_array()
        .unwrap()
        .len();
    for (number, prediction) in predictions(&json).iter().enumerate() {
        let name = format!("{:06}.jpg", number + 1);
        assert!(prediction["image"].as_str().unwrap().ends_with(&name));
        assert_eq!(labels(prediction).len(), known);
        let total: f64 = prediction["labels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|label| label["probability"].as_f64().unwrap())
            .sum();
        assert!((total - 1.0).abs() < 1e-9);
    }
    // One at a time or all at once, the labels are the same.
    let one_by_one = predict(&run, &photos, "--json|--top|99|--batch-size|1").json();
    let names = |json: &Value| -> Vec<_> { predictions(json).iter().map(labels).collect() };
    assert_eq!(names(&one_by_one), names(&json));
    let shown = predict(&run, &photos, "").exits(DONE).stdout;
    assert_eq!(shown.lines().count(), 4);
    for line in shown.lines() {
        assert_eq!(line.matches('%').count(), 3, "{line}");
    }
}

#[test]
fn captions_name_labels_that_were_never_trained() {
    let (_home, run, photos) = trained();
    let json = predict(&run, &photos, "--labels|red car,blue car|--json")
        .exits(DONE)
        .json();
    for prediction in predictions(&json) {
        let mut labels = labels(prediction);
        labels.sort();
        assert_eq!(labels, ["blue car", "red car"]);
    }
    let probability = |template: &str| {
        let options = format!("--labels|red car,blue car|--template|{template}|--json");
        let json = predict(&run, &photos, &options).exits(DONE).json();
        predictions(&json)[0]["labels"][0]["probability"]
            .as_f64()
            .unwrap()
    };
    assert_ne!(
        probability("a photo of a {}"),
        probability("{} in the snow")
    );
    predict(&run, &photos, "--labels|a,b|--template|no place").refused_with(&[
        "--template",
        "no place",
        "expected {}",
    ]);
}

/// Rows of unit length, in the order of the pictures.
#[test]
fn features_are_written_for_other_programs() {
    let (home, run, photos) = trained();
    let [npy, safetensors] = ["features.npy", "features.safetensors"].map(|name| home.path(name));
    for path in [&npy, &safetensors] {
        predict(&run, &photos, &format!("--features|{}", path.display())).exits(DONE);
    }
    let file = fs::read(&safetensors).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor("image_features").unwrap();
    assert_eq!(
        (tensor.shape(), tensor.dtype()),
        ([4, 128].as_slice(), Dtype::F32)
    );
    let values: Vec<f32> = tensor
        .data()
        .chunks(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    for row in values.chunks(128) {
        let length: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
        assert!((length.sqrt() - 1.0).abs() < 1e-5, "{length}");
    }
    let file = fs::read(&npy).unwrap();
    assert_eq!(file[..8], *b"\x93NUMPY\x01\x00");
    let start = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    let header = String::from_utf8(file[10..start].to_vec()).unwrap();
    assert!(
        header.contains("'descr': '<f4'") && header.contains("'shape': (4, 128)"),
        "{header}"
    );
    assert!(file[start..] == *tensor.data());
    predict(&run, &photos, "--features|features.csv").refused_with(&[
        "features.csv",
        "expected",
        ".npy",
    ]);
}

#[test]
fn a_broken_picture_is_reported_and_the_others_are_predicted() {
    let (home, run, photos) = trained();
    fs::write(photos.join("000002.jpg"), "junk").unwrap();
    let features = home.path("features.npy");
    let answer = predict(
        &run,
        &photos,
        &format!("--json|--features|{}", features.display()),
    )
    .exits(FOUND);
    assert!(
        answer.stderr.contains("skipped ") && answer.stderr.contains("000002.jpg"),
        "{}",
        answer.stderr
    );
    let json = answer.json();
    assert_eq!(predictions(&json).len(), 3);
    let skipped = json["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 1);
    assert!(
        skipped[0]["image"]
            .as_str()
            .unwrap()
            .ends_with("000002.jpg")
    );
    assert!(
        skipped[0]["reason"]
            .as_str()
            .unwrap()
            .contains("expected a picture")
    );
    // Rows are those of the predictions.
    let header = String::from_utf8_lossy(&fs::read(&features).unwrap()[..128]).into_owned();
    assert!(header.contains("(3, 128)"), "{header}");
    // None is left: still no panic.
    let answer = predict(&run, &photos.join("000002.jpg"), "--json").exits(FOUND);
    assert_eq!(predictions(&answer.json()).len(), 0);
    predict(&run, &photos.join("absent.jpg"), "").exits(FOUND);
    let empty = home.path("empty");
    fs::create_dir(&empty).unwrap();
    predict(&run, &empty, "").refused_with(&["found no pictures", "jpg"]);
}

/// A row for every row of the table, in its order, whatever became of its picture; its pictures lie where training found them.
#[test]
fn every_row_of_a_table_has_a_row() {
    let home = Home::with_cars(24);
    let lists = home.path("lists");
    fs::create_dir(&lists).unwrap();
    let list = lists.join("cars.csv");
    fs::copy(home.csv(), &list).unwrap();
    let words = |csv: &Path| -> Vec<OsString> {
        let mut words = home.words("run", "--effective-batch 8 --epochs 1");
        words[1] = csv.into();
        let root = format!("data.image_root={}", home.path("cars").display());
        words.extend(["--set".into(), root.into()]);
        words
    };
    holdall_words(words(&list)).exits(DONE);
    let run = home.run_named("run");
    let all = fs::read_to_string(&list).unwrap();
    let lines: Vec<&str> = all.lines().collect();
    let own = predict(&run, &list, "").exits(DONE);
    assert_eq!(own.stdout.lines().count(), 24);
    assert!(!own.stderr.contains("Label head"), "{}", own.stderr);
    // Of five rows, one names nothing and two name pictures that are not there.
    let [first, second, third, fourth] = [1, 2, 3, 4].map(|at| lines[at].to_owned());
    let missing = |line: &str| line.replace("images/", "nowhere/");
    let nameless = second.split_once(',').map(|(_, rest)| format!(",{rest}"));
    let rows = [
        lines[0].to_owned(),
        missing(&first),
        second.clone(),
        nameless.unwrap(),
        missing(&third),
        fourth,
    ];
    let five = home.path("cars/five.csv");
    fs::write(&five, rows.join("\n")).unwrap();
    let csv = home.path("predicted.csv");
    let options = format!("--csv|{}", csv.display());
    let answer = predict(&run, &five, &options).exits(FOUND);
    assert!(
        answer.stderr.contains("2 predictions, 3 rows without one"),
        "{}",
        answer.stderr
    );
    let written = fs::read_to_string(&csv).unwrap();
    let has_label: Vec<bool> = (written.lines().skip(1))
        .map(|line| !line.ends_with(",,"))
        .collect();
    assert_eq!(has_label, [false, true, false, false, true], "{written}");
    // Where no picture is there, they are somewhere else.
    let elsewhere = rows.map(|row| missing(&row)).join("\n");
    fs::write(&five, elsewhere).unwrap();
    predict(&run, &five, "").refused_with(&["4 of 4 images are missing", "image_root"]);
}

/// `predict RUN s.csv --csv s.csv` by mistake: the labels stay as they are, and so does every other file that exists.
#[test]
fn no_existing_file_is_replaced_without_being_asked() {
    let (home, run, _) = trained();
    let labels = fs::read(home.csv()).unwrap();
    let notes = home.path("notes.npy");
    fs::write(&notes, "mine").unwrap();
    let options = format!("--features|{}", notes.display());
    predict(&run, &home.csv(), &options).refused_with(&[
        "--features",
        "expected a new file, found one that exists",
        "--overwrite",
    ]);
    // What is read is not replaced by any wish: the table, or a picture of a folder.
    let picture = home.path("cars/images/000001.jpg");
    let pixels = fs::read(&picture).unwrap();
    for (images, csv) in [
        (home.csv(), home.csv()),
        (home.path("cars/images"), picture.clone()),
    ] {
        let options = format!("--overwrite|--csv|{}", csv.display());
        predict(&run, &images, &options).refused_with(&["--csv", "one that this command reads"]);
    }
    assert_eq!(fs::read(&picture).unwrap(), pixels);
    let options = format!("--csv|{0}|--features|{0}", home.path("both.npy").display());
    predict(&run, &home.csv(), &options).refused_with(&["--features", "found that of --csv"]);
    // Nor is a file by nothing.
    let options = format!("--overwrite|--csv|{}", notes.display());
    let answer = predict(&run, &home.path("nothing.jpg"), &options).exits(FOUND);
    assert!(
        answer.stderr.contains("No file was written"),
        "{}",
        answer.stderr
    );
    assert_eq!(fs::read(home.csv()).unwrap(), labels);
    assert_eq!(fs::read(&notes).unwrap(), b"mine");
    let options = format!("--overwrite|--features|{}", notes.display());
    predict(&run, &home.csv(), &options).exits(DONE);
    assert!(fs::read(&notes).unwrap().starts_with(b"\x93NUMPY"));
    predict(&run, &home.csv(), "--set|train.lr=1")
        .refused_with(&["--set train.lr=1", "data section"]);
    for (set, why) in [
        ("data.patch=32", "only training"),
        ("data.stride=2", "task does not read"),
    ] {
        predict(&run, &home.csv(), &format!("--set|{set}")).refused_with(&[set, why]);
    }
    let options = format!(
        "--texts|{0}|--text-features|{0}",
        home.path("q.txt").display()
    );
    predict(&run, &home.csv(), &options).refused_with(&["--text-features ", "ends in .npy"]);
    // A page of a run is Holdall's own; one that the user names is not.
    let report = |options: &[&str]| {
        let words: [OsString; 2] = ["report".into(), run.path.clone().into()];
        holdall_words(words.into_iter().chain(options.iter().map(OsString::from)))
    };
    report(&[]).exits(DONE);
    report(&["--out", notes.to_str().unwrap()]).refused_with(&["--out", "found one that exists"]);
    // What belongs to the run is not replaced by any wish.
    for name in ["config.yml", "metrics.jsonl", "model/config.json"] {
        let own = run.file(name);
        let before = fs::read(&own).unwrap();
        let parts = ["one that this command reads"];
        let options = format!("--overwrite|--csv|{}", own.display());
        predict(&run, &home.csv(), &options).refused_with(&parts);
        report(&["--overwrite", "--out", own.to_str().unwrap()]).refused_with(&parts);
        assert_eq!(fs::read(&own).unwrap(), before);
    }
    let weights = run.file("model/model.safetensors");
    let options = format!("--overwrite|--features|{}", weights.display());
    predict(&run, &home.csv(), &options).refused_with(&["--features", "this command reads"]);
    predict(&run, &home.csv(), "--template|a {}").refused_with(&["--template", "--labels"]);
    let words: [OsString; 5] = [
        "export".into(),
        run.path.clone().into(),
        "--onnx".into(),
        "--out".into(),
        home.path("photos").into(),
    ];
    holdall_words(words).refused_with(&["--out", "expected an empty folder", "--overwrite"]);
}

/// Without labels there is no head: features are what is left, or labels that are typed.
#[test]
fn a_model_without_a_head_has_features() {
    let home = Home::with_cars(16);
    let text = fs::read_to_string(home.csv())
        .unwrap()
        .replacen(",make,", ",maker,", 1);
    fs::write(home.csv(), text).unwrap();
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    assert!(!run.file("model/head.safetensors").exists());
    assert_eq!(run.lines("step")[0]["label"], Value::Null);
    let picture = home.path("cars/images/000001.jpg");
    predict(&run, &picture, "").refused_with(&["expected a label head", "found none", "--labels"]);
    predict(
        &run,
        &picture,
        &format!("--features|{}", home.path("f.npy").display()),
    )
    .exits(DONE);
    predict(&run, &picture, "--labels|a,b").exits(DONE);
}

/// `holdall predict RUN FOLDER | head -1`.
#[cfg(unix)]
#[test]
fn a_reader_may_have_seen_enough() {
    use std::process::{Command, Stdio};
    let (_home, run, photos) = trained();
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let pipe = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let mut command = Command::new(crate::typed::program());
    command.arg("predict").args([&run.path, &photos]);
    let output = command
        .stdout(pipe)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
}
