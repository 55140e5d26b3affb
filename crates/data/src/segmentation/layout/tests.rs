use std::fs;

use super::*;

fn files(root: &Path, names: &[&str]) {
    for name in names {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }
}

fn found(names: &[&str]) -> Result<Layout, DataError> {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), names);
    find(folder.path(), Subfolders::default())
}

fn pair(image: &str, mask: &str, field_of_view: Option<&str>) -> PairFiles {
    PairFiles {
        image: image.to_owned(),
        mask: Some(mask.to_owned()),
        field_of_view: field_of_view.map(str::to_owned),
        further_images: Vec::new(),
    }
}

#[test]
fn fives_nested_or_flat() {
    let names = [
        "train/Original/10_A.png",
        "train/Original/2_D.png",
        "train/Original/Thumbs.db",
        "train/Ground truth/10_A.png",
        "train/Ground truth/2_D.png",
        "test/Original/1_N.png",
        "test/Ground truth/1_N.png",
    ];
    for nesting in [
        "",
        "FIVES A Fundus Image Dataset/",
        "FIVES/FIVES A Fundus Image Dataset/",
    ] {
        let nested: Vec<String> = names
            .iter()
            .map(|name| format!("{nesting}{name}"))
            .collect();
        let mut nested: Vec<&str> = nested.iter().map(String::as_str).collect();
        nested.push("__MACOSX/x.txt");
        let layout = found(&nested).unwrap();
        let expected = [
            pair("train/Original/2_D.png", "train/Ground truth/2_D.png", None),
            pair(
                "train/Original/10_A.png",
                "train/Ground truth/10_A.png",
                None,
            ),
        ];
        assert_eq!(layout.train, expected, "{nesting}");
        assert_eq!(layout.test.unwrap().len(), 1);
    }
    let flat = found(&["Original/1.png", "Segmented/1.png"]).unwrap();
    assert_eq!(
        flat.train,
        [pair("Original/1.png", "Segmented/1.png", None)]
    );
}

#[test]
fn drive_hrf_chase_and_stare() {
    let drive = found(&[
        "training/images/21_training.tif",
        "training/1st_manual/21_manual1.gif",
        "training/mask/21_training_mask.gif",
        "test/images/01_test.tif",
        "test/mask/01_test_mask.gif",
    ])
    .unwrap();
    let expected = pair(
        "training/images/21_training.tif",
        "training/1st_manual/21_manual1.gif",
        Some("training/mask/21_training_mask.gif"),
    );
    assert_eq!(drive.train, [expected]);
    assert!(
        drive.test.is_none() && drive.notes[0].contains("no masks"),
        "{drive:?}"
    );
    let hrf = found(&[
        "images/01_dr.JPG",
        "manual1/01_dr.tif",
        "mask/01_dr_mask.tif",
    ])
    .unwrap();
    let expected = pair(
        "images/01_dr.JPG",
        "manual1/01_dr.tif",
        Some("mask/01_dr_mask.tif"),
    );
    assert_eq!(hrf.train, [expected]);
    let chase = found(&[
        "Image_01L.jpg",
        "Image_01L_1stHO.png",
        "Image_01L_2ndHO.png",
    ])
    .unwrap();
    assert_eq!(
        chase.train,
        [pair("Image_01L.jpg", "Image_01L_1stHO.png", None)]
    );
    let stare = found(&["im0001.ppm.gz", "im0001.ah.ppm.gz", "im0001.vk.ppm.gz"]).unwrap();
    assert_eq!(
        stare.train,
        [pair("im0001.ppm.gz", "im0001.ah.ppm.gz", None)]
    );
    let folders = found(&["stare-images/im0001.ppm.gz", "labels-ah/im0001.ah.ppm.gz"]).unwrap();
    let expected = pair(
        "stare-images/im0001.ppm.gz",
        "labels-ah/im0001.ah.ppm.gz",
        None,
    );
    assert_eq!(folders.train, [expected]);
}

#[test]
fn any_pair_of_folders_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    files(root, &["raw/a/1.png", "raw/b/1.png"]);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(
        error.contains("image_subdir") && error.contains("expected folders of images"),
        "{error}"
    );
    let subfolders = Subfolders {
        images: Some(Path::new("raw/a")),
        masks: Some(Path::new("raw/b")),
        ..Subfolders::default()
    };
    assert_eq!(
        find(root, subfolders).unwrap().train,
        [pair("raw/a/1.png", "raw/b/1.png", None)]
    );
}

#[test]
fn partners_must_be_there() {
    let error = |names: &[&str]| found(names).unwrap_err().to_string();
    let lone = error(&[
        "images/1.JPG",
        "images/3.jpg",
        "masks/1.png",
        "masks/4.png",
        "masks/5.png",
    ]);
    for part in ["2 images", "3 masks", "3.jpg", "4.png, 5.png"] {
        assert!(lone.contains(part), "{part} in {lone}");
    }
    let twice = error(&["images/2.jpeg", "images/2.png", "masks/2.png"]);
    assert!(twice.contains("2.jpeg and 2.png"), "{twice}");
    let empty = error(&["images/notes.txt", "masks/1.png"]);
    assert!(empty.contains("expected pictures, found none"), "{empty}");
    let volume = error(&["images/1.nii.gz", "masks/1.nii.gz"]);
    assert!(
        volume.contains("1.nii.gz: expected a picture of two dimensions") && volume.contains("3-D"),
        "{volume}"
    );
}

#[test]
fn nnunet_raw() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let names = ["a_0000.png", "a_0001.png", "b_1_0000.png", "b_1_0001.png"];
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("Dataset007/imagesTr/{name}"))
        .collect();
    files(root, &names.iter().map(String::as_str).collect::<Vec<_>>());
    files(
        root,
        &["Dataset007/labelsTr/a.png", "Dataset007/labelsTr/b_1.png"],
    );
    let describe = |text: &str| fs::write(root.join("Dataset007/dataset.json"), text).unwrap();
    describe(
        r#"{"channel_names":{"0":"g","1":"r"},"labels":{"background":0,"disc":1,"cup":2,"ignore":3}}"#,
    );
    let layout = find(root, Subfolders::default()).unwrap();
    assert_eq!(
        layout.train[1],
        PairFiles {
            image: "imagesTr/b_1_0000.png".to_owned(),
            further_images: vec!["imagesTr/b_1_0001.png".to_owned()],
            mask: Some("labelsTr/b_1.png".to_owned()),
            field_of_view: None,
        }
    );
    let description = super::super::nnunet::describe(&layout.root).unwrap();
    assert_eq!(description.classes, ["background", "disc", "cup"]);
    assert_eq!(description.ignore, Some(3));
    describe(r#"{"channel_names":{"0":"g"},"labels":{"background":0,"disc":1}}"#);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(error.contains("a (2 of 1), b_1 (2 of 1)"), "{error}");
    describe(r#"{"labels":{"background":0,"whole":[1,2]}}"#);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(error.contains("regions are not read"), "{error}");
    files(root, &["Dataset007/imagesTr/c_0000.nii.gz"]);
    describe(r#"{"labels":{"background":0,"disc":1}}"#);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(
        error.contains("c_0000.nii.gz: expected a picture of two dimensions"),
        "{error}"
    );
}
