//! `holdall predict`: labels and features of pictures, by a trained model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use holdall_data::DataConfig;
use holdall_data::loader;
use holdall_data::samples::{Samples, SamplesBuilder};
use holdall_metrics::classification::top_k;
use holdall_train::TrainError;
use holdall_train::loader_budget::Reading;
use holdall_train::saved_model::{self, Opened, Pictures, SavedModel};
use holdall_train::setup::{resolve_budget, room_to_open};
use holdall_train::skipped::reason;
use holdall_train::task::{Task, Unfinished};
use holdall_train::tasks::clip::{
    Encoder, SavedClip, TokenTable, encode_captions, encode_pictures,
};
use serde::Serialize;

use crate::arguments::{InferenceOptions, OutputOptions};
use crate::array_file;
use crate::commands::open_device;
use crate::commands::plan::fitting;
use crate::failure;
use crate::screen::{print, print_json, progress, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall predict runs/cars photo.jpg folder-of-photos\n  \
                  holdall predict runs/cars photo.jpg --labels \"red car,blue car\" --template \"a photo of a {}\"\n  \
                  holdall predict runs/cars photos --features features.npy\n\n\
                  Exit code 1: some pictures could not be read; the others were predicted.")]
pub struct PredictArguments {
    /// The folder of a run, or a model folder
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// Pictures, or folders of pictures
    #[arg(value_name = "IMAGES", required = true)]
    pub images: Vec<PathBuf>,
    /// Labels that need no training: pictures are compared with captions made of them
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// The caption of a label
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "a photo of a {}",
        requires = "labels"
    )]
    pub template: String,
    /// Labels to print for each picture
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub top: usize,
    /// Writes the pictures' features to FILE.npy or FILE.safetensors
    #[arg(long, value_name = "FILE")]
    pub features: Option<PathBuf>,
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

#[derive(Serialize)]
struct Prediction {
    image: String,
    labels: Vec<Guess>,
}

#[derive(Serialize)]
struct Guess {
    label: String,
    probability: f64,
}

#[derive(Serialize)]
struct Skipped {
    image: String,
    reason: String,
}

/// The path of a picture and the names of its labels, about.
const NAMES_BYTES: usize = 256;

/// What labels are, and how they are found.
enum Labels {
    /// The head that was trained.
    Head(Vec<String>),
    /// Captions made of names, compared with pictures.
    ZeroShot {
        names: Vec<String>,
        tokens: TokenTable,
        scale: f32,
    },
    /// None: features alone.
    None,
}

