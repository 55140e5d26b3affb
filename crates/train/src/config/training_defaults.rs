//! Default effective batch, learning rates and length of a run: a table by task, and by whether the weights are
//! random. docs/benchmarks.md has the measurements behind each row.
//!
//! ```text
//! effective batch   the largest power of two with at least `min_steps_per_epoch` steps an epoch, within `batches`
//! epochs            `epochs`, or as many as `min_steps` optimizer steps take, if that is more
//! ```

use super::{TaskName, TrainSection};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingDefaults {
    /// Range of the effective batch.
    pub batches: (usize, usize),
    /// Fewest steps of an epoch, as far as the smallest batch allows.
    pub min_steps_per_epoch: usize,
    pub lr: f64,
    pub lr_head: f64,
    /// Epochs on a large data set.
    pub epochs: usize,
    /// Fewest optimizer steps, which sets the epochs on a small data set.
    pub min_steps: usize,
}

/// Pretrained CLIP, vision transformers and video-text models.
pub const FINE_TUNING: TrainingDefaults = TrainingDefaults {
    batches: (8, 128),
    min_steps_per_epoch: 16,
    lr: 2e-5,
    lr_head: 1e-3,
    epochs: 10,
    min_steps: 300,
};

/// A trained U-Net.
const SEGMENT_TRAINED: TrainingDefaults = TrainingDefaults {
    lr: 5e-4,
    lr_head: 5e-4,
    ..SEGMENT_RANDOM
};

/// A U-Net from random weights.
const SEGMENT_RANDOM: TrainingDefaults = TrainingDefaults {
    batches: (2, 4),
    min_steps_per_epoch: 16,
    lr: 2e-3,
    lr_head: 2e-3,
    epochs: 20,
    min_steps: 1_200,
};

/// A vision transformer from random weights.
const CLASSIFY_RANDOM: TrainingDefaults = TrainingDefaults {
    batches: (16, 64),
    min_steps_per_epoch: 24,
    lr: 5e-4,
    lr_head: 5e-4,
    epochs: 15,
    min_steps: 600,
};

/// A CLIP from random weights: the contrastive loss needs many negatives.
const CLIP_RANDOM: TrainingDefaults = TrainingDefaults {
    batches: (16, 128),
    min_steps_per_epoch: 24,
    lr: 5e-4,
    lr_head: 5e-3,
    epochs: 15,
    min_steps: 1_000,
};

/// A video-text model from random weights.
const VIDEO_TEXT_RANDOM: TrainingDefaults = TrainingDefaults {
    batches: (16, 32),
    min_steps_per_epoch: 20,
    lr: 5e-4,
    lr_head: 5e-3,
    epochs: 20,
    min_steps: 1_500,
};

impl TrainingDefaults {
    /// The row for a task, with or without pretrained weights.
    pub fn of(task: TaskName, is_random: bool) -> TrainingDefaults {
        match (task, is_random) {
            (TaskName::Segment, true) => SEGMENT_RANDOM,
            (TaskName::Segment, false) => SEGMENT_TRAINED,
            (TaskName::Clip, true) => CLIP_RANDOM,
            (TaskName::Classify, true) => CLASSIFY_RANDOM,
            (TaskName::VideoText, true) => VIDEO_TEXT_RANDOM,
            (TaskName::Clip | TaskName::Classify | TaskName::VideoText, false) => FINE_TUNING,
        }
    }

    /// The effective batch for a number of training samples; the largest if the number is not known.
    fn effective_batch(&self, num_samples: Option<usize>) -> usize {
        let (smallest, largest) = self.batches;
        let Some(samples) = num_samples else {
            return largest;
        };
        let most = (samples / self.min_steps_per_epoch).max(1);
        let power = 1 << most.ilog2();
        power.clamp(smallest, largest).min(samples.max(1))
    }

