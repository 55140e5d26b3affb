//! Finds the pairs of a set: the folder layouts of published sets, by their names.
//!
//! ```text
//! FIVES      train/Original/12_A.png      train/Ground truth/12_A.png      test likewise; or Original beside Segmented
//! DRIVE      training/images/21_training.tif    1st_manual/21_manual1.gif    mask/21_training_mask.gif (field of view)
//! HRF        images/01_dr.JPG    manual1/01_dr.tif    mask/01_dr_mask.tif
//! CHASE_DB1  Image_01L.jpg    Image_01L_1stHO.png    (a second annotator's Image_01L_2ndHO.png is left out)
//! STARE      im0001.ppm.gz    im0001.ah.ppm.gz       (one folder each, or all in one)
//! ISIC       ISIC-2017_Training_Data/ISIC_0000001.jpg    ISIC-2017_Training_Part1_GroundTruth/ISIC_0000001_segmentation.png
//! VOC        JPEGImages/2007_000032.jpg    SegmentationClass/2007_000032.png    ImageSets/Segmentation/train.txt
//! others     images beside masks, labels, annotations, ..., also images/train beside masks/train; `x_mask.png` beside `x.png`;
//!            `image_subdir` and `label_subdir` name any other pair
//! ```
//!
//! Every image must have one mask and every mask one image: pairs that are dropped silently would train on another data set than the user
//! means.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::partners::{Files, PairFiles, stem};
use crate::config::{DataConfig, FieldOfViewChoice};
use crate::error::DataError;
use crate::media::is_segmentation_picture;
use crate::table::folder::{Entries, entries};
use crate::words::{counted, listed};

/// Names of the folders of images, masks and fields of view, in any case; the first row that matches is used.
const FOLDER_NAMES: [(&str, &str, Option<&str>); 20] = [
    ("original", "ground truth", None),
    ("original", "segmented", None),
    ("images", "1st_manual", Some("mask")),
    ("images", "manual1", Some("mask")),
    ("images", "manual", Some("mask")),
    ("images", "masks", None),
    ("images", "labels", Some("fov")),
    ("images", "ground truth", None),
    ("images", "ground_truth", None),
    ("images", "groundtruth", None),
    ("images", "gt", None),
    ("images", "annotations", None),
    ("images", "mask", None),
    ("image", "mask", None),
    ("image", "label", None),
    ("imgs", "masks", None),
    ("img", "mask", None),
    ("inputs", "targets", None),
    ("jpegimages", "segmentationclass", None),
    ("stare-images", "labels-ah", None),
];

/// Names of field-of-view folders, whatever the other folders are called.
const FIELD_OF_VIEW_NAMES: [&str; 2] = ["fov", "field_of_view"];

/// Names of image folders that may have a field-of-view folder and no masks.
const IMAGES: [&str; 4] = ["images", "image", "imgs", "img"];

const TRAIN: [&str; 2] = ["train", "training"];
const VALIDATION: [&str; 3] = ["val", "valid", "validation"];
const TEST: [&str; 2] = ["test", "testing"];

/// Nesting limit of a set in folders that hold nothing else: archives are often unpacked into a folder of their own name, twice.
const MOST_NESTED: usize = 4;

/// Pairs of a set by split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairLayout {
    /// Folder that paths are relative to.
    pub root: PathBuf,
    pub train: Vec<PairFiles>,
    pub validation: Option<Vec<PairFiles>>,
    pub test: Option<Vec<PairFiles>>,
    /// Images of validation and test splits whose masks are not published.
    pub unlabelled: Vec<PairFiles>,
    /// Files found instead of masks, in words, where the set has images only.
    pub withheld: Option<String>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// Folder names from a config.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subfolders<'a> {
    pub images: Option<&'a Path>,
    pub masks: Option<&'a Path>,
    pub field_of_view: FieldOfView<'a>,
}

