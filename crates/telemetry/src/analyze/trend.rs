//! Does memory grow steadily? A slope with a confidence interval; warm-up and single steps are not reported as leaks.
//!
//! ```text
//! y(x) = a + c x + sum of b_k g_k(x) + noise        x in [0, 1], b_k >= 0
//! g    = 1 - exp(-x / tau)   warm-up: caches fill, then no more
//!        [x >= k]            a single step: another model, a longer sequence
//! ```
//!
//! Terms `g` are added greedily while each is worth its two parameters (BIC); `c` is the remaining growth. Residuals have Huber
//! weights, so that a few outliers count no more than a few points. The variance of `c` is widened by the autocorrelation of the
//! residuals, and its interval is Student's t with the remaining degrees of freedom. The reported slope is the Theil-Sen estimate,
//! the median of the slopes of all pairs of points, of the data without the terms `g`. A leak that comes in jumps, such as one per
//! epoch, consists of steps too: if steps were removed, the interval extends to the slope with the steps left in.

/// Growth from the first point to the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    /// Theil-Sen estimate.
    pub growth: f64,
    /// 95% confidence interval.
    pub low: f64,
    pub high: f64,
    /// Growth in standard errors.
    pub certainty: f64,
    /// Growth of the second half, extrapolated to the whole.
    pub late_growth: f64,
}

/// Terms besides the slope, at most.
const MOST_TERMS: usize = 3;
const FEWEST_POINTS: usize = 6;
/// Share of the total growth above which a jump is a single event.
const EVENT: f64 = 0.4;

/// The trend of points; `None` if there are too few.
pub(super) fn trend(at: &[f64], y: &[f64]) -> Option<Trend> {
    let n = y.len();
    if n < FEWEST_POINTS {
        return None;
    }
    let x = normalized(at)?;
    let mut terms: Vec<Vec<f64>> = Vec::new();
    let mut best = fit(&x, y, &terms)?;
    let candidates = candidates(&x);
    // Two parameters each; for a step these are its position and its height.
    let price = 2.0 * (n as f64).ln();
    while terms.len() < MOST_TERMS && terms.len() + 5 < n {
        let better = candidates
            .iter()
            .filter_map(|term| {
                let mut more = terms.clone();
                more.push(term.clone());
                let fit = fit(&x, y, &more)?;
                // A falling term would turn a sawtooth's teeth into a slope.
                let grows = fit.coefficients[2..].iter().all(|b| *b >= 0.0);
                grows.then_some((fit, more))
            })
            .min_by(|(a, _), (b, _)| a.cost.total_cmp(&b.cost));
        match better {
            Some((fit, more))
                if n as f64 * (best.cost / fit.cost.max(f64::MIN_POSITIVE)).ln() > price =>
            {
                best = fit;
                terms = more;
            }
            _ => break,
        }
    }
    let coefficients = &best.coefficients[2..];
    let jumps = terms
        .iter()
        .zip(coefficients)
        .filter(|(term, _)| is_step(term));
    let all_of_it = best.coefficients[1] + jumps.map(|(_, b)| b).sum::<f64>();
    // A jump with a large share of the growth is a single event; one of many jumps is growth.
    let is_of_many = |term: &[f64], b: f64| is_step(term) && b <= EVENT * all_of_it;
    let without = |is_taken: &dyn Fn(&[f64], f64) -> bool| -> Vec<f64> {
        let rest = |i: usize| {
            let taken = terms.iter().zip(coefficients);
            let taken = taken.filter(|(term, b)| is_taken(term, **b));
            y[i] - taken.map(|(term, b)| b * term[i]).sum::<f64>()
        };
        (0..n).map(rest).collect()
    };
    let rest = without(&|_, _| true);
    let with_steps = without(&|term, b| !is_of_many(term, b));
    let of_many = terms.iter().zip(coefficients);
    let num_steps = of_many.filter(|(term, b)| is_of_many(term, **b)).count();
    let of_rest = line(&x, &rest, best.error, terms.len())?;
    let mut shown = of_rest;
    if num_steps > 0 {
        let of_all = line(
            &x,
            &with_steps,
            fit(&x, &with_steps, &[])?.error,
            terms.len() - num_steps,
        )?;
        shown = if num_steps > 1 { of_all } else { of_rest };
        shown.low = of_rest.low.min(of_all.low);
        shown.high = of_rest.high.max(of_all.high);
    }
    let rest = if num_steps > 1 { &with_steps } else { &rest };
    Some(Trend {
        growth: shown.growth,
        low: shown.low,
        high: shown.high,
        certainty: best.coefficients[1].min(of_rest.growth) / of_rest.error,
        late_growth: late_growth(&x, rest),
    })
}

/// A straight line without other terms.
#[derive(Clone, Copy)]
struct Line {
    growth: f64,
    error: f64,
    low: f64,
    high: f64,
}

