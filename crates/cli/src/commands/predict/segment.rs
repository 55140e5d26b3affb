//! Masks of pictures, by a segmentation model: written at the pictures' own size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::DataConfig;
use holdall_data::config::Validation;
use holdall_data::folder::is_segmentation_picture;
use holdall_data::loader;
use holdall_data::samples::Samples;
use holdall_data::segmentation::{MaskCoding, SegmentationSet, without_masks};
use holdall_device::Device;
use holdall_train::TrainError;
use holdall_train::saved_model::{self, Opened, Pictures, SavedModel};
use holdall_train::skipped::reason;
use holdall_train::task::Unfinished;
use holdall_train::tasks::segment::{SavedSegmenter, SegmentTask};
use serde::Serialize;

use super::inputs::files_under;
use super::mask_files::{Names, PredictedMask, Writer};
use super::{PredictArguments, Skipped};
use crate::arguments::SEGMENTATION;
use crate::failure;
use crate::screen::{print, print_json, progress, tell};
use crate::stop;

/// What is written of a segmentation.
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

/// Pictures, with what their masks hold where they have any.
struct Found {
    lists: Vec<Arc<Samples>>,
    coding: Option<MaskCoding>,
}

pub(super) fn run(
    arguments: &PredictArguments,
    device: &Device,
    budget_bytes: Option<u64>,
    saved: &SavedSegmenter,
) -> Result<ExitCode> {
    let Some(out) = &arguments.segment.out else {
        let hint = "holdall predict MODEL IMAGES --out masks";
        return Err(refused(arguments, "expected --out DIR for its masks", hint));
    };
    if !arguments.labels.is_empty() || arguments.features.is_some() || arguments.csv.is_some() {
        let found = "--labels, --features and --csv are for models of captions and labels";
        return Err(refused(
            arguments,
            found,
            "--out DIR writes masks and scores",
        ));
    }
    let found = find(arguments, saved)?;
    let names = Names::of(&found.lists);
    let writer = Writer {
        out,
        options: &arguments.segment,
        saved,
        names: &names,
    };
    // Files are written side by side: whoever is asked to stop finishes those at hand.
    let _orderly = stop::orderly("Stopping after the pictures at hand");
    writer.make_folders()?;
    let total: usize = found.lists.iter().map(|list| list.len()).sum();
    let bar = progress(total as u64, "Predicting");
    let (mut predictions, mut skipped, mut planned_bytes) = (Vec::new(), Vec::new(), 0);
    for (number, samples) in found.lists.iter().enumerate() {
        let job = Job {
            arguments,
            device,
            budget_bytes,
            saved,
            samples,
            coding: found.coding.clone(),
        };
        let mut of_list: Vec<(u32, PredictedMask)> = Vec::new();
        for group in job.groups() {
            let each = |sample, mask| {
                bar.inc(1);
                of_list.push((sample, mask));
            };
            let Some((planned, left_out)) = job.predict(&group, (&writer, number), each)? else {
                return Ok(stop::exit_code());
            };
            planned_bytes = planned_bytes.max(planned);
            skipped.extend(left_out.iter().map(|one| job.left_out(one)));
        }
        of_list.sort_by_key(|(sample, _)| *sample);
        predictions.extend(of_list.into_iter().map(|(_, mask)| mask));
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
    Ok(match skipped.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(failure::FOUND),
    })
}

fn refused(arguments: &PredictArguments, found: &str, hint: &str) -> anyhow::Error {
    let model = &arguments.model;
    TrainError::Config(format!(
        "{model}: a segmentation model; {found}\nhint: {hint}"
    ))
    .into()
}

