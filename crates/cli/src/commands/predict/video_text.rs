//! Predictions of a video-text model: captions of clips, zero-shot labels, and search by text.

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_data::DataConfig;
use holdall_data::loader::{Course, Share};
use holdall_data::text::TextEncoder;
use holdall_device::Device;
use holdall_metrics::classification::top_k;
use holdall_train::TrainError;
use holdall_train::engine::task::Unfinished;
use holdall_train::export::saved_model::SavedModel;
use holdall_train::planning::loader_budget::read_course;
use holdall_train::tasks::classify::answers_of;
use holdall_train::tasks::clip::TokenTable;
use holdall_train::tasks::generation::Method;
use holdall_train::tasks::video_text::{ClipReader, SavedVideoText, VideoTextTask};
use serde::Serialize;

use super::answers::{Guess, HeadColumns, TargetGuess, describe_labels};
use super::inputs::{self, Clips, Named};
use super::{PredictArguments, PredictionJob, Skipped, tell_csv, write_file};
use crate::array_file;
use crate::failure;
use crate::options::small_count;
use crate::screen::{print, print_json, progress, tell};
use crate::stop;

/// Heading in the help.
const CLIPS: &str = "Clips";
/// Target name of zero-shot labels.
const ZERO_SHOT: &str = "label";

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
    /// The first of these options that was typed.
    pub(super) fn first_typed(&self) -> Option<&'static str> {
        let options = [
            ("--find", self.find.is_some()),
            ("--beams", self.beams.is_some()),
            ("--max-tokens", self.max_tokens.is_some()),
        ];
        let typed = options.iter().find(|(_, is_there)| *is_there);
        typed.map(|(option, _)| *option)
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

/// Predictions for one clip.
#[derive(Serialize)]
struct ClipPrediction {
    /// Line in the table, or index among the files.
    #[serde(skip)]
    row: u32,
    /// The first clip of a group.
    video: String,
    /// Group name from the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caption: Option<String>,
    /// Labels of `--labels`, most likely first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Guess>,
    /// Cosine similarity of the clip and the text of `--find`.
    #[serde(skip_serializing_if = "Option::is_none")]
    similarity: Option<f64>,
    /// Predictions of the trained heads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<TargetGuess>,
}

/// Approximate memory for a clip's path and caption.
const CLIP_BYTES: usize = 1024;
/// Approximate memory for a label's name.
const LABEL_BYTES: usize = 32;

