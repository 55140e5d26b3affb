//! The `data` section of a config.

use std::num::ParseFloatError;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// Which files, and which of their columns mean what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A CSV, or a folder that holds one.
    pub train: Option<PathBuf>,
    /// What is held out.
    pub validation: Validation,
    /// Where image paths start; the CSV's folder by default.
    pub image_root: Option<PathBuf>,
    /// Column of image paths; found by its usual names by default.
    pub image: Option<String>,
    /// A column, or a template over columns: `a photo of a {year} {make}`.
    pub caption: Option<String>,
    /// Column of labels; nothing, or `none`, leaves the label head out.
    pub label: Option<String>,
    /// Where token ids come from.
    pub tokenizer: TokenizerChoice,
    /// What training pictures go through.
    pub augment: Augment,
    /// How much of a training picture is decoded.
    pub decode: Decode,
    /// What becomes of pictures that cannot be read.
    pub bad_pictures: BadPictures,
    /// The share of all pictures that may be skipped.
    pub max_skipped: MaxSkipped,
    /// What becomes of a run that goes on with other pictures under the same names.
    pub replaced_pictures: ReplacedPictures,
    /// What such pictures are told by.
    pub picture_check: PictureCheck,
}

impl DataConfig {
    /// Checks what serde cannot: ranges.
    pub fn validate(&self) -> Result<(), DataError> {
        self.augment.validate()?;
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
            Validation::Fraction(share) if !(share > 0.0 && share < 1.0) => {
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

impl Augment {
    /// Checks ranges.
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
    /// The column of labels, if there is to be one.
    pub fn label_column(&self) -> Option<&str> {
        self.label.as_deref().filter(|name| *name != "none")
    }
}

/// What is held out for validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenValidation", into = "WrittenValidation")]
pub enum Validation {
    /// This share of the rows, stratified by label.
    Fraction(f64),
    /// Another CSV.
    File(PathBuf),
    /// Rows that say so: `train`, or `validation`, `val`, `valid`, `test`.
    Column(String),
    /// Nothing.
    None,
}

impl Default for Validation {
    fn default() -> Validation {
        Validation::Fraction(0.1)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenValidation {
    Number(f64),
    Text(String),
    Column { column: String },
}

impl TryFrom<WrittenValidation> for Validation {
    type Error = String;

    fn try_from(written: WrittenValidation) -> Result<Validation, String> {
        let fraction = |share: f64, text: &str| {
            if share > 0.0 && share < 1.0 {
                Ok(Validation::Fraction(share))
            } else {
                Err(format!(
                    "validation `{text}`: expected more than 0% and less than 100%, or `none`"
                ))
            }
        };
        match written {
            WrittenValidation::Number(share) => fraction(share, &share.to_string()),
            WrittenValidation::Column { column } => Ok(Validation::Column(column)),
            WrittenValidation::Text(text) if text == "none" => Ok(Validation::None),
            WrittenValidation::Text(text) => match percentage(&text) {
                Some(Ok(share)) => fraction(share, &text),
                Some(Err(_)) => Err(format!(
                    "validation `{text}`: expected a share such as 10%, a CSV, {{column: split}} or none"
                )),
                None => Ok(Validation::File(text.into())),
            },
        }
    }
}

impl From<Validation> for WrittenValidation {
    fn from(validation: Validation) -> WrittenValidation {
        match validation {
            Validation::Fraction(share) => WrittenValidation::Number(share),
            Validation::File(path) => WrittenValidation::Text(path.display().to_string()),
            Validation::Column(column) => WrittenValidation::Column { column },
            Validation::None => WrittenValidation::Text("none".to_owned()),
        }
    }
}

/// `10%` as 0.1, or why it is none; nothing where the text does not end in `%`.
fn percentage(text: &str) -> Option<Result<f64, ParseFloatError>> {
    let number = text.strip_suffix('%')?.trim().parse::<f64>();
    Some(number.map(|percent| percent / 100.0))
}

/// What becomes of pictures that are missing or cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadPictures {
    /// They are left out and counted.
    #[default]
    Skip,
    /// The first one is an error.
    Fail,
}

/// What becomes of a run that goes on and finds other pictures under the names that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplacedPictures {
    /// It does not go on: its losses would be others, and nothing would say why.
    #[default]
    Fail,
    /// It says so and goes on.
    Warn,
    /// Nobody looks.
    Ignore,
}

/// What pictures are recognised by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PictureCheck {
    /// Size and time of change: a look at each file's entry.
    #[default]
    Time,
    /// The contents: every picture is read when a run begins and when it goes on.
    Hash,
}

/// The share of all pictures that may be skipped before it is an error: `10%` or `0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenShare", into = "f64")]
pub struct MaxSkipped(pub f64);

impl MaxSkipped {
    /// As a fraction.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for MaxSkipped {
    fn default() -> MaxSkipped {
        MaxSkipped(0.1)
    }
}

impl From<MaxSkipped> for f64 {
    fn from(share: MaxSkipped) -> f64 {
        share.0
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenShare {
    Number(f64),
    Text(String),
}

impl TryFrom<WrittenShare> for MaxSkipped {
    type Error = String;

    fn try_from(written: WrittenShare) -> Result<MaxSkipped, String> {
        match written {
            WrittenShare::Number(share) => Ok(MaxSkipped(share)),
            WrittenShare::Text(text) => match percentage(&text) {
                Some(Ok(share)) => Ok(MaxSkipped(share)),
                _ => Err(format!(
                    "max_skipped `{text}`: expected a share such as 10%"
                )),
            },
        }
    }
}

/// Where token ids come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum TokenizerChoice {
    /// The model folder's; trained on the captions where the weights are random.
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

/// How much of a training picture is decoded. Evaluation decodes all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    /// All of it, as Pillow does.
    #[default]
    Full,
    /// A JPEG at a half, a quarter or an eighth of its size, where the part that is kept has enough pixels even so. Other
    /// pixels than `full`: the transform shrinks the picture instead of the filter.
    Fast,
}

/// What a training picture goes through: a function of (seed, epoch, sample) alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augment {
    /// Smallest share of a picture's area that a random crop keeps; 1 leaves pictures whole.
    pub crop: f64,
    /// Mirror every second picture.
    pub flip: bool,
    /// How far brightness strays: a factor in `[max(0, 1 - brightness), 1 + brightness]`.
    pub brightness: f64,
    /// How far contrast strays, likewise.
    pub contrast: f64,
    /// How far saturation strays, likewise.
    pub saturation: f64,
    /// How far hues turn, in turns: at most a half, which is every hue.
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
    fn validation_is_written_in_four_ways() {
        let read = |json: &str| serde_json::from_str::<Validation>(json);
        assert_eq!(read("\"10%\"").unwrap(), Validation::Fraction(0.1));
        assert_eq!(read("0.25").unwrap(), Validation::Fraction(0.25));
        assert_eq!(read("\"none\"").unwrap(), Validation::None);
        assert_eq!(
            read("\"val.csv\"").unwrap(),
            Validation::File("val.csv".into())
        );
        let column = Validation::Column("split".to_owned());
        assert_eq!(read("{\"column\": \"split\"}").unwrap(), column);
        for wrong in ["0", "1.5", "\"0%\"", "\"x%\""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

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
                validation: Validation::Fraction(share),
                ..DataConfig::default()
            };
            assert!(config.validate().is_err());
        }
    }
}
