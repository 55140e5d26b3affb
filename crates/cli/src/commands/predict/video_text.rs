//! Predictions of a video-text model: captions of clips, texts that fit them, and clips that fit a text.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_data::loader::{Course, Share};
use holdall_data::text::TextEncoder;
use holdall_device::Device;
use holdall_metrics::classification::top_k;
use holdall_train::TrainError;
use holdall_train::generation::Method;
use holdall_train::loader_budget::read_course;
use holdall_train::saved_model::SavedModel;
use holdall_train::task::Unfinished;
use holdall_train::tasks::clip::TokenTable;
use holdall_train::tasks::video_text::{ClipReader, SavedVideoText, VideoTextTask};
use serde::Serialize;

use super::inputs::{self, Inputs};
use super::{Guess, Job, PredictArguments, Skipped, left_out, write_file};
use crate::arguments::small_count;
use crate::array_file;
use crate::failure;
use crate::screen::{print, print_json, progress, tell};
use crate::stop;

/// What a heading of the help is called.
const CLIPS: &str = "Clips";

/// How clips are captioned and searched.
#[derive(Args, Clone)]
pub struct ClipOptions {
    /// Sorts clips by how well they fit a text
    #[arg(long, value_name = "TEXT", help_heading = CLIPS)]
    pub find: Option<String>,
    /// Beams of the search for captions; 1 is greedy [default: what the model's generation_config.json says]
    #[arg(long, value_name = "N", value_parser = small_count, help_heading = CLIPS)]
    pub beams: Option<usize>,
    /// Most tokens of a caption [default: likewise]
    #[arg(long, alias = "max_tokens", value_name = "N", value_parser = small_count, help_heading = CLIPS)]
    pub max_tokens: Option<usize>,
}

impl ClipOptions {
    /// Only a video-text model has clips.
    pub(super) fn refuse(&self, model: &str) -> Result<(), TrainError> {
        let asked = [
            ("--find", self.find.is_some()),
            ("--beams", self.beams.is_some()),
            ("--max-tokens", self.max_tokens.is_some()),
        ];
        match asked.iter().find(|(_, is_there)| *is_there) {
            Some((option, _)) => Err(TrainError::Config(format!(
                "{option}: expected a video-text model, found {model}\nhint: leave it out"
            ))),
            None => Ok(()),
        }
    }
}

#[derive(Serialize)]
struct ClipsJson<'a> {
    model: &'a Path,
    device: &'static str,
    predictions: &'a [ClipPrediction],
    skipped: &'a [Skipped],
    planned_bytes: u64,
    process_bytes: Option<u64>,
    features: Option<&'a Path>,
}

/// What is said of a clip.
#[derive(Serialize)]
struct ClipPrediction {
    video: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    caption: Option<String>,
    /// Of `--labels`, the likeliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Guess>,
    /// Cosine of the clip and the text of `--find`.
    #[serde(skip_serializing_if = "Option::is_none")]
    similarity: Option<f64>,
}

/// What is held of a clip, about: its path and its caption.
const CLIP_BYTES: usize = 1024;

