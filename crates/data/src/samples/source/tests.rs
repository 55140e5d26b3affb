use std::fs;

use super::missing::MANY_IMAGES;
use super::*;
use crate::config::{BadPictures, Share};
use crate::samples::target::UNSEEN;

/// A folder with a CSV of these rows and an image for each `N.jpg` in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(csv: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("image_labels.csv", csv);
        for at in 0..40 {
            folder.write(&format!("images/{at}.jpg"), "");
        }
        folder
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn config(&self) -> DataConfig {
        DataConfig {
            train: Some(self.0.path().to_owned()),
            ..DataConfig::default()
        }
    }
}

/// 40 rows of four makes, two captions each.
fn cars() -> Folder {
    let mut csv = "image,make,caption\r\n".to_owned();
    for at in 0..40 {
        let make = ["Ford", "Audi", "BMW", "Tesla"][at % 4];
        csv += &format!("images\\{at}.jpg,{make},a {make} from {}\r\n", at / 4 % 2);
    }
    Folder::new(&csv)
}

fn labelled(folder: &Folder) -> DataConfig {
    DataConfig {
        label: Some("make".into()),
        ..folder.config()
    }
}

fn fails(config: &DataConfig) -> String {
    let text = read(config, Captions::Required, 0).unwrap_err().to_string();
    assert!(text.contains("\nhint: "), "{text}");
    text
}

#[test]
fn reads_a_folder_with_nothing_but_defaults() {
    let folder = cars();
    let data = read(&folder.config(), Captions::Required, 0).unwrap();
    assert_eq!(data.train.len(), 36);
    assert_eq!(data.validation.as_ref().unwrap().len(), 4);
    assert!(data.labels.is_empty());
    assert_eq!(data.caption_template, "{caption}");
    assert!(data.train.image(0).starts_with("images/"));
    assert!(data.train.image_path(0).is_file());
    let notes = data.notes.join("\n");
    for expected in [
        "Image column: `image` (found by its name)",
        "Caption column: `caption` (found by its name)",
        "Validation: 4 of 40 rows (10%), seed 0",
        "8 unique texts out of 36",
    ] {
        assert!(notes.contains(expected), "{notes}");
    }
}

#[test]
fn splits_by_label_and_the_same_way_every_time() {
    let folder = cars();
    let data = read(&labelled(&folder), Captions::Required, 7).unwrap();
    assert_eq!(data.labels, ["Audi", "BMW", "Ford", "Tesla"]);
    assert_eq!(data.label_column.as_deref(), Some("make"));
    let held = data.validation.unwrap();
    let mut labels = held.labels().to_vec();
    labels.sort_unstable();
    assert_eq!(labels, [0, 1, 2, 3]);
    let note = "Validation: 4 of 40 rows (10%), stratified by `make`, seed 7";
    assert!(data.notes.iter().any(|n| n == note), "{:?}", data.notes);
    let mut rows: Vec<u32> = (0..36).map(|sample| data.train.row(sample)).collect();
    rows.extend((0..4).map(|sample| held.row(sample)));
    rows.sort_unstable();
    assert_eq!(rows, (2..42).collect::<Vec<u32>>());
    let again = read(&labelled(&folder), Captions::Required, 7).unwrap();
    assert_eq!(again.train, data.train);
    assert_ne!(
        read(&labelled(&folder), Captions::Required, 8)
            .unwrap()
            .train,
        data.train
    );
}

/// Heads are ordered by name; the target that the config lists first still decides the split.
#[test]
fn rows_are_held_out_by_the_first_target_as_it_is_written() {
    let folder = cars();
    let mut config = folder.config();
    config.targets.insert("year".to_owned(), "make".into());
    config.targets.insert("body".to_owned(), "caption".into());
    let data = read(&config, Captions::None, 7).unwrap();
    let names: Vec<&str> = data
        .targets
        .iter()
        .map(|target| target.name.as_str())
        .collect();
    assert_eq!(names, ["body", "year"]);
    let note = "Validation: 4 of 40 rows (10%), stratified by `make`, seed 7";
    assert!(data.notes.iter().any(|n| n == note), "{:?}", data.notes);
    let by_label = read(&labelled(&folder), Captions::None, 7).unwrap();
    let rows = |data: &DataSet| {
        (0..data.train.len())
            .map(|at| data.train.row(at))
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(&data), rows(&by_label));
}

#[test]
fn a_target_of_no_column_is_told_what_targets_are() {
    let folder = cars();
    let mut config = folder.config();
    config
        .targets
        .insert("kind".to_owned(), "nothing such".into());
    let error = read(&config, Captions::None, 0).unwrap_err().to_string();
    assert!(error.contains("`targets: {NAME: COLUMN}`"), "{error}");
}

