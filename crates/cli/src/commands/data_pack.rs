//! `holdall data pack`: pictures of a table as WebDataset shards, resized once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::find::find;
use holdall_data::pack::{PackConfig, Packed, pack, picture_bytes};
use holdall_data::picture::SmallerFormat;
use holdall_files::{counted, show_bytes};
use holdall_train::TrainError;
use holdall_train::config::{Count, RunConfig};

use crate::arguments::{OutputOptions, at_least_one};
use crate::commands::data_check::{allowance, watched};
use crate::commands::train::is_yaml;
use crate::failure;
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall data pack photos.csv --size 256 --out shards\n  \
                  holdall data pack photos.csv --out shards          # files as they are\n  \
                  holdall train shards --memory 8GiB\n\n\
                  A shard is a tar: 000000017.jpg, .txt (its caption), .json (all other columns), .mask.png. With --size the shorter side\n\
                  of each picture, and of its mask, becomes that long, as JPEG of quality 95 or lossless WebP; smaller ones are copied as\n\
                  they are. Training then crops from the smaller picture: take --size larger than the model's pictures, 256 for 224.\n\
                  What is stopped goes on when the same command is typed again; shards that are there are compared with their checksums.\n\
                  Of pictures with masks in folders, `holdall data clean FOLDER` writes the list to pack.")]
pub struct DataPackArguments {
    /// DATA.csv or another table, a folder per class, CONFIG.yml
    #[arg(value_name = "CONFIG|DATA")]
    pub target: String,
    /// The folder of the shards
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// Pixels that the shorter side of a picture has at most [default: as they are]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub size: Option<u32>,
    /// How resized pictures are written
    #[arg(long, value_name = "FORMAT", default_value = "jpeg")]
    pub format: FormatArgument,
    /// Rows of a shard
    #[arg(long, value_name = "N", default_value = "1000", value_parser = at_least_one)]
    pub per_shard: usize,
    /// Threads that decode and encode: a number, or auto
    #[arg(long, alias = "num_workers", value_name = "N")]
    pub num_workers: Option<Count>,
    /// Keys of the data section, such as data.image=COLUMN; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FormatArgument {
    /// Quality 95
    Jpeg,
    /// Without loss, about four times as large
    Webp,
}

pub fn run(arguments: DataPackArguments) -> Result<ExitCode> {
    let target = arguments.target.as_str();
    let file = Some(target).filter(|target| is_yaml(target)).map(Path::new);
    let mut config = RunConfig::load(file, &arguments.sets)?;
    if file.is_none() {
        config.data.train = Some(PathBuf::from(target));
    }
    let found = find(config.data.train.as_deref()).map_err(TrainError::from)?;
    found.notes.iter().for_each(|note| tell(note));
    let workers = arguments.num_workers.unwrap_or(config.num_workers);
    let config = PackConfig {
        data: config.data,
        table: found.csv,
        out: arguments.out,
        size: arguments.size,
        format: match arguments.format {
            FormatArgument::Jpeg => SmallerFormat::Jpeg,
            FormatArgument::Webp => SmallerFormat::Webp,
        },
        rows_per_shard: arguments.per_shard,
        num_workers: workers.exactly().filter(|number| *number > 0),
        allowance: allowance(config.memory),
    };
    tell(&what_changes(&config));
    let Some(packed) = watched(|watch| pack(&config, watch))? else {
        return Ok(stop::exit_code());
    };
    match arguments.output.json {
        true => print_json(&packed)?,
        false => print(&show(&packed, picture_bytes(&config).unwrap_or(0)))?,
    }
    tell(&format!("hint: holdall train {}", packed.out.display()));
    Ok(match packed.skipped.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(failure::FOUND),
    })
}

/// Whether training will see other pixels.
fn what_changes(config: &PackConfig) -> String {
    match (config.size, config.format) {
        (None, _) => "Pictures are copied as they are: training sees the same pixels".to_owned(),
        (Some(size), format) => {
            let format = match format {
                SmallerFormat::Jpeg => "JPEG of quality 95",
                SmallerFormat::Webp => "lossless WebP",
            };
            format!(
                "Pictures whose shorter side is longer than {size} pixels become that size (bicubic, {format}), upright and without EXIF: training crops \
                 from those, so it sees other pixels than with the originals"
            )
        }
    }
}

fn show(packed: &Packed, before_bytes: u64) -> String {
    let mut text = format!(
        "{}: {} in {}, {} (pictures were {})\n",
        packed.out.display(),
        counted(packed.samples, "sample"),
        counted(packed.shards.len(), "shard"),
        show_bytes(packed.bytes),
        show_bytes(before_bytes)
    );
    if packed.kept_shards > 0 {
        text += &format!(
            "{} kept, as written\n",
            counted(packed.kept_shards, "shard")
        );
    }
    if let Some(first) = packed.skipped.first() {
        text += &format!(
            "{} left out, named in skipped.csv (first: row {}, {})\n",
            counted(packed.skipped.len(), "row"),
            first.row,
            first.reason
        );
    }
    text
}
