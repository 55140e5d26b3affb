//! Columns of labels and numbers: reads cells, collects label names, and indexes them.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use super::{RowFault, Source};
use crate::config::UnseenLabels;
use crate::error::{DataError, at_row, suggestion};
use crate::samples::target::{ClassRows, Target, TargetKind, TargetValues, UNSEEN};
use crate::table::{Row, Side, Table, TargetColumns};
use crate::words::{counted, listed, nearest, thousands};

/// Source of the targets' labels and statistics.
#[derive(Clone, Copy)]
pub(crate) enum Known<'a> {
    /// The rows themselves.
    FromRows,
    /// The rows of the training file, where this is the validation file.
    Training(&'a [Target]),
    /// The heads of a trained model.
    Heads(&'a [Target]),
}

/// A target during the scan: names are numbered in order of appearance.
pub(crate) struct ScannedTarget {
    names: LabelNames,
    values: TargetValues,
    /// Buffer for the labels of one row.
    row: Vec<u32>,
}

/// Distinct label names.
#[derive(Default)]
struct LabelNames {
    ids: HashMap<String, u32>,
    seen: Vec<[NameRows; 3]>,
    /// Side whose rows are evaluated: names on other sides alone are not reported as unseen. `None` for all sides.
    evaluated: Option<Side>,
}

/// Rows of one side of the split that have a name.
#[derive(Clone, Copy, Default)]
struct NameRows {
    count: usize,
    /// Line of the first row.
    first: u32,
}

/// A name that was not trained on.
struct Unseen<'a> {
    name: &'a str,
    num_rows: usize,
    /// Line of the first row with the name.
    first: u32,
}

impl LabelNames {
    fn number(&mut self, name: &str, line: u32, side: Side) -> u32 {
        // At most as many names as cells; a head with more than 31 bits of them is out of reach.
        let next = self.seen.len() as u32;
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => {
                self.seen.push([NameRows::default(); 3]);
                *self.ids.entry(name.to_owned()).or_insert(next)
            }
        };
        let rows = &mut self.seen[id as usize][side.index()];
        if rows.count == 0 {
            rows.first = line;
        }
        rows.count += 1;
        id
    }

    /// Names in the training rows, sorted.
    fn trained(&self) -> Vec<String> {
        let trained = self.ids.iter();
        let trained =
            trained.filter(|(_, id)| self.seen[**id as usize][Side::Train.index()].count > 0);
        let mut names: Vec<String> = trained.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Index of each name among `known`; `None` where it is missing.
    fn indices(&self, known: &[String]) -> Vec<Option<u32>> {
        let index_of: HashMap<&str, u32> = known.iter().map(String::as_str).zip(0..).collect();
        let mut indices = vec![None; self.seen.len()];
        for (name, &id) in &self.ids {
            indices[id as usize] = index_of.get(name.as_str()).copied();
        }
        indices
    }

    /// Names without an index in the evaluated rows, by descending number of rows.
    fn without(&self, indices: &[Option<u32>]) -> Vec<Unseen<'_>> {
        let is_counted = |side: &Side| self.evaluated.is_none_or(|evaluated| evaluated == *side);
        let names = self
            .ids
            .iter()
            .filter(|(_, id)| indices[**id as usize].is_none());
        let mut unseen: Vec<Unseen<'_>> = names
            .filter_map(|(name, id)| {
                let sides = Side::ALL.into_iter().filter(is_counted);
                let rows = sides.map(|side| self.seen[*id as usize][side.index()]);
                let rows = rows.filter(|rows| rows.count > 0);
                Some(Unseen {
                    name,
                    num_rows: rows.clone().map(|rows| rows.count).sum(),
                    first: rows.map(|rows| rows.first).min()?,
                })
            })
            .collect();
        unseen.sort_by_key(|unseen| (Reverse(unseen.num_rows), unseen.first));
        unseen
    }
}