pub(super) fn run(
    arguments: &PredictArguments,
    device: &Device,
    budget_bytes: Option<u64>,
    saved: &SavedVideoText,
) -> Result<ExitCode> {
    let Inputs { samples, paths } = inputs::clips(&arguments.images)?;
    let job = Job {
        samples,
        arguments,
        device,
        budget_bytes,
        paths,
    };
    let task = task(arguments, saved);
    let texts = Texts::of(arguments, &task, saved)?;
    let caption_text = match task.decoder() {
        Some(_) => Some(match saved.own_caption_text()? {
            Some(own) => own,
            None => saved.text()?,
        }),
        None if texts.table.is_none() && arguments.features.is_none() => {
            return Err(TrainError::Config(format!(
                "{}: expected a model that writes captions, found one without a decoder\n\
                 hint: --labels \"a,b\" or --find TEXT compare clips with texts; --features FILE writes features",
                saved.path().display()
            ))
            .into());
        }
        None => None,
    };
    let projection = task.model.projection_dim;
    let feature_bytes = arguments.features.as_ref().map_or(0, |_| 4 * projection);
    let host_bytes = (job.paths.len() * (CLIP_BYTES + feature_bytes)) as u64;
    let Some((mut opened, mut clips)) = job.open(&task, saved, host_bytes)? else {
        return Ok(stop::exit_code());
    };
    let planned_bytes = opened.model.plan().process_bytes;
    let mut reader = ClipReader::new(&task, opened.model.forward(device));
    let text_features = texts.encode(&mut reader)?;
    let bar = progress(job.paths.len() as u64, "Predicting");
    let mut all: Vec<ClipPrediction> = Vec::new();
    let mut features: Vec<f32> = Vec::new();
    let batch = reader.batch().min(clips.num_rows());
    let course = (&job.samples, Course::Once(Share::default()));
    let stop = &stop::requests().stop;
    let read = read_course(&mut clips, course, batch, stop, |loaded| {
        let encoded = reader.clips(loaded)?.features.into_owned();
        let numbers: Vec<u64> = loaded.samples.iter().map(|&one| one.into()).collect();
        let captions = match &caption_text {
            Some(text) => Some(write(&mut reader, text, &numbers)?),
            None => None,
        };
        for (row, &sample) in loaded.samples.iter().enumerate() {
            let feature = &encoded[row * projection..][..projection];
            if let Some(value) = feature.iter().find(|value| !value.is_finite()) {
                let clip = job.image(sample);
                let found = format!("{clip}: its features are not finite: found {value}");
                return Err(Unfinished::NotFinite(found));
            }
            let (labels, similarity) =
                texts.compare(feature, &text_features, arguments.top_labels());
            all.push(ClipPrediction {
                video: job.image(sample),
                caption: captions.as_ref().map(|captions| captions[row].clone()),
                labels,
                similarity,
            });
        }
        if arguments.features.is_some() {
            features.extend_from_slice(&encoded);
        }
        bar.inc(loaded.rows.len() as u64);
        Ok::<bool, Unfinished>(true)
    });
    bar.finish_and_clear();
    let Some(skipped) = read.map_err(Unfinished::into_error)? else {
        return Ok(stop::exit_code());
    };
    if let Some(path) = &arguments.features {
        stop::whole(|| array_file::write(path, "video_features", &features, projection))?;
        let path = path.display();
        tell(&format!("{} x {projection} features: {path}", all.len()));
    }
    if arguments.clips.find.is_some() {
        all.sort_by(|a, b| b.similarity.partial_cmp(&a.similarity).expect("finite"));
    }
    let skipped = skipped.iter().map(|one| left_out(&job.paths, one));
    let skipped: Vec<Skipped> = skipped.collect();
    for one in &skipped {
        tell(&format!("skipped {}: {}", one.image, one.reason));
    }
    if let Some(path) = &arguments.csv {
        write_file(path, "--csv", &as_csv(&all)?)?;
        tell(&format!("{} predictions: {}", all.len(), path.display()));
    }
    if arguments.output.json {
        print_json(&ClipsJson {
            model: saved.path(),
            device: device.kind(),
            predictions: &all,
            skipped: &skipped,
            planned_bytes,
            process_bytes: device.peak_bytes(),
            features: arguments.features.as_deref(),
        })?;
    } else if arguments.csv.is_none() {
        print(&show(&all))?;
    }
    Ok(match skipped.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(failure::FOUND),
    })
}

/// The model's task, with captions as they were asked for.
fn task(arguments: &PredictArguments, saved: &SavedVideoText) -> VideoTextTask {
    let mut task = saved.task().clone();
    let options = &arguments.clips;
    if let Some(beams) = options.beams {
        task.generation.method = match beams {
            1 => Method::Greedy,
            _ => Method::Beam,
        };
        task.generation.beams = beams;
    }
    if options.max_tokens.is_some() {
        task.generation.max_tokens = options.max_tokens;
        let most = options.max_tokens.unwrap_or(1);
        task.generation.min_tokens = task.generation.min_tokens.min(most - 1);
    }
    task
}

