//! Candidates and references, from the files that people have.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Result;
use holdall_data::table::Table;
use holdall_files::{counted, open_regular};
use holdall_train::TrainError;
use serde_json::{Map, Value};

use super::{CaptionScoresArguments, bad_input};
use crate::screen::tell;

/// Names of the candidate, the likeliest first.
const CANDIDATES: [&str; 9] = [
    "candidate",
    "prediction",
    "predicted",
    "generated",
    "generated_caption",
    "hypothesis",
    "output",
    "predicted_caption",
    "caption",
];

/// Names of references; all that are there count.
const REFERENCES: [&str; 12] = [
    "reference",
    "references",
    "truth",
    "ground_truth",
    "target",
    "targets",
    "true_caption",
    "reference_caption",
    "report",
    "label",
    "reference_1",
    "reference_2",
];

type Each<'a> = dyn FnMut(&str, &[String]) + 'a;

/// Calls `each` with every candidate and its references, in the order of the file.
pub fn read(
    arguments: &CaptionScoresArguments,
    mut each: impl FnMut(&str, &[String]),
) -> Result<()> {
    let path = &arguments.candidates;
    let each: &mut Each<'_> = &mut each;
    match extension(path).as_str() {
        "csv" | "tsv" => table(path, arguments, each),
        "jsonl" | "ndjson" => json_lines(path, arguments, each),
        "json" if arguments.references.is_empty() => json_list(path, arguments, each),
        "json" => by_image(path, arguments, each),
        _ => text_lines(path, arguments, each),
    }
}

fn extension(path: &Path) -> String {
    let extension = path.extension().unwrap_or_default();
    extension.to_string_lossy().to_ascii_lowercase()
}

/// In files that have both, references of another file would be ignored.
fn refuse_references(path: &Path, arguments: &CaptionScoresArguments) -> Result<()> {
    match arguments.references.first() {
        None => Ok(()),
        Some(references) => Err(bad_input(format!(
            "--references {}: expected none, as {} has a candidate and its references in each row\n\
             hint: --reference NAME says which column they are in",
            references.display(),
            path.display()
        ))),
    }
}

fn table(path: &Path, arguments: &CaptionScoresArguments, each: &mut Each<'_>) -> Result<()> {
    refuse_references(path, arguments)?;
    let table = Table::open(path).map_err(TrainError::from)?;
    let (candidate, references) = names(path, "columns", table.columns(), arguments)?;
    let column = |name: &String| table.column("caption", name).map_err(TrainError::from);
    let candidate = column(&candidate)?;
    let references: Vec<usize> = references.iter().map(column).collect::<Result<_, _>>()?;
    let mut rows = table.rows().map_err(TrainError::from)?;
    while let Some(row) = rows.read().map_err(TrainError::from)? {
        let cells = references.iter().map(|&column| row.cell(column));
        let texts: Vec<String> = cells.flat_map(cell_texts).collect();
        check_references(path, &format!("row {}", row.line()), &texts)?;
        each(row.cell(candidate), &texts);
    }
    Ok(())
}

/// A cell is a reference, or a list of them as JSON. Columns that are empty in this row count as none.
fn cell_texts(cell: &str) -> Vec<String> {
    let list = cell.trim_start().starts_with("[\"");
    match list.then(|| serde_json::from_str(cell)) {
        Some(Ok(texts)) => texts,
        _ if cell.trim().is_empty() => vec![],
        _ => vec![cell.to_owned()],
    }
}

fn check_references(path: &Path, place: &str, references: &[String]) -> Result<()> {
    if !references.is_empty() {
        return Ok(());
    }
    Err(bad_input(format!(
        "{}, {place}: expected at least one reference, found none\nhint: leave the row out, or name the column with --reference",
        path.display()
    )))
}

/// The keys that are meant, said where they were found and not named.
fn names(
    path: &Path,
    what: &str,
    found: &[String],
    arguments: &CaptionScoresArguments,
) -> Result<(String, Vec<String>)> {
    let like = |name: &str| {
        found
            .iter()
            .find(|column| column.eq_ignore_ascii_case(name))
            .cloned()
    };
    let missing = |role: &str, option: &str| {
        bad_input(format!(
            "{}: expected {what} of the {role}, found {}\nhint: {option} NAME",
            path.display(),
            found.join(", ")
        ))
    };
    let references = match arguments.reference.is_empty() {
        false => arguments.reference.clone(),
        true => {
            // `caption` is the reference where another column is the candidate's.
            let mut usual: Vec<String> = REFERENCES.iter().filter_map(|name| like(name)).collect();
            let others = CANDIDATES
                .split_last()
                .map_or(&[][..], |(_, others)| others);
            if usual.is_empty() && others.iter().any(|name| like(name).is_some()) {
                usual.extend(like("caption"));
            }
            usual
        }
    };
    let candidate = match &arguments.candidate {
        Some(name) => Some(name.clone()),
        None => CANDIDATES
            .iter()
            .filter_map(|name| like(name))
            .find(|name| !references.contains(name)),
    };
    let candidate = candidate.ok_or_else(|| missing("generated caption", "--candidate"))?;
    if references.is_empty() {
        return Err(missing("references", "--reference"));
    }
    if arguments.candidate.is_none() || arguments.reference.is_empty() {
        tell(&format!(
            "Candidate: `{candidate}`; reference: `{}`",
            references.join("`, `")
        ));
    }
    Ok((candidate, references))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    match open_regular(path) {
        Ok((file, _)) => Ok(BufReader::new(file)),
        Err(cause) => Err(bad_input(format!(
            "{}: could not open it: {cause}\nhint: check that the path exists and that you may read it",
            path.display()
        ))),
    }
}