impl TargetColumns {
    /// Checks a row's cells; returns what is wrong with them.
    pub(super) fn fault(&self, row: Row<'_>, table: &Table) -> Option<RowFault> {
        let fault = |column: usize, expected| {
            Some(RowFault::Cell {
                column: table.columns()[column].clone(),
                expected: Cow::Borrowed(expected),
                found: row.cell(column).trim().to_owned(),
            })
        };
        match self {
            TargetColumns::Class(_) | TargetColumns::Classes { .. } => None,
            &TargetColumns::Number(column) => match number(row.cell(column)) {
                Ok(_) => None,
                Err(()) => fault(column, "a number"),
            },
            TargetColumns::Each(columns) => {
                let is_empty = |column: &&usize| row.cell(**column).trim().is_empty();
                if columns.iter().all(|column| is_empty(&column)) {
                    return None;
                }
                let mut bad = columns
                    .iter()
                    .filter(|column| flag(row.cell(**column)).is_none());
                bad.next().and_then(|column| fault(*column, "0 or 1"))
            }
        }
    }

    fn scan(&self) -> ScannedTarget {
        ScannedTarget {
            names: LabelNames::default(),
            row: Vec::new(),
            values: match self {
                TargetColumns::Class(_) => TargetValues::Class(Vec::new()),
                TargetColumns::Number(_) => TargetValues::Number(Vec::new()),
                TargetColumns::Classes { .. } | TargetColumns::Each(_) => {
                    TargetValues::Classes(ClassRows::default())
                }
            },
        }
    }
}

impl ScannedTarget {
    /// Limits the count of unseen labels to the rows of this side.
    pub(super) fn evaluate(&mut self, side: Side) {
        self.names.evaluated = Some(side);
    }

    /// Adds a row whose cells are not read.
    pub(super) fn push_unknown(&mut self) {
        match &mut self.values {
            TargetValues::Class(values) => values.push(-1),
            TargetValues::Classes(rows) => rows.push(None),
            TargetValues::Number(values) => values.push(f32::NAN),
        }
    }

    /// Adds a row whose cells are valid.
    pub(super) fn push(&mut self, columns: &TargetColumns, row: Row<'_>, side: Side) {
        let ScannedTarget {
            names,
            values,
            row: labels,
        } = self;
        match (columns, values) {
            (TargetColumns::Class(column), TargetValues::Class(values)) => {
                values.push(match row.cell(*column).trim() {
                    "" => -1,
                    label => names.number(label, row.line(), side) as i32,
                });
            }
            (TargetColumns::Classes { column, separator }, TargetValues::Classes(rows)) => {
                let cell = row.cell(*column).trim();
                labels.clear();
                for label in cell.split(separator.as_str()).map(str::trim) {
                    if !label.is_empty() {
                        labels.push(names.number(label, row.line(), side));
                    }
                }
                labels.sort_unstable();
                labels.dedup();
                rows.push((!cell.is_empty()).then_some(labels.as_slice()));
            }
            (TargetColumns::Each(columns), TargetValues::Classes(rows)) => {
                let flags = columns.iter().map(|column| flag(row.cell(*column)));
                labels.clear();
                let set = (0..)
                    .zip(flags.clone())
                    .filter(|(_, flag)| *flag == Some(true));
                labels.extend(set.map(|(label, _)| label));
                let is_known = flags.clone().any(|flag| flag.is_some());
                rows.push(is_known.then_some(labels.as_slice()));
            }
            (TargetColumns::Number(column), TargetValues::Number(values)) => {
                values.push(number(row.cell(*column)).ok().flatten().unwrap_or(f32::NAN));
            }
            _ => unreachable!("`scan` made the values for these columns"),
        }
    }
}

