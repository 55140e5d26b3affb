//! WebDataset: tar members with the same name up to its first dot are one sample.
//!
//! ```text
//! 000017.jpg        a picture          -> column `image`
//! 000017.mask.png   a picture by name  -> column `mask`
//! 000017.avi        a clip             -> column `video`
//! 000017.txt        a caption          -> column `caption`
//! 000017.cls        a label            -> column `label`
//! 000017.json       anything else      -> a column per key
//! ```

use std::io::Write;

use super::tar::{Member, Members};
use super::{Listed, Shard, split_cell};
use crate::error::DataError;
use crate::media::{is_clip_name, is_picture};
use crate::stored_file::part_path;
use crate::table::json_lines::each_cell;
use crate::words::{counted, listed, thousands};

/// Size limit of captions, labels and JSON.
const MOST_TEXT_BYTES: u64 = 4 << 20;
/// Limit of the number of columns.
const MOST_COLUMNS: usize = 4096;
const IMAGE: &str = "image";
const VIDEO: &str = "video";
const KEY: &str = "__key__";

/// Cells of a sample, with their columns.
type Cells = Vec<(String, String)>;

/// Writes a row per sample.
pub(super) fn list(shards: &[Shard], out: &mut dyn Write) -> Result<Listed, DataError> {
    let mut columns: Vec<String> = Vec::new();
    let mut others: Vec<String> = Vec::new();
    let mut num_samples = 0;
    let mut num_without = 0;
    for shard in shards {
        each_sample(shard, &mut others, |cells| {
            num_samples += 1;
            num_without += usize::from(!has_media(cells));
            for (column, _) in cells {
                if columns.len() < MOST_COLUMNS && !columns.contains(column) {
                    columns.push(column.clone());
                }
            }
            Ok(())
        })?;
    }
    if columns.is_empty() {
        columns.push(IMAGE.to_owned());
    }
    // Columns from files of their own come before keys of JSON.
    let place = |column: &str| match column {
        IMAGE | VIDEO => 0,
        "mask" => 1,
        "caption" => 2,
        "label" => 3,
        KEY => 5,
        _ => 4,
    };
    columns.sort_by_key(|column| place(column));
    let notes = notes_on_members(shards, [num_samples, num_without], &others)?;
    let is_split = shards.iter().any(|shard| shard.side.is_some());
    let mut rows = csv::Writer::from_writer(out);
    let mut header: Vec<&str> = columns.iter().map(String::as_str).collect();
    if is_split {
        header.push(super::SPLIT);
    }
    write_row(&mut rows, &header)?;
    for shard in shards {
        each_sample(shard, &mut Vec::new(), |cells| {
            let cell = |column: &String| {
                let found = cells.iter().find(|(name, _)| name == column);
                found.map_or("", |(_, cell)| cell.as_str())
            };
            let mut row: Vec<&str> = columns.iter().map(cell).collect();
            if is_split {
                row.push(split_cell(shard));
            }
            write_row(&mut rows, &row)
        })?;
    }
    rows.flush().map_err(super::unwritten)?;
    Ok(Listed {
        num_rows: num_samples,
        has_pictures: true,
        notes,
    })
}

/// Notes for the user: how many samples lack a picture or clip, and which members are not read. An error if all samples lack one.
fn notes_on_members(
    shards: &[Shard],
    [num_samples, num_without]: [usize; 2],
    others: &[String],
) -> Result<Vec<String>, DataError> {
    let mut notes = Vec::new();
    if num_samples > 0 && num_without == num_samples {
        let first = shards.first().map(|shard| shard.path.display().to_string());
        return Err(DataError::invalid(
            first.unwrap_or_default(),
            "pictures such as 000017.jpg, or clips such as 000017.avi, with 000017.txt, .cls or .json beside them",
            format_args!("{} without one", counted(num_samples, "sample")),
            "a shard is a tar of pictures or clips and their texts: `holdall data pack photos.csv --out shards` writes such",
        ));
    }
    if num_without > 0 {
        notes.push(format!(
            "Careful: {} of {} {} neither picture nor clip (members of a sample must follow each other: `tar --sort=name`)",
            thousands(num_without),
            counted(num_samples, "sample"),
            if num_without == 1 { "has" } else { "have" }
        ));
    }
    if !others.is_empty() {
        notes.push(format!(
            "Not read: members that end with {}",
            listed(others)
        ));
    }
    Ok(notes)
}

fn write_row(rows: &mut csv::Writer<&mut dyn Write>, row: &[&str]) -> Result<(), DataError> {
    rows.write_record(row)
        .map_err(|cause| super::unwritten(std::io::Error::other(cause)))
}

