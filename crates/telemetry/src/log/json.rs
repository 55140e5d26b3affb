//! JSON lines. Nested objects are read as `outer.inner`.

use serde_json::{Map, Value};

use super::columns::{Column, column};
use super::sample::SampleReader;
use super::table::Columns;

/// Most keys that are kept; a log with more is not about memory.
const MOST_NAMES: usize = 256;
/// Depth of nested objects that are read.
const DEEPEST: usize = 3;

/// Reader of JSON lines, with the keys seen so far.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonReader {
    pub columns: Columns,
}

impl JsonReader {
    pub fn read(&mut self, line: &[u8], sample: &mut SampleReader) -> Result<(), String> {
        let text = object_of(line).ok_or("no object in braces")?;
        let parsed = serde_json::from_slice(text).or_else(|cause| {
            let text = quoted_non_finite(&String::from_utf8_lossy(text));
            serde_json::from_str(&text).map_err(|_| cause.to_string())
        });
        self.add("", &parsed?, DEEPEST, sample);
        Ok(())
    }

    fn add(
        &mut self,
        prefix: &str,
        object: &Map<String, Value>,
        depth: usize,
        sample: &mut SampleReader,
    ) {
        for (inner, value) in object {
            let name = format!("{prefix}{inner}");
            if let Value::Object(object) = value {
                if depth > 1 {
                    self.add(&format!("{name}."), object, depth - 1, sample);
                }
                continue;
            }
            match (self.column(&name, inner), value) {
                (Some(column), Value::Number(number)) => {
                    sample.set_number(column, number.as_f64().unwrap_or(f64::NAN));
                }
                (Some(column), Value::String(text)) => {
                    sample.set_text(column, text);
                }
                _ => {}
            }
        }
    }

    fn column(&mut self, name: &str, inner: &str) -> Option<Column> {
        if let Some((_, column)) = self.columns.iter().find(|(known, _)| known == name) {
            return *column;
        }
        // For `memory: {allocated: 1}` the full name has more information; the inner name is the fallback.
        let column = column(name).or_else(|| column(inner));
        let column = column.filter(|_| self.columns.len() < MOST_NAMES);
        if self.columns.len() < MOST_NAMES {
            self.columns.push((name.to_owned(), column));
        }
        column
    }

    /// Whether a key has occurred.
    pub fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|(known, _)| known == name)
    }
}

/// The object of a line: without list brackets and commas around it, and without a logger's text before it.
fn object_of(line: &[u8]) -> Option<&[u8]> {
    let start = line.iter().position(|&byte| byte == b'{')?;
    let line = &line[start..];
    let is_outside = |byte: &u8| matches!(byte, b',' | b']' | b' ');
    let end = line.iter().rposition(|byte| !is_outside(byte))?;
    Some(&line[..=end])
}

/// Quotes NaN and infinity outside of strings: Python writes them, although they are not valid JSON.
fn quoted_non_finite(text: &str) -> String {
    let parts = text.split('"').enumerate().map(|(at, part)| {
        let is_in_string = at % 2 == 1;
        if is_in_string {
            return part.to_owned();
        }
        let spellings = ["-Infinity", "Infinity", "nan", "inf"];
        let part = spellings
            .iter()
            .fold(part.to_owned(), |part, word| part.replace(word, "NaN"));
        part.replace("NaN", "\"NaN\"")
    });
    parts.collect::<Vec<_>>().join("\"")
}

#[cfg(test)]
mod tests {
    use super::super::columns::Meaning;
    use super::super::sample::Sample;
    use super::*;

    fn sample(line: &str) -> Result<Option<Sample>, String> {
        let mut raw = SampleReader::default();
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
            assert_eq!(
                (sample.get(Meaning::Used), sample.get(Meaning::Allocated)),
                (used, allocated),
                "{line}"
            );
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
