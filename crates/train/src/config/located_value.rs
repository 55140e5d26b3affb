//! A config layer as a tree, with the position of every value.
//!
//! Types are checked by deserialising into [`super::RunConfig`]; the tree serves to merge layers and to name the path and
//! line of an error.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A value and its position in the text.
#[derive(Clone, Debug)]
pub(super) struct LocatedValue {
    pub(super) line: u64,
    column: u64,
    kind: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Scalar(Value),
    List(Vec<LocatedValue>),
    Map(Vec<(String, LocatedValue)>),
}

impl LocatedValue {
    /// Tree of an empty text.
    pub(super) fn empty() -> LocatedValue {
        LocatedValue {
            line: 1,
            column: 1,
            kind: Node::Map(Vec::new()),
        }
    }

    /// The tree without positions.
    pub(super) fn value(&self) -> Value {
        match &self.kind {
            Node::Scalar(value) => value.clone(),
            Node::List(items) => Value::Array(items.iter().map(LocatedValue::value).collect()),
            Node::Map(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, tree)| (key.clone(), tree.value()));
                Value::Object(entries.collect::<Map<_, _>>())
            }
        }
    }

    /// Collects every value with its dotted path, sections before their entries.
    fn walk<'a>(&'a self, path: &str, found: &mut Vec<(String, &'a LocatedValue)>) {
        found.push((path.to_owned(), self));
        let below = |key: &str| match path {
            "" => key.to_owned(),
            _ => format!("{path}.{key}"),
        };
        match &self.kind {
            Node::Scalar(_) => {}
            Node::List(items) => {
                for item in items {
                    item.walk(path, found); // errors name the list, not the item
                }
            }
            Node::Map(entries) => {
                for (key, tree) in entries {
                    tree.walk(&below(key), found);
                }
            }
        }
    }

    fn all(&self) -> Vec<(String, &LocatedValue)> {
        let mut found = Vec::new();
        self.walk("", &mut found);
        found
    }

    /// Path of the value at a position.
    pub(super) fn path_at(&self, line: u64, column: u64) -> Option<String> {
        let starts_here = |tree: &LocatedValue| (tree.line, tree.column) == (line, column);
        let mut all = self.all().into_iter();
        all.find(|(_, tree)| starts_here(tree))
            .map(|(path, _)| path)
    }

    /// Line of the value with this path.
    pub(super) fn line_of(&self, path: &str) -> Option<u64> {
        let mut all = self.all().into_iter();
        all.find(|(found, _)| found == path)
            .map(|(_, tree)| tree.line)
    }

    /// Path and line of the first number in quotes.
    pub(super) fn quoted_number(&self) -> Option<(String, u64)> {
        let is_quoted = |tree: &LocatedValue| match &tree.kind {
            Node::Scalar(Value::String(text)) => text.parse::<f64>().is_ok(),
            _ => false,
        };
        let mut all = self.all().into_iter();
        all.find(|(_, tree)| is_quoted(tree))
            .map(|(path, tree)| (path, tree.line))
    }
}

impl<'de> Deserialize<'de> for LocatedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LocatedValue, D::Error> {
        let spanned = Spanned::<Node>::deserialize(deserializer)?;
        Ok(LocatedValue {
            line: spanned.referenced.line(),
            column: spanned.referenced.column(),
            kind: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        struct KindVisitor;

        impl<'de> Visitor<'de> for KindVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a value, a list or a section")
            }

            fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Node, E> {
                Ok(Node::Scalar(Value::Bool(truth)))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Node, E> {
                Ok(Node::Scalar(number.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Node, E> {
                Ok(Node::Scalar(number.into()))
            }

            // Infinity and NaN become `null`; the checks of each layer refuse them anyway.
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Node, E> {
                let number = Number::from_f64(number);
                Ok(Node::Scalar(number.map_or(Value::Null, Value::Number)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Scalar(text.into()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
                Ok(Node::Scalar(Value::Null))
            }

            fn visit_none<E: de::Error>(self) -> Result<Node, E> {
                Ok(Node::Scalar(Value::Null))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Map(entries))
            }
        }

        deserializer.deserialize_any(KindVisitor)
    }
}
