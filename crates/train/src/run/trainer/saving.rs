//! Writes checkpoints: when due, on request, and after a failure.

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

    /// Saves if a checkpoint was requested; returns whether one was.
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

    /// Saves the state, unless it is not finite: then the checkpoint on disk stays.
    fn save_state(&mut self) -> Result<(), TrainError> {
        let _saving = self.planned.device.group().expect_no_progress();
        self.planned.recorder.enter(Phase::Save);
        if let Some(found) = divergence::in_state(&self.step)? {
            return Err(self.diverged(self.state.step, found));
        }
        self.state.clock.all =
            self.time.seconds_before + self.time.resumed_at.elapsed().as_secs_f64();
        self.write_checkpoint()?;
        self.saved = Some((self.state.step, self.state.next));
        Ok(())
    }

    /// Error for a state that is not finite, with the checkpoint to resume from.
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

    /// Saves the work done before a failure: a step fails as a whole, so the state is that after the last complete step.
    pub(super) fn failed(
        &mut self,
        error: TrainError,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> TrainError {
        // Other processes stop waiting for this one.
        self.planned.device.group().fail(&error.to_string());
        if let TrainError::Device(error) = error {
            // The memory of a failed device is undefined: the last checkpoint stands.
            return TrainError::Run(format!("after step {}: {error}", self.state.step));
        }
        if let TrainError::Diverged(_) | TrainError::Processes(_) = error {
            // The weights may have been diverging for some steps: the last checkpoint is the better one to resume from.
            return error;
        }
        // A step whose line could not be written does not count: the last checkpoint stands.
        if self.is_between_steps {
            // If saving fails too, the first error is reported.
            let _ = self.save(watch);
        }
        error
    }
}
