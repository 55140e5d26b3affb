//! Keys of the `data` section for clips: frames per clip, clips per sample, and the separator of a CSV.

use serde::{Deserialize, Serialize};

use super::DataConfig;
use crate::error::DataError;

/// Largest accepted `frames`.
const MOST_FRAMES: u32 = 1024;
/// Largest accepted `num_videos`.
const MOST_VIDEOS: u32 = 64;

/// Distance between sampled frames: `stride: 2`, or `stride: spread`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StrideKeys", into = "StrideKeys")]
pub enum Stride {
    /// Evenly over the whole clip, its first and last frame included: `linspace(0, num_frames - 1, frames)`, rounded down.
    #[default]
    Spread,
    /// Every n-th frame, beginning at the [`ClipStart`].
    Every(u32),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StrideKeys {
    Number(u32),
    Text(String),
}

impl TryFrom<StrideKeys> for Stride {
    type Error = String;

    fn try_from(keys: StrideKeys) -> Result<Stride, String> {
        match keys {
            StrideKeys::Number(stride) if stride > 0 => Ok(Stride::Every(stride)),
            StrideKeys::Text(text) if text == "spread" => Ok(Stride::Spread),
            StrideKeys::Number(stride) => Err(format!(
                "stride `{stride}`: expected 1, a larger number or `spread`"
            )),
            StrideKeys::Text(text) => Err(format!(
                "stride `{text}`: expected 1, a larger number or `spread`"
            )),
        }
    }
}

impl From<Stride> for StrideKeys {
    fn from(stride: Stride) -> StrideKeys {
        match stride {
            Stride::Spread => StrideKeys::Text("spread".to_owned()),
            Stride::Every(stride) => StrideKeys::Number(stride),
        }
    }
}

/// First sampled frame in training, for a clip longer than the sampled span. Evaluation takes the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClipStart {
    /// Random: a function of (seed, epoch, sample).
    #[default]
    Random,
    /// The sampled span is in the middle of the clip.
    #[serde(alias = "center", alias = "centre", alias = "centered")]
    Centred,
}

/// Treatment of clips with fewer frames than are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShortClips {
    /// The last frame is repeated.
    #[default]
    Repeat,
    /// Missing frames are masked out of pooling and attention.
    Mask,
}

/// Separator of a CSV's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Separator {
    Comma,
    Semicolon,
    Tab,
    Bar,
    Alpha,
}

impl Separator {
    /// All separators; where a header has equally many of two, the earlier in this list is used.
    pub const ALL: [Separator; 5] = [
        Separator::Comma,
        Separator::Semicolon,
        Separator::Tab,
        Separator::Bar,
        Separator::Alpha,
    ];

    /// The separator's text in a file.
    pub fn text(self) -> &'static str {
        match self {
            Separator::Comma => ",",
            Separator::Semicolon => ";",
            Separator::Tab => "\t",
            Separator::Bar => "|",
            Separator::Alpha => "α",
        }
    }

    /// The separator's name in messages.
    pub fn words(self) -> &'static str {
        match self {
            Separator::Comma => "commas",
            Separator::Semicolon => "semicolons",
            Separator::Tab => "tabs",
            Separator::Bar => "`|`",
            Separator::Alpha => "`α`",
        }
    }
}

impl TryFrom<String> for Separator {
    type Error = String;

    fn try_from(text: String) -> Result<Separator, String> {
        let named = match text.as_str() {
            "tab" | "\\t" => Some(Separator::Tab),
            "comma" => Some(Separator::Comma),
            "semicolon" => Some(Separator::Semicolon),
            "alpha" => Some(Separator::Alpha),
            _ => Separator::ALL
                .into_iter()
                .find(|separator| separator.text() == text),
        };
        named.ok_or_else(|| format!("separator `{text}`: expected `,`, `;`, `tab`, `|` or `α`"))
    }
}

impl From<Separator> for String {
    fn from(separator: Separator) -> String {
        match separator {
            Separator::Tab => "tab".to_owned(),
            _ => separator.text().to_owned(),
        }
    }
}

impl DataConfig {
    /// Clips per sample: 1 without a `group`.
    pub fn num_videos(&self) -> usize {
        self.num_videos.unwrap_or(1) as usize
    }

    pub(super) fn check_clips(&self) -> Result<(), DataError> {
        if self
            .frames
            .is_some_and(|frames| !(1..=MOST_FRAMES).contains(&frames))
        {
            return Err(DataError::Setting {
                key: "frames",
                expected: "1 to 1024",
                found: self.frames.unwrap_or_default().to_string(),
                hint: "`frames: 8` sees eight frames of each clip",
            });
        }
        if let Some(num_videos) = self.num_videos
            && !(1..=MOST_VIDEOS).contains(&num_videos)
        {
            return Err(DataError::Setting {
                key: "num_videos",
                expected: "1 to 64",
                found: num_videos.to_string(),
                hint: "`group: COLUMN` and `num_videos: 4` make a sample of up to four clips",
            });
        }
        match (&self.group, self.num_videos) {
            (None, Some(num_videos)) if num_videos > 1 => Err(DataError::Setting {
                key: "num_videos",
                expected: "1, or a `group` beside it",
                found: num_videos.to_string(),
                hint: "name the column whose rows of equal value are one sample: `group: COLUMN`",
            }),
            (Some(group), None) => Err(DataError::Setting {
                key: "group",
                expected: "`num_videos` beside it",
                found: format!("`{group}` alone"),
                hint: "`num_videos: 4` takes up to four clips of a group for one sample",
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_and_separators_are_written_as_they_are_read() {
        let read = |json: &str| serde_json::from_str::<DataConfig>(json);
        let config = read(
            r#"{"stride": 2, "separator": "α", "start": "centred", "short_clips": "mask", "frames": 8}"#,
        )
        .unwrap();
        assert_eq!(config.stride, Stride::Every(2));
        assert_eq!(config.separator, Some(Separator::Alpha));
        assert_eq!(config.start, ClipStart::Centred);
        assert_eq!(config.short_clips, ShortClips::Mask);
        let again = serde_json::to_string(&config).unwrap();
        assert_eq!(read(&again).unwrap(), config);
        assert_eq!(
            read("{\"stride\": \"spread\"}").unwrap().stride,
            Stride::Spread
        );
        assert_eq!(
            read("{\"separator\": \"tab\"}").unwrap().separator,
            Some(Separator::Tab)
        );
        for wrong in [
            r#"{"stride": 0}"#,
            r#"{"stride": "x"}"#,
            r#"{"separator": ":"}"#,
            r#"{"start": "left"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for (outside, key) in [
            (r#"{"frames": 0}"#, "data.frames"),
            (r#"{"num_videos": 3}"#, "data.num_videos"),
            (r#"{"group": "study", "num_videos": 65}"#, "data.num_videos"),
            (r#"{"group": "study"}"#, "data.group"),
        ] {
            let error = read(outside).unwrap().validate().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
