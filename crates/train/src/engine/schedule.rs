//! Learning rates over a run: a straight line up, then half a cosine or a straight line down.
//!
//! ```text
//! factor(s) = s / warmup                                             for step s = 1 .. warmup
//!           = end + (1 - end) (1 + cos(pi (s - warmup) / (total - warmup + 1))) / 2      after it, by a cosine
//!           = end + (1 - end) (1 - (s - warmup) / (total - warmup + 1))                  after it, by a line
//! ```
//!
//! Every rate is multiplied by the same factor. The factor of the last step is above zero.

use crate::config::{RunConfig, Schedule};

#[derive(Clone, Debug, PartialEq)]
pub struct LearningRates {
    full: Vec<f64>,
    schedule: Schedule,
    warmup: usize,
    total: usize,
    end: f64,
}

impl LearningRates {
    /// Learning rates for a run of `total` optimizer steps.
    pub fn new(config: &RunConfig, total: usize) -> LearningRates {
        let train = &config.train;
        let mut full = vec![train.rate(), train.head_rate()];
        full.extend(train.lr_by.0.iter().map(|&(_, rate)| rate));
        LearningRates {
            full,
            schedule: train.schedule,
            warmup: train.warmup.steps(total),
            total,
            end: train.lr_end,
        }
    }

    /// Factor of the rates in a step, counted from 1.
    pub fn factor(&self, step: u64) -> f64 {
        let (step, warmup) = (step as f64, self.warmup as f64);
        if step <= warmup {
            return step / warmup;
        }
        let done = (step - warmup) / (self.total as f64 - warmup + 1.0);
        match self.schedule {
            Schedule::Constant => 1.0,
            Schedule::Linear => self.end + (1.0 - self.end) * (1.0 - done.min(1.0)),
            Schedule::Cosine => {
                let cosine = (1.0 + (std::f64::consts::PI * done.min(1.0)).cos()) / 2.0;
                self.end + (1.0 - self.end) * cosine
            }
        }
    }

    /// Replaces `rates` by the rates of a step.
    pub fn write(&self, step: u64, rates: &mut Vec<f64>) {
        let factor = self.factor(step);
        rates.clear();
        rates.extend(self.full.iter().map(|rate| rate * factor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Warmup;

    fn rates(warmup: Warmup, schedule: Schedule, end: f64) -> LearningRates {
        let mut config = RunConfig::default();
        config.train.warmup = warmup;
        config.train.schedule = schedule;
        config.train.lr_end = end;
        LearningRates::new(&config, 100)
    }

    #[test]
    fn up_in_a_line_then_down_a_cosine_to_its_end() {
        let rates = rates(Warmup::Steps(10), Schedule::Cosine, 0.1);
        assert_eq!(rates.factor(1), 0.1);
        assert_eq!(rates.factor(10), 1.0);
        let falling: Vec<f64> = (10..=100).map(|step| rates.factor(step)).collect();
        assert!(falling.windows(2).all(|pair| pair[1] < pair[0]));
        let last = rates.factor(100);
        assert!(last > 0.1 && last < 0.101, "{last}");
        assert_eq!(rates.factor(101), 0.1);
    }

    #[test]
    fn up_in_a_line_then_down_in_a_line() {
        let rates = rates(Warmup::Steps(10), Schedule::Linear, 0.1);
        assert_eq!(rates.factor(10), 1.0);
        let step = rates.factor(10) - rates.factor(11);
        for at in 11..=101 {
            let difference = rates.factor(at - 1) - rates.factor(at);
            assert!((difference - step).abs() < 1e-12, "step {at}");
        }
        assert!((rates.factor(101) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn a_share_of_the_run_or_no_warmup_at_all() {
        assert_eq!(
            rates(Warmup::Percent(5.0), Schedule::Constant, 0.0).factor(4),
            0.8
        );
        assert_eq!(
            rates(Warmup::Percent(5.0), Schedule::Constant, 0.0).factor(99),
            1.0
        );
        let none = rates(Warmup::Steps(0), Schedule::Cosine, 0.0);
        assert!(none.factor(1) < 1.0 && none.factor(1) > 0.99);
        let mut written = Vec::new();
        none.write(50, &mut written);
        assert_eq!(written.len(), 2);
        assert!((written[1] / written[0] - 50.0).abs() < 1e-9);
    }
}
