use std::fs;

use image::{GrayImage, Luma, RgbImage};

use super::*;

/// Pairs of 12 x 8 pixels: images in grey steps, masks white on the left.
fn draw(root: &Path, images: &str, masks: &str, names: &[&str]) {
    for folder in [images, masks] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for (at, name) in names.iter().enumerate() {
        let image = RgbImage::from_fn(12, 8, |x, _| image::Rgb([x as u8, at as u8, 9]));
        image.save(root.join(images).join(name)).unwrap();
        let mask = GrayImage::from_fn(12, 8, |x, _| Luma([if x < 3 { 255 } else { 0 }]));
        mask.save(root.join(masks).join(name)).unwrap();
    }
}

fn config(root: &Path) -> DataConfig {
    DataConfig {
        train: Some(root.to_owned()),
        ..DataConfig::default()
    }
}

#[test]
fn a_share_is_held_out_of_each_condition_and_test_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let names: Vec<String> = (0..40)
        .map(|at| format!("{at}_{}.png", ["A", "D", "G", "N"][at % 4]))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    draw(root, "train/Original", "train/Ground truth", &names);
    draw(root, "test/Original", "test/Ground truth", &names[..2]);
    let set = SegmentationSet::open(&config(root), 7).unwrap();
    assert_eq!((set.train.len(), set.test.as_ref().unwrap().len()), (36, 2));
    let held = set.validation.unwrap();
    let mut conditions: Vec<char> = (0..4)
        .map(|at| held.image(at).chars().rev().nth(4).unwrap())
        .collect();
    conditions.sort_unstable();
    assert_eq!(conditions, ['A', 'D', 'G', 'N']);
    assert_eq!(set.coding, MaskCoding::pair(255));
    let survey = Survey {
        channels: 3,
        depth: PixelDepth::Eight,
        width: 12,
        height: 8,
        is_uniform: true,
    };
    assert_eq!(set.survey, survey);
    assert!(set.train.mask_path(0).unwrap().is_file());
    let again = SegmentationSet::open(&config(root), 7).unwrap();
    assert_eq!(again.train, set.train);
    let notes = set.notes.join("\n");
    for note in [
        "Data: 42 pairs in ",
        "Test: 2 pairs; only `holdall eval RUN --part test`",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    let all = DataConfig {
        validation: Validation::UNSPLIT,
        ..config(root)
    };
    let all = SegmentationSet::open(&all, 7).unwrap();
    assert_eq!(
        (all.train.len(), all.validation, all.test),
        (42, None, None)
    );
    let own = DataConfig {
        validation: Validation::file(root.join("no/such/test")),
        ..config(root)
    };
    let own = SegmentationSet::open(&own, 7).unwrap();
    assert_eq!(
        (
            own.train.len(),
            own.validation.unwrap().len(),
            own.test.is_none()
        ),
        (40, 2, true)
    );
    let other = DataConfig {
        validation: Validation::file(root.join("test")),
        ..config(root)
    };
    let other = SegmentationSet::open(&other, 7).unwrap();
    assert_eq!(
        (other.train.len(), other.validation.unwrap().len()),
        (40, 2)
    );
}

#[test]
fn a_table_of_images_and_masks() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    draw(root, "x", "y", &["1.png", "2.png", "3.png"]);
    let csv = root.join("pairs.csv");
    fs::write(
        &csv,
        "image,mask,split\nx/1.png,y/1.png,train\nx/2.png,y\\2.png,train\nx/3.png,y/3.png,val\n",
    )
    .unwrap();
    let by_column = DataConfig {
        validation: Validation::column("split"),
        ..config(&csv)
    };
    let set = SegmentationSet::open(&by_column, 0).unwrap();
    assert_eq!((set.train.len(), set.validation.unwrap().len()), (2, 1));
    assert_eq!(set.train.mask(1), Some("y/2.png"));
    fs::write(&csv, "image,mask\nx/1.png,\n").unwrap();
    let error = SegmentationSet::open(&config(&csv), 0)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("row 2: column `mask`: expected a path"),
        "{error}"
    );
    fs::write(&csv, "image,label\nx/1.png,2\n").unwrap();
    let error = SegmentationSet::open(&config(&csv), 0)
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected a column of masks"), "{error}");
}

#[test]
fn values_that_are_no_classes_are_refused_with_a_histogram() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    draw(root, "images", "masks", &["1.png"]);
    let mask = GrayImage::from_fn(12, 8, |x, _| Luma([40 * x as u8 / 2]));
    mask.save(root.join("masks/1.png")).unwrap();
    let error = SegmentationSet::open(&config(root), 0)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("in the first 1 masks") && error.contains("binarize: 128"),
        "{error}"
    );
    let binarized = DataConfig {
        binarize: Some(128),
        ..config(root)
    };
    assert!(SegmentationSet::open(&binarized, 0).is_ok());
}

#[test]
fn columns_of_sides_and_groups_are_recognised_in_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let names: Vec<String> = (0..12).map(|at| format!("{at}.png")).collect();
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    draw(root, "x", "y", &files);
    let csv = root.join("pairs.csv");
    let write = |sides: [&str; 6]| {
        let rows =
            (0..12).map(|at| format!("x/{at}.png,y/{at}.png,{},p{}\n", sides[at % 6], at / 2));
        let text = format!("image,mask,Set,patient\n{}", rows.collect::<String>());
        fs::write(&csv, text).unwrap();
    };
    write(["train", "train", "train", "val", "test", "test"]);
    let set = SegmentationSet::open(&config(&csv), 0).unwrap();
    let lengths = (
        set.train.len(),
        set.validation.unwrap().len(),
        set.test.unwrap().len(),
    );
    assert_eq!(lengths, (6, 2, 4));
    assert_eq!(set.group_leaks.images, ["x/3.png", "x/9.png"]);
    let notes = set.notes.join("\n");
    for note in [
        "those that `Set` says (found by its name)",
        "Careful: 2 groups of `patient` on both sides",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    // Without validation rows, whole groups are drawn where a group column is named, and never from the test rows.
    write(["train", "train", "train", "train", "test", "test"]);
    let grouped = DataConfig {
        validation: serde_json::from_str(r#"{"share": "25%", "group": "patient"}"#).unwrap(),
        ..config(&csv)
    };
    let set = SegmentationSet::open(&grouped, 0).unwrap();
    let held = set.validation.unwrap();
    assert_eq!(
        (set.train.len(), held.len(), set.test.unwrap().len()),
        (6, 2, 4)
    );
    assert!(set.group_leaks.images.is_empty());
}

#[test]
fn a_share_of_less_than_a_pair_is_said() {
    let folder = tempfile::tempdir().unwrap();
    draw(
        folder.path(),
        "images",
        "masks",
        &["a.png", "b.png", "c.png", "d.png"],
    );
    let set = SegmentationSet::open(&config(folder.path()), 0).unwrap();
    assert!(set.validation.is_none());
    let is_said = |note: &String| note.starts_with("Careful: nothing is held out: 10% of 4 pairs");
    assert!(set.notes.iter().any(is_said), "{:?}", set.notes);
}
