//! Segmentation: a U-Net that predicts the class of every pixel.
//!
//! ```text
//! one class         sigmoid; binary cross-entropy + Dice
//! several classes   softmax; cross-entropy + Dice of all but the first, which is the background
//! ```
//!
//! Pixel losses are separable. Dice and Tversky over the batch are coupled through sums, so they are losses of the whole effective
//! batch however it is split: see `loss_terms`.

mod batch;
mod evaluate;
mod examples;
mod export;
mod loss_terms;
pub(crate) mod onnx;
mod picture_losses;
pub mod png_file;
mod predict;
mod prepare;
mod saved_model;
mod step;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use holdall_data::loader::Loaded;
use holdall_data::samples::Samples;
use holdall_data::segmentation::{PairFraming, PixelDepth, RowShape};
use holdall_device::HostRow;
use holdall_graph::Graph;
use holdall_graph::ops::normalize_pixels;
use holdall_models::folder::ModelFolder;
use holdall_models::model_config::ModelConfig;
use holdall_models::unet::config::UnetConfig;
use holdall_models::unet::{init, layout};

pub use batch::batch_of;
pub use examples::overlay_png;
pub use loss_terms::{LossTerm, TermKind};
pub use prepare::{prepare, setup};
pub use saved_model::{PredictedPicture, SavedSegmenter};
pub use step::{LOGITS, PROGRAM, PROGRAM_ROWS};

use crate::config::Subset;
use crate::engine::batch::Batch;
use crate::engine::scores::{Direction, Scores};
use crate::engine::step::Step;
use crate::engine::step_graph::StepWriter;
use crate::engine::task::{Evaluated, Evaluation, FillWeights, Loss, Task, Unfinished};
use crate::error::TrainError;
use crate::planning::setup::Weights;

/// Alternative image sizes in the memory plan.
const OTHER_SIZES: [usize; 5] = [512, 768, 1024, 1536, 2048];

/// Scope of Dice over the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coupling {
    EffectiveBatch,
    /// One micro-batch, which must be the whole batch: one pass of plain autodiff.
    WithinMicroBatch,
}

/// A segmentation model with its losses and sizes.
#[derive(Clone)]
pub struct SegmentTask {
    /// Sizes, classes and normalisation of pictures.
    pub model: UnetConfig,
    /// Shape of a sample in the batch.
    pub row: RowShape,
    /// Losses of each head.
    pub terms: Vec<LossTerm>,
    /// Weight of a pixel of each class in pixel losses, one per mask value.
    pub class_weights: Vec<f32>,
    /// Scope of Dice over the batch.
    pub coupling: Coupling,
    /// Framing of samples as rows, and the coding of masks; `None` without data.
    pub framing: Option<Arc<PairFraming>>,
    /// Height and width of the largest picture that is evaluated.
    pub largest: [usize; 2],
    /// Side of the tiles for the evaluation of larger pictures; `None` evaluates them whole.
    pub tile: Option<usize>,
    /// Row sizes with a forward program (height and width), including the size of [`SegmentTask::row`].
    pub sizes: Vec<[usize; 2]>,
    /// Whether evaluations write overlays for the report.
    pub shows_examples: bool,
    /// Whether predictions are averaged over mirrored pictures.
    pub mirror: bool,
    /// Whether the best threshold of validation pictures is saved with the model.
    pub tunes_threshold: bool,
    /// The best threshold of the last evaluation of validation pictures.
    tuned_threshold: Arc<Mutex<Option<f64>>>,
    weights: Arc<Weights>,
    /// Whether the heads start from random weights because the folder's have other classes.
    is_new_head: bool,
}

impl SegmentTask {
    /// A task with random weights, cross-entropy and Dice over the batch. `sides` are height and width.
    pub fn new(model: UnetConfig, [height, width]: [usize; 2]) -> SegmentTask {
        SegmentTask {
            row: RowShape {
                height,
                width,
                channels: model.input.channels,
                depth: match model.input.depth {
                    normalize_pixels::PixelDepth::Eight => PixelDepth::Eight,
                    normalize_pixels::PixelDepth::Sixteen => PixelDepth::Sixteen,
                },
            },
            terms: LossTerm::usual(model.num_outputs()),
            class_weights: vec![1.0; model.num_mask_values()],
            coupling: Coupling::EffectiveBatch,
            framing: None,
            largest: [height, width],
            tile: None,
            sizes: vec![[height, width]],
            shows_examples: false,
            mirror: false,
            tunes_threshold: true,
            tuned_threshold: Arc::default(),
            weights: Arc::default(),
            is_new_head: false,
            model,
        }
    }

    /// A task with the weights of a checked folder; `None` if its model is not a U-Net.
    pub fn of_folder(folder: ModelFolder, sides: [usize; 2]) -> Option<SegmentTask> {
        let ModelConfig::Unet(model) = folder.config() else {
            return None;
        };
        let random = SegmentTask::new(model.clone(), sides);
        Some(SegmentTask {
            weights: Arc::new(Weights::Folder(Box::new(folder))),
            ..random
        })
    }

    /// Stores the best threshold of the validation pictures.
    fn tune_threshold(&self, threshold: f64) {
        let tuned = self.tuned_threshold.lock();
        *tuned.unwrap_or_else(PoisonError::into_inner) = Some(threshold);
    }

    /// The threshold that is saved with the model: the best of the last evaluation, or the model's own.
    fn saved_threshold(&self) -> f64 {
        let tuned = self.tuned_threshold.lock();
        let tuned = *tuned.unwrap_or_else(PoisonError::into_inner);
        tuned.unwrap_or(self.model.threshold)
    }

