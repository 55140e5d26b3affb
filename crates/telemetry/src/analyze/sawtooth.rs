//! Memory that goes up and down: the start of each tooth of a sawtooth.

use super::trend::{median, quantile};

/// Indices of the minima of all falls by a large part of the range, and by far more than the noise. Short dips are ignored: an
/// evaluation that needs less memory does not begin a new cycle.
pub(super) fn resets(means: &[f64]) -> Vec<usize> {
    let smooth = without_single_points(means);
    let changes = smooth
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).abs())
        .collect();
    let noise = median(changes);
    let mut sorted = smooth.clone();
    let range = quantile(&mut sorted, 0.98) - quantile(&mut sorted, 0.02);
    let enough = (0.4 * range).max(8.0 * noise);
    if enough <= 0.0 {
        return Vec::new();
    }
    let mut falls = falls(&smooth, enough);
    // A fall at the very end is not conclusive.
    let end = smooth.len() - (smooth.len() / 30).max(5).min(smooth.len());
    falls.retain(|fall| fall.from < end);
    let ends = falls
        .iter()
        .skip(1)
        .map(|fall| fall.from)
        .chain([smooth.len()]);
    let lengths = falls.iter().zip(ends).map(|(fall, end)| {
        let below = fall.until.unwrap_or(end).min(end) - fall.from;
        below as f64 / (end - fall.from).max(1) as f64
    });
    if median(lengths.collect()) < 0.4 {
        Vec::new()
    } else {
        falls.iter().map(|fall| fall.lowest_at).collect()
    }
}

/// A fall from a maximum, and its recovery.
struct Fall {
    from: usize,
    lowest_at: usize,
    /// Index at which three quarters of the fall are recovered.
    until: Option<usize>,
}

fn falls(smooth: &[f64], enough: f64) -> Vec<Fall> {
    let mut falls: Vec<Fall> = Vec::new();
    let (mut highest, mut highest_at) = (f64::NEG_INFINITY, 0);
    let mut lowest = f64::INFINITY;
    let mut is_falling = false;
    // Level at which three quarters of the last fall are recovered.
    let mut recovered = f64::INFINITY;
    for (at, &value) in smooth.iter().enumerate() {
        if let Some(fall) = falls.last_mut() {
            if is_falling && value < lowest {
                lowest = value;
                fall.lowest_at = at;
                recovered = lowest + 0.75 * (highest - lowest);
            } else if is_falling && value > lowest + 0.25 * enough {
                is_falling = false;
                (highest, highest_at) = (value, at);
            }
            if fall.until.is_none() && value >= recovered {
                fall.until = Some(at);
            }
        }
        if is_falling {
            continue;
        }
        if value >= highest {
            (highest, highest_at) = (value, at);
        } else if value < highest - enough {
            is_falling = true;
            lowest = value;
            recovered = lowest + 0.75 * (highest - lowest);
            falls.push(Fall {
                from: highest_at,
                lowest_at: at,
                until: None,
            });
        }
    }
    falls
}

/// Running median of five points, to remove outliers.
fn without_single_points(means: &[f64]) -> Vec<f64> {
    let n = means.len();
    if n < 5 {
        return means.to_vec();
    }
    let around = |at: usize| &means[at.saturating_sub(2)..(at + 3).min(n)];
    (0..n).map(|at| median(around(at).to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_of_a_sawtooth_and_none_of_a_line() {
        let sawtooth: Vec<f64> = (0..200).map(|i| f64::from(i % 20)).collect();
        assert_eq!(resets(&sawtooth).len(), 9);
        let dips: Vec<f64> = (0..200)
            .map(|i| if i % 20 < 4 { 1.0 } else { 9.0 })
            .collect();
        assert_eq!(resets(&dips), [0usize; 0]);
        let line: Vec<f64> = (0..200)
            .map(|i| f64::from(i) + f64::from((i * 7) % 5))
            .collect();
        assert_eq!(resets(&line), [0usize; 0]);
        let mut spike = vec![5.0; 100];
        spike[50] = 50.0;
        assert_eq!(resets(&spike), [0usize; 0]);
        assert_eq!(resets(&[1.0]), [0usize; 0]);
        assert_eq!(resets(&[]), [0usize; 0]);
    }
}
