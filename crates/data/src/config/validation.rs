//! `data.validation`: the choice of validation rows.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Share, percentage};

/// Choice of the validation rows. With a `group`, all rows of equal value in that column belong on one side of the split.
///
/// Rows that a column, folders or shards mark as test are in neither training nor validation, except with [`Validation::Unsplit`].
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// The rows that the data itself marks as validation; without such marks a tenth of the rows.
    Auto {
        /// Column whose rows of equal value stay together.
        group: Option<String>,
    },
    /// This share of the rows, stratified by label.
    Share {
        /// More than 0, less than 1.
        share: f64,
        /// Column whose rows of equal value stay together.
        group: Option<String>,
    },
    /// Another CSV, or another folder of class folders.
    File {
        path: PathBuf,
        /// Column whose values should not be in both files.
        group: Option<String>,
    },
    /// Rows marked by a column: `train`, `validation` or `test` in their usual spellings, or the number of a fold.
    Column {
        column: String,
        /// Value of the validation rows; all other rows are for training.
        value: Option<String>,
        /// Value of the test rows.
        test: Option<String>,
        /// Column whose values should not be on both sides.
        group: Option<String>,
    },
    /// No validation.
    None,
    /// Every row is on one side, whatever the data marks: for commands without training. Not available in a config.
    Unsplit {
        /// Column of groups, for the caller to read.
        group: Option<String>,
    },
}

impl Default for Validation {
    fn default() -> Validation {
        Validation::Auto { group: None }
    }
}

impl Validation {
    /// Validation share where neither the config nor the data marks rows.
    pub const DEFAULT_SHARE: f64 = 0.1;

    /// A share of the rows, without a group.
    pub fn share(share: f64) -> Validation {
        Validation::Share { share, group: None }
    }

    /// Another file, without a group.
    pub fn file(path: impl Into<PathBuf>) -> Validation {
        Validation::File {
            path: path.into(),
            group: None,
        }
    }

    /// Rows marked by a column, without a group.
    pub fn column(column: impl Into<String>) -> Validation {
        Validation::Column {
            column: column.into(),
            value: None,
            test: None,
            group: None,
        }
    }

    /// Every row on one side, without a group.
    pub const UNSPLIT: Validation = Validation::Unsplit { group: None };

    /// The column whose rows of equal value belong on one side.
    pub fn group(&self) -> Option<&str> {
        match self {
            Validation::Auto { group }
            | Validation::Share { group, .. }
            | Validation::File { group, .. }
            | Validation::Column { group, .. }
            | Validation::Unsplit { group } => group.as_deref(),
            Validation::None => None,
        }
    }

    /// Share of the rows to draw for validation; `has_marked` says whether the data marks validation rows.
    pub(crate) fn drawn_share(&self, has_marked: bool) -> Option<f64> {
        match self {
            Validation::Share { share, .. } => Some(*share),
            Validation::Auto { .. } | Validation::Column { .. } if !has_marked => {
                Some(Validation::DEFAULT_SHARE)
            }
            _ => None,
        }
    }
}

/// The `validation` section in a config.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ValidationSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<CellText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<CellText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
}

/// Text of a cell, which YAML may parse as a number.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum CellText {
    Text(String),
    Whole(i64),
    Number(f64),
}

impl From<CellText> for String {
    fn from(cell: CellText) -> String {
        match cell {
            CellText::Text(text) => text,
            CellText::Whole(number) => number.to_string(),
            CellText::Number(number) => number.to_string(),
        }
    }
}

/// Accepted forms of `validation`, for messages.
const VALIDATION_FORMS: &str =
    "10%, a CSV, {column: NAME}, {column: NAME, value: VALUE}, {group: NAME}, auto or none";

impl Validation {
    fn of_share(share: f64, text: &str, group: Option<String>) -> Result<Validation, String> {
        if share > 0.0 && share < 1.0 {
            Ok(Validation::Share { share, group })
        } else {
            Err(format!(
                "validation `{text}`: expected more than 0% and less than 100%, or `none`"
            ))
        }
    }

    fn of_text(text: &str) -> Result<Validation, String> {
        match (text, percentage(text)) {
            ("none", _) => Ok(Validation::None),
            ("auto", _) => Ok(Validation::default()),
            (_, Some(Ok(share))) => Validation::of_share(share, text, None),
            (_, Some(Err(_))) => Err(format!("validation `{text}`: expected {VALIDATION_FORMS}")),
            (_, None) => Ok(Validation::file(text)),
        }
    }