fn write(
    reader: &mut ClipReader<'_, '_>,
    text: &TextEncoder,
    numbers: &[u64],
) -> Result<Vec<String>, Unfinished> {
    let captions = reader.captions(numbers)?;
    let mut words = Vec::with_capacity(captions.len());
    for caption in captions {
        words.push(text.decode(&caption.tokens)?);
    }
    Ok(words)
}

/// Texts that clips are compared with: labels, and the one that is searched for.
struct Texts {
    labels: Vec<String>,
    has_find: bool,
    table: Option<TokenTable>,
    scale: f32,
}

impl Texts {
    fn of(
        arguments: &PredictArguments,
        task: &VideoTextTask,
        saved: &SavedVideoText,
    ) -> Result<Texts> {
        let labels: Vec<String> = arguments
            .labels
            .iter()
            .map(|name| name.trim().to_owned())
            .collect();
        let mut texts: Vec<String> = labels
            .iter()
            .map(|label| arguments.template.replace("{}", label))
            .collect();
        texts.extend(arguments.clips.find.clone());
        let table = match texts.is_empty() {
            true => None,
            false => Some(TokenTable::new(
                &saved.text()?,
                &texts,
                task.num_text_tokens,
            )?),
        };
        Ok(Texts {
            labels,
            has_find: arguments.clips.find.is_some(),
            table,
            scale: saved.logit_scale()?,
        })
    }

    fn encode(&self, reader: &mut ClipReader<'_, '_>) -> Result<Vec<f32>> {
        let mut features = Vec::new();
        let Some(table) = &self.table else {
            return Ok(features);
        };
        for first in (0..table.len()).step_by(reader.batch()) {
            let encoded = reader.texts(table, first);
            features.extend_from_slice(&encoded.map_err(TrainError::from)?);
        }
        Ok(features)
    }

    /// The likeliest labels, and the cosine with what is searched for.
    fn compare(&self, clip: &[f32], texts: &[f32], top: usize) -> (Vec<Guess>, Option<f64>) {
        let cosine = |text: &[f32]| -> f64 {
            let pairs = clip.iter().zip(text);
            pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let mut cosines: Vec<f64> = texts.chunks(clip.len()).map(cosine).collect();
        let found = match self.has_find {
            true => cosines.pop(),
            false => None,
        };
        let logits: Vec<f64> = cosines
            .iter()
            .map(|cosine| f64::from(self.scale) * cosine)
            .collect();
        let best = top_k(&logits, top).into_iter();
        let guess = |(index, probability): (usize, f64)| Guess {
            label: self.labels[index].clone(),
            probability,
        };
        (best.map(guess).collect(), found)
    }
}

/// A row for each clip; labels in columns of their own.
fn as_csv(all: &[ClipPrediction]) -> Result<Vec<u8>> {
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(["video", "caption", "similarity", "label", "probability"])?;
    for one in all {
        let best = one.labels.first();
        let number = |number: Option<f64>| number.map_or(String::new(), |one| format!("{one:.6}"));
        rows.write_record([
            one.video.as_str(),
            one.caption.as_deref().unwrap_or(""),
            &number(one.similarity),
            best.map_or("", |best| best.label.as_str()),
            &number(best.map(|best| best.probability)),
        ])?;
    }
    Ok(rows.into_inner()?)
}

fn show(all: &[ClipPrediction]) -> String {
    let mut text = String::new();
    for one in all {
        let similarity = one.similarity.map(|cosine| format!("{cosine:.3}"));
        let labels = one
            .labels
            .iter()
            .map(|guess| format!("{} {:.1}%", guess.label, 100.0 * guess.probability));
        let labels = labels.collect::<Vec<String>>().join(", ");
        let words = [
            similarity.as_deref(),
            one.caption.as_deref(),
            Some(labels.as_str()).filter(|labels| !labels.is_empty()),
        ];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        text.push_str(&format!("{}: {}\n", one.video, words.join("; ")));
    }
    text
}