/// 40 rows: 28 for training, 4 for validation, 8 for the test, and two patients among all of them.
fn three_sides(split: &str) -> Folder {
    let mut csv = format!("image,make,caption,{split},patient\n");
    for at in 0..40 {
        let make = ["Ford", "Audi"][at % 2];
        let side = match at % 10 {
            3 => "Val",
            5 | 8 => "test",
            _ => "train",
        };
        csv += &format!("images/{at}.jpg,{make},c{at},{side},p{}\n", at / 2);
    }
    Folder::new(&csv)
}

fn rows_of(samples: &Option<Samples>) -> Vec<u32> {
    let samples = samples.iter();
    samples
        .flat_map(|samples| (0..samples.len()).map(|sample| samples.row(sample)))
        .collect()
}

#[test]
fn a_split_column_is_recognised_and_test_rows_are_apart() {
    let folder = three_sides("Split");
    let test: Vec<u32> = (0..40)
        .filter(|at| [5, 8].contains(&(at % 10)))
        .map(|at| at + 2)
        .collect();
    let mut config = labelled(&folder);
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(data.train.len(), 28);
    assert_eq!(rows_of(&data.validation), [5, 15, 25, 35]);
    assert_eq!(rows_of(&data.test), test);
    let notes = data.notes.join("\n");
    for note in [
        "Validation: 4 of 40 rows, those that `Split` says (found by its name)",
        "Test: 8 rows set apart by `Split`, a column found by its name; only `holdall eval RUN --part test` reads them",
        "Careful: 12 groups of `patient` on both sides of the split",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    // Naming the column or holding out another share leaves the test side as it is.
    config.validation = Validation::column("Split");
    let named = read(&config, Captions::Required, 0).unwrap();
    assert_eq!((&named.train, &named.test), (&data.train, &data.test));
    for validation in [Validation::share(0.25), Validation::None] {
        config.validation = validation;
        let other = read(&config, Captions::Required, 0).unwrap();
        assert_eq!(other.test, data.test);
        let all = rows_of(&Some(other.train))
            .into_iter()
            .chain(rows_of(&other.validation));
        assert!(all.clone().all(|row| !test.contains(&row)));
        assert_eq!(
            rows_of(&other.validation).len(),
            match config.validation {
                Validation::None => 0,
                _ => 8,
            }
        );
    }
    // A command that trains nothing reads every row.
    config.validation = Validation::UNSPLIT;
    let all = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(
        (all.train.len(), all.validation, all.test),
        (40, None, None)
    );
}

#[test]
fn without_validation_rows_a_share_is_drawn_and_never_of_the_test() {
    let folder = three_sides("set");
    let csv = folder.0.path().join("image_labels.csv");
    let text = fs::read_to_string(&csv)
        .unwrap()
        .replace(",Val,", ",training,");
    fs::write(&csv, text).unwrap();
    let mut config = labelled(&folder);
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!((data.train.len(), rows_of(&data.test).len()), (29, 8));
    assert_eq!(rows_of(&data.validation).len(), 3);
    config.validation = serde_json::from_str(r#"{"group": "patient"}"#).unwrap();
    let grouped = read(&config, Captions::Required, 0).unwrap();
    let patient = |row: &u32| (row - 2) / 2;
    let held: Vec<u32> = rows_of(&grouped.validation).iter().map(patient).collect();
    let trained = rows_of(&Some(grouped.train));
    assert!(!held.is_empty() && trained.iter().all(|row| !held.contains(&patient(row))));
}

#[test]
fn pictures_with_texts_in_train_val_and_test_are_sides() {
    let folder = class_folders(&["train/1.jpg", "train/2.jpg", "val/3.jpg", "test/4.jpg"]);
    for text in ["train/1", "train/2", "val/3", "test/4"] {
        folder.write(&format!("{text}.txt"), "a car");
    }
    let data = read(&folder.config(), Captions::Required, 0).unwrap();
    assert_eq!(images(&data.train), ["train/1.jpg", "train/2.jpg"]);
    assert_eq!(images(&data.validation.unwrap()), ["val/3.jpg"]);
    assert_eq!(images(&data.test.unwrap()), ["test/4.jpg"]);
}

#[test]
fn a_split_column_is_followed() {
    let mut config = labelled(&Folder::new(""));
    let folder = Folder::new(
        "image,make,caption,split\nimages/1.jpg,Ford,a,train\nimages/2.jpg,Audi,b,Train\nimages/3.jpg,Ford,c,val\n",
    );
    config.train = Some(folder.0.path().to_owned());
    config.validation = Validation::column("split");
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!((data.train.len(), data.validation.unwrap().len()), (2, 1));

    folder.write(
        "image_labels.csv",
        "image,make,caption,split\nimages/1.jpg,Ford,a,train\nimages/2.jpg,Audi,b,later\n",
    );
    assert!(fails(&config).contains("row 3: column `split`"));
    folder.write(
        "image_labels.csv",
        "image,make,caption,split\nimages/1.jpg,Ford,a,test\n",
    );
    assert!(fails(&config).contains("expected rows that say train"));
}

#[test]
fn a_validation_file_is_read_with_the_labels_of_training() {
    let folder = cars();
    let held = "image,make,caption\nimages/1.jpg,BMW,a\nimages/2.jpg,Ford,a\n";
    let path = folder.write("held/val.csv", held);
    let mut config = labelled(&folder);
    config.validation = Validation::file(path.clone());
    config.image_root = Some(folder.0.path().to_owned());
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(data.train.len(), 40);
    assert_eq!(data.validation.unwrap().labels(), [1, 2]);
    let notes = data.notes.join("\n");
    assert!(notes.contains("Careful: 2 of 2 validation rows"), "{notes}");
    assert!(
        notes.contains("1 unique text out of 2 in validation"),
        "{notes}"
    );

    folder.write("held/val.csv", "image,make,caption\nimages/1.jpg,Fort,a\n");
    let error = fails(&config);
    assert!(error.contains("val.csv, row 2: column `make`"), "{error}");
    assert!(
        error.contains("found `Fort`\nhint: did you mean `Ford`?"),
        "{error}"
    );
}

#[test]
fn a_head_brings_its_own_labels() {
    let folder = cars();
    let head = ["Tesla", "BMW", "Audi", "Ford"].map(str::to_owned);
    let mut config = labelled(&folder);
    config.validation = Validation::None;
    let data = read_with_labels(&config, &head, Side::Train, 0).unwrap();
    assert_eq!(data.labels, head);
    assert_eq!(data.train.labels()[..4], [3, 2, 1, 0]);
    assert!(data.validation.is_none());
    // Ford was not trained on: ten rows, scored as wrong, or left out, or refused.
    let known = &head[..3];
    let data = read_with_labels(&config, known, Side::Train, 0).unwrap();
    assert_eq!(data.train.labels()[..4], [UNSEEN, 2, 1, 0]);
    let note = "10 rows with a `make` that was not trained on (Ford 10): scored as wrong; `unseen_labels: skip`";
    assert!(data.notes.join("\n").contains(note), "{:?}", data.notes);
    config.unseen_labels = UnseenLabels::Skip;
    let data = read_with_labels(&config, known, Side::Train, 0).unwrap();
    assert_eq!(data.train.labels()[..4], [-1, 2, 1, 0]);
    config.unseen_labels = UnseenLabels::Fail;
    let error = read_with_labels(&config, known, Side::Train, 0)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("row 2") && error.contains("3 labels of the trained head"),
        "{error}"
    );
    // No row has a label of the head: the column is a different one.
    config.unseen_labels = UnseenLabels::Wrong;
    let others = ["red", "blue"].map(str::to_owned);
    let error = read_with_labels(&config, &others, Side::Train, 0)
        .unwrap_err()
        .to_string();
    assert!(error.contains("2 labels of the trained head"), "{error}");
}

#[test]
fn unseen_labels_are_counted_on_the_evaluated_side() {
    let folder = Folder::new(
        "image,make,caption,split\nimages/1.jpg,Ford,a,train\nimages/2.jpg,Audi,b,train\nimages/3.jpg,Fiat,c,val\n\
         images/4.jpg,Fiat,d,test\nimages/5.jpg,Seat,e,test\nimages/6.jpg,Ford,f,test\n",
    );
    let mut config = labelled(&folder);
    let head = ["Audi", "Ford"].map(str::to_owned);
    for (side, expected) in [
        (
            Side::Validation,
            "1 row with a `make` that was not trained on (Fiat 1)",
        ),
        (
            Side::Test,
            "2 rows with a `make` that was not trained on (Fiat 1; Seat 1)",
        ),
    ] {
        let notes = read_with_labels(&config, &head, side, 0).unwrap().notes;
        assert!(
            notes.iter().any(|note| note.starts_with(expected)),
            "{notes:?}"
        );
    }
    config.unseen_labels = UnseenLabels::Fail;
    let error = read_with_labels(&config, &head, Side::Test, 0).unwrap_err();
    assert!(
        error.to_string().contains("row 5: column `make`"),
        "{error}"
    );
    assert!(read_with_labels(&config, &head, Side::Train, 0).is_ok());
}

#[test]
fn labels_may_be_empty_but_not_all_the_same() {
    let folder = Folder::new(
        "image,make,caption\nimages/1.jpg,Ford,a\nimages/2.jpg,,b\nimages/3.jpg,Audi,c\n",
    );
    let mut config = labelled(&folder);
    config.validation = Validation::None;
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(data.train.labels(), [1, -1, 0]);
    assert!(
        data.notes
            .iter()
            .any(|n| n.starts_with("1 row without a `make`"))
    );

    folder.write(
        "image_labels.csv",
        "image,make,caption\nimages/1.jpg,Ford,a\n",
    );
    assert!(fails(&config).contains("found only `Ford`\nhint: leave `label` out"));
    folder.write("image_labels.csv", "image,make,caption\nimages/1.jpg,,a\n");
    assert!(fails(&config).contains("found none"));
}

/// The 40 cars, with these lines after the tenth.
fn cars_and(lines: &str) -> Folder {
    let folder = cars();
    let csv = fs::read_to_string(folder.0.path().join("image_labels.csv")).unwrap();
    let tenth = csv.match_indices("\r\n").nth(10).unwrap().0 + 2;
    let csv = format!("{}{lines}{}", &csv[..tenth], &csv[tenth..]);
    folder.write("image_labels.csv", &csv);
    folder
}

#[test]
fn a_file_with_bad_rows_is_the_file_without_them() {
    let (folder, good) = (
        cars_and(
            "images/1.jpg,Ford, \r\n,Audi,a\r\nimages/2.jpg,Seat\r\nimages/3.jpg,Ford,a,b\r\n",
        ),
        cars(),
    );
    let (data, clean) = (
        read(&labelled(&folder), Captions::Required, 7).unwrap(),
        read(&labelled(&good), Captions::Required, 7).unwrap(),
    );
    assert_eq!(data.labels, clean.labels);
    let pairs = [
        (&data.train, &clean.train),
        (
            data.validation.as_ref().unwrap(),
            clean.validation.as_ref().unwrap(),
        ),
    ];
    for (found, expected) in pairs {
        assert_eq!(found.len(), expected.len());
        assert_eq!(found.labels(), expected.labels());
        assert_eq!(found.captions(), expected.captions());
        for sample in 0..found.len() {
            assert_eq!(found.image(sample), expected.image(sample));
            let row = expected.row(sample);
            assert_eq!(found.row(sample), if row < 12 { row } else { row + 4 });
        }
    }
    let bad: Vec<(u32, String)> = data
        .bad_rows
        .iter()
        .map(|bad| (bad.row, bad.fault.to_string()))
        .collect();
    let expected = [
        (12, "empty caption"),
        (13, "no image named"),
        (14, "2 of 3 fields"),
        (15, "4 of 3 fields"),
    ];
    assert_eq!(bad, expected.map(|(row, fault)| (row, fault.to_owned())));
    let notes = data.notes.join("\n");
    let note = "Careful: 4 of 44 rows cannot be used (row 12: empty caption, row 13: no image named, row 14: 2 of 3 \
                fields, row 15: 4 of 3 fields): skipped, as `bad_pictures: skip` says; `holdall data clean ";
    assert!(notes.contains(note), "{notes}");
}

#[test]
fn bad_rows_count_as_bad_pictures_do() {
    let folder = cars_and(&"images/1.jpg,Ford,\r\n".repeat(4));
    let mut config = folder.config();
    assert_eq!(
        read(&config, Captions::Required, 0).unwrap().bad_rows.len(),
        4
    );
    // Four of 44 rows and one missing picture of 40 exceed a tenth together.
    fs::remove_file(folder.0.path().join("images/7.jpg")).unwrap();
    let error = fails(&config);
    assert!(
        error.contains(
            "1 of 40 images is missing and 4 rows cannot be used, `max_skipped` allows 10%"
        ),
        "{error}"
    );
    config.max_skipped = Share(0.05);
    let error = fails(&config);
    assert!(
        error.contains(
            "4 of 44 rows cannot be used, `max_skipped` allows 5%: row 12: empty caption"
        ),
        "{error}"
    );
    assert!(error.contains("hint: `holdall data clean "), "{error}");
    config.bad_pictures = BadPictures::Fail;
    assert!(fails(&config).contains("`bad_pictures: fail` allows none: row 12"));
    // If nothing would be left, skipping is refused.
    folder.write("image_labels.csv", "image,caption\n,a\nimages/1.jpg, \n");
    config.bad_pictures = BadPictures::Skip;
    config.max_skipped = Share(1.0);
    assert!(fails(&config).contains("2 of 2 rows cannot be used"));
}

#[test]
fn bad_rows_of_a_split_column_and_of_a_validation_file_are_told_apart() {
    let csv = "image,caption,split\nimages/1.jpg,a,train\nimages/2.jpg,,val\nimages/3.jpg,,train\nimages/4.jpg,b,val\n,b,\n";
    let folder = Folder::new(csv);
    let mut config = folder.config();
    config.max_skipped = Share(0.7);
    config.validation = Validation::column("split");
    let sides = |data: &DataSet| -> Vec<(u32, bool)> {
        let bad = data.bad_rows.iter();
        bad.map(|bad| (bad.row, bad.side == Side::Validation))
            .collect()
    };
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(sides(&data), [(3, true), (4, false), (6, false)]);
    let held = folder.write("val.csv", "image,caption\nimages/1.jpg,\nimages/5.jpg,a\n");
    config.validation = Validation::file(held);
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(sides(&data), [(3, true), (4, false), (6, false), (2, true)]);
    assert_eq!(data.validation.unwrap().len(), 1);
}

#[test]
fn missing_images_are_counted_and_the_first_is_named() {
    let folder = cars();
    fs::remove_file(folder.0.path().join("images/7.jpg")).unwrap();
    fs::remove_file(folder.0.path().join("images/9.jpg")).unwrap();
    let mut config = folder.config();
    let data = read(&config, Captions::Required, 0).unwrap();
    // Missing pictures stay in the lists: split and order do not depend on what is missing.
    assert_eq!(data.train.len(), 36);
    let note = data
        .notes
        .iter()
        .find(|n| n.starts_with("Careful: 2 of 40"));
    let note = note.unwrap_or_else(|| panic!("{:?}", data.notes));
    assert!(note.contains("image_labels.csv, row 9, images/7.jpg): skipped"));
    config.max_skipped = Share(0.04);
    assert!(fails(&config).contains("2 of 40 images are missing, `max_skipped` allows 4%"));
    config.bad_pictures = BadPictures::Fail;
    let error = fails(&config);
    assert!(error.contains("row 9: expected an image at"), "{error}");
    assert!(error.contains("images/7.jpg"), "{error}");
    assert!(error.contains("2 of 40 images are missing\n"), "{error}");

    let path = folder.write("tables/cars.csv", "image,caption\nimages/1.jpg,a\n");
    let config = DataConfig {
        train: Some(path),
        ..folder.config()
    };
    let error = fails(&config);
    let root = folder.0.path().display();
    assert!(
        error.ends_with(&format!("`image_root: {root}` would find it")),
        "{error}"
    );
}

#[test]
fn many_images_are_checked_too() {
    let mut csv = "image,caption\n".to_owned();
    for at in 0..MANY_IMAGES + 5 {
        csv += &format!("images/{}.jpg,a\n", at % 41);
    }
    let folder = Folder::new(&csv);
    let config = DataConfig {
        bad_pictures: BadPictures::Fail,
        ..folder.config()
    };
    let error = fails(&config);
    assert!(error.contains("row 42"), "{error}");
    assert!(
        error.contains("244 of 10,005 images are missing"),
        "{error}"
    );
}

#[test]
fn too_few_rows_leave_validation_out_and_say_so() {
    let folder = Folder::new("image,caption\nimages/1.jpg,a\n");
    let data = read(&folder.config(), Captions::Required, 0).unwrap();
    assert!(data.validation.is_none());
    let notes = data.notes.join("\n");
    assert!(notes.contains("Validation: none of 1 row (10%)"), "{notes}");
}

/// 20 rows with every kind of target.
fn attributes() -> Folder {
    let mut csv = "image,make,tags,door,wheel,age,patient\n".to_owned();
    for at in 0..20 {
        let make = ["Ford", "Audi"][at % 2];
        let tags = ["red|old", "blue", "", "|", "old | red"][at % 5];
        let (door, wheel) = (["1", "no", "TRUE"][at % 3], ["0", "yes"][at % 2]);
        csv += &format!(
            "images/{at}.jpg,{make},{tags},{door},{wheel},{at}.5,p{}\n",
            at / 4
        );
    }
    Folder::new(&csv)
}

fn config_of(folder: &Folder, data: &str) -> DataConfig {
    let config: DataConfig = serde_json::from_str(data).unwrap();
    DataConfig {
        train: Some(folder.0.path().to_owned()),
        ..config
    }
}

const ALL_TARGETS: &str = r#"{"validation": "none", "targets": {
    "make": "make", "tags": {"column": "tags", "separator": "|"},
    "parts": {"columns": ["wheel", "door"]}, "years": {"number": "age"}}}"#;

