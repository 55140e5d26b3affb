use std::num::ParseFloatError;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::DataError;

mod clips;
mod mixing;
mod named_targets;
mod pair_augment;
mod segmentation;
mod target;
mod validation;

pub use clips::{ClipStart, Separator, ShortClips, Stride};
pub use mixing::Mixing;
pub use named_targets::NamedTargets;
pub use pair_augment::{PairAugment, Spread};
pub(crate) use segmentation::MOST_CLASSES;
pub use segmentation::{ClassColours, FieldOfViewChoice, Foreground, ImageSize};
pub use target::{LABEL, TargetConfig};
pub use validation::Validation;

/// The `data` section of a config: files, columns and how they become samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A CSV, or a folder that holds one.
    pub train: Option<PathBuf>,
    /// Validation rows.
    pub validation: Validation,
    /// Folder that image paths are relative to; the CSV's folder by default.
    pub image_root: Option<PathBuf>,
    /// Column of image paths; found by its usual names by default.
    pub image: Option<String>,
    /// Column of clips: files, or folders of frames; found by its usual names by default.
    pub video: Option<String>,
    /// Column whose rows of equal value are one sample of several clips.
    pub group: Option<String>,
    /// Maximum number of clips per sample of a `group`.
    pub num_videos: Option<u32>,
    /// Frames sampled per clip; the model's number by default.
    pub frames: Option<u32>,
    /// Distance between sampled frames.
    pub stride: Stride,
    /// First sampled frame of a clip in training.
    pub start: ClipStart,
    /// Whether missing frames of a short clip are masked or repeated.
    pub short_clips: ShortClips,
    /// Separator of the CSV's columns; detected from its header line by default.
    pub separator: Option<Separator>,
    /// A column, or a template over columns: `a photo of a {year} {make}`.
    pub caption: Option<String>,
    /// Labels: short for one target named `label`; without it, or with `none`, there is no label head.
    pub label: Option<TargetConfig>,
    /// Training targets of each picture, by name: labels or numbers, each with a head of its own.
    pub targets: NamedTargets,
    pub tokenizer: TokenizerChoice,
    /// Column of mask paths; found by its usual names by default.
    pub mask: Option<String>,
    /// Folder of images within a segmentation set, where its name is not a usual one.
    pub image_subdir: Option<PathBuf>,
    /// Folder of masks within a segmentation set, where its name is not a usual one.
    pub label_subdir: Option<PathBuf>,
    /// Names of the classes in the order of their numbers, the background first.
    pub classes: Vec<String>,
    /// Colour of each class in coloured masks, the background first.
    pub colours: ClassColours,
    /// Threshold that turns grey masks into two classes: this value and all above are the second.
    pub binarize: Option<u16>,
    /// Mask value that is ignored.
    pub ignore: Option<u16>,
    /// Whether pixels outside of the field of view count.
    pub field_of_view: FieldOfViewChoice,
    /// Size that pictures of a segmentation set are resized to.
    pub image_size: ImageSize,
    /// Side of random patches that segmentation trains on instead of whole pictures.
    pub patch: Option<u32>,
    /// Share of patches placed around the foreground.
    pub foreground: Foreground,
    /// Augmentation of training pictures.
    pub augment: Augment,
    /// Augmentation of training pictures together with their masks.
    pub pair_augment: PairAugment,
    /// Mixing of pictures within an effective batch (mixup, CutMix).
    pub mixing: Mixing,
    /// Whether training pictures are decoded at full size.
    pub decode: Decode,
    /// Treatment of pictures that cannot be read.
    pub bad_pictures: BadPictures,
    /// Largest share of pictures that may be skipped.
    pub max_skipped: Share,
    /// Treatment of evaluation rows whose label was not in training.
    pub unseen_labels: UnseenLabels,
    /// Treatment of a resumed run whose pictures have changed.
    pub replaced_pictures: ReplacedPictures,
    /// How changed pictures are detected.
    pub picture_check: PictureCheck,
}

