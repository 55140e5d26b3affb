//! A model folder's `preprocessor_config.json`: resizing and normalisation of its pictures, in the terms of `transformers`.
//!
//! ```text
//! do_resize, size, resample          both sides, or the shorter one in proportion; the filter
//! do_center_crop, crop_size          the centre crop: the model's square
//! do_rescale, rescale_factor         bytes times this
//! do_normalize, image_mean, image_std    (value - mean) / std
//! ```
//!
//! Absent keys have the defaults of the class that the file names, like in `transformers`. An unknown key or value that could change pixels
//! is an error that names it. A saved model gets the file's text unchanged, so that a trained folder means the same as the folder it was
//! trained from.

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::decode::picture::{CHANNELS, Filter, Framing, Resize};
use crate::error::DataError;

/// File of the image processor in a model folder.
pub const FILE_NAME: &str = "preprocessor_config.json";
/// Since `transformers` 5 the image processor may be in this file instead, as `image_processor`; then [`FILE_NAME`] is ignored.
const NESTING_FILE: &str = "processor_config.json";
const NESTING_KEY: &str = "image_processor";

/// Limit on the file, far above the size of any image processor.
const MOST_BYTES: u64 = 1 << 20;

/// Preprocessing of pictures for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// Resize and crop of a picture to a square of bytes.
    pub framing: Framing,
    /// Subtracted from each channel after division by 255.
    pub mean: [f32; CHANNELS],
    /// Divides each channel after the mean is subtracted.
    pub std: [f32; CHANNELS],
    /// Text of [`FILE_NAME`] in a saved model.
    text: String,
    origin: Origin,
}

/// Source of the settings.
#[derive(Clone, Debug, PartialEq)]
enum Origin {
    File(PathBuf),
    /// The model has no file; the settings are this default's.
    Default(&'static str),
}

const CLIP_MEAN: [f64; CHANNELS] = [0.48145466, 0.4578275, 0.40821073];
const CLIP_STD: [f64; CHANNELS] = [0.26862954, 0.26130258, 0.27577711];

impl ImageProcessor {
    /// OpenAI's CLIP preprocessing, for pictures of this side.
    pub fn clip(size: u32) -> ImageProcessor {
        let json = json!({
            "image_processor_type": "CLIPImageProcessor",
            "do_convert_rgb": true,
            "do_resize": true,
            "size": {"shortest_edge": size},
            "resample": 3,
            "do_center_crop": true,
            "crop_size": {"height": size, "width": size},
            "do_rescale": true,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": CLIP_MEAN,
            "image_std": CLIP_STD,
        });
        ImageProcessor {
            framing: Framing::clip(size),
            mean: CLIP_MEAN.map(|mean| mean as f32),
            std: CLIP_STD.map(|std| std as f32),
            text: format!("{json:#}\n"),
            origin: Origin::Default("OpenAI"),
        }
    }

    /// Preprocessing of vision transformers, for pictures of this side: both sides resized to it, mean and deviation one half.
    pub fn vit(size: u32) -> ImageProcessor {
        let half = [0.5; CHANNELS];
        let json = json!({
            "image_processor_type": "ViTImageProcessor",
            "do_resize": true,
            "size": {"height": size, "width": size},
            "resample": 2,
            "do_rescale": true,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": half,
            "image_std": half,
        });
        ImageProcessor {
            framing: Framing {
                size,
                resize: Resize::Exactly {
                    width: size,
                    height: size,
                },
                filter: Filter::Bilinear,
            },
            mean: half,
            std: half,
            text: format!("{json:#}\n"),
            origin: Origin::Default("ViT"),
        }
    }

    /// Reads the file of a model folder; without a file, OpenAI's CLIP preprocessing. `size` is the side of the model's pictures.
    pub fn read(folder: &Path, size: u32) -> Result<ImageProcessor, DataError> {
        ImageProcessor::read_or(folder, size, ImageProcessor::clip)
    }

    /// Reads the file of a model folder, or returns the `default` without a file.
    pub fn read_or(
        folder: &Path,
        size: u32,
        default: fn(u32) -> ImageProcessor,
    ) -> Result<ImageProcessor, DataError> {
        let nesting = folder.join(NESTING_FILE);
        if let Some((_, Value::Object(mut entries))) = read_json(&nesting)?
            && let Some(nested) = entries.remove(NESTING_KEY)
            && !nested.is_null()
        {
            let text = format!("{nested:#}\n");
            return ImageProcessor::from_json(&nesting, &nested, text, size);
        }
        let file = folder.join(FILE_NAME);
        match read_json(&file)? {
            Some((text, json)) => ImageProcessor::from_json(&file, &json, text, size),
            None => Ok(default(size)),
        }
    }

