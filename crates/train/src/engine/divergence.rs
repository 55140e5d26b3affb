//! Checks that losses, gradients and weights are finite.

use holdall_device::DeviceError;
use holdall_models::folder::Elements;

use crate::engine::optimizer::StatePart;
use crate::engine::scaler::{Gradients, LossScaler};
use crate::engine::step::{LossSum, Step, StepReport};
use crate::engine::task::Loss;

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
    use crate::engine::task::Chance;

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
}
