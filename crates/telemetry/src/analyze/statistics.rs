//! Robust statistics, shared by all verdicts: quantiles, and the trend of a series.
//!
//! ```text
//! y(x) = a + c x + b (1 - exp(-x / tau)) + noise        x in [0, 1], b >= 0
//! ```
//!
//! The last term is warm-up: caches fill, then no more. It is removed where it is worth its two parameters (BIC); `c` is the remaining
//! growth. Residuals have Huber weights, so that a few outliers count no more than a few points. The variance of `c` is widened by the
//! autocorrelation of the residuals, and its interval is Student's t with the remaining degrees of freedom. The reported slope is the
//! Theil-Sen estimate, the median of the slopes of all pairs of points. A single step raises one half of the log only.

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
    /// Growth of the half that grows less, extrapolated to the whole.
    pub least_half: f64,
}

const FEWEST_POINTS: usize = 6;

/// The trend of points; `None` if there are too few.
pub(super) fn trend(at: &[f64], y: &[f64]) -> Option<Trend> {
    let n = y.len();
    if n < FEWEST_POINTS {
        return None;
    }
    let x = normalized(at)?;
    let line = fit(&x, y, None)?;
    let with_warm_up = [0.02, 0.05, 0.1, 0.2, 0.35].into_iter().filter_map(|tau| {
        let warm_up: Vec<f64> = x.iter().map(|x| 1.0 - (-x / tau).exp()).collect();
        let fit = fit(&x, y, Some(&warm_up))?;
        Some((fit, warm_up)).filter(|(fit, _)| fit.warm_up > 0.0)
    });
    let best = with_warm_up.min_by(|(a, _), (b, _)| a.cost.total_cmp(&b.cost));
    let price = 2.0 * (n as f64).ln();
    let is_worth = |cost: f64| n as f64 * (line.cost / cost.max(f64::MIN_POSITIVE)).ln() > price;
    let (fit, rest, num_parameters) = match best.filter(|(fit, _)| is_worth(fit.cost)) {
        None => (line, y.to_vec(), 2.0),
        Some((fit, warm_up)) => {
            let rest = y.iter().zip(warm_up).map(|(y, g)| y - fit.warm_up * g);
            let rest = rest.collect();
            (fit, rest, 4.0)
        }
    };
    let (growth, spread) = theil_sen(&x, &rest)?;
    let error = fit.error.max(spread).max(f64::MIN_POSITIVE);
    let t = t_975(n as f64 - num_parameters);
    let halves = [0..n.div_ceil(2), n / 2..n].map(|half| {
        let of_half = theil_sen(&x[half.clone()], &rest[half]);
        of_half.map_or(0.0, |(growth, _)| growth)
    });
    Some(Trend {
        growth,
        low: growth - t * error,
        high: growth + t * error,
        certainty: fit.slope.min(growth) / (error * t / t_975(f64::INFINITY)),
        least_half: halves[0].min(halves[1]),
    })
}

/// Scales positions to 0 to 1.
fn normalized(at: &[f64]) -> Option<Vec<f64>> {
    let (first, last) = (*at.first()?, *at.last()?);
    (last > first).then(|| at.iter().map(|at| (at - first) / (last - first)).collect())
}

/// 97.5% quantile of Student's t: tabulated for few degrees of freedom, else by the Cornish-Fisher expansion.
pub(super) fn t_975(free: f64) -> f64 {
    const FEW: [f64; 4] = [12.706, 4.303, 3.182, 2.776];
    const Z: f64 = 1.959_964;
    if free < 4.5 {
        return FEW[(free.round() as usize).clamp(1, 4) - 1];
    }
    Z + (Z.powi(3) + Z) / (4.0 * free)
        + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * free * free)
}

struct Fit {
    slope: f64,
    /// Height of the warm-up.
    warm_up: f64,
    /// Standard error of the slope.
    error: f64,
    /// Mean weighted square of the residuals.
    cost: f64,
}

