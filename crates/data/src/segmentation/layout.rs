//! Which files are pairs: the folders of published sets, by their names.
//!
//! ```text
//! FIVES      train/Original/12_A.png      train/Ground truth/12_A.png      test likewise; or Original beside Segmented
//! DRIVE      training/images/21_training.tif    1st_manual/21_manual1.gif    mask/21_training_mask.gif (field of view)
//! HRF        images/01_dr.JPG    manual1/01_dr.tif    mask/01_dr_mask.tif
//! CHASE_DB1  Image_01L.jpg    Image_01L_1stHO.png    (a second annotator's Image_01L_2ndHO.png is left out)
//! STARE      im0001.ppm.gz    im0001.ah.ppm.gz       (one folder each, or all in one)
//! others     images beside masks, labels, annotations, ...; `image_subdir` and `label_subdir` name any other pair
//! ```
//!
//! Every image must have one mask and every mask one image: a pair that is silently missing is a data set that is not the one that was meant.

use std::path::{Path, PathBuf};

use super::partners::{Files, PairFiles, stem};
use crate::error::DataError;
use crate::folder::{Entries, entries, is_segmentation_picture};
use crate::words::{counted, listed};

/// What folders of images, of masks and of fields of view are called, in any case; the first that are there.
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

/// Folders of a field of view whatever the others are called.
const FIELD_OF_VIEW_NAMES: [&str; 2] = ["fov", "field_of_view"];

const TRAIN: [&str; 2] = ["train", "training"];
const VALIDATION: [&str; 3] = ["val", "valid", "validation"];
const TEST: [&str; 2] = ["test", "testing"];

/// How far a set may be nested in folders that hold nothing else: archives are often unpacked into a folder of their own name, twice.
const MOST_NESTED: usize = 4;

/// A set's pairs by split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Where paths start.
    pub root: PathBuf,
    pub train: Vec<PairFiles>,
    pub validation: Option<Vec<PairFiles>>,
    pub test: Option<Vec<PairFiles>>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Names of folders in a config.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Subfolders<'a> {
    pub images: Option<&'a Path>,
    pub masks: Option<&'a Path>,
    pub field_of_view: FieldOfView<'a>,
}

/// Whether pixels outside of the field of view count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum FieldOfView<'a> {
    /// Where the set has one, they do not.
    #[default]
    Auto,
    /// They do.
    Off,
    /// This folder says where it is.
    Folder(&'a Path),
}

/// Folders whose pictures belong together, and whose split they are.
struct Place {
    /// Relative to the root; empty for the root itself.
    folder: String,
    images: String,
    masks: Option<String>,
    field_of_view: Option<String>,
}

/// Whether a folder holds pictures and masks, itself, in its splits or nested.
pub(crate) fn is_layout(root: &Path) -> Result<bool, DataError> {
    Ok(place(root)?.is_some())
}

/// Where a folder holds pictures and masks, if it does.
pub(crate) fn place(root: &Path) -> Result<Option<PathBuf>, DataError> {
    place_of_set(root, Subfolders::default())
}

