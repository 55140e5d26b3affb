//! What a model is worth on samples: retrieval both ways, and labels.
//!
//! Every picture is encoded once, and every different caption once. Features wait on the host; similarities are never
//! held.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::loader::{Loader, Skipped};
use holdall_data::samples::Samples;
use holdall_device::{Device, HostRow};
use holdall_metrics::feature_gather::FeatureGather;
use holdall_metrics::features::Features;
use holdall_metrics::labels::LabelCounts;
use holdall_metrics::pairs::Pairs;
use holdall_metrics::retrieval::{
    self, Engine, Go, Job, Options, Ranks, RetrievalError, Side, Sizes, Ties,
};
use serde::{Deserialize, Serialize};

use crate::encoder::{EncodedPictures, Encoder};
use crate::error::TrainError;
use crate::examples::Examples;
use crate::loader_budget::read_once;
use crate::prepare::{Part, TokenTable};

/// What an evaluation found; a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Pictures against captions.
    #[serde(flatten)]
    pub retrieval: Retrieval,
    /// R@1 of guessing, pictures looking for captions.
    pub chance_r1: f64,
    /// Share of labels that the head has right.
    pub label_top1: Option<f64>,
    /// Share of labels among the head's first five.
    pub label_top5: Option<f64>,
    /// Top-1 of guessing.
    pub chance_top1: Option<f64>,
    /// Labelled samples.
    pub labelled: usize,
    /// Pictures that could not be read, and are not among those counted.
    #[serde(default)]
    pub skipped: usize,
}

/// Both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// Pictures.
    pub pictures: usize,
    /// Different captions.
    pub captions: usize,
    /// Pictures looking for their caption.
    pub image_to_text: Ranks,
    /// Captions looking for a picture of theirs.
    pub text_to_image: Ranks,
}

/// Names that `best_metric` may have.
pub const METRICS: [&str; 5] = [
    "label_top1",
    "label_top5",
    "mean_r1",
    "image_to_text_r1",
    "text_to_image_r1",
];

impl Scores {
    /// A metric by its name; `None` where there is none.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let [to_text, to_image] = [
            self.retrieval.image_to_text.r1,
            self.retrieval.text_to_image.r1,
        ];
        match name {
            "label_top1" => self.label_top1,
            "label_top5" => self.label_top5,
            "mean_r1" => Some((to_text + to_image) / 2.0),
            "image_to_text_r1" => Some(to_text),
            "text_to_image_r1" => Some(to_image),
            _ => None,
        }
    }
}

/// Why an evaluation has no result.
#[derive(Debug)]
pub enum Unfinished {
    /// Whoever watches it did not want it to go on.
    Stopped,
    /// Features are infinite or not a number: whose, and what was found.
    NotFinite(String),
    /// Something broke.
    Failed(Box<TrainError>),
}

impl Unfinished {
    /// Outside of a run, where nothing asks an evaluation to stop.
    pub fn into_error(self) -> TrainError {
        match self {
            Unfinished::Stopped => TrainError::Run("the evaluation was stopped".to_owned()),
            Unfinished::NotFinite(found) => TrainError::Run(format!(
                "{found}\nhint: the model may come from a run that diverged; use a checkpoint from before"
            )),
            Unfinished::Failed(error) => *error,
        }
    }
}

impl<E: Into<TrainError>> From<E> for Unfinished {
    fn from(error: E) -> Unfinished {
        Unfinished::Failed(Box::new(error.into()))
    }
}

/// Bytes that an evaluation holds on the host: features, and what ranking takes beside them.
pub fn host_bytes(part: &Part, projection: usize, threads: usize) -> u64 {
    let (pictures, captions) = (part.samples.len(), part.tokens.len());
    // A row's number, as it came and in order, and its caption's.
    let per_row = projection * size_of::<f32>() + 3 * size_of::<u32>();
    let sizes = sizes(pictures, captions, projection, threads);
    let ranking = sizes.tiling(&options(&sizes));
    let ranking = ranking.expect("never less than the least");
    ((pictures + captions) * per_row) as u64 + ranking.held_bytes + CODE_BYTES
}