pub(super) fn run(
    arguments: &PredictArguments,
    device: &Device,
    budget_bytes: Option<u64>,
    (saved, data): (&SavedVideoText, &DataConfig),
) -> Result<ExitCode> {
    let Clips { named, groups } = inputs::clips(&arguments.images, data)?;
    let Named { samples, bad_rows } = named;
    inputs::check_outputs(arguments, &samples)?;
    let job = PredictionJob {
        samples,
        bad_rows,
        arguments,
        device,
        budget_bytes,
        data,
    };
    let task = task(arguments, saved.task_for(data)?);
    let texts = Texts::of(arguments, &task, saved)?;
    let caption_text = caption_text(arguments, &task, saved, &texts)?;
    let projection = task.model.projection_dim;
    let feature_bytes = arguments.features.as_ref().map_or(0, |_| 4 * projection);
    let most_labels = task.heads.iter().map(|head| head.kind.names().len()).max();
    let top = arguments.top_labels(most_labels.unwrap_or(0).max(texts.labels.len()));
    let label_bytes = (task.heads.len() + 1) * top * (size_of::<Guess>() + LABEL_BYTES);
    let host_bytes = (job.samples.len() * (CLIP_BYTES + feature_bytes + label_bytes)) as u64;
    let Some((mut opened, mut clips)) = job.open(&task, saved, host_bytes)? else {
        return Ok(stop::exit_code());
    };
    let planned_bytes = opened.model.plan().process_bytes;
    let mut reader = ClipReader::new(&task, opened.model.forward(device));
    let text_features = texts.encode(&mut reader)?;
    let bar = progress(job.samples.len() as u64, "Predicting");
    let mut all: Vec<ClipPrediction> = Vec::new();
    let mut features: Vec<f32> = Vec::new();
    let batch = reader.batch().min(clips.num_rows());
    let course = (&job.samples, Course::Once(Share::default()));
    let stop = &stop::requests().stop;
    let read = read_course(&mut clips, course, batch, stop, |loaded| {
        let encoded = reader.clips(loaded)?;
        let logits = encoded.logits.map(Cow::into_owned);
        let encoded = encoded.features.into_owned();
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
            let (labels, similarity) = texts.compare(feature, &text_features, top);
            let answers = logits.as_ref().map(|logits| {
                let outputs = logits.len() / loaded.samples.len();
                answers_of(&task.heads, &logits[row * outputs..][..outputs], top)
            });
            let targets = answers.into_iter().flatten().map(TargetGuess::from);
            let group = groups.as_ref();
            all.push(ClipPrediction {
                row: job.samples.row(sample as usize),
                video: job.image(sample),
                group: group.map(|groups| groups.name(&job.samples, sample).to_owned()),
                targets: targets.collect(),
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
    let skipped = job.tell_skipped(&skipped);
    let has_read = !job.found_nothing(all.len(), &skipped);
    if let (Some(path), true) = (&arguments.features, has_read) {
        stop::whole(|| array_file::write(path, "video_features", &features, projection))?;
        let path = path.display();
        tell(&format!("{} x {projection} features: {path}", all.len()));
    }
    if texts.has_find {
        all.sort_by(|a, b| b.similarity.partial_cmp(&a.similarity).expect("finite"));
    }
    if let (Some(path), true) = (&arguments.csv, has_read) {
        let heads = task.heads.iter();
        let columns = Columns {
            group: groups.map(|groups| groups.column),
            has_captions: caption_text.is_some(),
            has_similarity: texts.has_find,
            heads: heads
                .map(|head| HeadColumns::of_head(head, arguments.top, arguments.all_probabilities))
                .collect(),
            zero_shot: texts.columns(arguments, &task),
        };
        write_csv(path, &columns, &all, &skipped)?;
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
    Ok(if skipped.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// The tokenizer of captions, if the model writes any. A model that has nothing to say of clips is refused.
fn caption_text(
    arguments: &PredictArguments,
    task: &VideoTextTask,
    saved: &SavedVideoText,
    texts: &Texts,
) -> Result<Option<TextEncoder>> {
    if task.decoder().is_some() {
        return Ok(Some(match saved.own_caption_text()? {
            Some(own) => own,
            None => saved.text()?,
        }));
    }
    if texts.table.is_none() && arguments.features.is_none() && task.heads.is_empty() {
        return Err(TrainError::Config(format!(
            "{}: expected a model that writes captions, found one without a decoder and without heads\n\
             hint: --labels \"a,b\" or --find TEXT compare clips with texts; --features FILE writes features",
            saved.path().display()
        ))
        .into());
    }
    Ok(None)
}

/// The model's task, with captioning options applied.
fn task(arguments: &PredictArguments, mut task: VideoTextTask) -> VideoTextTask {
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

/// Texts to compare with clips: labels, and the text of `--find`.
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
            .map(|label| arguments.template().replace("{}", label))
            .collect();
        texts.extend(arguments.clips.find.clone());
        let table = if texts.is_empty() {
            None
        } else {
            Some(TokenTable::new(
                &saved.text()?,
                &texts,
                task.num_text_tokens,
            )?)
        };
        Ok(Texts {
            labels,
            has_find: arguments.clips.find.is_some(),
            table,
            scale: saved.logit_scale()?,
        })
    }

    /// Columns of `--labels`, renamed if a trained head has the same name.
    fn columns(&self, arguments: &PredictArguments, task: &VideoTextTask) -> Option<HeadColumns> {
        let is_taken = task.heads.iter().any(|head| head.name == ZERO_SHOT);
        let name = if is_taken { "zero_shot" } else { ZERO_SHOT };
        let all = arguments.all_probabilities;
        (!self.labels.is_empty())
            .then(|| HeadColumns::of_labels(name, &self.labels, arguments.top, all))
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

    /// The most likely labels, and the similarity to the text of `--find`.
    fn compare(&self, clip: &[f32], texts: &[f32], top: usize) -> (Vec<Guess>, Option<f64>) {
        let cosine = |text: &[f32]| -> f64 {
            let pairs = clip.iter().zip(text);
            pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let mut cosines: Vec<f64> = texts.chunks(clip.len()).map(cosine).collect();
        let found = if self.has_find { cosines.pop() } else { None };
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

/// CSV columns for clips.
struct Columns {
    /// Name of the table's group column.
    group: Option<String>,
    has_captions: bool,
    has_similarity: bool,
    heads: Vec<HeadColumns>,
    zero_shot: Option<HeadColumns>,
}

impl Columns {
    fn names(&self) -> Vec<String> {
        let mut names = vec!["video".to_owned()];
        names.extend(self.group.clone());
        names.extend(self.has_captions.then(|| "caption".to_owned()));
        names.extend(self.has_similarity.then(|| "similarity".to_owned()));
        let heads = self.heads.iter().chain(&self.zero_shot);
        names.extend(heads.flat_map(HeadColumns::names));
        names
    }

    /// Cells of an unreadable clip.
    fn empty(&self, video: &str) -> Vec<String> {
        let mut cells = vec![String::new(); self.names().len()];
        video.clone_into(&mut cells[0]);
        cells
    }

    fn cells(&self, one: &ClipPrediction) -> Vec<String> {
        let mut cells = vec![one.video.clone()];
        cells.extend(
            self.group
                .as_ref()
                .map(|_| one.group.clone().unwrap_or_default()),
        );
        if self.has_captions {
            cells.push(one.caption.clone().unwrap_or_default());
        }
        if self.has_similarity {
            cells.push(
                one.similarity
                    .map_or(String::new(), |one| format!("{one:.6}")),
            );
        }
        let heads = self.heads.iter().zip(&one.targets);
        cells.extend(heads.flat_map(|(columns, target)| columns.cells(target)));
        if let Some(columns) = &self.zero_shot {
            cells.extend(columns.cells(&TargetGuess::of_labels(ZERO_SHOT, one.labels.clone())));
        }
        cells
    }
}

/// Writes a row for each clip, or for each group of clips; unreadable ones are empty.
fn write_csv(
    path: &Path,
    columns: &Columns,
    all: &[ClipPrediction],
    skipped: &[Skipped],
) -> Result<()> {
    let read = all.iter().map(|one| (one.row, columns.cells(one)));
    let unread = skipped
        .iter()
        .map(|one| (one.row, columns.empty(&one.image)));
    let mut lines: Vec<(u32, Vec<String>)> = read.chain(unread).collect();
    // With `--find`, rows are sorted by similarity; otherwise they keep the order of the table.
    if !columns.has_similarity {
        lines.sort_by_key(|(row, _)| *row);
    }
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(columns.names())?;
    for (_, cells) in &lines {
        rows.write_record(cells)?;
    }
    write_file(path, "--csv", &rows.into_inner()?)?;
    tell_csv(path, all.len(), skipped.len());
    Ok(())
}

fn show(all: &[ClipPrediction]) -> String {
    let mut text = String::new();
    for one in all {
        let similarity = one.similarity.map(|cosine| format!("{cosine:.3}"));
        let labels = Some(describe_labels(&one.labels)).filter(|labels| !labels.is_empty());
        let mut words: Vec<String> = [similarity, one.caption.clone(), labels]
            .into_iter()
            .flatten()
            .collect();
        words.extend(one.targets.iter().map(TargetGuess::describe));
        let name = match &one.group {
            Some(group) => format!("{group} ({})", one.video),
            None => one.video.clone(),
        };
        text.push_str(&format!("{name}: {}\n", words.join("; ")));
    }
    text
}
