//! Finds the columns of images, captions, labels, masks and groups: by the config, else by their usual names.

use crate::config::{DataConfig, LABEL, TargetConfig};
use crate::error::DataError;
use crate::media::{Media, is_clip_name};
use crate::table::template::Template;
use crate::table::{Row, Table};
use crate::words::listed;

const IMAGE_NAMES: &[&str] = &[
    "image",
    "image_path",
    "path",
    "file",
    "filename",
    "filepath",
    "image_file",
    "img",
    "file_name",
    "file_path",
    "image_name",
    "image_filename",
    "img_path",
    "imagepath",
];
const CAPTION_NAMES: &[&str] = &[
    "caption",
    "text",
    "description",
    "title",
    "sentence",
    "report",
    "captions",
    "alt_text",
    "txt",
];
const LABEL_NAMES: &[&str] = &[
    "make",
    "label",
    "class",
    "category",
    "labels",
    "class_name",
    "cls",
];
const MASK_NAMES: &[&str] = &["mask", "mask_path", "masks", "segmentation"];
const FIELD_OF_VIEW_NAMES: &[&str] = &["fov", "fov_path", "field_of_view"];
const CLIP_NAMES: &[&str] = &["clip", "clip_path", "video", "video_path", "frames"];
/// Columns whose rows of equal value belong on one side of a split.
const GROUP_NAMES: &[&str] = &[
    "patient",
    "patient_id",
    "patientid",
    "subject",
    "subject_id",
    "subjectid",
    "participant",
    "participant_id",
    "person_id",
    "study",
    "study_id",
    "studyid",
    "studyinstanceuid",
    "study_instance_uid",
    "case_id",
];
/// Names that are usual for pictures too: the first rows decide whether the column names clips.
const FILE_NAMES: &[&str] = &["filename", "file_name", "filepath", "file", "path"];

/// Whether a task needs captions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Captions {
    /// Each picture has a caption: from a column, a template, or made of its label.
    Required,
    /// Captions are not read.
    None,
}

/// The columns that make a sample.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Column of image or clip paths.
    pub image: usize,
    /// Template of captions, if the task needs them.
    pub caption: Option<Template>,
    /// The label column that captions are made of, where the table has no captions.
    pub caption_label: Option<usize>,
    /// Columns of the targets, in the order of the targets' names.
    pub targets: Vec<NamedColumns>,
    /// Name of the first target in the config with one label per picture.
    leading_label: Option<String>,
}

/// A target's name and columns.
#[derive(Clone, Debug)]
pub struct NamedColumns {
    pub name: String,
    pub columns: TargetColumns,
}

#[derive(Clone, Debug)]
pub enum TargetColumns {
    /// One label per picture.
    Class(usize),
    /// Several labels in one cell.
    Classes {
        column: usize,
        /// Text between two labels.
        separator: String,
    },
    /// One 0/1 column per label.
    Each(Vec<usize>),
    /// A number.
    Number(usize),
}

impl Columns {
    /// Finds the config's columns, and columns of usual names where the config names none; `notes` says which were found by name. A label
    /// column is never guessed: without a config, only class folders have labels.
    pub fn find(
        config: &DataConfig,
        (media, captions): (Media, Captions),
        table: &Table,
        notes: &mut Vec<String>,
    ) -> Result<Columns, DataError> {
        let key = if config.targets.is_empty() {
            "label"
        } else {
            "targets"
        };
        let mut targets = Vec::new();
        for (name, target) in config.targets() {
            targets.push(NamedColumns {
                name: name.to_owned(),
                columns: target_columns(table, key, target)?,
            });
        }
        if table.is_listing() && config.label.is_none() && config.targets.is_empty() {
            targets.push(NamedColumns {
                name: LABEL.to_owned(),
                columns: TargetColumns::Class(table.column("label", LABEL)?),
            });
        }
        let image = match media {
            Media::Pictures => image_column(config, table, notes)?,
            Media::Clips => video_column(config, table, notes)?,
        };
        let mut columns = Columns {
            image,
            caption: None,
            caption_label: None,
            targets,
            leading_label: config.leading_label().map(str::to_owned),
        };
        if captions == Captions::Required {
            columns.find_caption(config, media, table, notes)?;
        }
        Ok(columns)
    }

    /// The column of the first target in the config with one label per picture.
    pub fn label(&self) -> Option<usize> {
        let mut labels = self
            .targets
            .iter()
            .filter_map(|target| match target.columns {
                TargetColumns::Class(column) => Some((&target.name, column)),
                _ => None,
            });
        let leading = self.leading_label.as_ref();
        let found = labels.clone().find(|(name, _)| Some(*name) == leading);
        found.or_else(|| labels.next()).map(|(_, column)| column)
    }

    /// Whether a target's labels stratify the validation split.
    pub(crate) fn is_leading(&self, name: &str) -> bool {
        self.leading_label.as_deref() == Some(name)
    }