/// Least squares with Huber weights. Each series is taken relative to its mean, and `x` without what the warm-up explains of it:
/// then each coefficient is a quotient of two products.
fn fit(x: &[f64], y: &[f64], warm_up: Option<&[f64]>) -> Option<Fit> {
    let n = x.len();
    let none = vec![0.0; n];
    let warm_up = warm_up.unwrap_or(&none);
    // Smaller differences are rounding errors.
    let rounding = y.iter().fold(0.0f64, |most, y| most.max(y.abs())) * 1e-9;
    let mut weights = vec![1.0; n];
    let mut fit = None;
    for _ in 0..3 {
        let product = |a: &[f64], b: &[f64]| -> f64 {
            let products = a.iter().zip(b).zip(&weights).map(|((a, b), w)| w * a * b);
            products.sum()
        };
        let centred = |values: &[f64]| -> Vec<f64> {
            let mean = product(values, &vec![1.0; n]) / weights.iter().sum::<f64>();
            values.iter().map(|value| value - mean).collect()
        };
        let without = |from: &[f64], share: f64, of: &[f64]| -> Vec<f64> {
            let rest = from.iter().zip(of).map(|(from, of)| from - share * of);
            rest.collect()
        };
        let (x, y, g) = (centred(x), centred(y), centred(warm_up));
        let of_warm_up = |values: &[f64]| match product(&g, &g) {
            square if square > 0.0 => product(&g, values) / square,
            _ => 0.0,
        };
        let rest = without(&x, of_warm_up(&x), &g);
        let square = product(&rest, &rest);
        if square < 1e-9 {
            return None;
        }
        let slope = product(&rest, &y) / square;
        let beside_line = without(&y, slope, &x);
        let height = of_warm_up(&beside_line);
        let residuals = without(&beside_line, height, &g);
        let squares = product(&residuals, &residuals);
        let free = (n as f64 - if height == 0.0 { 2.0 } else { 3.0 }).max(1.0);
        let variance = (squares / free).max(rounding * rounding);
        fit = Some(Fit {
            slope,
            warm_up: height,
            error: (variance / square).sqrt() * widening(&residuals),
            cost: (squares / n as f64).max(rounding * rounding),
        });
        let bound = 2.5 * 1.4826 * median(residuals.iter().map(|r| r.abs()).collect());
        let is_outlier = |residual: f64| residual.abs() > bound && bound > 0.0;
        let weight = |r: &f64| if is_outlier(*r) { bound / r.abs() } else { 1.0 };
        weights = residuals.iter().map(weight).collect();
    }
    fit
}

/// Factor of the standard error for autocorrelated residuals.
fn widening(residuals: &[f64]) -> f64 {
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    if squares <= 0.0 {
        return 1.0;
    }
    // Residuals of a fit look less correlated than the noise, by about 2/n.
    let alike = (products / squares + 2.0 / residuals.len() as f64).clamp(0.0, 0.9);
    ((1.0 + alike) / (1.0 - alike)).sqrt()
}

/// Median slope over the whole range, and its standard error by Sen's ranks.
fn theil_sen(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    let n = y.len();
    let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let pairs = pairs.filter(|&(i, j)| x[j] > x[i]);
    let mut slopes: Vec<f64> = pairs.map(|(i, j)| (y[j] - y[i]) / (x[j] - x[i])).collect();
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let (n, num_pairs) = (n as f64, slopes.len() as f64);
    let spread = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let at = |rank: f64| slopes[(rank.max(0.0) as usize).min(slopes.len() - 1)];
    let (low, high) = (
        at((num_pairs - spread) / 2.0),
        at((num_pairs + spread) / 2.0),
    );
    Some((at(num_pairs / 2.0), (high - low) / (2.0 * 1.96)))
}

/// Median; 0 for an empty list.
pub(super) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value that a share of the values does not exceed; 0 for an empty list.
pub(super) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = share * values.len().saturating_sub(1) as f64;
    values.get(rank.round() as usize).copied().unwrap_or(0.0)
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
    fn a_line_is_found_beside_warm_up_and_a_spike() {
        for (name, y) in [
            ("alone", points(|x| x)),
            ("warm-up", points(|x| x + 3.0 * (1.0 - (-x / 0.06).exp()))),
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
                trend.certainty < 4.0
                    || trend.growth < 0.05
                    || trend.least_half < 0.25 * trend.growth,
                "{name}: {trend:?}"
            );
        }
        assert_eq!(evenly(&[1.0, 2.0, 3.0]), None);
        assert!(evenly(&[7.0; 20]).unwrap().certainty.abs() < 1e-6);
    }
}
