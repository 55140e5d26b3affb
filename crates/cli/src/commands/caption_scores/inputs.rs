//! Reads candidates and references from common file formats.

mod json;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Result;
use holdall_data::table::Table;
use holdall_files::{counted, open_regular};
use holdall_train::TrainError;

use super::{CaptionScoresArguments, bad_input};
use crate::screen::tell;

/// Column names of candidates, most likely first.
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

/// Column names of references; all that exist count.
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
        "jsonl" | "ndjson" => json::lines_of_objects(path, arguments, each),
        "json" if arguments.references.is_empty() => json::list_of_objects(path, arguments, each),
        "json" => json::captions_by_image(path, arguments, each),
        _ => text_lines(path, arguments, each),
    }
}

fn extension(path: &Path) -> String {
    let extension = path.extension().unwrap_or_default();
    extension.to_string_lossy().to_ascii_lowercase()
}

/// Refuses `--references` for files that hold references themselves, where the option would be ignored.
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

/// References in a cell: one text, or a JSON list of texts. An empty cell holds none.
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

/// The keys of the candidate or the references: named by options, or guessed from the usual names with a note.
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
    let references = if !arguments.reference.is_empty() {
        arguments.reference.clone()
    } else {
        // `caption` is the reference if another column is the candidate.
        let mut usual: Vec<String> = REFERENCES.iter().filter_map(|name| like(name)).collect();
        let others = CANDIDATES
            .split_last()
            .map_or(&[][..], |(_, others)| others);
        if usual.is_empty() && others.iter().any(|name| like(name).is_some()) {
            usual.extend(like("caption"));
        }
        usual
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

/// Calls `each` with the lines of a file, without line ends, and their numbers from 1.
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