impl<'a> Subfolders<'a> {
    pub(crate) fn of(config: &'a DataConfig) -> Subfolders<'a> {
        Subfolders {
            images: config.image_subdir.as_deref(),
            masks: config.label_subdir.as_deref(),
            field_of_view: match &config.field_of_view {
                FieldOfViewChoice::Auto => FieldOfView::Auto,
                FieldOfViewChoice::None => FieldOfView::Off,
                FieldOfViewChoice::Named(name) => FieldOfView::Folder(Path::new(name)),
            },
        }
    }
}

/// How the field of view is found; pixels outside of it do not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum FieldOfView<'a> {
    /// The set's own field-of-view masks, where it has them.
    #[default]
    Auto,
    /// None: all pixels count.
    Off,
    /// Masks in this folder.
    Folder(&'a Path),
}

/// Folders of images and masks that belong together: a set, or one split of it.
#[derive(Clone)]
struct PairFolders {
    /// Relative to the root; empty for the root itself.
    folder: String,
    images: String,
    masks: Masks,
    field_of_view: Option<String>,
    /// Stems of the images that the set lists; `None` for all.
    listed: Option<HashSet<String>>,
}

/// Location of the masks.
#[derive(Clone, PartialEq)]
enum Masks {
    /// In a folder of their own.
    Folder(String),
    /// Beside their images, recognised by the ends of their names.
    Beside(&'static str),
    /// Not published: the test split of DRIVE has none.
    Withheld,
}

/// Whether a folder holds pictures and masks: directly, in splits or nested.
pub(crate) fn is_layout(root: &Path) -> Result<bool, DataError> {
    Ok(place(root)?.is_some())
}

/// Like [`is_layout`], with the folder names of a config.
pub(crate) fn is_layout_of(config: &DataConfig, root: &Path) -> Result<bool, DataError> {
    Ok(place_of_set(root, Subfolders::of(config))?.is_some())
}

/// Folder inside `root` that holds pictures and masks, if any.
pub(crate) fn place(root: &Path) -> Result<Option<PathBuf>, DataError> {
    place_of_set(root, Subfolders::default())
}

/// Folder of a set: `root` itself, or the only folder nested in it.
fn place_of_set(root: &Path, subfolders: Subfolders<'_>) -> Result<Option<PathBuf>, DataError> {
    let mut place = root.to_owned();
    for _ in 0..MOST_NESTED {
        let found = entries(&place)?;
        if super::nnunet::is_layout(&place) || Splits::of(&place, &found, subfolders)?.is_some() {
            return Ok(Some(place));
        }
        let inner: Vec<&String> = found
            .folders
            .iter()
            .filter(|name| *name != "__MACOSX")
            .collect();
        let [only] = inner.as_slice() else {
            return Ok(None);
        };
        place = place.join(only);
    }
    Ok(None)
}

/// Folders of each split.
struct Splits {
    train: PairFolders,
    validation: Option<PairFolders>,
    test: Option<PairFolders>,
}

/// Name endings of masks that lie beside their images.
const MASK_ENDS: [&str; 8] = [
    "_1stho",
    ".ah",
    "_mask",
    "_masks",
    "_label",
    "_gt",
    "_seg",
    "_segmentation",
];

/// Name endings of pictures that are neither images nor masks: a second annotator's masks, and ISIC's superpixels.
const OTHER_ENDS: [&str; 3] = [".vk", "_2ndho", "_superpixels"];

fn has_end(name: &str, end: &str) -> bool {
    stem(name).to_lowercase().ends_with(end)
}

fn is_other(name: &str) -> bool {
    OTHER_ENDS.iter().any(|end| has_end(name, end))
}

impl Splits {
    fn of(
        root: &Path,
        found: &Entries,
        subfolders: Subfolders<'_>,
    ) -> Result<Option<Splits>, DataError> {
        if let Some(splits) = Splits::of_isic(&found.folders) {
            return Ok(Some(splits));
        }
        if let Some(train) = named(&found.folders, &TRAIN)
            && let Some(train) = PairFolders::of(root, train, subfolders)?
        {
            // Each split uses the training split's folders: `mask` is no annotation where training has `1st_manual`.
            let same = match &train.masks {
                Masks::Folder(masks) => Subfolders {
                    images: Some(Path::new(&train.images)),
                    masks: Some(Path::new(masks)),
                    ..subfolders
                },
                _ => subfolders,
            };
            let place = |names: &[&str]| match named(&found.folders, names) {
                Some(name) => PairFolders::of(root, name, same),
                None => Ok(None),
            };
            return Ok(Some(Splits {
                validation: place(&VALIDATION)?,
                test: place(&TEST)?,
                train,
            }));
        }
        let Some(place) = PairFolders::of(root, "", subfolders)? else {
            return Ok(None);
        };
        if let Some(splits) = Splits::within_folders(root, &place)? {
            return Ok(Some(splits));
        }
        Splits::of_lists(root, place).map(Some)
    }

