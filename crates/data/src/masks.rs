//! Images and their masks: two folders, matched by the names of their files without extensions.
//!
//! ```text
//! FIVES/train/Original/12_A.png          images/7.JPG
//! FIVES/train/Ground truth/12_A.png      masks/7.png
//! ```
//!
//! Every image must have one mask and every mask one image: a pair that is silently missing is a data set that is not the
//! one that was meant. Pixels are read by [`crate::picture::augmented_pair_into`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::folder::{folders, pictures, stem};
use crate::packed_strings::PackedStrings;
use crate::words::{counted, listed};

/// What folders of images and of their masks are called, in any case.
const FOLDER_NAMES: [(&str, &str); 3] = [
    ("original", "ground truth"),
    ("images", "masks"),
    ("image", "mask"),
];

/// Pairs in natural order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    image_folder: PathBuf,
    mask_folder: PathBuf,
    images: PackedStrings,
    masks: PackedStrings,
    num_pairs: usize,
}

impl Pairs {
    /// The pairs of a data set's split: `Original` beside `Ground truth`, or `images` beside `masks`, in
    /// `root/split` or, where there is no such folder, in `root` itself.
    pub fn find(root: &Path, split: &str) -> Result<Pairs, DataError> {
        let inner = root.join(split);
        let place = if inner.is_dir() {
            inner
        } else {
            root.to_owned()
        };
        let found = folders(&place)?;
        match pair_of(&found) {
            Some((images, masks)) => Pairs::open(&place.join(images), &place.join(masks)),
            None => Err(DataError::invalid(
                place.display(),
                "a folder `Original` beside `Ground truth`, or `images` beside `masks`",
                listed(&found),
                "name the folder of images and the folder of masks",
            )),
        }
    }

    /// The pairs of two folders.
    pub fn open(image_folder: &Path, mask_folder: &Path) -> Result<Pairs, DataError> {
        let images = stems(image_folder)?;
        let masks = stems(mask_folder)?;
        let mask_of: HashMap<&str, &str> = (masks.iter())
            .map(|name| (stem(name), name.as_str()))
            .collect();
        let mut pairs = Pairs {
            image_folder: image_folder.to_owned(),
            mask_folder: mask_folder.to_owned(),
            images: PackedStrings::default(),
            masks: PackedStrings::default(),
            num_pairs: 0,
        };
        let mut lone_images = Vec::new();
        for image in &images {
            match mask_of.get(stem(image)) {
                Some(mask) => {
                    pairs.images.push(image);
                    pairs.masks.push(mask);
                    pairs.num_pairs += 1;
                }
                None => lone_images.push(image.clone()),
            }
        }
        if pairs.num_pairs == images.len() && pairs.num_pairs == masks.len() {
            return Ok(pairs);
        }
        let known: HashMap<&str, ()> = images.iter().map(|name| (stem(name), ())).collect();
        let lone_masks = masks.iter().filter(|name| !known.contains_key(stem(name)));
        let lone_masks: Vec<String> = lone_masks.cloned().collect();
        Err(DataError::invalid(
            image_folder.display(),
            format_args!(
                "a mask in {} for each image and an image for each mask",
                mask_folder.display()
            ),
            format_args!(
                "{} and {}; images without a mask: {}; masks without an image: {}",
                counted(images.len(), "image"),
                counted(masks.len(), "mask"),
                listed(&lone_images),
                listed(&lone_masks)
            ),
            "a mask has its image's name, whatever the extension; remove or rename what has no partner",
        ))
    }

    /// How many there are; never none.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.num_pairs
    }

    /// Where an image is.
    pub fn image_path(&self, pair: usize) -> PathBuf {
        self.image_folder.join(self.images.get(pair))
    }

    /// Where its mask is.
    pub fn mask_path(&self, pair: usize) -> PathBuf {
        self.mask_folder.join(self.masks.get(pair))
    }
}

/// Whether a folder has one of images beside one of masks.
pub(crate) fn is_layout(folder: &Path) -> Result<bool, DataError> {
    Ok(pair_of(&folders(folder)?).is_some())
}

/// The folder of images and that of masks.
fn pair_of(folders: &[String]) -> Option<(&String, &String)> {
    let named = |name: &str| folders.iter().find(|f| f.eq_ignore_ascii_case(name));
    FOLDER_NAMES
        .iter()
        .find_map(|(images, masks)| Some((named(images)?, named(masks)?)))
}