    fn from_json(
        file: &Path,
        json: &Value,
        text: String,
        size: u32,
    ) -> Result<ImageProcessor, DataError> {
        let Value::Object(keys) = json else {
            return Err(not_an_object(file, &shown(json)));
        };
        let keys = Keys { file, keys };
        let kind = keys.kind()?;
        keys.refuse_unknown()?;
        let framing = keys.framing(kind, size)?;
        let (mean, std) = keys.normalization(kind)?;
        Ok(ImageProcessor {
            framing,
            mean,
            std,
            text,
            origin: Origin::File(file.to_owned()),
        })
    }

    /// Text of [`FILE_NAME`] for a saved model: the text that was read, unchanged.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Text for a run's digest; `None` for OpenAI's settings, which the digest leaves out for compatibility with runs from before folders
    /// could have their own.
    pub fn digest_text(&self) -> Option<String> {
        let clip = ImageProcessor::clip(self.framing.size);
        let of = |processor: &ImageProcessor| {
            format!(
                "{:?} {:?} {:?}",
                processor.framing, processor.mean, processor.std
            )
        };
        (of(self) != of(&clip)).then(|| of(self))
    }

    /// Line for the log: the preprocessing and its source.
    pub fn describe(&self) -> String {
        let Framing {
            size,
            resize,
            filter,
        } = self.framing;
        let resized = match resize {
            Resize::Shorter(side) => format!("shorter side to {side}"),
            Resize::Exactly { width, height } => format!("to {width} x {height}"),
        };
        let numbers = |values: [f32; CHANNELS]| values.map(|value| format!("{value:.4}")).join(" ");
        let by = match &self.origin {
            Origin::File(file) => file.display().to_string(),
            Origin::Default(whose) => format!("{whose}'s numbers: the model has no {FILE_NAME}"),
        };
        format!(
            "Pictures: {resized} ({}), middle {size} x {size}, mean {}, std {} ({by})",
            filter.name(),
            numbers(self.mean),
            numbers(self.std)
        )
    }
}

/// Class whose defaults apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Clip,
    Vit,
    Deit,
}

/// Class names, old and new. DINOv2 uses Bit's class, whose defaults are CLIP's.
const CLASSES: [(&str, Class); 15] = [
    ("CLIPImageProcessor", Class::Clip),
    ("CLIPImageProcessorFast", Class::Clip),
    ("CLIPImageProcessorPil", Class::Clip),
    ("CLIPFeatureExtractor", Class::Clip),
    ("ViTImageProcessor", Class::Vit),
    ("ViTImageProcessorFast", Class::Vit),
    ("ViTImageProcessorPil", Class::Vit),
    ("ViTFeatureExtractor", Class::Vit),
    ("DeiTImageProcessor", Class::Deit),
    ("DeiTImageProcessorFast", Class::Deit),
    ("DeiTImageProcessorPil", Class::Deit),
    ("DeiTFeatureExtractor", Class::Deit),
    ("BitImageProcessor", Class::Clip),
    ("BitImageProcessorFast", Class::Clip),
    ("BitImageProcessorPil", Class::Clip),
];

/// Keys that affect pixels.
const USED: [&str; 12] = [
    "image_processor_type",
    "feature_extractor_type",
    "do_resize",
    "size",
    "resample",
    "do_center_crop",
    "crop_size",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
];

/// Keys that do not affect pixels: format and device of arrays. Pictures are always converted to RGB.
const HARMLESS: [&str; 13] = [
    "_processor_class",
    "_valid_processor_keys",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "image_seq_length",
    "input_data_format",
    "pad_size",
    "processor_class",
    "return_tensors",
    "transformers_version",
];

const ASK_TRANSFORMERS: &str =
    "resize and normalise the pictures yourself, or save the folder with a CLIPImageProcessor";

struct Keys<'a> {
    file: &'a Path,
    keys: &'a Map<String, Value>,
}