fn names(target: &Target) -> Vec<&str> {
    target.kind.names().iter().map(String::as_str).collect()
}

#[test]
fn targets_of_every_kind_are_read_without_captions() {
    let folder = attributes();
    let config = config_of(&folder, ALL_TARGETS);
    let data = read(&config, Captions::None, 0).unwrap();
    assert!(data.train.captions().is_empty() && data.caption_template.is_empty());
    assert_eq!(data.labels, ["Audi", "Ford"]);
    let [make, parts, tags, years] = &data.targets[..] else {
        panic!("{:?}", data.targets);
    };
    assert_eq!(
        (names(make), names(parts)),
        (vec!["Audi", "Ford"], vec!["wheel", "door"])
    );
    assert_eq!(names(tags), ["blue", "old", "red"]);
    assert_eq!(
        (years.name.as_str(), &years.kind),
        (
            "years",
            &TargetKind::Number {
                mean: 10.0,
                std: 33.25f64.sqrt()
            }
        )
    );
    let [
        TargetValues::Class(makes),
        TargetValues::Classes(parts),
        TargetValues::Classes(tags),
        TargetValues::Number(years),
    ] = data.train.targets()
    else {
        panic!("{:?}", data.train.targets());
    };
    assert_eq!(
        (makes[..3].to_vec(), data.train.label(1)),
        (vec![1, 0, 1], 0)
    );
    let rows: Vec<Option<&[u32]>> = (0..5).map(|row| tags.get(row)).collect();
    assert_eq!(
        rows,
        [
            Some(&[1, 2][..]),
            Some(&[0]),
            None,
            Some(&[]),
            Some(&[1, 2])
        ]
    );
    let rows: Vec<Option<&[u32]>> = (0..3).map(|row| parts.get(row)).collect();
    assert_eq!(rows, [Some(&[1][..]), Some(&[0]), Some(&[1])]);
    assert_eq!(years[..2], [0.5, 1.5]);
    let notes = data.notes.join("\n");
    assert!(
        notes.contains("4 rows without a `tags`: no label loss"),
        "{notes}"
    );
}

