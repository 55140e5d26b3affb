//! Differences between a model's tensors and its configuration, listed in one message.

use std::fmt;

/// Differences between a set of tensors and those of a configuration.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TensorMismatch {
    /// Tensors of the configuration that do not exist.
    pub missing: Vec<String>,
    /// Tensors that the configuration does not have.
    pub unexpected: Vec<String>,
    /// Tensors of the wrong shape.
    pub misshaped: Vec<Misshaped>,
}

/// A tensor whose shape differs from its configuration's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misshaped {
    pub name: String,
    /// Shape by the configuration.
    pub expected: Vec<usize>,
    /// Shape in the file.
    pub found: Vec<usize>,
}

impl TensorMismatch {
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshaped.is_empty()
    }

    pub(super) fn hint(&self) -> String {
        if let Some(prefix) = self.common_prefix() {
            return format!(
                "every name starts with `{prefix}`; save the state dict of the inner model"
            );
        }
        if self.missing.is_empty() && self.unexpected.is_empty() {
            return "weights and config.json belong to models of different sizes".into();
        }
        "weights and config.json belong to different models; fetch both from one place".into()
    }

    /// Prefix that a wrapper such as `DataParallel` put before every name.
    fn common_prefix(&self) -> Option<&str> {
        let missing = self.missing.first()?;
        let mut unexpected = self.unexpected.iter();
        let prefix = unexpected.find_map(|name| name.strip_suffix(missing.as_str()))?;
        let prefixed = |name: &String| name.starts_with(prefix);
        self.unexpected.iter().all(prefixed).then_some(prefix)
    }
}

/// Longer lists are truncated in the message; the full count is given.
const LONGEST_LIST: usize = 6;

impl fmt::Display for TensorMismatch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let misshaped: Vec<String> = self
            .misshaped
            .iter()
            .map(|m| format!("{}: expected {:?}, found {:?}", m.name, m.expected, m.found))
            .collect();
        for (kind, lines) in [
            ("missing", &self.missing),
            ("unexpected", &self.unexpected),
            ("of another shape", &misshaped),
        ] {
            if lines.is_empty() {
                continue;
            }
            write!(f, "\n  {} {kind}:", lines.len())?;
            for line in lines.iter().take(LONGEST_LIST) {
                write!(f, "\n    {line}")?;
            }
            if lines.len() > LONGEST_LIST {
                write!(f, "\n    and {} more", lines.len() - LONGEST_LIST)?;
            }
        }
        Ok(())
    }
}