/// Calls `hand_on` with the cells of each sample; unknown file endings are added to `others`.
fn each_sample(
    shard: &Shard,
    others: &mut Vec<String>,
    mut hand_on: impl FnMut(&Cells) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut members = Members::open(&shard.path)?;
    let mut key = String::new();
    let mut cells: Cells = Vec::new();
    let mut of_json: Cells = Vec::new();
    let mut bytes = Vec::new();
    let mut hand_on_sample = |key: &str, cells: &mut Cells, of_json: &mut Cells| {
        if !cells.is_empty() || !of_json.is_empty() {
            for (column, cell) in of_json.drain(..) {
                if !cells.iter().any(|(known, _)| *known == column) {
                    cells.push((column, cell));
                }
            }
            if !cells.iter().any(|(known, _)| known == KEY) {
                cells.push((KEY.to_owned(), key.to_owned()));
            }
            hand_on(cells)?;
        }
        cells.clear();
        Ok::<(), DataError>(())
    };
    while let Some(member) = members.next()? {
        let Some((own_key, ending)) = key_and_ending(&member.name) else {
            continue;
        };
        if own_key != key {
            hand_on_sample(&key, &mut cells, &mut of_json)?;
            own_key.clone_into(&mut key);
        }
        match Role::of(&ending) {
            Role::Picture(column) => push(&mut cells, column, || {
                part_path(&shard.name, &member.name, member.offset, member.num_bytes)
            }),
            Role::Clip if ending == "npy" && has_media(&cells) => note_other(others, ending),
            Role::Clip => push(&mut cells, VIDEO, || {
                part_path(&shard.name, &member.name, member.offset, member.num_bytes)
            }),
            Role::Text(column) => {
                let text = text(shard, &mut members, &member, &mut bytes)?;
                push(&mut cells, column, || text.trim().to_owned());
            }
            Role::Json => {
                let text = text(shard, &mut members, &member, &mut bytes)?;
                match serde_json::from_str(&text) {
                    Ok(serde_json::Value::Object(object)) => {
                        each_cell(&object, "", &mut |column, cell| {
                            let is_own = [IMAGE, VIDEO, "mask"].contains(&column);
                            if !is_own && of_json.len() < MOST_COLUMNS {
                                of_json.push((column.to_owned(), cell));
                            }
                        });
                    }
                    _ => return Err(wrong(shard, &member, "a JSON object", "something else")),
                }
            }
            Role::None => note_other(others, ending),
        }
    }
    hand_on_sample(&key, &mut cells, &mut of_json)
}

fn has_media(cells: &Cells) -> bool {
    cells
        .iter()
        .any(|(column, _)| column == IMAGE || column == VIDEO)
}

fn note_other(others: &mut Vec<String>, ending: String) {
    if others.len() < 20 && !others.contains(&ending) {
        others.push(ending);
    }
}

fn push(cells: &mut Cells, column: &str, cell: impl FnOnce() -> String) {
    if !cells.iter().any(|(known, _)| known == column) {
        cells.push((column.to_owned(), cell()));
    }
}

fn text(
    shard: &Shard,
    members: &mut Members,
    member: &Member,
    bytes: &mut Vec<u8>,
) -> Result<String, DataError> {
    if member.num_bytes > MOST_TEXT_BYTES {
        return Err(wrong(
            shard,
            member,
            "a text of at most 4 MiB",
            "a longer one",
        ));
    }
    members.read(member, bytes)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.trim_start_matches('\u{feff}').to_owned()),
        Err(_) => Err(wrong(shard, member, "UTF-8", "bytes that are not")),
    }
}

fn wrong(shard: &Shard, member: &Member, expected: &str, found: &str) -> DataError {
    DataError::invalid(
        format_args!("{}, `{}`", shard.path.display(), member.name),
        expected,
        found,
        "write the shard again",
    )
}

/// Splits `a/b.mask.png` into `a/b` and `mask.png`; `None` for hidden files and macOS metadata.
fn key_and_ending(name: &str) -> Option<(&str, String)> {
    let name = name.trim_start_matches("./");
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = start + name[start..].find('.')?;
    if dot == start || name.starts_with("__MACOSX/") {
        return None;
    }
    Some((&name[..dot], name[dot + 1..].to_ascii_lowercase()))
}

/// Meaning of a member for its sample.
enum Role<'a> {
    Picture(&'a str),
    /// An array counts as a clip only where the sample has no picture.
    Clip,
    Text(&'a str),
    Json,
    None,
}

impl Role<'_> {
    fn of(ending: &str) -> Role<'_> {
        let (before, last) = match ending.rsplit_once('.') {
            Some((before, last)) => (before, last),
            None => ("", ending),
        };
        match (before, last) {
            ("" | "image" | "img", last) if is_picture(&format!(".{last}")) => Role::Picture(IMAGE),
            ("mask" | "masks" | "seg" | "segmentation", last)
                if is_picture(&format!(".{last}")) =>
            {
                Role::Picture("mask")
            }
            (before, last) if is_picture(&format!(".{last}")) => Role::Picture(before),
            ("" | "video" | "clip", last) if is_clip_name(&format!(".{last}")) => Role::Clip,
            ("", "txt" | "text" | "caption") | ("caption" | "text", "txt") => Role::Text("caption"),
            ("", "cls" | "class" | "label") | ("cls" | "label" | "class", "txt") => {
                Role::Text("label")
            }
            ("", "json") => Role::Json,
            _ => Role::None,
        }
    }
}
