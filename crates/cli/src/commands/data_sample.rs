//! `holdall data sample`: draws synthetic pictures and clips for experiments.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_files::thousands;
use holdall_sample_data::cars::{self, CarsConfig};
use holdall_sample_data::moving_shapes::{self, ClipFormat, MovingShapesConfig};
use holdall_sample_data::vessels::{self, VesselsConfig};
use holdall_train::TrainError;

use crate::invocation::quoted;
use crate::options::seed;
use crate::screen::{progress, tell};
use crate::stop;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall data sample cars /tmp/cars --count 500\n  \
                  holdall train /tmp/cars --model small\n\n  \
                  holdall data sample vessels /tmp/vessels --count 80 --size 512\n  \
                  holdall train /tmp/vessels --task segment --model unet-small\n\n  \
                  holdall data sample clips /tmp/clips --count 400 --frames 16\n  \
                  holdall data sample clips /tmp/clips-avi --format avi"
)]
pub struct DataSampleArguments {
    /// What to draw
    pub kind: SampleKind,
    /// Where: cars in DIR/images with DIR/image_labels.csv; vessels as FIVES has them, in DIR/train and DIR/test; clips in DIR/clips with DIR/clips.csv
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// How many; of vessels a quarter is for the test, of clips a fifth for validation [default: 1000 cars, 80 vessels, 400 clips]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..10_000_000))]
    count: Option<u64>,
    /// Width and height in pixels [default: 96 of cars and clips, 512 of vessels]
    #[arg(long, value_name = "PIXELS")]
    size: Option<u32>,
    /// Another seed, other pictures
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
    /// Frames of a clip [default: 16]
    #[arg(long, value_name = "N")]
    frames: Option<usize>,
    /// What clips are stored as [default: frames]
    #[arg(long, value_name = "FORMAT")]
    format: Option<ClipFormatArgument>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ClipFormatArgument {
    /// A folder of JPEG for each clip
    Frames,
    /// Animated GIF
    Gif,
    /// AVI with Motion JPEG
    Avi,
    /// Arrays [t, h, w, 3] of numpy
    Npy,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum SampleKind {
    /// Cars of several makes, with captions
    Cars,
    /// Photographs of the back of an eye, with masks of the vessels
    Vessels,
    /// Clips of shapes that move, with captions that need more than one frame
    Clips,
}

impl SampleKind {
    fn name(self) -> &'static str {
        match self {
            SampleKind::Cars => "cars",
            SampleKind::Vessels => "vessels",
            SampleKind::Clips => "clips",
        }
    }

    fn sizes(self) -> RangeInclusive<u32> {
        match self {
            SampleKind::Cars => 32..=1024,
            SampleKind::Vessels => vessels::MIN_SIZE..=vessels::MAX_SIZE,
            SampleKind::Clips => moving_shapes::MIN_SIZE..=moving_shapes::MAX_SIZE,
        }
    }

    fn default_size(self) -> u32 {
        match self {
            SampleKind::Cars | SampleKind::Clips => 96,
            SampleKind::Vessels => 512,
        }
    }

    fn default_count(self) -> u64 {
        match self {
            SampleKind::Cars => 1000,
            SampleKind::Vessels => 80,
            SampleKind::Clips => 400,
        }
    }
}

impl DataSampleArguments {
    pub fn count(&self) -> usize {
        self.count.unwrap_or(self.kind.default_count()) as usize
    }