/// Lines without their ends; `each` is told their numbers, from 1.
fn lines(path: &Path, mut each: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let mut reader = open(path)?;
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let cannot = |cause| {
            bad_input(format!(
                "{}, line {line}: could not read it: {cause}\nhint: check the disk",
                path.display()
            ))
        };
        if reader.read_until(b'\n', &mut bytes).map_err(cannot)? == 0 {
            break;
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| {
            bad_input(format!(
                "{}, line {line}: expected UTF-8, found other bytes\nhint: save the file as UTF-8",
                path.display()
            ))
        })?;
        let text = text
            .strip_prefix('\u{feff}')
            .filter(|_| line == 1)
            .unwrap_or(text);
        each(line, text.trim_end_matches(['\n', '\r']))?;
    }
    Ok(())
}

fn json_lines(path: &Path, arguments: &CaptionScoresArguments, each: &mut Each<'_>) -> Result<()> {
    refuse_references(path, arguments)?;
    let mut keys = None;
    lines(path, |line, text| {
        if text.trim().is_empty() {
            return Ok(());
        }
        let place = format!("line {line}");
        let object = serde_json::from_str(text).map_err(|cause| not_json(path, &place, &cause))?;
        one_object(path, &place, &object, arguments, &mut keys, each)
    })
}

fn not_json(path: &Path, place: &str, cause: &serde_json::Error) -> anyhow::Error {
    bad_input(format!(
        "{}, {place}: expected JSON, found {cause}\nhint: write it with json.dump",
        path.display()
    ))
}

type Keys = Option<(String, Vec<String>)>;

fn one_object(
    path: &Path,
    place: &str,
    object: &Value,
    arguments: &CaptionScoresArguments,
    keys: &mut Keys,
    each: &mut Each<'_>,
) -> Result<()> {
    let Value::Object(object) = object else {
        return Err(expected(
            path,
            place,
            "an object with a candidate and its references",
            object,
        ));
    };
    if keys.is_none() {
        let found: Vec<String> = object.keys().cloned().collect();
        *keys = Some(names(path, "keys", &found, arguments)?);
    }
    let (candidate, references) = keys.as_ref().expect("found above");
    let text = |key: &str| {
        let missing = || {
            bad_input(format!(
                "{}, {place}: expected `{key}`, found none\nhint: every object has the same keys",
                path.display()
            ))
        };
        object.get(key).ok_or_else(missing)
    };
    let Value::String(candidate) = text(candidate)? else {
        return Err(expected(
            path,
            place,
            &format!("a text as `{candidate}`"),
            text(candidate)?,
        ));
    };
    let mut texts = Vec::new();
    for reference in references {
        texts.extend(texts_of(path, place, text(reference)?)?);
    }
    check_references(path, place, &texts)?;
    each(candidate, &texts);
    Ok(())
}

fn expected(path: &Path, place: &str, expected: &str, found: &Value) -> anyhow::Error {
    let mut found = found.to_string();
    if found.chars().count() > 60 {
        found = found.chars().take(60).collect::<String>() + "...";
    }
    bad_input(format!(
        "{}, {place}: expected {expected}, found {found}\nhint: `holdall caption-scores --help` shows the forms that are read",
        path.display()
    ))
}

/// A text, or a list of texts or of objects with a `caption`.
fn texts_of(path: &Path, place: &str, value: &Value) -> Result<Vec<String>> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Object(object) => match object.get("caption") {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(expected(path, place, "a `caption`", value)),
        },
        other => Err(expected(path, place, "a text", other)),
    };
    match value {
        Value::Array(list) => list.iter().map(one).collect(),
        other => Ok(vec![one(other)?]),
    }
}

fn json(path: &Path) -> Result<Value> {
    serde_json::from_reader(open(path)?)
        .map_err(|cause| not_json(path, &format!("line {}", cause.line()), &cause))
}

