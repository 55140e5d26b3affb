//! `train: lora:`: low-rank adapters beside frozen matrices.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::validate::{Wrong, check};

/// Adapters of rank `rank` beside the matrices that `targets` names; all pretrained parameters are frozen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraSection {
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Scale numerator: the adapter's output is multiplied by `alpha / rank`; twice the rank by default.
    pub alpha: Option<f64>,
    /// Adapted layers: names as in peft, patterns, or `all`; query and value projections by default.
    pub targets: Option<LoraTargets>,
    /// Dropout probability of the adapter's input.
    pub dropout: f64,
    /// Folder of an adapter to start from, as peft or a run wrote it.
    pub adapter: Option<PathBuf>,
}

/// Linear layers that get adapters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoraTargets {
    /// `all`, or one name.
    One(String),
    List(Vec<String>),
}

impl LoraTargets {
    /// Words for every linear layer: Holdall's and peft's.
    pub const ALL: [&str; 2] = ["all", "all-linear"];

    /// Names and patterns as written.
    pub fn names(&self) -> &[String] {
        match self {
            LoraTargets::One(name) => std::slice::from_ref(name),
            LoraTargets::List(names) => names,
        }
    }
}

impl Default for LoraSection {
    fn default() -> LoraSection {
        LoraSection {
            rank: 16,
            alpha: None,
            targets: None,
            dropout: 0.0,
            adapter: None,
        }
    }
}

impl LoraSection {
    /// Scale numerator, with its default.
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(2.0 * self.rank as f64)
    }

    pub(super) fn check_numbers(&self) -> Result<(), Wrong> {
        check(
            self.rank >= 1,
            "train.lora.rank",
            self.rank,
            "at least 1",
            "`lora: {rank: 16}`; leave `lora` out to train every weight",
        )?;
        let alpha = self.alpha();
        check(
            alpha.is_finite() && alpha > 0.0,
            "train.lora.alpha",
            alpha,
            "a number above 0",
            "`alpha: 32` with `rank: 16` doubles what adapters add",
        )?;
        check(
            (0.0..1.0).contains(&self.dropout),
            "train.lora.dropout",
            self.dropout,
            "at least 0 and less than 1",
            "`dropout: 0.05`, or 0 for none",
        )?;
        check(
            self.targets
                .as_ref()
                .is_none_or(|targets| !targets.names().is_empty()),
            "train.lora.targets",
            "an empty list",
            "names of layers",
            "leave `targets` out for query and value projections, or `targets: all`",
        )
    }
}
