//! Columns of a prediction target.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Name of the target that `label: COLUMN` is short for.
pub const LABEL: &str = "label";

/// Columns of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TargetConfig {
    /// `make`: a column with one label per picture.
    Class(String),
    /// `{column: tags, separator: "|"}`: a column with several labels per picture. An empty cell means unknown; a separator
    /// alone means that no label applies.
    Classes {
        column: String,
        /// Text between two labels.
        separator: String,
    },
    /// `{columns: [door, wheel]}`: a label per column, each 0 or 1, no or yes, false or true.
    Columns {
        /// The columns, whose names are the labels.
        columns: Vec<String>,
    },
    /// `{number: age}`: a column of numbers.
    Number {
        /// Name of the column.
        number: String,
    },
}

impl TargetConfig {
    /// Whether the target is switched off: `label: none`.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, TargetConfig::Class(column) if column == "none")
    }

    /// Description for messages.
    pub fn describe(&self) -> String {
        match self {
            TargetConfig::Class(column) => format!("a column of labels, `{column}`"),
            TargetConfig::Classes { column, .. } => {
                format!("a column with several labels per picture, `{column}`")
            }
            TargetConfig::Columns { columns } => {
                format!("a label per column: {}", columns.join(", "))
            }
            TargetConfig::Number { number } => format!("a column of numbers, `{number}`"),
        }
    }
}

impl From<&str> for TargetConfig {
    fn from(column: &str) -> TargetConfig {
        TargetConfig::Class(column.to_owned())
    }
}

impl From<String> for TargetConfig {
    fn from(column: String) -> TargetConfig {
        TargetConfig::Class(column)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    column: Option<String>,
    separator: Option<String>,
    columns: Option<Vec<String>>,
    number: Option<String>,
}

impl<'de> Deserialize<'de> for TargetConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TargetConfig, D::Error> {
        struct WrittenTarget;
        impl<'de> Visitor<'de> for WrittenTarget {
            type Value = TargetConfig;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(
                    "a column, {column: tags, separator: \"|\"}, {columns: [door, wheel]} or {number: age}",
                )
            }

            fn visit_str<E: Error>(self, column: &str) -> Result<TargetConfig, E> {
                Ok(column.into())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<TargetConfig, E> {
                Err(E::custom(format!("`{number}`, expected text")))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<TargetConfig, E> {
                self.visit_u64(number.unsigned_abs())
            }

            fn visit_map<A: MapAccess<'de>>(self, keys: A) -> Result<TargetConfig, A::Error> {
                let keys = Keys::deserialize(MapAccessDeserializer::new(keys))?;
                let wrong = |what: &str| Err(A::Error::custom(what));
                match keys {
                    Keys {
                        column: Some(column),
                        separator,
                        columns: None,
                        number: None,
                    } => match separator {
                        Some(separator) if separator.is_empty() => {
                            wrong("separator: expected text such as \"|\", found nothing")
                        }
                        Some(separator) => Ok(TargetConfig::Classes { column, separator }),
                        None => Ok(TargetConfig::Class(column)),
                    },
                    Keys {
                        column: None,
                        separator: None,
                        columns: Some(columns),
                        number: None,
                    } => {
                        if columns.is_empty() {
                            wrong("columns: expected at least one column, found none")
                        } else {
                            Ok(TargetConfig::Columns { columns })
                        }
                    }
                    Keys {
                        column: None,
                        separator: None,
                        columns: None,
                        number: Some(number),
                    } => Ok(TargetConfig::Number { number }),
                    _ => wrong(
                        "expected {column: tags, separator: \"|\"}, {columns: [door, wheel]} or {number: age}",
                    ),
                }
            }
        }
        from.deserialize_any(WrittenTarget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_in_four_ways() {
        let read = |json: &str| serde_json::from_str::<TargetConfig>(json);
        for (json, expected) in [
            ("\"make\"", "make".into()),
            ("{\"column\":\"make\"}", "make".into()),
            (
                "{\"column\":\"tags\",\"separator\":\"|\"}",
                TargetConfig::Classes {
                    column: "tags".to_owned(),
                    separator: "|".to_owned(),
                },
            ),
            (
                "{\"columns\":[\"door\",\"wheel\"]}",
                TargetConfig::Columns {
                    columns: vec!["door".to_owned(), "wheel".to_owned()],
                },
            ),
            (
                "{\"number\":\"age\"}",
                TargetConfig::Number {
                    number: "age".to_owned(),
                },
            ),
        ] {
            let target = read(json).unwrap();
            assert_eq!(target, expected, "{json}");
            let again = serde_json::to_string(&target).unwrap();
            assert_eq!(read(&again).unwrap(), expected, "{json}");
        }
        for (wrong, expected) in [
            ("2020", "`2020`, expected text"),
            ("[1]", "expected a column"),
            ("{\"separator\":\"|\"}", "expected {column: tags"),
            (
                "{\"number\":\"a\",\"column\":\"b\"}",
                "expected {column: tags",
            ),
            (
                "{\"column\":\"a\",\"separator\":\"\"}",
                "separator: expected text",
            ),
            ("{\"columns\":[]}", "columns: expected at least one"),
            ("{\"colum\":\"a\"}", "unknown field `colum`"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
