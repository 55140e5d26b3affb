//! Missing, unexpected and misshaped tensors, told in one message.

use std::fmt;

/// How a set of tensors differs from what its configuration asks for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TensorMismatch {
    /// Tensors of the configuration that are not there.
    pub missing: Vec<String>,
    /// Tensors that the configuration does not know.
    pub unexpected: Vec<String>,
    /// Tensors of another shape.
    pub misshaped: Vec<Misshaped>,
}

/// A tensor of another shape than its configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misshaped {
    /// The tensor.
    pub name: String,
    /// Its shape by the configuration.
    pub expected: Vec<usize>,
    /// The shape it has.
    pub found: Vec<usize>,
}

impl TensorMismatch {
    /// Whether there is no difference.
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

    /// The prefix that a wrapper such as `DataParallel` put before every name.
    fn common_prefix(&self) -> Option<&str> {
        let missing = self.missing.first()?;
        let mut unexpected = self.unexpected.iter();
        let prefix = unexpected.find_map(|name| name.strip_suffix(missing.as_str()))?;
        let prefixed = |name: &String| name.starts_with(prefix);
        self.unexpected.iter().all(prefixed).then_some(prefix)
    }
}

/// Lists longer than this are cut; the count says how long they were.
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
