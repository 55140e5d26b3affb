//! A trained classifier, opened to be used.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::image_processor::ImageProcessor;
use holdall_data::loader::{Loader, RowFormat, Share, Skipped};
use holdall_data::samples::Samples;
use holdall_data::source::{self, Captions};
use holdall_data::target::{Target, TargetKind};
use holdall_device::HostRow;
use holdall_metrics::classification::top_k;
use holdall_models::vit::config::ClassifierConfig;
use holdall_onnx::Precision;
use serde::Serialize;

use super::export::read_targets;
use super::prepare::{OpenedModel, open_model};
use super::step::{LOGITS, PROGRAM, PROGRAM_PIXELS};
use super::{ClassifyTask, Head, onnx};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::forward::Forward;
use crate::loader_budget::read_once;
use crate::onnx::OnnxFile;
use crate::saved_model::{EvaluationData, HeldOut, SavedModel, not_trained, resolve};
use crate::setup::Weights;
use crate::site::Site;
use crate::task::Unfinished;

/// A classifier with all that lies beside it.
pub struct SavedClassifier {
    task: ClassifyTask,
    targets: Vec<Target>,
    processor: ImageProcessor,
}

/// What a head says of a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Labels with their probabilities, best first.
    Labels {
        /// The head.
        target: String,
        /// The best ones.
        labels: Vec<(String, f64)>,
        /// Whether each stands by itself: those from 0.5 on apply.
        several: bool,
    },
    /// A number.
    Number {
        /// The head.
        target: String,
        /// As the training rows have it.
        number: f64,
    },
}

impl SavedClassifier {
    /// Opens a model folder, the folder of a run, or a name in the local Hugging Face cache.
    pub fn open(name: &str) -> Result<SavedClassifier, TrainError> {
        let named = resolve(name)?;
        let OpenedModel {
            backbone,
            weights,
            processor,
        } = open_model(&named.to_string_lossy())?;
        let Weights::Folder(folder) = &weights else {
            return Err(not_trained(name));
        };
        let Some(classifier) = folder.config().classifier() else {
            return Err(TrainError::Config(format!(
                "{name}: expected a classifier, found {}\nhint: holdall train DATA --model {name} trains one on it",
                folder.config().describe()
            )));
        };
        let classifier: &ClassifierConfig = classifier;
        let targets = read_targets(folder.path(), classifier)?;
        let heads = targets.iter().map(Head::new).collect();
        let mut task = ClassifyTask::new(backbone, heads);
        task.weights = Some(Arc::new(weights));
        Ok(SavedClassifier {
            task,
            targets,
            processor,
        })
    }

    /// The model as an ONNX program.
    pub(in crate::tasks) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        Ok(onnx::programs(&self.task, precision)?)
    }

    /// What is computed.
    pub fn task(&self) -> &ClassifyTask {
        &self.task
    }

    /// Asks every head about every picture that can be read, unless it is to `stop`. `each` gets the samples of a batch and
    /// the answers for each, with up to `top` labels, and says whether to go on. Returns what could not be read.
    pub fn predict(
        &self,
        forward: &mut Forward<'_>,
        (pictures, samples): (&mut Loader<HostRow>, &Arc<Samples>),
        top: usize,
        stop: &AtomicBool,
        mut each: impl FnMut(&[u32], Vec<Vec<Answer>>) -> bool,
    ) -> Result<Vec<Skipped>, Unfinished> {
        let batch = forward.rows(PROGRAM_PIXELS).min(pictures.num_rows());
        let num_outputs = self.task.num_outputs();
        let read = read_once(
            pictures,
            (samples, Share::default()),
            batch,
            stop,
            |read, rows| {
                forward.feed_pictures(PROGRAM_PIXELS, rows);
                forward.run(PROGRAM)?;
                let outputs = forward.read_rows(LOGITS, rows.len())?;
                let mut answers = Vec::with_capacity(read.len());
                for (&sample, outputs) in read.iter().zip(outputs.chunks(num_outputs)) {
                    if let Some(value) = outputs.iter().find(|value| !value.is_finite()) {
                        let picture = samples.image(sample as usize);
                        return Err(Unfinished::NotFinite(format!(
                            "{picture}: its outputs are not finite: found {value}"
                        )));
                    }
                    answers.push(self.answers(outputs, top));
                }
                Ok::<bool, Unfinished>(each(read, answers))
            },
        )?;
        read.ok_or(Unfinished::Stopped)
    }

    fn answers(&self, outputs: &[f32], top: usize) -> Vec<Answer> {
        let mut first = 0;
        let heads = self.task.heads.iter();
        heads
            .map(|head| {
                let own = &outputs[first..first + head.num_outputs()];
                first += own.len();
                let target = head.name.clone();
                let named = |best: Vec<(usize, f64)>| -> Vec<(String, f64)> {
                    let names = head.kind.names();
                    best.into_iter()
                        .map(|(class, share)| (names[class].clone(), share))
                        .collect()
                };
                match head.kind {
                    TargetKind::Number { .. } => Answer::Number {
                        target,
                        number: f64::from(own[0]),
                    },
                    TargetKind::Class { .. } => Answer::Labels {
                        target,
                        labels: named(top_k(own, top)),
                        several: false,
                    },
                    TargetKind::Classes { .. } => {
                        let sigmoid = |&logit: &f32| 1.0 / (1.0 + f64::from(-logit).exp());
                        let mut best: Vec<_> = own.iter().map(sigmoid).enumerate().collect();
                        best.sort_by(|a, b| b.1.total_cmp(&a.1));
                        // Those that apply are told, however many there are.
                        let applying = best.iter().filter(|(_, share)| *share >= 0.5).count();
                        best.truncate(top.max(applying));
                        Answer::Labels {
                            target,
                            labels: named(best),
                            several: true,
                        }
                    }
                }
            })
            .collect()
    }
}

impl SavedModel for SavedClassifier {
    fn path(&self) -> &Path {
        match self.task.weights.as_deref() {
            Some(Weights::Folder(folder)) => folder.path(),
            _ => unreachable!("opened from a folder"),
        }
    }

    fn describe_pictures(&self) -> String {
        self.processor.describe()
    }

    fn rows(&self) -> RowFormat {
        self.processor.framing.into()
    }

    fn read(
        &self,
        config: &RunConfig,
        site: Site<'_>,
        held_out: HeldOut,
    ) -> Result<EvaluationData, TrainError> {
        let data = site.listed(|| {
            let (data, seed) = (&config.data, config.seed);
            source::read_with_targets(data, Captions::None, &self.targets, seed)
        })?;
        let mut notes = data.notes;
        let samples = held_out.choose(data.train, data.validation, &mut notes);
        Ok(EvaluationData {
            task: Arc::new(self.task.clone()),
            samples: Arc::new(samples),
            csv: data.csv,
            notes,
            rows: self.rows(),
        })
    }

    fn describe_data(&self, config: &mut RunConfig) -> Result<(), TrainError> {
        crate::tasks::take_label_column(config)
    }
}