/// The code of ranking becomes resident when it first runs, and what little it allocates besides: 80 KB were seen.
const CODE_BYTES: u64 = 256 << 10;

fn sizes(pictures: usize, captions: usize, projection: usize, threads: usize) -> Sizes {
    Sizes {
        queries: pictures,
        gallery: captions,
        dimension: projection,
        pairs: pictures,
        threads,
    }
}

/// Captions that are packed at a time take so much; more would hardly be faster.
const PACKED_BYTES: u64 = 16 << 20;

fn options(sizes: &Sizes) -> Options {
    let least = sizes.least_bytes(&Options::default());
    Options {
        memory_bytes: Some(least + PACKED_BYTES),
        ..Options::default()
    }
}

/// Evaluates `part`, as long as it `is_wanted`; waiting for a picture ends with `stop`. `tell` is told how far it is. What cannot be read is left out, and named. `examples` look on.
pub fn evaluate(
    device: &Device,
    encoder: &mut Encoder<'_>,
    (pictures, part): (&mut Loader<HostRow>, &Part),
    mut examples: Option<&mut Examples>,
    stop: &AtomicBool,
    is_wanted: &(dyn Fn() -> bool + Sync),
    mut tell: impl FnMut(usize, usize),
) -> Result<(Scores, Vec<Skipped>), Unfinished> {
    let (samples, projection) = (&part.samples, encoder.projection());
    let mut go_on = |done: usize, total: usize| {
        tell(done, total);
        is_wanted()
    };
    let total = samples.len() + part.tokens.len();
    let mut labels = LabelCounts::default();
    let mut picture_features = FeatureGather::new(samples.len(), projection, samples.len());
    let mut num_labels = None;
    let skipped = encode_pictures_seeing(
        device,
        encoder,
        (pictures, samples),
        stop,
        |read, rows, encoded| {
            if let Some(examples) = &mut examples {
                examples.see_pictures(read, rows, &encoded);
            }
            let taken = picture_features.add(read, &encoded.features);
            taken.expect("a loader gives each sample once");
            if let Some(logits) = &encoded.logits {
                let rows = encoded.features.len() / projection;
                let width = logits.len() / rows;
                num_labels = Some(width);
                for (&sample, logits) in read.iter().zip(logits.chunks(width)) {
                    if let Ok(label) = usize::try_from(samples.label(sample as usize)) {
                        labels.add(logits, label);
                    }
                }
            }
            go_on(picture_features.len(), total)
        },
    )?;
    if picture_features.is_empty() {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let mut caption_features = Vec::with_capacity(part.tokens.len() * projection);
    encode_captions(device, encoder, &part.tokens, |features| {
        if let Some(examples) = &mut examples {
            examples.see_captions(features, projection);
        }
        caption_features.extend_from_slice(features);
        go_on(samples.len() + caption_features.len() / projection, total)
    })?;
    // What cannot be read: found now and named in `skipped`, or known from before.
    let left_out: Vec<u32> = picture_features.missing().collect();
    let pictures = picture_features
        .in_order(&left_out)
        .expect("all others are there");
    let caption_of: Vec<u32> = pictures
        .samples
        .iter()
        .map(|&sample| samples.caption_id(sample as usize))
        .collect();
    let ranks = device.cpu().scope(|| {
        let captions = Features::of(&caption_features, projection);
        rank(&pictures.rows, &captions, &caption_of, &mut |_| is_wanted())
    });
    let ranks = ranks.map_err(not_ranked)?;
    let accuracy = labels.accuracy();
    let scores = Scores {
        retrieval: ranks,
        chance_r1: 1.0 / part.tokens.len() as f64,
        label_top1: accuracy.map(|[top1, _]| top1),
        label_top5: accuracy.map(|[_, top5]| top5),
        chance_top1: accuracy.and(num_labels).map(|labels| 1.0 / labels as f64),
        labelled: labels.samples,
        skipped: samples.len() - caption_of.len(),
    };
    Ok((scores, skipped))
}

/// A picture's positive is its caption; a caption's are all pictures that have it, and the best of them counts. Captions of
/// pictures that could not be read are in everyone's way, and have no rank themselves.
fn rank(
    pictures: &[f32],
    captions: &Features<'_>,
    caption_of: &[u32],
    go_on: &mut Go<'_>,
) -> Result<Retrieval, RetrievalError> {
    let (num_captions, projection) = (captions.num_rows(), captions.dimension());
    let job = Job {
        queries: &Features::of(pictures, projection),
        gallery: captions,
        pairs: &Pairs::one_each(caption_of, num_captions)?,
    };
    let threads = rayon::current_num_threads();
    let options = options(&sizes(caption_of.len(), num_captions, projection, threads));
    // On the threads also where there is a GPU: its memory is all planned.
    let found = retrieval::rank(Engine::Cpu, &job, &options, go_on)?;
    Ok(Retrieval {
        pictures: caption_of.len(),
        captions: num_captions,
        image_to_text: found.to_gallery.ranks(Ties::Mean),
        text_to_image: found.to_query.ranks(Ties::Mean),
    })
}

fn not_ranked(error: RetrievalError) -> Unfinished {
    match error {
        RetrievalError::Stopped => Unfinished::Stopped,
        RetrievalError::NotFinite {
            side, row, value, ..
        } => {
            let what = match side {
                Side::Query => "picture",
                Side::Gallery => "caption",
            };
            Unfinished::NotFinite(format!(
                "the features of {what} {} are not finite: found {value}",
                row + 1
            ))
        }
        error => TrainError::Run(format!("evaluation: {error}")).into(),
    }
}

/// Where there is nothing to train on or to evaluate.
pub fn nothing_readable(samples: &Samples, skipped: &[Skipped]) -> TrainError {
    let first = skipped.first().map_or(String::new(), |skipped| {
        let row = samples.row(skipped.sample as usize);
        format!("; the first, of row {row}: {}", skipped.error)
    });
    // What is wrong with a picture comes with a hint of its own.
    let hint = match first.is_empty() {
        true => "\nhint: `holdall data check` says what is wrong with them",
        false => "",
    };
    TrainError::Config(format!(
        "none of {} pictures could be read{first}{hint}",
        samples.len()
    ))
}

/// Encodes every picture that can be read, in the order of the samples, unless it is to `stop`. `each` gets the samples of a batch and what
/// they became, and says whether to go on. Returns what could not be read.
pub fn encode_pictures(
    device: &Device,
    encoder: &mut Encoder<'_>,
    read: (&mut Loader<HostRow>, &Arc<Samples>),
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], EncodedPictures<'_>) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    encode_pictures_seeing(device, encoder, read, stop, |read, _, encoded| {
        each(read, encoded)
    })
}

