use super::*;

fn path() -> PathBuf {
    PathBuf::from("data/cars.csv")
}

fn names() -> Vec<String> {
    vec!["image".to_owned(), "make".to_owned()]
}

/// Every message has its subject and what it should say, and ends with a hint.
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
    io: DataError::Io { path: path(), action: "read it", cause: io::Error::other("disk on fire") }
        => "data/cars.csv: could not read it: disk on fire";
    setting: DataError::Setting { key: "augment.crop", expected: "above 0", found: "-1".to_owned(), hint: "0.9" }
        => "data.augment.crop: -1, expected above 0";
    no_file: DataError::NoFile { path: path() } => "data/cars.csv", "found nothing";
    no_table: DataError::NoTable { folders: vec![".".into(), "data".into()], found: vec!["a.csv".into(), "b.csv".into()] }
        => ". and data: expected image_labels_filtered.csv", "found a.csv, b.csv";
    empty_file: DataError::EmptyFile { path: path() } => "data/cars.csv", "an empty file";
    no_captions: DataError::NoCaptions { path: path() } => "data/cars.csv", "a caption per line, found none";
    no_rows: DataError::NoRows { path: path(), columns: names() } => "header `image,make`, found none";
    nothing_left: DataError::NothingLeft { path: path(), num_rows: 2400, why: "missing" }
        => "cars.csv: expected rows that are left", "all 2,400 would go: missing", "nothing was written";
    cleaned_already: DataError::CleanedAlready { path: "cars_cleaned.csv".into(), source_csv: "cars.csv".into() }
        => "cars_cleaned.csv: expected a CSV to clean", "clean cars.csv instead";
    changed: DataError::Changed { path: path() } => "cars.csv: expected a file that stays as it is";
    too_many_rows: DataError::TooManyRows { path: path() } => "at most 4,294,967,295 rows";
    separator: DataError::Separator { path: path(), row: 1, found: "tabs" } => "cars.csv, row 1", "found tabs";
    open_quote: DataError::OpenQuote { path: path(), row: 9 } => "cars.csv, row 9: expected a closing quote";
    not_utf8: DataError::NotUtf8 { path: path(), row: 7 } => "cars.csv, row 7: expected UTF-8";
    ragged: DataError::Ragged { path: path(), row: 7, expected: 3, found: 4 } => "row 7: expected 3 fields", "found 4";
    twin_column: DataError::TwinColumn { path: path(), column: "make".to_owned(), found: 2 } => "one column `make`, found 2";
    no_column: DataError::NoColumn { path: path(), key: "label", column: "mkae".to_owned(), columns: names(), nearest: Some("make".to_owned()) }
        => "a column `mkae` for `label`, found image, make", "did you mean `make`?";
    no_usual_column: DataError::NoUsualColumn { path: path(), key: "image", names: &["image", "img"], columns: names(), hint: "name it".to_owned() }
        => "a column of images named image, img, found image, make";
    caption_is_no_column: DataError::CaptionIsNoColumn { path: path(), caption: "a car".to_owned(), columns: names(), nearest: None }
        => "caption `a car` to be a column", "\"a photo of a {image}\"";
    unknown_placeholder: DataError::UnknownPlaceholder { path: path(), template: "a {mkae}".to_owned(), column: "mkae".to_owned(), columns: names(), nearest: Some("make".to_owned()) }
        => "template `a {mkae}`: expected {mkae} to be a column", "{{ and }}";
    braces: DataError::Braces { template: "a {make".to_owned(), expected: "a closing brace", found: "none", at: 3 }
        => "`a {make`: expected a closing brace, found none at character 3", "`a photo of a {make}`";
    image_processor: DataError::ImageProcessor { file: "m/p.json".into(), key: "resample".to_owned(), expected: "0 or 1".to_owned(), found: "7".to_owned(), hint: "3" }
        => "m/p.json: resample: expected 0 or 1, found 7";
    bad_rows: DataError::BadRows { path: path(), named: "row 7: empty caption".to_owned(), num_bad: 1, num_rows: 2, max_skipped: Some(0.1), has_other_fields: false }
        => "cars.csv: 1 of 2 rows cannot be used, `max_skipped` allows 10%: row 7: empty caption", "`holdall data clean data/cars.csv`";
    no_bad_rows: DataError::BadRows { path: path(), named: "row 7: 3 of 2 fields".to_owned(), num_bad: 1, num_rows: 2, max_skipped: None, has_other_fields: true }
        => "`bad_pictures: fail` allows none: row 7: 3 of 2 fields", "`bad_pictures: skip`", "needs quotes";
    few_labels: DataError::FewLabels { path: path(), column: "make".to_owned(), least: "two labels", found: "only `Ford`".to_owned() }
        => "column `make`: expected at least two labels, found only `Ford`", "leave `label` out";
    unknown_label: DataError::UnknownLabel { path: path(), row: 9, column: "make".to_owned(), label: "Fort".to_owned(), num_known: 2, from_head: false, nearest: Some("Ford".to_owned()) }
        => "row 9: column `make`: expected one of 2 labels of the training rows, found `Fort`", "`Ford`?";
    missing_images: DataError::MissingImages { path: path(), row: 2, image: "x/1.jpg".into(), num_missing: 3, num_images: 2400, num_bad_rows: 0, max_skipped: None, hint: "look".to_owned() }
        => "row 2: expected an image at x/1.jpg", "3 of 2,400 images are missing\n";
    too_many_missing_images: DataError::MissingImages { path: path(), row: 2, image: "x/1.jpg".into(), num_missing: 3, num_images: 24, num_bad_rows: 1, max_skipped: Some(0.1), hint: "look".to_owned() }
        => "3 of 24 images are missing and 1 row cannot be used, `max_skipped` allows 10%";
    split_value: DataError::SplitValue { path: path(), row: 4, column: "split".to_owned(), found: "later".to_owned() }
        => "row 4: column `split`", "found `later`";
    nothing_to_train_on: DataError::NothingToTrainOn { path: path(), column: "split".to_owned() }
        => "column `split`: expected rows that say train";
    tokenizer_broken: DataError::TokenizerBroken { path: "m/tokenizer.json".into(), cause: "EOF".to_owned() }
        => "m/tokenizer.json: expected a tokenizer.json", "does not load: EOF";
    tokenizer_too_large: DataError::TokenizerTooLarge { path: "m/tokenizer.json".into(), highest_id: 49407, model_vocab_size: 1024 }
        => "expected ids below 1024", "found 49407";
    tokenizer_without_ends: DataError::TokenizerWithoutEnds { path: "m/tokenizer.json".into(), found: vec![] }
        => "m/tokenizer.json: expected a start and an end token", "found nothing";
    vocabulary_too_small: DataError::VocabularyTooSmall { found: 300, least: 514 } => "at least 514, found 300";
    trained_broken: DataError::TrainedBroken { cause: "no".to_owned() } => "train on the captions, found no";
    untokenized: DataError::Untokenized { text: "a car".to_owned(), cause: "no".to_owned() } => "caption `a car`";
    picture_missing: DataError::PictureMissing { path: "1.jpg".into() } => "1.jpg: expected a picture, found no file";
    not_a_picture: DataError::NotAPicture { path: "1.jpg".into(), found: "an empty file".to_owned() }
        => "1.jpg: expected a picture, found an empty file";
    picture_truncated: DataError::PictureTruncated { path: "1.jpg".into() } => "1.jpg: expected a whole picture";
    picture_broken: DataError::PictureBroken { path: "1.jpg".into(), cause: "bad tables".to_owned() }
        => "1.jpg", "found bad tables";
    picture_empty: DataError::PictureEmpty { path: "1.jpg".into(), width: 0, height: 3 } => "1.jpg", "found 0 x 3";
    picture_too_large: DataError::PictureTooLarge { path: "1.jpg".into(), width: 90000, height: 90000, most_pixels: 100_000_000 }
        => "1.jpg: expected at most 100 megapixels, found 90000 x 90000";
    picture_file_too_large: DataError::PictureFileTooLarge { path: "1.jpg".into(), most_bytes: 1 << 30 }
        => "1.jpg: expected a picture of at most 1024 MiB";
    picture_refused: DataError::PictureRefused { path: "1.jpg".into(), found: "a GIF", hint: "save it as PNG" }
        => "1.jpg: expected a JPEG, PNG", "found a GIF", "save it as PNG";
    mask_value: DataError::MaskValue { path: "masks/7.png".into(), value: 12, white: 255, x: 40, y: 7 }
        => "masks/7.png: pixel value 12 at (40, 7), expected 0 or 255", "`binarize: 128`";
    mask_colour: DataError::MaskColour { path: "masks/7.png".into(), found: [255, 0, 0], x: 40, y: 7 }
        => "masks/7.png: colour (255, 0, 0) at (40, 7), expected grey";
    pair_sizes: DataError::PairSizes { image: "a/7.jpg".into(), image_size: (20, 10), mask: "b/7.png".into(), mask_size: (10, 5) }
        => "b/7.png: expected the 20 x 10 pixels of its image a/7.jpg, found 10 x 5";
    no_pair_folders: DataError::NoPairFolders { path: "fives".into(), found: vec![] } => "fives: expected a folder `Original`", "found nothing";
    no_pictures: DataError::NoPictures { path: "masks".into() } => "masks: expected pictures, found none";
    without_partner: DataError::WithoutPartner { images: "a".into(), masks: "b".into(), num_images: 2, num_masks: 1, lone_images: names(), lone_masks: vec![] }
        => "a: expected a mask in b", "found 2 images and 1 mask; images without a mask: image, make; masks without an image: nothing";
    same_stem: DataError::SameStem { path: "a".into(), first: "1.jpg".to_owned(), second: "1.png".to_owned() } => "found 1.jpg and 1.png";
    file_name: DataError::FileName { path: "a/1.jpg".into() } => "a/1.jpg: expected a name in UTF-8";
    no_clips: DataError::NoClips { path: "clips".into() } => "clips: expected a folder for each clip";
    empty_clip: DataError::EmptyClip { path: "clips/3".into() } => "clips/3: expected frames of a clip";
    same_frame: DataError::SameFrame { path: "clips/3".into(), first: "f2.jpg".to_owned(), second: "f02.jpg".to_owned() }
        => "clips/3: expected each frame once, found f2.jpg and f02.jpg";
}
