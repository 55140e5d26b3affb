//! A planned run that has not begun: everything is read, checked and counted, nothing is reserved.

use std::sync::atomic::AtomicBool;

use holdall_device::Device;
use holdall_plan::{Plan, knee};
use holdall_telemetry::memory_log::Phase;
use serde::Serialize;

use holdall_plan::{Candidate, Choice};

use crate::config::RunConfig;
use crate::engine::frozen::ParameterCount;
use crate::engine::step::Step;
use crate::error::TrainError;
use crate::planning::opened_run::OpenedRun;
use crate::planning::plan_race::{Choosing, does_not_fit_here};
use crate::planning::prepare::Prepared;
use crate::planning::processes;
use crate::planning::site::Site;
use crate::run::feed::Feed;
use crate::run::recorder::Recorder;
use crate::run_folder::checkpoint::{Checkpoint, SplitOfBatch};

/// `plan.json`, also printed by `plan --json`; other programs rely on its keys.
#[derive(Serialize)]
pub struct PlanReport<'a> {
    /// Device kind.
    pub device: &'static str,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
    /// Samples per step.
    pub effective_batch: usize,
    /// The chosen candidate.
    pub chosen: &'a Candidate,
    /// The other candidates.
    pub alternatives: &'a [Candidate],
    /// A faster candidate, if the user fixed a slower batch size.
    pub suggestion: Option<&'a Candidate>,
    /// Time against memory: the fastest candidate for each budget, ascending in memory.
    pub curve: &'a [Candidate],
    /// Memory beyond which more of it gains little speed.
    pub knee_bytes: Option<u64>,
    /// Lower bound of the arena for any layout.
    pub bound_bytes: u64,
    /// Number of parameters.
    pub parameters: u64,
    /// Number of trained parameters.
    pub trained_parameters: u64,
}

impl<'a> PlanReport<'a> {
    /// The report of a plan for a device or a card.
    pub fn new<'s>(
        plan: &'a Plan,
        site: impl Into<Site<'s>>,
        budget_bytes: Option<u64>,
    ) -> PlanReport<'a> {
        let count = ParameterCount::of(&plan.step.graph);
        PlanReport {
            device: site.into().kind(),
            budget_bytes,
            effective_batch: plan.effective_batch,
            chosen: &plan.chosen,
            alternatives: &plan.alternatives,
            suggestion: plan.suggestion.as_ref(),
            curve: &plan.curve,
            knee_bytes: knee(&plan.curve).map(|index| plan.curve[index].process_bytes),
            bound_bytes: plan.step.bound_bytes,
            parameters: count.all,
            trained_parameters: count.trained,
        }
    }
}

/// A planned run.
pub struct PlannedRun {
    /// The resolved config.
    pub config: RunConfig,
    /// The prepared samples and model.
    pub prepared: Prepared,
    pub device: Device,
    /// The memory plan.
    pub plan: Plan,
    pub split: SplitOfBatch,
    /// The source of batches.
    pub(crate) feed: Feed,
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) recorder: Recorder,
}

impl PlannedRun {
    /// Reads the data, opens the model and plans; resumes from `checkpoint` with its split of the batch.
    pub fn new(
        config: RunConfig,
        device: Device,
        checkpoint: Option<Checkpoint>,
        choosing: Choosing<'_>,
    ) -> Result<PlannedRun, TrainError> {
        let never = AtomicBool::new(false);
        let planned = PlannedRun::new_interruptible(&never, config, device, checkpoint, choosing)?;
        Ok(planned.expect("nobody stopped it"))
    }

    /// Like [`PlannedRun::new`]; returns `None` if `stop` is set.
    pub fn new_interruptible(
        stop: &AtomicBool,
        config: RunConfig,
        device: Device,
        checkpoint: Option<Checkpoint>,
        mut choosing: Choosing<'_>,
    ) -> Result<Option<PlannedRun>, TrainError> {
        let opened = OpenedRun::open(stop, config, device, checkpoint, &mut choosing)?;
        let Some(mut opened) = opened else {
            return Ok(None);
        };
        // The first batch is read before planning, so that the measured process includes the memory of reading.
        if !opened.read_next_batch(stop) {
            return Ok(None);
        }
        opened.recorder.enter(Phase::Plan);
        let plan = if opened.device.is_gpu() {
            opened.plan_on_gpu(choosing)?
        } else {
            opened.plan_on_cpu(stop)?
        };
        if !opened.read_next_batch(stop) {
            return Ok(None);
        }
        let OpenedRun {
            config,
            mut prepared,
            device,
            checkpoint,
            recorder,
            effective_batch,
            feed,
            ..
        } = opened;
        prepared.notes.push(feed.reading().describe());
        let split = split_of(&plan, effective_batch, device.group().size());
        Ok(Some(PlannedRun {
            config,
            prepared,
            device,
            plan,
            split,
            feed,
            checkpoint,
            recorder,
        }))
    }

    /// Reserves the plan's memory. If free memory has shrunk meanwhile, plan and split may change.
    pub(crate) fn reserve(&mut self, tell: &mut dyn FnMut(&str)) -> Result<Step, TrainError> {
        let setup = &mut self.prepared.setup;
        if !self.device.is_gpu() {
            let batch_size = self.plan.chosen.choice.batch_size;
            let plan = self.plan.step.without_memory_map();
            return Step::new(&self.device, setup.step.clone(), plan, batch_size);
        }
        // The first process chooses once its memory is reserved; the others take over its plan and its algorithms.
        let group = self.device.group().clone();
        let mut taken = None;
        if group.rank() > 0 {
            let (choice, algorithms): (Choice, Option<String>) =
                processes::from_first(&group, || unreachable!("not the first"))?;
            if let Some(algorithms) = &algorithms {
                self.device.prefer_algorithms(algorithms);
            }
            if choice != self.plan.chosen.choice {
                self.plan = setup.plan(&self.device, 0, Choosing::Taken(choice))?;
            }
            taken = Some(choice);
        }
        let reserved = setup.reserve(&self.device, self.plan.clone(), tell)?;
        let choice = reserved.plan.chosen.choice;
        if group.rank() == 0 {
            processes::from_first(&group, || Ok((choice, self.device.algorithms())))?;
        }
        if let Some(taken) = taken.filter(|taken| *taken != choice) {
            return Err(does_not_fit_here(&taken));
        }
        setup.budget_bytes = reserved.budget_bytes;
        let SplitOfBatch {
            effective_batch,
            processes,
            ..
        } = self.split;
        self.split = split_of(&reserved.plan, effective_batch, processes);
        self.plan = reserved.plan;
        Ok(reserved.machine)
    }

    /// The memory recorder.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Whether the run resumes from a checkpoint.
    pub fn is_resumed(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Optimizer step of the checkpoint that the run resumes from.
    pub fn resumed_step(&self) -> Option<u64> {
        self.checkpoint
            .as_ref()
            .map(|checkpoint| checkpoint.state.step)
    }

    /// Optimizer steps of an epoch; the last step may have fewer samples.
    pub fn steps_per_epoch(&self) -> u64 {
        self.feed.steps_per_epoch()
    }

    /// Optimizer steps of the run.
    pub fn total_steps(&self) -> u64 {
        self.config.train.total_steps(self.steps_per_epoch())
    }
}

fn split_of(plan: &Plan, effective_batch: usize, processes: usize) -> SplitOfBatch {
    SplitOfBatch {
        effective_batch,
        batch_size: plan.chosen.choice.batch_size,
        gradient_accumulation: plan.chosen.choice.gradient_accumulation,
        kept_micro_batches: plan.chosen.choice.kept_micro_batches,
        processes,
    }
}