    fn find_caption(
        &mut self,
        config: &DataConfig,
        media: Media,
        table: &Table,
        notes: &mut Vec<String>,
    ) -> Result<(), DataError> {
        let label = match config.caption {
            None if usual(table, CAPTION_NAMES).is_none() => self.label(),
            _ => None,
        };
        self.caption = Some(match label {
            None => caption(config, table, notes)?,
            Some(column) => {
                let name = &table.columns()[column];
                let template = match media {
                    Media::Pictures => format!("a photo of a {{{name}}}"),
                    Media::Clips => format!("a video of a {{{name}}}"),
                };
                notes.push(format!(
                    "Captions: `{template}`, made of the label (no caption column; `caption:` under `data:` names one)"
                ));
                self.caption_label = Some(column);
                Template::new(&template, table)?
            }
        });
        Ok(())
    }

    /// Replaces `out` by a row's image path, with `/` for `\\`.
    pub fn image_into(&self, row: Row<'_>, out: &mut String) {
        out.clear();
        let cell = row.cell(self.image).trim();
        out.extend(cell.chars().map(|c| if c == '\\' { '/' } else { c }));
    }
}

/// Finds a label column by its usual names: make, label, class, category.
pub fn guess_label(table: &Table) -> Option<&str> {
    usual(table, LABEL_NAMES).map(|column| table.columns()[column].as_str())
}

pub(crate) fn caption_by_name(table: &Table) -> Option<&str> {
    usual(table, CAPTION_NAMES).map(|column| table.columns()[column].as_str())
}

/// Finds a mask column by its usual names.
pub fn mask_by_name(table: &Table) -> Option<&str> {
    usual(table, MASK_NAMES).map(|column| table.columns()[column].as_str())
}

pub(crate) fn field_of_view_by_name(table: &Table) -> Option<&str> {
    usual(table, FIELD_OF_VIEW_NAMES).map(|column| table.columns()[column].as_str())
}

/// Finds a clip column by its usual names, or a file column whose first rows name a clip: a file, or a folder of frames.
pub(crate) fn clip_by_name<'a>(config: &DataConfig, table: &'a Table) -> Option<&'a str> {
    /// Several rows are tried, since the first file may be missing.
    const NUM_ROWS: usize = 16;
    let column = usual(table, CLIP_NAMES).or_else(|| {
        let column = usual(table, FILE_NAMES)?;
        let root = match &config.image_root {
            Some(root) if !table.has_own_root() => root,
            _ => table.folder(),
        };
        let mut rows = table.rows().ok()?;
        for _ in 0..NUM_ROWS {
            let row = rows.read_any().ok()??;
            let cell = row.cell(column).trim().replace('\\', "/");
            if !cell.is_empty() && (is_clip_name(&cell) || root.join(&cell).is_dir()) {
                return Some(column);
            }
        }
        None
    })?;
    Some(table.columns()[column].as_str())
}

pub(crate) fn video_column(
    config: &DataConfig,
    table: &Table,
    notes: &mut Vec<String>,
) -> Result<usize, DataError> {
    if let Some(name) = &config.video {
        return table.column("video", name);
    }
    match usual(table, CLIP_NAMES).or_else(|| usual(table, FILE_NAMES)) {
        Some(column) => {
            notes.push(guessed("Video", table, column));
            // Looked up by name: two columns of the same name are an error.
            table.column("video", &table.columns()[column])
        }
        None => Err(no_usual_column(
            table,
            "video",
            &[CLIP_NAMES, FILE_NAMES].concat(),
            &format!("name the column of clips: `video: {}`", table.columns()[0]),
        )),
    }
}

/// Finds a caption column by its usual names (caption, text, description, title, sentence), or takes the only column.
pub fn caption_column(table: &Table, notes: &mut Vec<String>) -> Result<usize, DataError> {
    if table.columns().len() == 1 {
        return Ok(0);
    }
    match usual(table, CAPTION_NAMES) {
        Some(column) => {
            notes.push(guessed("Caption", table, column));
            table.column("caption", &table.columns()[column])
        }
        None => Err(no_usual_column(
            table,
            "caption",
            CAPTION_NAMES,
            &format!("name it: {}:COLUMN", table.path().display()),
        )),
    }
}

fn target_columns(
    table: &Table,
    key: &'static str,
    target: &TargetConfig,
) -> Result<TargetColumns, DataError> {
    Ok(match target {
        TargetConfig::Class(column) => TargetColumns::Class(table.column(key, column)?),
        TargetConfig::Number { number } => TargetColumns::Number(table.column(key, number)?),
        TargetConfig::Classes { column, separator } => TargetColumns::Classes {
            column: table.column(key, column)?,
            separator: separator.clone(),
        },
        TargetConfig::Columns { columns } => {
            let columns = columns.iter().map(|column| table.column(key, column));
            TargetColumns::Each(columns.collect::<Result<_, _>>()?)
        }
    })
}

