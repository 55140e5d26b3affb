//! Losses of evaluated pictures, from their probabilities at their own size.
//!
//! Pixel losses are means over the labelled pixels of all pictures. Dice and Tversky over the batch treat all pictures as one
//! batch; over each image, they are means over pictures. With deep supervision only the full-size head is evaluated.

use holdall_graph::ops::overlap::OverlapLoss;

use super::SegmentTask;
use super::loss_terms::TermKind;
use crate::config::DiceOver;
use crate::engine::scores::EvaluatedLoss;
use crate::engine::task::Loss;

/// Lower bound of probabilities under a logarithm: half the spacing of f32 just below 1, which limits `1 - p`.
const LEAST: f64 = 1.0 / (1u64 << 25) as f64;

/// True positives, predicted and true pixels of one class, as sums of probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Overlap {
    both: f64,
    predicted: f64,
    truth: f64,
}

/// Sums over the pixels of one or more pictures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PictureLosses {
    num_pictures: f64,
    /// Total class weight of the labelled pixels.
    pixel_weights: f64,
    /// Sum of each loss; 0 for losses over all pictures together.
    sums: Vec<f64>,
    classes: Vec<Overlap>,
}

impl PictureLosses {
    pub(super) fn none(task: &SegmentTask) -> PictureLosses {
        PictureLosses {
            num_pictures: 0.0,
            pixel_weights: 0.0,
            sums: vec![0.0; task.terms.len()],
            classes: vec![Overlap::default(); task.model.num_outputs()],
        }
    }

    /// The sums of one picture with a mask.
    pub(super) fn of(
        task: &SegmentTask,
        truth_hw: &[u8],
        probabilities_hwk: &[f32],
    ) -> PictureLosses {
        let mut losses = PictureLosses::none(task);
        losses.num_pictures = 1.0;
        let outputs = task.model.num_outputs();
        let pixels = truth_hw.iter().zip(probabilities_hwk.chunks(outputs));
        for (&label, probabilities) in pixels {
            let Some(&weight) = task.class_weights.get(usize::from(label)) else {
                continue;
            };
            let weight = f64::from(weight);
            let own = match (outputs, label) {
                (1, 0) => 1.0 - f64::from(probabilities[0]),
                (1, _) => f64::from(probabilities[0]),
                _ => f64::from(probabilities[usize::from(label)]),
            };
            let cross_entropy = -own.max(LEAST).ln();
            losses.pixel_weights += weight;
            for (term, sum) in task.terms.iter().zip(&mut losses.sums) {
                match term.kind {
                    TermKind::Pixels { focal: None } => *sum += weight * cross_entropy,
                    TermKind::Pixels { focal: Some(gamma) } => {
                        *sum += weight * (1.0 - own).powf(gamma) * cross_entropy;
                    }
                    TermKind::Overlap { .. } => {}
                }
            }
            // The single class of a sigmoid is label 1.
            let first_label = if outputs == 1 { 1 } else { 0 };
            for (class, (overlap, &p)) in losses.classes.iter_mut().zip(probabilities).enumerate() {
                let p = f64::from(p);
                overlap.predicted += p;
                if usize::from(label) == class + first_label {
                    overlap.both += p;
                    overlap.truth += 1.0;
                }
            }
        }
        for (index, term) in task.terms.iter().enumerate() {
            if let TermKind::Overlap { alpha, beta, over } = term.kind
                && over == DiceOver::Image
            {
                let op = task.overlap_loss(alpha, beta, over);
                losses.sums[index] = overlap_loss(&op, &losses.classes);
            }
        }
        losses
    }

    /// Adds another picture's sums; callers add in the order of the samples.
    pub(super) fn add(&mut self, other: &PictureLosses) {
        self.num_pictures += other.num_pictures;
        self.pixel_weights += other.pixel_weights;
        let sums = self.sums.iter_mut().zip(&other.sums);
        sums.for_each(|(sum, other)| *sum += other);
        for (class, other) in self.classes.iter_mut().zip(&other.classes) {
            class.both += other.both;
            class.predicted += other.predicted;
            class.truth += other.truth;
        }
    }

    /// All sums as a list, whose length depends on the task only.
    pub(super) fn numbers(&self) -> Vec<f64> {
        let classes = self.classes.iter();
        let classes = classes.flat_map(|one| [one.both, one.predicted, one.truth]);
        let first = [self.num_pictures, self.pixel_weights].into_iter();
        first
            .chain(self.sums.iter().copied())
            .chain(classes)
            .collect()
    }

