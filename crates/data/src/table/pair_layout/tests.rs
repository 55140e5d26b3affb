use std::fs;

use super::*;

fn files(root: &Path, names: &[&str]) {
    for name in names {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }
}

fn found(names: &[&str]) -> Result<PairLayout, DataError> {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), names);
    find(folder.path(), Subfolders::default())
}

fn pair(image: &str, mask: &str, field_of_view: Option<&str>) -> PairFiles {
    PairFiles {
        image: image.to_owned(),
        mask: Some(mask.to_owned()),
        field_of_view: field_of_view.map(str::to_owned),
        ..PairFiles::default()
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
    let array = error(&["images/1.png", "masks/1.npy"]);
    assert!(
        array.contains("1.npy: expected a picture: PNG")
            && array.contains("found an array of NumPy\nhint: `PIL.Image.fromarray(numpy.load("),
        "{array}"
    );
    let dicom = error(&["images/1.dcm", "masks/1.png"]);
    assert!(
        dicom.contains("found a DICOM file\nhint: `dcmj2pnm"),
        "{dicom}"
    );
}

/// Fields of view without masks are recognised by the training split beside them or by the names of DRIVE and HRF.
#[test]
fn a_field_of_view_is_no_mask() {
    let withheld = |names: &[&str], place: &str| {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), names);
        let layout = find(&folder.path().join(place), Subfolders::default()).unwrap();
        assert!(!layout.train.is_empty());
        let has_masks = layout.train.iter().any(|pair| pair.mask.is_some());
        assert_eq!(layout.withheld.is_none(), has_masks);
        layout.withheld.is_some()
    };
    let drive = ["test/images/01_test.tif", "test/mask/01_test_mask.gif"];
    assert!(withheld(&drive, "test"));
    assert!(withheld(&["images/01_dr.JPG", "mask/01_dr_mask.tif"], ""));
    let mine = ["test/images/a.png", "test/mask/a.png"];
    assert!(!withheld(&mine, "test"));
    let beside = [
        "training/images/b.png",
        "training/1st_manual/b.png",
        "training/mask/b.png",
    ];
    assert!(withheld(&[&mine[..], &beside].concat(), "test"));
    let masks = ["training/images/b.png", "training/mask/b.png"];
    assert!(!withheld(&[&mine[..], &masks].concat(), "test"));
}

#[test]
fn splits_inside_of_folders_masks_beside_images_isic_and_voc() {
    let split = found(&[
        "images/train/1.jpg",
        "images/val/2.jpg",
        "images/test/3.jpg",
        "masks/train/1.png",
        "masks/val/2.png",
    ])
    .unwrap();
    let expected = [pair("images/train/1.jpg", "masks/train/1.png", None)];
    assert_eq!(split.train, expected);
    let expected = [pair("images/val/2.jpg", "masks/val/2.png", None)];
    assert_eq!(split.validation.unwrap(), expected);
    assert!(split.test.is_none() && split.notes[0].contains("no masks"));

    let beside = found(&["x.png", "x_mask.png", "y.png", "y_mask.png"]).unwrap();
    assert_eq!(beside.train[1], pair("y.png", "y_mask.png", None));
    let beside = found(&[
        "train/x.jpg",
        "train/x_mask.png",
        "val/y.jpg",
        "val/y_mask.png",
    ]);
    let beside = beside.unwrap();
    let expected = [pair("train/x.jpg", "train/x_mask.png", None)];
    assert_eq!(beside.train, expected);
    assert_eq!(beside.validation.unwrap().len(), 1);
    // Photographs of face masks.
    assert!(found(&["my_mask.png", "your_mask.png"]).is_err());
    assert!(found(&["a.png", "a_mask.png", "b.png", "c.png"]).is_err());

    let isic = found(&[
        "ISIC-2017_Training_Data/ISIC_0000000.jpg",
        "ISIC-2017_Training_Data/ISIC_0000000_superpixels.png",
        "ISIC-2017_Training_Data/ISIC-2017_Training_Data_metadata.csv",
        "ISIC-2017_Training_Part1_GroundTruth/ISIC_0000000_segmentation.png",
        "ISIC-2017_Validation_Data/ISIC_0000001.jpg",
        "ISIC-2017_Validation_Part1_GroundTruth/ISIC_0000001_segmentation.png",
        "ISIC-2017_Test_v2_Data/ISIC_0000002.jpg",
    ])
    .unwrap();
    let expected = pair(
        "ISIC-2017_Training_Data/ISIC_0000000.jpg",
        "ISIC-2017_Training_Part1_GroundTruth/ISIC_0000000_segmentation.png",
        None,
    );
    assert_eq!(isic.train, [expected]);
    assert_eq!(isic.validation.unwrap().len(), 1);
    assert!(isic.test.is_none());

    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let names = ["JPEGImages/1.jpg", "JPEGImages/2.jpg", "JPEGImages/3.jpg"];
    files(root, &names);
    files(
        root,
        &["SegmentationClass/1.png", "SegmentationClass/3.png"],
    );
    let without_lists = find(root, Subfolders::default()).unwrap();
    assert_eq!(without_lists.train.len(), 2);
    let note = &without_lists.notes[0];
    assert!(note.contains("JPEGImages: 1 image not in"), "{note}");
    files(root, &["ImageSets/Segmentation/train.txt"]);
    let lists = root.join("ImageSets/Segmentation");
    fs::write(lists.join("train.txt"), "3\n").unwrap();
    fs::write(lists.join("val.txt"), "1\n").unwrap();
    let voc = find(root, Subfolders::default()).unwrap();
    let expected = pair("JPEGImages/3.jpg", "SegmentationClass/3.png", None);
    assert_eq!(voc.train, [expected]);
    assert_eq!(voc.validation.unwrap().len(), 1);
}