    /// Width and height, if valid for the kind.
    fn size(&self) -> Result<u32, TrainError> {
        let size = self.size.unwrap_or(self.kind.default_size());
        let sizes = self.kind.sizes();
        if sizes.contains(&size) {
            Ok(size)
        } else {
            Err(TrainError::Config(format!(
                "--size {size}: {} are drawn from {} to {} pixels wide\nhint: --size {}",
                self.kind.name(),
                sizes.start(),
                sizes.end(),
                size.clamp(*sizes.start(), *sizes.end())
            )))
        }
    }
}

impl DataSampleArguments {
    /// Frames per clip, if the kind is clips.
    fn frames(&self) -> Result<usize, TrainError> {
        let refused =
            |what: String, hint: &str| Err(TrainError::Config(format!("{what}\nhint: {hint}")));
        let is_clips = matches!(self.kind, SampleKind::Clips);
        if !is_clips && (self.frames.is_some() || self.format.is_some()) {
            let name = self.kind.name();
            return refused(
                format!("{name} have no --frames and no --format: these are for clips"),
                "holdall data sample clips DIR --frames 16 --format avi",
            );
        }
        let frames = self.frames.unwrap_or(MovingShapesConfig::default().frames);
        let (least, most) = (moving_shapes::MIN_FRAMES, moving_shapes::MAX_FRAMES);
        if (least..=most).contains(&frames) {
            Ok(frames)
        } else {
            refused(
                format!("--frames {frames}: a clip is drawn with {least} to {most} frames"),
                "--frames 16",
            )
        }
    }
}

pub fn run(arguments: DataSampleArguments) -> Result<ExitCode> {
    let size = arguments.size()?;
    let frames = arguments.frames()?;
    let kind = arguments.kind;
    let doing = match kind {
        SampleKind::Cars => "Drawing cars",
        SampleKind::Vessels => "Drawing vessels",
        SampleKind::Clips => "Drawing clips",
    };
    let bar = progress(arguments.count() as u64, doing);
    let orderly = stop::orderly("Stopping; the same command draws the rest");
    let on_progress = |_| {
        bar.inc(1);
        !stop::is_asked()
    };
    let told = match kind {
        SampleKind::Cars => draw_cars(&arguments, size, on_progress),
        SampleKind::Vessels => draw_vessels(&arguments, size, on_progress),
        SampleKind::Clips => draw_clips(&arguments, size, frames, on_progress),
    };
    drop(orderly);
    bar.finish_and_clear();
    let Some(told) = told? else {
        return Ok(stop::exit_code());
    };
    tell(&told);
    Ok(ExitCode::SUCCESS)
}

/// Draws car pictures and returns a note about them; `None` if it was stopped.
fn draw_cars(
    arguments: &DataSampleArguments,
    size: u32,
    on_progress: impl Fn(usize) -> bool + Sync,
) -> Result<Option<String>, TrainError> {
    let config = CarsConfig {
        count: arguments.count(),
        size,
        seed: arguments.seed,
    };
    let cars = cars::write(&arguments.folder, &config, on_progress)
        .map_err(|error| TrainError::Config(error.to_string()))?;
    Ok(cars.map(|cars| {
        format!(
            "{} cars in {csv}\nhint: holdall train {csv} --model small",
            cars.count,
            csv = quoted(&cars.labels),
        )
    }))
}

/// Like [`draw_cars`], for vessel images.
fn draw_vessels(
    arguments: &DataSampleArguments,
    size: u32,
    on_progress: impl Fn(usize) -> bool + Sync,
) -> Result<Option<String>, TrainError> {
    let config = VesselsConfig {
        count: arguments.count(),
        size,
        seed: arguments.seed,
    };
    let pictures = vessels::write(&arguments.folder, &config, on_progress)
        .map_err(|error| TrainError::Config(error.to_string()))?;
    Ok(pictures.map(|pictures| {
        format!(
            "{} pictures to train on and {} to test with in {folder}\n\
             hint: holdall train {folder} --task segment --model unet-small",
            thousands(pictures.num_train),
            thousands(pictures.num_test),
            folder = quoted(&arguments.folder),
        )
    }))
}

/// Like [`draw_cars`], for clips.
fn draw_clips(
    arguments: &DataSampleArguments,
    size: u32,
    frames: usize,
    on_progress: impl Fn(usize) -> bool + Sync,
) -> Result<Option<String>, TrainError> {
    let config = MovingShapesConfig {
        count: arguments.count(),
        size,
        frames,
        seed: arguments.seed,
        format: match arguments.format {
            None | Some(ClipFormatArgument::Frames) => ClipFormat::Frames,
            Some(ClipFormatArgument::Gif) => ClipFormat::Gif,
            Some(ClipFormatArgument::Avi) => ClipFormat::Avi,
            Some(ClipFormatArgument::Npy) => ClipFormat::Npy,
        },
    };
    let clips = moving_shapes::write(&arguments.folder, &config, on_progress)
        .map_err(|error| TrainError::Config(error.to_string()))?;
    Ok(clips.map(|clips| {
        format!(
            "{} clips to train on and {} for validation in {csv}\n\
             hint: holdall train {csv} --task video-text --model video-text-demo --set data.validation='{{column: split}}'",
            thousands(clips.num_train),
            thousands(clips.num_validation),
            csv = quoted(&clips.labels),
        )
    }))
}
