//! A planned run that has not begun: everything is read, checked and counted, nothing is reserved.

use std::sync::atomic::AtomicBool;

use holdall_device::Device;
use holdall_plan::{Plan, PlanError, knee};
use holdall_telemetry::memory_log::Phase;
use serde::Serialize;

use holdall_plan::{Candidate, Choice};

use crate::config::budget::Memory;
use crate::config::{RunConfig, TaskName};
use crate::engine::frozen::ParameterCount;
use crate::engine::step::Step;
use crate::engine::task::Storing;
use crate::error::TrainError;
use crate::planning::picture_costs::{self, PictureCosts, READING_BYTES};
use crate::planning::plan_race::{Choosing, does_not_fit_here};
use crate::planning::plan_together::{agree, plan_as_first, split_again, split_among};
use crate::planning::prepare::Prepared;
use crate::planning::processes;
use crate::planning::site::Site;
use crate::run::feed::Feed;
use crate::run::recorder::Recorder;
use crate::run_folder::checkpoint::{Checkpoint, SplitOfBatch};
use crate::run_folder::skipped::SkippedFile;
use crate::tasks;

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

/// Host memory of the training loop beside its buffers: log lines, sample orders, allocator overhead. Measured as 0.3 to 0.9
/// MiB in runs with 1 to 16 threads.
const LOOP_BYTES: u64 = 1 << 20;