/// The folder of a set: the one that was named, or the only one inside of it.
fn place_of_set(root: &Path, subfolders: Subfolders<'_>) -> Result<Option<PathBuf>, DataError> {
    let mut place = root.to_owned();
    for _ in 0..MOST_NESTED {
        let found = entries(&place)?;
        if super::nnunet::is_layout(&place) || Kind::of(&place, &found, subfolders)?.is_some() {
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

/// How a folder holds its pairs.
enum Kind {
    /// Folders of splits, each with folders of images and masks.
    Splits {
        train: Place,
        validation: Option<Place>,
        test: Option<Place>,
    },
    /// Folders of images and masks.
    Folders(Place),
    /// Images and masks in one folder, told by the ends of their names.
    OneFolder { mask_end: &'static str },
}

/// Ends of the names of masks that lie beside their images.
const MASK_ENDS: [&str; 2] = ["_1stho", ".ah"];

impl Kind {
    fn of(
        root: &Path,
        found: &Entries,
        subfolders: Subfolders<'_>,
    ) -> Result<Option<Kind>, DataError> {
        if let Some(train) = named(&found.folders, &TRAIN)
            && let Some(train) = Place::of(root, train, subfolders)?
        {
            // The same folders in each split: `mask` is no annotation where training has `1st_manual`.
            let same = Subfolders {
                images: Some(Path::new(&train.images)),
                masks: train.masks.as_deref().map(Path::new),
                ..subfolders
            };
            let place = |names: &[&str]| match named(&found.folders, names) {
                Some(name) => Place::of(root, name, same),
                None => Ok(None),
            };
            let (validation, test) = (place(&VALIDATION)?, place(&TEST)?);
            return Ok(Some(Kind::Splits {
                train,
                validation,
                test,
            }));
        }
        if let Some(place) = Place::of(root, "", subfolders)? {
            return Ok(Some(Kind::Folders(place)));
        }
        let ends = MASK_ENDS.iter().find(|end| {
            let is_mask = |name: &String| {
                is_segmentation_picture(name) && stem(name).to_lowercase().ends_with(*end)
            };
            found.files.iter().any(is_mask)
        });
        Ok(ends.map(|mask_end| Kind::OneFolder { mask_end }))
    }
}

impl Place {
    /// The folders of images and masks in `root/folder`, if they are there.
    fn of(
        root: &Path,
        folder: &str,
        subfolders: Subfolders<'_>,
    ) -> Result<Option<Place>, DataError> {
        let found = entries(&root.join(folder))?.folders;
        let inside = |name: &str| named(&found, &[name]).map(str::to_owned);
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
                // The test split of DRIVE comes without annotations.
                let masks = root.join(folder).join(masks).is_dir().then(|| text(masks));
                (text(images), masks, usual.and_then(|(.., field)| field))
            }
            _ => match usual {
                Some((images, masks, field)) => (images, Some(masks), field),
                None => return Ok(None),
            },
        };
        let field_of_view = match subfolders.field_of_view {
            FieldOfView::Off => None,
            FieldOfView::Folder(name) => Some(text(name)),
            FieldOfView::Auto => {
                let usual = FIELD_OF_VIEW_NAMES.iter().find_map(|name| inside(name));
                usual_field
                    .or(usual)
                    .filter(|name| masks.as_ref() != Some(name))
            }
        };
        Ok(Some(Place {
            folder: folder.to_owned(),
            images,
            masks,
            field_of_view,
        }))
    }

    /// Its pairs, in natural order of the images' names.
    fn pairs(&self, root: &Path) -> Result<Vec<PairFiles>, DataError> {
        let within = |inner: &str| match self.folder.as_str() {
            "" => inner.to_owned(),
            folder => format!("{folder}/{inner}"),
        };
        let images = Files::list(root, &within(&self.images), |_| true)?;
        let Some(masks) = &self.masks else {
            return Ok(images.alone());
        };
        let masks = Files::list(root, &within(masks), |_| true)?;
        let mut pairs = images.alone();
        for (pair, mask) in pairs.iter_mut().zip(images.partners(&masks, "mask", true)?) {
            pair.mask = Some(mask);
        }
        if let Some(folder) = &self.field_of_view {
            let fields = Files::list(root, &within(folder), |_| true)?;
            let partners = images.partners(&fields, "field of view", false)?;
            for (pair, field) in pairs.iter_mut().zip(partners) {
                pair.field_of_view = Some(field);
            }
        }
        Ok(pairs)
    }
}

/// Finds the pairs of a set in a folder.
pub(super) fn find(root: &Path, subfolders: Subfolders<'_>) -> Result<Layout, DataError> {
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
    let kind = Kind::of(&place, &found, subfolders)?;
    let mut layout = Layout {
        root: place.clone(),
        ..Layout::default()
    };
    match kind {
        Some(Kind::Splits {
            train,
            validation,
            test,
        }) => {
            layout.train = train.pairs(&place)?;
            layout.validation = validation.map(|split| split.pairs(&place)).transpose()?;
            match test {
                Some(test) if test.masks.is_none() => layout.notes.push(format!(
                    "{}: no masks beside its images; it is not used",
                    place.join(&test.folder).display()
                )),
                Some(test) => layout.test = Some(test.pairs(&place)?),
                None => {}
            }
        }
        Some(Kind::Folders(folders)) => layout.train = folders.pairs(&place)?,
        Some(Kind::OneFolder { mask_end }) => {
            let lower = |name: &str| stem(name).to_lowercase();
            let is_mask = |name: &str| lower(name).ends_with(mask_end);
            let is_other = |name: &str| {
                [".vk", "_2ndho"]
                    .iter()
                    .any(|end| lower(name).ends_with(end))
            };
            let images = Files::list(&place, "", |name| !is_mask(name) && !is_other(name))?;
            let masks = Files::list(&place, "", is_mask)?;
            let others = found.files.iter().filter(|name| is_other(name)).count();
            if others > 0 {
                let left_out = counted(others, "mask");
                layout
                    .notes
                    .push(format!("{left_out} of a second annotator left out"));
            }
            layout.train = images.alone();
            let partners = images.partners(&masks, "mask", true)?;
            for (pair, mask) in layout.train.iter_mut().zip(partners) {
                pair.mask = Some(mask);
            }
        }
        None => {}
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