impl DataConfig {
    /// Checks ranges, which serde does not.
    pub fn validate(&self) -> Result<(), DataError> {
        self.augment.validate()?;
        self.mixing.validate()?;
        self.pair_augment.validate()?;
        if self.label.is_some() && !self.targets.is_empty() {
            let names: Vec<&str> = self.targets.iter().map(|(name, _)| name).collect();
            return Err(DataError::Setting {
                key: "targets",
                expected: "either `label` or `targets`",
                found: format!("{} beside `label`", names.join(", ")),
                hint: "leave `label` out and name it among the `targets`",
            });
        }
        self.check_segmentation()?;
        self.check_clips()?;
        let most = self.max_skipped.get();
        if !(0.0..=1.0).contains(&most) {
            return Err(DataError::Setting {
                key: "max_skipped",
                expected: "at least 0% and at most 100%",
                found: most.to_string(),
                hint: "`max_skipped: 10%`; `bad_pictures: fail` skips none",
            });
        }
        match self.validation {
            Validation::Share { share, .. } if !(share > 0.0 && share < 1.0) => {
                Err(DataError::Setting {
                    key: "validation",
                    expected: "more than 0 and less than 1",
                    found: share.to_string(),
                    hint: "`validation: 10%`, or `none`",
                })
            }
            _ => Ok(()),
        }
    }
}

impl DataConfig {
    fn check_segmentation(&self) -> Result<(), DataError> {
        let Foreground(foreground) = self.foreground;
        if !(0.0..=1.0).contains(&foreground) {
            return Err(DataError::Setting {
                key: "foreground",
                expected: "0 to 1",
                found: foreground.to_string(),
                hint: "0.33 lays every third part around a pixel of the foreground",
            });
        }
        if self.patch.is_some_and(|side| side < 8) {
            return Err(DataError::Setting {
                key: "patch",
                expected: "at least 8 pixels",
                found: self.patch.unwrap_or_default().to_string(),
                hint: "`patch: 512` trains on parts of 512 x 512 pixels",
            });
        }
        if self.image_subdir.is_some() != self.label_subdir.is_some() {
            return Err(DataError::Setting {
                key: "image_subdir",
                expected: "`image_subdir` and `label_subdir`, or neither",
                found: "one of them".to_owned(),
                hint: "name the folder of images and the folder of masks",
            });
        }
        let num_classes = self.classes.len();
        if num_classes == 1 || num_classes > MOST_CLASSES {
            return Err(DataError::Setting {
                key: "classes",
                expected: "2 to 255 names",
                found: num_classes.to_string(),
                hint: "the background is a class too: `classes: [background, vessel]`",
            });
        }
        let num_colours = self.colours.list().len();
        if num_colours == 1 || num_colours > MOST_CLASSES {
            return Err(DataError::Setting {
                key: "colours",
                expected: "2 to 255 colours",
                found: num_colours.to_string(),
                hint: "the background has a colour too: `colours: {background: \"#000000\", vessel: \"#ffffff\"}`",
            });
        }
        Ok(())
    }
}

impl Augment {
    pub fn validate(&self) -> Result<(), DataError> {
        let crop = self.crop;
        if !(crop > 0.0 && crop <= 1.0) {
            return Err(DataError::Setting {
                key: "augment.crop",
                expected: "more than 0 and at most 1",
                found: crop.to_string(),
                hint: "0.9 keeps at least nine tenths of a picture's area; 1 keeps pictures whole",
            });
        }
        for (key, spread) in [
            ("augment.brightness", self.brightness),
            ("augment.contrast", self.contrast),
            ("augment.saturation", self.saturation),
        ] {
            if !(spread >= 0.0 && spread.is_finite()) {
                return Err(DataError::Setting {
                    key,
                    expected: "0 or more",
                    found: spread.to_string(),
                    hint: "0.4 multiplies by 0.6 to 1.4; 0 leaves it alone",
                });
            }
        }
        if !(0.0..=0.5).contains(&self.hue) {
            return Err(DataError::Setting {
                key: "augment.hue",
                expected: "0 to 0.5",
                found: self.hue.to_string(),
                hint: "in turns: 0.1 turns hues by up to 36 degrees, 0.5 takes every hue; 0 leaves them alone",
            });
        }
        Ok(())
    }
}