fn trained(targets: &[Target]) -> TrainedTargets<'_> {
    let side = Side::Train;
    TrainedTargets { targets, side }
}

#[test]
fn a_trained_model_brings_its_targets_in_its_order() {
    let folder = attributes();
    let config = config_of(&folder, ALL_TARGETS);
    let class = |name: &str, names: &[&str]| Target {
        name: name.to_owned(),
        kind: TargetKind::Classes {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        },
    };
    let mut heads = vec![
        Target {
            name: "years".to_owned(),
            kind: TargetKind::Number {
                mean: 3.0,
                std: 2.0,
            },
        },
        class("tags", &["red", "old", "green", "blue"]),
        class("colour", &["pink"]),
        class("parts", &["door", "wheel"]),
        Target {
            name: "make".to_owned(),
            kind: TargetKind::Class {
                names: vec!["Ford".to_owned(), "Audi".to_owned()],
            },
        },
    ];
    let data = read_with_targets(&config, Captions::None, trained(&heads), 0).unwrap();
    assert_eq!(data.targets, heads);
    let values = data.train.targets();
    let [
        _,
        TargetValues::Classes(tags),
        TargetValues::Classes(colours),
        TargetValues::Classes(parts),
        _,
    ] = values
    else {
        panic!("{values:?}");
    };
    assert_eq!(
        (tags.get(0), tags.get(1)),
        (Some(&[0, 1][..]), Some(&[3][..]))
    );
    assert_eq!((colours.get(0), parts.get(1)), (None, Some(&[1][..])));
    let strict = DataConfig {
        unseen_labels: UnseenLabels::Fail,
        ..config
    };
    let refused = |heads: &[Target]| {
        read_with_targets(&strict, Captions::None, trained(heads), 0)
            .unwrap_err()
            .to_string()
    };
    heads[1] = class("tags", &["red", "old"]);
    let error = refused(&heads);
    assert!(
        error.contains("row 3: column `tags`") && error.contains("found `blue`"),
        "{error}"
    );
    heads[1] = class("years", &["red"]);
    heads.swap(0, 1);
    let error = refused(&heads);
    assert!(
        error.contains("data.targets.years: expected several labels per picture"),
        "{error}"
    );
    let error = refused(&heads[4..]);
    assert!(
        error.contains("data.targets.parts: expected one of the model's make"),
        "{error}"
    );
}

