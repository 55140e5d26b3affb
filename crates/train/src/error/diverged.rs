//! Training that diverged: where it was found, and the checkpoint that is left.

use std::fmt;

use serde::Serialize;

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