pub fn run(arguments: PredictArguments) -> Result<ExitCode> {
    if let Some(path) = &arguments.features {
        array_file::check_name(path)?;
    }
    let inference = &arguments.inference;
    let device = open_device(inference.compute.device, inference.compute.num_threads)?;
    let budget = resolve_budget(inference.memory, &device)?;
    let trained = SavedClip::open(&arguments.model, room_to_open(&device, budget))?;
    tell(&trained.processor().describe());
    let labels = labels(&arguments, &trained)?;
    let paths = pictures_under(&arguments.images)?;
    let samples = Arc::new(as_samples(&paths));
    let longest = match &labels {
        Labels::ZeroShot { tokens, .. } => tokens.longest(),
        _ => 1,
    };
    let held_bytes = size_of::<Prediction>() + arguments.top * size_of::<Guess>() + NAMES_BYTES;
    let feature_bytes = match arguments.features {
        Some(_) => trained.projection() * size_of::<f32>(),
        None => 0,
    };
    let host_bytes = (paths.len() * (held_bytes + feature_bytes)) as u64;
    let task = trained.task(longest);
    let framing = trained.processor().framing;
    let wanted = Pictures {
        samples: &samples,
        framing,
        policy: &DataConfig::default(),
        batch: inference.batch_size,
        budget_bytes: budget,
        host_bytes,
    };
    let opened = saved_model::open(&device, &task, &wanted, &stop::requests().stop);
    let Some(opened) = fitting(arguments.output.json, device.kind(), opened)? else {
        return Ok(stop::exit_code());
    };
    let Opened {
        mut model,
        decode_bytes,
        note,
    } = opened;
    note.iter().for_each(|note| tell(note));
    let planned_bytes = model.plan().process_bytes;
    let mut encoder = Encoder::new(&task, model.forward(&device));
    let captions = encode_labels(&mut encoder, &labels).map_err(Unfinished::into_error)?;
    let bar = progress(paths.len() as u64, "Predicting");
    let mut predictions = Vec::new();
    let mut not_finite = None;
    let projection = trained.projection();
    let mut features: Vec<f32> = match arguments.features {
        Some(_) => Vec::with_capacity(paths.len() * projection),
        None => Vec::new(),
    };
    let reading = Reading::evaluation(&device, encoder.batch(), task.picture_bytes(), decode_bytes);
    let mut pictures = reading.open(&device, framing)?;
    let encoded = encode_pictures(
        &mut encoder,
        (&mut pictures, &samples),
        &stop::requests().stop,
        |read, encoded| {
            for (row, feature) in encoded.features.chunks(projection).enumerate() {
                if let Some(value) = feature.iter().find(|value| !value.is_finite()) {
                    not_finite.get_or_insert((read[row], *value));
                }
                let scores = match &labels {
                    Labels::Head(names) => encoded.logits.as_ref().map(|logits| {
                        let logits = &logits[row * names.len()..][..names.len()];
                        logits.iter().map(|&logit| f64::from(logit)).collect()
                    }),
                    Labels::ZeroShot { scale, .. } => {
                        Some(similarities(feature, &captions, *scale))
                    }
                    Labels::None => None,
                };
                predictions.push(Prediction {
                    image: paths[read[row] as usize].display().to_string(),
                    labels: scores
                        .map_or(Vec::new(), |scores| best(&labels, &scores, arguments.top)),
                });
            }
            if arguments.features.is_some() {
                features.extend_from_slice(&encoded.features);
            }
            bar.inc((encoded.features.len() / projection) as u64);
            not_finite.is_none()
        },
    );
    bar.finish_and_clear();
    if let Some((sample, value)) = not_finite {
        let picture = paths[sample as usize].display();
        let found = format!("{picture}: its features are not finite: found {value}");
        return Err(Unfinished::NotFinite(found).into_error().into());
    }
    let skipped = encoded.map_err(Unfinished::into_error)?;
    let skipped: Vec<Skipped> = skipped.iter().map(|one| left_out(&paths, one)).collect();
    for one in &skipped {
        tell(&format!("skipped {}: {}", one.image, one.reason));
    }
    if let Some(path) = &arguments.features {
        stop::whole(|| array_file::write(path, "image_features", &features, projection))?;
        tell(&format!(
            "{} x {projection} features: {}",
            predictions.len(),
            path.display()
        ));
    }
    if arguments.output.json {
        print_json(&PredictJson {
            model: trained.path(),
            device: device.kind(),
            predictions: &predictions,
            skipped: &skipped,
            planned_bytes,
            process_bytes: device.peak_bytes(),
            features: arguments.features.as_deref(),
        })?;
    } else {
        print(&show(&predictions))?;
    }
    Ok(if skipped.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// Names asked for, the head's, or none where only features are wanted.
fn labels(arguments: &PredictArguments, trained: &SavedClip) -> Result<Labels> {
    if !arguments.labels.is_empty() {
        let names: Vec<String> = arguments
            .labels
            .iter()
            .map(|name| name.trim().to_owned())
            .collect();
        if names.iter().any(String::is_empty) {
            return Err(TrainError::Config(
                "--labels: expected names between commas, found an empty one\nhint: --labels \"red car,blue car\""
                    .to_owned(),
            )
            .into());
        }
        if !arguments.template.contains("{}") {
            return Err(TrainError::Config(format!(
                "--template `{}`: expected {{}} where the label goes\nhint: --template \"a photo of a {{}}\"",
                arguments.template
            ))
            .into());
        }
        let captions: Vec<String> = names
            .iter()
            .map(|label| arguments.template.replace("{}", label))
            .collect();
        return Ok(Labels::ZeroShot {
            names,
            tokens: trained.tokens(&captions)?,
            scale: trained.logit_scale()?,
        });
    }
    match (trained.labels.is_empty(), &arguments.features) {
        (false, _) => Ok(Labels::Head(trained.labels.clone())),
        (true, Some(_)) => Ok(Labels::None),
        (true, None) => Err(TrainError::Config(format!(
            "{}: expected a label head, found none\n\
             hint: --labels \"a,b,c\" compares pictures with captions; --features FILE writes features",
            trained.path().display()
        ))
        .into()),
    }
}

fn encode_labels(encoder: &mut Encoder<'_>, labels: &Labels) -> Result<Vec<f32>, Unfinished> {
    let mut features = Vec::new();
    if let Labels::ZeroShot { tokens, .. } = labels {
        encode_captions(encoder, tokens, |encoded| {
            features.extend_from_slice(encoded);
            true
        })?;
    }
    Ok(features)
}

fn similarities(picture: &[f32], captions: &[f32], scale: f32) -> Vec<f64> {
    let dot = |caption: &[f32]| -> f64 {
        let products = picture
            .iter()
            .zip(caption)
            .map(|(&a, &b)| f64::from(a) * f64::from(b));
        products.sum()
    };
    let rows = captions.chunks(picture.len());
    rows.map(|caption| f64::from(scale) * dot(caption))
        .collect()
}

/// The `top` labels with their probabilities, best first.
fn best(labels: &Labels, scores: &[f64], top: usize) -> Vec<Guess> {
    let (Labels::Head(names) | Labels::ZeroShot { names, .. }) = labels else {
        return Vec::new();
    };
    let best = top_k(scores, top).into_iter();
    best.map(|(index, probability)| Guess {
        label: names[index].clone(),
        probability,
    })
    .collect()
}

const EXTENSIONS: [&str; 7] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff"];

/// Files as named, and the pictures in folders, sorted.
pub(super) fn pictures_under(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for path in named {
        match path.is_dir() {
            true => folders.push(path.clone()),
            false => found.push(path.clone()),
        }
    }
    let mut in_folders = Vec::new();
    while let Some(folder) = folders.pop() {
        let unreadable = |cause| {
            TrainError::Config(format!(
                "{}: {cause}\nhint: check the path",
                folder.display()
            ))
        };
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let extension = path
                .extension()
                .map(|extension| extension.to_string_lossy().to_lowercase());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str())) {
                in_folders.push(path);
            }
        }
    }
    in_folders.sort();
    found.extend(in_folders);
    if found.is_empty() {
        return Err(TrainError::Config(format!(
            "found no pictures in what was named\nhint: files, or folders with {}",
            EXTENSIONS.join(", ")
        ))
        .into());
    }
    Ok(found)
}

pub(super) fn as_samples(paths: &[PathBuf]) -> Samples {
    let mut samples = SamplesBuilder::new(PathBuf::new());
    for (row, path) in paths.iter().enumerate() {
        samples.push(&path.to_string_lossy(), Some(""), row as u32);
    }
    samples.finish(Vec::new())
}

fn left_out(paths: &[PathBuf], skipped: &loader::Skipped) -> Skipped {
    let path = &paths[skipped.sample as usize];
    Skipped {
        image: path.display().to_string(),
        reason: reason(path, &skipped.error),
    }
}

fn show(predictions: &[Prediction]) -> String {
    let mut text = String::new();
    for prediction in predictions.iter().filter(|one| !one.labels.is_empty()) {
        let labels = prediction.labels.iter();
        let labels: Vec<String> = labels
            .map(|guess| format!("{} {:.1}%", guess.label, 100.0 * guess.probability))
            .collect();
        text.push_str(&format!("{}: {}\n", prediction.image, labels.join(", ")));
    }
    text
}