#[test]
fn cells_that_are_no_values_are_bad_rows() {
    let folder = attributes();
    let csv = folder.0.path().join("image_labels.csv");
    let text = fs::read_to_string(&csv).unwrap();
    let text = text.replace(",7.5,", ",old,").replace(
        "images/9.jpg,Audi,old | red,1",
        "images/9.jpg,Audi,old | red,",
    );
    fs::write(&csv, text).unwrap();
    let mut config = config_of(&folder, ALL_TARGETS);
    let data = read(&config, Captions::None, 0).unwrap();
    let bad: Vec<String> = data
        .bad_rows
        .iter()
        .map(|bad| format!("row {}: {}", bad.row, bad.fault))
        .collect();
    assert_eq!(
        bad,
        [
            "row 9: column `age`: expected a number, found `old`",
            "row 11: column `door`: expected 0 or 1, found ``"
        ]
    );
    assert_eq!(data.train.targets()[3].len(), 18);
    config.bad_pictures = BadPictures::Fail;
    let error = read(&config, Captions::None, 0).unwrap_err().to_string();
    assert!(
        error.contains("row 9: column `age`: expected a number"),
        "{error}"
    );
    config.label = Some("make".into());
    let error = read(&config, Captions::None, 0).unwrap_err().to_string();
    assert!(error.contains("leave `label` out"), "{error}");
}