    /// ISIC: `ISIC-2017_Training_Data` beside `ISIC-2017_Training_Part1_GroundTruth`, and other years likewise.
    fn of_isic(folders: &[String]) -> Option<Splits> {
        let place = |split: &str| {
            let folder = |is_wanted: &dyn Fn(&str) -> bool| {
                let mut folders = folders.iter();
                let found = folders.find(|name| {
                    let name = name.to_lowercase();
                    name.contains("isic") && name.contains(split) && is_wanted(&name)
                });
                found.cloned()
            };
            let images = folder(&|name| name.ends_with("_data") || name.ends_with("_input"))?;
            let is_outline = |name: &str| {
                let is_other_task = ["task2", "task3", "part2", "part3"]
                    .iter()
                    .any(|task| name.contains(task));
                name.ends_with("_groundtruth") && !is_other_task
            };
            Some(PairFolders {
                folder: String::new(),
                images,
                masks: folder(&is_outline).map_or(Masks::Withheld, Masks::Folder),
                field_of_view: None,
                listed: None,
            })
        };
        let train = place("_training_").filter(|train| train.masks != Masks::Withheld)?;
        Some(Splits {
            train,
            validation: place("_validation_"),
            test: place("_test_"),
        })
    }

    /// `images/train` beside `masks/train`, where `images` itself has no pictures.
    fn within_folders(root: &Path, place: &PairFolders) -> Result<Option<Splits>, DataError> {
        let Masks::Folder(masks) = &place.masks else {
            return Ok(None);
        };
        let images = entries(&root.join(&place.images))?;
        if images
            .files
            .iter()
            .any(|name| is_segmentation_picture(name))
        {
            return Ok(None);
        }
        let split = |names: &[&str]| -> Option<PairFolders> {
            let name = named(&images.folders, names)?;
            let inside = |folder: &str| format!("{folder}/{name}");
            let exists = |folder: &String| root.join(folder).is_dir();
            let masks = Some(inside(masks)).filter(exists);
            let field_of_view = place.field_of_view.as_deref().map(inside);
            Some(PairFolders {
                images: inside(&place.images),
                masks: masks.map_or(Masks::Withheld, Masks::Folder),
                field_of_view: field_of_view.filter(exists),
                ..place.clone()
            })
        };
        let train = split(&TRAIN).filter(|train| train.masks != Masks::Withheld);
        Ok(train.map(|train| Splits {
            train,
            validation: split(&VALIDATION),
            test: split(&TEST),
        }))
    }

    /// VOC: lists name the images with masks, and those for training.
    fn of_lists(root: &Path, place: PairFolders) -> Result<Splits, DataError> {
        let whole = |train| Splits {
            train,
            validation: None,
            test: None,
        };
        let is_voc = matches!(&place.masks, Masks::Folder(masks) if masks.eq_ignore_ascii_case("segmentationclass"));
        if !is_voc {
            return Ok(whole(place));
        }
        let list = |name: &str| -> Option<PairFolders> {
            let path = root.join("ImageSets/Segmentation").join(name);
            let text = holdall_files::read_regular(&path, MOST_LIST_BYTES).ok()?;
            let text = String::from_utf8(text).ok()?;
            let stems = text.lines().map(|line| line.trim().to_owned());
            let listed: HashSet<String> = stems.filter(|stem| !stem.is_empty()).collect();
            let is_listed = !listed.is_empty();
            is_listed.then(|| PairFolders {
                listed: Some(listed),
                ..place.clone()
            })
        };
        match (list("train.txt"), list("val.txt")) {
            (Some(train), validation) => Ok(Splits {
                train,
                validation,
                test: None,
            }),
            _ => {
                let Masks::Folder(masks) = &place.masks else {
                    return Ok(whole(place));
                };
                let found = entries(&root.join(masks))?.files;
                let stems = found.iter().map(|name| stem(name).to_owned()).collect();
                Ok(whole(PairFolders {
                    listed: Some(stems),
                    ..place
                }))
            }
        }
    }
}

/// Size limit of a list: VOC's has 20 bytes for each of its 3,000 images.
const MOST_LIST_BYTES: u64 = 16 << 20;

impl PairFolders {
    /// Folders of images and masks in `root/folder`, or pairs directly in it.
    fn of(
        root: &Path,
        folder: &str,
        subfolders: Subfolders<'_>,
    ) -> Result<Option<PairFolders>, DataError> {
        let Entries { folders, files, .. } = entries(&root.join(folder))?;
        let inside = |name: &str| named(&folders, &[name]).map(str::to_owned);
        let usual = FOLDER_NAMES
            .iter()
            .find_map(|(images, masks, field_of_view)| {
                let field_of_view = field_of_view.and_then(inside);
                Some((inside(images)?, inside(masks)?, field_of_view))
            });
        let text = |path: &Path| path.to_string_lossy().replace('\\', "/");
        let (images, masks, usual_field) = match (subfolders.images, subfolders.masks) {
            (Some(images), Some(masks)) => {
                if !root.join(folder).join(images).is_dir() {
                    return Ok(None);
                }
                let is_there = root.join(folder).join(masks).is_dir();
                let masks = if is_there {
                    Masks::Folder(text(masks))
                } else {
                    Masks::Withheld
                };
                (text(images), masks, usual.and_then(|(.., field)| field))
            }
            _ => match usual {
                Some((images, masks, field)) => {
                    if is_field_of_view(root, folder, &images, &masks)? {
                        (images, Masks::Withheld, Some(masks))
                    } else {
                        (images, Masks::Folder(masks), field)
                    }
                }
                None => match (pairs_beside(&files), alone(&folders)) {
                    (Some(end), _) => (String::new(), Masks::Beside(end), None),
                    (None, Some((images, field))) => (images, Masks::Withheld, Some(field)),
                    (None, None) => return Ok(None),
                },
            },
        };
        let field_of_view = match subfolders.field_of_view {
            FieldOfView::Off => None,
            FieldOfView::Folder(name) => Some(text(name)),
            FieldOfView::Auto => {
                let usual = FIELD_OF_VIEW_NAMES.iter().find_map(|name| inside(name));
                usual_field
                    .or(usual)
                    .filter(|name| masks != Masks::Folder(name.clone()))
            }
        };
        Ok(Some(PairFolders {
            folder: folder.to_owned(),
            images,
            masks,
            field_of_view,
            listed: None,
        }))
    }

