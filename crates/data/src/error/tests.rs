use super::*;

fn path() -> PathBuf {
    PathBuf::from("data/cars.csv")
}

/// Checks that a message contains all expected parts and ends with a hint.
#[track_caller]
fn says(error: DataError, expected: &[&str]) {
    let text = error.to_string();
    for part in expected {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
    let (first, hint) = text.split_once("\nhint: ").expect("a hint");
    assert!(!first.contains('\n') && !hint.is_empty(), "{text}");
}

macro_rules! says {
    ($($test:ident: $error:expr => $($part:literal),+;)+) => {
        $(#[test] fn $test() { says($error, &[$($part),+]); })+
    };
}

says! {
    invalid: DataError::invalid(at_row(&path(), 7), "UTF-8", "bytes that are not", "save it again")
        => "data/cars.csv, row 7: expected UTF-8, found bytes that are not";
    io: DataError::Io { path: path(), action: "read it", cause: io::Error::other("disk on fire") }
        => "data/cars.csv: could not read it: disk on fire";
    setting: DataError::Setting { key: "augment.crop", expected: "above 0", found: "-1".to_owned(), hint: "0.9" }
        => "data.augment.crop: -1, expected above 0";
    no_file: DataError::NoFile { path: path() } => "data/cars.csv", "found nothing";
    no_table: DataError::NoTable { folders: vec![".".into(), "data".into()], found: vec!["a.csv".into(), "b.csv".into()] }
        => ". and data: expected image_labels_filtered.csv", "found a.csv, b.csv";
    changed: DataError::Changed { path: path() } => "cars.csv: expected a file that stays as it is";
    bad_rows: DataError::BadRows { path: path(), named: "row 7: empty caption".to_owned(), num_bad: 1, num_rows: 2, max_skipped: Some(0.1), has_other_fields: false }
        => "cars.csv: 1 of 2 rows cannot be used, `max_skipped` allows 10%: row 7: empty caption", "`holdall data clean data/cars.csv`";
    no_bad_rows: DataError::BadRows { path: path(), named: "row 7: 3 of 2 fields".to_owned(), num_bad: 1, num_rows: 2, max_skipped: None, has_other_fields: true }
        => "`bad_pictures: fail` allows none: row 7: 3 of 2 fields", "`bad_pictures: skip`", "needs quotes";
    missing_images: DataError::MissingImages { path: path(), row: 2, image: "x/1.jpg".into(), media: Media::Pictures, num_missing: 3, num_images: 2400, num_bad_rows: 0, max_skipped: None, hint: "look".to_owned() }
        => "row 2: expected an image at x/1.jpg", "3 of 2,400 images are missing\n";
    too_many_missing_images: DataError::MissingImages { path: path(), row: 2, image: "x/1.jpg".into(), media: Media::Pictures, num_missing: 3, num_images: 24, num_bad_rows: 1, max_skipped: Some(0.1), hint: "look".to_owned() }
        => "3 of 24 images are missing and 1 row cannot be used, `max_skipped` allows 10%";
    picture_missing: DataError::PictureMissing { path: "1.jpg".into() } => "1.jpg: expected a picture, found no file";
    not_a_picture: DataError::NotAPicture { path: "1.jpg".into(), found: "an empty file".to_owned() }
        => "1.jpg: expected a picture, found an empty file";
    clip_truncated: DataError::ClipTruncated { path: "1.avi".into() } => "1.avi: expected a whole clip";
    not_a_clip: DataError::NotAClip { path: "1.txt".into(), found: "an empty file".to_owned() } => "1.txt: expected a clip, found an empty file";
    no_ffmpeg: DataError::NoFfmpeg { path: "1.mp4".into(), program: "ffprobe".to_owned() } => "1.mp4: expected `ffprobe` to read it with, found none in PATH";
    picture_truncated: DataError::PictureTruncated { path: "1.jpg".into() } => "1.jpg: expected a whole picture";
    picture_empty: DataError::PictureEmpty { path: "1.jpg".into(), width: 0, height: 3 } => "1.jpg", "found 0 x 3";
    picture_too_large: DataError::PictureTooLarge { path: "1.jpg".into(), width: 90000, height: 90000, most_pixels: 100_000_000 }
        => "1.jpg: expected at most 100 megapixels, found 90000 x 90000";
    picture_file_too_large: DataError::PictureFileTooLarge { path: "1.jpg".into(), most_bytes: 1 << 30 }
        => "1.jpg: expected a picture of at most 1024 MiB";
    mask_value: DataError::mask_value("masks/7.png: pixel value 12 at (40, 7)".to_owned(), "0 or 255".to_owned(), "0 (90%), 12 (10%)".to_owned(), "`binarize: 128`")
        => "masks/7.png: pixel value 12 at (40, 7), expected 0 or 255; the mask holds 0 (90%), 12 (10%)", "`binarize: 128`";
}