#[test]
fn captions_are_made_of_labels_only_where_they_are_required() {
    let folder = attributes();
    let mut config = labelled(&folder);
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(data.caption_template, "a photo of a {make}");
    assert_eq!(data.train.captions().len(), 2);
    let notes = data.notes.join("\n");
    assert!(
        notes.contains("Captions: `a photo of a {make}`, made of the label"),
        "{notes}"
    );
    config.label = None;
    let error = read(&config, Captions::Required, 0)
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected a column of captions"), "{error}");
    read(&config, Captions::None, 0).unwrap();
}

#[test]
fn groups_stay_on_one_side_and_leaks_are_said() {
    let folder = attributes();
    let mut config = config_of(
        &folder,
        r#"{"label": "make", "validation": {"share": "20%", "group": "patient"}}"#,
    );
    let data = read(&config, Captions::None, 3).unwrap();
    let held = data.validation.unwrap();
    let first = held.row(0);
    assert_eq!((first - 2) % 4, 0);
    assert_eq!(
        (0..4).map(|at| held.row(at)).collect::<Vec<u32>>(),
        (first..first + 4).collect::<Vec<u32>>()
    );
    let notes = data.notes.join("\n");
    assert!(
        notes.contains(
            "Validation: 4 of 20 rows (20%), stratified by `make`, grouped by `patient`, seed 3"
        ),
        "{notes}"
    );
    assert!(
        notes
            .contains("Groups by `patient`: 4 in 16 rows for training, 1 in 4 rows for validation"),
        "{notes}"
    );
    let other = folder.write(
        "val.csv",
        "image,make,patient\nimages/1.jpg,Ford,p1\nimages/2.jpg,Ford,p9\n",
    );
    config.validation = Validation::File {
        path: other,
        group: Some("patient".to_owned()),
    };
    let notes = read(&config, Captions::None, 3).unwrap().notes.join("\n");
    assert!(notes.contains("Careful: 1 group of `patient` on both sides of the split. Groups by `patient`: 5 in 20 rows for training, 2 in 2 rows for validation"), "{notes}");
}

