//! Settings of PyTorch scripts: the table `pytorch_keys.txt`.
//!
//! The table answers unknown config keys and unknown command-line options, translates whole config files
//! ([`super::translate`]), and generates the tables of `docs/from-pytorch.md`. Keys with the same name and meaning here, such
//! as `num_workers`, are not in it.

use std::sync::LazyLock;

/// A row of the table: settings of other tools that share one answer.
#[derive(Debug)]
pub(super) struct ForeignSetting {
    /// Keys in lower case, with `_` for `-`. In quotes: code that is not a key.
    keys: Vec<&'static str>,
    pub(super) becomes: Becomes,
    /// Heading of the document section with this row.
    heading: &'static str,
    /// Right column of the document: what to write instead, or why nothing is needed.
    text: &'static str,
}

/// Counterpart of a setting in a Holdall config.
#[derive(Debug)]
pub(super) enum Becomes {
    /// Not needed: the result is the same without it.
    Unneeded,
    /// No counterpart, or one with another meaning: the run differs in effect.
    Missing,
    /// Not needed if another setting has the same meaning.
    SameAs(&'static str),
    /// A section whose settings are read one by one.
    Section,
    /// The name of the selected section among those of `dataset:`.
    ChosenDataset,
    /// Only a line of the document.
    TextOnly,
    /// The unchanged value, under this path.
    Moved(&'static str),
    /// The value after a named conversion, under this path.
    Converted {
        path: &'static str,
        by: &'static str,
    },
    /// A value for each word.
    ByWord {
        /// Empty if the words are accepted without effect.
        path: &'static str,
        rules: Vec<WordRule>,
    },
}

/// A rule `a b -> c`.
#[derive(Debug)]
pub(super) struct WordRule {
    /// Words of other tools; `*` is any other value.
    pub(super) words: Vec<&'static str>,
    /// The value as YAML; `*` is the word itself, `-` sets nothing.
    pub(super) value: &'static str,
    /// `false` for `~>` instead of `->`: the nearest counterpart, with another effect.
    pub(super) is_exact: bool,
}

impl ForeignSetting {
    fn parse(heading: &'static str, line: &'static str) -> Option<ForeignSetting> {
        let mut columns = line.splitn(3, " | ");
        let (keys, becomes, text) = (columns.next()?, columns.next()?, columns.next()?);
        let keys = if keys.starts_with('"') {
            vec![keys]
        } else {
            keys.split(", ").collect()
        };
        let becomes = match becomes {
            "-" => Becomes::Unneeded,
            "?" => Becomes::Missing,
            "section" => Becomes::Section,
            "chosen" => Becomes::ChosenDataset,
            "text" => Becomes::TextOnly,
            _ => match (
                becomes.strip_prefix("as "),
                becomes.split_once(": "),
                becomes.split_once(" by "),
            ) {
                (Some(key), ..) => Becomes::SameAs(key),
                (_, Some((path, rules)), _) => Becomes::ByWord {
                    path,
                    rules: rules.split(", ").map(WordRule::parse).collect(),
                },
                (.., Some((path, by))) => Becomes::Converted { path, by },
                _ => Becomes::Moved(becomes),
            },
        };
        Some(ForeignSetting {
            keys,
            becomes,
            heading,
            text,
        })
    }

    /// Text of a message: what to write instead.
    pub(super) fn answer(&self) -> String {
        match self.becomes {
            Becomes::Unneeded => format!("nothing to do, leave it out: {}", self.text),
            _ => self.text.to_owned(),
        }
    }

    /// Whether only flat files of multi-task video projects use the setting.
    pub(super) fn is_of_clips(&self) -> bool {
        self.heading == "Clips, texts and captions"
    }

    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => *known == key,
        })
    }
}

impl WordRule {
    fn parse(text: &'static str) -> WordRule {
        let (words, value, is_exact) = match text.split_once(" ~> ") {
            Some((words, value)) => (words, value, false),
            None => {
                let (words, value) = text.split_once(" -> ").unwrap_or((text, "-"));
                (words, value, true)
            }
        };
        WordRule {
            words: words.split(' ').collect(),
            value,
            is_exact,
        }
    }
}

static TABLE: LazyLock<Vec<ForeignSetting>> = LazyLock::new(|| {
    let mut heading = "";
    let mut table = Vec::new();
    for line in include_str!("pytorch_keys.txt").lines() {
        match line.strip_prefix("## ") {
            Some(name) => heading = name,
            None if line.starts_with('#') => {}
            None => table.extend(ForeignSetting::parse(heading, line)),
        }
    }
    table
});

