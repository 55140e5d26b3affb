//! A trained classifier, opened for prediction, evaluation and export.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::DataConfig;
use holdall_data::decode::ImageProcessor;
use holdall_data::loader::{Loader, RowFormat, Share, Skipped};
use holdall_data::media::Media;
use holdall_data::samples::{self, Captions, Samples, Target, TrainedTargets};
use holdall_device::HostRow;
use holdall_models::vit::config::ClassifierConfig;
use holdall_onnx::Precision;

use super::super::opened_model::OpenedModel;
use super::answers::{Answer, answers_of};
use super::export::read_targets;
use super::prepare::open_model;
use super::step::{LOGITS, PROGRAM, PROGRAM_PIXELS};
use super::{ClassifyTask, Head, onnx};
use crate::config::RunConfig;
use crate::engine::forward::Forward;
use crate::engine::task::Unfinished;
use crate::error::TrainError;
use crate::export::onnx::OnnxFile;
use crate::export::saved_model::{Evaluated, EvaluationData, SavedModel, not_trained, resolve};
use crate::planning::loader_budget::read_once;
use crate::planning::site::Site;
use crate::tasks::weights_folder;

/// A trained classifier with its targets and its picture preprocessing.
pub struct SavedClassifier {
    task: ClassifyTask,
    targets: Vec<Target>,
    processor: ImageProcessor,
}

impl SavedClassifier {
    /// Opens a model folder, the folder of a run, or a name in the local Hugging Face cache.
    pub fn open(name: &str) -> Result<SavedClassifier, TrainError> {
        let named = resolve(name)?;
        let OpenedModel {
            config: backbone,
            weights,
            processor,
        } = open_model(name, weights_folder(&named.to_string_lossy()))?;
        let Some(folder) = weights.folder() else {
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
        task.weights = Arc::new(weights);
        Ok(SavedClassifier {
            task,
            targets,
            processor,
        })
    }

    pub(in crate::tasks) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        Ok(onnx::programs(&self.task, precision)?)
    }

    pub fn task(&self) -> &ClassifyTask {
        &self.task
    }

    /// Predicts with every head on every readable picture. `each` gets the samples of a batch and their answers, with up to `top`
    /// labels each, and returns whether to continue. Returns the unreadable pictures; setting `stop` ends it early.
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
                    answers.push(answers_of(&self.task.heads, outputs, top));
                }
                Ok::<bool, Unfinished>(each(read, answers))
            },
        )?;
        read.ok_or(Unfinished::Stopped)
    }
}

impl SavedModel for SavedClassifier {
    fn path(&self) -> &Path {
        let folder = self.task.weights.folder();
        folder.expect("opened from a folder").path()
    }

    fn describe_pictures(&self) -> String {
        self.processor.describe()
    }

    fn rows(&self, _data: &DataConfig) -> RowFormat {
        self.processor.framing.into()
    }

    fn read(
        &self,
        config: &RunConfig,
        site: Site<'_>,
        evaluated: Evaluated,
    ) -> Result<EvaluationData, TrainError> {
        let data = site.listed(|| {
            let (data, seed) = (&config.data, config.seed);
            let trained = TrainedTargets {
                targets: &self.targets,
                side: evaluated.side(),
            };
            samples::read_with_targets(data, Captions::None, trained, seed)
        })?;
        let mut notes = data.notes;
        let (train, validation) = (data.train, data.validation);
        let samples = evaluated.choose(&data.csv, train, validation, data.test, &mut notes)?;
        Ok(EvaluationData {
            task: Arc::new(self.task.clone()),
            samples: Arc::new(samples),
            csv: data.csv,
            notes,
            rows: self.rows(&config.data),
        })
    }

    fn visit_trained_files(
        &self,
        run: &RunConfig,
        visit: &mut dyn FnMut(&Path),
    ) -> Result<(), TrainError> {
        let kind = (Media::Pictures, Captions::None);
        Ok(samples::visit_trained_files(
            &run.data, kind, run.seed, visit,
        )?)
    }

    fn describe_data(&self, config: &mut RunConfig) -> Result<(), TrainError> {
        crate::tasks::take_label_column(config)
    }
}
