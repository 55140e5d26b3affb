//! The three sides of a split: training, validation (which selects the best model) and test.
//!
//! A column tells them apart: by words (`train`, `val`, `test`), or by the number of a fold. Where the config names no column, one is
//! recognised by its name and its values. Folders and shards named `train`, `val` and `test` are listed with such a column.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::config::Validation;
use crate::error::{DataError, at_row};
use crate::table::columns::columns_by_name;
use crate::table::{Row, Table};
use crate::words::{counted, listed, thousands};

/// A side of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Rows that are trained on.
    Train,
    /// Rows that select the best model.
    Validation,
    /// Rows that neither training nor model selection sees.
    Test,
}

impl Side {
    /// All sides, in the order of [`Side::index`].
    pub const ALL: [Side; 3] = [Side::Train, Side::Validation, Side::Test];

    /// Side that a cell or a folder name means, in any case.
    pub fn of(word: &str) -> Option<Side> {
        match word.trim().to_ascii_lowercase().as_str() {
            "train" | "training" | "trn" => Some(Side::Train),
            "val" | "valid" | "validation" | "validate" | "dev" | "eval" => Some(Side::Validation),
            "test" | "testing" | "tst" => Some(Side::Test),
            _ => None,
        }
    }

    /// `train`, `validation` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Train => "train",
            Side::Validation => "validation",
            Side::Test => "test",
        }
    }

    /// Index in [`Side::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Names of split columns, in any case, with blanks, dashes or underscores; earlier names take precedence.
const SPLIT_NAMES: [&str; 19] = [
    "split",
    "splits",
    "data_split",
    "dataset_split",
    "subset",
    "partition",
    "set",
    "dataset",
    "phase",
    "usage",
    "fold",
    "folds",
    "kfold",
    "is_test",
    "test",
    "is_validation",
    "is_val",
    "is_valid",
    "is_train",
];
/// Names of `SPLIT_NAMES` that often have another meaning: such a column counts only if its values are sides, and is not mentioned
/// otherwise.
const AMBIGUOUS_NAMES: [&str; 5] = ["set", "dataset", "phase", "usage", "test"];
/// Names of `SPLIT_NAMES` for columns of true and false, and the side of the true rows.
const FLAG_NAMES: [(&str, Side); 5] = [
    ("is_test", Side::Test),
    ("test", Side::Test),
    ("is_validation", Side::Validation),
    ("is_val", Side::Validation),
    ("is_valid", Side::Validation),
];
/// Names of `SPLIT_NAMES` for columns of fold numbers.
const FOLD_NAMES: [&str; 3] = ["fold", "folds", "kfold"];
/// Distinct values up to which a message suggests a config for them: a split column seldom has more.
const MAX_SIDES_TO_NAME: usize = 3;
/// Limit of the number of folds.
const MAX_FOLDS: usize = 50;

/// Column that tells the side of each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SplitColumn {
    pub(crate) column: usize,
    pub(crate) name: String,
    pub(crate) origin: Origin,
    rule: Rule,
    /// Whether a cell that means no side is a training row instead of an error.
    is_lenient: bool,
}

/// How the split column was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Config,
    /// By its name and its values.
    Name,
    /// By its values alone: every cell is a word for a side.
    Values,
    /// Derived from the names of folders or shards.
    Files,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Cells are words for sides.
    Words,
    /// Rows with these values are held out; words for the test side are understood too.
    Values {
        validation: String,
        test: Option<String>,
    },
    /// Rows with a true cell are on this side, all others are trained on.
    Flag(Side),
}