    /// Reads a parameter from a folder; converts convolutions from PyTorch's layout to channels-last.
    fn read_weight(
        &self,
        shapes: &[(String, Vec<usize>)],
        folder: &ModelFolder,
        name: &str,
        values: &mut [f32],
    ) -> Result<(), TrainError> {
        folder.read_f32(name, values)?;
        let shape = shapes.iter().find(|(known, _)| known == name);
        if let Some((_, shape)) = shape.filter(|(_, shape)| shape.len() == 4) {
            layout::to_channels_last(shape, values);
        }
        Ok(())
    }
}

impl Task for SegmentTask {
    fn name(&self) -> &'static str {
        "segment"
    }

    fn losses(&self) -> Vec<Loss> {
        self.all_losses()
    }

    fn write_forward(&self, step: &mut StepWriter<'_>) {
        step::write_forward(self, step);
    }

    fn write_coupled_losses(&self, step: &mut StepWriter<'_>) {
        step::write_coupled_losses(self, step);
    }

    fn write_programs(&self, graph: &mut Graph, batch: usize) {
        step::write_programs(self, graph, batch);
    }

    fn parameter_names(&self) -> Vec<String> {
        let tensors = self.model.tensors().into_iter();
        tensors.map(|(name, _)| name).collect()
    }

    fn timing_key(&self) -> String {
        let UnetConfig {
            kind,
            input,
            channels,
            encoder_blocks,
            decoder_blocks,
            norm,
            activation,
            up,
            down,
            ..
        } = &self.model;
        let terms: Vec<_> = self.terms.iter().map(|term| &term.kind).collect();
        format!(
            "segment {kind:?} {:?} {channels:?} {encoder_blocks:?} {decoder_blocks} {norm:?} {activation:?} {up:?} {down:?} \
             {} {} {:?} {terms:?} {:?}",
            (input.channels, input.depth),
            self.model.num_heads(),
            self.model.num_outputs(),
            (self.row.height, self.row.width),
            self.coupling
        )
    }

    fn weights(&self, seed: u64) -> Result<FillWeights<'_>, TrainError> {
        let Some(folder) = self.weights.folder() else {
            return Ok(Box::new(move |name, values| {
                Ok(init::fill(&self.model, seed, name, values)?)
            }));
        };
        let shapes = self.model.tensors();
        Ok(Box::new(move |name, values| {
            if self.is_new_head && name.starts_with("head.") {
                Ok(init::fill(&self.model, seed, name, values)?)
            } else {
                self.read_weight(&shapes, folder, name, values)
            }
        }))
    }

    fn has_random_weights(&self) -> bool {
        self.weights.are_random()
    }

    fn describe_weights(&self) -> String {
        self.weights.describe()
    }

    fn variants_by_image_size(&self) -> Vec<(String, Arc<dyn Task>)> {
        let own = [self.row.height, self.row.width];
        let others = OTHER_SIZES.iter().filter(|&&side| own != [side; 2]);
        let sized = |&side: &usize| {
            let mut task = self.clone();
            (task.row.height, task.row.width) = (side, side);
            task.sizes = vec![[side; 2]];
            let task: Arc<dyn Task> = Arc::new(task);
            (format!("{side} x {side}"), task)
        };
        // The lowest stage must divide the size.
        others
            .filter(|&&side| side.is_multiple_of(1 << (self.model.num_stages() - 1)))
            .map(sized)
            .collect()
    }

    /// One pass over the whole batch: Dice is a separable loss of that pass, without exchanged features.
    fn as_reference(&self) -> Arc<dyn Task> {
        Arc::new(SegmentTask {
            coupling: Coupling::WithinMicroBatch,
            ..self.clone()
        })
    }

    fn picture_bytes(&self) -> usize {
        self.row.row_bytes()
    }

    fn batch_bytes(&self, num_samples: usize) -> u64 {
        num_samples as u64 * self.picture_bytes() as u64
    }

    fn fill_batch(&self, batch: &mut Batch, loaded: &Loaded<HostRow>, _epoch: u64) {
        batch::fill(self, batch, loaded);
    }

    fn random_batch(&self, num_samples: usize, seed: u64) -> Batch {
        batch::random(self, num_samples, seed)
    }

    fn count_losses(&self, batch: &Batch, counts: &mut [f64]) {
        batch::count_losses(self, batch, counts);
    }

    fn add_to_digest(&self, samples: &Samples, add: &mut dyn FnMut(&[u8])) {
        for sample in 0..samples.len() {
            add(samples.image(sample).as_bytes());
        }
    }

    fn reads_its_own_pictures(&self) -> bool {
        true
    }

    fn max_forward_batch(&self) -> usize {
        predict::max_forward_batch(self)
    }

    fn evaluation_bytes(&self, _subset: Subset, samples: &Samples, threads: usize) -> u64 {
        evaluate::host_bytes(self, samples, threads)
    }

    fn evaluate(&self, evaluation: Evaluation<'_>) -> Result<Evaluated, Unfinished> {
        evaluate::evaluate(self, evaluation)
    }

    fn metric(&self, scores: &Scores, name: &str) -> Option<f64> {
        scores.number(name)
    }

    fn best_metric(&self, asked: Option<&str>) -> Result<(String, Direction), TrainError> {
        evaluate::best_metric(self, asked)
    }

    fn describe_size(&self, scores: &Scores) -> Option<String> {
        evaluate::describe_size(scores)
    }

    fn describe_scores(&self, scores: &Scores) -> String {
        evaluate::describe_scores(scores)
    }

    fn save(&self, step: &Step, folder: &Path) -> Result<(), TrainError> {
        export::save(self, step, folder)
    }
}
