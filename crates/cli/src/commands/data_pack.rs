//! `holdall data pack`: packs a table's pictures or clips into WebDataset shards, resized once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::DataConfig;
use holdall_data::config::{FieldOfViewChoice, Stride};
use holdall_data::decode::{FrameCoding, SmallerFormat};
use holdall_data::pack::{PackConfig, Packed, PackedMedia, pack, stored_bytes};
use holdall_data::samples::{EvidenceKind, evidence};
use holdall_data::table::find;
use holdall_files::{counted, show_bytes};
use holdall_train::TrainError;
use holdall_train::config::Count;

use crate::commands::data_check::{allowance, tell_unread_sets, watched};
use crate::commands::next_command::Typed;
use crate::config_file::{self, Differences};
use crate::failure;
use crate::invocation::{program, quoted};
use crate::options::{OutputOptions, at_least_one, is_yaml};
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall data pack photos.csv --size 256 --out shards\n  \
                  holdall data pack photos.csv --out shards          # files as they are\n  \
                  holdall train shards --memory 8GiB\n  \
                  holdall data pack clips.csv --size 256 --frames 16 --out shards\n\n\
                  A shard is a tar: 000000017.jpg, .txt (its caption), .json (all other columns), .mask.png. With --size the shorter side\n\
                  of each picture, and of its mask, becomes that long, as JPEG of quality 95, lossless WebP or PPM; smaller ones are copied\n\
                  as they are. Training then crops from the smaller picture: take --size larger than the model's pictures, 256 for 224.\n\
                  Of clips, --frames of them are kept, spread over the clip or as data.stride says, as Motion JPEG (000000017.avi) or as\n\
                  an array without loss (--format npy); without --frames all are. Train on them with the same number of frames.\n\
                  What is stopped goes on when the same command is typed again; shards that are there are compared with their checksums.\n\
                  Of pictures with masks in folders, `holdall data clean FOLDER` writes the list to pack.")]