fn line(x: &[f64], y: &[f64], fit_error: f64, num_terms: usize) -> Option<Line> {
    let (growth, spread) = theil_sen(x, y)?;
    let error = fit_error.max(spread).max(f64::MIN_POSITIVE);
    let free = y.len() as f64 - 2.0 - 2.0 * num_terms as f64;
    let reach = t_975(free) * error;
    Some(Line {
        growth,
        error: error * t_975(free) / t_975(f64::INFINITY),
        low: growth - reach,
        high: growth + reach,
    })
}

fn is_step(term: &[f64]) -> bool {
    term.iter().all(|value| *value == 0.0 || *value == 1.0)
}

/// Scales positions to 0 to 1.
fn normalized(at: &[f64]) -> Option<Vec<f64>> {
    let (first, last) = (*at.first()?, *at.last()?);
    (last > first).then(|| at.iter().map(|at| (at - first) / (last - first)).collect())
}

/// Theil-Sen estimate of the growth, including warm-up and steps.
pub(super) fn raw_growth(at: &[f64], y: &[f64]) -> f64 {
    let of_line = normalized(at).and_then(|x| theil_sen(&x, y));
    of_line.map_or(0.0, |(growth, _)| growth)
}

fn late_growth(x: &[f64], y: &[f64]) -> f64 {
    let half = y.len() / 2;
    theil_sen(&x[half..], &y[half..]).map_or(0.0, |(growth, _)| growth)
}

/// 97.5% quantile of Student's t: tabulated for few degrees of freedom, else by the Cornish-Fisher expansion.
pub(super) fn t_975(free: f64) -> f64 {
    const FEW: [f64; 4] = [12.706, 4.303, 3.182, 2.776];
    const Z: f64 = 1.959_964;
    match free {
        f if f < 1.5 => FEW[0],
        f if f < 2.5 => FEW[1],
        f if f < 3.5 => FEW[2],
        f if f < 4.5 => FEW[3],
        f => {
            Z + (Z.powi(3) + Z) / (4.0 * f)
                + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * f * f)
        }
    }
}

fn candidates(x: &[f64]) -> Vec<Vec<f64>> {
    let warm_ups = [0.02, 0.05, 0.1, 0.2, 0.35]
        .into_iter()
        .map(|tau| x.iter().map(|x| 1.0 - (-x / tau).exp()).collect());
    let steps = (1..x.len()).map(|k| (0..x.len()).map(|i| f64::from(u8::from(i >= k))).collect());
    warm_ups.chain(steps).collect()
}

struct Fit {
    /// Coefficients of the constant, of `x` and of the terms.
    coefficients: Vec<f64>,
    /// Standard error of the slope.
    error: f64,
    /// Mean weighted square of the residuals.
    cost: f64,
}

fn fit(x: &[f64], y: &[f64], terms: &[Vec<f64>]) -> Option<Fit> {
    let n = x.len();
    let num_columns = 2 + terms.len();
    let column = |column: usize, i: usize| match column {
        0 => 1.0,
        1 => x[i],
        _ => terms[column - 2][i],
    };
    let mut weights = vec![1.0; n];
    let mut coefficients = Vec::new();
    let mut residuals = vec![0.0; n];
    let mut slope_variance = 0.0;
    for _ in 0..3 {
        let mut matrix = vec![vec![0.0; num_columns + 2]; num_columns];
        for i in 0..n {
            for (r, row) in matrix.iter_mut().enumerate() {
                for (c, cell) in row.iter_mut().take(num_columns).enumerate() {
                    *cell += weights[i] * column(r, i) * column(c, i);
                }
                row[num_columns] += weights[i] * column(r, i) * y[i];
            }
        }
        // A second right-hand side gives the column of the inverse that belongs to the slope.
        matrix[1][num_columns + 1] = 1.0;
        solve(&mut matrix)?;
        coefficients = matrix.iter().map(|row| row[num_columns]).collect();
        slope_variance = matrix[1][num_columns + 1];
        for i in 0..n {
            residuals[i] = y[i]
                - (0..num_columns)
                    .map(|c| coefficients[c] * column(c, i))
                    .sum::<f64>();
        }
        let spread = 1.4826 * median(residuals.iter().map(|r| r.abs()).collect());
        let bound = 2.5 * spread;
        for (weight, residual) in weights.iter_mut().zip(&residuals) {
            *weight = if residual.abs() > bound && bound > 0.0 {
                bound / residual.abs()
            } else {
                1.0
            };
        }
    }
    let squares: f64 = weights.iter().zip(&residuals).map(|(w, r)| w * r * r).sum();
    let free = (n as f64 - num_columns as f64).max(1.0);
    // Smaller differences are rounding errors.
    let floor = y.iter().fold(0.0f64, |most, y| most.max(y.abs())) * 1e-9;
    let variance = (squares / free).max(floor * floor);
    Some(Fit {
        coefficients,
        error: (variance * slope_variance.max(0.0)).sqrt() * widening(&residuals),
        cost: (squares / n as f64).max(floor * floor),
    })
}