/// The same, where `each` sees the pixels too.
fn encode_pictures_seeing(
    device: &Device,
    encoder: &mut Encoder<'_>,
    (pictures, samples): (&mut Loader<HostRow>, &Arc<Samples>),
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], &[HostRow], EncodedPictures<'_>) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    let batch = encoder.batch().min(pictures.num_rows());
    let read = read_once(pictures, samples, batch, stop, |read, rows| {
        let encoded = encoder.pictures(device, rows)?;
        Ok::<bool, Unfinished>(each(read, rows, encoded))
    })?;
    read.ok_or(Unfinished::Stopped)
}

/// Encodes every caption of the table. `each` gets the features of a batch, and says whether to go on.
pub fn encode_captions(
    device: &Device,
    encoder: &mut Encoder<'_>,
    tokens: &TokenTable,
    mut each: impl FnMut(&[f32]) -> bool,
) -> Result<(), Unfinished> {
    let (batch, num_tokens) = (encoder.batch(), encoder.num_tokens());
    let mut ids = vec![0; batch * num_tokens];
    for first in (0..tokens.len()).step_by(batch) {
        let rows = batch.min(tokens.len() - first);
        for (row, ids) in ids.chunks_mut(num_tokens).take(rows).enumerate() {
            tokens.write(first + row, ids);
        }
        if !each(&encoder.captions(device, &ids[..rows * num_tokens])?) {
            return Err(Unfinished::Stopped);
        }
    }
    Ok(())
}