/// The pictures of a folder: at least one, and no two that differ in their extension alone.
fn stems(folder: &Path) -> Result<Vec<String>, DataError> {
    let names = pictures(folder)?;
    if names.is_empty() {
        return Err(DataError::no_pictures(folder, "pictures", ""));
    }
    let mut seen = HashMap::new();
    for name in &names {
        if let Some(first) = seen.insert(stem(name), name) {
            return Err(DataError::invalid(
                folder.display(),
                "one file of each name",
                format_args!("{first} and {name}"),
                "pairs are matched without extensions; remove one of the two",
            ));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use image::{GrayImage, Luma, RgbImage};

    use super::*;
    use crate::picture::{Binarize, Scratch, mask_into};

    fn folder_of(root: &Path, name: &str, files: &[&str]) -> PathBuf {
        let folder = root.join(name);
        fs::create_dir_all(&folder).unwrap();
        for file in files {
            fs::write(folder.join(file), b"").unwrap();
        }
        folder
    }

    #[test]
    fn fives_is_recognised_and_sorted_as_people_count() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let names = ["10_A.png", "2_D.png", "1_N.png", "Thumbs.db", ".hidden.png"];
        folder_of(root, "train/Original", &names);
        folder_of(root, "train/Ground truth", &names);
        folder_of(root, "test/Original", &["1.png"]);
        let pairs = Pairs::find(root, "train").unwrap();
        assert_eq!(pairs.len(), 3);
        assert!(pairs.image_path(1).ends_with("train/Original/2_D.png"));
        assert!(pairs.mask_path(2).ends_with("train/Ground truth/10_A.png"));
        assert_eq!(Pairs::find(&root.join("train"), "train").unwrap(), pairs);
        let error = Pairs::find(root, "test").unwrap_err().to_string();
        assert!(error.contains("found Original\n"), "{error}");
    }

    #[test]
    fn extensions_do_not_matter_and_partners_do() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let images = folder_of(root, "images", &["1.JPG", "2.jpeg"]);
        let masks = folder_of(root, "masks", &["1.png", "2.TIF"]);
        let pairs = Pairs::find(root, "train").unwrap();
        assert!(pairs.mask_path(1).ends_with("masks/2.TIF"));
        folder_of(root, "images", &["3.jpg"]);
        folder_of(root, "masks", &["4.png", "5.png"]);
        let error = Pairs::open(&images, &masks).unwrap_err().to_string();
        for part in ["3 images", "4 masks", "3.jpg", "4.png, 5.png"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        folder_of(root, "images", &["2.png"]);
        let error = Pairs::open(&images, &masks).unwrap_err().to_string();
        assert!(error.contains("2.jpeg and 2.png"), "{error}");
        let empty = folder_of(root, "empty", &["notes.txt"]);
        let error = Pairs::open(&empty, &masks).unwrap_err().to_string();
        assert!(error.contains("expected pictures, found none"), "{error}");
    }

    fn read(path: &Path, binarize: Binarize) -> Result<Vec<u8>, DataError> {
        let mut classes = vec![9; 5];
        let (width, height) = mask_into(path, binarize, &mut Scratch::default(), &mut classes)?;
        assert_eq!(classes.len(), (width * height) as usize);
        Ok(classes)
    }

    #[test]
    fn a_grey_pixel_is_named_or_binarized() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.png");
        let mut mask = GrayImage::from_fn(50, 9, |x, _| Luma([if x < 20 { 0 } else { 255 }]));
        mask.save(&path).unwrap();
        let classes = read(&path, Binarize::Never).unwrap();
        assert_eq!(classes[..50].iter().map(|c| u32::from(*c)).sum::<u32>(), 30);
        mask.put_pixel(40, 7, Luma([12]));
        mask.save(&path).unwrap();
        let error = read(&path, Binarize::Never).unwrap_err().to_string();
        let expected = "7.png: pixel value 12 at (40, 7), expected 0 or 255\nhint: `binarize: 128`";
        assert!(error.contains(expected), "{error}");
        let classes = read(&path, Binarize::At(128)).unwrap();
        assert_eq!((classes[7 * 50 + 40], classes[7 * 50 + 41]), (0, 1));
        assert_eq!(read(&path, Binarize::At(12)).unwrap()[7 * 50 + 40], 1);
        mask.put_pixel(40, 7, Luma([1]));
        mask.save(&path).unwrap();
        let error = read(&path, Binarize::Never).unwrap_err().to_string();
        assert!(error.contains("hint: `binarize: 1`"), "{error}");
    }

    #[test]
    fn three_equal_channels_are_grey_and_others_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.png");
        let mut mask = RgbImage::from_pixel(3, 2, image::Rgb([255; 3]));
        mask.save(&path).unwrap();
        assert_eq!(read(&path, Binarize::Never).unwrap(), [1; 6]);
        mask.put_pixel(2, 1, image::Rgb([255, 0, 0]));
        mask.save(&path).unwrap();
        for binarize in [Binarize::Never, Binarize::At(128)] {
            let error = read(&path, binarize).unwrap_err().to_string();
            assert!(error.contains("colour (255, 0, 0) at (2, 1)"), "{error}");
        }
    }

    /// Of 16 bits a picture keeps the upper 8; a mask of 0 and 255 would be black all over.
    #[test]
    fn no_class_is_lost_in_16_bits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.png");
        let mask = |value: u16| {
            let mask =
                image::ImageBuffer::from_fn(3, 2, |x, _| Luma([if x == 1 { value } else { 0 }]));
            mask.save(&path).unwrap();
        };
        mask(65535);
        assert_eq!(read(&path, Binarize::Never).unwrap(), [0, 1, 0, 0, 1, 0]);
        mask(255);
        let error = read(&path, Binarize::At(128)).unwrap_err().to_string();
        assert!(
            error.contains("pixel value 255 at (1, 0), expected 0 or 65535"),
            "{error}"
        );
    }
}
