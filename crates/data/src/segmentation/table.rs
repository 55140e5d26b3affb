//! Pairs of a CSV: columns `image` and `mask`, and optionally `fov`, a split column and a group column.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::config::{DataConfig, FieldOfViewChoice};
use crate::error::{DataError, at_row};
use crate::table::pair_layout::PairLayout;
use crate::table::{
    PairFiles, Side, SplitColumn, Table, field_of_view_by_name, group_by_name, image_column,
    mask_by_name,
};
use crate::words::listed;

/// Rows that belong together, such as those of a patient.
pub(super) struct PairGroups {
    pub(super) column: String,
    /// Whether the config names the column; a column found by its name does not affect the split.
    pub(super) is_asked: bool,
    /// Group of an image, by its path. An image whose cell is empty is a group of its own.
    pub(super) group_of: HashMap<String, String>,
}

impl PairGroups {
    /// Group numbers of these pairs, equal for equal groups.
    pub(super) fn of(&self, pairs: &[PairFiles]) -> Vec<u32> {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut groups = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let group = self.group_of.get(&pair.image).unwrap_or(&pair.image);
            let next = numbers.len() as u32;
            groups.push(*numbers.entry(group).or_insert(next));
        }
        groups
    }

    /// Images whose group has pairs in an earlier list, and the number of such groups.
    pub(super) fn leaks(&self, lists: &[&[PairFiles]]) -> (Vec<String>, usize) {
        let mut first_list: HashMap<&str, usize> = HashMap::new();
        let mut groups: BTreeSet<&str> = BTreeSet::new();
        let mut images = Vec::new();
        for (at, pairs) in lists.iter().enumerate() {
            for pair in *pairs {
                let Some(group) = self.group_of.get(&pair.image) else {
                    continue;
                };
                if *first_list.entry(group).or_insert(at) < at {
                    groups.insert(group);
                    images.push(pair.image.clone());
                }
            }
        }
        (images, groups.len())
    }
}

/// Pairs, their groups, and a message where a column is named like a split column and is not understood.
pub(super) fn read(
    config: &DataConfig,
    csv: &Path,
) -> Result<(PairLayout, Option<PairGroups>, Option<String>), DataError> {
    let table = Table::open_separated(csv, config.separator)?;
    let mut notes = table.notes().to_vec();
    let image = image_column(config, &table, &mut notes)?;
    let mask = match (&config.mask, mask_by_name(&table)) {
        (Some(name), _) => table.column("mask", name)?,
        (None, Some(name)) => table.column("mask", name)?,
        (None, None) => {
            return Err(DataError::invalid(
                csv.display(),
                "a column of masks, such as `mask`",
                listed(table.columns()),
                "name the column of mask paths: `data: {mask: COLUMN}`",
            ));
        }
    };
    let field_of_view = match &config.field_of_view {
        FieldOfViewChoice::None => None,
        FieldOfViewChoice::Named(name) => Some(table.column("field_of_view", name)?),
        FieldOfViewChoice::Auto => match field_of_view_by_name(&table) {
            Some(name) => Some(table.column("field_of_view", name)?),
            None => None,
        },
    };
    let split = SplitColumn::find(&config.validation, &table, &mut notes)?;
    let not_understood = SplitColumn::not_understood(&config.validation, &table)?;
    let group = match config.validation.group() {
        Some(name) => Some(table.column("validation", name)?),
        None => group_by_name(&table),
    };
    let mut groups = group.map(|column| PairGroups {
        column: table.columns()[column].clone(),
        is_asked: config.validation.group().is_some(),
        group_of: HashMap::new(),
    });
    let mut layout = PairLayout {
        root: match &config.image_root {
            Some(root) if !table.has_own_root() => root.clone(),
            _ => table.folder().to_owned(),
        },
        notes,
        ..PairLayout::default()
    };
    let mut rows = table.rows()?;
    while let Some(row) = rows.read()? {
        let cell = |column: usize| -> Option<String> {
            let text = row.cell(column).trim().replace('\\', "/");
            (!text.is_empty()).then_some(text)
        };
        let must = |column: usize| {
            cell(column)
                .filter(|text| !text.contains('\n'))
                .ok_or_else(|| {
                    DataError::invalid(
                        format_args!(
                            "{}: column `{}`",
                            at_row(csv, row.line()),
                            table.columns()[column]
                        ),
                        "a path",
                        "an empty cell, or one with a line break",
                        "fill it in, or remove the row",
                    )
                })
        };
        let pair = PairFiles {
            image: must(image)?,
            mask: Some(must(mask)?),
            field_of_view: field_of_view.and_then(cell),
            further_images: Vec::new(),
            line: row.line(),
        };
        if let (Some(groups), Some(group)) = (&mut groups, group.and_then(cell)) {
            groups.group_of.insert(pair.image.clone(), group);
        }
        let side = match &split {
            Some(split) => split.side(&table, row)?,
            None => Side::Train,
        };
        match side {
            Side::Train => layout.train.push(pair),
            Side::Validation => layout.validation.get_or_insert_default().push(pair),
            Side::Test => layout.test.get_or_insert_default().push(pair),
        }
    }
    if let Some(split) = &split {
        let held = [&layout.validation, &layout.test].map(|side| side.as_ref().map_or(0, Vec::len));
        let note = split.note([layout.train.len(), held[0], held[1]]);
        layout.notes.extend(note);
    }
    Ok((layout, groups, not_understood))
}
