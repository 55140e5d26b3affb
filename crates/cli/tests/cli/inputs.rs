//! The same pictures in every format that is read: checked, trained on and evaluated with the same numbers as the CSV of them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::training::{Home, RunFiles, on, same_lines};
use crate::typed::{BAD_INPUT, DONE, FOUND, holdall_words};

const OPTIONS: &str = "--epochs 1 --effective-batch 8 --batch-size 4 --num-workers 1 --seed 3";

/// A row: what its CSV says, and its picture.
struct Car {
    name: String,
    caption: String,
    make: String,
    bytes: Vec<u8>,
}

/// What was drawn.
fn cars(home: &Home) -> Vec<Car> {
    let table = fs::read_to_string(home.csv()).unwrap();
    let mut rows = csv::Reader::from_reader(table.as_bytes());
    let header = rows.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|found| found == name).unwrap();
    let columns = [column("image"), column("caption"), column("make")];
    let cars: Vec<Car> = rows
        .records()
        .map(|row| {
            let row = row.unwrap();
            let [name, caption, make] = columns.map(|column| row[column].to_owned());
            let bytes = fs::read(home.path("cars").join(&name)).unwrap();
            Car {
                name,
                caption,
                make,
                bytes,
            }
        })
        .collect();
    assert!(cars.len() >= 20);
    cars
}

/// `holdall train DATA --model small --out NAME`.
fn trained(home: &Home, data: &Path, name: &str) -> RunFiles {
    let mut words: Vec<OsString> = vec!["train".into(), data.into()];
    words.extend("--model small --out".split(' ').map(OsString::from));
    words.push(home.path(name).into());
    words.extend(OPTIONS.split(' ').map(OsString::from));
    holdall_words(words).exits(DONE);
    home.run_named(name)
}

/// What an evaluation says, without where and how fast.
fn scores(run: &RunFiles, data: &Path) -> Value {
    let words: Vec<OsString> = [
        "eval".into(),
        run.path.clone().into(),
        data.into(),
        "--json".into(),
    ]
    .into();
    let answer = holdall_words(words).exits(DONE);
    let mut json: Value = serde_json::from_str(&answer.stdout).unwrap();
    let keys = json.as_object_mut().unwrap();
    let others = ["model", "data", "device", "planned_bytes", "process_bytes"];
    keys.retain(|key, _| !others.contains(&key.as_str()));
    assert!(!keys.is_empty(), "{}", answer.stdout);
    json
}

/// What is predicted of each picture, without its name.
fn labels(run: &RunFiles, data: &Path) -> Vec<Value> {
    let words: Vec<OsString> = [
        "predict".into(),
        run.path.clone().into(),
        data.into(),
        "--json".into(),
    ]
    .into();
    let answer = holdall_words(words).exits(DONE);
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    let predictions = json["predictions"].as_array().unwrap();
    let labels = predictions.iter().map(|one| one["labels"].clone());
    labels.collect()
}

fn text_table(cars: &[Car], separator: &str) -> String {
    let mut text = ["image", "caption", "make"].join(separator) + "\n";
    for car in cars {
        text += &[car.name.as_str(), &car.caption, &car.make]
            .map(|cell| format!("\"{cell}\""))
            .join(separator);
        text += "\n";
    }
    text
}

