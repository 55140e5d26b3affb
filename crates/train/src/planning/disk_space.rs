//! Disk space that a run needs, computed before its first step.
//!
//! ```text
//! a checkpoint   weights and optimizer state   the newest two, and one being written
//! a model        weights                       the best ones that the two name, one being written, and model/
//! ```

use std::path::Path;

use crate::config::EvalEvery;
use crate::config::budget::show_bytes;
use crate::engine::optimizer::{Averaging, moment_bytes};
use crate::error::TrainError;
use crate::planning::planned_run::PlannedRun;

/// Disk space per step: a line of `metrics.jsonl` and its share of the other logs.
const LINE_BYTES: u64 = 600;
/// Tokenizer, plan, report and memory log.
const SMALL_FILES_BYTES: u64 = 16 << 20;

/// Disk space of a run, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// One checkpoint.
    pub checkpoint_bytes: u64,
    /// One model folder.
    pub model_bytes: u64,
    /// All other files.
    pub other_bytes: u64,
    /// Whether best models are kept.
    pub has_best: bool,
}

/// No warning is printed for a disk with this many times the space that the run needs.
const PLENTY: u64 = 10;

impl DiskSpace {
    /// Disk space of a planned run.
    pub fn new(planned: &PlannedRun) -> DiskSpace {
        let graph = &planned.plan.step.graph;
        let bytes = |trainable: bool| -> u64 {
            let parameters = graph.parameters().iter();
            let counted = parameters.filter(|parameter| parameter.trainable || !trainable);
            let elements = counted.map(|one| graph.value(one.value).shape.num_elements() as u64);
            elements.sum::<u64>() * size_of::<f32>() as u64
        };
        let optimizer = &planned.prepared.setup.step.optimizer;
        let average_bytes = match optimizer.averaging {
            Averaging::OverSteps { .. } => bytes(true),
            // Computed from the starting weights for each evaluation, and not stored.
            Averaging::None | Averaging::WithStart { .. } => 0,
        };
        DiskSpace {
            checkpoint_bytes: bytes(false) + moment_bytes(graph, optimizer.moments) + average_bytes,
            model_bytes: bytes(false) + planned.prepared.setup.step.task.part_bytes(),
            other_bytes: SMALL_FILES_BYTES + LINE_BYTES * planned.total_steps(),
            has_best: planned.config.train.eval_every != EvalEvery::Never,
        }
    }

    /// Peak disk space, with a checkpoint and a model being written.
    pub fn most_bytes(&self) -> u64 {
        let models = if self.has_best { 4 } else { 1 };
        3 * self.checkpoint_bytes + models * self.model_bytes + self.other_bytes
    }

    /// Disk space of a single checkpoint and model, without which a run is useless.
    pub fn least_bytes(&self) -> u64 {
        self.checkpoint_bytes + self.model_bytes
    }

    /// Lines to print before a run in this folder; empty if there is plenty of space. An error if not even one checkpoint and
    /// model fit. `used_bytes` is the size of the files that an earlier process of the run wrote; then too little space is
    /// only a warning, because the resumed run may free some of it.
    pub fn check(
        &self,
        out: &Path,
        free_bytes: Option<u64>,
        used_bytes: u64,
    ) -> Result<Vec<String>, TrainError> {
        let most = self.most_bytes().saturating_sub(used_bytes);
        let more = if used_bytes > 0 { " more" } else { "" };
        let Some(free) = free_bytes else {
            return Ok(vec![format!(
                "Disk: the run will need about {}{more} in {}",
                show_bytes(most),
                out.display()
            )]);
        };
        if used_bytes == 0 && free < self.least_bytes() {
            return Err(TrainError::Config(format!(
                "{}: the disk has {} free, expected at least {}: a checkpoint takes {}, a model {}\n\
                 hint: free some space, or choose an --out on another disk; the whole run will need about {}",
                out.display(),
                show_bytes(free),
                show_bytes(self.least_bytes()),
                show_bytes(self.checkpoint_bytes),
                show_bytes(self.model_bytes),
                show_bytes(most)
            )));
        }
        let mut lines = Vec::new();
        // No message for a disk with plenty of space.
        if most.saturating_mul(PLENTY) > free {
            lines.push(format!(
                "Disk: the run will need about {}{more} in {}, {} are free",
                show_bytes(most),
                out.display(),
                show_bytes(free)
            ));
        }
        if free < most {
            lines.push(
                "Warning: the disk may fill up before the run ends; what was saved until then stays, and --resume goes on \
                 once there is space"
                    .to_owned(),
            );
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_cannot_save_anything_is_refused_and_one_that_may_not_end_is_warned_of() {
        let space = DiskSpace {
            checkpoint_bytes: 300 << 20,
            model_bytes: 100 << 20,
            other_bytes: 1 << 20,
            has_best: true,
        };
        let out = Path::new("runs/cars");
        let check = |free_mib: u64, used_bytes| space.check(out, Some(free_mib << 20), used_bytes);
        let error = check(399, 0).unwrap_err().to_string();
        for part in ["runs/cars", "399", "at least 400", "hint:", "1.27 GiB"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let lines = check(400, 0).unwrap();
        assert!(
            lines[0].contains("about 1.27 GiB in runs/cars, 400"),
            "{lines:?}"
        );
        assert!(lines[1].contains("may fill up"), "{lines:?}");
        assert_eq!(check(1301, 0).unwrap().len(), 1);
        assert!(check(13_010, 0).unwrap().is_empty());
        // Files on disk do not count again, and a resumed run is never refused.
        assert_eq!(check(401, 900 << 20).unwrap().len(), 1);
        assert_eq!(check(10, 900 << 20).unwrap().len(), 2);
        assert_eq!(space.check(out, None, 0).unwrap().len(), 1);
    }
}