    /// Fills in the settings that the user left out. Also returns the filled values as text for the log.
    ///
    /// `num_samples` is `None` without data; `num_processes` share a step.
    pub fn fill(
        &self,
        train: &TrainSection,
        num_samples: Option<usize>,
        num_processes: usize,
        has_heads: bool,
    ) -> (TrainSection, Vec<String>) {
        let mut filled = train.clone();
        let mut said = Vec::new();
        let splits = (train.batch_size, train.gradient_accumulation);
        let batch = match (train.effective_batch, splits) {
            (Some(batch), _) => batch,
            (None, (Some(size), Some(accumulation))) => size * accumulation * num_processes,
            (None, (size, accumulation)) => {
                // The effective batch is a multiple of a batch size or accumulation that the user sets.
                let multiple = size.or(accumulation).unwrap_or(1).max(1) * num_processes;
                let batch = self
                    .effective_batch(num_samples)
                    .next_multiple_of(multiple.max(1));
                said.push(format!("effective batch {batch}"));
                filled.effective_batch = Some(batch);
                batch
            }
        };
        if train.lr.is_none() {
            filled.lr = Some(self.lr);
            said.push(format!("lr {:e}", self.lr));
        }
        if train.lr_head.is_none() && has_heads {
            filled.lr_head = Some(self.lr_head);
            said.push(format!("lr_head {:e}", self.lr_head));
        }
        if let (None, None, Some(samples)) = (train.epochs, train.max_steps, num_samples) {
            let steps_per_epoch = samples.div_ceil(batch.max(1)).max(1);
            let epochs = self.epochs.max(self.min_steps.div_ceil(steps_per_epoch));
            filled.epochs = Some(epochs);
            said.push(format!("{epochs} epochs"));
        }
        (filled, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TaskName; 4] = [
        TaskName::Clip,
        TaskName::Classify,
        TaskName::Segment,
        TaskName::VideoText,
    ];

    fn filled(task: TaskName, train: &TrainSection, samples: usize) -> TrainSection {
        let row = TrainingDefaults::of(task, true);
        row.fill(train, Some(samples), 1, true).0
    }

    #[test]
    fn what_the_user_says_stays() {
        let train = TrainSection {
            effective_batch: Some(7),
            epochs: Some(3),
            lr: Some(0.125),
            lr_head: Some(0.5),
            ..TrainSection::default()
        };
        for task in ALL {
            for is_random in [true, false] {
                let row = TrainingDefaults::of(task, is_random);
                let (filled, said) = row.fill(&train, Some(1000), 1, true);
                assert_eq!(filled, train);
                assert!(said.is_empty(), "{said:?}");
            }
        }
        let steps = TrainSection {
            max_steps: Some(5),
            ..TrainSection::default()
        };
        assert_eq!(filled(TaskName::Clip, &steps, 100).epochs, None);
    }

    #[test]
    fn a_small_set_has_a_small_batch_and_enough_steps() {
        for task in ALL {
            let row = TrainingDefaults::of(task, true);
            for samples in [1, 5, 20, 300, 5_000, 100_000] {
                let train = filled(task, &TrainSection::default(), samples);
                let batch = train.effective_batch.unwrap();
                assert!(batch >= 1 && batch <= samples.min(row.batches.1), "{batch}");
                let steps = samples.div_ceil(batch) * train.epochs.unwrap();
                assert!(steps >= row.min_steps, "{task:?}: {steps}");
            }
        }
    }

    #[test]
    fn the_batch_is_a_multiple_of_the_split_that_is_named() {
        for (size, accumulation) in [(Some(3), None), (None, Some(5)), (Some(100), None)] {
            let train = TrainSection {
                batch_size: size,
                gradient_accumulation: accumulation,
                ..TrainSection::default()
            };
            let row = TrainingDefaults::of(TaskName::Segment, true);
            let (train, _) = row.fill(&train, Some(50), 2, false);
            let multiple = 2 * size.or(accumulation).unwrap();
            assert!(train.effective_batch.unwrap().is_multiple_of(multiple));
            assert_eq!(train.lr_head, None);
        }
    }
}
