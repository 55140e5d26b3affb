//! Keys of the `data` section for segmentation sets.

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Limit of the number of classes: value 255 is not counted.
pub(crate) const MOST_CLASSES: usize = u8::MAX as usize;

/// Whether pixels outside of the field of view count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FieldOfViewChoice {
    /// They are ignored if the set has fields of view.
    #[default]
    Auto,
    /// All pixels count.
    None,
    /// They are ignored; this folder, or this column of a CSV, has the fields of view.
    Named(String),
}

impl From<String> for FieldOfViewChoice {
    fn from(text: String) -> FieldOfViewChoice {
        match text.as_str() {
            "auto" => FieldOfViewChoice::Auto,
            "none" => FieldOfViewChoice::None,
            _ => FieldOfViewChoice::Named(text),
        }
    }
}

impl From<FieldOfViewChoice> for String {
    fn from(choice: FieldOfViewChoice) -> String {
        match choice {
            FieldOfViewChoice::Auto => "auto".to_owned(),
            FieldOfViewChoice::None => "none".to_owned(),
            FieldOfViewChoice::Named(name) => name,
        }
    }
}

/// Size that pictures of a segmentation set are resized to: `1024`, `[584, 565]` (height, width), `none` or `auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ImageSizeKeys", into = "ImageSizeKeys")]
pub enum ImageSize {
    /// A size that suits the model.
    #[default]
    Auto,
    /// Pictures are not resized, but padded to one size.
    None,
    Exactly {
        height: u32,
        width: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ImageSizeKeys {
    Side(u32),
    Sides([u32; 2]),
    Word(String),
}

impl TryFrom<ImageSizeKeys> for ImageSize {
    type Error = String;

    fn try_from(keys: ImageSizeKeys) -> Result<ImageSize, String> {
        let [height, width] = match keys {
            ImageSizeKeys::Word(word) => {
                return match word.as_str() {
                    "auto" => Ok(ImageSize::Auto),
                    "none" => Ok(ImageSize::None),
                    _ => Err(format!(
                        "image_size `{word}`: expected pixels such as 1024 or [584, 565], `none` or `auto`"
                    )),
                };
            }
            ImageSizeKeys::Side(side) => [side; 2],
            ImageSizeKeys::Sides(sides) => sides,
        };
        if (8..=1 << 16).contains(&height) && (8..=1 << 16).contains(&width) {
            Ok(ImageSize::Exactly { height, width })
        } else {
            Err(format!(
                "image_size {height} x {width}: expected at least 8 and at most 65536 pixels"
            ))
        }
    }
}

impl From<ImageSize> for ImageSizeKeys {
    fn from(size: ImageSize) -> ImageSizeKeys {
        match size {
            ImageSize::Auto => ImageSizeKeys::Word("auto".to_owned()),
            ImageSize::None => ImageSizeKeys::Word("none".to_owned()),
            ImageSize::Exactly { height, width } if height == width => ImageSizeKeys::Side(height),
            ImageSize::Exactly { height, width } => ImageSizeKeys::Sides([height, width]),
        }
    }
}

/// Share of patches that are placed around the foreground.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Foreground(pub f64);

impl Default for Foreground {
    /// nnU-Net's share.
    fn default() -> Foreground {
        Foreground(0.33)
    }
}

/// Colour of each class, in the order of the config: `"#ff0000"` or `[255, 0, 0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassColours(Vec<(String, [u8; 3])>);

impl ClassColours {
    pub fn new(colours: Vec<(String, [u8; 3])>) -> ClassColours {
        ClassColours(colours)
    }

    pub fn list(&self) -> Vec<(String, [u8; 3])> {
        self.0.clone()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ColourKeys {
    Numbers([u8; 3]),
    Text(String),
}

impl ColourKeys {
    fn colour(self) -> Option<[u8; 3]> {
        let text = match self {
            ColourKeys::Numbers(colour) => return Some(colour),
            ColourKeys::Text(text) => text,
        };
        let digits = text.strip_prefix('#').unwrap_or(&text);
        let is_colour = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_colour)?;
        let [_, r, g, b] = number.to_be_bytes();
        Some([r, g, b])
    }
}

impl Serialize for ClassColours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, [r, g, b]) in &self.0 {
            map.serialize_entry(name, &format!("#{r:02x}{g:02x}{b:02x}"))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ClassColours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClassColours, D::Error> {
        deserializer.deserialize_map(ColoursVisitor)
    }
}

struct ColoursVisitor;

impl<'de> Visitor<'de> for ColoursVisitor {
    type Value = ClassColours;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(
            "a colour for each class, such as {background: \"#000000\", vessel: \"#ff0000\"}",
        )
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<ClassColours, M::Error> {
        let mut colours: Vec<(String, [u8; 3])> = Vec::new();
        while let Some((name, keys)) = map.next_entry::<String, ColourKeys>()? {
            let colour = keys.colour().ok_or_else(|| {
                M::Error::custom(format!(
                    "colour of `{name}`: expected \"#rrggbb\" or [r, g, b]"
                ))
            })?;
            if let Some((other, _)) = colours.iter().find(|(_, known)| *known == colour) {
                return Err(M::Error::custom(format!(
                    "`{other}` and `{name}` have the same colour"
                )));
            }
            colours.push((name, colour));
        }
        Ok(ClassColours(colours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_written_back() {
        let size = |json: &str| serde_json::from_str::<ImageSize>(json);
        let exactly = |height, width| ImageSize::Exactly { height, width };
        for (json, expected) in [
            ("1024", exactly(1024, 1024)),
            ("[584,565]", exactly(584, 565)),
            ("\"none\"", ImageSize::None),
            ("\"auto\"", ImageSize::Auto),
        ] {
            assert_eq!(size(json).unwrap(), expected);
            assert_eq!(serde_json::to_string(&expected).unwrap(), json);
        }
        for wrong in ["0", "\"large\"", "[1,2,3]", "[4,512]"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        let json = r##"{"background":"#000000","vessel":"#ff0010"}"##;
        let colours: ClassColours = serde_json::from_str(json).unwrap();
        assert_eq!(colours.list()[1], ("vessel".to_owned(), [255, 0, 16]));
        assert_eq!(serde_json::to_string(&colours).unwrap(), json);
        let numbers = r#"{"background":[0,0,0],"vessel":[255,0,16]}"#;
        assert_eq!(
            serde_json::from_str::<ClassColours>(numbers).unwrap(),
            colours
        );
        for wrong in [r##"{"a":"#12"}"##, r##"{"a":"#000000","b":[0,0,0]}"##, "[]"] {
            assert!(
                serde_json::from_str::<ClassColours>(wrong).is_err(),
                "{wrong}"
            );
        }
    }
}
