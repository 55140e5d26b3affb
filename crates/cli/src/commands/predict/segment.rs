//! Predicted masks of a segmentation model, at the size of the pictures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::decode::PictureCost;
use holdall_data::media::is_segmentation_picture;
use holdall_data::samples::Samples;
use holdall_data::segmentation::{
    MaskCoding, SegmentationSet, is_set, picture_sizes, without_masks,
};
use holdall_data::table::{Table, is_list, mask_by_name};
use holdall_data::{DataConfig, loader};
use holdall_device::Device;
use holdall_train::TrainError;
use holdall_train::engine::task::Unfinished;
use holdall_train::export::saved_inputs::SavedInputs;
use holdall_train::export::saved_model::{self, Pictures, ReadyModel, SavedModel};
use holdall_train::run_folder::skipped::reason;
use holdall_train::tasks::segment::SavedSegmenter;
use serde::Serialize;

use super::inputs::{self, files_under};
use super::mask_files::{MaskFileNames, PredictedMask, Writer};
use super::{PredictArguments, Skipped};
use crate::failure;
use crate::options::{SEGMENTATION, resolved};
use crate::screen::{print, print_json, progress, tell};
use crate::stop;

/// Files of a segmentation.
#[derive(Args, Clone)]
pub struct SegmentOptions {
    /// Folder for masks, probabilities, overlays and scores
    #[arg(long, value_name = "DIR", help_heading = SEGMENTATION)]
    pub out: Option<PathBuf>,
    /// Also writes probabilities: png (16 bits) or npy (f32)
    #[arg(long, value_name = "FORMAT", requires = "out", help_heading = SEGMENTATION)]
    pub probabilities: Option<ProbabilityFormat>,
    /// Also writes the pictures with what was predicted
    #[arg(long, requires = "out", help_heading = SEGMENTATION)]
    pub overlays: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbabilityFormat {
    Png,
    Npy,
}

#[derive(Serialize)]
struct SegmentJson<'a> {
    model: &'a Path,
    device: &'static str,
    out: &'a Path,
    predictions: &'a [PredictedMask],
    skipped: &'a [Skipped],
    planned_bytes: u64,
    process_bytes: Option<u64>,
}

/// Pictures, with the coding of their true masks if they have any.
struct PicturesToSegment {
    lists: Vec<Arc<Samples>>,
    coding: Option<MaskCoding>,
}

