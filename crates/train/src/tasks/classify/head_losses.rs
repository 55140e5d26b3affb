//! Losses of heads in an evaluation: the sums and counts of a training step without mixing, over all samples.

use holdall_data::samples::{TargetKind, TargetValues};

use super::Head;
use crate::engine::scores::EvaluatedLoss;
use crate::engine::step::LossSum;
use crate::engine::task::Loss;

impl Head {
    /// Adds the loss of a sample's outputs: logits, or a standardised number. Unknown targets add nothing.
    pub(super) fn add_loss(
        &self,
        outputs: &[f32],
        values: &TargetValues,
        sample: usize,
        to: &mut LossSum,
    ) {
        match (&self.kind, values) {
            (TargetKind::Class { .. }, TargetValues::Class(labels)) => {
                if let Ok(label) = usize::try_from(labels[sample]) {
                    let weight = f64::from(self.class_weight(label));
                    to.sum += if self.weighs_smoothing() {
                        self.weighted_smooth_cross_entropy(outputs, label)
                    } else {
                        weight * cross_entropy(outputs, label, self.smoothing)
                    };
                    to.count += weight;
                }
            }
            (TargetKind::Classes { .. }, TargetValues::Classes(rows)) => {
                let Some(labels) = rows.get(sample) else {
                    return;
                };
                for (output, &logit) in outputs.iter().enumerate() {
                    let is_label = labels.binary_search(&(output as u32)).is_ok();
                    let weight = f64::from(self.class_weight(output));
                    let logit = f64::from(logit);
                    let of_label = if is_label { logit } else { 0.0 };
                    to.sum += weight * (logit.max(0.0) - of_label + (-logit.abs()).exp().ln_1p());
                    to.count += weight;
                }
            }
            (&TargetKind::Number { mean, std }, TargetValues::Number(numbers)) => {
                let number = f64::from(numbers[sample]);
                if !number.is_nan() {
                    let weight = f64::from(self.class_weight(0));
                    let error = f64::from(outputs[0]) - (number - mean) / std;
                    to.sum += weight * error * error;
                    to.count += weight;
                }
            }
            _ => unreachable!("values are of the head's kind"),
        }
    }

    /// With class weights, label smoothing weighs the share of each class by that class's weight.
    fn weighted_smooth_cross_entropy(&self, logits: &[f32], label: usize) -> f64 {
        let log_sum = log_sum_exp(logits);
        let of_class = |class: usize, logit: f32| {
            f64::from(self.class_weight(class)) * (log_sum - f64::from(logit))
        };
        let logits = logits.iter().copied();
        let all: f64 = logits
            .clone()
            .enumerate()
            .map(|(c, logit)| of_class(c, logit))
            .sum();
        let num_classes = logits.len() as f64;
        let own = logits.clone().nth(label).unwrap_or(0.0);
        (1.0 - self.smoothing) * of_class(label, own) + self.smoothing / num_classes * all
    }
}

/// Cross-entropy of one row, `smoothing` of the target spread over all classes.
pub(in crate::tasks) fn cross_entropy(logits: &[f32], label: usize, smoothing: f64) -> f64 {
    let mean = logits.iter().map(|&logit| f64::from(logit)).sum::<f64>() / logits.len() as f64;
    let target = (1.0 - smoothing) * f64::from(logits[label]) + smoothing * mean;
    log_sum_exp(logits) - target
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let highest = f64::from(highest);
    let exps = logits
        .iter()
        .map(|&logit| (f64::from(logit) - highest).exp());
    highest + exps.sum::<f64>().ln()
}