/// Factor of the standard error for autocorrelated residuals.
fn widening(residuals: &[f64]) -> f64 {
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    if squares <= 0.0 {
        return 1.0;
    }
    // Residuals of a fit look less correlated than the noise, by about 4/n.
    let alike = (products / squares + 4.0 / residuals.len() as f64 * 0.5).clamp(0.0, 0.9);
    ((1.0 + alike) / (1.0 - alike)).sqrt()
}

/// Gaussian elimination with pivoting; the right-hand sides become the solutions.
fn solve(matrix: &mut [Vec<f64>]) -> Option<()> {
    let n = matrix.len();
    for at in 0..n {
        let pivot = (at..n).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()))?;
        matrix.swap(at, pivot);
        let value = matrix[at][at];
        // Linearly dependent columns.
        if value.abs() < 1e-9 || !value.is_finite() {
            return None;
        }
        matrix[at].iter_mut().for_each(|cell| *cell /= value);
        let row = matrix[at].clone();
        for (other, cells) in matrix.iter_mut().enumerate() {
            if other != at {
                let factor = cells[at];
                cells
                    .iter_mut()
                    .zip(&row)
                    .for_each(|(cell, value)| *cell -= factor * value);
            }
        }
    }
    Some(())
}

/// Median slope over the whole range, and its standard error by Sen's ranks.
fn theil_sen(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    let n = y.len();
    let mut slopes: Vec<f64> = Vec::with_capacity(n * n.saturating_sub(1) / 2);
    for i in 0..n {
        for j in i + 1..n {
            if x[j] > x[i] {
                slopes.push((y[j] - y[i]) / (x[j] - x[i]));
            }
        }
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let pairs = slopes.len() as f64;
    let n = n as f64;
    let spread = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let at = |rank: f64| slopes[(rank.max(0.0) as usize).min(slopes.len() - 1)];
    let (low, high) = (at((pairs - spread) / 2.0), at((pairs + spread) / 2.0));
    Some((at(pairs / 2.0), (high - low) / (2.0 * 1.96)))
}

/// Median; 0 for an empty list.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// The value that a share of the values does not exceed; 0 for an empty list.
pub(super) fn quantile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let rank = (share * (values.len() - 1) as f64).round() as usize;
    values[rank.min(values.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(f: impl Fn(f64) -> f64) -> Vec<f64> {
        // A small, fixed disturbance: without noise every slope is certain.
        (0..40)
            .map(|i| f(f64::from(i) / 39.0) + 0.01 * f64::from((i * 7919) % 13 - 6) / 6.0)
            .collect()
    }

    fn evenly(y: &[f64]) -> Option<Trend> {
        let at: Vec<f64> = (0..y.len()).map(|i| 3.0 * i as f64).collect();
        trend(&at, y)
    }

    #[test]
    fn students_t() {
        for (free, expected) in [
            (1.0, 12.706),
            (2.0, 4.303),
            (5.0, 2.571),
            (10.0, 2.228),
            (30.0, 2.042),
            (1e9, 1.96),
        ] {
            assert!(
                (t_975(free) / expected - 1.0).abs() < 0.02,
                "{free}: {}",
                t_975(free)
            );
        }
    }

    #[test]
    fn a_line_is_found_beside_warm_up_and_steps() {
        for (name, y) in [
            ("alone", points(|x| x)),
            ("warm-up", points(|x| x + 3.0 * (1.0 - (-x / 0.06).exp()))),
            ("step", points(|x| x + if x > 0.6 { 2.0 } else { 0.0 })),
            (
                "spike",
                points(|x| x + if (0.5..0.52).contains(&x) { 9.0 } else { 0.0 }),
            ),
        ] {
            let trend = evenly(&y).unwrap();
            assert!((trend.growth - 1.0).abs() < 0.1, "{name}: {trend:?}");
            assert!(
                trend.low > 0.8 && trend.certainty > 8.0,
                "{name}: {trend:?}"
            );
        }
    }

    #[test]
    fn what_levels_off_is_no_line() {
        for (name, y) in [
            ("flat", points(|_| 5.0)),
            ("warm-up", points(|x| 3.0 * (1.0 - (-x / 0.15).exp()))),
            ("step", points(|x| if x > 0.6 { 2.0 } else { 0.0 })),
            (
                "two steps",
                points(|x| f64::from(u8::from(x > 0.1)) + f64::from(u8::from(x > 0.4))),
            ),
            ("falling", points(|x| -x)),
        ] {
            let trend = evenly(&y).unwrap();
            assert!(
                trend.certainty < 4.0 || trend.growth < 0.05,
                "{name}: {trend:?}"
            );
        }
        assert_eq!(evenly(&[1.0, 2.0, 3.0]), None);
        assert!(evenly(&[7.0; 20]).unwrap().certainty.abs() < 1e-6);
    }
}
