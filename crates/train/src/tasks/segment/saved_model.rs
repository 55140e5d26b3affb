//! A trained U-Net, opened for prediction, evaluation and export.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::config::PairAugment;
use holdall_data::decode::PictureCost;
use holdall_data::loader::{RowFormat, Skipped};
use holdall_data::samples::Samples;
use holdall_data::segmentation::{Fit, MaskCoding, PairFraming, SegmentationSet, picture_sizes};
use holdall_data::{DataConfig, Side};
use holdall_device::Device;
use holdall_files::counted;
use holdall_metrics::segmentation::{ImageScores, predict_classes};
use holdall_models::model_config::ModelConfig;
use holdall_onnx::Precision;
use holdall_plan::PlanError;

use super::super::opened_model::open_folder;
use super::predict::{self, Pictures, Segmented};
use super::{SegmentTask, evaluate, onnx};
use crate::config::RunConfig;
use crate::config::shell_words::quoted;
use crate::engine::forward::{Forward, ForwardModel};
use crate::engine::task::Unfinished;
use crate::error::TrainError;
use crate::export::onnx::OnnxFile;
use crate::export::saved_model::{Evaluated, EvaluationData, SavedModel, not_trained, resolve};
use crate::planning::setup::Weights;
use crate::planning::site::Site;

/// Sides of tiles to suggest when pictures do not fit, largest first.
const TILES: [usize; 7] = [2048, 1536, 1024, 768, 512, 256, 128];

pub struct SavedSegmenter {
    task: SegmentTask,
}

/// A picture and its prediction.
pub struct PredictedPicture<'a> {
    pub sample: u32,
    /// The picture, and its mask if it has one.
    pub picture: &'a holdall_data::decode::WholePicture,
    /// `[height, width, outputs]`, at the picture's own size.
    pub probabilities_hwk: &'a [f32],
    /// Class of each pixel.
    pub classes: &'a [u8],
    /// Scores, if the picture has a mask.
    pub scores: Option<ImageScores>,
}

impl SavedSegmenter {
    /// Opens a model folder, the folder of a run, or a name in the local Hugging Face cache.
    pub fn open(name: &str) -> Result<SavedSegmenter, TrainError> {
        let path = resolve(name)?;
        if !path.exists() {
            return Err(not_trained(name));
        }
        let folder = open_folder(&path)?;
        let ModelConfig::Unet(model) = folder.config() else {
            return Err(TrainError::Config(format!(
                "{name}: expected a U-Net, found {}\nhint: holdall train DATA --task segment trains one",
                folder.config().describe()
            )));
        };
        let model = model.clone();
        let (multiple, patch) = (model.size_multiple(), model.patch);
        let mut task = SegmentTask::new(model, [multiple; 2]);
        task.tile = patch;
        task.weights = Arc::new(Weights::Folder(Box::new(folder)));
        Ok(SavedSegmenter { task })
    }

    /// Sets the side of tiles, and mirrored prediction.
    pub fn set_tiles(&mut self, tiles: Option<usize>, mirror: bool) -> Result<(), TrainError> {
        let multiple = self.task.model.size_multiple();
        if let Some(side) = tiles
            && (side == 0 || !side.is_multiple_of(multiple))
        {
            let near = side.next_multiple_of(multiple).max(multiple);
            return Err(TrainError::Config(format!(
                "--tiles {side}: expected a multiple of {multiple}: {} stages halve it\nhint: --tiles {near}",
                self.task.model.num_stages()
            )));
        }
        self.task.tile = tiles.or(self.task.model.patch);
        self.task.mirror = mirror;
        Ok(())
    }

    /// Warns that tiles are smaller than the pictures that the model was trained on.
    fn note_on_tiles(&self) -> Option<String> {
        let model = &self.task.model;
        let side = self.task.tile?;
        let trained = match (model.patch, model.image_size) {
            (Some(patch), _) => (side < patch).then(|| format!("parts of {patch} x {patch}"))?,
            (None, Some([height, width])) if side < height.min(width) => {
                format!("whole pictures of {width} x {height} (width x height)")
            }
            (None, Some(_)) => return None,
            (None, None) => "whole pictures, where these are larger".to_owned(),
        };
        Some(format!(
            "Careful: tiles of {side} x {side} show less than what the model was trained on, {trained}: scores may drop; \
             leave `--tiles` out, or train with `--set data.patch={side}`"
        ))
    }