/// Losses of the heads from their sums, in the task's order.
pub(in crate::tasks) fn evaluated<'a>(
    losses: impl IntoIterator<Item = Loss>,
    sums: impl IntoIterator<Item = &'a LossSum>,
) -> Vec<EvaluatedLoss> {
    let each = losses.into_iter().zip(sums);
    each.map(|(loss, sum)| EvaluatedLoss {
        name: loss.name,
        weight: loss.weight,
        mean: (sum.count > 0.0).then(|| sum.mean()),
        // Separable losses only: the chance of a contrastive loss depends on its block size.
        chance: loss.chance.of(1),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use holdall_data::samples::{ClassRows, Target};

    use super::*;

    fn head(kind: TargetKind) -> Head {
        Head::new(&Target {
            name: "target".to_owned(),
            kind,
        })
    }

    fn sum(head: &Head, rows: &[&[f32]], values: &TargetValues) -> LossSum {
        let mut sum = LossSum::default();
        for (sample, outputs) in rows.iter().enumerate() {
            head.add_loss(outputs, values, sample, &mut sum);
        }
        sum
    }

    /// By hand, as `F.cross_entropy(torch.tensor([[1., 2., 0.], [0., 0., 3.]]), torch.tensor([1, 0]), weight=torch.tensor([2., 1.,
    /// 1.]), label_smoothing=e)`. Rows with an unknown label add nothing.
    #[test]
    fn classes_as_pytorch_weighs_and_smooths_them() {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut head = head(TargetKind::Class { names });
        let rows: [&[f32]; 3] = [&[1.0, 2.0, 0.0], &[0.0, 0.0, 3.0], &[9.0, 0.0, 0.0]];
        let values = TargetValues::Class(vec![1, 0, -1]);
        let lse = |row: &[f64]| row.iter().map(|z| z.exp()).sum::<f64>().ln();
        let [first, second] = [lse(&[1.0, 2.0, 0.0]), lse(&[0.0, 0.0, 3.0])];
        let plain = (first - 2.0) + second;
        let found = sum(&head, &rows, &values);
        assert!((found.sum - plain).abs() < 1e-12 && found.count == 2.0);
        head.class_weights = vec![2.0, 1.0, 1.0];
        let found = sum(&head, &rows, &values);
        let weighted = (first - 2.0) + 2.0 * second;
        assert!((found.sum - weighted).abs() < 1e-12 && found.count == 3.0);
        head.smoothing = 0.3;
        let spread = |lse: f64, row: [f64; 3]| 2.0 * (lse - row[0]) + 2.0 * lse - row[1] - row[2];
        let smooth = 0.7 * weighted
            + 0.1 * (spread(first, [1.0, 2.0, 0.0]) + spread(second, [0.0, 0.0, 3.0]));
        let found = sum(&head, &rows, &values);
        assert!((found.sum - smooth).abs() < 1e-12 && found.count == 3.0);
        head.class_weights.clear();
        let found = sum(&head, &rows, &values);
        let even = 0.7 * plain + 0.1 * (3.0 * first - 3.0 + 3.0 * second - 3.0);
        assert!((found.sum - even).abs() < 1e-12 && found.count == 2.0);
    }

    #[test]
    fn labels_and_numbers_that_are_not_known_count_nothing() {
        let names = ["a", "b"].map(str::to_owned).to_vec();
        let mut labels = head(TargetKind::Classes { names });
        labels.class_weights = vec![3.0, 1.0];
        let mut rows = ClassRows::default();
        rows.push(Some(&[1]));
        rows.push(None);
        let values = TargetValues::Classes(rows);
        let found = sum(&labels, &[&[0.0, 2.0], &[5.0, 5.0]], &values);
        let expected = 3.0 * 2f64.ln() + (1.0 + (-2f64).exp()).ln();
        assert!((found.sum - expected).abs() < 1e-12 && found.count == 4.0);
        let number = head(TargetKind::Number {
            mean: 30.0,
            std: 10.0,
        });
        let values = TargetValues::Number(vec![40.0, f32::NAN]);
        let found = sum(&number, &[&[0.5], &[7.0]], &values);
        assert_eq!((found.sum, found.count), (0.25, 1.0));
    }
}
