//! Files that a run writes to its folder while it trains. With several processes, only the first has records; the others run
//! the same loop without them.

use serde::Serialize;

use super::evaluation::{BestFiles, put_back_best_files};
use super::{Trainer, is_over};
use crate::config::Subset;
use crate::engine::operations::{operations_json, tensors_json};
use crate::engine::step::Step;
use crate::error::TrainError;
use crate::export::model_files::save_model;
use crate::export::saved_inputs::SavedInputs;
use crate::planning::planned_run::{PlanReport, PlannedRun};
use crate::run::picture_changes::{compare_pictures, record_pictures};
use crate::run::recorder::Sampler;
use crate::run_folder::checkpoint::{Best, Checkpoints, RunState};
use crate::run_folder::folder::{RunFolder, before_it_began, write_whole};
use crate::run_folder::journal::Journal;
use crate::run_folder::sealed_config::seal;
use crate::run_folder::skipped::SkippedFile;

/// The open files of a run.
pub(super) struct Records {
    pub folder: RunFolder,
    pub journal: Journal,
    pub checkpoints: Checkpoints,
    /// Samples the memory until it is dropped.
    _sampler: Sampler,
}

impl Records {
    /// Writes the files that are known before the first step, and opens the journal behind the prefix that the checkpoint
    /// remembers.
    pub(super) fn begin(
        (folder, checkpoints): (RunFolder, Checkpoints),
        is_resumed: bool,
        planned: &PlannedRun,
        state: &RunState,
        skipped: &SkippedFile,
        too_short: Option<TrainError>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Records, TrainError> {
        let data = &planned.config.data;
        if is_resumed {
            compare_pictures(&folder, &planned.prepared, data, skipped, tell)?;
        }
        if let Some(error) = too_short {
            return Err(error);
        }
        // A run with no steps left keeps the settings that it was trained with.
        if !is_over(planned, state) {
            write_settings(&folder, planned, is_resumed)?;
        }
        let journal = Journal::open(&folder.journal(), &state.journal)?;
        put_back_best_files(&folder, state.best.as_ref())?;
        let epoch = state.step / planned.steps_per_epoch();
        let sampler = planned.recorder.open(folder.path(), state.step, epoch);
        Ok(Records {
            folder,
            journal,
            checkpoints,
            _sampler: sampler,
        })
    }

    fn save_best(
        &self,
        (step, inputs): (&Step, &SavedInputs),
        name: &str,
        files: Option<&BestFiles>,
    ) -> Result<String, TrainError> {
        let path = self.folder.checkpoints().join(name);
        let checksum = save_model(step, inputs, &path)?;
        for (name, json) in files.into_iter().flatten() {
            // Stored beside the model's files, but not listed among them: a resumed run restores the files of its best model.
            write_whole(&path.join(name), json.as_bytes())?;
            self.folder.write(name, json)?;
        }
        Ok(checksum.to_string())
    }
}

/// Writes the config and the plan of the coming steps.
fn write_settings(
    folder: &RunFolder,
    planned: &PlannedRun,
    is_resumed: bool,
) -> Result<(), TrainError> {
    let config = folder.write("config.yml", &seal(&planned.config.resolved()));
    config.map_err(|error| {
        if folder.path().join("config.yml").exists() {
            error
        } else {
            before_it_began(error)
        }
    })?;
    if !is_resumed {
        record_pictures(folder, &planned.prepared, &planned.config.data)?;
    }
    let report = PlanReport {
        effective_batch: planned.split.effective_batch,
        ..PlanReport::new(
            &planned.plan,
            &planned.device,
            planned.prepared.setup.budget_bytes,
        )
    };
    let plan_json = serde_json::to_string_pretty(&report).expect("a plan is plain data");
    folder.write("plan.json", &plan_json)?;
    folder.write("plan-tensors.json", &tensors_json(&planned.plan.step))?;
    let operations = operations_json(&planned.plan.step.memory_map, &planned.plan.step, None);
    folder.write("operations.json", &operations)?;
    Ok(())
}

impl Trainer {
    /// Appends lines to `metrics.jsonl`.
    pub(super) fn add_lines(&mut self, lines: &[impl Serialize]) -> Result<(), TrainError> {
        match &mut self.records {
            Some(records) => records.journal.add(lines),
            None => Ok(()),
        }
    }

    /// Writes a small file to the run folder.
    pub(super) fn write_file(&self, name: &str, json: &str) -> Result<(), TrainError> {
        match &self.records {
            Some(records) => records.folder.write(name, json),
            None => Ok(()),
        }
    }

    /// Writes a checkpoint; the state must be between two steps.
    pub(super) fn write_checkpoint(&mut self) -> Result<(), TrainError> {
        let Some(records) = &mut self.records else {
            return Ok(self.step.answer_for_state()?);
        };
        self.state.journal = records.journal.sync()?;
        self.state.skipped = self.skipped.sync()?;
        records.checkpoints.save(&self.state, &self.step)
    }

    /// Saves the model as the best one, with its example files. No checkpoint names it yet.
    pub(super) fn save_best(
        &self,
        value: f64,
        files: &[(Subset, BestFiles)],
    ) -> Result<Best, TrainError> {
        let step = self.state.step;
        let folder = format!("best-{step:06}");
        let held_out = files.iter().find(|(on, _)| *on == Subset::Validation);
        let shown = held_out.or(files.first()).map(|(_, files)| files);
        let checksum = match &self.records {
            Some(records) => {
                let inputs = SavedInputs::of_run(&self.planned);
                Some(records.save_best((&self.step, &inputs), &folder, shown)?)
            }
            None => None,
        };
        Ok(Best {
            metric: self.best_metric.0.clone(),
            value,
            step,
            folder,
            checksum,
        })
    }
}
