//! `holdall predict`: labels, numbers, features and masks of pictures, and captions of clips, from a trained model.

mod answers;
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
use holdall_data::samples::{BadRow, Samples};
use holdall_device::{Device, HostRow};
use holdall_files::counted;
use holdall_train::TrainError;
use holdall_train::engine::task::Task;
use holdall_train::export::saved_model::{self, Pictures, ReadyModel, SavedModel};
use holdall_train::planning::loader_budget::Reading;
use holdall_train::planning::setup::{limit_reading, note_on_budget, resolve_budget, room_to_open};
use holdall_train::run_folder::skipped::reason;
use holdall_train::tasks::Saved;
use serde::Serialize;

use self::answers::{Guess, HeadColumns, TargetGuess, describe_labels};
use self::inputs::Named;
use crate::array_file;
use crate::commands::open_device;
use crate::commands::plan::fitting;
use crate::failure;
use crate::options::{
    InferenceOptions, OutputOptions, OverwriteOption, TileOptions, at_least_one, files_of_model,
};
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall predict runs/cars photo.jpg folder-of-photos\n  \
                  holdall predict runs/cars photo.jpg --labels \"red car,blue car\" --template \"a photo of a {}\"\n  \
                  holdall predict runs/cars photos --features features.npy\n  \
                  holdall predict runs/cars photos.csv --csv predictions.csv --all-probabilities\n  \
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
    /// The caption of a label [default: "a photo of a {}"]
    #[arg(long, value_name = "TEXT")]
    pub template: Option<String>,
    /// Labels to print for each picture, or pictures for each text of a search [default: 3; of a search, 10]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub top: Option<usize>,
    #[command(flatten)]
    pub search: search::SearchOptions,
    /// Writes the pictures' features to FILE.npy or FILE.safetensors
    #[arg(long, value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// Writes the predictions to FILE.csv: a row per picture, under the path that its table has; a column per head, and its probability
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Tells every label's probability, in the CSV in columns HEAD=LABEL
    #[arg(long, alias = "all_probabilities")]
    pub all_probabilities: bool,
    /// Keys of the data section over those of the training run, such as data.image=COLUMN or data.stride=2; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub clips: video_text::ClipOptions,
    #[command(flatten)]
    pub segment: segment::SegmentOptions,
    #[command(flatten)]
    pub tiling: TileOptions,
    #[command(flatten)]
    pub inference: InferenceOptions,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
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

/// Predictions for one picture.
#[derive(Serialize)]
struct Prediction {
    /// Line in the table, or index among the files.
    #[serde(skip)]
    row: u32,
    image: String,
    /// Labels of the first target that has labels.
    labels: Vec<Guess>,
    /// Predictions for all targets; omitted if a label is the only target.
    #[serde(skip_serializing_if = "is_one_label")]
    targets: Vec<TargetGuess>,
}

impl Prediction {
    fn new(job: &PredictionJob<'_>, sample: u32, targets: Vec<TargetGuess>) -> Prediction {
        let labelled = targets.iter().find(|target| !target.labels.is_empty());
        Prediction {
            row: job.samples.row(sample as usize),
            image: job.image(sample),
            labels: labelled.map_or(Vec::new(), |target| target.labels.clone()),
            targets,
        }
    }
}

fn is_one_label(targets: &[TargetGuess]) -> bool {
    matches!(targets, [] | [TargetGuess { number: None, .. }])
}

#[derive(Serialize)]
struct Skipped {
    /// Line in the table, or index among the files.
    #[serde(skip)]
    row: u32,
    image: String,
    reason: String,
}

/// Predictions for all pictures.
struct Predictions {
    all: Vec<Prediction>,
    skipped: Vec<loader::Skipped>,
    planned_bytes: u64,
    /// Features and their row length, if requested.
    features: Option<(Vec<f32>, usize)>,
    /// CSV columns, in the order of a prediction's targets.
    columns: Vec<HeadColumns>,
}

/// Pictures to predict, with the model's settings.
struct PredictionJob<'a> {
    arguments: &'a PredictArguments,
    device: &'a Device,
    budget_bytes: Option<u64>,
    /// Preprocessing of the model's inputs.
    data: &'a DataConfig,
    samples: Arc<Samples>,
    /// Table rows without a picture.
    bad_rows: Vec<BadRow>,
}

