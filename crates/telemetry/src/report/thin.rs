//! Thins curves to a number of points that can be drawn, and keeps their extremes.

use serde::Serialize;

pub const MAX_POINTS: usize = 2000;

/// A curve; `y` is `null` where there is no number.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    pub x: Vec<f64>,
    pub y: Vec<Option<f64>>,
}

impl Curve {
    /// At most [`MAX_POINTS`] points: the lowest and the highest of each stretch, and a gap if it has one.
    pub fn thinned(points: &[(f64, Option<f64>)]) -> Curve {
        let mut curve = Curve::default();
        if points.len() <= MAX_POINTS {
            points.iter().for_each(|&point| curve.push(point));
            return curve;
        }
        // Both ends, and up to three points per stretch.
        let num_stretches = (MAX_POINTS - 2) / 3;
        let (first, last) = (points[0], points[points.len() - 1]);
        curve.push(first);
        let inner = &points[1..points.len() - 1];
        for stretch in inner.chunks(inner.len().div_ceil(num_stretches)) {
            let mut chosen = [
                extreme(stretch, |y, best| y < best),
                extreme(stretch, |y, best| y > best),
                stretch.iter().position(|(_, y)| y.is_none()),
            ];
            chosen.sort();
            let mut before = None;
            for index in chosen.into_iter().flatten() {
                if before.replace(index) != Some(index) {
                    curve.push(stretch[index]);
                }
            }
        }
        curve.push(last);
        curve
    }

    fn push(&mut self, (x, y): (f64, Option<f64>)) {
        self.x.push(six_digits(x));
        self.y.push(y.map(six_digits));
    }
}

fn extreme(points: &[(f64, Option<f64>)], better: impl Fn(f64, f64) -> bool) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, y) in points
        .iter()
        .enumerate()
        .filter_map(|(i, p)| Some((i, p.1?)))
    {
        if best.is_none_or(|(_, value)| better(y, value)) {
            best = Some((index, y));
        }
    }
    best.map(|(index, _)| index)
}

/// A number with the six digits that a screen can show; integers are unchanged.
pub fn six_digits(value: f64) -> f64 {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Exponential mean over about a sixtieth of the points to either side. It has no lag; at the ends it uses the points that exist.
pub fn smoothed(points: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    let there: Vec<(f64, f64)> = points.iter().filter_map(|&(x, y)| Some((x, y?))).collect();
    let keep = 1.0 - 1.0 / (there.len() as f64 / 60.0).max(1.0);
    let before = sums(there.iter().map(|(_, y)| *y), keep);
    let mut after = sums(there.iter().rev().map(|(_, y)| *y), keep);
    after.reverse();
    let both = before.iter().zip(&after);
    let both = both.map(|((sum, weight), (other, also))| (sum + other) / (weight + also));
    there
        .iter()
        .zip(both)
        .map(|(&(x, _), mean)| (x, Some(mean)))
        .collect()
}

/// Weighted sums of all values so far, and their weights.
fn sums(values: impl Iterator<Item = f64>, keep: f64) -> Vec<(f64, f64)> {
    let (mut sum, mut weight) = (0.0, 0.0);
    let add = |value: f64| {
        sum = keep * sum + (1.0 - keep) * value;
        weight = keep * weight + (1.0 - keep);
        (sum, weight)
    };
    values.map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_ends_and_gaps_stay() {
        let mut points: Vec<(f64, Option<f64>)> = (0..20_000)
            .map(|x| (f64::from(x), Some(f64::from(x % 7))))
            .collect();
        points[12_345].1 = Some(99.5);
        points[777].1 = Some(-3.25);
        points[4321].1 = None;
        let curve = Curve::thinned(&points);
        assert!(curve.x.len() <= MAX_POINTS, "{}", curve.x.len());
        assert!(curve.x.is_sorted());
        assert_eq!((curve.x[0], *curve.x.last().unwrap()), (0.0, 19_999.0));
        let at = |x: f64| curve.x.iter().position(|&found| found == x);
        assert_eq!(curve.y[at(12_345.0).unwrap()], Some(99.5));
        assert_eq!(curve.y[at(777.0).unwrap()], Some(-3.25));
        assert_eq!(curve.y[at(4321.0).unwrap()], None);
    }

    #[test]
    fn short_curves_are_left_alone() {
        let points = [(1.0, Some(0.123_456_789)), (2.0, None)];
        let curve = Curve::thinned(&points);
        assert_eq!(curve.y, [Some(0.123_457), None]);
        assert_eq!(Curve::thinned(&[]), Curve::default());
    }

    /// One outlier at the end moves the mean by its share only.
    #[test]
    fn the_last_point_is_one_among_others() {
        let mut points: Vec<_> = (0..600).map(|x| (f64::from(x), Some(1.0))).collect();
        points[599].1 = Some(11.0);
        let end = smoothed(&points)[599].1.unwrap();
        assert!((1.5..4.0).contains(&end), "{end}");
    }

    #[test]
    fn a_constant_stays_constant_when_smoothed() {
        let points: Vec<_> = (0..500).map(|x| (f64::from(x), Some(4.0))).collect();
        let mean = smoothed(&points);
        assert_eq!(mean.len(), 500);
        assert!(mean.iter().all(|(_, y)| (y.unwrap() - 4.0).abs() < 1e-12));
    }
}
