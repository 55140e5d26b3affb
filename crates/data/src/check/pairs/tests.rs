use std::fs;
use std::sync::atomic::AtomicBool;

use image::{GrayImage, Luma, RgbImage};

use super::*;

/// Twelve pairs for training and two for testing; from the third on, each has one defect.
fn set() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (split, count) in [("train", 12), ("test", 2)] {
        for inner in ["images", "masks"] {
            fs::create_dir_all(root.join(split).join(inner)).unwrap();
        }
        for number in 0..count {
            let name = format!("{number:02}.png");
            let seed = if split == "train" {
                number
            } else {
                100 + number
            };
            let image = RgbImage::from_fn(32, 20, |x, y| {
                let block = [seed as u8, x as u8 / 4, y as u8 / 4];
                let [red, green, blue, ..] = xxhash_rust::xxh3::xxh3_64(&block).to_le_bytes();
                image::Rgb([red, green, blue])
            });
            image
                .save(root.join(split).join("images").join(&name))
                .unwrap();
            let mask = GrayImage::from_fn(32, 20, |x, _| Luma([if x < 8 { 255 } else { 0 }]));
            mask.save(root.join(split).join("masks").join(&name))
                .unwrap();
        }
    }
    let mask = |number: usize| root.join(format!("train/masks/{number:02}.png"));
    let image = |number: usize| root.join(format!("train/images/{number:02}.png"));
    fs::write(image(2), "<!DOCTYPE html>").unwrap();
    let whole = fs::read(mask(3)).unwrap();
    fs::write(mask(3), &whole[..whole.len() - 20]).unwrap();
    GrayImage::new(31, 20).save(mask(4)).unwrap();
    let strange = GrayImage::from_fn(32, 20, |x, _| Luma([if x < 8 { 255 } else { 7 }]));
    strange.save(mask(5)).unwrap();
    GrayImage::new(32, 20).save(mask(6)).unwrap();
    fs::copy(image(0), image(7)).unwrap();
    fs::copy(image(1), root.join("test/images/01.png")).unwrap();
    folder
}

fn config(root: &Path) -> PairCheck {
    PairCheck {
        data: DataConfig {
            train: Some(root.to_owned()),
            validation: crate::config::Validation::None,
            ..DataConfig::default()
        },
        seed: 0,
        min_size: 16,
        num_examples: 3,
        num_workers: Some(2),
        allowance: Allowance::unlimited(),
    }
}

