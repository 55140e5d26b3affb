//! Values that are a word or a number: `auto`, `epoch`, `5%`, `none`, `500`.
//!
//! One visitor takes whatever was written, so that each type can say in its own words what it expected.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A scalar as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    /// A whole number of at least 0.
    Whole(u64),
    /// Any other number.
    Real(f64),
    /// A word.
    Word(String),
    /// Nothing, `null` or `~`.
    Nothing,
}

impl Written {
    /// `None` for what is not a count that fits this machine.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            Written::Whole(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self, Written::Word(written) if written == word)
    }

    /// The complaint: what was found, what was expected.
    pub(super) fn instead_of(&self, expected: &str) -> String {
        format!("`{self}`, expected {expected}")
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Written::Whole(number) => write!(f, "{number}"),
            Written::Real(number) => write!(f, "{number:?}"),
            Written::Word(word) => f.write_str(word),
            Written::Nothing => f.write_str("null"),
        }
    }
}

impl Serialize for Written {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Written::Whole(number) => serializer.serialize_u64(*number),
            Written::Real(number) => serializer.serialize_f64(*number),
            Written::Word(word) => serializer.serialize_str(word),
            Written::Nothing => serializer.serialize_unit(),
        }
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Written, D::Error> {
        struct WrittenVisitor;

        impl Visitor<'_> for WrittenVisitor {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a word or a number")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Written, E> {
                Ok(Written::Whole(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Written, E> {
                Ok(u64::try_from(number).map_or(Written::Real(number as f64), Written::Whole))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Written, E> {
                Ok(Written::Real(number))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Written, E> {
                Ok(Written::Word(word.to_owned()))
            }

            fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Written, E> {
                Ok(Written::Word(truth.to_string()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Written, E> {
                Ok(Written::Nothing)
            }

            fn visit_none<E: de::Error>(self) -> Result<Written, E> {
                Ok(Written::Nothing)
            }
        }

        deserializer.deserialize_any(WrittenVisitor)
    }
}

/// A number of its own, or `none`.
pub(super) mod real_or_none {
    use super::*;

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value
            .map_or(Written::Word("none".to_owned()), Written::Real)
            .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Whole(number) => Ok(Some(number as f64)),
            Written::Real(number) => Ok(Some(number)),
            Written::Nothing => Ok(None),
            written if written.is_word("none") => Ok(None),
            written => Err(de::Error::custom(written.instead_of("a number, or none"))),
        }
    }
}

/// A count, or `none`.
pub(super) mod count_or_none {
    use super::*;

    pub fn serialize<S: Serializer>(
        value: &Option<usize>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value
            .map_or(Written::Word("none".to_owned()), |count| {
                Written::Whole(count as u64)
            })
            .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<usize>, D::Error> {
        let written = Written::deserialize(deserializer)?;
        match written.count() {
            Some(count) => Ok(Some(count)),
            None if written == Written::Nothing || written.is_word("none") => Ok(None),
            None => Err(de::Error::custom(
                written.instead_of("a whole number of at least 0, or none"),
            )),
        }
    }
}