impl Keys<'_> {
    /// Value of a key; `None` if it is absent or `null`.
    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str, found: &str, hint: &'static str) -> DataError {
        let place = format!("{}: {key}", self.file.display());
        DataError::invalid(place, expected, found, hint)
    }

    fn kind(&self) -> Result<Class, DataError> {
        for key in ["image_processor_type", "feature_extractor_type"] {
            let Some(value) = self.get(key) else {
                continue;
            };
            let known = CLASSES.iter().find(|(name, _)| value == name);
            let expected =
                "CLIPImageProcessor, ViTImageProcessor, DeiTImageProcessor or BitImageProcessor";
            return known
                .map(|(_, kind)| *kind)
                .ok_or_else(|| self.wrong(key, expected, &shown(value), ASK_TRANSFORMERS));
        }
        Ok(Class::Clip)
    }

    /// A key that is `null` or `false` changes no pixels, whatever its name.
    fn refuse_unknown(&self) -> Result<(), DataError> {
        let is_known = |key: &str| USED.contains(&key) || HARMLESS.contains(&key);
        let says_nothing = |value: &Value| value.is_null() || *value == Value::Bool(false);
        for (key, value) in self.keys {
            if !is_known(key) && !says_nothing(value) {
                return Err(self.wrong(
                    key,
                    "a key of CLIPImageProcessor or ViTImageProcessor",
                    &shown(value),
                    "remove the key if it changes no pixels",
                ));
            }
        }
        Ok(())
    }

    /// `null` is false, like in Python.
    fn flag(&self, key: &str, default: bool) -> Result<bool, DataError> {
        match self.keys.get(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => {
                Err(self.wrong(key, "true or false", &shown(other), "write true or false"))
            }
        }
    }

    /// Resize, filter and crop.
    fn framing(&self, kind: Class, size: u32) -> Result<Framing, DataError> {
        if !self.flag("do_resize", true)? {
            let hint =
                "pictures of other sizes would have to be padded; write true, or resize by hand";
            return Err(self.wrong("do_resize", "true", "false", hint));
        }
        let filter = self.filter(kind)?;
        let resize = self.resize(kind)?;
        if self.flag("do_center_crop", kind != Class::Vit)? {
            self.check_crop(size)?;
        } else if resize
            != (Resize::Exactly {
                width: size,
                height: size,
            })
        {
            let expected =
                format!("true, or a `size` of {size} x {size}, as the model's image_size is");
            let found = match self.keys.get("do_center_crop") {
                Some(value) => shown(value),
                None => "nothing".to_owned(),
            };
            let hint = "the model takes squares of one size only";
            return Err(self.wrong("do_center_crop", &expected, &found, hint));
        }
        let is_small = match resize {
            Resize::Shorter(side) => side < size,
            Resize::Exactly { width, height } => width.min(height) < size,
        };
        if is_small {
            let expected = format!("at least {size}, the model's image_size");
            let found = self.get("size").map_or("224".to_owned(), shown);
            let hint = "a smaller picture would have to be padded to the model's square";
            return Err(self.wrong("size", &expected, &found, hint));
        }
        Ok(Framing {
            size,
            resize,
            filter,
        })
    }

    fn filter(&self, kind: Class) -> Result<Filter, DataError> {
        let Some(value) = self.get("resample") else {
            return Ok(match kind {
                Class::Clip | Class::Deit => Filter::Bicubic,
                Class::Vit => Filter::Bilinear,
            });
        };
        Ok(match value.as_u64() {
            Some(0) => Filter::Nearest,
            Some(1) => Filter::Lanczos,
            Some(2) => Filter::Bilinear,
            Some(3) => Filter::Bicubic,
            Some(4) => Filter::Box,
            Some(5) => Filter::Hamming,
            _ => {
                let expected = "0 nearest, 1 lanczos, 2 bilinear, 3 bicubic, 4 box or 5 hamming, Pillow's numbers";
                let hint = "CLIP's is 3";
                return Err(self.wrong("resample", expected, &shown(value), hint));
            }
        })
    }

    fn resize(&self, kind: Class) -> Result<Resize, DataError> {
        let exactly = |[height, width]: [u32; 2]| Resize::Exactly { width, height };
        let Some(value) = self.get("size") else {
            return Ok(match kind {
                Class::Clip => Resize::Shorter(224),
                Class::Vit => exactly([224; 2]),
                Class::Deit => exactly([256; 2]),
            });
        };
        let read = match value {
            Value::Object(sides) if sides.values().filter(|side| !side.is_null()).count() == 1 => {
                sides
                    .get("shortest_edge")
                    .and_then(side)
                    .map(Resize::Shorter)
            }
            Value::Number(_) => side(value).map(|side| match kind {
                Class::Clip => Resize::Shorter(side),
                Class::Vit | Class::Deit => exactly([side; 2]),
            }),
            _ => two_sides(value).map(exactly),
        };
        read.ok_or_else(|| {
            let expected = "{\"shortest_edge\": PIXELS} or {\"height\": PIXELS, \"width\": PIXELS}";
            self.wrong(
                "size",
                expected,
                &shown(value),
                "CLIP's is {\"shortest_edge\": 224}",
            )
        })
    }

    /// Checks that the centre crop is the model's square.
    fn check_crop(&self, size: u32) -> Result<(), DataError> {
        let value = self.get("crop_size");
        let read = match value {
            None => Some([224; 2]),
            Some(value @ Value::Number(_)) => side(value).map(|side| [side; 2]),
            Some(value) => two_sides(value),
        };
        if read == Some([size; 2]) {
            return Ok(());
        }
        let expected =
            format!("{{\"height\": {size}, \"width\": {size}}}, as image_size of config.json says");
        let found = value.map_or("nothing, which means 224".to_owned(), shown);
        let hint = "one of the two files belongs to another model";
        Err(self.wrong("crop_size", &expected, &found, hint))
    }

    /// Rescaling and normalisation combined: `(byte / 255 - mean) / std`.
    fn normalization(&self, kind: Class) -> Result<([f32; CHANNELS], [f32; CHANNELS]), DataError> {
        let factor = match (self.flag("do_rescale", true)?, self.get("rescale_factor")) {
            (false, _) => 1.0,
            (true, None) => 1.0 / 255.0,
            (true, Some(value)) => {
                let factor = value.as_f64().filter(|factor| *factor > 0.0);
                factor.ok_or_else(|| {
                    let found = shown(value);
                    self.wrong(
                        "rescale_factor",
                        "a number above 0",
                        &found,
                        "CLIP's is 1/255",
                    )
                })?
            }
        };
        let (mean, std) = match (self.flag("do_normalize", true)?, kind) {
            (false, _) => ([0.0; CHANNELS], [1.0; CHANNELS]),
            (true, Class::Clip) => (
                self.channels("image_mean", CLIP_MEAN)?,
                self.channels("image_std", CLIP_STD)?,
            ),
            (true, Class::Vit | Class::Deit) => (
                self.channels("image_mean", [0.5; CHANNELS])?,
                self.channels("image_std", [0.5; CHANNELS])?,
            ),
        };
        if std.iter().any(|std| *std <= 0.0) {
            let found = self.get("image_std").map_or(String::new(), shown);
            let hint = "pictures are divided by them";
            return Err(self.wrong("image_std", "numbers above 0", &found, hint));
        }
        // (byte x factor - mean) / std = (byte / 255 - mean x part) / (std x part); part is usually 1, and then the numbers keep every bit.
        let part = match 1.0 / (255.0 * factor) {
            part if (part - 1.0).abs() < 1e-6 => 1.0,
            part => part,
        };
        let scaled = |values: [f64; CHANNELS]| values.map(|value| (value * part) as f32);
        Ok((scaled(mean), scaled(std)))
    }

    fn channels(&self, key: &str, default: [f64; CHANNELS]) -> Result<[f64; CHANNELS], DataError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        let read: Option<Vec<f64>> = match value {
            Value::Array(values) => values.iter().map(Value::as_f64).collect(),
            other => other.as_f64().map(|same| vec![same; CHANNELS]),
        };
        let read = read.and_then(|values| <[f64; CHANNELS]>::try_from(values).ok());
        read.ok_or_else(|| {
            let hint = "one for red, one for green, one for blue";
            self.wrong(key, "three numbers", &shown(value), hint)
        })
    }
}