    pub(in crate::tasks) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        Ok(onnx::programs(&self.task, precision)?)
    }

    /// The task, with rows of the smallest size.
    pub(in crate::tasks) fn task(&self) -> &SegmentTask {
        &self.task
    }

    pub fn model(&self) -> &holdall_models::unet::config::UnetConfig {
        &self.task.model
    }

    /// The task for pictures of these heights and widths, with masks in this coding.
    pub fn task_for(&self, pictures: &[[usize; 2]], coding: MaskCoding) -> SegmentTask {
        let mut task = self.task.clone();
        for picture in pictures {
            task.largest = [0, 1].map(|side| task.largest[side].max(picture[side]));
        }
        task.set_sizes(pictures.iter().map(|&size| task.row_size(size)).collect());
        task.framing = Some(Arc::new(PairFraming {
            shape: task.row_shape(),
            fit: Fit::Pad,
            coding: Arc::new(coding),
            augment: PairAugment::NONE,
        }));
        task
    }

    /// Predicts pictures of the sizes of [`SavedSegmenter::task_for`]. `work` processes the predictions in parallel; `each` gets
    /// what `work` returned, in order, and returns whether to continue. Returns the unreadable pictures.
    pub fn predict<R: Send>(
        task: &SegmentTask,
        (device, forward): (&Device, &mut Forward<'_>),
        (samples, chosen): (&Samples, &[u32]),
        has_masks: bool,
        stop: &AtomicBool,
        work: impl Fn(PredictedPicture<'_>) -> Result<R, TrainError> + Sync,
        mut each: impl FnMut(u32, R) -> bool,
    ) -> Result<Vec<Skipped>, Unfinished> {
        let coding = task.framing.as_deref().map(|framing| &*framing.coding);
        let pictures = Pictures {
            samples,
            coding: coding.filter(|_| has_masks),
            chosen,
            stop,
        };
        let (outputs, threshold) = (task.model.num_outputs(), task.model.threshold as f32);
        let work = |sample: u32, segmented: Segmented<'_>| -> Result<R, Unfinished> {
            let (picture, probabilities_hwk) = (segmented.picture, segmented.probabilities_hwk);
            let classes: Vec<u8> = predict_classes(probabilities_hwk, outputs, threshold).collect();
            let scores = evaluate::score(segmented);
            Ok(work(PredictedPicture {
                sample,
                picture,
                probabilities_hwk,
                classes: &classes,
                scores,
            })?)
        };
        predict::predict(task, device, forward, &pictures, work, |sample, _, made| {
            each(sample, made)
        })
    }

    /// Host memory for these pictures, in bytes, from the cost of reading each with its mask; the files of the largest take
    /// `file_bytes`.
    pub fn host_bytes(
        task: &SegmentTask,
        pictures: &[PictureCost],
        threads: usize,
        has_masks: bool,
        file_bytes: u64,
    ) -> u64 {
        predict::host_bytes(task, pictures, threads, has_masks, file_bytes)
    }
}

impl SavedModel for SavedSegmenter {
    fn path(&self) -> &Path {
        let folder = self.task.weights.folder();
        folder.expect("opened from a folder").path()
    }

    fn describe_pictures(&self) -> String {
        let model = &self.task.model;
        let size = match model.image_size {
            Some([height, width]) => format!("resized to {width} x {height} (width x height)"),
            None => "at their own size".to_owned(),
        };
        let tiles = match self.task.tile {
            Some(side) => format!(", in overlapping tiles of {side} x {side}"),
            None => String::new(),
        };
        let mirrored = if self.task.mirror {
            ", mean of four mirrorings"
        } else {
            ""
        };
        let threshold = match model.num_outputs() {
            1 => format!("; threshold {:.2}", model.threshold),
            _ => String::new(),
        };
        let pictures = format!("Pictures: {size}{tiles}{mirrored}{threshold}");
        [Some(pictures), self.note_on_tiles()]
            .into_iter()
            .flatten()
            .collect::<Vec<String>>()
            .join("\n")
    }

