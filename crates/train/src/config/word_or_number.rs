//! Values that are a word or a number: `auto`, `epoch`, `5%`, `none`, `500`.
//!
//! One visitor accepts any scalar, so that each type can word its own error.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A scalar as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WordOrNumber {
    /// A whole number of at least 0.
    Whole(u64),
    /// Any other number.
    Real(f64),
    Word(String),
    /// An empty value, `null` or `~`.
    Nothing,
}

impl WordOrNumber {
    /// The value as a count; `None` if it is no whole number, or too large for `usize`.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            WordOrNumber::Whole(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self, WordOrNumber::Word(written) if written == word)
    }

    /// Error text: the value found, and the values expected.
    pub(super) fn instead_of(&self, expected: &str) -> String {
        format!("`{self}`, expected {expected}")
    }
}

impl fmt::Display for WordOrNumber {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            WordOrNumber::Whole(number) => write!(f, "{number}"),
            WordOrNumber::Real(number) => write!(f, "{number:?}"),
            WordOrNumber::Word(word) => f.write_str(word),
            WordOrNumber::Nothing => f.write_str("null"),
        }
    }
}

impl Serialize for WordOrNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            WordOrNumber::Whole(number) => serializer.serialize_u64(*number),
            WordOrNumber::Real(number) => serializer.serialize_f64(*number),
            WordOrNumber::Word(word) => serializer.serialize_str(word),
            WordOrNumber::Nothing => serializer.serialize_unit(),
        }
    }
}

impl<'de> Deserialize<'de> for WordOrNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WordOrNumber, D::Error> {
        struct WrittenVisitor;

        impl Visitor<'_> for WrittenVisitor {
            type Value = WordOrNumber;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a word or a number")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WordOrNumber, E> {
                Ok(WordOrNumber::Whole(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<WordOrNumber, E> {
                Ok(u64::try_from(number)
                    .map_or(WordOrNumber::Real(number as f64), WordOrNumber::Whole))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<WordOrNumber, E> {
                Ok(WordOrNumber::Real(number))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<WordOrNumber, E> {
                Ok(WordOrNumber::Word(word.to_owned()))
            }

            fn visit_bool<E: de::Error>(self, truth: bool) -> Result<WordOrNumber, E> {
                Ok(WordOrNumber::Word(truth.to_string()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<WordOrNumber, E> {
                Ok(WordOrNumber::Nothing)
            }

            fn visit_none<E: de::Error>(self) -> Result<WordOrNumber, E> {
                Ok(WordOrNumber::Nothing)
            }
        }

        deserializer.deserialize_any(WrittenVisitor)
    }
}

/// A word, or a list of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WordOrNumbers {
    Word(String),
    Numbers(Vec<f64>),
}

impl Serialize for WordOrNumbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            WordOrNumbers::Word(word) => serializer.serialize_str(word),
            WordOrNumbers::Numbers(numbers) => numbers.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WordOrNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WordOrNumbers, D::Error> {
        struct ListVisitor;

        impl<'de> Visitor<'de> for ListVisitor {
            type Value = WordOrNumbers;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a word or a list of numbers")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<WordOrNumbers, E> {
                Ok(WordOrNumbers::Word(word.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<WordOrNumbers, A::Error> {
                let mut numbers = Vec::new();
                while let Some(number) = list.next_element()? {
                    numbers.push(number);
                }
                Ok(WordOrNumbers::Numbers(numbers))
            }
        }

        deserializer.deserialize_any(ListVisitor)
    }
}

/// Serde format of an optional number: the number, or `none`.
pub(super) mod real_or_none {
    use super::*;

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value
            .map_or(WordOrNumber::Word("none".to_owned()), WordOrNumber::Real)
            .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        match WordOrNumber::deserialize(deserializer)? {
            WordOrNumber::Whole(number) => Ok(Some(number as f64)),
            WordOrNumber::Real(number) => Ok(Some(number)),
            WordOrNumber::Nothing => Ok(None),
            written if written.is_word("none") => Ok(None),
            written => Err(de::Error::custom(written.instead_of("a number, or none"))),
        }
    }
}

/// Serde format of an optional count: the count, or `none`.
pub(super) mod count_or_none {
    use super::*;

    pub fn serialize<S: Serializer>(
        value: &Option<usize>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value
            .map_or(WordOrNumber::Word("none".to_owned()), |count| {
                WordOrNumber::Whole(count as u64)
            })
            .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<usize>, D::Error> {
        let written = WordOrNumber::deserialize(deserializer)?;
        match written.count() {
            Some(count) => Ok(Some(count)),
            None if written == WordOrNumber::Nothing || written.is_word("none") => Ok(None),
            None => Err(de::Error::custom(
                written.instead_of("a whole number of at least 0, or none"),
            )),
        }
    }
}
