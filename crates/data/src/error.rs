//! What can be wrong with data. Every message names the file, the row where there is one (the line
//! an editor shows), what was expected and what was found, and ends with a hint.

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use crate::words::{counted, listed, percent, thousands};

/// Data is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused.
    #[error(
        "{}: could not {action}: {cause}\n\
         hint: check that the path exists, that you have the rights to it and that the disk has room",
        path.display()
    )]
    Io {
        /// What was acted on.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// What the system said. Not a `source`: it is already in the message.
        cause: io::Error,
    },

    /// A setting of the `data` section is out of range.
    #[error("data.{key}: {found}, expected {expected}\nhint: {hint}")]
    Setting {
        /// The key, with dots.
        key: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
        /// What to write.
        hint: &'static str,
    },

    /// The path of the data leads nowhere.
    #[error(
        "{}: expected a CSV or a folder that holds one, found nothing\n\
         hint: check the path; in a config it is relative to the config's folder",
        path.display()
    )]
    NoFile {
        /// The path given.
        path: PathBuf,
    },

    /// No CSV of a folder can be chosen.
    #[error(
        "{}: expected image_labels_filtered.csv, image_labels_cleaned.csv, image_labels.csv or a \
         single .csv, found {}\n\
         hint: name the file: `train: path/to/file.csv`, or `holdall train path/to/file.csv`",
        folders_text(folders),
        listed(found)
    )]
    NoTable {
        /// Where it was looked for.
        folders: Vec<PathBuf>,
        /// The CSVs, or else the files, that are there.
        found: Vec<String>,
    },

    /// The file has no bytes that mean anything.
    #[error(
        "{}: expected a header row such as `image,caption`, found an empty file\n\
         hint: write the file again; the first line names the columns",
        path.display()
    )]
    EmptyFile {
        /// The CSV.
        path: PathBuf,
    },

    /// No caption at all.
    #[error(
        "{}: expected a caption per line, found none\n\
         hint: check whether the program that writes this file came to its end",
        path.display()
    )]
    NoCaptions {
        /// The file.
        path: PathBuf,
    },

    /// Nothing follows the header.
    #[error(
        "{}: expected rows after the header `{}`, found none\n\
         hint: check whether the step that writes this file filtered every row out",
        path.display(),
        columns.join(",")
    )]
    NoRows {
        /// The CSV.
        path: PathBuf,
        /// Its columns.
        columns: Vec<String>,
    },

    /// Cleaning would leave nothing to train on.
    #[error(
        "{}: expected rows that are left after cleaning, found that all {} would go: {why}\n\
         hint: look at `holdall data check {}`, or ask for less; nothing was written",
        path.display(),
        thousands(*num_rows),
        path.display()
    )]
    NothingLeft {
        /// The CSV.
        path: PathBuf,
        /// Its rows.
        num_rows: usize,
        /// The commonest reason.
        why: &'static str,
    },

    /// Class folders, which have no list that could be written without some rows.
    #[error(
        "{}: expected a CSV to clean, found class folders\n\
         hint: `holdall data check {} --json` names the files to move or remove",
        path.display(),
        path.display()
    )]
    NoCsv {
        /// The folder.
        path: PathBuf,
    },

    /// A CSV that cleaning would write over.
    #[error(
        "{}: expected a CSV to clean, found the name of one that cleaning writes\n\
         hint: clean {} instead, or rename this one",
        path.display(),
        source_csv.display()
    )]
    CleanedAlready {
        /// The CSV.
        path: PathBuf,
        /// The one that it would be written from.
        source_csv: PathBuf,
    },

    /// A file is not what it was a moment ago.
    #[error(
        "{}: expected a file that stays as it is while it is read, found that it changed\n\
         hint: start again once the program that writes it is done",
        path.display()
    )]
    Changed {
        /// The CSV.
        path: PathBuf,
    },

    /// More rows than are numbered.
    #[error(
        "{}: expected at most {} rows, found more\nhint: split the file",
        path.display(),
        thousands(u32::MAX as usize)
    )]
    TooManyRows {
        /// The CSV.
        path: PathBuf,
    },

    /// Fields are separated by something else.
    #[error(
        "{}, row {row}: expected columns separated by commas, found {found}\n\
         hint: save the file as comma-separated CSV; pandas does with `to_csv(path, index=False)`",
        path.display()
    )]
    Separator {
        /// The CSV.
        path: PathBuf,
        /// The header's line.
        row: u32,
        /// What separates them.
        found: &'static str,
    },

    /// A row is not text.
    #[error(
        "{}, row {row}: expected UTF-8, found bytes that are not\n\
         hint: save the file as UTF-8 (Excel: \"CSV UTF-8\"; `iconv -f ENCODING -t utf-8`)",
        path.display()
    )]
    NotUtf8 {
        /// The CSV.
        path: PathBuf,
        /// The line the row starts in.
        row: u32,
    },

    /// A row has more or fewer fields than the header.
    #[error(
        "{}, row {row}: expected {} as in the header, found {found}\n\
         hint: a field with a comma or a line break needs quotes around it: \"red, four doors\"",
        path.display(),
        counted(*expected, "field")
    )]
    Ragged {
        /// The CSV.
        path: PathBuf,
        /// The line the row starts in.
        row: u32,
        /// Fields of the header.
        expected: usize,
        /// Fields of the row.
        found: usize,
    },

    /// A quote that is never closed takes in all that follows.
    #[error(
        "{}, row {row}: expected a closing quote, found the end of the file\n\
         hint: close the `\"` that opens in this row; a quote within quotes is written `\"\"`",
        path.display()
    )]
    OpenQuote {
        /// The CSV.
        path: PathBuf,
        /// The line the row starts in.
        row: u32,
    },

    /// A column that is used has a namesake.
    #[error(
        "{}: expected one column `{column}`, found {found}\n\
         hint: rename all but one in the first line of the file",
        path.display()
    )]
    TwinColumn {
        /// The CSV.
        path: PathBuf,
        /// The name.
        column: String,
        /// How many have it.
        found: usize,
    },

    /// A column that the config names is not there.
    #[error(
        "{}: expected a column `{column}` for `{key}`, found {}\nhint: {}",
        path.display(),
        listed(columns),
        suggestion(nearest, "name one of the columns found")
    )]
    NoColumn {
        /// The CSV.
        path: PathBuf,
        /// The config's key.
        key: &'static str,
        /// The column named.
        column: String,
        /// The columns there are.
        columns: Vec<String>,
        /// The one probably meant.
        nearest: Option<String>,
    },

    /// No column has one of the usual names.
    #[error(
        "{}: expected a column of {key}s named {}, found {}\nhint: {hint}",
        path.display(),
        names.join(", "),
        listed(columns)
    )]
    NoUsualColumn {
        /// The CSV.
        path: PathBuf,
        /// The config's key.
        key: &'static str,
        /// Names that would have been recognised.
        names: &'static [&'static str],
        /// The columns there are.
        columns: Vec<String>,
        /// What to write into the config.
        hint: String,
    },

    /// A caption without braces names no column.
    #[error(
        "{}: expected caption `{caption}` to be a column, found {}\n\
         hint: {}; a template needs braces: `caption: \"a photo of a {{{}}}\"`",
        path.display(),
        listed(columns),
        suggestion(nearest, "name one of the columns found"),
        nearest.as_ref().or(columns.first()).map_or("make", String::as_str)
    )]
    CaptionIsNoColumn {
        /// The CSV.
        path: PathBuf,
        /// The config's caption.
        caption: String,
        /// The columns there are.
        columns: Vec<String>,
        /// The one probably meant.
        nearest: Option<String>,
    },

    /// A template names a column that is not there.
    #[error(
        "{}: caption template `{template}`: expected {{{column}}} to be a column, found {}\n\
         hint: {}; braces that are meant as text are written {{{{ and }}}}",
        path.display(),
        listed(columns),
        suggestion(nearest, "use one of the columns found")
    )]
    UnknownPlaceholder {
        /// The CSV.
        path: PathBuf,
        /// The template.
        template: String,
        /// The name between braces.
        column: String,
        /// The columns there are.
        columns: Vec<String>,
        /// The one probably meant.
        nearest: Option<String>,
    },

    /// A template's braces do not pair up.
    #[error(
        "caption template `{template}`: expected {expected}, found {found} at character {at}\n\
         hint: columns go between braces, `a photo of a {{make}}`; a brace meant as text is doubled"
    )]
    Braces {
        /// The template.
        template: String,
        /// What would have been right.
        expected: &'static str,
        /// What is there.
        found: &'static str,
        /// Counted from 1.
        at: usize,
    },

    /// Rows lack what a sample needs, and may not be skipped, or not so many.
    #[error(
        "{}: {} of {} cannot be used, {}: {named}\n\
         hint: `holdall data clean {}` writes a list without them{}{}",
        path.display(),
        thousands(*num_bad),
        counted(*num_rows, "row"),
        max_skipped.map_or_else(
            || "`bad_pictures: fail` allows none".to_owned(),
            |most| format!("`max_skipped` allows {}", percent(most))
        ),
        path.display(),
        if *num_bad < *num_rows && max_skipped.is_none() { "; `bad_pictures: skip` skips them" } else { "" },
        if *has_other_fields { "; a field with a comma or a line break needs quotes around it" } else { "" }
    )]
    BadRows {
        /// The CSV.
        path: PathBuf,
        /// The first of them, and what is wrong with each.
        named: String,
        /// How many.
        num_bad: usize,
        /// Of so many.
        num_rows: usize,
        /// The share that may be, unless none may.
        max_skipped: Option<f64>,
        /// Whether some have more or fewer fields than the header.
        has_other_fields: bool,
    },

    /// A model's image processor asks for what is not known here.
    #[error("{}: {key}: expected {expected}, found {found}\nhint: {hint}", file.display())]
    ImageProcessor {
        /// `preprocessor_config.json`, or what it is nested in.
        file: PathBuf,
        /// What of it.
        key: String,
        /// What it may say.
        expected: String,
        /// What it says.
        found: String,
        /// What to do.
        hint: &'static str,
    },

    /// A label head would have nothing to tell apart.
    #[error(
        "{}: column `{column}`: expected at least {least}, found {found}\n\
         hint: leave `label` out to train without a label head, or name another column",
        path.display()
    )]
    FewLabels {
        /// The CSV.
        path: PathBuf,
        /// The label column.
        column: String,
        /// How many there should be.
        least: &'static str,
        /// The labels there are, in words.
        found: String,
    },

    /// A label that training, or the trained head, does not know.
    #[error(
        "{}, row {row}: column `{column}`: expected one of {} labels{}, found `{label}`\nhint: {}",
        path.display(),
        thousands(*num_known),
        if *from_head { " of the trained head" } else { " of the training rows" },
        suggestion(nearest, if *from_head {
            "the head was trained without it; correct the row or remove it"
        } else {
            "no training row has it; move one there, or correct the row"
        })
    )]
    UnknownLabel {
        /// The CSV.
        path: PathBuf,
        /// The line the row starts in.
        row: u32,
        /// The label column.
        column: String,
        /// The label found.
        label: String,
        /// How many are known.
        num_known: usize,
        /// Known from a trained head, not from training rows.
        from_head: bool,
        /// The one probably meant.
        nearest: Option<String>,
    },

    /// Nothing says what the data is for.
    #[error(
        "{}: expected a column of captions, labels, masks or clips, found {}\n\
         hint: say what is to be learnt: `caption: COLUMN` or `label: COLUMN` under `data:`",
        path.display(),
        listed(columns)
    )]
    NoEvidence {
        /// The CSV.
        path: PathBuf,
        /// Its columns.
        columns: Vec<String>,
    },

    /// A target that a trained model does not have.
    #[error(
        "data.targets.{name}: expected one of the model's {}, found another\n\
         hint: leave it out, or name the target as the model does",
        listed(known)
    )]
    UnknownTarget {
        /// The config's.
        name: String,
        /// The model's.
        known: Vec<String>,
    },

    /// A target of another kind than the model's.
    #[error(
        "data.targets.{name}: expected {expected}, as the model was trained, found {found}\n\
         hint: `label: COLUMN` or {{column: tags, separator: \"|\"}}, {{columns: [door, wheel]}}, {{number: age}}"
    )]
    OtherTarget {
        /// Its name.
        name: String,
        /// The model's kind.
        expected: &'static str,
        /// The config's kind.
        found: &'static str,
    },

    /// Files that rows name are not there.
    #[error(
        "{}, row {row}: expected an image at {}, found nothing; {} of {} images are missing{}{}\n\
         hint: {hint}",
        path.display(),
        image.display(),
        thousands(*num_missing),
        thousands(*num_images),
        match num_bad_rows {
            0 => String::new(),
            bad => format!(" and {} cannot be used", counted(*bad as usize, "row")),
        },
        max_skipped.map_or_else(String::new, |most| format!(", `max_skipped` allows {}", percent(most)))
    )]
    MissingImages {
        /// The CSV.
        path: PathBuf,
        /// The first such row's line.
        row: u32,
        /// Where its image should be.
        image: PathBuf,
        /// Rows without an image.
        num_missing: usize,
        /// Rows.
        num_images: usize,
        /// Rows that name none, or say nothing.
        num_bad_rows: u32,
        /// The share that may be, unless none may.
        max_skipped: Option<f64>,
        /// Where they may be instead.
        hint: String,
    },

    /// A split column says something else.
    #[error(
        "{}, row {row}: column `{column}`: expected train, or validation, val, valid, test or eval, \
         found `{found}`\n\
         hint: correct the row, or use `validation: 10%`",
        path.display()
    )]
    SplitValue {
        /// The CSV.
        path: PathBuf,
        /// The line the row starts in.
        row: u32,
        /// The split column.
        column: String,
        /// The cell.
        found: String,
    },

    /// A split leaves nothing to train on.
    #[error(
        "{}: column `{column}`: expected rows that say train, found none\n\
         hint: mark training rows with `train`, or use `validation: 10%`",
        path.display()
    )]
    NothingToTrainOn {
        /// The CSV.
        path: PathBuf,
        /// The split column.
        column: String,
    },

    /// A tokenizer file is no tokenizer.
    #[error(
        "{}: expected a tokenizer.json of Hugging Face, found one that does not load: {cause}\n\
         hint: copy it again from the model's folder; `save_pretrained` writes it",
        path.display()
    )]
    TokenizerBroken {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },

    /// A tokenizer has ids that the model has no embedding for.
    #[error(
        "{}: expected ids below {model_vocab_size}, the model's vocabulary, found {highest_id}\n\
         hint: use the tokenizer that belongs to the model, or `tokenizer: train` with random weights",
        path.display()
    )]
    TokenizerTooLarge {
        /// The file.
        path: PathBuf,
        /// Its highest id.
        highest_id: usize,
        /// Rows of the model's token embedding.
        model_vocab_size: usize,
    },

    /// A tokenizer does not say where a caption ends, which is where CLIP reads it.
    #[error(
        "{}: expected a start and an end token around an empty caption, found {}\n\
         hint: CLIP's tokenizers add <|startoftext|> and <|endoftext|> in their post-processor",
        path.display(),
        listed(found)
    )]
    TokenizerWithoutEnds {
        /// The file.
        path: PathBuf,
        /// The tokens of an empty caption.
        found: Vec<String>,
    },

    /// A vocabulary cannot hold every byte.
    #[error(
        "tokenizer: expected a vocabulary of at least {least}, found {found}\n\
         hint: raise the model's `vocab_size`"
    )]
    VocabularyTooSmall {
        /// The size asked for.
        found: usize,
        /// The smallest that works.
        least: usize,
    },

    /// Training a tokenizer failed.
    #[error(
        "tokenizer: expected to train on the captions, found {cause}\n\
         hint: name a ready one: `tokenizer: path/to/tokenizer.json`"
    )]
    TrainedBroken {
        /// Why.
        cause: String,
    },

    /// A caption cannot be tokenized.
    #[error(
        "caption `{text}`: expected token ids, found {cause}\n\
         hint: look for unusual characters in it, or use another tokenizer"
    )]
    Untokenized {
        /// How the caption begins.
        text: String,
        /// Why.
        cause: String,
    },

    /// A picture is not there.
    #[error(
        "{}: expected a picture, found no file\n\
         hint: check whether it was moved or removed since the run began",
        path.display()
    )]
    PictureMissing {
        /// The file.
        path: PathBuf,
    },

    /// A file is no picture.
    #[error(
        "{}: expected a picture, found {found}\n\
         hint: JPEG, PNG, WebP, BMP and TIFF are read; a failed download is often a web page",
        path.display()
    )]
    NotAPicture {
        /// The file.
        path: PathBuf,
        /// What it is, as far as can be told.
        found: String,
    },

    /// A picture stops before its end.
    #[error(
        "{}: expected a whole picture, found one that is cut short\n\
         hint: copy or download it again, or remove its row",
        path.display()
    )]
    PictureTruncated {
        /// The file.
        path: PathBuf,
    },

    /// A picture cannot be decoded.
    #[error(
        "{}: expected a picture that can be decoded, found {cause}\n\
         hint: open it in a viewer and save it again, or remove its row",
        path.display()
    )]
    PictureBroken {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        cause: String,
    },

    /// A picture has no pixels.
    #[error(
        "{}: expected at least 1 x 1 pixels, found {width} x {height}\nhint: remove its row",
        path.display()
    )]
    PictureEmpty {
        /// The file.
        path: PathBuf,
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },

    /// A picture would take more memory than any should.
    #[error(
        "{}: expected at most {} megapixels, found {width} x {height}\n\
         hint: scale it down before training",
        path.display(),
        most_pixels / 1_000_000
    )]
    PictureTooLarge {
        /// The file.
        path: PathBuf,
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// Pixels that are allowed.
        most_pixels: u64,
    },

    /// A picture's file is larger than any should be.
    #[error(
        "{}: expected a picture of at most {} MiB, found a larger file\n\
         hint: check whether it is a picture; if so, scale it down before training",
        path.display(),
        most_bytes >> 20
    )]
    PictureFileTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that are allowed.
        most_bytes: u64,
    },

    /// Decoding a picture takes more than all readers together may hold.
    #[error(
        "{}: {width} x {height} pixels take {} to decode, and the budget leaves {} for it\n\
         hint: scale it down before training, or give a larger budget",
        path.display(),
        mebibytes(*needed_bytes),
        mebibytes(*allowed_bytes)
    )]
    PictureOverBudget {
        /// The file.
        path: PathBuf,
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// What it takes.
        needed_bytes: u64,
        /// What is allowed.
        allowed_bytes: u64,
    },

    /// Opening a tokenizer takes more than the budget leaves.
    #[error(
        "{}: a tokenizer of {} takes {} to open, and the budget leaves {}\n\
         hint: give a larger budget, or check that this is the model's tokenizer",
        path.display(),
        mebibytes(*file_bytes),
        mebibytes(*needed_bytes),
        mebibytes(*allowed_bytes)
    )]
    TokenizerOverBudget {
        /// The file.
        path: PathBuf,
        /// Its length.
        file_bytes: u64,
        /// What it takes.
        needed_bytes: u64,
        /// What is allowed.
        allowed_bytes: u64,
    },

    /// The name of a picture is that of a folder, a FIFO, a socket or a device.
    #[error(
        "{}: {cause}\nhint: name a picture, or remove its row",
        path.display()
    )]
    PictureNotAFile {
        /// The path.
        path: PathBuf,
        /// What was expected and found.
        cause: String,
    },

    /// A picture of a kind that is known and not read.
    #[error(
        "{}: expected a JPEG, PNG, WebP, BMP or TIFF of a kind that is read, found {found}\nhint: {hint}",
        path.display()
    )]
    PictureRefused {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do.
        hint: &'static str,
    },

    /// A mask has a value that is no class.
    #[error(
        "{}: pixel value {value} at ({x}, {y}), expected 0 or {white}\nhint: {}",
        path.display(),
        mask_hint(*value, *white)
    )]
    MaskValue {
        /// The mask.
        path: PathBuf,
        /// What the pixel is.
        value: u16,
        /// What white is: 255, or 65535 where pixels have 16 bits.
        white: u16,
        /// Pixels from the left.
        x: u32,
        /// Pixels from the top.
        y: u32,
    },

    /// A mask has colours.
    #[error(
        "{}: colour ({}, {}, {}) at ({x}, {y}), expected grey: black and white\n\
         hint: save the mask with one channel; a mask of several colours has to be split by class",
        path.display(),
        found[0],
        found[1],
        found[2]
    )]
    MaskColour {
        /// The mask.
        path: PathBuf,
        /// Red, green, blue.
        found: [u8; 3],
        /// Pixels from the left.
        x: u32,
        /// Pixels from the top.
        y: u32,
    },

    /// An image and its mask cannot lie on each other.
    #[error(
        "{}: expected the {} x {} pixels of its image {}, found {} x {}\n\
         hint: export the mask at the size of its image, without scaling",
        mask.display(),
        image_size.0,
        image_size.1,
        image.display(),
        mask_size.0,
        mask_size.1
    )]
    PairSizes {
        /// The image.
        image: PathBuf,
        /// Its pixels across and down.
        image_size: (u32, u32),
        /// The mask.
        mask: PathBuf,
        /// Its pixels across and down.
        mask_size: (u32, u32),
    },

    /// Neither of the usual folders of images and masks is there.
    #[error(
        "{}: expected a folder `Original` beside `Ground truth`, or `images` beside `masks`, found {}\n\
         hint: name the folder of images and the folder of masks",
        path.display(),
        listed(found)
    )]
    NoPairFolders {
        /// Where they were looked for.
        path: PathBuf,
        /// The folders there.
        found: Vec<String>,
    },

    /// A folder of pictures has none.
    #[error(
        "{}: expected pictures, found none\n\
         hint: names end with .jpg, .jpeg, .png, .webp, .bmp, .tif or .tiff",
        path.display()
    )]
    NoPictures {
        /// The folder.
        path: PathBuf,
    },

    /// Images without masks, or masks without images.
    #[error(
        "{}: expected a mask in {} for each image and an image for each mask, found {} and {}; images without a mask: {}; \
         masks without an image: {}\n\
         hint: a mask has its image's name, whatever the extension; remove or rename what has no partner",
        images.display(),
        masks.display(),
        counted(*num_images, "image"),
        counted(*num_masks, "mask"),
        listed(lone_images),
        listed(lone_masks)
    )]
    WithoutPartner {
        /// The folder of images.
        images: PathBuf,
        /// The folder of masks.
        masks: PathBuf,
        /// Images there are.
        num_images: usize,
        /// Masks there are.
        num_masks: usize,
        /// Images without a mask.
        lone_images: Vec<String>,
        /// Masks without an image.
        lone_masks: Vec<String>,
    },

    /// Two files of a folder have the same name but for the extension.
    #[error(
        "{}: expected one file of each name, found {first} and {second}\n\
         hint: pairs are matched without extensions; remove one of the two",
        path.display()
    )]
    SameStem {
        /// The folder.
        path: PathBuf,
        /// One.
        first: String,
        /// The other.
        second: String,
    },

    /// A file's name is no text.
    #[error(
        "{}: expected a name in UTF-8, found bytes that are not\nhint: rename it",
        path.display()
    )]
    FileName {
        /// The file.
        path: PathBuf,
    },

    /// A folder of clips has none.
    #[error(
        "{}: expected a folder for each clip, found no folders\n\
         hint: frames of a clip are pictures in a folder of its own: clips/0001/frame_1.jpg",
        path.display()
    )]
    NoClips {
        /// The folder.
        path: PathBuf,
    },

    /// A clip has no frames.
    #[error(
        "{}: expected frames of a clip, found no pictures\n\
         hint: names end with .jpg, .jpeg, .png, .webp, .bmp, .tif or .tiff; remove the folder if it is no clip",
        path.display()
    )]
    EmptyClip {
        /// The clip's folder.
        path: PathBuf,
    },

    /// A frame is there twice.
    #[error(
        "{}: expected each frame once, found {first} and {second}\n\
         hint: frames are ordered by the numbers in their names; remove one of the two",
        path.display()
    )]
    SameFrame {
        /// The clip's folder.
        path: PathBuf,
        /// One.
        first: String,
        /// The other.
        second: String,
    },
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn mask_hint(value: u16, white: u16) -> &'static str {
    match (value, white) {
        (_, u16::MAX) => "save the mask with 8 bits a pixel, or with 0 and 65535",
        (1, _) => "`binarize: 1` in the config takes 0 and 1 as two classes",
        _ => "`binarize: 128` in the config maps grey masks to two classes",
    }
}

fn folders_text(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    names.join(" and ")
}

fn suggestion(nearest: &Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => otherwise.to_owned(),
    }
}
