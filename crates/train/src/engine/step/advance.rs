//! Runs a step in parts: it can pause between two micro-batches, the run can be saved meanwhile, and the step can be dropped.
//!
//! ```text
//! start     loads the inputs of the whole step
//! advance   runs programs up to the update, or up to a pause; called again to continue
//! finish    waits, and returns the losses
//! abandon   instead of finish: only the update writes weights and optimizer state, so nothing has changed
//! ```

use holdall_device::{Device, DeviceError};
use holdall_plan::{Run, Stage};

use super::{LoadedInputs, Step, on_its_threads};
use crate::engine::batch::Batch;
use crate::engine::optimizer::StepScalars;
use crate::engine::step_graph::endpoints;

/// Result of [`Step::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Paused before the update: the step can continue, or be dropped.
    Paused,
    /// All programs are started, the update included; a GPU may still run them.
    Launched,
}

/// Called between two micro-batches: whether to pause before the next.
pub type IsToPause<'a> = &'a (dyn Fn() -> bool + Sync);

impl Step {
    /// Loads the inputs of the whole step. [`Step::advance`] runs it.
    pub fn start(&mut self, batch: &Batch, scalars: &StepScalars<'_>) {
        self.begin(batch, scalars.loss_scale);
        let (place, optimizer) = (self.place(endpoints::SCHEDULE), &self.config.optimizer);
        self.machine.input(&place, |schedule: &mut [f32]| {
            optimizer.write_schedule(scalars, schedule);
        });
        self.launched.next = 0;
    }

    /// Continues the step that was started with `batch`, to its end or to a pause. On a GPU, returns while the last few
    /// programs still run.
    pub fn advance(
        &mut self,
        device: &Device,
        batch: &Batch,
        is_to_pause: IsToPause<'_>,
    ) -> Advance {
        on_its_threads(device, || {
            for run in self.plan.passes().skip(self.launched.next) {
                if run.stage.is_per_micro_batch() && is_to_pause() {
                    return Advance::Paused;
                }
                let run = self.load(batch, run);
                self.run_one(device, run);
                if run.stage.is_per_micro_batch() {
                    // Waits for an earlier program, never for the last ones: the host stays a few micro-batches ahead.
                    self.machine.keep_pace();
                }
                self.launched.next += 1;
            }
            let update = Stage::Update.id();
            self.machine.run(device, &self.plan, update, 0, 0);
            if self.config.shards_state() {
                // The weights came from their owners, so their copies in the compute format are refreshed.
                let refresh = Stage::Refresh.id();
                self.machine.run(device, &self.plan, refresh, 0, 0);
            }
            Advance::Launched
        })
    }

    /// Number of passes that are surely done, in the order of [`holdall_plan::StepPlan::passes`].
    pub fn passes_done(&self) -> usize {
        self.launched.next.saturating_sub(self.machine.most_ahead())
    }

    /// Drops a paused step: weights and optimizer state are those after the previous step. Waits for programs that still run.
    pub fn abandon(&mut self) -> Result<(), DeviceError> {
        self.launched.loss_scale = None;
        self.loaded = LoadedInputs::default();
        self.machine.wait()
    }

    /// Seconds of these runs one after another, each with the inputs of a micro-batch of `batch`, including the wait for the
    /// device's queue. The step must be started, and nothing else may run.
    pub(crate) fn time_runs(
        &mut self,
        device: &Device,
        batch: &Batch,
        runs: &[Run],
    ) -> Result<f64, DeviceError> {
        let began = std::time::Instant::now();
        let num_filled = (batch.num_samples / self.batch_size).max(1);
        on_its_threads(device, || {
            for &run in runs {
                // Each run loads its inputs, as in a step. Only the first micro-batches have samples; padding may be shorter
                // than they are.
                self.loaded.micro_batch = None;
                let program = self.load(
                    batch,
                    Run {
                        micro_batch: run.micro_batch % num_filled,
                        ..run
                    },
                );
                self.run_one(
                    device,
                    Run {
                        micro_batch: run.micro_batch,
                        ..program
                    },
                );
            }
        });
        self.machine.wait()?;
        Ok(began.elapsed().as_secs_f64())
    }
}
