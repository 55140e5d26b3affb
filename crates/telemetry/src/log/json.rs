//! JSON lines. The meaning of a key is looked up once and found again at the same position in the next line, so that reading costs
//! little more than parsing. Nested objects are read as `outer.inner`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::columns::{Column, column};
use super::record::Raw;

/// Most keys that are kept; a log with more is not about memory.
const MOST_NAMES: usize = 256;
/// Depth of nested objects that are read.
const DEEPEST: usize = 3;

/// Reader of JSON lines, with the keys seen so far.
#[derive(Debug, Default)]
pub(super) struct JsonReader {
    names: Vec<Name>,
    /// Index at which the next key is expected.
    cursor: usize,
    patched: Vec<u8>,
}

#[derive(Debug)]
struct Name {
    outer: Option<usize>,
    inner: String,
    full: String,
    column: Option<Column>,
}

impl JsonReader {
    /// Reads a line's object into `raw`.
    pub fn read(&mut self, line: &[u8], raw: &mut Raw) -> Result<(), String> {
        let text = object_of(line).ok_or("no object in braces")?;
        match self.parse(text, raw) {
            Ok(()) => Ok(()),
            // Python writes NaN and Infinity, which are not valid JSON.
            Err(cause) => {
                if !patch(text, &mut self.patched) {
                    return Err(cause.to_string());
                }
                raw.clear();
                let patched = std::mem::take(&mut self.patched);
                let parsed = self.parse(&patched, raw);
                self.patched = patched;
                parsed.map_err(|cause| cause.to_string())
            }
        }
    }

    fn parse(&mut self, text: &[u8], raw: &mut Raw) -> Result<(), serde_json::Error> {
        self.cursor = 0;
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let seed = Members {
            reader: self,
            raw,
            outer: None,
            depth: 0,
        };
        deserializer.deserialize_map(seed)?;
        deserializer.end()
    }

    /// Names and meanings of the recognised columns.
    pub fn understood(&self) -> impl Iterator<Item = (&str, Column)> {
        self.names
            .iter()
            .filter_map(|name| Some((name.full.as_str(), name.column?)))
    }

    /// Whether a key has occurred.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known.full == name)
    }

    fn find(&mut self, outer: Option<usize>, inner: &str) -> Option<usize> {
        let is_it = |name: &Name| name.outer == outer && name.inner == inner;
        let found = match self.names.get(self.cursor) {
            Some(name) if is_it(name) => Some(self.cursor),
            _ => self.names.iter().position(is_it),
        };
        let found = found.or_else(|| self.add(outer, inner))?;
        self.cursor = found + 1;
        Some(found)
    }

    fn add(&mut self, outer: Option<usize>, inner: &str) -> Option<usize> {
        const LONGEST: usize = 120;
        if self.names.len() >= MOST_NAMES || inner.len() > LONGEST {
            return None;
        }
        let full = match outer {
            Some(outer) => format!("{}.{inner}", self.names[outer].full),
            None => inner.to_owned(),
        };
        // For `memory: {allocated: 1}` the full name has more information; the inner name is the fallback.
        let column = column(&full).or_else(|| column(inner));
        self.names.push(Name {
            outer,
            inner: inner.to_owned(),
            full,
            column,
        });
        Some(self.names.len() - 1)
    }
}

/// The object of a line: without list brackets and commas around it, and without a logger's text before it.
fn object_of(line: &[u8]) -> Option<&[u8]> {
    let start = line.iter().position(|&byte| byte == b'{')?;
    let line = &line[start..];
    let end = line
        .iter()
        .rposition(|byte| !matches!(byte, b',' | b']' | b' '))?;
    Some(&line[..=end])
}

/// Quotes NaN and Infinity outside of strings; returns whether there were any.
fn patch(text: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut is_in_string = false;
    let mut at = 0;
    let mut is_patched = false;
    while at < text.len() {
        let rest = &text[at..];
        let number = [&b"-Infinity"[..], b"Infinity", b"NaN", b"nan", b"inf"]
            .into_iter()
            .find(|word| !is_in_string && rest.starts_with(word));
        if let Some(word) = number {
            out.push(b'"');
            out.extend(word);
            out.push(b'"');
            at += word.len();
            is_patched = true;
            continue;
        }
        match text[at] {
            b'"' => is_in_string = !is_in_string,
            b'\\' if is_in_string => {
                out.push(b'\\');
                at += 1;
            }
            _ => {}
        }
        out.extend(text.get(at));
        at += 1;
    }
    is_patched
}

struct Members<'a> {
    reader: &'a mut JsonReader,
    raw: &'a mut Raw,
    outer: Option<usize>,
    depth: usize,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Key {
            reader: self.reader,
            outer: self.outer,
        })? {
            map.next_value_seed(Value {
                reader: self.reader,
                raw: self.raw,
                name,
                depth: self.depth,
            })?;
        }
        Ok(())
    }
}

struct Key<'a> {
    reader: &'a mut JsonReader,
    outer: Option<usize>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.reader.find(self.outer, name))
    }
}

struct Value<'a> {
    reader: &'a mut JsonReader,
    raw: &'a mut Raw,
    name: Option<usize>,
    depth: usize,
}

impl Value<'_> {
    fn column(&self) -> Option<Column> {
        self.reader.names[self.name?].column
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        if let Some(column) = self.column() {
            self.raw.set_number(column, number);
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if let Some(column) = self.column() {
            self.raw.set_text(column, text);
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.depth + 1 >= DEEPEST || self.name.is_none() {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        let members = Members {
            reader: self.reader,
            raw: self.raw,
            outer: self.name,
            depth: self.depth + 1,
        };
        members.visit_map(map)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Guess, Sample};
    use super::*;

    fn sample(line: &str) -> Result<Option<Sample>, String> {
        let mut raw = Raw::new(Guess::default());
        JsonReader::default().read(line.as_bytes(), &mut raw)?;
        Ok(raw.sample(1))
    }

    #[test]
    fn lines_as_scripts_write_them() {
        for (line, used, allocated) in [
            ("{\"step\": 1, \"used_bytes\": 5}", Some(5.0), None),
            ("[{\"used_bytes\": 5},", Some(5.0), None),
            ("{\"used_bytes\": 5}]", Some(5.0), None),
            ("INFO train: {\"used_bytes\": 5}", Some(5.0), None),
            (
                "{\"used_bytes\": 5, \"loss\": NaN, \"lr\": -Infinity}",
                Some(5.0),
                None,
            ),
            (
                "{\"note\": \"NaN \\\" {\", \"used_bytes\": 5}",
                Some(5.0),
                None,
            ),
            (
                "{\"memory\": {\"allocated_mb\": 1}}",
                None,
                Some(1_048_576.0),
            ),
            (
                "{\"used\": \"2 KiB\", \"list\": [1, {\"used\": 3}]}",
                Some(2048.0),
                None,
            ),
        ] {
            let sample = sample(line).unwrap().unwrap();
            assert_eq!((sample.used, sample.allocated), (used, allocated), "{line}");
        }
        assert_eq!(sample("{\"loss\": 1}"), Ok(None));
        for wrong in [
            "",
            "{",
            "{\"used_bytes\": 5",
            "{\"used_bytes\": 5} x",
            "{\"a\": NaN",
            "plain",
        ] {
            assert!(sample(wrong).is_err(), "{wrong}");
        }
    }
}
