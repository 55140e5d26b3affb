//! Names of labels, and the number of each.

use std::collections::HashMap;

use super::Source;
use crate::error::DataError;
use crate::words::{counted, nearest};

/// The labels there are.
#[derive(Debug)]
pub(crate) struct Labels {
    names: Vec<String>,
    from_head: bool,
}

impl Labels {
    /// Those that a trained head tells apart, in its order.
    pub(crate) fn of_head(names: &[String]) -> Labels {
        Labels {
            names: names.to_vec(),
            from_head: true,
        }
    }

    pub(crate) fn into_names(self) -> Vec<String> {
        self.names
    }
}

/// Labels as rows bring them: every name once, numbered in order of appearance.
#[derive(Default)]
pub(crate) struct Appeared {
    ids: HashMap<String, i32>,
    /// By that number.
    seen: Vec<Seen>,
    /// Of each row, -1 for none.
    pub(crate) id_of: Vec<i32>,
}

struct Seen {
    /// Line of the first row that has it.
    first: u32,
    /// Whether a row has it that is trained on.
    is_trained: bool,
}

impl Appeared {
    pub(crate) fn push(&mut self, label: &str, line: u32, is_held: bool) {
        if label.is_empty() {
            self.id_of.push(-1);
            return;
        }
        // No more labels than rows; past 31 bits of those a label head is no use.
        let next = self.seen.len() as i32;
        let id = match self.ids.get(label) {
            Some(&id) => id,
            None => {
                self.seen.push(Seen {
                    first: line,
                    is_trained: false,
                });
                *self.ids.entry(label.to_owned()).or_insert(next)
            }
        };
        self.seen[id as usize].is_trained |= !is_held;
        self.id_of.push(id);
    }

    /// The names of the rows that are trained on, sorted.
    fn trained_names(&self) -> Vec<String> {
        let trained = self.ids.iter();
        let trained = trained.filter(|(_, id)| self.seen[**id as usize].is_trained);
        let mut names: Vec<String> = trained.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }
}

impl Source {
    /// The labels of the rows that are not held out, sorted; none without a label column.
    pub(crate) fn labels(&self, appeared: &Appeared) -> Result<Labels, DataError> {
        let names = appeared.trained_names();
        match self.columns.label {
            Some(column) if names.len() < 2 => Err(self.few_labels(column, &names)),
            _ => Ok(Labels {
                names,
                from_head: false,
            }),
        }
    }

    /// Each row's label, -1 where it has none.
    pub(crate) fn label_ids(
        &self,
        appeared: Appeared,
        known: &Labels,
    ) -> Result<Vec<i32>, DataError> {
        let Some(column) = self.columns.label else {
            return Ok(appeared.id_of);
        };
        let names = known.names.iter().map(String::as_str);
        // No more labels than rows, which are numbered in 32 bits; a head's are fewer still.
        let known_ids: HashMap<&str, i32> = names.zip(0..).collect();
        let mut known_id_of = vec![-1; appeared.seen.len()];
        let mut first_unknown: Option<(u32, &str)> = None;
        for (name, &id) in &appeared.ids {
            let first = appeared.seen[id as usize].first;
            match known_ids.get(name.as_str()) {
                Some(&known) => known_id_of[id as usize] = known,
                None if first_unknown.is_none_or(|(before, _)| first < before) => {
                    first_unknown = Some((first, name));
                }
                None => {}
            }
        }
        if let Some((row, label)) = first_unknown {
            return Err(self.unknown_label(row, column, label, known));
        }
        let mut id_of = appeared.id_of;
        for id in id_of.iter_mut().filter(|id| **id >= 0) {
            *id = known_id_of[*id as usize];
        }
        Ok(id_of)
    }

    pub(crate) fn note_on_unlabelled(&self, label_of: &[i32]) -> Option<String> {
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

    fn unknown_label(&self, row: u32, column: usize, label: &str, known: &Labels) -> DataError {
        DataError::UnknownLabel {
            path: self.path(),
            row,
            column: self.table.columns()[column].clone(),
            label: label.to_owned(),
            num_known: known.names.len(),
            from_head: known.from_head,
            nearest: nearest(label, known.names.iter().map(String::as_str)),
        }
    }
}
