//! A run whose data are listed and whose model is open: what planning needs is known, the cost of every picture included.

use std::sync::atomic::AtomicBool;

use holdall_device::Device;
use holdall_plan::{Plan, PlanError};

use crate::config::budget::Memory;
use crate::config::{RunConfig, TaskName};
use crate::engine::task::Storing;
use crate::error::TrainError;
use crate::planning::picture_costs::{self, PictureCosts, READING_BYTES};
use crate::planning::plan_race::Choosing;
use crate::planning::plan_together::{agree, plan_as_first, split_again, split_among};
use crate::planning::prepare::Prepared;
use crate::planning::processes;
use crate::run::feed::Feed;
use crate::run::recorder::Recorder;
use crate::run_folder::checkpoint::Checkpoint;
use crate::run_folder::skipped::SkippedFile;
use crate::tasks;

/// Host memory of the training loop beside its buffers: log lines, sample orders, allocator overhead. Measured as 0.3 to 0.9
/// MiB in runs with 1 to 16 threads.
const LOOP_BYTES: u64 = 1 << 20;

/// Heap that the allocator keeps per decoding thread; buffers from 256 KiB on are returned when freed. With 16 threads it was
/// within measurement noise.
const THREAD_BYTES: u64 = 64 << 10;

pub(crate) struct OpenedRun {
    pub config: RunConfig,
    pub prepared: Prepared,
    pub device: Device,
    pub checkpoint: Option<Checkpoint>,
    pub recorder: Recorder,
    /// Samples of a step, over all processes.
    pub effective_batch: usize,
    pub feed: Feed,
    costs: PictureCosts,
    /// Whether batches can be read. A plan without a run computes no rows that are stored on disk, and so has none to read.
    has_rows: bool,
}

impl OpenedRun {
    /// Lists the data, opens the model, and reads what every picture costs; `None` if `stop` is set.
    pub fn open(
        stop: &AtomicBool,
        asked: RunConfig,
        device: Device,
        checkpoint: Option<Checkpoint>,
        choosing: &mut Choosing<'_>,
    ) -> Result<Option<OpenedRun>, TrainError> {
        let recorder = Recorder::new(device.gauge());
        let mut prepared = Prepared::new(&asked, &device)?;
        let mut config = prepared.setup.config.clone();
        // The data's properties are stored with the run, so that resuming need not read the data again.
        config.task = TaskName::by_name(prepared.setup.step.task.name());
        if checkpoint.is_none() && matches!(choosing, Choosing::Measured(_)) {
            tasks::check_weights(&asked, &config)?;
        }
        let group = device.group().clone();
        let budget_bytes = agree(&config, &prepared, &device, checkpoint.as_ref())?;
        prepared.setup.budget_bytes = budget_bytes;
        prepared.setup.request.budget_bytes = budget_bytes;
        if let Some(checkpoint) = &checkpoint {
            request_split_of(checkpoint, group.size(), &mut prepared);
        }
        let setup = &mut prepared.setup;
        let effective_batch = split_among(group.size(), &mut setup.request)?;
        setup.asked.effective_batch = setup.request.effective_batch;
        prepared.note_on_effective_batch(effective_batch);
        let stored = processes::first_then_others(&group, || {
            store_rows(&mut prepared, &device, stop, choosing)
        });
        let Some(has_rows) = stored? else {
            return Ok(None);
        };
        let Some(costs) = costs_of(&device, &prepared, stop)? else {
            return Ok(None);
        };
        let done = checkpoint
            .as_ref()
            .map_or(0, |checkpoint| checkpoint.state.step);
        let parts = (effective_batch, processes::share_of(&group));
        let feed = Feed::new(&device, &config, &prepared, parts, done, &costs)?;
        let mut opened = OpenedRun {
            config,
            prepared,
            device,
            checkpoint,
            recorder,
            effective_batch,
            feed,
            costs,
            has_rows,
        };
        opened.leave_out_again()?;
        opened.allow_first_batch();
        if has_rows {
            opened.feed.train(&opened.prepared);
        }
        Ok(Some(opened))
    }

    /// Skips the pictures that an earlier process of the run skipped, from the first batch on.
    fn leave_out_again(&mut self) -> Result<(), TrainError> {
        let (Some(checkpoint), Some(out)) = (&self.checkpoint, &self.config.out) else {
            return Ok(());
        };
        let skipped = &checkpoint.state.skipped;
        let skipped = SkippedFile::read_only(&out.join("skipped.csv"), skipped)?;
        for (list, (subset, samples)) in self.prepared.subsets().enumerate() {
            let broken = skipped.samples(subset, samples);
            self.costs.leave_out(list, &broken);
            self.feed.leave_out(samples, broken);
        }
        Ok(())
    }

    /// Memory for decoding while there is no plan: no plan leaves more than the budget does now.
    fn allow_first_batch(&mut self) {
        if let Some(budget) = self.budget_of_process() {
            let held = self.device.held_bytes().unwrap_or(0) + READING_BYTES;
            let together = self.costs.together_bytes(self.num_workers());
            self.feed.allow(together.min(budget.saturating_sub(held)));
        }
    }

    fn num_workers(&self) -> usize {
        self.feed.reading().workers.most
    }

    /// The budget, where it bounds the memory of the process: on a GPU it bounds the card's.
    fn budget_of_process(&self) -> Option<u64> {
        let budget = self.prepared.setup.budget_bytes;
        budget.filter(|_| !self.device.is_gpu())
    }