    /// The inverse of [`PictureLosses::numbers`].
    pub(super) fn from_numbers(task: &SegmentTask, numbers: &[f64]) -> Option<PictureLosses> {
        let [num_pictures, pixel_weights, rest @ ..] = numbers else {
            return None;
        };
        let (sums, classes) = rest.split_at_checked(task.terms.len())?;
        let class = |one: &[f64]| Overlap {
            both: one[0],
            predicted: one[1],
            truth: one[2],
        };
        let classes: Vec<Overlap> = classes.chunks_exact(3).map(class).collect();
        (classes.len() == task.model.num_outputs()).then(|| PictureLosses {
            num_pictures: *num_pictures,
            pixel_weights: *pixel_weights,
            sums: sums.to_vec(),
            classes,
        })
    }

    /// Means over all pictures that were added.
    pub(super) fn means(&self, task: &SegmentTask) -> Vec<EvaluatedLoss> {
        // The losses of the full-size head come first.
        let names = task.all_losses().into_iter();
        let each = names.zip(&task.terms).zip(&self.sums);
        each.map(|((Loss { name, chance, .. }, term), sum)| {
            let divided = |count: f64| (count > 0.0).then(|| sum / count);
            EvaluatedLoss {
                name,
                weight: term.weight,
                mean: match term.kind {
                    TermKind::Pixels { .. } => divided(self.pixel_weights),
                    TermKind::Overlap { alpha, beta, over } => match over {
                        DiceOver::Image => divided(self.num_pictures),
                        DiceOver::Batch => {
                            let op = task.overlap_loss(alpha, beta, over);
                            (self.num_pictures > 0.0).then(|| overlap_loss(&op, &self.classes))
                        }
                    },
                },
                chance: chance.of(1),
            }
        })
        .collect()
    }
}

/// Mean over classes of one minus the Tversky index.
fn overlap_loss(op: &OverlapLoss, classes: &[Overlap]) -> f64 {
    let counted = &classes[op.first_class.min(classes.len())..];
    let losses = counted.iter().map(|one| {
        let invented = one.predicted - one.both;
        let missed = one.truth - one.both;
        let most = one.both + op.alpha * invented + op.beta * missed + op.smooth;
        if most > 0.0 {
            1.0 - (one.both + op.smooth) / most
        } else {
            0.0
        }
    });
    losses.sum::<f64>() / counted.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use holdall_models::unet::config::UnetConfig;

    use super::super::LossTerm;
    use super::*;

    fn task(terms: Vec<LossTerm>) -> SegmentTask {
        let model = UnetConfig::preset("unet-demo").expect("a preset");
        SegmentTask {
            terms,
            class_weights: vec![1.0, 3.0],
            ..SegmentTask::new(model, [32, 32])
        }
    }

    fn term(kind: TermKind) -> LossTerm {
        LossTerm {
            name: "loss",
            weight: 1.0,
            kind,
        }
    }

    fn dice(over: DiceOver) -> LossTerm {
        let (alpha, beta) = (0.5, 0.5);
        term(TermKind::Overlap { alpha, beta, over })
    }

    /// Two pictures computed by hand: pixels outside the field of view do not count.
    #[test]
    fn sums_over_pictures_are_divided_once() {
        let task = task(vec![
            term(TermKind::Pixels { focal: None }),
            term(TermKind::Pixels { focal: Some(2.0) }),
            dice(DiceOver::Batch),
            dice(DiceOver::Image),
        ]);
        let first = PictureLosses::of(&task, &[1, 0, 255], &[0.5, 0.25, 0.9]);
        let second = PictureLosses::of(&task, &[0], &[1.0]);
        let mut all = PictureLosses::none(&task);
        for one in [&first, &second] {
            let again = PictureLosses::from_numbers(&task, &one.numbers()).unwrap();
            assert_eq!(again, *one);
            all.add(&again);
        }
        let means: Vec<f64> = all
            .means(&task)
            .iter()
            .map(|one| one.mean.unwrap())
            .collect();
        let [half, quarter] = [2f64.ln(), -(0.75f64.ln())];
        let sure = 25.0 * 2f64.ln();
        let entropy = (3.0 * half + quarter + sure) / 5.0;
        let focal = (3.0 * 0.25 * half + 0.0625 * quarter + sure) / 5.0;
        // TP 0.5, P 1.75, G 1 together; 0.5, 0.75, 1 and 0, 1, 0 each.
        let batch = 1.0 - (2.0 * 0.5 + 1.0) / (1.75 + 1.0 + 1.0);
        let image = ((1.0 - 2.0 / 2.75) + (1.0 - 1.0 / 2.0)) / 2.0;
        for (found, expected) in means.iter().zip([entropy, focal, batch, image]) {
            assert!((found - expected).abs() < 1e-9, "{means:?} {expected}");
        }
        assert!(PictureLosses::from_numbers(&task, &[1.0]).is_none());
    }
}