    fn of_section(section: ValidationSection) -> Result<Validation, String> {
        let ValidationSection {
            share,
            column,
            value,
            test,
            file,
            group,
        } = section;
        let has_values = value.is_some() || test.is_some();
        match (share, column, file) {
            (Some(share), None, None) if !has_values => {
                Validation::of_share(share.0, &share.0.to_string(), group)
            }
            (None, Some(_), None) if value.is_none() && test.is_some() => Err(
                "validation: expected `value` beside `test`: the rows that are held out for validation"
                    .to_owned(),
            ),
            (None, Some(column), None) => Ok(Validation::Column {
                column,
                value: value.map(String::from),
                test: test.map(String::from),
                group,
            }),
            (None, None, Some(path)) if !has_values => Ok(Validation::File {
                path: path.into(),
                group,
            }),
            (None, None, None) if group.is_some() && !has_values => Ok(Validation::Auto { group }),
            _ => Err(
                "validation: expected one of share, column (with value) and file, beside group"
                    .to_owned(),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Validation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Validation, D::Error> {
        struct WrittenValidation;
        impl<'de> Visitor<'de> for WrittenValidation {
            type Value = Validation;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(VALIDATION_FORMS)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Validation, E> {
                Validation::of_text(text).map_err(E::custom)
            }

            fn visit_f64<E: Error>(self, share: f64) -> Result<Validation, E> {
                Validation::of_share(share, &share.to_string(), None).map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, share: u64) -> Result<Validation, E> {
                self.visit_f64(share as f64)
            }

            fn visit_i64<E: Error>(self, share: i64) -> Result<Validation, E> {
                self.visit_f64(share as f64)
            }

            fn visit_map<A: MapAccess<'de>>(self, keys: A) -> Result<Validation, A::Error> {
                let section = ValidationSection::deserialize(MapAccessDeserializer::new(keys))?;
                Validation::of_section(section).map_err(A::Error::custom)
            }
        }
        from.deserialize_any(WrittenValidation)
    }
}

impl Serialize for Validation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut section = ValidationSection {
            group: self.group().map(str::to_owned),
            ..ValidationSection::default()
        };
        match self {
            Validation::Auto { group: None } => return to.serialize_str("auto"),
            Validation::Share { share, group: None } => return to.serialize_f64(*share),
            Validation::File { path, group: None } => {
                return to.serialize_str(&path.display().to_string());
            }
            Validation::None | Validation::Unsplit { .. } => return to.serialize_str("none"),
            Validation::Auto { .. } => {}
            Validation::Share { share, .. } => section.share = Some(Share(*share)),
            Validation::File { path, .. } => section.file = Some(path.display().to_string()),
            Validation::Column {
                column,
                value,
                test,
                ..
            } => {
                section.column = Some(column.clone());
                section.value = value.clone().map(CellText::Text);
                section.test = test.clone().map(CellText::Text);
            }
        }
        section.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_is_written_in_four_ways() {
        let read = |json: &str| serde_json::from_str::<Validation>(json);
        assert_eq!(read("\"10%\"").unwrap(), Validation::share(0.1));
        assert_eq!(read("0.25").unwrap(), Validation::share(0.25));
        assert_eq!(read("\"none\"").unwrap(), Validation::None);
        assert_eq!(read("\"val.csv\"").unwrap(), Validation::file("val.csv"));
        let column = Validation::column("split");
        assert_eq!(read("{\"column\": \"split\"}").unwrap(), column);
        let grouped = [
            (r#"{"share":"20%","group":"p"}"#, Validation::share(0.2)),
            (r#"{"column":"split","group":"p"}"#, column),
            (
                r#"{"file":"val.csv","group":"p"}"#,
                Validation::file("val.csv"),
            ),
            (r#"{"group":"p"}"#, Validation::default()),
        ];
        for (json, mut expected) in grouped {
            if let Validation::Auto { group }
            | Validation::Share { group, .. }
            | Validation::Column { group, .. }
            | Validation::File { group, .. } = &mut expected
            {
                *group = Some("p".to_owned());
            }
            assert_eq!(read(json).unwrap(), expected);
            let again = serde_json::to_string(&expected).unwrap();
            assert_eq!(read(&again).unwrap(), expected);
        }
        assert_eq!(read("\"auto\"").unwrap(), Validation::default());
        let fold = Validation::Column {
            column: "fold".to_owned(),
            value: Some("3".to_owned()),
            test: Some("later".to_owned()),
            group: None,
        };
        for (value, test) in [("3", "later"), ("\"3\"", "later")] {
            let json = format!(r#"{{"column": "fold", "value": {value}, "test": "{test}"}}"#);
            assert_eq!(read(&json).unwrap(), fold);
        }
        let again = serde_json::to_string(&fold).unwrap();
        assert_eq!(read(&again).unwrap(), fold);
        for wrong in [
            "0",
            "1.5",
            "\"0%\"",
            "\"x%\"",
            r#"{"share":0.1,"column":"split"}"#,
            r#"{"column":"fold","test":3}"#,
            r#"{"share":0.1,"value":3}"#,
            "{}",
            "true",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let error = read(r#"{"colum": "fold"}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `colum`"), "{error}");
    }
}