/// A folder of images and masks, or a CSV of both, has truth to score against; all else is pictures alone.
fn find(arguments: &PredictArguments, saved: &SavedSegmenter) -> Result<Found> {
    if let [only] = arguments.images.as_slice() {
        let is_table = only.is_file() && only.extension().is_some_and(|end| end == "csv");
        let config = DataConfig {
            train: Some(only.clone()),
            validation: Validation::None,
            ..DataConfig::default()
        };
        let opened = match is_table || only.is_dir() {
            true => Some(SegmentationSet::open(&config, 0)),
            false => None,
        };
        match opened {
            Some(Ok(set)) => {
                set.notes.iter().for_each(|note| tell(note));
                let lists = [Some(set.train), set.validation, set.test];
                let lists = lists.into_iter().flatten().filter(|list| !list.is_empty());
                let is_known = set.coding.num_outputs() == saved.model().num_outputs();
                if !is_known {
                    tell("Scores: none, masks and model have different classes");
                }
                return Ok(Found {
                    lists: lists.map(Arc::new).collect(),
                    coding: is_known.then_some(set.coding),
                });
            }
            Some(Err(error)) if is_table => return Err(TrainError::from(error).into()),
            _ => {}
        }
    }
    let paths = files_under(&arguments.images, is_segmentation_picture)?;
    Ok(Found {
        lists: vec![Arc::new(without_masks(&paths))],
        coding: None,
    })
}

/// Pictures of one list.
struct Job<'a> {
    arguments: &'a PredictArguments,
    device: &'a Device,
    budget_bytes: Option<u64>,
    saved: &'a SavedSegmenter,
    samples: &'a Arc<Samples>,
    coding: Option<MaskCoding>,
}

/// Pictures whose rows are of one size.
#[derive(Default)]
struct Group {
    /// Largest height and largest width.
    largest: [usize; 2],
    /// What reading one takes, at most.
    read_bytes: u64,
    samples: Vec<u32>,
}

const HAS_FRAMING: &str = "a saved model's task has a framing";

impl Job<'_> {
    /// Pictures by the size of their rows. What a picture becomes must not depend on its neighbours: a model that
    /// takes pictures at their own size is planned for each size.
    fn groups(&self) -> Vec<Group> {
        let task = self.task([1, 1]);
        let framing = task.framing.as_deref().expect(HAS_FRAMING);
        let mut groups: BTreeMap<[usize; 2], Group> = BTreeMap::new();
        for sample in 0..self.samples.len() {
            // What cannot be read is named when it is read.
            let cost = framing.cost(self.samples, sample).ok();
            let size = cost.map_or([1, 1], |cost| [cost.height as usize, cost.width as usize]);
            let group = groups.entry(self.saved.row_size(size)).or_default();
            group.largest = [0, 1].map(|side| group.largest[side].max(size[side]));
            group.read_bytes = group.read_bytes.max(cost.map_or(0, |cost| cost.bytes));
            group.samples.push(sample as u32);
        }
        groups.into_values().collect()
    }

    fn task(&self, largest: [usize; 2]) -> SegmentTask {
        let coding = self.coding.clone().unwrap_or_else(|| MaskCoding::pair(255));
        self.saved.task_for(largest, coding)
    }

    /// Plans for a size and predicts. Returns the plan's bytes and what could not be read; `None` where it is to stop.
    fn predict(
        &self,
        group: &Group,
        (writer, list): (&Writer<'_>, usize),
        mut each: impl FnMut(u32, PredictedMask),
    ) -> Result<Option<(u64, Vec<loader::Skipped>)>> {
        let task = self.task(group.largest);
        let framing = task.framing.clone().expect(HAS_FRAMING);
        let threads = self.device.cpu().num_threads();
        let num_pictures = group.samples.len();
        let files = threads.min(num_pictures) as u64 * Writer::bytes(&task, group.largest);
        let reading = SavedSegmenter::host_bytes(&task, num_pictures, group.read_bytes, threads);
        let host_bytes = reading + files;
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
        let Some(Opened {
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
            (self.samples, &group.samples),
            self.coding.is_some(),
            stop,
            |predicted| writer.write(self.samples, list, predicted),
            |sample, mask| {
                each(sample, mask);
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
        let path = self.samples.image_path(skipped.sample as usize);
        Skipped {
            reason: reason(&path, &skipped.error),
            image: path.display().to_string(),
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