impl SplitColumn {
    /// The column that the config names, that folders or shards provide, or that is recognised by its name and values.
    pub(crate) fn find(
        validation: &Validation,
        table: &Table,
        notes: &mut Vec<String>,
    ) -> Result<Option<SplitColumn>, DataError> {
        let found = |column: usize, origin, rule| SplitColumn {
            column,
            name: table.columns()[column].clone(),
            origin,
            rule,
            is_lenient: !matches!(
                validation,
                Validation::Auto { .. } | Validation::Column { .. }
            ),
        };
        match validation {
            Validation::Unsplit { .. } => return Ok(None),
            Validation::Column {
                column,
                value,
                test,
                ..
            } => {
                let column = table.column("validation", column)?;
                let cells = Cells::of(table, column)?;
                let rule = match value {
                    Some(value) => {
                        cells.check(table, column, [Some(value), test.as_ref()])?;
                        Rule::Values {
                            validation: value.clone(),
                            test: test.clone(),
                        }
                    }
                    None => cells.folds().unwrap_or(Rule::Words),
                };
                return Ok(Some(found(column, Origin::Config, rule)));
            }
            _ => {}
        }
        if let Some(name) = table.split_column() {
            let column = table.column("validation", name)?;
            return Ok(Some(found(column, Origin::Files, Rule::Words)));
        }
        let (by_name, not_understood) = find_by_name(table)?;
        notes.extend(not_understood.map(|text| format!("Careful: {text}")));
        if let Some((column, rule)) = by_name {
            return Ok(Some(found(column, Origin::Name, rule)));
        }
        let by_values = find_by_values(table)?;
        Ok(by_values.map(|column| found(column, Origin::Values, Rule::Words)))
    }

    /// Message where a column is named like a split column and its values are not understood.
    pub(crate) fn not_understood(
        validation: &Validation,
        table: &Table,
    ) -> Result<Option<String>, DataError> {
        let is_said = matches!(
            validation,
            Validation::Unsplit { .. } | Validation::Column { .. }
        );
        if is_said || table.split_column().is_some() {
            return Ok(None);
        }
        let (_, not_understood) = find_by_name(table)?;
        Ok(not_understood)
    }

    pub(crate) fn side(&self, table: &Table, row: Row<'_>) -> Result<Side, DataError> {
        let cell = row.cell(self.column).trim();
        let by_word = Side::of(cell);
        match &self.rule {
            Rule::Values { validation, .. } if is_same(cell, validation) => Ok(Side::Validation),
            Rule::Values {
                test: Some(test), ..
            } if is_same(cell, test) => Ok(Side::Test),
            Rule::Values { .. } if by_word == Some(Side::Test) => Ok(Side::Test),
            Rule::Values { .. } => Ok(Side::Train),
            Rule::Flag(side) if truth(cell) == Some(true) => Ok(*side),
            Rule::Flag(_) => Ok(Side::Train),
            Rule::Words => match by_word {
                Some(side) => Ok(side),
                None if self.is_lenient => Ok(Side::Train),
                None => Err(DataError::invalid(
                    format_args!(
                        "{}: column `{}`",
                        at_row(table.path(), row.line()),
                        self.name
                    ),
                    "train, validation (val, valid, dev, eval) or test",
                    format_args!("`{cell}`"),
                    format_args!(
                        "correct the row; `validation: {{column: {}, value: VALUE}}` holds out the rows of a value, `validation: 10%` a \
                         share of all but test rows",
                        self.name
                    ),
                )),
            },
        }
    }

    /// For the log: the rows of each side, and the column that says so; `None` where folders or files are the sides.
    pub(crate) fn note(&self, [train, validation, test]: [usize; 3]) -> Option<String> {
        (self.origin != Origin::Files).then(|| {
            format!(
                "Split: {} to train on, {} to validate on, {} to test on, {}",
                counted(train, "row"),
                thousands(validation),
                thousands(test),
                self.describe()
            )
        })
    }

    /// For the log: how the column was found, and which fold is held out.
    pub(crate) fn describe(&self) -> String {
        let name = &self.name;
        let by_name = match self.origin {
            Origin::Name => " (found by its name)",
            Origin::Values => " (found by its values)",
            Origin::Config | Origin::Files => "",
        };
        match &self.rule {
            Rule::Words | Rule::Flag(_) => format!("those that `{name}` says{by_name}"),
            Rule::Values { validation, .. } => {
                format!(
                    "those whose `{name}` is {validation}{by_name}; `validation: {{column: {name}, value: ...}}` holds out another"
                )
            }
        }
    }
}

/// The column recognised by its name and values, and a message about one that was not understood.
type FoundByName = (Option<(usize, Rule)>, Option<String>);