impl DataConfig {
    /// The settings that define how files and rows become inputs, without paths and without settings of training alone.
    pub fn of_inputs(&self) -> DataConfig {
        DataConfig {
            train: None,
            validation: Validation::default(),
            image_root: None,
            tokenizer: TokenizerChoice::default(),
            // `image_size` and `patch` of a U-Net are in its config.json.
            image_size: ImageSize::default(),
            patch: None,
            foreground: Foreground::default(),
            augment: Augment::default(),
            pair_augment: PairAugment::default(),
            mixing: Mixing::default(),
            decode: Decode::default(),
            bad_pictures: BadPictures::default(),
            max_skipped: Share::default(),
            replaced_pictures: ReplacedPictures::default(),
            picture_check: PictureCheck::default(),
            ..self.clone()
        }
    }

    /// The same settings without labels, numbers and captions.
    pub fn without_targets(&self) -> DataConfig {
        DataConfig {
            caption: None,
            label: None,
            targets: NamedTargets::default(),
            ..self.clone()
        }
    }

    /// Targets by name. CLIP's label head trains on the first target with one label per picture.
    pub fn targets(&self) -> Vec<(&str, &TargetConfig)> {
        let label = self.label.iter().map(|target| (LABEL, target));
        // A model's heads are sorted by name, whatever the config's order.
        let mut targets: Vec<_> = self.targets.iter().collect();
        targets.sort_by_key(|(name, _)| *name);
        let all = label.chain(targets);
        all.filter(|(_, target)| !target.is_none()).collect()
    }
}

impl DataConfig {
    /// Name of the first target in the config with one label per picture; the validation split is stratified by it.
    pub fn leading_label(&self) -> Option<&str> {
        let label = self.label.iter().map(|target| (LABEL, target));
        let mut all = label.chain(self.targets.iter());
        let found =
            all.find(|(_, target)| matches!(target, TargetConfig::Class(_)) && !target.is_none());
        found.map(|(name, _)| name)
    }
}

/// `10%` as 0.1, or the parse error; `None` where the text does not end in `%`.
fn percentage(text: &str) -> Option<Result<f64, ParseFloatError>> {
    let number = text.strip_suffix('%')?.trim().parse::<f64>();
    Some(number.map(|percent| percent / 100.0))
}

/// Treatment of pictures that are missing or cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadPictures {
    /// Bad pictures are left out and counted.
    #[default]
    Skip,
    /// The first bad picture is an error.
    Fail,
}

/// Treatment of evaluation rows whose label was not in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnseenLabels {
    /// Every prediction for the row counts as wrong.
    #[default]
    Wrong,
    /// The rows are left out of the scores, like rows without a label.
    Skip,
    /// The first row with an unseen label is an error.
    Fail,
}

/// Treatment of a resumed run whose pictures have changed under the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplacedPictures {
    /// The run stops: its losses would differ, without a visible reason.
    #[default]
    Fail,
    /// The run prints a warning and resumes.
    Warn,
    /// Pictures are not checked.
    Ignore,
}

/// How changed pictures are detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PictureCheck {
    /// By file size and modification time, from each file's directory entry.
    #[default]
    Time,
    /// By contents: every picture is read when a run starts and when it resumes.
    Hash,
}

/// A share of all pictures: `10%` or `0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ShareKeys", into = "f64")]
pub struct Share(pub f64);

