//! A step in parts: it can pause between two micro-batches, be saved around, and be dropped.
//!
//! ```text
//! start     what the whole step reads is in place
//! advance   programs up to the update, or up to a pause: call it again
//! finish    waits, and tells the losses
//! abandon   instead of finish: only the update writes weights and optimizer state, so the step has not happened
//! ```

use holdall_device::{Device, DeviceError};
use holdall_plan::{Run, Stage};

use super::{Step, on_its_threads};
use crate::engine::batch::Batch;
use crate::engine::optimizer::StepScalars;
use crate::engine::step_graph::endpoints;

/// How far [`Step::advance`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// To a pause before the update: the step can go on, or be dropped.
    Paused,
    /// To its end, the update included; on a GPU it may still run.
    Launched,
}

/// What is asked between two micro-batches: whether to pause before the next.
pub type IsToPause<'a> = &'a (dyn Fn() -> bool + Sync);

impl Step {
    /// Brings what the whole step reads into place. [`Step::advance`] runs it.
    pub fn start(&mut self, batch: &Batch, scalars: &StepScalars<'_>) {
        self.begin(batch, scalars.loss_scale);
        let (place, optimizer) = (self.place(endpoints::SCHEDULE), &self.config.optimizer);
        self.machine.input(&place, |schedule: &mut [f32]| {
            optimizer.write_schedule(scalars, schedule);
        });
        self.next_pass = 0;
    }

    /// Goes on with the step that was started with `batch`: to its end, or to where it is to pause. On a GPU, returns while the
    /// last few programs still run.
    pub fn advance(
        &mut self,
        device: &Device,
        batch: &Batch,
        is_to_pause: IsToPause<'_>,
    ) -> Advance {
        on_its_threads(device, || {
            for run in self.plan.passes().skip(self.next_pass) {
                if run.stage.is_per_micro_batch() && is_to_pause() {
                    return Advance::Paused;
                }
                let run = self.load(batch, run);
                self.run_one(device, run);
                if run.stage.is_per_micro_batch() {
                    // Waits for an earlier program, never for the last ones: the host stays a few micro-batches ahead.
                    self.machine.keep_pace();
                }
                self.next_pass += 1;
            }
            let update = Stage::Update.id();
            self.machine.run(device, &self.plan, update, 0, 0);
            if self.config.shards_state() {
                // Weights came from their owners: their copies in the compute format follow.
                let refresh = Stage::Refresh.id();
                self.machine.run(device, &self.plan, refresh, 0, 0);
            }
            Advance::Launched
        })
    }

    /// Runs of programs that are done, in the order of [`holdall_plan::StepPlan::passes`]; at least.
    pub fn passes_done(&self) -> usize {
        self.next_pass.saturating_sub(self.machine.most_ahead())
    }

    /// Drops a step that paused: weights and optimizer state are as the step before left them. Waits for what still runs.
    pub fn abandon(&mut self) -> Result<(), DeviceError> {
        self.launched = None;
        (self.loaded, self.preloaded) = (None, false);
        self.machine.wait()
    }

    /// Seconds that these runs take one after the other, each with inputs of a micro-batch of `batch`, and whatever is left
    /// of the device's queue. The step was started; nothing else runs.
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
                // Each brings its inputs, as in a step. Samples are there for the first micro-batches alone; padding may be
                // shorter than they are.
                self.loaded = None;
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
