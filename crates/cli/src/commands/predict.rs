//! `holdall predict`: labels, numbers, features and masks of pictures, captions of clips, by a trained model.

mod classify;
mod clip;
mod clip_files;
mod contact_sheet;
mod inputs;
mod mask_files;
mod search;
mod segment;
mod video_text;

pub(super) use self::inputs::pictures;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use holdall_data::DataConfig;
use holdall_data::loader::{self, Loader};
use holdall_data::samples::Samples;
use holdall_device::{Device, HostRow};
use holdall_train::TrainError;
use holdall_train::loader_budget::Reading;
use holdall_train::saved_model::{self, Opened, Pictures, SavedModel};
use holdall_train::setup::{resolve_budget, room_to_open};
use holdall_train::skipped::reason;
use holdall_train::task::Task;
use holdall_train::tasks::Saved;
use serde::Serialize;

use self::inputs::Inputs;
use crate::arguments::{InferenceOptions, OutputOptions, TileOptions, at_least_one};
use crate::array_file;
use crate::commands::open_device;
use crate::commands::plan::fitting;
use crate::failure;
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall predict runs/cars photo.jpg folder-of-photos\n  \
                  holdall predict runs/cars photo.jpg --labels \"red car,blue car\" --template \"a photo of a {}\"\n  \
                  holdall predict runs/cars photos --features features.npy\n  \
                  holdall predict runs/cars photos.csv --csv predictions.csv\n  \
                  holdall predict runs/cars --texts queries.txt --search photos --top 10 --sheet found.html\n  \
                  holdall predict runs/cars --texts queries.txt --text-features texts.npy\n  \
                  holdall predict runs/vessels photos --out masks --overlays\n  \
                  holdall predict runs/clips folder-of-clips --beams 4 --csv captions.csv\n  \
                  holdall predict runs/clips folder-of-clips --find \"a red ball moves left\"\n\n\
                  Exit code 1: some pictures could not be read; the others were predicted.")]
pub struct PredictArguments {
    /// The folder of a run, or a model folder
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// Pictures, folders of pictures, or a CSV that lists them; for a video-text model clips, folders of clips, or a CSV
    #[arg(value_name = "IMAGES", required_unless_present = "texts")]
    pub images: Vec<PathBuf>,
    /// Labels that need no training: pictures are compared with captions made of them
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// The same from a file, a label a line
    #[arg(
        long,
        alias = "labels_file",
        value_name = "FILE",
        conflicts_with = "labels"
    )]
    pub labels_file: Option<PathBuf>,
    /// The caption of a label
    #[arg(long, value_name = "TEXT", default_value = "a photo of a {}")]
    pub template: String,
    /// Labels to print for each picture, or pictures for each text of a search [default: 3; of a search, 10]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub top: Option<usize>,
    #[command(flatten)]
    pub search: search::SearchOptions,
    /// Writes the pictures' features to FILE.npy or FILE.safetensors
    #[arg(long, value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// Writes the predictions to FILE.csv: image, target, label or number, probability
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    #[command(flatten)]
    pub clips: video_text::ClipOptions,
    #[command(flatten)]
    pub segment: segment::SegmentOptions,
    #[command(flatten)]
    pub tiling: TileOptions,
    #[command(flatten)]
    pub inference: InferenceOptions,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Serialize)]
struct PredictJson<'a> {
    model: &'a Path,
    device: &'static str,
    predictions: &'a [Prediction],
    skipped: &'a [Skipped],
    planned_bytes: u64,
    process_bytes: Option<u64>,
    features: Option<&'a Path>,
}

/// What is said of a picture.
#[derive(Serialize)]
struct Prediction {
    image: String,
    /// Of the first target with labels.
    labels: Vec<Guess>,
    /// Of every target, where there are several, or numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<TargetGuess>,
}

#[derive(Clone, Serialize)]
struct Guess {
    label: String,
    probability: f64,
}