impl Share {
    /// As a fraction.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for Share {
    fn default() -> Share {
        Share(0.1)
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> f64 {
        share.0
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ShareKeys {
    Number(f64),
    Text(String),
}

impl TryFrom<ShareKeys> for Share {
    type Error = String;

    fn try_from(written: ShareKeys) -> Result<Share, String> {
        match written {
            ShareKeys::Number(share) => Ok(Share(share)),
            ShareKeys::Text(text) => match percentage(&text) {
                Some(Ok(share)) => Ok(Share(share)),
                _ => Err(format!("`{text}`: expected a share such as 10%")),
            },
        }
    }
}

/// Source of the tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum TokenizerChoice {
    /// The model folder's tokenizer; trained on the captions where the weights are random.
    #[default]
    Auto,
    /// Trained on the captions.
    Train,
    /// A `tokenizer.json`.
    File(PathBuf),
}

impl From<String> for TokenizerChoice {
    fn from(text: String) -> TokenizerChoice {
        match text.as_str() {
            "auto" => TokenizerChoice::Auto,
            "train" => TokenizerChoice::Train,
            _ => TokenizerChoice::File(text.into()),
        }
    }
}

impl From<TokenizerChoice> for String {
    fn from(choice: TokenizerChoice) -> String {
        match choice {
            TokenizerChoice::Auto => "auto".to_owned(),
            TokenizerChoice::Train => "train".to_owned(),
            TokenizerChoice::File(path) => path.display().to_string(),
        }
    }
}

/// Whether training pictures are decoded at full size. Evaluation always decodes at full size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    /// At full size, like Pillow.
    #[default]
    Full,
    /// A JPEG is decoded at a half, a quarter or an eighth of its size if the crop still has enough pixels. The pixels differ from `full`:
    /// the JPEG transform shrinks the picture instead of the resize filter.
    Fast,
}

/// Augmentation of a training picture: a function of (seed, epoch, sample) alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augment {
    /// Smallest share of a picture's area that a random crop keeps; 1 leaves pictures whole.
    pub crop: f64,
    /// Mirrors a picture with probability 1/2.
    pub flip: bool,
    /// Range of brightness: a factor in `[max(0, 1 - brightness), 1 + brightness]`.
    pub brightness: f64,
    /// Range of contrast, a factor like that of brightness.
    pub contrast: f64,
    /// Range of saturation, a factor like that of brightness.
    pub saturation: f64,
    /// Largest rotation of hues, in turns: at most 0.5, which reaches every hue.
    pub hue: f64,
}

impl Default for Augment {
    fn default() -> Augment {
        Augment {
            crop: 0.9,
            flip: false,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_pictures_are_skipped_up_to_a_share() {
        let read = |json: &str| serde_json::from_str::<DataConfig>(json);
        let config = read("{\"bad_pictures\": \"fail\", \"max_skipped\": \"2.5%\"}").unwrap();
        assert_eq!(config.bad_pictures, BadPictures::Fail);
        assert_eq!(config.max_skipped.get(), 0.025);
        assert_eq!(
            read(&serde_json::to_string(&config).unwrap()).unwrap(),
            config
        );
        assert_eq!(read("{\"max_skipped\": 1}").unwrap().max_skipped.get(), 1.0);
        assert_eq!(read("{}").unwrap().max_skipped.get(), 0.1);
        for wrong in ["\"few\"", "\"x%\"", "[1]"] {
            assert!(
                read(&format!("{{\"max_skipped\": {wrong}}}")).is_err(),
                "{wrong}"
            );
        }
        for outside in ["\"101%\"", "-0.1", "10"] {
            let config = read(&format!("{{\"max_skipped\": {outside}}}")).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains("data.max_skipped: "), "{error}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        assert!(DataConfig::default().validate().is_ok());
        let refused = |augment: Augment, key: &str| {
            let config = DataConfig {
                augment,
                ..DataConfig::default()
            };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        };
        let usual = Augment::default();
        for crop in [0.0, -1.0, 1.5, f64::NAN] {
            refused(Augment { crop, ..usual }, "data.augment.crop");
        }
        for wrong in [-0.1, f64::NAN, f64::INFINITY] {
            let brightness = Augment {
                brightness: wrong,
                ..usual
            };
            let contrast = Augment {
                contrast: wrong,
                ..usual
            };
            let saturation = Augment {
                saturation: wrong,
                ..usual
            };
            refused(brightness, "data.augment.brightness");
            refused(contrast, "data.augment.contrast");
            refused(saturation, "data.augment.saturation");
            refused(
                Augment {
                    hue: wrong,
                    ..usual
                },
                "data.augment.hue",
            );
        }
        refused(Augment { hue: 0.6, ..usual }, "data.augment.hue");
        for share in [0.0, 1.0, f64::NAN] {
            let config = DataConfig {
                validation: Validation::share(share),
                ..DataConfig::default()
            };
            assert!(config.validate().is_err());
        }
    }
}
