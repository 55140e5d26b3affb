//! Candidates and references as JSON: objects with both, one per line or in a list, or captions by image in `pycocoevalcap`'s format.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::Result;
use holdall_files::counted;
use serde_json::{Map, Value};

use super::super::{CaptionScoresArguments, bad_input};
use super::{Each, check_references, lines, names, open, refuse_references};
use crate::screen::tell;

pub fn lines_of_objects(
    path: &Path,
    arguments: &CaptionScoresArguments,
    each: &mut Each<'_>,
) -> Result<()> {
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

fn read(path: &Path) -> Result<Value> {
    serde_json::from_reader(open(path)?)
        .map_err(|cause| not_json(path, &format!("line {}", cause.line()), &cause))
}

pub fn list_of_objects(
    path: &Path,
    arguments: &CaptionScoresArguments,
    each: &mut Each<'_>,
) -> Result<()> {
    let list = match read(path)? {
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

/// Captions by image in `pycocoevalcap`'s format. Images without a candidate are left out, as in the original.
pub fn captions_by_image(
    path: &Path,
    arguments: &CaptionScoresArguments,
    each: &mut Each<'_>,
) -> Result<()> {
    let mut references: HashMap<String, Vec<String>> = HashMap::new();
    let mut num_images = 0;
    for file in &arguments.references {
        for (image, _, texts) in captions_of(file, read(file)?)? {
            let known = references.entry(image).or_default();
            num_images += usize::from(known.is_empty());
            known.extend(texts);
        }
    }
    let candidates = captions_of(path, read(path)?)?;
    if num_images > candidates.len() {
        tell(&format!(
            "{} of the references without a candidate: they do not count, in CIDEr-D's frequencies neither",
            counted(num_images - candidates.len(), "image")
        ));
    }
    let mut seen = HashSet::new();
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

/// Image, position in the file and captions, from a list of objects, from such a list under `annotations`, or from an object of lists by
/// image.
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
