//! Names of labels, and the number of each.

use std::collections::{BTreeSet, HashMap};

use super::Source;
use crate::error::DataError;
use crate::words::{counted, nearest};

/// The labels there are.
pub(super) struct Labels {
    names: Vec<String>,
    from_head: bool,
}

impl Labels {
    /// Those that a trained head tells apart, in its order.
    pub(super) fn of_head(names: &[String]) -> Labels {
        Labels {
            names: names.to_vec(),
            from_head: true,
        }
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.names
    }
}

impl Source {
    /// The labels of the rows that are not held out, sorted; none without a label column.
    pub(super) fn labels(&self, held: &[bool]) -> Result<Labels, DataError> {
        let mut names = Vec::new();
        if let Some(column) = self.columns.label {
            let training = (0..self.table.num_rows()).filter(|&row| !held[row]);
            let distinct: BTreeSet<&str> = training
                .map(|row| self.table.cell(row, column).trim())
                .filter(|label| !label.is_empty())
                .collect();
            names.extend(distinct.into_iter().map(str::to_owned));
            if names.len() < 2 {
                return Err(self.few_labels(column, &names));
            }
        }
        Ok(Labels {
            names,
            from_head: false,
        })
    }

    /// Each row's label, -1 where it has none.
    pub(super) fn label_ids(&self, labels: &Labels) -> Result<Vec<i32>, DataError> {
        let rows = 0..self.table.num_rows();
        let Some(column) = self.columns.label else {
            return Ok(vec![-1; rows.len()]);
        };
        let names = labels.names.iter().map(String::as_str);
        // No more labels than rows, which are numbered in 32 bits; a head's are fewer still.
        let ids: HashMap<&str, i32> = names.zip(0..).collect();
        rows.map(|row| match self.table.cell(row, column).trim() {
            "" => Ok(-1),
            label => match ids.get(label) {
                Some(&id) => Ok(id),
                None => Err(self.unknown_label(row, column, label, labels)),
            },
        })
        .collect()
    }

    pub(super) fn note_on_unlabelled(&self, label_of: &[i32]) -> Option<String> {
        let column = &self.table.columns()[self.columns.label?];
        let unlabelled = label_of.iter().filter(|label| **label < 0).count();
        let rows = counted(unlabelled, "row");
        (unlabelled > 0).then(|| format!("{rows} without a `{column}`: no label loss for these"))
    }

    fn few_labels(&self, column: usize, names: &[String]) -> DataError {
        DataError::FewLabels {
            path: self.path(),
            column: self.table.columns()[column].clone(),
            found: match names {
                [] => "none".to_owned(),
                [only, ..] => format!("only `{only}`"),
            },
        }
    }

    fn unknown_label(&self, row: usize, column: usize, label: &str, known: &Labels) -> DataError {
        DataError::UnknownLabel {
            path: self.path(),
            row: self.table.line(row),
            column: self.table.columns()[column].clone(),
            label: label.to_owned(),
            num_known: known.names.len(),
            from_head: known.from_head,
            nearest: nearest(label, known.names.iter().map(String::as_str)),
        }
    }
}