#[derive(Serialize)]
struct TargetGuess {
    target: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Guess>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<f64>,
}

#[derive(Serialize)]
struct Skipped {
    image: String,
    reason: String,
}

/// What a task made of the pictures.
struct Predictions {
    all: Vec<Prediction>,
    skipped: Vec<loader::Skipped>,
    planned_bytes: u64,
    /// Rows of features, and their length, where they were asked for.
    features: Option<(Vec<f32>, usize)>,
}

/// Pictures that a task looks at, and with what.
struct Job<'a> {
    arguments: &'a PredictArguments,
    device: &'a Device,
    budget_bytes: Option<u64>,
    paths: Vec<PathBuf>,
    samples: Arc<Samples>,
}

impl Job<'_> {
    /// Plans the model with room for the pictures, and opens what reads them; `None` where it is to stop.
    fn open(
        &self,
        task: &dyn Task,
        saved: &dyn SavedModel,
        host_bytes: u64,
    ) -> Result<Option<(Opened, Loader<HostRow>)>> {
        let wanted = Pictures {
            samples: &self.samples,
            rows: saved.rows(),
            policy: &DataConfig::default(),
            batch: self.arguments.inference.batch_size,
            budget_bytes: self.budget_bytes,
            host_bytes,
        };
        let opened = saved_model::open(self.device, task, &wanted, &stop::requests().stop);
        let Some(opened) = fitting(self.arguments.output.json, self.device.kind(), opened)? else {
            return Ok(None);
        };
        opened.note.iter().for_each(|note| tell(note));
        let (batch, picture_bytes) = (opened.model.batch(), task.picture_bytes());
        let reading = Reading::evaluation(self.device, batch, picture_bytes, opened.decode_bytes);
        let pictures = reading.open(self.device, saved.rows())?;
        Ok(Some((opened, pictures)))
    }

    fn image(&self, sample: u32) -> String {
        self.paths[sample as usize].display().to_string()
    }
}

impl PredictArguments {
    /// Labels to tell for each picture.
    fn top_labels(&self) -> usize {
        self.top.unwrap_or(3)
    }
}

pub fn run(mut arguments: PredictArguments) -> Result<ExitCode> {
    for path in [&arguments.features, &arguments.search.text_features] {
        path.iter()
            .try_for_each(|path| array_file::check_name(path))?;
    }
    if let Some(path) = &arguments.labels_file {
        arguments.labels = inputs::lines_of(path, "--labels-file", "a label")?;
    }
    let inference = &arguments.inference;
    let device = open_device(inference.compute.device, inference.compute.num_threads)?;
    let budget_bytes = resolve_budget(inference.memory, &device)?;
    let mut saved = Saved::open(&arguments.model, room_to_open(&device, budget_bytes))?;
    saved.set_tiles(arguments.tiling.tiles, arguments.tiling.mirror)?;
    tell(&saved.model().describe_pictures());
    if let Saved::Segment(saved) = &saved {
        return segment::run(&arguments, &device, budget_bytes, saved);
    }
    if arguments.segment.out.is_some() {
        return Err(TrainError::Config(format!(
            "--out: expected a segmentation model, found {}\nhint: --csv FILE writes what other models say",
            arguments.model
        ))
        .into());
    }
    if arguments.search.texts.is_some() {
        return search::run(&arguments, &device, budget_bytes, &saved);
    }
    if let Saved::VideoText(saved) = &saved {
        return video_text::run(&arguments, &device, budget_bytes, saved);
    }
    arguments.clips.refuse(&arguments.model)?;
    let Inputs { samples, paths } = inputs::pictures(&arguments.images)?;
    let job = Job {
        samples,
        arguments: &arguments,
        device: &device,
        budget_bytes,
        paths,
    };
    let predicted = match &saved {
        Saved::Clip(saved) => clip::predict(&job, saved)?,
        Saved::Classify(saved) => classify::predict(&job, saved)?,
        Saved::Segment(_) => unreachable!("predicted above"),
        Saved::VideoText(_) => unreachable!("predicted above"),
    };
    let Some(predictions) = predicted else {
        return Ok(stop::exit_code());
    };
    tell_all(&job, saved.model().path(), &predictions)
}