impl PredictionJob<'_> {
    /// Plans the model with room for the pictures, and opens the loader; `None` if it was stopped.
    fn open(
        &self,
        task: &dyn Task,
        saved: &dyn SavedModel,
        host_bytes: u64,
    ) -> Result<Option<(ReadyModel, Loader<HostRow>)>> {
        let wanted = Pictures {
            samples: &self.samples,
            rows: saved.rows(self.data),
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
        let pictures = reading.open(self.device, saved.rows(self.data))?;
        Ok(Some((opened, pictures)))
    }

    /// Path of a sample, as named by the user or in the table.
    fn image(&self, sample: u32) -> String {
        self.samples.image(sample as usize).to_owned()
    }

    fn left_out(&self, skipped: &loader::Skipped) -> Skipped {
        let sample = skipped.sample as usize;
        Skipped {
            row: self.samples.row(sample),
            image: self.image(skipped.sample),
            reason: reason(&self.samples.image_path(sample), &skipped.error),
        }
    }

    /// Reports unreadable pictures and bad rows.
    fn tell_skipped(&self, skipped: &[loader::Skipped]) -> Vec<Skipped> {
        let unread = skipped.iter().map(|one| self.left_out(one));
        let bad_rows = self.bad_rows.iter().map(|bad| Skipped {
            row: bad.row,
            image: bad.image.clone(),
            reason: format!("row {}: {}", bad.row, bad.fault),
        });
        let mut skipped: Vec<Skipped> = unread.chain(bad_rows).collect();
        skipped.sort_by_key(|one| one.row);
        for one in &skipped {
            tell(&format!("skipped {}: {}", one.image, one.reason));
        }
        skipped
    }

    /// Whether no picture could be read; existing output files stay unchanged then.
    fn found_nothing(&self, num_read: usize, skipped: &[Skipped]) -> bool {
        let is_nothing = num_read == 0 && !skipped.is_empty();
        if is_nothing {
            let count = counted(skipped.len(), "input");
            tell(&format!(
                "No file was written: none of {count} could be read"
            ));
        }
        is_nothing
    }
}

