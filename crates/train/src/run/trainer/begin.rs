//! The beginning of a run: the arena is reserved, and filled from the weights or from a checkpoint.

use std::time::Instant;

use holdall_telemetry::memory_log::Phase;

use super::agreement::Processes;
use super::records::Records;
use super::{PlannedBytes, TimeOfProcess, Trainer};
use crate::engine::optimizer::Averaging;
use crate::engine::scaler::LossScaler;
use crate::engine::schedule::LearningRates;
use crate::engine::step::Step;
use crate::engine::task::best_metric;
use crate::error::TrainError;
use crate::planning::digest::data_digest;
use crate::planning::plan_together::agree_on_weights;
use crate::planning::planned_run::PlannedRun;
use crate::run::progress::Passes;
use crate::run::recorder::Promise;
use crate::run_folder::checkpoint::{Checkpoint, Checkpoints, Clock, RunState};
use crate::run_folder::folder::RunFolder;
use crate::run_folder::skipped::SkippedFile;

impl Trainer {
    /// Reserves the arena, fills it from the weights or the checkpoint, and writes the config and the plan. With several
    /// processes, only the first has the run folder. `tell` receives messages about a plan that changed because less memory
    /// is free.
    pub fn begin(
        mut planned: PlannedRun,
        folder: impl Into<Option<RunFolder>>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Trainer, TrainError> {
        let folder: Option<RunFolder> = folder.into();
        let task = &planned.prepared.setup.step.task;
        let best_metric = best_metric(&**task, planned.config.train.best_metric.as_deref())?;
        let losses = task.losses();
        let digest = format!("{:016x}", data_digest(&planned.prepared));
        let is_resumed = planned.is_resumed();
        let (mut step, planned_bytes) = reserve(&mut planned, tell)?;
        let mut checkpoints = folder.as_ref().map(Checkpoints::new);
        let mut saved = None;
        let state = match planned.checkpoint.take() {
            Some(checkpoint) => {
                let state = restore(&checkpoint, &planned, &digest, &mut step)?;
                checkpoints = checkpoints.map(|_| checkpoint.checkpoints());
                saved = Some((state.step, state.next));
                state
            }
            None => first_state(&planned, digest, &mut step)?,
        };
        let group = planned.device.group();
        agree_on_weights(group, &planned.config.model, || step.sampled_checksum())?;
        let mut skipped = open_skipped(&planned, folder.as_ref(), &state, is_resumed)?;
        let too_short = check_length(&planned, &state).err();
        let records = match folder.zip(checkpoints) {
            Some(files) => Some(Records::begin(
                files, is_resumed, &planned, &state, &skipped, too_short, tell,
            )?),
            None => match too_short {
                Some(error) => return Err(error),
                None => None,
            },
        };
        skipped.add_rows(&planned.prepared.bad_rows)?;
        for (subset, samples) in planned.prepared.subsets() {
            let broken = skipped.samples(subset, samples);
            planned.feed.leave_out(samples, broken);
        }
        let rates = LearningRates::new(&planned.config, planned.total_steps() as usize);
        let passes = Passes::new(
            &planned.plan.step,
            &planned.plan.step.memory_map,
            planned.plan.chosen.step_ms / 1e3,
        );
        Ok(Trainer {
            planned,
            records,
            step,
            state,
            is_between_steps: true,
            rates,
            skipped,
            best_metric,
            losses,
            passes,
            saved,
            last_norm: None,
            time: TimeOfProcess {
                clock: Clock::default(),
                resumed_at: Instant::now(),
                seconds_before: 0.0,
            },
            planned_bytes,
            processes: Processes::default(),
        })
    }
}

/// Reserves the memory of the plan, and promises its bytes to the record.
fn reserve(
    planned: &mut PlannedRun,
    tell: &mut dyn FnMut(&str),
) -> Result<(Step, PlannedBytes), TrainError> {
    let checkpoint = planned.checkpoint.as_ref();
    if let Some(algorithms) = checkpoint.and_then(|one| one.state.algorithms.as_ref()) {
        planned.device.prefer_algorithms(algorithms);
    }
    planned.recorder.enter(Phase::Warmup);
    let step = planned.reserve(tell)?;
    let bytes = PlannedBytes {
        process: planned.plan.step.process_bytes,
        arena: planned.plan.step.arena_bytes,
    };
    planned.recorder.promise(Promise {
        planned_bytes: bytes.process,
        arena_bytes: step.arena_bytes(),
        batch_size: planned.split.batch_size,
        budget_bytes: planned.prepared.setup.budget_bytes,
    });
    Ok((step, bytes))
}

/// Loads a checkpoint, if it is of the data at hand.
fn restore(
    checkpoint: &Checkpoint,
    planned: &PlannedRun,
    digest: &str,
    step: &mut Step,
) -> Result<RunState, TrainError> {
    if checkpoint.state.data_digest != digest {
        return Err(TrainError::Config(format!(
            "{}: the rows, or the model's preprocessor_config.json, are not those that the run began with\n\
             hint: restore the files to go on, or begin a new run",
            planned.prepared.csv.display()
        )));
    }
    checkpoint.restore(&planned.device, step)?;
    Ok(RunState {
        split: planned.split,
        ..checkpoint.state.clone()
    })
}

/// Fills the arena with the weights that the run begins with.
fn first_state(
    planned: &PlannedRun,
    digest: String,
    step: &mut Step,
) -> Result<RunState, TrainError> {
    planned.prepared.setup.fill(&planned.device, step)?;
    let scaler = LossScaler::suiting(step.config().arithmetic);
    let mut state = RunState::new(scaler, planned.split, digest);
    state.algorithms = planned.device.algorithms();
    match step.averaging() {
        Averaging::None => {}
        Averaging::OverSteps { .. } => step.restart_averages(&planned.device)?,
        Averaging::WithStart { .. } => {
            state.starting_weights = Some(step.checksum_of_weights()?);
        }
    }
    Ok(state)
}

/// The list of skipped pictures, which the first process alone writes.
fn open_skipped(
    planned: &PlannedRun,
    folder: Option<&RunFolder>,
    state: &RunState,
    is_resumed: bool,
) -> Result<SkippedFile, TrainError> {
    if let Some(folder) = folder {
        return SkippedFile::open(&folder.skipped(), &state.skipped);
    }
    let out = planned.config.out.clone().unwrap_or_default();
    let list = out.join("skipped.csv");
    if is_resumed {
        SkippedFile::read_only(&list, &state.skipped)
    } else {
        Ok(SkippedFile::of_first_process(&list))
    }
}

/// Refuses a run that is to be shorter than it already is.
fn check_length(planned: &PlannedRun, state: &RunState) -> Result<(), TrainError> {
    if state.step <= planned.total_steps() {
        return Ok(());
    }
    let (key, asked, done) = match planned.config.train.max_steps {
        Some(asked) => ("max_steps", asked, state.step),
        None => (
            "epochs",
            planned.config.train.num_epochs(),
            state.step.div_ceil(planned.steps_per_epoch()),
        ),
    };
    Err(TrainError::Config(format!(
        "train.{key}: {asked}, expected at least {done}, which are done\nhint: leave it out, or ask for more"
    )))
}