    /// Reads the batch of the next step, if there is one; `false` if stopped.
    pub fn read_next_batch(&mut self, stop: &AtomicBool) -> bool {
        let checkpoint = self.checkpoint.as_ref();
        let done = checkpoint.map_or(0, |checkpoint| checkpoint.state.step);
        let per_epoch = self.prepared.train.len().div_ceil(self.effective_batch) as u64;
        let is_over = done >= self.config.train.total_steps(per_epoch);
        is_over || !self.has_rows || self.feed.bring(done + 1, &self.prepared, stop)
    }

    /// Host memory that a run takes besides weights and pictures: evaluation, the loop, the heaps of threads.
    fn host_bytes(&self) -> u64 {
        let threads = self.device.cpu().num_threads();
        let task = &self.prepared.setup.step.task;
        let evaluated = self.config.train.eval_on.iter().filter_map(|&subset| {
            let samples = self.prepared.samples(subset)?;
            Some(task.evaluation_bytes(subset, samples, threads))
        });
        // Gathered results of several processes exist twice for a moment.
        let copies = if self.device.group().size() > 1 { 2 } else { 1 };
        copies * evaluated.max().unwrap_or(0) + LOOP_BYTES + threads as u64 * THREAD_BYTES
    }

    /// The GPU's budget does not bound the host; `host_memory` does. Offloaded state comes before decoded samples.
    pub fn plan_on_gpu(&mut self, choosing: Choosing<'_>) -> Result<Plan, TrainError> {
        let host_bytes = self.host_bytes();
        let reading = self.feed.reading();
        let rows = reading.bytes() + reading.decode_bytes;
        let setup = &mut self.prepared.setup;
        let room = &mut setup.request.host_bytes;
        if self.config.host_memory != Memory::Auto {
            *room = room.map(|bytes| bytes.saturating_sub(rows));
        }
        let room = *room;
        let plan = setup.plan_together(&self.device, host_bytes, choosing)?;
        let left = room.map_or(u64::MAX, |bytes| bytes.saturating_sub(plan.step.host_bytes));
        self.feed.keep_decoded(left);
        Ok(plan)
    }

    /// On the CPU the budget bounds the process: arena, decoding and decoded samples share it.
    pub fn plan_on_cpu(&mut self, stop: &AtomicBool) -> Result<Plan, TrainError> {
        let host_bytes = self.host_bytes();
        self.feed.rest(stop);
        let (mut plan, least) = self.plan_with_decoding(host_bytes)?;
        let budget = self.budget_of_process();
        let process_bytes = plan.step.process_bytes;
        let workers = self.num_workers();
        let decode_bytes = picture_costs::share(&self.costs, workers, least, process_bytes, budget);
        // The first batch may have used more than the plan will. That was within the budget, and counts in the forecast.
        let held = self.device.peak_bytes().unwrap_or(0);
        let more = (decode_bytes - least).max(held.saturating_sub(process_bytes));
        // Decoded samples stay in memory as far as the budget allows, and count in the forecast.
        let left = budget.map_or(u64::MAX, |budget| {
            budget.saturating_sub(process_bytes + more)
        });
        let more = more + self.feed.keep_decoded(left);
        plan.step.process_bytes += more;
        plan.chosen.process_bytes += more;
        check_fits(plan.step.process_bytes, budget)?;
        for one in &mut plan.curve {
            one.process_bytes += more;
        }
        self.feed.allow(decode_bytes);
        Ok(plan)
    }

    /// The plan that leaves room to decode the largest picture, and the bytes of that. Only a new run leaves out pictures that do not
    /// fit; a resumed run keeps the samples of its checkpoint.
    fn plan_with_decoding(&mut self, host_bytes: u64) -> Result<(Plan, u64), TrainError> {
        let OpenedRun {
            prepared,
            device,
            costs,
            feed,
            checkpoint,
            config,
            ..
        } = self;
        let setup = &prepared.setup;
        let planned = |decode_bytes: u64, choosing: Choosing<'_>| {
            setup.plan(&*device, host_bytes + decode_bytes, choosing)
        };
        let mut least = 0;
        let mut refused = Vec::new();
        let (plan, left_out) = plan_as_first(device.group(), |taken| {
            if let Some(taken) = &taken {
                for &(list, sample) in &taken.left_out {
                    costs.leave_out(list, &[sample]);
                }
            }
            let plan = match taken {
                None if checkpoint.is_none() => {
                    let plan;
                    (plan, least, refused) =
                        costs.plan(&config.data, |least| planned(least, Choosing::Predicted))?;
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
            feed.begin_without(of_train, prepared);
        }
        Ok((plan, least))
    }
}

/// Asks the planner for the split that the run began with: the order in which micro-batches are summed decides the bits.
/// Recomputation changes none, so it stays open.
fn request_split_of(checkpoint: &Checkpoint, num_processes: usize, prepared: &mut Prepared) {
    let begun = &checkpoint.state.split;
    let split = split_again(begun, num_processes);
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
    prepared.setup.is_resumed = true;
    let request = &mut prepared.setup.request;
    request.effective_batch = Some(split.effective_batch);
    request.batch_size = Some(split.batch_size);
    request.gradient_accumulation = Some(split.gradient_accumulation);
    request.kept = Some(split.kept_micro_batches);
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
