//! What is kept of a run: the checkpoint when it is due, asked for, or all that a failure leaves.

use std::path::Path;
use std::sync::atomic::Ordering;

use holdall_telemetry::memory_log::Phase;

use super::Trainer;
use crate::config::SaveEvery;
use crate::engine::divergence;
use crate::error::Diverged;
use crate::error::TrainError;
use crate::run::report::Event;
use crate::run::requests::Requests;

impl Trainer {
    pub(super) fn save_is_due(&self, epoch_ends: bool) -> bool {
        match self.planned.config.train.save_every {
            SaveEvery::Epoch => epoch_ends,
            SaveEvery::Steps(steps) => self.state.step.is_multiple_of(steps as u64),
        }
    }

    pub(super) fn save(&mut self, watch: &mut dyn FnMut(Event<'_>)) -> Result<(), TrainError> {
        self.save_state()?;
        watch(Event::Saved {
            step: self.state.step,
            is_asked: false,
        });
        Ok(())
    }

    /// Whether someone asked for a checkpoint, which is on disk then.
    pub(super) fn save_if_asked(
        &mut self,
        requests: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<bool, TrainError> {
        let is_asked = requests.save.swap(false, Ordering::Relaxed);
        if is_asked {
            self.save_state()?;
            watch(Event::Saved {
                step: self.state.step,
                is_asked,
            });
        }
        Ok(is_asked)
    }

    /// A state that is not finite does not replace one that is.
    fn save_state(&mut self) -> Result<(), TrainError> {
        let _saving = self.planned.device.group().expect_no_progress();
        self.planned.recorder.enter(Phase::Save);
        if let Some(found) = divergence::in_state(&self.step)? {
            return Err(self.diverged(self.state.step, found));
        }
        self.state.clock.all = self.seconds_before + self.resumed_at.elapsed().as_secs_f64();
        self.write_checkpoint()?;
        self.saved = Some((self.state.step, self.state.next));
        Ok(())
    }

    /// Says what was found at which step, and what to go on from.
    pub(super) fn diverged(&self, step: u64, found: String) -> TrainError {
        let config = &self.planned.config;
        let lower = format!("{:.1e}", config.train.rate() / 10.0).replace(".0e", "e");
        let hint = match self.saved {
            Some((step, _)) => format!(
                "the checkpoint of step {step} is untouched: holdall train --resume --out {} --lr {lower} goes on from \
                 there; or begin again with a lower `lr`, a longer `warmup` or a smaller `clip_norm`",
                config.out.as_deref().unwrap_or(Path::new("RUN")).display()
            ),
            None => format!(
                "no checkpoint was written before; begin again with a lower `lr` (--lr {lower}), a longer `warmup` or a \
                 smaller `clip_norm`"
            ),
        };
        TrainError::from(Box::new(Diverged {
            step,
            found,
            last_norm: self.last_norm,
            checkpoint_step: self.saved.map(|(step, _)| step),
            hint,
        }))
    }

    /// What was done before a failure is kept: steps fail as a whole, so the state is that after the last one.
    pub(super) fn failed(
        &mut self,
        error: TrainError,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> TrainError {
        // Nobody shall wait for this process.
        self.planned.device.group().fail(&error.to_string());
        if let TrainError::Device(error) = error {
            // Nobody knows what is in the memory of a device that failed: the last checkpoint stands.
            return TrainError::Run(format!("after step {}: {error}", self.state.step));
        }
        if let TrainError::Diverged(_) | TrainError::Processes(_) = error {
            // The weights may have been on their way for some steps: an earlier state is the better one to go on from.
            return error;
        }
        // A step whose line could not be written is not done: the last checkpoint stands.
        if self.is_between_steps {
            // If that fails as well, the first failure is the one to tell.
            let _ = self.save(watch);
        }
        error
    }
}