/// Class folders with these empty files.
fn class_folders(files: &[&str]) -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    for file in files {
        folder.write(file, "");
    }
    folder
}

fn images(samples: &Samples) -> Vec<&str> {
    (0..samples.len())
        .map(|sample| samples.image(sample))
        .collect()
}

#[test]
fn class_folders_are_labels() {
    let folder = class_folders(
        &[
            "dog/10.jpg",
            "dog/2.JPG",
            "dog/big/1.png",
            "cat, \"x\"/1.jpg",
            "dog/.hidden.jpg",
            "dog/notes.txt",
            "empty/",
            "stray.jpg",
            "elk/a",
        ]
        .map(|name| {
            if name == "empty/" {
                "empty/x.txt"
            } else {
                name
            }
        }),
    );
    let mut config = folder.config();
    config.validation = Validation::None;
    let data = read(&config, Captions::None, 0).unwrap();
    assert_eq!(
        images(&data.train),
        [
            "cat, \"x\"/1.jpg",
            "dog/2.JPG",
            "dog/10.jpg",
            "dog/big/1.png"
        ]
    );
    assert_eq!(
        (data.labels.as_slice(), data.train.labels()),
        (
            &["cat, \"x\"".to_owned(), "dog".to_owned()][..],
            &[0, 1, 1, 1][..]
        )
    );
    assert_eq!((data.train.row(0), data.train.row(3)), (1, 4));
    assert_eq!(data.csv, folder.0.path());
    assert!(data.train.image_path(3).is_file());
    let notes = data.notes.join("\n");
    for note in [
        "Careful: class folders without pictures: elk, empty",
        "Class folders with folders inside: dog;",
        "Careful: 1 picture left out: outside of every class folder (first: stray.jpg)",
        "4 files left out: not pictures, or hidden (first: dog/notes.txt)",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    let data = read(&config, Captions::Required, 0).unwrap();
    assert_eq!(data.train.caption(1), "a photo of a dog");
}

#[test]
fn class_folders_in_train_val_and_test_are_the_split() {
    let files = [
        "train/a/1.jpg",
        "train/b/1.jpg",
        "Val/a/7.jpg",
        "test/b/8.jpg",
        "masks/1.png",
    ];
    let folder = class_folders(&files);
    let data = read(&folder.config(), Captions::None, 0).unwrap();
    assert_eq!(
        (data.train.len(), images(data.validation.as_ref().unwrap())),
        (2, vec!["Val/a/7.jpg"])
    );
    assert_eq!(images(data.test.as_ref().unwrap()), ["test/b/8.jpg"]);
    let notes = data.notes.join("\n");
    for note in [
        "Validation: 1 of 4 rows, those in `Val`",
        "Test: 1 row set apart by their folder or file; only `holdall eval RUN --part test` reads them",
        "Careful: masks beside `train`, `Val`, `test` is neither",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    // Without a `val` folder, a share of the training files is drawn for validation, never the test files.
    let mut files: Vec<String> = (0..20)
        .map(|at| format!("train/{}/{at}.jpg", at % 2))
        .collect();
    files.push("test/1/8.jpg".to_owned());
    files.push("test/unseen/8.jpg".to_owned());
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let folder = class_folders(&files);
    let data = read(&folder.config(), Captions::None, 0).unwrap();
    let held = data.validation.unwrap();
    assert_eq!((data.train.len(), held.len()), (18, 2));
    assert!(
        images(&held)
            .iter()
            .all(|image| image.starts_with("train/"))
    );
    assert_eq!(
        images(&data.test.unwrap()),
        ["test/1/8.jpg", "test/unseen/8.jpg"]
    );
    let notes = data.notes.join("\n");
    let note =
        "Validation: 2 of 20 rows that are not for the test (10%), stratified by `label`, seed 0";
    assert!(notes.contains(note), "{notes}");
    let unknown = class_folders(&["train/a/1.jpg", "train/b/1.jpg", "val/c/8.jpg"]);
    let strict = DataConfig {
        unseen_labels: UnseenLabels::Fail,
        ..unknown.config()
    };
    let error = read(&strict, Captions::None, 0).unwrap_err().to_string();
    assert!(error.contains("found `c`"), "{error}");
    // Folders of images and masks are no classes, and neither is a single folder.
    let folder = class_folders(&["images/1.jpg", "masks/1.png"]);
    let error = read(&folder.config(), Captions::None, 0).unwrap_err();
    assert!(error.to_string().contains("single .csv"), "{error}");
    let folder = class_folders(&["images/1.jpg"]);
    let error = evidence(&folder.config()).unwrap_err().to_string();
    assert!(error.contains("found pictures alone"), "{error}");
}

#[test]
fn data_says_what_it_is_for() {
    let kind = |folder: &Folder, data: &str| {
        let evidence = evidence(&config_of(folder, data)).unwrap();
        assert!(!evidence.reason.is_empty());
        evidence.kind
    };
    let csv = |header: &str| {
        Folder::new(&format!(
            "{header}\n{}\n",
            "x,".repeat(header.matches(',').count())
        ))
    };
    assert_eq!(
        kind(&csv("image,make,caption"), "{\"label\": \"make\"}"),
        EvidenceKind::Captions
    );
    assert_eq!(
        kind(&csv("image,make"), "{\"caption\": \"a {make}\"}"),
        EvidenceKind::Captions
    );
    assert_eq!(kind(&csv("image,make"), "{}"), EvidenceKind::Labels);
    assert_eq!(
        kind(&csv("image,kind"), "{\"label\": \"kind\"}"),
        EvidenceKind::Labels
    );
    assert_eq!(kind(&csv("image,mask"), "{}"), EvidenceKind::Masks);
    assert_eq!(kind(&csv("video,caption"), "{}"), EvidenceKind::Clips);
    assert_eq!(
        kind(&class_folders(&["a/1.jpg", "b/1.jpg"]), "{}"),
        EvidenceKind::Labels
    );
    assert_eq!(
        kind(
            &class_folders(&["train/Original/1.png", "train/Ground truth/1.png"]),
            "{}"
        ),
        EvidenceKind::Masks
    );
    assert_eq!(
        kind(&class_folders(&["clips/1/f1.jpg", "clips/2/f1.jpg"]), "{}"),
        EvidenceKind::Clips
    );
    let folder = csv("image,kind");
    let error = evidence(&folder.config()).unwrap_err().to_string();
    assert!(
        error.contains("found image, kind") && error.contains("hint: "),
        "{error}"
    );
}

#[test]
fn folders_of_frames_under_a_file_name_are_clips() {
    let folder = class_folders(&["cine/1/01.jpg", "cine/1/02.jpg"]);
    let csv = folder.write(
        "studies.csv",
        "FileName,Report\ncine/missing,normal\ncine/1,stenosis\n",
    );
    let mut config = DataConfig {
        train: Some(csv),
        ..DataConfig::default()
    };
    assert_eq!(evidence(&config).unwrap().kind, EvidenceKind::Clips);
    config.image_root = Some(folder.0.path().join("elsewhere"));
    assert_eq!(evidence(&config).unwrap().kind, EvidenceKind::Captions);
}
