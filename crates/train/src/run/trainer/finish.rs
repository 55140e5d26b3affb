//! The end of a run: `model/` and `summary.json`, from the last checkpoint and the best model.
//!
//! Finishing starts once a checkpoint at the run's end is on disk, and can be repeated from it as often as it is interrupted.
//! It is complete when `summary.json` names that checkpoint, and `model/` has the checksum that the summary states.

use holdall_files::Checksum;
use holdall_models::folder::verify_folder;
use serde::{Deserialize, Serialize};

use super::Trainer;
use super::records::Records;
use crate::engine::frozen::ParameterCount;
use crate::error::{TrainError, without_hint};
use crate::export::model_files::save_model;
use crate::export::saved_inputs::SavedInputs;
use crate::planning::processes;
use crate::run::failure_file;
use crate::run::report::{ModelOfRun, Outcome, Summary};
use crate::run_folder::checkpoint::Best;
use crate::run_folder::folder::RunFolder;

/// Progress of a run towards its end.
#[derive(Serialize, Deserialize)]
pub enum End {
    /// Steps remain.
    NotReached,
    /// All steps are done, but finishing was interrupted or undone; the text names the evidence.
    Unfinished(String),
    /// The run is complete. The text of `summary.json`.
    Complete(String),
}

/// The references of a summary to a checkpoint and a model.
#[derive(Deserialize)]
struct Ties {
    model: Option<ModelOfRun>,
    checkpoint: Option<String>,
}

impl Trainer {
    /// Whether the run is over and all its files are complete, as judged by the first process.
    pub fn end(&self) -> Result<End, TrainError> {
        let Some(records) = self.records.as_ref().filter(|_| self.has_ended()) else {
            return processes::from_first(self.planned.device.group(), || Ok(End::NotReached));
        };
        let summary = self.summary(records);
        processes::from_first(self.planned.device.group(), || {
            Ok(summary.map_or_else(End::Unfinished, End::Complete))
        })
    }

    /// Text of the summary if it and the model belong to the checkpoint; otherwise the reason why they do not.
    fn summary(&self, records: &Records) -> Result<String, String> {
        let path = records.folder.path().join("summary.json");
        let name = path.display();
        let text = std::fs::read_to_string(&path).map_err(|cause| format!("{name}: {cause}"))?;
        let ties: Ties = serde_json::from_str(&text).map_err(|cause| format!("{name}: {cause}"))?;
        let newest = records.checkpoints.checksum();
        let (Some(model), true) = (ties.model, newest.is_some() && ties.checkpoint == newest)
        else {
            return Err(format!("{name} is not of the last checkpoint"));
        };
        let folder = records.folder.model();
        let found = verify_folder(&folder).map_err(|cause| without_hint(&cause))?;
        if found.to_string() == model.checksum {
            Ok(text)
        } else {
            Err(format!("{} is not of {name}", folder.display()))
        }
    }

    fn publish(&self, run: &RunFolder, best: &Best) -> Result<Checksum, TrainError> {
        let folder = run.checkpoints().join(&best.folder);
        run.publish(&folder).map_err(|cause| match cause {
            TrainError::Model(cause) => TrainError::Run(format!(
                "{}\nhint: restore it from a backup; or remove {}, and --resume publishes the model of the last step instead",
                without_hint(&cause),
                folder.display()
            )),
            cause => cause,
        })
    }

    /// Writes the model folder and the summary in the first process; the others wait for it.
    pub(super) fn finish(&mut self) -> Result<Outcome, TrainError> {
        let group = self.planned.device.group().clone();
        let records = self.records.take();
        let finished = match &records {
            Some(records) => processes::failing(&group, || self.finish_with(records)),
            None => Ok(Outcome::FinishedByFirst),
        };
        self.records = records;
        let outcome = finished?;
        group.share(&[])?;
        Ok(outcome)
    }

    fn finish_with(&mut self, records: &Records) -> Result<Outcome, TrainError> {
        let run = &records.folder;
        let (step, checksum) = match &self.state.best {
            Some(best) => (best.step, self.publish(run, best)?),
            None => {
                let model = run.model();
                self.enter_averages()?;
                let saved = save_model(&self.step, &SavedInputs::of_run(&self.planned), &model);
                self.leave_averages()?;
                (self.state.step, saved?)
            }
        };
        let chosen = &self.planned.plan.chosen;
        let parameters = ParameterCount::of(&self.step.plan().graph);
        let summary = Summary {
            device: self.planned.device.kind(),
            effective_batch: self.planned.split.effective_batch,
            batch_size: chosen.choice.batch_size,
            gradient_accumulation: chosen.choice.gradient_accumulation,
            precision: chosen.precision,
            recompute: chosen.choice.recompute.label(),
            epochs: self.state.step as f64 / self.planned.steps_per_epoch() as f64,
            steps: self.state.step,
            stopped_early: self.state.step < self.planned.total_steps(),
            seconds: self.state.clock.all,
            samples_per_s: self.state.clock.samples_per_s(),
            waited_for_data: self.state.clock.waiting(),
            reading: self
                .planned
                .feed
                .report(&self.time.clock, self.planned.device.cpu().num_threads()),
            processes: self.processes.last_epoch(),
            skipped: self.skipped.total(),
            budget_bytes: self.planned.prepared.setup.budget_bytes,
            planned_bytes: self.planned_bytes.process,
            process_bytes: self.planned.device.peak_bytes(),
            planned_arena_bytes: self.planned_bytes.arena,
            arena_bytes: self.step.arena_bytes(),
            weights: self.step.config().task.describe_weights(),
            parameters: parameters.all,
            trained_parameters: parameters.trained,
            best: self.state.best.clone(),
            metrics: self.state.last_scores.clone(),
            found: self.state.last_scores.first().map(|metrics| {
                let task = &self.step.config().task;
                task.describe_scores(&metrics.scores)
            }),
            model: Some(ModelOfRun {
                step,
                checksum: checksum.to_string(),
            }),
            checkpoint: records.checkpoints.checksum(),
        };
        let json = serde_json::to_string_pretty(&summary).expect("a summary is plain data");
        run.write("summary.json", &json)?;
        failure_file::remove(run.path());
        Ok(Outcome::Finished(Box::new(summary)))
    }
}