fn find_by_name(table: &Table) -> Result<FoundByName, DataError> {
    let is_named =
        |column: usize, names: &[&str]| columns_by_name(table, names).any(|named| named == column);
    let mut not_understood = None;
    for column in columns_by_name(table, &SPLIT_NAMES) {
        let cells = Cells::of(table, column)?;
        if cells.are_sides() {
            return Ok((Some((column, Rule::Words)), not_understood));
        }
        if let (true, Some(rule)) = (is_named(column, &FOLD_NAMES), cells.folds()) {
            return Ok((Some((column, rule)), not_understood));
        }
        let mut flags = FLAG_NAMES.iter();
        let flag = flags.find(|(name, _)| is_named(column, &[name]));
        if let (Some((_, side)), true) = (flag, cells.are_flags()) {
            return Ok((Some((column, Rule::Flag(*side))), not_understood));
        }
        let is_meant = !is_named(column, &AMBIGUOUS_NAMES) || cells.num_sides() > 0;
        if is_meant && not_understood.is_none() {
            not_understood = cells.not_understood(&table.columns()[column]);
        }
    }
    Ok((None, not_understood))
}

/// The first column whose cells are all words for sides, with training and another side among them.
fn find_by_values(table: &Table) -> Result<Option<usize>, DataError> {
    let num_columns = table.columns().len();
    let mut candidates: Vec<(usize, [bool; 3])> = (0..num_columns)
        .map(|column| (column, [false; 3]))
        .collect();
    let mut rows = table.rows()?;
    while let Some(row) = rows.read_any()? {
        if candidates.is_empty() {
            return Ok(None);
        }
        // Unusable rows are counted elsewhere.
        if row.num_fields() == num_columns {
            candidates.retain_mut(|(column, has_side)| {
                let side = Side::of(row.cell(*column));
                side.is_some_and(|side| {
                    has_side[side.index()] = true;
                    true
                })
            });
        }
    }
    let is_split = |[train, validation, test]: &[bool; 3]| *train && (*validation || *test);
    let mut splits = candidates.iter().filter(|(_, has_side)| is_split(has_side));
    Ok(splits.next().map(|(column, _)| *column))
}

/// Truth value of a cell.
fn truth(cell: &str) -> Option<bool> {
    match cell.trim().to_ascii_lowercase().as_str() {
        "1" | "1.0" | "true" | "yes" | "y" | "t" => Some(true),
        "" | "0" | "0.0" | "false" | "no" | "n" | "f" => Some(false),
        _ => None,
    }
}

/// Whether two cells are equal as text or as numbers (pandas writes 3 as 3.0).
fn is_same(cell: &str, value: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    cell.eq_ignore_ascii_case(value.trim())
        || number(cell).is_some_and(|cell| number(value.trim()) == Some(cell))
}

/// Statistics of a column's values.
#[derive(Default)]
struct Cells {
    has_side: [bool; 3],
    /// Line and text of the first cell that means no side.
    first_other: Option<(u32, String)>,
    /// Fold numbers, as long as all cells are small whole numbers and few differ.
    folds: Option<BTreeSet<u64>>,
    /// The first distinct values.
    values: BTreeSet<String>,
}

impl Cells {
    fn of(table: &Table, column: usize) -> Result<Cells, DataError> {
        let mut cells = Cells {
            folds: Some(BTreeSet::new()),
            ..Cells::default()
        };
        let mut rows = table.rows()?;
        while let Some(row) = rows.read_any()? {
            // Unusable rows are counted elsewhere.
            if row.num_fields() == table.columns().len() {
                cells.add(row.line(), row.cell(column).trim());
            }
        }
        Ok(cells)
    }

    fn add(&mut self, line: u32, cell: &str) {
        match Side::of(cell) {
            Some(side) => self.has_side[side.index()] = true,
            None if self.first_other.is_none() => self.first_other = Some((line, cell.to_owned())),
            None => {}
        }
        if self.values.len() < MAX_FOLDS && !self.values.contains(cell) {
            self.values.insert(cell.to_owned());
        }
        if Side::of(cell) == Some(Side::Test) {
            return;
        }
        let fold = cell.parse::<f64>().ok();
        let fold = fold.filter(|fold| *fold >= 0.0 && *fold < 1e6 && fold.fract() == 0.0);
        match (fold, &mut self.folds) {
            (Some(fold), Some(folds)) if folds.len() < MAX_FOLDS => {
                folds.insert(fold as u64);
            }
            _ => self.folds = None,
        }
    }