fn json_list(path: &Path, arguments: &CaptionScoresArguments, each: &mut Each<'_>) -> Result<()> {
    let list = match json(path)? {
        Value::Array(list) if !list.is_empty() => list,
        other => {
            return Err(expected(
                path,
                "line 1",
                "a list of objects with a candidate and its references, or --references",
                &other,
            ));
        }
    };
    let coco = |object: &Map<String, Value>| {
        object.contains_key("image_id") && object.len() <= 3 && object.contains_key("caption")
    };
    if list.first().and_then(Value::as_object).is_some_and(coco) {
        return Err(bad_input(format!(
            "{}: expected --references, as its entries have an image_id and one caption, found none\n\
             hint: --references annotations.json, with the true captions of the same images",
            path.display()
        )));
    }
    let mut keys = None;
    for (index, object) in (1..).zip(&list) {
        one_object(
            path,
            &format!("entry {index}"),
            object,
            arguments,
            &mut keys,
            each,
        )?;
    }
    Ok(())
}

/// Captions by image, as `pycocoevalcap` has them. Images without a candidate do not count, as there.
fn by_image(path: &Path, arguments: &CaptionScoresArguments, each: &mut Each<'_>) -> Result<()> {
    let mut references: HashMap<String, Vec<String>> = HashMap::new();
    let mut num_images = 0;
    for file in &arguments.references {
        for (image, _, texts) in captions_of(file, json(file)?)? {
            let known = references.entry(image).or_default();
            num_images += usize::from(known.is_empty());
            known.extend(texts);
        }
    }
    let candidates = captions_of(path, json(path)?)?;
    if num_images > candidates.len() {
        tell(&format!(
            "{} of the references without a candidate: they do not count, in CIDEr-D's frequencies neither",
            counted(num_images - candidates.len(), "image")
        ));
    }
    let mut seen = std::collections::HashSet::new();
    for (image, place, texts) in candidates {
        let [candidate] = &texts[..] else {
            return Err(bad_input(format!(
                "{}, {place}: expected one candidate for image {image}, found {}\nhint: keep the best one",
                path.display(),
                texts.len()
            )));
        };
        if !seen.insert(image.clone()) {
            return Err(bad_input(format!(
                "{}, {place}: expected one candidate for image {image}, found a second\nhint: keep the best one",
                path.display()
            )));
        }
        let Some(texts) = references.get(&image) else {
            return Err(bad_input(format!(
                "{}, {place}: expected references of image {image}, found none in {}\n\
                 hint: check that both files are of one set; image ids are compared as they are written",
                path.display(),
                arguments.references[0].display()
            )));
        };
        each(candidate, texts);
    }
    Ok(())
}

/// Image, place in the file and captions, from a list of objects, `annotations` with such a list, or an object of lists by image.
fn captions_of(path: &Path, value: Value) -> Result<Vec<(String, String, Vec<String>)>> {
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut object) => match object.remove("annotations") {
            Some(Value::Array(list)) => list,
            _ => {
                let captions = object.into_iter().map(|(image, value)| {
                    let place = format!("image {image}");
                    let texts = texts_of(path, &place, &value)?;
                    Ok((image, place, texts))
                });
                return captions.collect();
            }
        },
        other => return Err(expected(path, "line 1", "a list of captions", &other)),
    };
    let captions = (1..).zip(list).map(|(index, entry)| {
        let place = format!("entry {index}");
        let image = match entry.get("image_id").or_else(|| entry.get("id")) {
            Some(Value::String(id)) => id.clone(),
            Some(Value::Number(id)) => id.to_string(),
            _ => return Err(expected(path, &place, "an `image_id`", &entry)),
        };
        let texts = texts_of(path, &place, &entry)?;
        Ok((image, place, texts))
    });
    captions.collect()
}

fn text_lines(path: &Path, arguments: &CaptionScoresArguments, each: &mut Each<'_>) -> Result<()> {
    if arguments.references.is_empty() {
        return Err(bad_input(format!(
            "{}: expected --references, with as many lines, found none\nhint: --references references.txt",
            path.display()
        )));
    }
    let mut references: Vec<Vec<String>> = Vec::new();
    for file in &arguments.references {
        let mut texts = Vec::new();
        lines(file, |_, text| {
            texts.push(text.to_owned());
            Ok(())
        })?;
        references.push(texts);
    }
    let mut num_candidates = 0;
    lines(path, |line, candidate| {
        let of_line = references.iter().zip(&arguments.references);
        let texts = of_line.map(|(texts, file)| {
            let missing = || {
                bad_input(format!(
                    "{}: expected a line {line}, as {} has one, found {}\nhint: line i of both files belongs together",
                    file.display(),
                    path.display(),
                    counted(texts.len(), "line")
                ))
            };
            texts.get(line - 1).cloned().ok_or_else(missing)
        });
        let texts: Vec<String> = texts.collect::<Result<_>>()?;
        num_candidates = line;
        each(candidate, &texts);
        Ok(())
    })?;
    for (texts, file) in references.iter().zip(&arguments.references) {
        if texts.len() != num_candidates || num_candidates == 0 {
            return Err(bad_input(format!(
                "{}: expected {}, one per reference of {}, found {}\nhint: line i of both files belongs together",
                path.display(),
                counted(texts.len().max(1), "line"),
                file.display(),
                num_candidates
            )));
        }
    }
    Ok(())
}