fn tar(files: &[(String, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, contents) in files {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
        bytes.extend(*contents);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// A shard of cars: `000000.png`, `.txt`, `.json`.
fn shard(cars: &[Car], first: usize) -> Vec<u8> {
    let texts: Vec<String> = cars
        .iter()
        .map(|car| json!({ "make": car.make }).to_string())
        .collect();
    let mut files: Vec<(String, &[u8])> = Vec::new();
    for (at, (car, json)) in cars.iter().zip(&texts).enumerate() {
        let key = format!("{:06}", first + at);
        let ending = car.name.rsplit('.').next().unwrap();
        files.push((format!("{key}.{ending}"), &car.bytes));
        files.push((format!("{key}.txt"), car.caption.as_bytes()));
        files.push((format!("{key}.json"), json.as_bytes()));
    }
    tar(&files)
}

/// Every format: same samples, same losses, same scores.
#[test]
fn every_format_trains_with_the_losses_of_the_csv() {
    let home = Home::with_cars(24);
    let cars = cars(&home);
    let folder = home.path("cars");
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let csv = write("plain.csv", text_table(&cars, ",").as_bytes());
    let utf16 = text_table(&cars, "\t").replacen("image", "Image Path", 1);
    let utf16: Vec<u8> = utf16.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let lines = cars.iter().map(|car| {
        let row = json!({"file_name": car.name, "text": car.caption, "make": car.make});
        format!("{row}\n")
    });
    let lines: String = lines.collect();
    let (first, second) = cars.split_at(7);
    write("shards/cars-000.tar", &shard(first, 0));
    write("shards/cars-001.tar", &shard(second, 7));
    let formats = [
        write("semicolons.csv", text_table(&cars, ";").as_bytes()),
        write("utf16.tsv", &[&[0xff, 0xfe], utf16.as_slice()].concat()),
        write("metadata.jsonl", lines.as_bytes()),
        write("hub/cars.parquet", &parquet(&cars)),
        folder.join("shards/cars-{000..001}.tar"),
        folder.join("shards"),
    ];
    let expected = trained(&home, &csv, "expected");
    let expected_scores = scores(&expected, &csv);
    let expected_labels = labels(&expected, &csv);
    assert_eq!(expected_labels.len(), cars.len());
    for (at, data) in formats.iter().enumerate() {
        on("data", Path::new("check"), &data.display().to_string()).exits(DONE);
        let run = trained(&home, data, &format!("run{at}"));
        same_lines(&run, &expected).unwrap_or_else(|what| panic!("{}: {what}", data.display()));
        assert_eq!(scores(&run, data), expected_scores, "{}", data.display());
        let labels = labels(&expected, data);
        assert_eq!(labels, expected_labels, "{}", data.display());
    }
    // A picture that is broken in a shard is named by shard and member.
    let mut broken = shard(first, 0);
    broken[512..900].fill(7);
    let path = write("broken.tar", &broken);
    let answer = on(
        "data",
        Path::new("check"),
        &format!("{} --json", path.display()),
    )
    .exits(FOUND);
    assert!(
        answer.stdout.contains("broken.tar#000000."),
        "{}",
        answer.stdout
    );
}

/// A run that is interrupted goes on with pictures in shards as it would with files.
#[test]
fn a_run_on_shards_is_resumed_and_notices_another_shard() {
    let home = Home::with_cars(24);
    let cars = cars(&home);
    let path = home.path("cars.tar");
    fs::write(&path, shard(&cars, 0)).unwrap();
    let whole = trained(&home, &path, "whole");
    let mut words: Vec<OsString> = vec!["train".into(), path.clone().into()];
    words.extend(
        "--model small --set train.max_steps=1 --set train.save_every=1 --out"
            .split(' ')
            .map(OsString::from),
    );
    words.push(home.path("run").into());
    words.extend(OPTIONS.split(' ').map(OsString::from));
    holdall_words(words).exits(DONE);
    let run = home.run_named("run");
    assert_eq!(run.lines("step").len(), 1);
    run.resume("--set train.max_steps=3").exits(DONE);
    let losses = |run: &RunFiles| run.of_steps("loss");
    assert_eq!(losses(&run).len(), 3);
    assert_eq!(losses(&run)[0], losses(&whole)[0]);
    let mut other = shard(&cars, 0);
    let length = other.len();
    other.truncate(length - 1024);
    other.extend(shard(&cars[..1], 90));
    fs::write(&path, other).unwrap();
    let answer = run.resume("--set train.max_steps=4").exits(BAD_INPUT);
    assert!(answer.stderr.contains("hint:"), "{}", answer.stderr);
}

/// Thrift's compact protocol, as it is written.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: Vec<i32>,
}

impl Thrift {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn field(&mut self, number: i32, kind: u8) {
        let last = self.last.last_mut().unwrap();
        self.bytes.push(((number - *last) as u8) << 4 | kind);
        *last = number;
    }

    fn number(&mut self, field: i32, value: i64) {
        self.field(field, 6);
        self.varint((value << 1 ^ value >> 63) as u64);
    }

    fn text(&mut self, field: i32, text: &str) {
        self.field(field, 8);
        self.varint(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn list(&mut self, field: i32, kind: u8, length: usize) {
        self.field(field, 9);
        assert!(length < 15);
        self.bytes.push((length as u8) << 4 | kind);
    }

    fn begin(&mut self) {
        self.last.push(0);
    }

    fn end(&mut self) {
        self.last.pop();
        self.bytes.push(0);
    }
}

/// A Parquet file as Hugging Face lays one out: a group of `bytes` and `path`, then texts; one page each, nothing packed.
fn parquet(cars: &[Car]) -> Vec<u8> {
    let plain = |values: Vec<&[u8]>| {
        let mut page = Vec::new();
        for value in values {
            page.extend((value.len() as u32).to_le_bytes());
            page.extend(value);
        }
        page
    };
    let pages = [
        plain(cars.iter().map(|car| car.bytes.as_slice()).collect()),
        plain(cars.iter().map(|car| car.name.as_bytes()).collect()),
        plain(cars.iter().map(|car| car.caption.as_bytes()).collect()),
        plain(cars.iter().map(|car| car.make.as_bytes()).collect()),
    ];
    let mut file = b"PAR1".to_vec();
    let mut places = Vec::new();
    for page in &pages {
        let mut header = Thrift::default();
        header.begin();
        header.number(1, 0);
        header.number(2, page.len() as i64);
        header.number(3, page.len() as i64);
        header.field(5, 12);
        header.begin();
        for (field, value) in [(1, cars.len() as i64), (2, 0), (3, 3), (4, 3)] {
            header.number(field, value);
        }
        header.end();
        header.end();
        places.push((file.len(), header.bytes.len() + page.len()));
        file.extend(header.bytes);
        file.extend(page);
    }
    let mut footer = Thrift::default();
    footer.begin();
    footer.number(1, 1);
    let elements = [
        ("schema", None, Some(3), false),
        ("image", None, Some(2), false),
        ("bytes", Some(6), None, false),
        ("path", Some(6), None, true),
        ("text", Some(6), None, true),
        ("make", Some(6), None, true),
    ];
    footer.list(2, 12, elements.len());
    for (name, kind, children, is_text) in elements {
        footer.begin();
        if let Some(kind) = kind {
            footer.number(1, kind);
        }
        footer.number(3, 0);
        footer.text(4, name);
        if let Some(children) = children {
            footer.number(5, children);
        }
        if is_text {
            footer.number(6, 0);
        }
        footer.end();
    }
    footer.number(3, cars.len() as i64);
    footer.list(4, 12, 1);
    footer.begin();
    footer.list(1, 12, places.len());
    for (start, length) in &places {
        footer.begin();
        footer.number(2, 0);
        footer.field(3, 12);
        footer.begin();
        for (field, value) in [
            (1, 6),
            (4, 0),
            (5, cars.len()),
            (6, *length),
            (7, *length),
            (9, *start),
        ] {
            footer.number(field, value as i64);
        }
        footer.end();
        footer.end();
    }
    footer.number(2, 0);
    footer.number(3, cars.len() as i64);
    footer.end();
    footer.end();
    let length = footer.bytes.len() as u32;
    file.extend(footer.bytes);
    file.extend(length.to_le_bytes());
    file.extend(b"PAR1");
    file
}

/// Pictures without anything to learn can be checked, and training says what is missing.
#[test]
fn a_folder_of_pictures_alone() {
    let home = Home::with_cars(4);
    let folder = home.path("photos");
    fs::create_dir_all(folder.join("inside")).unwrap();
    for (at, car) in cars_of(&home).iter().enumerate() {
        let name = format!("{}{at}.png", if at % 2 == 0 { "" } else { "inside/" });
        fs::copy(car, folder.join(name)).unwrap();
    }
    let checked = on("data", Path::new("check"), &folder.display().to_string()).exits(DONE);
    assert!(
        checked.stdout.contains("Nothing wrong in 4 rows"),
        "{}",
        checked.stdout
    );
    let refused = on("train", &folder, "--model small").exits(BAD_INPUT);
    assert!(
        refused.stderr.contains("found pictures alone"),
        "{}",
        refused.stderr
    );
    fs::write(folder.join("0.txt"), "a red car").unwrap();
    fs::write(folder.join("2.txt"), "a blue car\n").unwrap();
    let checked = on("data", Path::new("check"), &folder.display().to_string()).exits(FOUND);
    assert!(
        checked.stdout.contains("empty caption"),
        "{}",
        checked.stdout
    );
}

fn cars_of(home: &Home) -> Vec<PathBuf> {
    let table = fs::read_to_string(home.csv()).unwrap();
    let mut rows = csv::Reader::from_reader(table.as_bytes());
    let header = rows.headers().unwrap().clone();
    let image = header.iter().position(|name| name == "image").unwrap();
    let rows = rows
        .records()
        .map(|row| home.path("cars").join(&row.unwrap()[image]));
    rows.collect()
}

/// `plan DATA` plans what `train DATA` would run.
#[test]
fn a_plan_takes_what_training_takes() {
    let home = Home::with_cars(8);
    let answer = on(
        "plan",
        &home.csv(),
        "--model small --epochs 3 --lr 1e-4 --num-workers 1 --memory 600MiB --json",
    )
    .exits(DONE);
    let plan: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert!(plan["chosen"].is_object(), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("Label column: `make`"),
        "{}",
        answer.stderr
    );
    let answer = on("plan", Path::new("small"), "--model tiny").exits(BAD_INPUT);
    assert!(
        answer
            .stderr
            .contains("expected a config or data beside --model tiny"),
        "{}",
        answer.stderr
    );
}

/// What is on the network is not fetched, and the line that does is said; what has to be written is said for who typed no config.
#[test]
fn urls_and_hints_for_who_has_no_config() {
    let home = Home::empty();
    let path = home.path("photos.csv");
    fs::write(
        &path,
        "url,caption\nhttps://example.org/1.jpg,a\nhttps://example.org/2.jpg,b\n",
    )
    .unwrap();
    let answer = on("train", &path, "--model small").exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("img2dataset --url_list"),
        "{}",
        answer.stderr
    );
    fs::write(
        &path,
        "image,caption\nhttps://example.org/1.jpg,a\nhttps://example.org/2.jpg,b\n",
    )
    .unwrap();
    let answer = on("train", &path, "--model small").exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("not downloaded"),
        "{}",
        answer.stderr
    );
    let checked = on("data", Path::new("check"), &path.display().to_string()).exits(FOUND);
    assert!(
        checked.stdout.contains("URL, not downloaded"),
        "{}",
        checked.stdout
    );
    assert!(
        checked
            .stderr
            .contains("--url_col image --caption_col caption"),
        "{}",
        checked.stderr
    );
    fs::create_dir(home.path("lists")).unwrap();
    fs::write(
        home.path("lists/photos.csv"),
        "image,caption\nlists/photos.csv,a\n",
    )
    .unwrap();
    let answer = on("train", &home.path("lists/photos.csv"), "--model small").exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("--set data.image_root="),
        "{}",
        answer.stderr
    );
}

/// Files as they are train with the same losses; resized ones are as small as asked; what is there already is compared and kept.
#[test]
fn packed_shards_train_as_the_files_do() {
    let home = Home::with_cars(24);
    let csv = home.csv();
    let pack = |out: &str, options: &str| {
        let out = home.path(out).display().to_string();
        on(
            "data",
            Path::new("pack"),
            &format!("{} --out {out} --per-shard 8 {options}", csv.display()),
        )
    };
    let answer = pack("shards", "").exits(DONE);
    assert!(
        answer.stdout.contains("24 samples in 3 shards"),
        "{}",
        answer.stdout
    );
    let expected = trained(&home, &csv, "expected");
    let run = trained(&home, &home.path("shards"), "run");
    same_lines(&run, &expected).unwrap();
    // Half of the work is lost; the rest is kept, byte for byte.
    let shard = home.path("shards/image_labels-000001.tar");
    let before = fs::read(&shard).unwrap();
    let manifest = home.path("shards/pack.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    json["shards"].as_array_mut().unwrap().truncate(1);
    fs::write(&manifest, json.to_string()).unwrap();
    fs::remove_file(&shard).unwrap();
    let answer = pack("shards", "").exits(DONE);
    assert!(
        answer.stdout.contains("1 shard kept, as written"),
        "{}",
        answer.stdout
    );
    assert_eq!(fs::read(&shard).unwrap(), before);
    pack("shards", "--size 16").exits(BAD_INPUT);
    fs::write(&shard, &before[512..]).unwrap();
    let answer = pack("shards", "").exits(BAD_INPUT);
    assert!(
        answer
            .stderr
            .contains("image_labels-000001.tar: expected the shard that was written"),
        "{}",
        answer.stderr
    );
    // Among other files nobody would see which of them are the shards.
    pack("cars", "").refused_with(&["cars: expected an empty folder", "`image_labels.csv`"]);
    let answer = pack("small", "--size 16 --format webp --json").exits(DONE);
    let packed: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(packed["samples"], 24);
    assert!(
        answer.stderr.contains("sees other pixels"),
        "{}",
        answer.stderr
    );
    // Neither loses anything, so a run does not see which it was.
    pack("pixels", "--size 16 --format ppm").exits(DONE);
    let [webp, ppm] = ["small", "pixels"].map(|name| {
        let run = trained(&home, &home.path(name), &format!("run-{name}"));
        run.of_steps("loss")
    });
    assert_eq!(webp, ppm);
    on(
        "data",
        Path::new("check"),
        &format!("{} --min-size 16", home.path("small").display()),
    )
    .exits(DONE);
    on(
        "data",
        Path::new("check"),
        &format!("{} --min-size 17", home.path("small").display()),
    )
    .exits(FOUND);
}

/// What is not decoded is refused by its name, whatever it is called, and the same by every command.
#[test]
fn formats_that_are_not_read_are_named_everywhere() {
    let home = Home::with_cars(24);
    let run = trained(&home, &home.csv(), "run");
    let folder = home.csv().parent().unwrap().to_owned();
    let table = fs::read_to_string(home.csv()).unwrap();
    let first = table.lines().nth(1).unwrap().split(',').next().unwrap();
    for (bytes, name) in [
        (&b"\0\0\0\x1cftypavif"[..], "AVIF"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    ] {
        let odd = folder.join("odd.jpg");
        fs::write(&odd, [bytes, &[0; 400]].concat()).unwrap();
        let csv = folder.join("odd.csv");
        fs::write(&csv, table.replacen(first, "odd.jpg", 1)).unwrap();
        let answer = on("data", Path::new("check"), &csv.display().to_string()).exits(FOUND);
        let said = format!("{name} odd.jpg");
        assert!(
            answer.stdout.contains("format not read"),
            "{}",
            answer.stdout
        );
        assert!(answer.stdout.contains(&said), "{}", answer.stdout);
        let out = home.path(name).display().to_string().replace(' ', "-");
        let options =
            format!("--model small --effective-batch 8 --set data.bad_pictures=fail --out {out}");
        let answer = on("train", &csv, &options).exits(BAD_INPUT);
        assert!(answer.stderr.contains(name), "{}", answer.stderr);
        let picture = format!("{} --labels a,b", odd.display());
        let answer = on("predict", &run.path, &picture).exits(FOUND);
        assert!(answer.stderr.contains(name), "{}", answer.stderr);
    }
}
