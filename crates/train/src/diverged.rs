//! Training that diverged: the value found, the step, and the checkpoint to resume from.

use std::fmt;

use holdall_device::DeviceError;
use holdall_models::folder::Elements;
use serde::Serialize;

use crate::optimizer::StatePart;
use crate::scaler::{Gradients, LossScaler};
use crate::step::{LossSum, Step, StepReport};
use crate::task::Loss;

/// Losses, gradients, weights or features are infinite or NaN. Such a state is never saved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diverged {
    /// Step of the finding, counted from 1.
    pub step: u64,
    /// Description of the finding.
    pub found: String,
    /// The last finite gradient norm and its step; `None` if this process ran no earlier step.
    pub last_norm: Option<StepNorm>,
    /// Step of the last checkpoint.
    pub checkpoint_step: Option<u64>,
    #[serde(skip)]
    pub hint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepNorm {
    /// Counted from 1.
    pub step: u64,
    /// Before clipping.
    pub gradient_norm: f64,
}

impl std::error::Error for Diverged {}

impl fmt::Display for Diverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: training diverged: {}", self.step, self.found)?;
        if let Some(last) = self.last_norm {
            let (norm, step) = (last.gradient_norm, last.step);
            // Two notations: 0.8 and 31.4, but 3.1e8.
            match norm {
                0.01..1e5 => write!(f, "; the gradient norm was {norm:.3} at step {step}")?,
                _ => write!(f, "; the gradient norm was {norm:.1e} at step {step}")?,
            }
        }
        write!(f, "\nhint: {}", self.hint)
    }
}

/// The first value of a step's report that is not finite, if training cannot continue from it.
pub(crate) fn in_report(
    losses: &[Loss],
    sums: &[LossSum],
    report: &StepReport,
    scaler: &mut LossScaler,
) -> Option<String> {
    let overflowed = scaler.observe(report.gradients).is_err();
    let each = losses.iter().zip(sums);
    let each = each.map(|(loss, sum)| (format!("{} loss", loss.name), sum.mean()));
    let total = ("loss".to_owned(), report.loss);
    let bad_loss = each.chain([total]).find(|(_, loss)| !loss.is_finite());
    // In fp16 a step with overflowing gradients is skipped, and the next step has a smaller loss scale.
    let is_skipped = report.gradients != Gradients::Finite && !overflowed;
    if is_skipped || (!overflowed && bad_loss.is_none()) {
        return None;
    }
    let (what, value) =
        bad_loss.unwrap_or_else(|| ("gradient norm".to_owned(), report.gradient_norm));
    let mut found = format!("the {what} is {}", name(value));
    if overflowed && scaler.is_on() {
        found += &format!(
            " at the smallest loss scale ({}): the number format is not to blame",
            scaler.scale()
        );
    }
    Some(found)
}

/// Description of the first weight or moment that is not finite.
pub(crate) fn in_state(step: &Step) -> Result<Option<String>, DeviceError> {
    for parameter in step.parameters() {
        let values = step.stored_weight(parameter).read()?;
        if let Some(found) = first_bad(&values) {
            return Ok(Some(format!(
                "weight {found} of `{}` after it",
                parameter.name
            )));
        }
    }
    for (parameter, part, stored) in step.optimizer_state() {
        let found = match stored.elements()? {
            Elements::F32(values) => first_bad(&values),
            Elements::Bf16(bits) => {
                let numbers = bits
                    .iter()
                    .map(|&bits| f32::from_bits(u32::from(bits) << 16));
                first_bad_of(numbers)
            }
            Elements::F16(_) => unreachable!("no state is in F16"),
            // Codes are finite; their scales are checked on their own.
            Elements::U8(_) => None,
        };
        if let Some(found) = found {
            let of = match part {
                StatePart::FirstMoment | StatePart::SecondMoment => "state of weight",
                StatePart::FirstScales | StatePart::SecondScales => "state of block",
                StatePart::Average => "average of weight",
            };
            return Ok(Some(format!(
                "the optimizer {of} {found} of `{}` after it",
                parameter.name
            )));
        }
    }
    Ok(None)
}

fn first_bad(values: &[f32]) -> Option<String> {
    first_bad_of(values.iter().copied())
}

fn first_bad_of(values: impl Iterator<Item = f32>) -> Option<String> {
    let (at, value) = values.enumerate().find(|(_, value)| !value.is_finite())?;
    Some(format!("{at} is {}", name(f64::from(value))))
}

fn name(value: f64) -> &'static str {
    match value {
        value if value.is_nan() => "NaN",
        value if value > 0.0 => "infinite",
        _ => "negative infinite",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Chance;

    /// The finding in a step with one loss.
    fn found(loss: f64, gradient_norm: f64, scaler: &mut LossScaler) -> Option<String> {
        let losses = [Loss {
            name: "label".to_owned(),
            weight: 1.0,
            chance: Chance::Unknown,
        }];
        let sums = [LossSum {
            sum: loss,
            count: 1.0,
        }];
        let report = StepReport {
            loss,
            gradient_norm,
            gradients: if gradient_norm.is_finite() {
                Gradients::Finite
            } else {
                Gradients::Overflowed
            },
        };
        in_report(&losses, &sums, &report, scaler)
    }

    #[test]
    fn without_a_loss_scale_nothing_is_said_of_one() {
        let found = |loss, norm| found(loss, norm, &mut LossScaler::off());
        assert_eq!(found(2.0, 1.0), None);
        assert_eq!(
            found(f64::NAN, f64::NAN).as_deref(),
            Some("the label loss is NaN")
        );
        assert_eq!(
            found(2.0, f64::INFINITY).as_deref(),
            Some("the gradient norm is infinite")
        );
        // The gradients may be finite although the loss is not.
        assert_eq!(
            found(f64::INFINITY, 1.0).as_deref(),
            Some("the label loss is infinite")
        );
    }

    #[test]
    fn in_fp16_steps_are_skipped_until_the_scale_is_the_smallest() {
        let mut scaler = LossScaler::default();
        for _ in 0..16 {
            assert_eq!(found(2.0, f64::INFINITY, &mut scaler), None);
        }
        let found = found(2.0, f64::INFINITY, &mut scaler).unwrap();
        assert!(found.contains("at the smallest loss scale (1)"), "{found}");
    }

    #[test]
    fn it_says_the_step_the_norm_before_and_what_to_do() {
        let mut diverged = Diverged {
            step: 17,
            found: "the label loss is NaN".to_owned(),
            last_norm: Some(StepNorm {
                step: 16,
                gradient_norm: 3.1e8,
            }),
            checkpoint_step: None,
            hint: "a lower `lr`".to_owned(),
        };
        assert_eq!(
            diverged.to_string(),
            "step 17: training diverged: the label loss is NaN; the gradient norm was 3.1e8 at step 16\n\
             hint: a lower `lr`"
        );
        diverged.last_norm = None;
        assert!(diverged.to_string().contains("is NaN\nhint"));
    }
}
