//! `train: {freeze: ...}`: parameters that are not trained.
//!
//! ```text
//! freeze: none                                   everything is trained
//! freeze: [vision_model, text_model.embeddings]  names up to a dot, or patterns with `*`
//! freeze: {vision_model: all but 2}              the last two blocks, and the layers after them, stay trained
//! freeze: all but heads                          only parameters with the heads' learning rate are trained
//! ```

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::matches;

/// Parameters that are not trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Freeze {
    #[default]
    Nothing,
    AllButHeads,
    /// Names or patterns, with the frozen share of each.
    Names(Vec<(String, FrozenShare)>),
}

/// Frozen share of the parameters that a name covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrozenShare {
    All,
    /// All but the last so many blocks, and the layers after them in the order of the model.
    AllBut(usize),
}

const NOTHING: &str = "none";
const ALL: &str = "all";
const ALL_BUT: &str = "all but ";
const ALL_BUT_HEADS: &str = "all but heads";
const EXPECTED: &str =
    "names such as [vision_model], {vision_model: all but 2}, `all but heads`, or none";

/// Whether a name covers a parameter: the parameter itself, or a module that contains it; with `*`, a pattern.
pub fn covers(name: &str, parameter: &str) -> bool {
    if name.contains('*') {
        return matches(name, parameter);
    }
    let rest = parameter.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn name_of(written: &str) -> Result<String, String> {
    let name = written.trim().trim_end_matches('.');
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace) && name != ALL;
    if is_name {
        Ok(name.to_owned())
    } else {
        Err(format!("`{written}`, expected {EXPECTED}"))
    }
}

impl FromStr for FrozenShare {
    type Err = String;

    fn from_str(written: &str) -> Result<FrozenShare, String> {
        let blocks = written.strip_prefix(ALL_BUT).map(|n| n.trim().parse());
        match (written, blocks) {
            (ALL, _) => Ok(FrozenShare::All),
            (_, Some(Ok(blocks))) if blocks > 0 => Ok(FrozenShare::AllBut(blocks)),
            _ => Err(format!(
                "`{written}`, expected all, or all but a number of blocks, such as `all but 2`"
            )),
        }
    }
}

impl fmt::Display for FrozenShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrozenShare::All => f.write_str(ALL),
            FrozenShare::AllBut(blocks) => write!(f, "{ALL_BUT}{blocks}"),
        }
    }
}

/// Parses a command-line option: `none`, `all but heads`, or names separated by commas.
impl FromStr for Freeze {
    type Err = String;

    fn from_str(written: &str) -> Result<Freeze, String> {
        let spaced = written.trim().to_lowercase().replace(['_', '-'], " ");
        match written.trim() {
            NOTHING => Ok(Freeze::Nothing),
            _ if spaced == ALL_BUT_HEADS => Ok(Freeze::AllButHeads),
            names => {
                let whole = |name: &str| Ok((name_of(name)?, FrozenShare::All));
                let names: Result<_, String> = names.split(',').map(whole).collect();
                Ok(Freeze::Names(names?))
            }
        }
    }
}

impl Serialize for Freeze {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Freeze::Nothing => serializer.serialize_str(NOTHING),
            Freeze::AllButHeads => serializer.serialize_str(ALL_BUT_HEADS),
            Freeze::Names(names) if names.iter().all(|(_, share)| *share == FrozenShare::All) => {
                serializer.collect_seq(names.iter().map(|(name, _)| name))
            }
            Freeze::Names(names) => {
                serializer.collect_map(names.iter().map(|(name, share)| (name, share.to_string())))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Freeze {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Freeze, D::Error> {
        struct FreezeVisitor;

        impl<'de> Visitor<'de> for FreezeVisitor {
            type Value = Freeze;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Freeze, E> {
                word.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Freeze, E> {
                Err(E::custom(format!("`{number}`, expected {EXPECTED}")))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Freeze, E> {
                Ok(Freeze::Nothing)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Freeze, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element::<String>()? {
                    let name = name_of(&name).map_err(de::Error::custom)?;
                    names.push((name, FrozenShare::All));
                }
                Ok(or_nothing(names))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Freeze, A::Error> {
                let mut names = Vec::new();
                while let Some((name, share)) = map.next_entry::<String, String>()? {
                    let name = name_of(&name).map_err(de::Error::custom)?;
                    names.push((name, share.parse().map_err(de::Error::custom)?));
                }
                Ok(or_nothing(names))
            }
        }

        deserializer.deserialize_any(FreezeVisitor)
    }
}

fn or_nothing(names: Vec<(String, FrozenShare)>) -> Freeze {
    if names.is_empty() {
        Freeze::Nothing
    } else {
        Freeze::Names(names)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parse, refusal};
    use super::*;

    fn freeze_of(text: &str) -> Freeze {
        parse(text).unwrap().train.freeze
    }

    #[test]
    fn every_form_is_read_and_written_back() {
        let all = |names: &[&str]| {
            let names = names
                .iter()
                .map(|name| (name.to_string(), FrozenShare::All));
            Freeze::Names(names.collect())
        };
        for (text, expected) in [
            ("none", Freeze::Nothing),
            ("[]", Freeze::Nothing),
            ("all but heads", Freeze::AllButHeads),
            ("all_but_heads", Freeze::AllButHeads),
            ("All-but-heads", Freeze::AllButHeads),
            ("vision_model", all(&["vision_model"])),
            (
                "[vision_model., \"*.bias\"]",
                all(&["vision_model", "*.bias"]),
            ),
            (
                "{vision_model: all, head: all}",
                all(&["vision_model", "head"]),
            ),
            (
                "{vision_model: all but 2, text_model: all}",
                Freeze::Names(vec![
                    ("vision_model".into(), FrozenShare::AllBut(2)),
                    ("text_model".into(), FrozenShare::All),
                ]),
            ),
        ] {
            let freeze = freeze_of(&format!("train: {{freeze: {text}}}\n"));
            assert_eq!(freeze, expected, "{text}");
            let written = serde_json::to_value(&freeze).unwrap();
            assert_eq!(serde_json::from_value::<Freeze>(written).unwrap(), freeze);
        }
        assert_eq!(
            "vision_model, text_model.embeddings".parse(),
            Ok(all(&["vision_model", "text_model.embeddings"]))
        );
    }

    #[test]
    fn what_is_none_of_the_forms_is_answered_with_them() {
        for (text, expected) in [
            ("all", "`all but heads`"),
            ("all but 2", "{vision_model: all but 2}"),
            ("{vision_model: all but 0}", "such as `all but 2`"),
            ("{vision_model: half}", "`half`, expected all, or all but"),
            ("[\"two words\"]", "`two words`, expected names such as"),
            ("3", "expected names such as [vision_model]"),
        ] {
            let found = refusal(&format!("train: {{freeze: {text}}}\n"));
            assert!(found.contains(expected), "{text}: {found}");
            assert!(
                found.contains("train.freeze") && found.contains("hint: "),
                "{found}"
            );
        }
    }

    #[test]
    fn a_name_ends_at_a_dot() {
        for (name, parameter, expected) in [
            ("vision_model", "vision_model.post_layernorm.weight", true),
            ("vision", "vision_model.post_layernorm.weight", false),
            ("layers.1", "layers.10.weight", false),
            ("logit_scale", "logit_scale", true),
            ("*.bias", "head.bias", true),
            ("*.bias", "head.biases", false),
        ] {
            assert_eq!(covers(name, parameter), expected, "{name} {parameter}");
        }
    }
}
