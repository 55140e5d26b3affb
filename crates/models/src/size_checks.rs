//! Checks of the sizes in a config.json. Errors name the file, the key, and the expected and found values.

use std::path::Path;

use crate::error::ModelError;
use crate::tensor_list::num_values;

/// No width, vocabulary or image side of a real model is near this limit; a larger value is an error.
pub(crate) const LARGEST_SIZE: usize = 1 << 20;
pub(crate) const MOST_LAYERS: usize = 1 << 10;
const MOST_PARAMETERS: usize = 1 << 40;

/// Checks sizes under the keys of one section of a file.
pub(crate) struct SizeChecks<'a> {
    pub file: &'a Path,
    /// Prefix of the keys: empty, or the section's name and a dot.
    pub section: &'a str,
}

impl SizeChecks<'_> {
    pub fn wrong(&self, key: &str, expected: String, found: impl ToString) -> ModelError {
        ModelError::Setting {
            file: self.file.into(),
            key: format!("{}{key}", self.section),
            expected,
            found: found.to_string(),
        }
    }

    pub fn within(&self, key: &str, size: usize, largest: usize) -> Result<(), ModelError> {
        if (1..=largest).contains(&size) {
            return Ok(());
        }
        Err(self.wrong(key, format!("1 to {largest}"), size))
    }

    pub fn multiple(
        &self,
        key: &str,
        size: usize,
        (part_key, part): (&str, usize),
    ) -> Result<(), ModelError> {
        if size.is_multiple_of(part) {
            return Ok(());
        }
        let expected = format!("a multiple of `{part_key}`, which is {part}");
        Err(self.wrong(key, expected, size))
    }

    pub fn eps(&self, key: &str, eps: f64) -> Result<(), ModelError> {
        if eps > 0.0 && eps < 1.0 {
            return Ok(());
        }
        Err(self.wrong(key, "a number between 0 and 1".into(), eps))
    }

    pub fn all_tensors(&self, tensors: &[(String, Vec<usize>)]) -> Result<(), ModelError> {
        let total = tensors.iter().try_fold(0usize, |total, (_, shape)| {
            total.checked_add(num_values(shape)?)
        });
        if total.is_some_and(|total| total <= MOST_PARAMETERS) {
            return Ok(());
        }
        Err(ModelError::Setting {
            file: self.file.into(),
            key: "all tensors together".into(),
            expected: format!("at most {MOST_PARAMETERS} values"),
            found: "sizes that multiply to more".into(),
        })
    }
}
