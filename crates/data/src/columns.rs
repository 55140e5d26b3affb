//! Which column means what, where the config does not say: by its usual names.

use crate::config::DataConfig;
use crate::error::DataError;
use crate::table::{Row, Table};
use crate::template::Template;

const IMAGE_NAMES: &[&str] = &[
    "image",
    "image_path",
    "path",
    "file",
    "filename",
    "filepath",
    "image_file",
    "img",
];
const CAPTION_NAMES: &[&str] = &["caption", "text", "description", "title", "sentence"];
const LABEL_NAMES: &[&str] = &["make", "label", "class", "category"];

/// The columns of a table that make a sample.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Image paths.
    pub image: usize,
    /// Captions.
    pub caption: Template,
    /// Labels, if the config names them.
    pub label: Option<usize>,
}

impl Columns {
    /// The config's columns, guessed by their usual names where it is silent; guesses go into
    /// `notes`. Labels are never guessed.
    pub fn find(
        config: &DataConfig,
        table: &Table,
        notes: &mut Vec<String>,
    ) -> Result<Columns, DataError> {
        let label = match config.label_column() {
            Some(name) => Some(table.column("label", name)?),
            None => None,
        };
        Ok(Columns {
            image: image(config, table, notes)?,
            caption: caption(config, table, notes)?,
            label,
        })
    }

    /// Writes a row's image path, with `/` for `\\`, over what `out` held.
    pub fn image_into(&self, row: Row<'_>, out: &mut String) {
        out.clear();
        let cell = row.cell(self.image).trim();
        out.extend(cell.chars().map(|c| if c == '\\' { '/' } else { c }));
    }
}

/// A column of labels by its usual names: make, label, class, category.
pub fn guess_label(table: &Table) -> Option<&str> {
    usual(table, LABEL_NAMES).map(|column| table.columns()[column].as_str())
}

/// A column of captions by its usual names: caption, text, description, title, sentence; or the only column there is.
pub fn caption_column(table: &Table, notes: &mut Vec<String>) -> Result<usize, DataError> {
    if table.columns().len() == 1 {
        return Ok(0);
    }
    match usual(table, CAPTION_NAMES) {
        Some(column) => {
            notes.push(guessed("Caption", table, column));
            table.column("caption", &table.columns()[column])
        }
        None => Err(DataError::NoUsualColumn {
            path: table.path().to_owned(),
            key: "caption",
            names: CAPTION_NAMES,
            columns: table.columns().to_vec(),
            hint: format!("name it: {}:COLUMN", table.path().display()),
        }),
    }
}

fn image(config: &DataConfig, table: &Table, notes: &mut Vec<String>) -> Result<usize, DataError> {
    if let Some(name) = &config.image {
        return table.column("image", name);
    }
    match usual(table, IMAGE_NAMES) {
        Some(column) => {
            notes.push(guessed("Image", table, column));
            // By its name again: a namesake is an error.
            table.column("image", &table.columns()[column])
        }
        None => Err(DataError::NoUsualColumn {
            path: table.path().to_owned(),
            key: "image",
            names: IMAGE_NAMES,
            columns: table.columns().to_vec(),
            hint: format!(
                "name the column of image paths: `image: {}`",
                table.columns()[0]
            ),
        }),
    }
}

fn caption(
    config: &DataConfig,
    table: &Table,
    notes: &mut Vec<String>,
) -> Result<Template, DataError> {
    if let Some(caption) = &config.caption {
        return Template::new(caption, table);
    }
    match usual(table, CAPTION_NAMES) {
        Some(column) => {
            notes.push(guessed("Caption", table, column));
            let column = table.column("caption", &table.columns()[column])?;
            Ok(Template::of_column(table, column))
        }
        None => {
            let column = config.label_column().or(guess_label(table));
            let column = column.unwrap_or(&table.columns()[table.columns().len() - 1]);
            Err(DataError::NoUsualColumn {
                path: table.path().to_owned(),
                key: "caption",
                names: CAPTION_NAMES,
                columns: table.columns().to_vec(),
                hint: format!(
                    "name it, or write a template: `caption: \"a photo of a {{{column}}}\"`"
                ),
            })
        }
    }
}

fn guessed(what: &str, table: &Table, column: usize) -> String {
    let name = &table.columns()[column];
    format!("{what} column: `{name}` (found by its name)")
}

fn usual(table: &Table, names: &[&str]) -> Option<usize> {
    names.iter().find_map(|name| {
        let mut columns = table.columns().iter();
        columns.position(|column| column.eq_ignore_ascii_case(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::Written;

    fn table(header: &str) -> Table {
        let commas = ",".repeat(header.matches(',').count());
        let text = format!("{header}\nx{commas}\n");
        Written::new(text.as_bytes()).table()
    }

    #[test]
    fn usual_names_are_found_and_noted() {
        let mut notes = Vec::new();
        let config = DataConfig::default();
        let columns =
            Columns::find(&config, &table("id,Text,IMAGE_PATH,make"), &mut notes).unwrap();
        assert_eq!((columns.image, columns.label), (2, None));
        assert_eq!(columns.caption.text(), "{Text}");
        assert_eq!(
            notes,
            [
                "Image column: `IMAGE_PATH` (found by its name)",
                "Caption column: `Text` (found by its name)"
            ]
        );
    }

    #[test]
    fn named_columns_are_taken_without_a_note() {
        let mut notes = Vec::new();
        let config = DataConfig {
            image: Some("photo".to_owned()),
            caption: Some("a {make}".to_owned()),
            label: Some("make".to_owned()),
            ..DataConfig::default()
        };
        let columns = Columns::find(&config, &table("image,photo,make"), &mut notes).unwrap();
        assert_eq!((columns.image, columns.label), (1, Some(2)));
        assert!(notes.is_empty());
    }

    #[test]
    fn what_is_not_found_is_said() {
        let error = |config: &DataConfig, header: &str| {
            Columns::find(config, &table(header), &mut Vec::new())
                .unwrap_err()
                .to_string()
        };
        let config = DataConfig::default();
        assert!(error(&config, "image,image,caption").contains("expected one column `image`"));
        assert!(error(&config, "photo,caption").contains("`image: photo`"));
        assert!(error(&config, "image,make").contains("a photo of a {make}"));
        let config = DataConfig {
            label: Some("mkae".to_owned()),
            ..config
        };
        assert!(error(&config, "image,caption,make").contains("did you mean `make`?"));
    }

    #[test]
    fn a_label_is_guessed_only_when_asked() {
        assert_eq!(guess_label(&table("image,class,Make")), Some("Make"));
        assert_eq!(guess_label(&table("image,caption")), None);
    }
}