/// Writes and prints what was asked for.
fn tell_all(job: &Job<'_>, model: &Path, predictions: &Predictions) -> Result<ExitCode> {
    let Job {
        arguments, device, ..
    } = job;
    let skipped = predictions.skipped.iter();
    let skipped: Vec<Skipped> = skipped.map(|one| left_out(&job.paths, one)).collect();
    for one in &skipped {
        tell(&format!("skipped {}: {}", one.image, one.reason));
    }
    let all = &predictions.all;
    if let (Some(path), Some((features, width))) = (&arguments.features, &predictions.features) {
        stop::whole(|| array_file::write(path, "image_features", features, *width))?;
        let path = path.display();
        tell(&format!("{} x {width} features: {path}", all.len()));
    }
    if let Some(path) = &arguments.csv {
        write_file(path, "--csv", &as_csv(all)?)?;
        tell(&format!("{} predictions: {}", all.len(), path.display()));
    }
    if arguments.output.json {
        print_json(&PredictJson {
            model,
            device: device.kind(),
            predictions: all,
            skipped: &skipped,
            planned_bytes: predictions.planned_bytes,
            process_bytes: device.peak_bytes(),
            features: arguments.features.as_deref(),
        })?;
    } else if arguments.csv.is_none() {
        print(&show(all))?;
    }
    Ok(match skipped.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(failure::FOUND),
    })
}

/// Writes a file that an option names, whole or not at all.
fn write_file(path: &Path, option: &str, contents: &[u8]) -> Result<()> {
    stop::whole(|| holdall_files::write_whole(path, contents)).map_err(|cause| {
        let path = path.display();
        anyhow::anyhow!("{path}: {cause}\nhint: choose another file for {option}")
    })
}

/// A row for each label and each number of each picture.
fn as_csv(predictions: &[Prediction]) -> Result<Vec<u8>> {
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(["image", "target", "label", "probability", "number"])?;
    let labels = |rows: &mut csv::Writer<Vec<u8>>, image: &str, target: &str, labels: &[Guess]| {
        labels.iter().try_for_each(|guess| {
            let probability = format!("{:.6}", guess.probability);
            rows.write_record([image, target, &guess.label, &probability, ""])
        })
    };
    for one in predictions {
        if one.targets.is_empty() {
            labels(&mut rows, &one.image, "label", &one.labels)?;
        }
        for target in &one.targets {
            labels(&mut rows, &one.image, &target.target, &target.labels)?;
            if let Some(number) = target.number {
                rows.write_record([&one.image, &target.target, "", "", &number.to_string()])?;
            }
        }
    }
    Ok(rows.into_inner()?)
}

fn left_out(paths: &[PathBuf], skipped: &loader::Skipped) -> Skipped {
    let path = &paths[skipped.sample as usize];
    Skipped {
        image: path.display().to_string(),
        reason: reason(path, &skipped.error),
    }
}

fn show(predictions: &[Prediction]) -> String {
    let labels = |guesses: &[Guess]| -> String {
        let guesses = guesses.iter();
        let words: Vec<String> = guesses
            .map(|guess| format!("{} {:.1}%", guess.label, 100.0 * guess.probability))
            .collect();
        words.join(", ")
    };
    let mut text = String::new();
    for one in predictions {
        let words = match one.targets.as_slice() {
            [] if one.labels.is_empty() => continue,
            [] => labels(&one.labels),
            targets => {
                let each = targets.iter().map(|target| match target.number {
                    Some(number) => format!("{} {number:.4}", target.target),
                    None => format!("{} {}", target.target, labels(&target.labels)),
                });
                each.collect::<Vec<String>>().join("; ")
            }
        };
        text.push_str(&format!("{}: {words}\n", one.image));
    }
    text
}
