//! Predictions of CLIP: by the label head, or zero-shot by captions made of label names.

use anyhow::Result;
use holdall_metrics::classification::top_k;
use holdall_train::TrainError;
use holdall_train::engine::task::Unfinished;
use holdall_train::export::saved_model::SavedModel;
use holdall_train::tasks::clip::{
    Encoder, SavedClip, TokenTable, encode_captions, encode_pictures,
};

use super::answers::{Guess, HeadColumns, TargetGuess};
use super::{PredictArguments, Prediction, PredictionJob, Predictions};
use crate::screen::progress;
use crate::stop;

/// Approximate memory for a picture's path and the names of its labels.
const NAMES_BYTES: usize = 256;

/// Labels and the method to predict them.
enum Labels {
    /// By the trained head.
    Head(Vec<String>),
    /// By comparing pictures with captions made of label names.
    ZeroShot {
        names: Vec<String>,
        tokens: TokenTable,
        scale: f32,
    },
    /// No labels, features only.
    None,
}

impl Labels {
    fn names(&self) -> &[String] {
        match self {
            Labels::Head(names) | Labels::ZeroShot { names, .. } => names,
            Labels::None => &[],
        }
    }
}

/// Target name of zero-shot labels.
const ZERO_SHOT: &str = "label";

pub(super) fn predict(job: &PredictionJob<'_>, trained: &SavedClip) -> Result<Option<Predictions>> {
    let arguments = job.arguments;
    let labels = labels(arguments, trained)?;
    let longest = match &labels {
        Labels::ZeroShot { tokens, .. } => tokens.longest(),
        _ => 1,
    };
    let head_name = match &labels {
        Labels::Head(_) => trained.target.as_str(),
        _ => ZERO_SHOT,
    };
    let projection = trained.projection();
    let top = arguments.top_labels(labels.names().len());
    let held_bytes = size_of::<Prediction>() + 2 * top * size_of::<Guess>() + NAMES_BYTES;
    let feature_bytes = match arguments.features {
        Some(_) => projection * size_of::<f32>(),
        None => 0,
    };
    let host_bytes = (job.samples.len() * (held_bytes + feature_bytes)) as u64;
    let task = trained.task(longest);
    let Some((mut opened, mut pictures)) = job.open(&task, trained, host_bytes)? else {
        return Ok(None);
    };
    let planned_bytes = opened.model.plan().process_bytes;
    let mut encoder = Encoder::new(&task, opened.model.forward(job.device));
    let captions = encode_labels(&mut encoder, &labels).map_err(Unfinished::into_error)?;
    let bar = progress(job.samples.len() as u64, "Predicting");
    let mut all = Vec::new();
    let mut not_finite = None;
    let mut features: Vec<f32> = match arguments.features {
        Some(_) => Vec::with_capacity(job.samples.len() * projection),
        None => Vec::new(),
    };
    let encoded = encode_pictures(
        &mut encoder,
        (&mut pictures, &job.samples),
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
                let best = scores.map(|scores| best(labels.names(), &scores, top));
                let target = best.map(|labels| TargetGuess::of_labels(head_name, labels));
                let targets = target.into_iter().collect();
                all.push(Prediction::new(job, read[row], targets));
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
        let picture = job.image(sample);
        let found = format!("{picture}: its features are not finite: found {value}");
        return Err(Unfinished::NotFinite(found).into_error().into());
    }
    Ok(Some(Predictions {
        all,
        skipped: encoded.map_err(Unfinished::into_error)?,
        planned_bytes,
        features: arguments.features.as_ref().map(|_| (features, projection)),
        columns: match labels.names() {
            [] => Vec::new(),
            names => {
                let all = arguments.all_probabilities;
                vec![HeadColumns::of_labels(head_name, names, arguments.top, all)]
            }
        },
    }))
}

/// Labels from the options, else of the trained head; none if only features are requested.
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
        let captions: Vec<String> = names
            .iter()
            .map(|label| arguments.template().replace("{}", label))
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
        encode_captions(encoder, tokens, 0..tokens.len(), |encoded| {
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
fn best(names: &[String], scores: &[f64], top: usize) -> Vec<Guess> {
    let best = top_k(scores, top).into_iter();
    best.map(|(index, probability)| Guess {
        label: names[index].clone(),
        probability,
    })
    .collect()
}