/// A layout of images and masks is never taken for class folders.
#[test]
fn no_layout_is_one_of_class_folders() {
    for names in [
        &["images/train/1.jpg", "masks/train/1.png"][..],
        &["a/x.png", "a/x_mask.png"],
        &[
            "ISIC-2017_Training_Data/ISIC_0000000.jpg",
            "ISIC-2017_Training_Part1_GroundTruth/ISIC_0000000_segmentation.png",
        ],
        &["test/images/01_test.tif", "test/mask/01_test_mask.gif"],
        &["images/1.jpg", "fov/1.png"],
        &["Images/1.jpg", "field_of_view/1.png"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), names);
        let is_classes = crate::table::class_folders::is_layout(folder.path()).unwrap();
        assert!(
            is_layout(folder.path()).unwrap() && !is_classes,
            "{names:?}"
        );
    }
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
            ..PairFiles::default()
        }
    );
    let description = super::super::nnunet::describe(&layout.root).unwrap();
    assert_eq!(description.classes, ["background", "disc", "cup"]);
    assert_eq!(description.ignore, Some(3));
    describe(r#"{"channel_names":{"0":"g"},"labels":{"background":0,"disc":1}}"#);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(error.contains("a (2 of 1), b_1 (2 of 1)"), "{error}");
    // One file per case with all channels, with or without a channel number.
    describe(r#"{"channel_names":{"0":"R","1":"G","2":"B"},"labels":{"background":0,"disc":1}}"#);
    let natural = root.join("Dataset007");
    for name in ["a_0001.png", "b_1_0000.png", "b_1_0001.png"] {
        fs::remove_file(natural.join("imagesTr").join(name)).unwrap();
    }
    let save = |name: &str, is_rgb: bool| {
        let picture = image::DynamicImage::new_rgb8(4, 4);
        let path = natural.join("imagesTr").join(name);
        if is_rgb {
            picture.save(path).unwrap()
        } else {
            picture.to_luma8().save(path).unwrap()
        }
    };
    save("a_0000.png", true);
    save("b_1.png", true);
    let layout = find(root, Subfolders::default()).unwrap();
    let images: Vec<&str> = layout.train.iter().map(|pair| &*pair.image).collect();
    assert_eq!(images, ["imagesTr/a_0000.png", "imagesTr/b_1.png"]);
    // Grey files: only the first of three channels exists.
    save("a_0000.png", false);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(error.contains("a (1 of 3)"), "{error}");
    describe(r#"{"labels":{"background":0,"whole":[1,2]}}"#);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(error.contains("regions are not read"), "{error}");
    // Without a description, file names count the channels.
    fs::remove_file(natural.join("dataset.json")).unwrap();
    files(
        root,
        &[
            "Dataset007/imagesTr/a_0001.png",
            "Dataset007/imagesTr/b_1_0001.png",
        ],
    );
    fs::rename(
        natural.join("imagesTr/b_1.png"),
        natural.join("imagesTr/b_1_0000.png"),
    )
    .unwrap();
    assert!(is_layout(root).unwrap());
    let layout = find(root, Subfolders::default()).unwrap();
    assert_eq!(layout.train[0].further_images, ["imagesTr/a_0001.png"]);
    let description = super::super::nnunet::describe(&natural).unwrap();
    assert!(description.classes.is_empty());
    files(root, &["Dataset007/imagesTr/c_0000.nii.gz"]);
    describe(r#"{"labels":{"background":0,"disc":1}}"#);
    let error = find(root, Subfolders::default()).unwrap_err().to_string();
    assert!(
        error.contains("c_0000.nii.gz: expected a picture of two dimensions"),
        "{error}"
    );
}
