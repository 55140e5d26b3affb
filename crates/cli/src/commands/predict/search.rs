//! Search by text: the pictures or clips that best match each text: `predict RUN --texts queries.txt --search photos`.
//!
//! Texts are encoded first. Each picture is compared with all texts as soon as it is encoded, and only the best pictures of each text are
//! kept: memory grows with texts, not with pictures.

mod output;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use holdall_data::DataConfig;
use holdall_data::decode::thumbnail;
use holdall_data::loader::{self, Course, Loader, Share};
use holdall_data::samples::SamplesBuilder;
use holdall_device::{Device, HostRow};
use holdall_train::TrainError;
use holdall_train::engine::forward::ForwardModel;
use holdall_train::engine::task::{Task, Unfinished};
use holdall_train::planning::loader_budget::{read_course, read_once};
use holdall_train::tasks::Saved;
use holdall_train::tasks::clip::{
    Encoder, SavedClip, TokenTable, encode_captions, encode_pictures,
};
use holdall_train::tasks::video_text::{ClipReader, SavedVideoText};

use super::inputs::{self, Named};
use super::{PredictArguments, PredictionJob};
use crate::commands::plan::fitting;
use crate::screen::progress;
use crate::stop;

/// Heading in the help.
const SEARCH: &str = "Search by text";

/// How pictures are searched.
#[derive(Args, Clone)]
pub struct SearchOptions {
    /// Texts to search with, one a line
    #[arg(long, value_name = "FILE", help_heading = SEARCH)]
    pub texts: Option<PathBuf>,
    /// Where to search: pictures, folders, or a CSV; for a video-text model clips
    #[arg(long, value_name = "IMAGES", requires = "texts", num_args = 1.., help_heading = SEARCH)]
    pub search: Vec<PathBuf>,
    /// Writes what was found as one HTML page with the pictures in it
    #[arg(long, value_name = "FILE.html", requires = "search", help_heading = SEARCH)]
    pub sheet: Option<PathBuf>,
    /// Writes the texts' features to FILE.npy or FILE.safetensors
    #[arg(long, alias = "text_features", value_name = "FILE", requires = "texts", help_heading = SEARCH)]
    pub text_features: Option<PathBuf>,
}

/// The texts with their best pictures so far.
struct Search<'a> {
    texts: &'a [String],
    /// `texts x projection`.
    features: Vec<f32>,
    top: usize,
    /// Per text: (sample, cosine), best first.
    best: Vec<Vec<(u32, f64)>>,
    /// Features of all pictures, if they are written to a file.
    pictures: Option<Vec<f32>>,
}

impl Search<'_> {
    fn offer(&mut self, sample: u32, picture: &[f32]) {
        for (text, best) in self.features.chunks(picture.len()).zip(&mut self.best) {
            let pairs = picture.iter().zip(text);
            let cosine: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            keep_best(best, self.top, (sample, cosine));
        }
        if let Some(pictures) = &mut self.pictures {
            pictures.extend_from_slice(picture);
        }
    }
}

/// Inserts a picture into the sorted list of the best; among equal ones, the earlier comes first.
fn keep_best(best: &mut Vec<(u32, f64)>, top: usize, (sample, cosine): (u32, f64)) {
    let place = best.partition_point(|&(_, other)| other >= cosine);
    if place < top {
        best.truncate(top - 1);
        best.insert(place, (sample, cosine));
    }
}

/// Result of a search.
struct SearchOutcome {
    skipped: Vec<loader::Skipped>,
    planned_bytes: u64,
    /// JPEG thumbnails by sample, for the HTML page.
    thumbnails: Vec<(u32, Vec<u8>)>,
}

/// Longest side of a thumbnail, in pixels.
const THUMBNAIL: u32 = 224;
/// Memory for the path of a named picture.
const PATH_BYTES: usize = 256;

pub(super) fn run(
    arguments: &PredictArguments,
    device: &Device,
    budget_bytes: Option<u64>,
    (saved, data): (&Saved, &DataConfig),
) -> Result<ExitCode> {
    let options = &arguments.search;
    check(arguments, saved)?;
    let path = options.texts.as_deref().expect("asked for");
    let texts = inputs::lines_of(path, "--texts", "a text")?;
    let named = [&arguments.images[..], &options.search].concat();
    let Named { samples, bad_rows } = match (named.is_empty(), saved) {
        (true, _) => Named {
            samples: Arc::new(SamplesBuilder::new(PathBuf::new()).finish(Vec::new())),
            bad_rows: Vec::new(),
        },
        (false, Saved::VideoText(_)) => inputs::clips(&named, data)?.named,
        (false, _) => inputs::pictures(&named, data)?,
    };
    inputs::check_outputs(arguments, &samples)?;
    let job = PredictionJob {
        arguments,
        device,
        budget_bytes,
        data,
        samples,
        bad_rows,
    };
    let mut search = Search {
        features: Vec::new(),
        top: arguments.top.unwrap_or(10),
        best: vec![Vec::new(); texts.len()],
        pictures: arguments.features.as_ref().map(|_| Vec::new()),
        texts: &texts,
    };
    let outcome = match saved {
        Saved::Clip(saved) => search_pictures(&job, saved, &mut search)?,
        Saved::VideoText(saved) => search_clips(&job, saved, &mut search)?,
        Saved::Classify(_) | Saved::Segment(_) => unreachable!("checked"),
    };
    match outcome {
        Some(outcome) => output::report(&job, saved.model().path(), &search, &outcome),
        None => Ok(stop::exit_code()),
    }
}

