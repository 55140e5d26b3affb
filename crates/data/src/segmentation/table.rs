//! Pairs of a CSV: columns `image` and `mask`, perhaps `fov`, perhaps a column that says which rows are held out.

use std::path::Path;

use super::layout::Layout;
use super::partners::PairFiles;
use crate::columns::{field_of_view_by_name, image_column, mask_by_name};
use crate::config::{DataConfig, FieldOfViewChoice, Validation};
use crate::error::{DataError, at_row};
use crate::table::Table;
use crate::words::listed;

pub(super) fn read(config: &DataConfig, csv: &Path) -> Result<Layout, DataError> {
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
    let split = match &config.validation {
        Validation::Column { column, .. } => Some(table.column("validation", column)?),
        // Shards that are called `train` and `val`.
        Validation::Share { .. } => match table.split_column() {
            Some(name) => table.position(name)?,
            None => None,
        },
        _ => None,
    };
    let mut layout = Layout {
        root: match &config.image_root {
            Some(root) if !table.has_own_root() => root.clone(),
            _ => table.folder().to_owned(),
        },
        notes,
        ..Layout::default()
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
        };
        let side = split.and_then(cell).unwrap_or_else(|| "train".to_owned());
        match side.to_ascii_lowercase().as_str() {
            "train" | "training" => layout.train.push(pair),
            "validation" | "val" | "valid" | "eval" => {
                layout.validation.get_or_insert_default().push(pair);
            }
            "test" => layout.test.get_or_insert_default().push(pair),
            _ => {
                return Err(DataError::invalid(
                    at_row(csv, row.line()),
                    "train, validation, val, valid, eval or test",
                    format_args!("`{side}`"),
                    "correct the row, or use `validation: 10%`",
                ));
            }
        }
    }
    // Where only `test` is marked, that is what is held out, as for labels.
    if split.is_some() && layout.validation.is_none() {
        layout.validation = layout.test.take();
    }
    Ok(layout)
}
