//! The mean of each loss over the steps of an epoch: sums over counts, comparable steps only.

use serde::{Deserialize, Serialize};

use crate::engine::step::LossSum;
use crate::engine::task::{Chance, Loss};

/// A loss in a step, written as `NAME` and `NAME_chance`; readers recognise a loss by that pair.
#[derive(Clone, Debug, PartialEq)]
pub struct LossLine {
    /// Name of the loss, as the task defines it.
    pub name: String,
    /// Mean over the step.
    pub mean: f64,
    /// Loss of random guessing, if known.
    pub chance: Option<f64>,
}

/// Weighted sum of all losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TotalLoss {
    /// The sum.
    pub value: f64,
    /// The same sum for random guessing, if it is known for every loss.
    pub chance: Option<f64>,
}

impl TotalLoss {
    /// Adds up losses, each given as weight, mean and chance.
    pub(crate) fn of(losses: impl IntoIterator<Item = (f64, f64, Option<f64>)>) -> TotalLoss {
        let none = TotalLoss {
            value: 0.0,
            chance: Some(0.0),
        };
        let add = |total: TotalLoss, (weight, mean, chance): (f64, f64, Option<f64>)| TotalLoss {
            value: total.value + weight * mean,
            chance: total
                .chance
                .zip(chance)
                .map(|(total, one)| total + weight * one),
        };
        losses.into_iter().fold(none, add)
    }
}

/// Sums over the steps of an epoch so far; stored in a checkpoint within an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochLosses {
    losses: Vec<EpochLoss>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct EpochLoss {
    #[serde(with = "bits")]
    sum: f64,
    #[serde(with = "bits")]
    count: f64,
    /// Samples per step that counts.
    step_samples: usize,
}

/// Serde format of numbers as their bits: a decimal may change in its last digit, and a resumed run must not.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.to_bits())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

impl Loss {
    /// Whether the loss depends on the number of samples of a step.
    pub(crate) fn depends_on_samples(&self) -> bool {
        self.chance == Chance::LogSamples
    }
}

impl EpochLosses {
    pub fn is_empty(&self) -> bool {
        self.losses.is_empty()
    }

    /// Starts an epoch.
    pub fn clear(&mut self) {
        self.losses.clear();
    }

    /// Adds a step. A contrastive loss among fewer candidates is not comparable: a smaller step counts only if the epoch has
    /// no larger one.
    pub(crate) fn add(&mut self, losses: &[Loss], sums: &[LossSum], samples: usize) {
        self.losses.resize(losses.len(), EpochLoss::default());
        for ((loss, sum), total) in losses.iter().zip(sums).zip(&mut self.losses) {
            if loss.depends_on_samples() && samples != total.step_samples {
                if samples < total.step_samples {
                    continue;
                }
                *total = EpochLoss::default();
            }
            total.sum += sum.sum;
            total.count += sum.count;
            total.step_samples = samples;
        }
    }

    /// Mean of each loss so far.
    pub(crate) fn means(&self, losses: &[Loss]) -> Vec<LossLine> {
        let each = losses.iter().zip(&self.losses);
        each.map(|(loss, total)| LossLine {
            name: loss.name.clone(),
            mean: LossSum {
                sum: total.sum,
                count: total.count,
            }
            .mean(),
            chance: loss.chance.of(total.step_samples),
        })
        .collect()
    }

    /// Weighted sum of the means.
    pub(crate) fn total(&self, losses: &[Loss]) -> TotalLoss {
        let means = self.means(losses);
        let each = losses.iter().zip(means);
        TotalLoss::of(each.map(|(loss, line)| (loss.weight, line.mean, line.chance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(sum: f64, count: f64) -> LossSum {
        LossSum { sum, count }
    }

    #[test]
    fn short_steps_are_left_out_of_a_contrastive_mean_and_counted_in_others() {
        let loss = |name: &str, weight, chance| Loss {
            name: name.to_owned(),
            weight,
            chance,
        };
        let losses = [
            loss("contrastive", 1.0, Chance::LogSamples),
            loss("label", 0.5, Chance::Log(4)),
        ];
        let mut epoch = EpochLosses::default();
        // A single step counts, even a short one.
        epoch.add(&losses, &[sum(3.0, 3.0), sum(2.0, 1.0)], 3);
        assert_eq!(epoch.means(&losses)[0].chance, Some(3f64.ln()));
        epoch.clear();
        for (samples, contrastive) in [(128, 4.0), (128, 5.0), (61, 1.0)] {
            let count = samples as f64;
            let sums = [sum(contrastive * count, count), sum(count, count)];
            epoch.add(&losses, &sums, samples);
        }
        let means = epoch.means(&losses);
        assert_eq!((means[0].mean, means[0].chance), (4.5, Some(128f64.ln())));
        assert_eq!((means[1].mean, means[1].chance), (1.0, Some(4f64.ln())));
        let total = epoch.total(&losses);
        assert_eq!(total.value, 5.0);
        let chance = 128f64.ln() + 0.5 * 4f64.ln();
        assert!((total.chance.unwrap() - chance).abs() < 1e-12);
    }
}
