//! Writes ranks and neighbours to files, atomically.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use holdall_files::{counted, write_whole_by};
use holdall_metrics::retrieval::{Found, Neighbours, Ranked, Ties};
use holdall_train::TrainError;

use super::arguments::RetrievalArguments;
use super::inputs::config;
use crate::array_file;
use crate::screen::tell;

/// Refuses file names of unknown types before any work is done.
pub fn check_names(arguments: &RetrievalArguments) -> Result<()> {
    let outputs = [
        ("--ranks", &arguments.ranks, ["csv"].as_slice()),
        ("--neighbours", &arguments.neighbours, &["npy", "csv"]),
    ];
    for (option, path, extensions) in outputs {
        let Some(path) = path else {
            continue;
        };
        let extension = path
            .extension()
            .map(|extension| extension.to_string_lossy());
        if !extension.is_some_and(|extension| extensions.contains(&&*extension)) {
            return Err(config(format!(
                "{option} {}: expected a name that ends in .{}\nhint: {option} {}.{}",
                path.display(),
                extensions.join(" or ."),
                option.trim_start_matches('-'),
                extensions[0]
            )));
        }
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        if !folder.unwrap_or(Path::new(".")).is_dir() {
            return Err(config(format!(
                "{option} {}: expected a folder to write to, found none\nhint: make it first: mkdir -p {}",
                path.display(),
                folder.unwrap_or(path).display()
            )));
        }
    }
    let outputs = outputs.map(|(option, path, _)| (option, path));
    let features = arguments.queries.iter().chain(&arguments.gallery);
    let tables = arguments.pairs.iter().chain(&arguments.captions);
    // FILE.safetensors:TENSOR and FILE.csv:COLUMN name files, too.
    let inputs: Vec<PathBuf> = features
        .chain(tables)
        .flat_map(|path| {
            let text = path.to_string_lossy();
            let file = text.rsplit_once(':').map(|(file, _)| PathBuf::from(file));
            std::iter::once(path.clone()).chain(file)
        })
        .collect();
    Ok(arguments.overwrite.check_files(outputs, &inputs)?)
}

/// Writes the requested files.
pub fn write(arguments: &RetrievalArguments, found: &Found, ties: Ties) -> Result<()> {
    if let Some(path) = &arguments.ranks {
        whole(path, |file| {
            writeln!(file, "direction,item,positive,rank,above,level")?;
            ranks(file, "query_to_gallery", &found.to_gallery, ties)?;
            ranks(file, "gallery_to_query", &found.to_query, ties)
        })?;
        let num_ranks = found.to_gallery.entries.len() + found.to_query.entries.len();
        tell(&format!(
            "{}: {}",
            counted(num_ranks, "rank"),
            path.display()
        ));
    }
    if let (Some(path), Some(neighbours)) = (&arguments.neighbours, &found.neighbours) {
        let is_npy = path.extension().is_some_and(|extension| extension == "npy");
        whole(path, |file| {
            if is_npy {
                numbers(file, neighbours)
            } else {
                lines(file, neighbours)
            }
        })?;
        tell(&format!(
            "{} of each query: {}",
            counted(neighbours.count, "neighbour"),
            path.display()
        ));
    }
    Ok(())
}

fn whole(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    write_whole_by(path, fill).map_err(|cause| {
        let text = format!(
            "{} cannot be written: {cause}\nhint: check the path and the room on the disk",
            path.display()
        );
        TrainError::Run(text).into()
    })
}

fn ranks(file: &mut dyn Write, direction: &str, ranked: &Ranked, ties: Ties) -> io::Result<()> {
    for entry in &ranked.entries {
        writeln!(
            file,
            "{direction},{},{},{},{},{}",
            entry.item,
            entry.positive,
            entry.rank(ties),
            entry.above,
            entry.level
        )?;
    }
    Ok(())
}

/// Neighbours as a queries x neighbours array of 8-byte integers, which every framework accepts as indices.
fn numbers(file: &mut dyn Write, neighbours: &Neighbours) -> io::Result<()> {
    let rows = neighbours.items.len() / neighbours.count.max(1);
    file.write_all(&array_file::npy_header("<i8", rows, neighbours.count))?;
    for &item in &neighbours.items {
        file.write_all(&i64::from(item).to_le_bytes())?;
    }
    Ok(())
}

fn lines(file: &mut dyn Write, neighbours: &Neighbours) -> io::Result<()> {
    writeln!(file, "query,place,gallery,score")?;
    let both = neighbours.items.iter().zip(&neighbours.scores);
    for (at, (item, score)) in both.enumerate() {
        let (query, place) = (at / neighbours.count, at % neighbours.count);
        writeln!(file, "{query},{},{item},{score}", place + 1)?;
    }
    Ok(())
}