pub(crate) fn image_column(
    config: &DataConfig,
    table: &Table,
    notes: &mut Vec<String>,
) -> Result<usize, DataError> {
    if let Some(name) = &config.image {
        return table.column("image", name);
    }
    match usual(table, IMAGE_NAMES) {
        Some(column) => {
            notes.push(guessed("Image", table, column));
            // Looked up by name: two columns of the same name are an error.
            table.column("image", &table.columns()[column])
        }
        None => {
            let url = usual(table, &["url", "image_url", "img_url"]);
            let hint = match url {
                Some(column) => not_downloaded(table, column),
                None => format!(
                    "name the column of image paths: `image: {}`",
                    table.columns()[0]
                ),
            };
            Err(no_usual_column(table, "image", IMAGE_NAMES, &hint))
        }
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
            let column = guess_label(table);
            let column = column.unwrap_or(&table.columns()[table.columns().len() - 1]);
            let hint =
                format!("name it, or write a template: `caption: \"a photo of a {{{column}}}\"`");
            Err(no_usual_column(table, "caption", CAPTION_NAMES, &hint))
        }
    }
}

/// Hint for a column of URLs: the `img2dataset` command that downloads them.
pub(crate) fn not_downloaded(table: &Table, column: usize) -> String {
    let path = table.path();
    let format = match path.extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => "parquet",
        Some("jsonl") => "jsonl",
        Some("tsv") => "tsv",
        _ => "csv",
    };
    let caption = match caption_by_name(table) {
        Some(caption) => format!(" --caption_col {}", shell_word(caption)),
        None => String::new(),
    };
    let label = match guess_label(table) {
        Some(label) => format!(" --save_additional_columns '[\"{label}\"]'"),
        None => String::new(),
    };
    format!(
        "pictures are not downloaded; `pip install img2dataset`, then `img2dataset --url_list {} --input_format {format} \
         --url_col {}{caption}{label} --output_format webdataset --output_folder shards`, and train on `shards`",
        shell_word(&path.display().to_string()),
        shell_word(&table.columns()[column])
    )
}

/// A name quoted for a shell.
fn shell_word(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    if name.chars().all(is_plain) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', "'\\''"))
    }
}

fn no_usual_column(table: &Table, key: &str, names: &[&str], hint: &str) -> DataError {
    DataError::invalid(
        table.path().display(),
        format_args!("a column of {key}s named {}", names.join(", ")),
        listed(table.columns()),
        hint,
    )
}

fn guessed(what: &str, table: &Table, column: usize) -> String {
    let name = &table.columns()[column];
    format!("{what} column: `{name}` (found by its name)")
}

/// A column name in the spelling of the lists above: `Image Path` becomes `image_path`.
fn plain(column: &str) -> String {
    column.trim().to_ascii_lowercase().replace([' ', '-'], "_")
}

fn usual(table: &Table, names: &[&str]) -> Option<usize> {
    columns_by_name(table, names).next()
}

/// Columns with one of these names, in the order of the names.
pub(crate) fn columns_by_name<'a>(
    table: &'a Table,
    names: &'a [&str],
) -> impl Iterator<Item = usize> + 'a {
    names.iter().flat_map(|name| {
        let columns = table.columns().iter().enumerate();
        let named = columns.filter(|(_, column)| plain(column) == **name);
        named.map(|(at, _)| at)
    })
}

/// Finds a column of patients, studies or the like by its usual names.
pub(crate) fn group_by_name(table: &Table) -> Option<usize> {
    usual(table, GROUP_NAMES)
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
        let columns = Columns::find(
            &config,
            (Media::Pictures, Captions::Required),
            &table("id,Text,IMAGE_PATH,make"),
            &mut notes,
        )
        .unwrap();
        assert_eq!((columns.image, columns.label()), (2, None));
        assert_eq!(columns.caption.unwrap().text(), "{Text}");
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
            label: Some("make".into()),
            ..DataConfig::default()
        };
        let columns = Columns::find(
            &config,
            (Media::Pictures, Captions::Required),
            &table("image,photo,make"),
            &mut notes,
        )
        .unwrap();
        assert_eq!((columns.image, columns.label()), (1, Some(2)));
        assert!(notes.is_empty());
    }

    #[test]
    fn what_is_not_found_is_said() {
        let error = |config: &DataConfig, header: &str| {
            Columns::find(
                config,
                (Media::Pictures, Captions::Required),
                &table(header),
                &mut Vec::new(),
            )
            .unwrap_err()
            .to_string()
        };
        let config = DataConfig::default();
        assert!(error(&config, "image,image,caption").contains("expected one column `image`"));
        assert!(error(&config, "photo,caption").contains("`image: photo`"));
        assert!(error(&config, "image,make").contains("a photo of a {make}"));
        let config = DataConfig {
            label: Some("mkae".into()),
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
