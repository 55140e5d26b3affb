//! Search results as files and on stdout.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use holdall_files::counted;
use serde::Serialize;

use super::super::contact_sheet::{self, Cell};
use super::super::{PredictionJob, Skipped, write_file};
use super::{Search, SearchOutcome};
use crate::array_file;
use crate::failure;
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Serialize)]
struct SearchJson<'a> {
    model: &'a Path,
    device: &'static str,
    searches: Vec<TextJson<'a>>,
    skipped: &'a [Skipped],
    planned_bytes: u64,
    process_bytes: Option<u64>,
    text_features: Option<&'a Path>,
    features: Option<&'a Path>,
    sheet: Option<&'a Path>,
}

#[derive(Serialize)]
struct TextJson<'a> {
    text: &'a str,
    found: Vec<FoundJson>,
}

#[derive(Serialize)]
struct FoundJson {
    image: String,
    similarity: f64,
}

/// Writes and prints the requested outputs.
pub(super) fn report(
    job: &PredictionJob<'_>,
    model: &Path,
    search: &Search<'_>,
    outcome: &SearchOutcome,
) -> Result<ExitCode> {
    let PredictionJob {
        arguments, device, ..
    } = job;
    let options = &arguments.search;
    let skipped = job.tell_skipped(&outcome.skipped);
    let width = search.features.len() / search.texts.len();
    let num_read = job.samples.len() - outcome.skipped.len();
    let has_read = !job.found_nothing(num_read, &skipped);
    let arrays = [
        (
            &options.text_features,
            "text_features",
            Some(&search.features),
        ),
        (
            &arguments.features,
            "image_features",
            search.pictures.as_ref(),
        ),
    ];
    for (path, name, features) in arrays {
        if let (Some(path), Some(features), true) = (path, features, has_read) {
            stop::whole(|| array_file::write(path, name, features, width))?;
            let rows = features.len() / width;
            tell(&format!("{rows} x {width} features: {}", path.display()));
        }
    }
    if let (Some(path), true) = (&options.sheet, has_read) {
        let page =
            contact_sheet::page(search.texts.iter().zip(&search.best).map(|(text, best)| {
                let cells = best.iter().map(|&(sample, similarity)| Cell {
                    name: job.image(sample),
                    similarity,
                    jpeg: jpeg_of(&outcome.thumbnails, sample),
                });
                (text.as_str(), cells.collect())
            }));
        write_file(path, "--sheet", page.as_bytes())?;
        tell(&format!("Contact sheet: {}", path.display()));
    }
    if let (Some(path), true) = (&arguments.csv, has_read) {
        write_file(path, "--csv", &as_csv(job, search)?)?;
        let count = counted(search.texts.len(), "text");
        tell(&format!("Found for {count}: {}", path.display()));
    }
    if arguments.output.json {
        print_json(&SearchJson {
            model,
            device: device.kind(),
            searches: as_json(job, search),
            skipped: &skipped,
            planned_bytes: outcome.planned_bytes,
            process_bytes: device.peak_bytes(),
            text_features: options.text_features.as_deref(),
            features: arguments.features.as_deref(),
            sheet: options.sheet.as_deref(),
        })?;
    } else if arguments.csv.is_none() && !job.samples.is_empty() {
        print(&show(job, search))?;
    }
    Ok(if skipped.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// Thumbnails are sorted by sample.
fn jpeg_of(thumbnails: &[(u32, Vec<u8>)], sample: u32) -> Option<&[u8]> {
    let found = thumbnails.binary_search_by_key(&sample, |(sample, _)| *sample);
    found.ok().map(|index| thumbnails[index].1.as_slice())
}

fn as_json<'a>(job: &PredictionJob<'_>, search: &'a Search<'_>) -> Vec<TextJson<'a>> {
    let each = search.texts.iter().zip(&search.best);
    let found = |&(sample, similarity): &(u32, f64)| FoundJson {
        image: job.image(sample),
        similarity,
    };
    each.map(|(text, best)| TextJson {
        text,
        found: best.iter().map(found).collect(),
    })
    .collect()
}

/// A row per text and found picture.
fn as_csv(job: &PredictionJob<'_>, search: &Search<'_>) -> Result<Vec<u8>> {
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(["text", "rank", "image", "similarity"])?;
    for (text, best) in search.texts.iter().zip(&search.best) {
        for (rank, &(sample, similarity)) in (1..).zip(best) {
            let (rank, similarity) = (format!("{rank}"), format!("{similarity:.6}"));
            rows.write_record([text, &rank, &job.image(sample), &similarity])?;
        }
    }
    Ok(rows.into_inner()?)
}

fn show(job: &PredictionJob<'_>, search: &Search<'_>) -> String {
    let mut text = String::new();
    for (query, best) in search.texts.iter().zip(&search.best) {
        text.push_str(&format!("{query}\n"));
        for &(sample, similarity) in best {
            text.push_str(&format!("  {similarity:.3}  {}\n", job.image(sample)));
        }
    }
    text
}