    fn within(&self, inner: &str) -> String {
        match (self.folder.as_str(), inner) {
            ("", inner) => inner.to_owned(),
            (folder, "") => folder.to_owned(),
            (folder, inner) => format!("{folder}/{inner}"),
        }
    }

    /// Pairs in natural order of the images' names; without masks where these are withheld.
    fn pairs(&self, root: &Path) -> Result<Vec<PairFiles>, DataError> {
        let is_listed = |name: &str| {
            let listed = self.listed.as_ref();
            listed.is_none_or(|listed| listed.contains(stem(name)))
        };
        let folder = self.within(&self.images);
        let (images, masks) = match &self.masks {
            Masks::Withheld => {
                let images = Files::list(root, &folder, |name| !is_other(name))?;
                return Ok(images.alone());
            }
            Masks::Folder(masks) => (
                Files::list(root, &folder, |name| !is_other(name) && is_listed(name))?,
                Files::list(root, &self.within(masks), is_listed)?,
            ),
            Masks::Beside(end) => (
                Files::list(root, &folder, |name| !has_end(name, end) && !is_other(name))?,
                Files::list(root, &folder, |name| has_end(name, end))?,
            ),
        };
        let mut pairs = images.alone();
        for (pair, mask) in pairs.iter_mut().zip(images.partners(&masks, "mask", true)?) {
            pair.mask = Some(mask);
        }
        if let Some(folder) = &self.field_of_view {
            let fields = Files::list(root, &self.within(folder), |_| true)?;
            let partners = images.partners(&fields, "field of view", false)?;
            for (pair, field) in pairs.iter_mut().zip(partners) {
                pair.field_of_view = Some(field);
            }
        }
        Ok(pairs)
    }