    fn rows(&self, _data: &DataConfig) -> RowFormat {
        let task = self.task_for(&[self.task.largest], MaskCoding::pair(255));
        let framing = task.framing.expect("made there");
        RowFormat::Pair(framing)
    }

    fn read(
        &self,
        config: &RunConfig,
        site: Site<'_>,
        evaluated: Evaluated,
    ) -> Result<EvaluationData, TrainError> {
        let set = site.listed(|| SegmentationSet::open(&config.data, config.seed))?;
        set.check_has_masks()?;
        if let (Evaluated::Side(Side::Test), None, Some(unlabelled)) =
            (evaluated, &set.test, &set.unlabelled)
        {
            return Err(TrainError::Config(format!(
                "{}: expected masks for --part test, found {} alone: the labels of this split are withheld\n\
                 hint: `holdall predict RUN {} --out masks` predicts them",
                set.place.display(),
                counted(unlabelled.len(), "picture"),
                quoted(&set.place)
            )));
        }
        let mut notes = set.notes;
        let samples =
            evaluated.choose(&set.place, set.train, set.validation, set.test, &mut notes)?;
        let classes = set.coding.num_outputs();
        let outputs = self.task.model.num_outputs();
        if classes != outputs {
            return Err(TrainError::Config(format!(
                "{}: masks of {} classes, expected the {} of the model: {}\nhint: `--set data.classes=[...]` or \
                 `--set data.binarize=128` say what masks hold",
                set.place.display(),
                set.coding.classes().len(),
                self.task.model.num_mask_values(),
                self.task.model.classes.join(", ")
            )));
        }
        let task = self.task_for(&picture_sizes(&samples), set.coding);
        let framing = task.framing.clone().expect("made there");
        Ok(EvaluationData {
            task: Arc::new(task),
            samples: Arc::new(samples),
            csv: set.place,
            notes,
            rows: RowFormat::Pair(framing),
        })
    }

    /// Suggests the largest tiles that fit.
    fn refusal(
        &self,
        device: &Device,
        rows: &RowFormat,
        host_bytes: u64,
        error: TrainError,
    ) -> TrainError {
        let (
            RowFormat::Pair(framing),
            TrainError::Plan(PlanError::DoesNotFit {
                budget_bytes,
                smallest_bytes,
                ..
            }),
        ) = (rows, &error)
        else {
            return error;
        };
        let [height, width] = [framing.shape.height, framing.shape.width];
        let multiple = self.task.model.size_multiple();
        let smaller = TILES.into_iter().filter(|side| {
            side.is_multiple_of(multiple)
                && *side < height.max(width)
                && self.task.tile != Some(*side)
        });
        let fits = |side: &usize| {
            let mut tiled = self.task.clone();
            tiled.set_sizes([[*side; 2]].into());
            ForwardModel::new(device, &tiled, Some(1), Some(*budget_bytes), host_bytes).is_ok()
        };
        let tiles = match smaller.into_iter().find(fits) {
            Some(side) => format!(
                "--tiles {side} fits: overlapping tiles, weighted by a Gaussian; their result is not that of whole pictures"
            ),
            None => "no tiles of 128 pixels or more fit either".to_owned(),
        };
        TrainError::DoesNotFit(format!(
            "{width} x {height} pixels at a time do not fit: the budget is {}, the smallest that would do is {}\n\
             hint: {tiles}\nhint: --memory {}MiB",
            holdall_files::show_bytes(*budget_bytes),
            holdall_files::show_bytes(*smallest_bytes),
            smallest_bytes.div_ceil(1 << 20)
        ))
    }

    fn visit_trained_files(
        &self,
        run: &RunConfig,
        visit: &mut dyn FnMut(&Path),
    ) -> Result<(), TrainError> {
        let set = SegmentationSet::open(&run.data, run.seed)?;
        for sample in 0..set.train.len() {
            visit(&set.train.image_path(sample));
        }
        Ok(())
    }

    fn describe_data(&self, _config: &mut RunConfig) -> Result<(), TrainError> {
        Ok(())
    }
}