pub(super) fn run(
    arguments: &PredictArguments,
    device: &Device,
    budget_bytes: Option<u64>,
    (saved, data): (&SavedSegmenter, &DataConfig),
) -> Result<ExitCode> {
    let Some(out) = &arguments.segment.out else {
        return Err(TrainError::Config(format!(
            "{}: a segmentation model; expected --out DIR for its masks\n\
             hint: holdall predict MODEL IMAGES --out masks",
            arguments.model
        ))
        .into());
    };
    let found = find(arguments, saved, data)?;
    let names = MaskFileNames::of(&found.lists);
    let writer = Writer {
        out,
        options: &arguments.segment,
        saved,
        names: &names,
    };
    // Files are written in parallel: a stop request lets the current pictures finish.
    let _orderly = stop::orderly("Stopping after the pictures at hand");
    writer.check_free(arguments.overwrite.existing(), &found.lists)?;
    writer.make_folders()?;
    let total: usize = found.lists.iter().map(|list| list.len()).sum();
    let bar = progress(total as u64, "Predicting");
    let (mut predictions, mut skipped, mut planned_bytes) = (Vec::new(), Vec::new(), 0);
    for (number, samples) in found.lists.iter().enumerate() {
        let job = SegmentationJob {
            arguments,
            device,
            budget_bytes,
            saved,
            samples,
            coding: found.coding.clone(),
        };
        let each = |mask| {
            bar.inc(1);
            predictions.push(mask);
        };
        let Some((planned, left_out)) = job.predict((&writer, number), each)? else {
            return Ok(stop::exit_code());
        };
        planned_bytes = planned_bytes.max(planned);
        skipped.extend(left_out.iter().map(|one| job.left_out(one)));
    }
    bar.finish_and_clear();
    for one in &skipped {
        tell(&format!("skipped {}: {}", one.image, one.reason));
    }
    writer.write_scores(&predictions)?;
    if arguments.output.json {
        print_json(&SegmentJson {
            model: saved.path(),
            device: device.kind(),
            out,
            predictions: &predictions,
            skipped: &skipped,
            planned_bytes,
            process_bytes: device.peak_bytes(),
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

/// Finds the inputs: a folder of images and masks, or a CSV of both, has truth to score against; other inputs are pictures only.
fn find(
    arguments: &PredictArguments,
    saved: &SavedSegmenter,
    data: &DataConfig,
) -> Result<PicturesToSegment> {
    let inputs = SavedInputs::read(saved.path())?;
    let channel_files = inputs.map_or(1, |inputs| inputs.channel_files);
    if let [only] = arguments.images.as_slice() {
        let config = DataConfig {
            train: Some(only.clone()),
            ..data.clone()
        };
        let is_table = is_list(only);
        if (is_table && has_masks(&config, only)?) || is_set(&config).map_err(TrainError::from)? {
            // Invalid masks are an error: a fallback to all files would take masks for pictures.
            let set = SegmentationSet::open(&config, 0).map_err(TrainError::from)?;
            set.notes.iter().for_each(|note| tell(note));
            let lists = [Some(set.train), set.validation, set.test, set.unlabelled];
            let lists = lists.into_iter().flatten().filter(|list| !list.is_empty());
            let is_known = set.coding.num_outputs() == saved.model().num_outputs();
            if !is_known {
                tell("Scores: none, masks and model have different classes");
            }
            return Ok(PicturesToSegment {
                lists: lists.map(Arc::new).collect(),
                coding: is_known.then_some(set.coding),
            });
        }
        if is_table {
            let listed = inputs::pictures(&arguments.images, data)?.samples;
            let names: Vec<String> = (0..listed.len())
                .map(|sample| listed.image(sample).to_owned())
                .collect();
            return alone(listed.root().to_owned(), &names, channel_files);
        }
    }
    check_out(arguments)?;
    let paths = files_under(&arguments.images, is_segmentation_picture)?;
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    alone(PathBuf::new(), &names, channel_files)
}

/// Refuses an output folder inside a folder of input pictures: the next run would take the masks for pictures.
fn check_out(arguments: &PredictArguments) -> Result<(), TrainError> {
    let Some(out) = &arguments.segment.out else {
        return Ok(());
    };
    let folders = arguments.images.iter().filter(|path| path.is_dir());
    let mut around = folders.filter(|folder| resolved(out).starts_with(resolved(folder)));
    match around.next() {
        Some(folder) => Err(TrainError::Config(format!(
            "--out {}: expected a folder outside of {}, found one in it: its masks would be pictures of the next prediction\n\
             hint: name a folder beside it",
            out.display(),
            folder.display()
        ))),
        None => Ok(()),
    }
}

fn alone(root: PathBuf, names: &[String], channel_files: usize) -> Result<PicturesToSegment> {
    let samples = without_masks(root, names, channel_files).map_err(TrainError::from)?;
    Ok(PicturesToSegment {
        lists: vec![Arc::new(samples)],
        coding: None,
    })
}

/// Whether a table has a mask column, by the config's name or a usual one.
fn has_masks(config: &DataConfig, table: &Path) -> Result<bool, TrainError> {
    let table = Table::open_separated(table, config.separator)?;
    let named = config.mask.as_ref();
    let has_named = named.is_some_and(|name| table.columns().contains(name));
    Ok(has_named || (named.is_none() && mask_by_name(&table).is_some()))
}

/// The pictures of one list.
struct SegmentationJob<'a> {
    arguments: &'a PredictArguments,
    device: &'a Device,
    budget_bytes: Option<u64>,
    saved: &'a SavedSegmenter,
    samples: &'a Arc<Samples>,
    coding: Option<MaskCoding>,
}

const HAS_FRAMING: &str = "a saved model's task has a framing";

impl SegmentationJob<'_> {
    /// Plans for all picture sizes and predicts. Returns planned bytes and unreadable pictures; `None` if it was stopped.
    fn predict(
        &self,
        (writer, list): (&Writer<'_>, usize),
        mut each: impl FnMut(PredictedMask),
    ) -> Result<Option<(u64, Vec<loader::Skipped>)>> {
        let coding = self.coding.clone().unwrap_or_else(|| MaskCoding::pair(255));
        let task = self.saved.task_for(&picture_sizes(self.samples), coding);
        let framing = task.framing.clone().expect(HAS_FRAMING);
        let threads = self.device.cpu().num_threads();
        let all: Vec<u32> = (0..self.samples.len() as u32).collect();
        // Unreadable pictures are reported when they are read.
        let costs = all
            .iter()
            .filter_map(|&sample| framing.whole_cost(self.samples, sample as usize).ok());
        let costs: Vec<PictureCost> = costs.collect();
        let files = writer.bytes(&task, task.largest);
        let has_masks = self.coding.is_some();
        let host_bytes = SavedSegmenter::host_bytes(&task, &costs, threads, has_masks, files);
        let wanted = Pictures {
            samples: self.samples,
            rows: loader::RowFormat::Pair(framing),
            policy: &DataConfig::default(),
            batch: self.arguments.inference.batch_size,
            budget_bytes: self.budget_bytes,
            host_bytes,
        };
        let stop = &stop::requests().stop;
        let opened = saved_model::open(self.device, &task, &wanted, stop);
        let opened = opened.map_err(|error| {
            self.saved
                .refusal(self.device, &wanted.rows, host_bytes, error)
        })?;
        let Some(ReadyModel {
            mut model, note, ..
        }) = opened
        else {
            return Ok(None);
        };
        note.iter().for_each(|note| tell(note));
        let planned_bytes = model.plan().process_bytes;
        let mut forward = model.forward(self.device);
        let skipped = SavedSegmenter::predict(
            &task,
            (self.device, &mut forward),
            (self.samples, &all),
            has_masks,
            stop,
            |predicted| writer.write(self.samples, list, predicted),
            |_, mask| {
                each(mask);
                true
            },
        );
        match skipped {
            Err(Unfinished::Stopped) => Ok(None),
            skipped => Ok(Some((
                planned_bytes,
                skipped.map_err(Unfinished::into_error)?,
            ))),
        }
    }

    fn left_out(&self, skipped: &loader::Skipped) -> Skipped {
        let sample = skipped.sample as usize;
        Skipped {
            row: self.samples.row(sample),
            reason: reason(&self.samples.image_path(sample), &skipped.error),
            image: self.samples.image(sample).to_owned(),
        }
    }
}

fn show(predictions: &[PredictedMask]) -> String {
    let line = |one: &PredictedMask| {
        let dice = one.scores.and_then(|scores| scores.dice);
        let dice = dice.map_or(String::new(), |dice| {
            format!(" (Dice {:.1}%)", 100.0 * dice)
        });
        format!("{}: {}{dice}\n", one.image, one.mask.display())
    };
    predictions.iter().map(line).collect()
}