    /// Message about files that are left out.
    fn note(&self, root: &Path) -> Result<Option<String>, DataError> {
        let folder = self.within(&self.images);
        let files = entries(&root.join(&folder))?.files;
        let count = |is_left_out: &dyn Fn(&String) -> bool| {
            let pictures = files.iter().filter(|name| is_segmentation_picture(name));
            pictures.filter(|name| is_left_out(name)).count()
        };
        Ok(match (&self.masks, &self.listed) {
            (Masks::Beside(_), _) => match count(&|name| is_other(name)) {
                0 => None,
                others => Some(format!(
                    "{} of a second annotator left out",
                    counted(others, "mask")
                )),
            },
            (_, Some(listed)) => match count(&|name| !listed.contains(stem(name))) {
                0 => None,
                others => Some(format!(
                    "{folder}: {} not in this split, or without a mask",
                    counted(others, "image")
                )),
            },
            _ => None,
        })
    }
}

/// Whether `mask`, beside images and without other annotations, holds fields of view: the test splits of DRIVE and HRF, whose labels are
/// not published. A training split beside this one, or the file names of these sets, decide.
fn is_field_of_view(
    root: &Path,
    folder: &str,
    images: &str,
    masks: &str,
) -> Result<bool, DataError> {
    if !masks.eq_ignore_ascii_case("mask") {
        return Ok(false);
    }
    let place = root.join(folder);
    let parent = place.canonicalize().ok();
    let parent = parent.as_deref().and_then(Path::parent);
    if let Some(parent) = parent
        && let Ok(siblings) = entries(parent)
        && let Some(train) = named(&siblings.folders, &TRAIN)
        && let Ok(beside) = entries(&parent.join(train))
    {
        let inside = |name: &str| named(&beside.folders, &[name]).is_some();
        let has_annotations = FOLDER_NAMES
            .iter()
            .any(|(_, masks, field)| field.is_some_and(inside) && inside(masks));
        if has_annotations {
            return Ok(true);
        }
    }
    // 01_test.tif, 01_dr.JPG: numbers with the suffixes of DRIVE and HRF.
    let is_of_known_set = |name: &String| {
        let stem = stem(name).to_lowercase();
        stem.split_once('_').is_some_and(|(number, rest)| {
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number && ["test", "training", "dr", "g", "h"].contains(&rest)
        })
    };
    let mut names = entries(&place.join(images))?.files;
    names.retain(|name| is_segmentation_picture(name));
    Ok(!names.is_empty() && names.iter().all(is_of_known_set))
}

/// Folders of images and of their fields of view, without annotations.
fn alone(folders: &[String]) -> Option<(String, String)> {
    let images = named(folders, &IMAGES)?;
    let field = named(folders, &FIELD_OF_VIEW_NAMES)?;
    Some((images.to_owned(), field.to_owned()))
}

/// Name ending of masks that lie among the images: each mask must have its image, and at least half of the images a mask.
fn pairs_beside(files: &[String]) -> Option<&'static str> {
    let pictures = files.iter().filter(|name| is_segmentation_picture(name));
    let stems: HashSet<String> = pictures
        .filter(|name| !is_other(name))
        .map(|name| stem(name).to_lowercase())
        .collect();
    MASK_ENDS.into_iter().find(|end| {
        let (masks, images): (Vec<&String>, Vec<&String>) =
            stems.iter().partition(|stem| stem.ends_with(end));
        let has_image = |mask: &&String| stems.contains(&mask[..mask.len() - end.len()]);
        !masks.is_empty() && 2 * masks.len() >= images.len() && masks.iter().all(has_image)
    })
}

pub(crate) fn find(root: &Path, subfolders: Subfolders<'_>) -> Result<PairLayout, DataError> {
    let Some(place) = place_of_set(root, subfolders)? else {
        let found = entries(root)?;
        let mut names = found.folders;
        names.extend(found.files);
        return Err(DataError::invalid(
            root.display(),
            "folders of images and of masks, such as `images` beside `masks`, in it or in its `train`",
            listed(&names),
            "name them: `data: {image_subdir: NAME, label_subdir: NAME}`, or write a CSV with the columns image and mask",
        ));
    };
    if super::nnunet::is_layout(&place) {
        return super::nnunet::find(&place);
    }
    let found = entries(&place)?;
    let mut layout = PairLayout {
        root: place.clone(),
        ..PairLayout::default()
    };
    let Some(splits) = Splits::of(&place, &found, subfolders)? else {
        return Ok(layout);
    };
    layout.train = splits.train.pairs(&place)?;
    layout.notes.extend(splits.train.note(&place)?);
    if splits.train.masks == Masks::Withheld {
        let found = match &splits.train.field_of_view {
            Some(folder) => format!(
                "{} alone, the fields of view: the labels of this split are withheld",
                place.join(splits.train.within(folder)).display()
            ),
            None => "images alone".to_owned(),
        };
        layout.withheld = Some(found);
    }
    for (split, into) in [
        (splits.validation, &mut layout.validation),
        (splits.test, &mut layout.test),
    ] {
        match split {
            Some(split) if split.masks == Masks::Withheld => {
                layout.notes.push(format!(
                    "{}: no masks beside its images; only `holdall predict` uses them",
                    place.join(split.within(&split.images)).display()
                ));
                layout.unlabelled.extend(split.pairs(&place)?);
            }
            Some(split) => *into = Some(split.pairs(&place)?),
            None => {}
        }
    }
    Ok(layout)
}

fn named<'a>(names: &'a [String], wanted: &[&str]) -> Option<&'a str> {
    let mut wanted = wanted.iter();
    wanted.find_map(|wanted| {
        let mut names = names.iter();
        let found = names.find(|name| name.eq_ignore_ascii_case(wanted));
        found.map(String::as_str)
    })
}

#[cfg(test)]
mod tests;