/// Heap that the allocator keeps per decoding thread; buffers from 256 KiB on are returned when freed. With 16 threads it was
/// within measurement noise.
const THREAD_BYTES: u64 = 64 << 10;

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
        let planned = PlannedRun::new_unless(&never, config, device, checkpoint, choosing)?;
        Ok(planned.expect("nobody stopped it"))
    }

    /// Like [`PlannedRun::new`]; returns `None` if `stop` is set.
    pub fn new_unless(
        stop: &AtomicBool,
        config: RunConfig,
        device: Device,
        checkpoint: Option<Checkpoint>,
        choosing: Choosing<'_>,
    ) -> Result<Option<PlannedRun>, TrainError> {
        let recorder = Recorder::new(device.gauge());
        let asked = config;
        let mut prepared = Prepared::new(&asked, &device)?;
        let mut config = prepared.setup.config.clone();
        // The data's properties are stored with the run, so that resuming need not read the data again.
        config.task = TaskName::by_name(prepared.setup.step.task.name());
        if checkpoint.is_none() && matches!(choosing, Choosing::Measured(_)) {
            tasks::check_weights(&asked, &config)?;
        }
        let group = device.group().clone();
        let budget_bytes = agree(&config, &prepared, &device, checkpoint.as_ref())?;
        let setup = &mut prepared.setup;
        setup.budget_bytes = budget_bytes;
        setup.request.budget_bytes = budget_bytes;
        let request = &mut setup.request;
        if let Some(checkpoint) = &checkpoint {
            let begun = &checkpoint.state.split;
            let split = split_again(begun, group.size());
            if split.processes != begun.processes {
                prepared.notes.push(format!(
                    "Processes: {} now, {} before; the same {} samples a step, {} x {} of them on each",
                    split.processes,
                    begun.processes,
                    split.effective_batch,
                    split.batch_size,
                    split.gradient_accumulation
                ));
            }
            request.effective_batch = Some(split.effective_batch);
            request.batch_size = Some(split.batch_size);
            request.gradient_accumulation = Some(split.gradient_accumulation);
            // Recomputation changes no bits, so it stays open; the order in which micro-batches are summed does.
            request.kept = Some(split.kept_micro_batches);
        }
        let effective_batch = split_among(group.size(), request)?;
        setup.asked.effective_batch = setup.request.effective_batch;
        prepared.note_on_effective_batch(effective_batch);
        let mut choosing = choosing;
        let stored = processes::first_then_others(&group, || {
            store_rows(&mut prepared, &device, stop, &mut choosing)
        });
        let Some(has_rows) = stored? else {
            return Ok(None);
        };
        // The first batch is read before planning, so that the measured process includes the memory of reading.
        let done = checkpoint
            .as_ref()
            .map_or(0, |checkpoint| checkpoint.state.step);
        let per_epoch = prepared.train.len().div_ceil(effective_batch) as u64;
        let Some(mut costs) = costs_of(&device, &prepared, stop)? else {
            return Ok(None);
        };
        let parts = (effective_batch, processes::share_of(&group));
        let mut feed = Feed::new(&device, &config, &prepared, parts, done, &costs)?;
        if let (Some(checkpoint), Some(out)) = (&checkpoint, &config.out) {
            let skipped = &checkpoint.state.skipped;
            let skipped = SkippedFile::read_only(&out.join("skipped.csv"), skipped)?;
            leave_out_again(&skipped, &prepared, &mut feed, &mut costs);
        }
        let workers = feed.reading().workers.most;
        let budget = prepared.setup.budget_bytes.filter(|_| !device.is_gpu());
        if let Some(budget) = budget {
            // No plan leaves more than this for decoding, and the first batch is read before there is a plan.
            let held = device.held_bytes().unwrap_or(0) + READING_BYTES;
            let free = budget.saturating_sub(held);
            feed.allow(costs.together_bytes(workers).min(free));
        }
        if has_rows {
            feed.train(&prepared);
        }
        let bring = |feed: &mut Feed, prepared: &Prepared| {
            let is_over = done >= config.train.total_steps(per_epoch);
            is_over || !has_rows || feed.bring(done + 1, prepared, stop)
        };
        if !bring(&mut feed, &prepared) {
            return Ok(None);
        }
        let threads = device.cpu().num_threads();
        let task = &prepared.setup.step.task;
        let evaluated = config.train.eval_on.iter().filter_map(|&subset| {
            let samples = prepared.samples(subset)?;
            Some(task.evaluation_bytes(subset, samples, threads))
        });
        // Gathered results of several processes exist twice for a moment.
        let copies = if group.size() > 1 { 2 } else { 1 };
        let evaluation = copies * evaluated.max().unwrap_or(0);
        let host_bytes = evaluation + LOOP_BYTES + threads as u64 * THREAD_BYTES;
        recorder.enter(Phase::Plan);
        let plan = if device.is_gpu() {
            // The GPU's budget does not bound the host; `host_memory` does. Offloaded state comes before decoded samples.
            let reading = feed.reading();
            let rows = reading.bytes() + reading.decode_bytes;
            let room = &mut prepared.setup.request.host_bytes;
            if config.host_memory != Memory::Auto {
                *room = room.map(|bytes| bytes.saturating_sub(rows));
            }
            let room = *room;
            let setup = &prepared.setup;
            let plan = setup.plan_together(&device, host_bytes, choosing)?;
            let left = room.map_or(u64::MAX, |bytes| bytes.saturating_sub(plan.step.host_bytes));
            feed.keep_decoded(left);
            plan
        } else {
            feed.rest(stop);
            let setup = &prepared.setup;
            let planned = |decode_bytes: u64, choosing: Choosing<'_>| {
                setup.plan(&device, host_bytes + decode_bytes, choosing)
            };
            let is_resumed = checkpoint.is_some();
            let mut least = 0;
            let mut refused = Vec::new();
            let (mut plan, left_out) = plan_as_first(&group, |taken| {
                if let Some(taken) = &taken {
                    for &(list, sample) in &taken.left_out {
                        costs.leave_out(list, &[sample]);
                    }
                }
                let plan = match taken {
                    // Only a new run leaves out pictures that do not fit; a resumed run keeps the samples of its checkpoint.
                    None if !is_resumed => {
                        let planned = |least| planned(least, Choosing::Predicted);
                        let plan;
                        (plan, least, refused) = costs.plan(&config.data, planned)?;
                        plan
                    }
                    taken => {
                        least = costs.largest_bytes();
                        let taken = taken.map(|taken| Choosing::Taken(taken.choice));
                        planned(least, taken.unwrap_or(Choosing::Predicted))?
                    }
                };
                let left_out = refused.iter().map(|one| (one.list, one.skipped.sample));
                Ok((plan, left_out.collect()))
            })?;
            prepared.notes.extend(picture_costs::describe(&refused));
            if !left_out.is_empty() {
                let of_train = left_out.iter().filter(|(list, _)| *list == TRAIN);
                feed.leave_out(&prepared.train, of_train.map(|(_, sample)| *sample));
                let of_train = refused.into_iter().filter(|one| one.list == TRAIN);
                let of_train = of_train.map(|one| one.skipped).collect();
                feed.begin_without(of_train, &prepared);
            }
            let process_bytes = plan.step.process_bytes;
            let decode_bytes = picture_costs::share(&costs, workers, least, process_bytes, budget);
            // The first batch may have used more than the plan will. That was within the budget, and counts in the forecast.
            let held = device.peak_bytes().unwrap_or(0);
            let more = (decode_bytes - least).max(held.saturating_sub(process_bytes));
            // Decoded samples stay in memory as far as the budget allows, and count in the forecast.
            let left = budget.map_or(u64::MAX, |budget| {
                budget.saturating_sub(process_bytes + more)
            });
            let more = more + feed.keep_decoded(left);
            plan.step.process_bytes += more;
            plan.chosen.process_bytes += more;
            check_fits(plan.step.process_bytes, budget)?;
            for one in &mut plan.curve {
                one.process_bytes += more;
            }
            feed.allow(decode_bytes);
            plan
        };
        if !bring(&mut feed, &prepared) {
            return Ok(None);
        }
        prepared.notes.push(feed.reading().describe());
        let split = split_of(&plan, effective_batch, group.size());
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

