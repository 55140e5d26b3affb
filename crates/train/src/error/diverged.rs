//! Training that diverged: where it was found, and the checkpoint that is left.

use std::fmt;

use serde::Serialize;

/// Losses, gradients, weights or features are infinite or not a number. Nothing of it is saved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diverged {
    /// The step at which it was found, counted from 1.
    pub step: u64,
    /// What was found.
    pub found: String,
    /// The last gradient norm before it that was finite, and its step; none where there was no step before in this process.
    pub last_norm: Option<StepNorm>,
    /// The step of the checkpoint that is left, from before.
    pub checkpoint_step: Option<u64>,
    /// What to do.
    #[serde(skip)]
    pub hint: String,
}

/// A gradient norm and its step.
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
            // As people write them: 0.8, 31.4, 3.1e8.
            match norm {
                0.01..1e5 => write!(f, "; the gradient norm was {norm:.3} at step {step}")?,
                _ => write!(f, "; the gradient norm was {norm:.1e} at step {step}")?,
            }
        }
        write!(f, "\nhint: {}", self.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
