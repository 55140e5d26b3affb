//! Announces the duration of a ranking once, from its measured rate.

use std::time::Duration;

use holdall_metrics::retrieval::Progress;
use holdall_train::config::budget::show_time;

/// Measurement time: long enough for a reliable rate, short enough for a timely message.
const MEASURED: Duration = Duration::from_millis(300);
/// Shorter rankings are not announced.
const WORTH_A_WORD: Duration = Duration::from_secs(10);

/// Measures the rate until it is reliable.
#[derive(Debug, Default)]
pub struct Forecast {
    /// Progress and time of the first call; earlier time was not spent on ranking.
    first: Option<(u64, Duration)>,
    is_done: bool,
    /// Seconds, extrapolated from a part of the job.
    estimate: Option<f64>,
}

fn words(seconds: f64) -> Option<String> {
    (seconds > WORTH_A_WORD.as_secs_f64())
        .then(|| format!("This will take about {}", show_time(seconds * 1e3)))
}

impl Forecast {
    /// A forecast from a timing made beforehand.
    pub fn said(seconds: f64) -> Forecast {
        Forecast {
            estimate: Some(seconds),
            is_done: true,
            ..Forecast::default()
        }
    }

    /// Message at the start, if the estimate is long.
    pub fn at_start(&self) -> Option<String> {
        words(self.estimate?)
    }

    /// Message during ranking, at most once, if it takes long. `elapsed` is the time since the start.
    pub fn line(&mut self, progress: Progress, elapsed: Duration) -> Option<String> {
        let (first, began) = *self.first.get_or_insert((progress.done, elapsed));
        let (done, took) = (
            progress.done.saturating_sub(first),
            elapsed.saturating_sub(began),
        );
        if self.is_done || done == 0 || took < MEASURED {
            return None;
        }
        self.is_done = true;
        let left = progress.total.saturating_sub(progress.done) as f64 / done as f64;
        let total = elapsed.as_secs_f64() + left * took.as_secs_f64();
        words(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(forecast: &mut Forecast, done: u64, total: u64, ms: u64) -> Option<String> {
        forecast.line(Progress { done, total }, Duration::from_millis(ms))
    }

    #[test]
    fn what_takes_long_is_said_once_and_soon() {
        let mut forecast = Forecast::default();
        let total = 10_000_000 * 1_000_000;
        assert_eq!(line(&mut forecast, 0, total, 1000), None);
        assert_eq!(line(&mut forecast, 1_000_000_000, total, 1100), None);
        let said = line(&mut forecast, 4_000_000_000, total, 1400).unwrap();
        assert_eq!(said, "This will take about 17 min");
        assert_eq!(line(&mut forecast, 5_000_000_000, total, 1500), None);
    }

    #[test]
    fn what_was_timed_beforehand_is_said_at_the_start_alone() {
        let mut forecast = Forecast::said(3600.0);
        assert_eq!(
            forecast.at_start().as_deref(),
            Some("This will take about 60 min")
        );
        assert_eq!(line(&mut forecast, 4_000_000, 10_000_000_000, 1400), None);
        assert_eq!(Forecast::said(9.0).at_start(), None);
    }

    #[test]
    fn what_takes_a_moment_is_not() {
        let mut forecast = Forecast::default();
        assert_eq!(line(&mut forecast, 0, 100, 0), None);
        assert_eq!(line(&mut forecast, 50, 100, 500), None);
        assert_eq!(line(&mut forecast, 100, 100, 1000), None);
    }
}