/// A side in pixels.
fn side(value: &Value) -> Option<u32> {
    let side = value.as_u64().and_then(|side| u32::try_from(side).ok());
    side.filter(|side| (1..=1 << 16).contains(side))
}

/// Height and width, by name or as a list.
fn two_sides(value: &Value) -> Option<[u32; 2]> {
    let [height, width] = match value {
        Value::Array(sides) => [sides.first()?, sides.get(1).filter(|_| sides.len() == 2)?],
        Value::Object(sides) => {
            let num_said = sides.values().filter(|side| !side.is_null()).count();
            [
                sides.get("height")?,
                sides.get("width").filter(|_| num_said == 2)?,
            ]
        }
        _ => return None,
    };
    Some([side(height)?, side(width)?])
}

/// A file's text and its parsed JSON; `None` if the file does not exist.
fn read_json(file: &Path) -> Result<Option<(String, Value)>, DataError> {
    let bytes = match holdall_files::read_regular(file, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => {
            return Err(DataError::Io {
                path: file.to_owned(),
                action: "read it",
                cause,
            });
        }
    };
    let text =
        String::from_utf8(bytes).map_err(|_| not_an_object(file, "bytes that are no text"))?;
    let json =
        serde_json::from_str(&text).map_err(|cause| not_an_object(file, &cause.to_string()))?;
    Ok(Some((text, json)))
}

fn not_an_object(file: &Path, found: &str) -> DataError {
    DataError::invalid(
        format_args!("{}: the file", file.display()),
        "a JSON object",
        found,
        "copy it again from where the model came from",
    )
}

/// A value's JSON, shortened for a message.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}