/// Checks that the options are consistent, before anything is opened.
fn check(arguments: &PredictArguments, saved: &Saved) -> Result<(), TrainError> {
    let refused =
        |found: String, hint: &str| Err(TrainError::Config(format!("{found}\nhint: {hint}")));
    if let Saved::Classify(_) | Saved::Segment(_) = saved {
        return refused(
            format!(
                "--texts: expected a CLIP or a video-text model, found {}",
                saved.model().path().display()
            ),
            "only these models compare pictures with texts",
        );
    }
    if !arguments.labels.is_empty() {
        return refused(
            "--labels and --texts: expected one of them".to_owned(),
            "--labels asks for each picture which label fits, --texts for each text which pictures fit",
        );
    }
    let options = &arguments.search;
    let is_page = |path: &PathBuf| {
        let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
        ending.is_some_and(|ending| ending == "html" || ending == "htm")
    };
    if let Some(sheet) = options.sheet.as_ref().filter(|path| !is_page(path)) {
        return refused(
            format!("--sheet {}: expected FILE.html", sheet.display()),
            "a contact sheet is one HTML page with the pictures in it, which any browser prints or saves as it likes",
        );
    }
    let has_pictures = !arguments.images.is_empty() || !options.search.is_empty();
    match (has_pictures, &options.text_features, &arguments.features) {
        (false, _, Some(_)) => refused(
            "--features: no pictures were named".to_owned(),
            "--text-features FILE writes the features of texts",
        ),
        (false, None, _) => refused(
            "--texts: search where?".to_owned(),
            "--search photos names pictures; --text-features FILE writes the features of the texts alone",
        ),
        _ => Ok(()),
    }
}

/// Memory of a search beside the model.
fn held_bytes(job: &PredictionJob<'_>, search: &Search<'_>, projection: usize) -> u64 {
    let of_text =
        projection * size_of::<f32>() + search.top.min(job.samples.len()) * size_of::<(u32, f64)>();
    let of_picture = match search.pictures {
        Some(_) => PATH_BYTES + projection * size_of::<f32>(),
        None => PATH_BYTES,
    };
    (search.texts.len() * of_text + job.samples.len() * of_picture) as u64
}

/// A model without image inputs: only its text encoder runs.
fn open_for_texts(
    job: &PredictionJob<'_>,
    task: &dyn Task,
    host_bytes: u64,
) -> Result<ForwardModel> {
    let batch = job.arguments.inference.batch_size;
    let model = ForwardModel::new(job.device, task, batch, job.budget_bytes, host_bytes);
    let mut model = fitting(job.arguments.output.json, job.device.kind(), model)?;
    model.set_weights(job.device, task.weights(0)?)?;
    Ok(model)
}

fn search_pictures(
    job: &PredictionJob<'_>,
    saved: &SavedClip,
    search: &mut Search<'_>,
) -> Result<Option<SearchOutcome>> {
    let tokens = saved.tokens(search.texts)?;
    let (task, projection) = (saved.task(tokens.longest()), saved.projection());
    let host_bytes = held_bytes(job, search, projection);
    let (mut model, mut pictures) = if job.samples.is_empty() {
        (open_for_texts(job, &task, host_bytes)?, None)
    } else {
        match job.open(&task, saved, host_bytes)? {
            Some((opened, pictures)) => (opened.model, Some(pictures)),
            None => return Ok(None),
        }
    };
    let planned_bytes = model.plan().process_bytes;
    let mut encoder = Encoder::new(&task, model.forward(job.device));
    let features = &mut search.features;
    let encoded = encode_captions(&mut encoder, &tokens, 0..tokens.len(), |encoded| {
        features.extend_from_slice(encoded);
        true
    });
    encoded.map_err(Unfinished::into_error)?;
    let mut skipped = Vec::new();
    if let Some(pictures) = &mut pictures {
        let bar = progress(job.samples.len() as u64, "Searching");
        let read = (&mut *pictures, &job.samples);
        let mut not_finite = None;
        let encoded = encode_pictures(
            &mut encoder,
            read,
            &stop::requests().stop,
            |read, encoded| {
                for (&sample, feature) in read.iter().zip(encoded.features.chunks(projection)) {
                    if feature.iter().any(|value| !value.is_finite()) {
                        not_finite.get_or_insert(sample);
                    }
                    search.offer(sample, feature);
                }
                bar.inc(read.len() as u64);
                not_finite.is_none()
            },
        );
        bar.finish_and_clear();
        if let Some(sample) = not_finite {
            let found = format!("{}: its features are not finite", job.image(sample));
            return Err(Unfinished::NotFinite(found).into_error().into());
        }
        skipped = match encoded {
            Err(Unfinished::Stopped) => return Ok(None),
            other => other.map_err(Unfinished::into_error)?,
        };
    }
    let thumbnails = thumbnails(job, pictures.as_mut(), search, 1)?;
    Ok(Some(SearchOutcome {
        skipped,
        planned_bytes,
        thumbnails,
    }))
}