/// Refuses a forecast above the budget. Reading before the plan counts too, and may have used more than the plan will.
fn check_fits(process_bytes: u64, budget_bytes: Option<u64>) -> Result<(), TrainError> {
    match budget_bytes {
        Some(budget_bytes) if process_bytes > budget_bytes => Err(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes: process_bytes,
            changes: Vec::new(),
            available_bytes: None,
            note: None,
        }
        .into()),
        _ => Ok(()),
    }
}

/// Computes the rows that are stored on disk, and opens them. Returns whether there are rows to read; `None` if stopped. A
/// plan without a run computes and writes nothing.
fn store_rows(
    prepared: &mut Prepared,
    device: &Device,
    stop: &AtomicBool,
    choosing: &mut Choosing<'_>,
) -> Result<Option<bool>, TrainError> {
    let setup = &mut prepared.setup;
    if !setup.step.task.stores_rows() {
        return Ok(Some(true));
    }
    let Choosing::Measured(tell) = choosing else {
        return Ok(Some(false));
    };
    let storing = Storing {
        device,
        budget_bytes: setup.budget_bytes,
        stop,
        tell: &mut **tell,
    };
    let rows = setup.step.task.store_rows(storing)?;
    Ok(rows.map(|rows| {
        setup.rows = rows;
        true
    }))
}

/// Index of the training pictures in the lists of [`costs_of`]; the validation pictures follow.
const TRAIN: usize = 0;

/// Decoding costs of all pictures of a run; `None` if interrupted.
fn costs_of(
    device: &Device,
    prepared: &Prepared,
    stop: &AtomicBool,
) -> Result<Option<PictureCosts>, TrainError> {
    let format = prepared.setup.rows.clone();
    let lists: Vec<_> = prepared.subsets().map(|(_, samples)| samples).collect();
    PictureCosts::read_together(device, &lists, format, stop)
}

/// Skips the pictures that an earlier process of the run skipped, from the first batch on.
fn leave_out_again(
    skipped: &SkippedFile,
    prepared: &Prepared,
    feed: &mut Feed,
    costs: &mut PictureCosts,
) {
    for (list, (subset, samples)) in prepared.subsets().enumerate() {
        let broken = skipped.samples(subset, samples);
        costs.leave_out(list, &broken);
        feed.leave_out(samples, broken);
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