    fn num_sides(&self) -> usize {
        self.has_side.iter().filter(|has| **has).count()
    }

    /// Whether the values tell training rows from others.
    fn are_sides(&self) -> bool {
        self.has_side[Side::Train.index()] && self.num_sides() > 1
    }

    /// Whether the cells are truth values, both of which occur.
    fn are_flags(&self) -> bool {
        let truths = self.values.iter().map(|value| truth(value));
        let truths: Option<BTreeSet<bool>> = truths.collect();
        truths.is_some_and(|truths| truths.len() == 2)
    }

    /// Message about a column with a split column's name: its values, and a config for them; `None` where all rows are on one side.
    fn not_understood(&self, column: &str) -> Option<String> {
        let (line, cell) = self.first_other.as_ref()?;
        let values: Vec<&String> = self
            .values
            .iter()
            .filter(|value| !value.is_empty())
            .collect();
        let found = if self.num_sides() > 0 {
            format!("row {line} says `{cell}`")
        } else {
            let values: Vec<String> = values.iter().map(|value| (*value).clone()).collect();
            format!("its values are {}", listed(&values))
        };
        let others = &values[values.len().min(1)..];
        let to_write = match others {
            _ if self.num_sides() > 0 || values.len() > MAX_SIDES_TO_NAME => String::new(),
            [] => String::new(),
            [value] => format!("value: {value}"),
            [value, .., test] => format!("value: {value}, test: {test}"),
        };
        let to_write = match to_write.as_str() {
            "" => String::new(),
            values => format!(
                "; `--set 'data.validation={{column: {column}, {values}}}'` holds out rows by their value"
            ),
        };
        Some(format!(
            "column `{column}` is not used as a split: {found}, expected train, validation or test{to_write}"
        ))
    }

    /// Rule for a column of fold numbers: the lowest one is validated on.
    fn folds(&self) -> Option<Rule> {
        let folds = self.folds.as_ref().filter(|folds| folds.len() > 1)?;
        Some(Rule::Values {
            validation: folds.first()?.to_string(),
            test: None,
        })
    }

