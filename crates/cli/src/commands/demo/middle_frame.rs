//! Baseline for the clip demo: the held-out clips reduced to their middle frame, scored by the same model.
//!
//! ```text
//! data/middle/000123/00.jpg    the middle frame of data/clips/000123; a clip with one frame shows it in all frames
//! data/middle.csv              the rows of those clips
//! ```

use std::fs;
use std::path::Path;

use anyhow::Result;
use holdall_data::table::Table;
use holdall_files::{create_folders, write_whole};
use holdall_processes::Group;
use holdall_train::TrainError;
use holdall_train::config::budget::Memory;

use super::{DemoArguments, FRAMES};
use crate::commands::eval::{EvalArguments, evaluate};
use crate::options::{
    InferenceOptions, OutputOptions, OverwriteOption, ProcessOptions, TileOptions,
};
use crate::screen::tell;

/// Scores of the run's model on middle frames, as text; `None` if it was stopped.
pub fn scores(data: &Path, arguments: &DemoArguments) -> Result<Option<String>> {
    tell("The same clips as their middle frame alone:");
    write(data)?;
    let arguments = EvalArguments {
        model: arguments.out.join("run").display().to_string(),
        data: Some(data.join("middle.csv").display().to_string()),
        part: None,
        tiling: TileOptions {
            tiles: None,
            mirror: false,
        },
        inference: InferenceOptions {
            batch_size: None,
            memory: arguments.memory.unwrap_or(Memory::Auto),
            compute: arguments.compute.clone(),
        },
        processes: ProcessOptions::default(),
        sets: vec![],
        ranks: None,
        overwrite: OverwriteOption::default(),
        output: OutputOptions { json: false },
    };
    let found = evaluate(&arguments, Group::alone())?;
    Ok(found.map(|found| {
        format!(
            "The same clips as their middle frame alone, through the same model:\n{}",
            found.words
        )
    }))
}

fn write(data: &Path) -> Result<(), TrainError> {
    let csv = data.join("clips.csv");
    let table = Table::open(&csv)?;
    let [video, split] = ["video", "split"].map(|name| table.column("video", name));
    let (video, split) = (video?, split?);
    let mut rows = table.rows()?;
    let mut lines = String::from_utf8_lossy(rows.header()).into_owned();
    while let Some(row) = rows.read()? {
        if row.cell(split) != "validation" {
            continue;
        }
        let clip = row.cell(video);
        let middle = clip.replacen("clips/", "middle/", 1);
        let folder = data.join(&middle);
        let from = data.join(clip).join(format!("{:02}.jpg", FRAMES / 2));
        let copied = create_folders(&folder).and_then(|()| fs::copy(&from, folder.join("00.jpg")));
        copied.map_err(failed(&folder))?;
        let line = String::from_utf8_lossy(row.raw()).replacen(clip, &middle, 1);
        lines += &format!("\n{line}");
    }
    lines.push('\n');
    let path = data.join("middle.csv");
    write_whole(&path, lines.as_bytes()).map_err(failed(&path))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> TrainError {
    let path = path.to_owned();
    move |cause| {
        TrainError::Run(format!(
            "{} cannot be written: {cause}\nhint: check the path and the room on the disk",
            path.display()
        ))
    }
}