fn search_clips(
    job: &PredictionJob<'_>,
    saved: &SavedVideoText,
    search: &mut Search<'_>,
) -> Result<Option<SearchOutcome>> {
    let task = &saved.task_for(job.data)?;
    let table = TokenTable::new(&saved.text()?, search.texts, task.num_text_tokens)?;
    let projection = task.model.projection_dim;
    let host_bytes = held_bytes(job, search, projection);
    let (mut model, mut clips) = if job.samples.is_empty() {
        (open_for_texts(job, task, host_bytes)?, None)
    } else {
        match job.open(task, saved, host_bytes)? {
            Some((opened, clips)) => (opened.model, Some(clips)),
            None => return Ok(None),
        }
    };
    let planned_bytes = model.plan().process_bytes;
    let mut reader = ClipReader::new(task, model.forward(job.device));
    for first in (0..table.len()).step_by(reader.batch()) {
        let encoded = reader.texts(&table, first).map_err(TrainError::from)?;
        search.features.extend_from_slice(&encoded);
    }
    let mut skipped = Vec::new();
    if let Some(clips) = &mut clips {
        let bar = progress(job.samples.len() as u64, "Searching");
        let batch = reader.batch().min(clips.num_rows());
        let course = (&job.samples, Course::Once(Share::default()));
        let read = read_course(clips, course, batch, &stop::requests().stop, |loaded| {
            let encoded = reader.clips(loaded)?.features;
            for (&sample, feature) in loaded.samples.iter().zip(encoded.chunks(projection)) {
                if feature.iter().any(|value| !value.is_finite()) {
                    let found = format!("{}: its features are not finite", job.image(sample));
                    return Err(Unfinished::NotFinite(found));
                }
                search.offer(sample, feature);
            }
            bar.inc(loaded.rows.len() as u64);
            Ok::<bool, Unfinished>(true)
        });
        bar.finish_and_clear();
        match read.map_err(Unfinished::into_error)? {
            Some(left_out) => skipped = left_out,
            None => return Ok(None),
        }
    }
    let thumbnails = thumbnails(job, clips.as_mut(), search, task.model.frames())?;
    Ok(Some(SearchOutcome {
        skipped,
        planned_bytes,
        thumbnails,
    }))
}

/// Reads the found pictures, or middle frames of clips, again as thumbnails; empty without an HTML page.
fn thumbnails(
    job: &PredictionJob<'_>,
    pictures: Option<&mut Loader<HostRow>>,
    search: &Search<'_>,
    frames: usize,
) -> Result<Vec<(u32, Vec<u8>)>> {
    let (Some(pictures), Some(_)) = (pictures, &job.arguments.search.sheet) else {
        return Ok(Vec::new());
    };
    let found: BTreeSet<u32> = search
        .best
        .iter()
        .flatten()
        .map(|&(sample, _)| sample)
        .collect();
    let found: Vec<u32> = found.into_iter().collect();
    let mut samples = SamplesBuilder::new(job.samples.root().to_owned());
    for (row, &sample) in found.iter().enumerate() {
        samples.push(job.samples.image(sample as usize), Some(""), row as u32);
    }
    let samples = Arc::new(samples.finish(Vec::new()));
    let mut small = Vec::new();
    let batch = pictures.num_rows();
    let stop = &stop::requests().stop;
    let all = (&samples, Share::default());
    read_once(pictures, all, batch, stop, |read, rows| {
        for (&index, row) in read.iter().zip(rows) {
            let row: &[u8] = row.as_ref();
            let frame_bytes = row.len() / frames;
            let middle = &row[frame_bytes * (frames / 2)..][..frame_bytes];
            if let Some(jpeg) = thumbnail(middle, THUMBNAIL) {
                small.push((found[index as usize], jpeg));
            }
        }
        Ok::<bool, TrainError>(true)
    })?;
    Ok(small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_kept_in_order_and_of_equal_ones_the_first() {
        let offered = [(0, 0.1), (1, 0.9), (2, 0.5), (3, 0.9), (4, 0.2), (5, 0.5)];
        for top in 1..8 {
            let mut best = Vec::new();
            for one in offered {
                keep_best(&mut best, top, one);
            }
            let mut expected = offered.to_vec();
            expected.sort_by(|a, b| b.1.total_cmp(&a.1));
            expected.truncate(top);
            assert_eq!(best, expected, "top {top}");
        }
    }
}