/// Number in a cell; `None` for an empty one.
fn number(cell: &str) -> Result<Option<f32>, ()> {
    match cell.trim() {
        "" => Ok(None),
        text => match text.parse::<f32>() {
            Ok(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(()),
        },
    }
}

/// Truth value of a cell.
fn flag(cell: &str) -> Option<bool> {
    const YES: [&str; 4] = ["1", "1.0", "yes", "true"];
    const NO: [&str; 4] = ["0", "0.0", "no", "false"];
    let says = |words: [&str; 4]| {
        words
            .iter()
            .any(|word| word.eq_ignore_ascii_case(cell.trim()))
    };
    if says(YES) {
        Some(true)
    } else {
        says(NO).then_some(false)
    }
}

impl Source {
    pub(super) fn scan_targets(&self) -> Vec<ScannedTarget> {
        let targets = self.columns.targets.iter();
        targets.map(|target| target.columns.scan()).collect()
    }

    /// Targets and their values by row, in the order of the known targets. Mean and deviation of numeric targets are still to
    /// be computed.
    pub(crate) fn resolve(
        &self,
        scanned: Vec<ScannedTarget>,
        known: Known<'_>,
        num_samples: usize,
    ) -> Result<(Vec<Target>, Vec<TargetValues>), DataError> {
        let (Known::Training(targets) | Known::Heads(targets)) = known else {
            let all = self.columns.targets.iter().zip(scanned);
            return all
                .map(|(target, scanned)| {
                    let kind = self.kind(&target.columns, &scanned)?;
                    let values = self.values(&target.columns, scanned, &kind, known)?;
                    let name = target.name.clone();
                    Ok((Target { name, kind }, values))
                })
                .collect();
        };
        let mut scanned: Vec<Option<ScannedTarget>> = scanned.into_iter().map(Some).collect();
        let mut all = Vec::new();
        for target in targets {
            let mut columns = self.columns.targets.iter();
            let at = columns.position(|own| own.name == target.name);
            all.push(match at.and_then(|at| Some((at, scanned[at].take()?))) {
                Some((at, scanned)) => {
                    let columns = &self.columns.targets[at].columns;
                    self.values(columns, scanned, &target.kind, known)?
                }
                None => TargetValues::unknown(&target.kind, num_samples),
            });
        }
        let unknown = scanned.iter().position(Option::is_some);
        match unknown {
            Some(at) => Err(Source::unknown_target(
                &self.columns.targets[at].name,
                targets,
            )),
            None => Ok((targets.to_vec(), all)),
        }
    }

    fn kind(
        &self,
        columns: &TargetColumns,
        scanned: &ScannedTarget,
    ) -> Result<TargetKind, DataError> {
        let names = match columns {
            TargetColumns::Each(columns) => {
                let names = columns.iter().map(|at| self.table.columns()[*at].clone());
                names.collect()
            }
            _ => scanned.names.trained(),
        };
        match columns {
            TargetColumns::Number(_) => Ok(TargetKind::Number {
                mean: 0.0,
                std: 1.0,
            }),
            TargetColumns::Class(column) if names.len() < 2 => {
                Err(self.few_labels(*column, "two labels", &names))
            }
            TargetColumns::Classes { column, .. } if names.is_empty() => {
                Err(self.few_labels(*column, "one label", &names))
            }
            TargetColumns::Class(_) => Ok(TargetKind::Class { names }),
            TargetColumns::Classes { .. } | TargetColumns::Each(_) => {
                Ok(TargetKind::Classes { names })
            }
        }
    }

    fn values(
        &self,
        columns: &TargetColumns,
        scanned: ScannedTarget,
        kind: &TargetKind,
        known: Known<'_>,
    ) -> Result<TargetValues, DataError> {
        let unseen = self.unseen_labels;
        let indices = |column: usize| {
            let indices = scanned.names.indices(kind.names());
            let unknown = scanned.names.without(&indices);
            // If no row has a label of the model, the column is a different one.
            let is_other = !unknown.is_empty() && indices.iter().all(Option::is_none);
            let first = unknown.iter().min_by_key(|label| label.first);
            match first.filter(|_| unseen == UnseenLabels::Fail || is_other) {
                Some(label) => {
                    Err(self.unknown_label(label.first, column, label.name, kind, known))
                }
                None => Ok(indices),
            }
        };
        Ok(match (columns, scanned.values, kind) {
            (
                TargetColumns::Class(column),
                TargetValues::Class(mut ids),
                TargetKind::Class { .. },
            ) => {
                let indices = indices(*column)?;
                let unseen = if unseen == UnseenLabels::Skip {
                    -1
                } else {
                    UNSEEN
                };
                for id in ids.iter_mut().filter(|id| **id >= 0) {
                    *id = indices[*id as usize].map_or(unseen, |index| index as i32);
                }
                TargetValues::Class(ids)
            }
            (
                TargetColumns::Classes { column, .. },
                TargetValues::Classes(rows),
                TargetKind::Classes { .. },
            ) => TargetValues::Classes(rows.renumbered(&indices(*column)?, unseen)),
            (
                TargetColumns::Each(columns),
                TargetValues::Classes(rows),
                TargetKind::Classes { names },
            ) => {
                let mut indices = Vec::new();
                for &column in columns {
                    let name = &self.table.columns()[column];
                    let index = names.iter().position(|known| known == name);
                    let index =
                        index.ok_or_else(|| self.unknown_label(1, column, name, kind, known));
                    indices.push(Some(index? as u32));
                }
                TargetValues::Classes(rows.renumbered(&indices, unseen))
            }
            (
                TargetColumns::Number(_),
                values @ TargetValues::Number(_),
                TargetKind::Number { .. },
            ) => values,
            _ => return Err(self.other_kind(columns, kind)),
        })
    }

    /// Notes on rows whose label was not trained on, and how they are treated; with labels from the rows, only held-out rows have such
    /// labels.
    pub(super) fn notes_on_unseen(
        &self,
        scanned: &[ScannedTarget],
        known: Known<'_>,
    ) -> Vec<String> {
        const MOST_NAMES: usize = 5;
        let mut notes = Vec::new();
        for (target, scanned) in self.columns.targets.iter().zip(scanned) {
            let (TargetColumns::Class(column) | TargetColumns::Classes { column, .. }) =
                target.columns
            else {
                continue;
            };
            let trained = match known {
                Known::FromRows => scanned.names.trained(),
                Known::Training(targets) | Known::Heads(targets) => {
                    let own = targets.iter().find(|known| known.name == target.name);
                    own.map_or(Vec::new(), |own| own.kind.names().to_vec())
                }
            };
            let indices = scanned.names.indices(&trained);
            let unseen = scanned.names.without(&indices);
            let num_rows: usize = unseen.iter().map(|label| label.num_rows).sum();
            if num_rows == 0 {
                continue;
            }
            let mut names: Vec<String> = unseen
                .iter()
                .take(MOST_NAMES)
                .map(|Unseen { name, num_rows, .. }| {
                    let meant = nearest(name, trained.iter().map(String::as_str));
                    let meant = meant.map_or(String::new(), |near| format!(", like `{near}`"));
                    format!("{name} {}{meant}", thousands(*num_rows))
                })
                .collect();
            if unseen.len() > MOST_NAMES {
                names.push(format!("{} more", thousands(unseen.len() - MOST_NAMES)));
            }
            let what_becomes = match (self.unseen_labels, &target.columns) {
                (UnseenLabels::Skip, _) => "left out of the scores",
                (_, TargetColumns::Class(_)) => {
                    "scored as wrong; `unseen_labels: skip` under `data:` leaves them out"
                }
                _ => {
                    "their other labels are scored; `unseen_labels: skip` under `data:` leaves them out"
                }
            };
            notes.push(format!(
                "{} with a `{}` that was not trained on ({}): {what_becomes}",
                counted(num_rows, "row"),
                self.table.columns()[column],
                names.join("; ")
            ));
        }
        notes
    }

    /// Notes on rows without a value, and how training treats them.
    pub(super) fn notes_on_unlabelled(
        &self,
        scanned: &[ScannedTarget],
        sides: &[Side],
    ) -> Vec<String> {
        let mut notes = Vec::new();
        for (target, ScannedTarget { values, .. }) in self.columns.targets.iter().zip(scanned) {
            let samples = (0..values.len()).filter(|sample| sides[*sample] != Side::Test);
            let unknown = samples.filter(|sample| !values.is_known(*sample));
            let rows = counted(unknown.count(), "row");
            let (what, loss) = match &target.columns {
                TargetColumns::Class(column) | TargetColumns::Classes { column, .. } => {
                    (&self.table.columns()[*column], "no label loss")
                }
                TargetColumns::Number(column) => (&self.table.columns()[*column], "no loss"),
                TargetColumns::Each(_) => (&target.name, "no label loss"),
            };
            if rows != counted(0, "row") {
                notes.push(format!("{rows} without a `{what}`: {loss} for these"));
            }
        }
        notes
    }

    fn few_labels(&self, column: usize, least: &'static str, names: &[String]) -> DataError {
        let column = &self.table.columns()[column];
        let found = match names {
            [] => "none".to_owned(),
            [only, ..] => format!("only `{only}`"),
        };
        DataError::invalid(
            format_args!("{}: column `{column}`", self.table.path().display()),
            format_args!("at least {least}"),
            found,
            "leave `label` out to train without a label head, or name another column",
        )
    }

    fn unknown_label(
        &self,
        row: u32,
        column: usize,
        label: &str,
        kind: &TargetKind,
        known: Known<'_>,
    ) -> DataError {
        let column = &self.table.columns()[column];
        let (whose, otherwise) = match known {
            Known::Heads(_) => (
                "trained head",
                "the head was trained without it; correct the row or remove it",
            ),
            _ => (
                "training rows",
                "no training row has it; move one there, or correct the row",
            ),
        };
        let nearest = nearest(label, kind.names().iter().map(String::as_str));
        DataError::invalid(
            format_args!("{}: column `{column}`", at_row(self.table.path(), row)),
            format_args!(
                "one of {} labels of the {whose}",
                thousands(kind.names().len())
            ),
            format_args!("`{label}`"),
            suggestion(nearest, otherwise),
        )
    }

    fn unknown_target(name: &str, known: &[Target]) -> DataError {
        let known: Vec<String> = known.iter().map(|target| target.name.clone()).collect();
        DataError::invalid(
            format_args!("data.targets.{name}"),
            format_args!("one of the model's {}", listed(&known)),
            "another",
            "leave it out, or name the target as the model does",
        )
    }

    fn other_kind(&self, columns: &TargetColumns, kind: &TargetKind) -> DataError {
        let mut targets = self.columns.targets.iter();
        let target = targets.find(|target| std::ptr::eq(&target.columns, columns));
        let found = match columns {
            TargetColumns::Class(_) => "one label per picture",
            TargetColumns::Number(_) => "a number",
            TargetColumns::Classes { .. } | TargetColumns::Each(_) => "several labels per picture",
        };
        DataError::invalid(
            format_args!("data.targets.{}", target.map_or("", |target| &target.name)),
            format_args!("{}, as the model was trained", kind.describe()),
            found,
            "one label: COLUMN; several: {column: tags, separator: \"|\"} or {columns: [door, wheel]}; a number: {number: age}",
        )
    }
}

/// Computes mean and deviation of numeric targets over the training rows.
pub(crate) fn standardize(targets: &mut [Target], values: &[TargetValues], sides: &[Side]) {
    for (target, values) in targets.iter_mut().zip(values) {
        let (TargetKind::Number { mean, std }, TargetValues::Number(values)) =
            (&mut target.kind, values)
        else {
            continue;
        };
        let trained = values.iter().zip(sides);
        let trained = trained.filter(|(value, side)| !value.is_nan() && **side == Side::Train);
        let trained = trained.map(|(value, _)| f64::from(*value));
        let count = trained.clone().count().max(1) as f64;
        *mean = trained.clone().sum::<f64>() / count;
        let variance = trained.map(|value| (value - *mean).powi(2)).sum::<f64>() / count;
        *std = if variance > 0.0 { variance.sqrt() } else { 1.0 };
    }
}