    /// An error where no row has a value that the config names.
    fn check(
        &self,
        table: &Table,
        column: usize,
        asked: [Option<&String>; 2],
    ) -> Result<(), DataError> {
        let is_there = |value: &&String| self.values.iter().any(|cell| is_same(cell, value));
        // Past the limit of recorded values, the column may still have the missing one.
        let missing = asked.into_iter().flatten().find(|value| !is_there(value));
        match missing {
            Some(value) if self.values.len() < MAX_FOLDS => Err(DataError::invalid(
                format_args!(
                    "{}: column `{}`",
                    table.path().display(),
                    table.columns()[column]
                ),
                format_args!("a row that says `{value}`, as `validation` asks"),
                listed(&self.values.iter().cloned().collect::<Vec<String>>()),
                "name one of the values found",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::Written;

    fn sides(csv: &str, validation: &str) -> (Option<Vec<Side>>, Vec<String>) {
        let written = Written::new(csv.as_bytes());
        let table = written.table();
        let validation: Validation = serde_json::from_str(validation).unwrap();
        let mut notes = Vec::new();
        let split = SplitColumn::find(&validation, &table, &mut notes).unwrap();
        let sides = split.map(|split| {
            let mut rows = table.rows().unwrap();
            let mut sides = Vec::new();
            while let Some(row) = rows.read_any().unwrap() {
                sides.push(split.side(&table, row).unwrap());
            }
            sides
        });
        (sides, notes)
    }

    use Side::{Test, Train, Validation as Held};

    #[test]
    fn a_split_column_is_recognised_by_name_and_values() {
        for name in ["split", "Split", "SET", "Data Split", "subset", "fold"] {
            let csv = format!("image,{name}\na,train\nb,Dev\nc,testing\nd,training\n");
            let (found, _) = sides(&csv, "\"auto\"");
            assert_eq!(found, Some(vec![Train, Held, Test, Train]), "{name}");
        }
        // The column needs a split column's name, or cells that are all sides.
        assert_eq!(
            sides("image,kind\na,train\nb,test\nc,car\n", "\"auto\"").0,
            None
        );
        let (found, notes) = sides("image,kind\na,train\nb,test\n", "\"auto\"");
        assert_eq!(found, Some(vec![Train, Test]));
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(sides("image,set\na,75192\nb,10030\n", "\"auto\"").0, None);
        // All rows are for training: nothing is split.
        assert_eq!(sides("image,split\na,train\nb,train\n", "\"auto\"").0, None);
        let (found, notes) = sides("image,split\na,train\nb,later\n", "\"auto\"");
        assert_eq!(found, None);
        assert!(notes[0].contains("row 3 says `later`"), "{notes:?}");
        for name in ["phase", "Usage", "partition", "tvt"] {
            let csv = format!("image,{name}\na,train\nb,val\nc,test\n");
            let expected = Some(vec![Train, Held, Test]);
            assert_eq!(sides(&csv, "\"auto\"").0, expected, "{name}");
        }
    }

    #[test]
    fn flags_are_sides_and_numbers_are_asked_for() {
        let (found, _) = sides("image,is_test\na,0\nb,1\nc,0\n", "\"auto\"");
        assert_eq!(found, Some(vec![Train, Test, Train]));
        let (found, _) = sides("image,Is_Val\na,False\nb,True\n", "\"auto\"");
        assert_eq!(found, Some(vec![Train, Held]));
        let csv = "image,Split\na,0\nb,1\nc,2\n";
        let (found, notes) = sides(csv, "\"auto\"");
        assert_eq!(found, None);
        assert_eq!(
            notes,
            [
                "Careful: column `Split` is not used as a split: its values are 0, 1, 2, expected train, validation or test; \
              `--set 'data.validation={column: Split, value: 1, test: 2}'` holds out rows by their value"
            ]
        );
        let typed = r#"{"column": "Split", "value": 1, "test": 2}"#;
        assert_eq!(sides(csv, typed).0, Some(vec![Train, Held, Test]));
        // Columns with ambiguous names are not mentioned.
        let (_, notes) = sides("image,set\na,75192\nb,10030\n", "\"auto\"");
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn folds_are_numbers_and_the_first_is_held_out() {
        let csv = "image,fold\na,2\nb,1.0\nc,3\nd,test\n";
        assert_eq!(
            sides(csv, "\"auto\"").0,
            Some(vec![Train, Held, Train, Test])
        );
        let numbers = csv.replace(",test", ",1");
        let first = Some(vec![Train, Held, Train, Held]);
        assert_eq!(sides(&numbers, "\"auto\"").0, first);
        assert_eq!(sides(&numbers, r#"{"column": "fold"}"#).0, first);
        let third = r#"{"column": "fold", "value": 3}"#;
        assert_eq!(sides(csv, third).0, Some(vec![Train, Train, Held, Test]));
        let with_test = r#"{"column": "fold", "value": "3", "test": 2}"#;
        assert_eq!(
            sides(&numbers, with_test).0,
            Some(vec![Test, Train, Held, Train])
        );
        let written = Written::new(csv.as_bytes());
        let table = written.table();
        let nine: Validation = serde_json::from_str(r#"{"column": "fold", "value": 9}"#).unwrap();
        let error = SplitColumn::find(&nine, &table, &mut Vec::new()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("a row that says `9`") && error.contains("1.0, 2, 3, test"),
            "{error}"
        );
    }

    #[test]
    fn test_rows_stay_apart_whatever_is_drawn() {
        let csv = "image,split\na,train\nb,later\nc,test\nd,val\n";
        for validation in ["\"20%\"", "\"none\"", "\"val.csv\""] {
            let (found, _) = sides(csv, validation);
            assert_eq!(found, Some(vec![Train, Train, Test, Held]), "{validation}");
        }
        let written = Written::new(csv.as_bytes());
        let table = written.table();
        let mut notes = Vec::new();
        let split = SplitColumn::find(&Validation::default(), &table, &mut notes);
        let split = split.unwrap().unwrap();
        let mut rows = table.rows().unwrap();
        rows.read_any().unwrap();
        let row = rows.read_any().unwrap().unwrap();
        let error = split.side(&table, row).unwrap_err().to_string();
        assert!(error.contains("row 3: column `split`"), "{error}");
        assert!(error.contains("found `later`"), "{error}");
    }
}