fn done<T>(run: impl FnOnce(Watch<'_>) -> Result<Outcome<T>, DataError>) -> Result<T, DataError> {
    let watch = Watch {
        stop: &AtomicBool::new(false),
        on_start: &mut |_| (),
        on_progress: &|_| (),
        on_note: &mut |_| (),
    };
    match run(watch)? {
        Outcome::Done(done) => Ok(done),
        Outcome::Stopped { .. } => panic!("nobody stopped it"),
    }
}

#[test]
fn each_defect_is_found_and_named() {
    let folder = set();
    let config = config(folder.path());
    let report = done(|watch| check_pairs(&config, watch)).unwrap();
    let found: Vec<(PairFault, usize, &str)> = report
        .findings
        .iter()
        .map(|finding| {
            (
                finding.kind,
                finding.count,
                finding.examples[0].image.as_str(),
            )
        })
        .collect();
    let expected = [
        (PairFault::ImageUnreadable, 1, "train/images/02.png"),
        (PairFault::MaskUnreadable, 1, "train/images/03.png"),
        (PairFault::SizesDiffer, 1, "train/images/04.png"),
        (PairFault::UnknownValue, 1, "train/images/05.png"),
        (PairFault::Leak, 1, "test/images/01.png"),
        (PairFault::Duplicate, 1, "train/images/07.png"),
        (PairFault::EmptyMask, 1, "train/images/06.png"),
    ];
    assert_eq!(found, expected);
    assert_eq!((report.pairs, report.usable_pairs), (14, 10));
    assert_eq!(report.splits, [("train", 12), ("test", 2)]);
    let details: Vec<&str> = report
        .findings
        .iter()
        .map(|f| f.examples[0].detail.as_str())
        .collect();
    assert!(
        details[3].contains("pixel value 7 at (8, 0)"),
        "{details:?}"
    );
    assert_eq!(details[4], "train/images/01.png of train");
    // Nine masks are white on a quarter of their pixels, one has no white.
    assert!(
        (report.class_shares[1] - 0.225).abs() < 1e-9,
        "{:?}",
        report.class_shares
    );
}

#[test]
fn a_clean_csv_opens_as_the_same_set_without_them() {
    let folder = set();
    let config = config(folder.path());
    let copies = Copies::default();
    let clean = done(|watch| clean_pairs(&config, copies, Existing::Refuse, watch)).unwrap();
    assert_eq!((clean.pairs, clean.rows), (14, 8));
    let of_csv = DataConfig {
        train: Some(clean.csv.clone()),
        validation: crate::config::Validation::column("split"),
        ..DataConfig::default()
    };
    let set = SegmentationSet::open(&of_csv, 0).unwrap();
    // One of seven training pairs is drawn for validation; the test pairs stay apart.
    assert_eq!((set.train.len(), set.validation.unwrap().len()), (6, 1));
    assert_eq!(set.test.unwrap().len(), 1);
    assert!(set.train.mask_path(0).unwrap().is_file());
    let keep_all = Copies {
        duplicates: Duplicates::Keep,
        conflicts: Conflicts::Keep,
    };
    let all = done(|watch| clean_pairs(&config, keep_all, Existing::Replace, watch)).unwrap();
    assert_eq!(all.rows, 10);
}

#[test]
fn rows_of_a_table_keep_all_of_their_columns() {
    let folder = set();
    let mut text = String::from("patient_id;image;mask;site\n");
    for number in [0, 1, 2, 7, 8] {
        text += &format!("p{number};images/{number:02}.png;masks/{number:02}.png;{number}\n");
    }
    let csv = folder.path().join("train/all.csv");
    fs::write(&csv, text).unwrap();
    let mut config = config(&csv);
    let report = done(|watch| check_pairs(&config, watch)).unwrap();
    assert_eq!(report.findings[0].rows, [4], "one cannot be read");
    let copies = Copies::default();
    let clean = done(|watch| clean_pairs(&config, copies, Existing::Refuse, watch)).unwrap();
    let expected = "patient_id;image;mask;site\np0;images/00.png;masks/00.png;0\np1;images/01.png;masks/01.png;1\n\
                    p8;images/08.png;masks/08.png;8\n";
    assert!(clean.is_copy && clean.csv.ends_with("train/all_cleaned.csv"));
    assert_eq!(fs::read_to_string(&clean.csv).unwrap(), expected);
    assert_eq!((clean.pairs, clean.rows), (5, 3));
    // A validation pair stays in its own file, and cleaning removes its image from the training pairs.
    let held = folder.path().join("train/held.csv");
    fs::write(&held, "image,mask\nimages/01.png,masks/01.png\n").unwrap();
    config.data.validation = crate::config::Validation::File {
        path: held,
        group: None,
    };
    let clean = done(|watch| clean_pairs(&config, copies, Existing::Replace, watch)).unwrap();
    assert_eq!((clean.pairs, clean.rows), (5, 2));
    assert!(!fs::read_to_string(&clean.csv).unwrap().contains("p1;"));
}

#[test]
fn one_picture_with_two_masks_and_near_copies_are_found() {
    let folder = set();
    let root = folder.path();
    let image = |number: usize| root.join(format!("train/images/{number:02}.png"));
    fs::copy(image(0), image(8)).unwrap();
    let other = GrayImage::from_fn(32, 20, |x, _| Luma([if x < 16 { 255 } else { 0 }]));
    other.save(root.join("train/masks/08.png")).unwrap();
    // A slightly brighter copy, in another file.
    let mut near = image::open(image(1)).unwrap().to_rgb8();
    near.pixels_mut()
        .for_each(|pixel| pixel.0 = pixel.0.map(|value| value.saturating_add(2)));
    near.save(image(9)).unwrap();
    let config = config(root);
    let report = done(|watch| check_pairs(&config, watch)).unwrap();
    let of = |kind: PairFault| {
        let found = report.findings.iter().find(|finding| finding.kind == kind);
        found.map_or((0, ""), |found| {
            (found.count, found.examples[0].image.as_str())
        })
    };
    assert_eq!(of(PairFault::TwoMasks), (3, "train/images/00.png"));
    let masks = report
        .findings
        .iter()
        .find(|one| one.kind == PairFault::TwoMasks);
    let details: Vec<_> = masks
        .unwrap()
        .examples
        .iter()
        .map(|one| one.detail.as_str())
        .collect();
    let [first, other] = [
        "train/images/00.png of train",
        "train/images/08.png of train",
    ];
    assert_eq!(details, [other, other, first]);
    assert_eq!(of(PairFault::Duplicate), (0, ""));
    assert_eq!(of(PairFault::NearDuplicate), (1, "train/images/09.png"));
    let rows = |conflicts: Conflicts| {
        let copies = Copies {
            conflicts,
            ..Copies::default()
        };
        done(|watch| clean_pairs(&config, copies, Existing::Replace, watch))
            .unwrap()
            .rows
    };
    assert_eq!(
        [Conflicts::LeaveOut, Conflicts::KeepFirst, Conflicts::Keep].map(rows),
        [6, 7, 9]
    );
}

#[test]
fn an_allowance_of_one_pair_is_enough_and_a_stop_is_obeyed() {
    let folder = set();
    let mut config = config(folder.path());
    config.allowance = Allowance::new(4 << 20);
    let report = done(|watch| check_pairs(&config, watch)).unwrap();
    assert_eq!(report.findings.len(), 7);
    assert!(config.allowance.most_claimed_bytes() > 0 && config.allowance.claimed_bytes() == 0);
    let watch = Watch {
        stop: &AtomicBool::new(true),
        on_start: &mut |_| (),
        on_progress: &|_| (),
        on_note: &mut |_| (),
    };
    let outcome = check_pairs(&config, watch).unwrap();
    assert!(matches!(
        outcome,
        Outcome::Stopped {
            num_done: 0,
            num_rows: 14,
            ..
        }
    ));
}

#[test]
fn masks_that_are_fields_of_view_are_found() {
    let folder = tempfile::tempdir().unwrap();
    for inner in ["images", "masks"] {
        fs::create_dir_all(folder.path().join(inner)).unwrap();
    }
    let is_inside = |x: u32, y: u32| (x as f64 - 32.0).hypot(y as f64 - 32.0) < 30.0;
    for number in 0..3_u8 {
        let image = RgbImage::from_fn(64, 64, |x, y| {
            let inside = is_inside(x, y);
            image::Rgb(if inside {
                [150, 90 + 20 * number, x as u8]
            } else {
                [3, 2, 2]
            })
        });
        let mask = GrayImage::from_fn(64, 64, |x, y| Luma([if is_inside(x, y) { 255 } else { 0 }]));
        let name = format!("{number:02}.png");
        image
            .save(folder.path().join("images").join(&name))
            .unwrap();
        mask.save(folder.path().join("masks").join(&name)).unwrap();
    }
    let config = config(folder.path());
    let report = done(|watch| check_pairs(&config, watch)).unwrap();
    let found = &report.findings[0];
    assert_eq!((found.kind, found.count), (PairFault::FieldOfView, 3));
    let set = SegmentationSet::open(&config.data, 0).unwrap();
    let is_careful =
        |note: &String| note.starts_with("Careful: the masks mark all but a dark border");
    assert!(set.notes.iter().any(is_careful), "{:?}", set.notes);
}
