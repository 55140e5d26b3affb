//! Many short strings in one allocation: a million paths as a `Vec<String>` would take 24 bytes and
//! an allocation each.

use serde::{Deserialize, Serialize};

/// A list of strings, laid end to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackedStrings {
    text: String,
    ends: Vec<u64>,
}

impl PackedStrings {
    pub(crate) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len() as u64);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Panics past the end, like a slice.
    pub(crate) fn get(&self, index: usize) -> &str {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        &self.text[start..self.ends[index] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_pushed() {
        let mut strings = PackedStrings::default();
        for string in ["", "ä", "", "images/1.jpg"] {
            strings.push(string);
        }
        let all: Vec<&str> = (0..4).map(|at| strings.get(at)).collect();
        assert_eq!(all, ["", "ä", "", "images/1.jpg"]);
    }
}