/// The row of a key in a section or kind of file; case and dashes do not matter.
pub(super) fn setting(scope: &str, key: &str) -> Option<&'static ForeignSetting> {
    let key = key.to_lowercase().replace('-', "_");
    let scoped = format!("{}.{key}", scope.to_lowercase());
    let find = |key: &str| TABLE.iter().find(|row| row.has(key));
    find(&scoped).or_else(|| find(&key))
}

/// The answer to a key; case and dashes do not matter.
pub(super) fn answer_to(key: &str) -> Option<String> {
    setting("", key).map(ForeignSetting::answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::hint_for_unknown;

    const DOCUMENT: &str = include_str!("../../../../docs/from-pytorch.md");

    fn block(language: &str) -> &'static str {
        let (_, after) = DOCUMENT.split_once(&format!("```{language}\n")).unwrap();
        after.split_once("```").unwrap().0
    }

    #[test]
    fn the_documents_example_is_accepted() {
        let config = crate::config::tests::parse(block("yaml")).unwrap();
        assert_eq!(config.train.gradient_accumulation, Some(16));
        for line in block("python").lines().filter(|line| line.contains(':')) {
            let key = line.split('"').nth(1).unwrap();
            let hint = hint_for_unknown(key, &[]);
            assert!(
                answer_to(key).is_some() || hint.contains("belongs"),
                "{key}"
            );
        }
    }

    /// The rows of a heading as Markdown.
    fn rows_of(heading: &str) -> String {
        let rows = TABLE.iter().filter(|row| row.heading == heading);
        let lines = rows.map(|row| {
            let keys = row.keys.iter().map(|key| {
                let key = key.trim_matches('"');
                let shown = key.strip_prefix("multitask.").unwrap_or(key);
                match row.becomes {
                    Becomes::TextOnly if row.keys.len() == 1 && shown.contains(' ') => {
                        shown.to_owned()
                    }
                    _ => format!("`{shown}`"),
                }
            });
            let keys = keys.collect::<Vec<_>>().join(", ");
            let answer = row
                .answer()
                .replace("nothing to do, leave it out:", "nothing to do:");
            format!("| {keys} | {answer} |\n")
        });
        lines.collect()
    }

    /// `HOLDALL_WRITE_DOCS=1 cargo test -p holdall-train pytorch` rewrites the tables.
    #[test]
    fn the_document_has_the_rows_of_the_table() {
        let mut document = DOCUMENT.to_owned();
        let mut headings: Vec<&str> = TABLE.iter().map(|row| row.heading).collect();
        headings.dedup();
        for heading in headings {
            let begin = document.find(&format!("\n## {heading}\n")).expect(heading);
            let table = begin + document[begin..].find("\n|---|---|\n").expect(heading) + 11;
            let end = table + document[table..].find("\n\n").expect(heading) + 1;
            document.replace_range(table..end, &rows_of(heading));
        }
        if std::env::var_os("HOLDALL_WRITE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/from-pytorch.md");
            std::fs::write(path, &document).unwrap();
        }
        assert!(
            document == DOCUMENT,
            "docs/from-pytorch.md is not the table: HOLDALL_WRITE_DOCS=1 cargo test -p holdall-train pytorch"
        );
    }

    #[test]
    fn every_key_is_answered_once() {
        let rows = TABLE
            .iter()
            .filter(|row| !matches!(row.becomes, Becomes::TextOnly));
        let mut keys: Vec<_> = rows.clone().flat_map(|row| &row.keys).collect();
        let num_keys = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), num_keys);
        for row in rows {
            for key in row.keys.iter().filter(|key| !key.contains(['.', '*'])) {
                let hint = hint_for_unknown(key, &[]);
                assert!(hint.starts_with(&row.answer()), "{key}: {hint}");
                let hint = hint_for_unknown(&key.to_uppercase(), &[]);
                assert_eq!(hint, row.answer());
            }
        }
    }

    /// Answers name known keys only, and rows move settings to known keys only.
    #[test]
    fn what_is_answered_is_accepted() {
        for row in TABLE.iter() {
            let mut quoted = row.text.split('`').skip(1).step_by(2);
            if let Some(example) = quoted.find(|text| text.contains(": ") && !text.ends_with(':')) {
                serde_saphyr::from_str::<crate::config::RunConfig>(example)
                    .unwrap_or_else(|error| panic!("{example}: {error}"));
            }
            let path = match row.becomes {
                Becomes::Moved(path)
                | Becomes::Converted { path, .. }
                | Becomes::ByWord { path, .. } => path,
                _ => continue,
            };
            let parent = path.split('"').next().unwrap_or(path).trim_end_matches('.');
            let is_known = ["", "base"].contains(&parent)
                || parent.starts_with("train.lora")
                || parent.starts_with("train.freeze")
                || crate::config::keys::defaults()
                    .pointer(&format!("/{}", parent.replace('.', "/")))
                    .is_some();
            assert!(is_known, "{path}");
        }
    }
}