pub struct DataPackArguments {
    /// DATA.csv or another table, a folder per class, CONFIG.yml
    #[arg(value_name = "CONFIG|DATA")]
    pub target: String,
    /// The folder of the shards
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// Pixels that the shorter side of a picture or frame has at most [default: as they are]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub size: Option<u32>,
    /// Frames that are kept of each clip [default: data.frames of the config, or all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub frames: Option<u32>,
    /// How resized pictures and frames are written
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArgument {
    /// Quality 95
    Jpeg,
    /// Pictures without loss, about four times as large
    Webp,
    /// Pictures without loss that need no decoding, read more than twice as fast, five to six times as large
    Ppm,
    /// Clips without loss: arrays, about ten times as large
    Npy,
}

pub fn run(arguments: DataPackArguments) -> Result<ExitCode> {
    let target = arguments.target.as_str();
    let file = Some(target).filter(|target| is_yaml(target)).map(Path::new);
    let mut config = config_file::load(file, &arguments.sets, Differences::Accept)?;
    if file.is_none() {
        config.data.train = Some(PathBuf::from(target));
    }
    check_has_table(&config.data)?;
    let found = find(config.data.train.as_deref()).map_err(TrainError::from)?;
    found.notes.iter().for_each(|note| tell(note));
    if arguments.frames.is_some() {
        config.data.frames = arguments.frames;
    }
    let media = media(&arguments, &config.data)?;
    tell_unread_sets(&config, &arguments.sets);
    let workers = arguments.num_workers.unwrap_or(config.num_workers);
    let config = PackConfig {
        data: config.data,
        table: found.csv,
        out: arguments.out.clone(),
        size: arguments.size,
        media,
        rows_per_shard: arguments.per_shard,
        num_workers: workers.exactly().filter(|number| *number > 0),
        allowance: allowance(config.memory),
    };
    if let (PackedMedia::Pictures(_), None, true) =
        (media, config.size, arguments.format != FormatArgument::Jpeg)
    {
        tell("warning: --format: no effect without --size: pictures are copied as they are");
    }
    if let Some(change) = what_changes(&config) {
        tell(&change);
    }
    let Some(packed) = watched(|watch| pack(&config, watch))? else {
        return Ok(stop::exit_code());
    };
    if packed.samples == 0 {
        return Err(TrainError::Config(format!(
            "{}: expected rows whose pictures can be read, found none of {}\nhint: {} says what is wrong with each",
            config.table.display(),
            counted(packed.rows, "row"),
            config.out.join("skipped.csv").display()
        ))
        .into());
    }
    if arguments.output.json {
        print_json(&packed)?
    } else {
        print(&show(&packed, media, stored_bytes(&config).unwrap_or(0)))?
    }
    let typed = Typed {
        target: Some(target),
        sets: &arguments.sets,
        task: None,
        seed: None,
    };
    let line = typed.train(&packed.out, is_packed_key, &packed_keys(&config));
    tell(&format!("hint: {line}"));
    Ok(if packed.skipped.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// Refuses folders of images and masks: only rows of a table are packed, and `data clean` makes a table.
fn check_has_table(data: &DataConfig) -> Result<()> {
    let Some(folder) = data.train.as_deref().filter(|path| path.is_dir()) else {
        return Ok(());
    };
    if !evidence(data).is_ok_and(|evidence| evidence.kind == EvidenceKind::Masks) {
        return Ok(());
    }
    Err(TrainError::Config(format!(
        "{}: expected a CSV that names images and masks, found folders of them\n\
         hint: `{} data clean {}` writes {}, which `data pack` takes",
        folder.display(),
        program(),
        quoted(folder),
        folder.join("pairs_cleaned.csv").display()
    ))
    .into())
}

/// Whether rows name pictures or clips, and whether the options fit.
fn media(arguments: &DataPackArguments, data: &DataConfig) -> Result<PackedMedia> {
    let is_clips = match arguments.frames {
        Some(_) => true,
        None => evidence(data).is_ok_and(|evidence| evidence.kind == EvidenceKind::Clips),
    };
    let refused = |message: &str| Err(TrainError::Config(message.to_owned()).into());
    match (is_clips, arguments.format) {
        (true, FormatArgument::Jpeg) => Ok(PackedMedia::Clips(FrameCoding::Jpeg)),
        (true, FormatArgument::Npy) => Ok(PackedMedia::Clips(FrameCoding::Pixels)),
        (true, FormatArgument::Webp | FormatArgument::Ppm) => refused(
            "--format: a format of pictures, expected jpeg or npy for clips\nhint: `--format npy` loses nothing, `--format jpeg` is about ten times smaller",
        ),
        (false, FormatArgument::Jpeg) => Ok(PackedMedia::Pictures(SmallerFormat::Jpeg)),
        (false, FormatArgument::Webp) => Ok(PackedMedia::Pictures(SmallerFormat::Webp)),
        (false, FormatArgument::Ppm) => Ok(PackedMedia::Pictures(SmallerFormat::Ppm)),
        (false, FormatArgument::Npy) => refused(
            "--format npy: expected jpeg, webp or ppm for pictures\nhint: `--format webp` loses nothing",
        ),
    }
}

/// Note on how packing changes the pixels that training sees; `None` for clips without a size, which are refused.
fn what_changes(config: &PackConfig) -> Option<String> {
    Some(match (config.media, config.size) {
        (PackedMedia::Clips(_), None) => return None,
        (PackedMedia::Pictures(_), None) => {
            "Pictures are copied as they are: training sees the same pixels".to_owned()
        }
        (PackedMedia::Pictures(format), Some(size)) => {
            let format = match format {
                SmallerFormat::Jpeg => "JPEG of quality 95",
                SmallerFormat::Webp => "lossless WebP",
                SmallerFormat::Ppm => "PPM, without loss",
            };
            format!(
                "Pictures whose shorter side is longer than {size} pixels become that size (bicubic, {format}), upright and without EXIF: training crops \
                 from those, so it sees other pixels than with the originals"
            )
        }
        (PackedMedia::Clips(coding), Some(size)) => {
            let coding = match coding {
                FrameCoding::Jpeg => "Motion JPEG of quality 95",
                FrameCoding::Pixels => "arrays without loss",
            };
            let frames = match (config.data.frames, config.data.stride) {
                (None, _) => {
                    "All frames are kept (`--frames 16` keeps those that a model of 16 frames sees)"
                        .to_owned()
                }
                (Some(frames), Stride::Spread) => {
                    format!("{frames} frames of each clip are kept, spread over it")
                }
                (Some(frames), Stride::Every(stride)) => format!(
                    "{frames} frames of each clip are kept, at steps of {stride} from its middle; train on them without `stride:`, because no other start is \
                     left to draw"
                ),
            };
            format!(
                "{frames}. Their shorter side becomes at most {size} pixels (bicubic, {coding}): training crops from those, so it sees other pixels than \
                 with the originals"
            )
        }
    })
}

/// Config keys for columns and folders that shards replace by their own.
fn is_packed_key(key: &str) -> bool {
    let own = [
        "image",
        "video",
        "mask",
        "image_root",
        "separator",
        "frames",
        "stride",
    ];
    own.iter().any(|own| key == format!("data.{own}"))
}

/// Config keys that change for shards: shard columns have fixed names, and every kept frame of a clip is used once.
fn packed_keys(config: &PackConfig) -> Vec<String> {
    let data = &config.data;
    let mut keys = Vec::new();
    for (named, own) in [
        (&data.image, "image"),
        (&data.video, "video"),
        (&data.mask, "mask"),
    ] {
        if named.as_deref().is_some_and(|named| named != own) {
            keys.push(format!("data.{own}={own}"));
        }
    }
    if let FieldOfViewChoice::Named(_) = data.field_of_view {
        keys.push("data.field_of_view=auto".to_owned());
    }
    if let (PackedMedia::Clips(_), Some(frames)) = (config.media, data.frames) {
        keys.push(format!("data.frames={frames}"));
        if data.stride != Stride::Spread {
            keys.push("data.stride=spread".to_owned());
        }
    }
    keys
}

fn show(packed: &Packed, media: PackedMedia, before_bytes: u64) -> String {
    let what = match media {
        PackedMedia::Pictures(_) => "pictures",
        PackedMedia::Clips(_) => "clips",
    };
    let mut text = format!(
        "{}: {} in {}, {} ({what} were {})\n",
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