impl PredictArguments {
    /// Output files, with the options that name them.
    fn outputs(&self) -> [(&'static str, &Option<PathBuf>); 4] {
        [
            ("--csv", &self.csv),
            ("--features", &self.features),
            ("--sheet", &self.search.sheet),
            ("--text-features", &self.search.text_features),
        ]
    }

    /// Input files: those that are named, and those of the model.
    fn inputs(&self) -> Vec<PathBuf> {
        let lists = [&self.images, &self.search.search];
        let files = [&self.labels_file, &self.search.texts];
        let named = lists.into_iter().flatten();
        let named = named.chain(files.into_iter().flatten()).cloned();
        named
            .chain(files_of_model(Path::new(&self.model)))
            .collect()
    }

    /// The caption of a label, with `{}` in its place.
    fn template(&self) -> &str {
        self.template.as_deref().unwrap_or("a photo of a {}")
    }

    /// Refuses options that a model of this kind does not read, and those that contradict each other.
    fn check_options(&self, saved: &Saved) -> Result<(), TrainError> {
        let refused =
            |found: String, hint: &str| Err(TrainError::Config(format!("{found}\nhint: {hint}")));
        let model = &self.model;
        let of_labels = [
            ("--labels", !self.labels.is_empty()),
            ("--top", self.top.is_some()),
            ("--all-probabilities", self.all_probabilities),
            ("--template", self.template.is_some()),
            ("--texts", self.search.texts.is_some()),
            ("--features", self.features.is_some()),
            ("--csv", self.csv.is_some()),
        ];
        if let Some((option, _)) = of_labels.iter().find(|(_, is_there)| *is_there)
            && let Saved::Segment(_) = saved
        {
            return refused(
                format!(
                    "{option}: expected a model of captions or labels, found the segmentation model {model}"
                ),
                "leave it out; --out DIR writes masks and scores",
            );
        }
        match (self.clips.first_typed(), saved) {
            (Some(option), Saved::VideoText(_)) if self.search.texts.is_some() => {
                return refused(
                    format!("{option} and --texts: expected one of them"),
                    "--texts searches for every text of a file and writes no captions",
                );
            }
            (None, _) | (_, Saved::VideoText(_)) => {}
            (Some(option), _) => {
                let found = format!("{option}: expected a video-text model, found {model}");
                return refused(found, "leave it out");
            }
        }
        if self.template.is_some() && self.labels.is_empty() {
            return refused(
                "--template: expected --labels or --labels-file beside it, whose captions it makes"
                    .to_owned(),
                "--labels \"red car,blue car\" --template \"a photo of a {}\"",
            );
        }
        if !self.template().contains("{}") {
            return refused(
                format!(
                    "--template `{}`: expected {{}} where the label goes",
                    self.template()
                ),
                "--template \"a photo of a {}\"",
            );
        }
        Ok(())
    }

    /// Labels to show per picture, out of `num_labels`.
    fn top_labels(&self, num_labels: usize) -> usize {
        let top = if self.all_probabilities {
            num_labels
        } else {
            self.top.unwrap_or(3)
        };
        top.min(num_labels)
    }
}

pub fn run(mut arguments: PredictArguments) -> Result<ExitCode> {
    for (option, path) in [
        ("--features", &arguments.features),
        ("--text-features", &arguments.search.text_features),
    ] {
        path.iter()
            .try_for_each(|path| array_file::check_name(option, path))?;
    }
    let inputs = arguments.inputs();
    arguments
        .overwrite
        .check_files(arguments.outputs(), &inputs)?;
    let inference = &arguments.inference;
    let device = open_device(inference.compute.device, inference.compute.num_threads)?;
    let budget_bytes = resolve_budget(inference.memory, &device)?;
    if let Some(note) = note_on_budget(inference.memory, &device, budget_bytes) {
        tell(&note);
    }
    limit_reading(&device, budget_bytes);
    if let Some(path) = &arguments.labels_file {
        arguments.labels = inputs::lines_of(path, "--labels-file", "a label")?;
    }
    let mut saved = Saved::open(&arguments.model, room_to_open(&device, budget_bytes))?;
    arguments.check_options(&saved)?;
    saved.set_tiles(arguments.tiling.tiles, arguments.tiling.mirror)?;
    tell(&saved.model().describe_pictures());
    let data = inputs::settings(&arguments, &saved)?;
    if let Saved::Segment(saved) = &saved {
        return segment::run(&arguments, &device, budget_bytes, (saved, &data));
    }
    if arguments.segment.out.is_some() {
        return Err(TrainError::Config(format!(
            "--out: expected a segmentation model, found {}\nhint: --csv FILE writes what other models say",
            arguments.model
        ))
        .into());
    }
    if arguments.search.texts.is_some() {
        return search::run(&arguments, &device, budget_bytes, (&saved, &data));
    }
    if let Saved::VideoText(saved) = &saved {
        return video_text::run(&arguments, &device, budget_bytes, (saved, &data));
    }
    let Named { samples, bad_rows } = inputs::pictures(&arguments.images, &data)?;
    inputs::check_outputs(&arguments, &samples)?;
    let job = PredictionJob {
        samples,
        bad_rows,
        arguments: &arguments,
        device: &device,
        budget_bytes,
        data: &data,
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

/// Writes and prints the requested outputs.
fn tell_all(job: &PredictionJob<'_>, model: &Path, predictions: &Predictions) -> Result<ExitCode> {
    let PredictionJob {
        arguments, device, ..
    } = job;
    let skipped = job.tell_skipped(&predictions.skipped);
    let all = &predictions.all;
    let has_read = !job.found_nothing(all.len(), &skipped);
    if let (Some(path), Some((features, width)), true) =
        (&arguments.features, &predictions.features, has_read)
    {
        stop::whole(|| array_file::write(path, "image_features", features, *width))?;
        let path = path.display();
        tell(&format!("{} x {width} features: {path}", all.len()));
    }
    if let (Some(path), true) = (&arguments.csv, has_read) {
        write_file(path, "--csv", &as_csv(all, &skipped, &predictions.columns)?)?;
        tell_csv(path, all.len(), skipped.len());
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
    Ok(if skipped.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// Writes the file of an option atomically.
fn write_file(path: &Path, option: &str, contents: &[u8]) -> Result<()> {
    stop::whole(|| holdall_files::write_whole(path, contents)).map_err(|cause| {
        let path = path.display();
        anyhow::anyhow!("{path}: {cause}\nhint: choose another file for {option}")
    })
}

/// Reports a written CSV.
fn tell_csv(path: &Path, num_predictions: usize, num_skipped: usize) {
    let skipped = match num_skipped {
        0 => String::new(),
        count => format!(", {} without one", counted(count, "row")),
    };
    let count = counted(num_predictions, "prediction");
    tell(&format!("{count}{skipped}: {}", path.display()));
}

/// A row per picture, in the order of the table; cells of unreadable pictures are empty.
fn as_csv(
    predictions: &[Prediction],
    skipped: &[Skipped],
    columns: &[HeadColumns],
) -> Result<Vec<u8>> {
    let names: Vec<String> = columns.iter().flat_map(HeadColumns::names).collect();
    let predicted = predictions.iter().map(|one| {
        let cells = columns.iter().zip(&one.targets);
        let cells = cells.flat_map(|(columns, target)| columns.cells(target));
        (one.row, &one.image, cells.collect())
    });
    let empty = skipped.iter().map(|one| {
        let cells = vec![String::new(); names.len()];
        (one.row, &one.image, cells)
    });
    let mut lines: Vec<(u32, &String, Vec<String>)> = predicted.chain(empty).collect();
    lines.sort_by_key(|(row, ..)| *row);
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(std::iter::once("image").chain(names.iter().map(String::as_str)))?;
    for (_, image, cells) in &lines {
        rows.write_record(std::iter::once(*image).chain(cells))?;
    }
    Ok(rows.into_inner()?)
}

fn show(predictions: &[Prediction]) -> String {
    let mut text = String::new();
    for one in predictions {
        let words = if is_one_label(&one.targets) {
            describe_labels(&one.labels)
        } else {
            let each = one.targets.iter().map(TargetGuess::describe);
            each.collect::<Vec<String>>().join("; ")
        };
        if !words.is_empty() {
            text.push_str(&format!("{}: {words}\n", one.image));
        }
    }
    text
}
