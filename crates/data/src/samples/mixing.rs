//! Mixup and cutmix: `x = lambda x_own + (1 - lambda) x_partner`, for pixels all over the picture (mixup) or as the share of pixels outside
//! of a box that shows the partner (cutmix); labels are mixed by the same lambda.
//!
//! Every random draw is a function of seed, epoch and sample, and partners also of the set of samples in the effective batch: neither the
//! order of the samples nor the split into micro-batches changes any pair. The batch is sorted into a random circle by a draw for each
//! sample, and each sample is mixed with the next one, so that each is a partner exactly once.

use crate::config::Mixing;
use crate::random::{DrawPurpose, Random};

/// Mixing of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// The row that it is mixed with.
    pub partner: usize,
    /// Weight of the row's own pixels and labels; 1 where it is not mixed.
    pub lambda: f32,
    /// The box of pixels that cutmix takes from the partner.
    pub cut: Option<Cut>,
}

/// A box of pixels, up to but without its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// First row.
    pub y0: u32,
    /// First column.
    pub x0: u32,
    /// Past the last row.
    pub y1: u32,
    /// Past the last column.
    pub x1: u32,
}

impl Mixing {
    /// Mixing of each row of an effective batch; `sides` are height and width of the pictures.
    pub fn of_batch(&self, seed: u64, epoch: u64, samples: &[u32], sides: [u32; 2]) -> Vec<Mix> {
        let alone = |row: usize| Mix {
            partner: row,
            lambda: 1.0,
            cut: None,
        };
        if !self.is_on() {
            return (0..samples.len()).map(alone).collect();
        }
        let place = |row: &usize| {
            let sample = u64::from(samples[*row]);
            (
                Random::new(DrawPurpose::MixPartner, &[seed, epoch, sample]).bits(),
                sample,
            )
        };
        // Rows of equal samples, which balanced sampling may produce, keep their order.
        let mut circle: Vec<usize> = (0..samples.len()).collect();
        circle.sort_by_key(place);
        let mut mixes: Vec<Mix> = (0..samples.len()).map(alone).collect();
        for (at, &row) in circle.iter().enumerate() {
            let random = Random::new(DrawPurpose::Mix, &[seed, epoch, u64::from(samples[row])]);
            if let Some((lambda, cut)) = self.draw(random, sides) {
                mixes[row] = Mix {
                    partner: circle[(at + 1) % circle.len()],
                    lambda,
                    cut,
                };
            }
        }
        mixes
    }

    fn draw(&self, mut random: Random, [height, width]: [u32; 2]) -> Option<(f32, Option<Cut>)> {
        if random.unit() >= self.probability {
            return None;
        }
        let switched = random.unit() < self.switch;
        let is_cut = self.cutmix > 0.0 && (self.mixup == 0.0 || switched);
        if !is_cut {
            return Some((beta(&mut random, self.mixup) as f32, None));
        }
        // The box has the partner's share of the picture's area, around a random pixel; the part outside the picture is cut off.
        let side = (1.0 - beta(&mut random, self.cutmix)).sqrt();
        let mut extent = |length: u32| {
            let half = (f64::from(length) * side) as i64 / 2;
            let middle = random.below(length as usize) as i64;
            [middle - half, middle + half].map(|end| end.clamp(0, i64::from(length)) as u32)
        };
        let ([y0, y1], [x0, x1]) = (extent(height), extent(width));
        let area = f64::from(y1 - y0) * f64::from(x1 - x0);
        let lambda = 1.0 - area / (f64::from(height) * f64::from(width));
        Some((lambda as f32, Some(Cut { y0, x0, y1, x1 })))
    }
}

/// A draw from Beta(alpha, alpha): `a / (a + b)` of two gamma draws, by their logarithms, because small alphas underflow.
fn beta(random: &mut Random, alpha: f64) -> f64 {
    let (a, b) = (ln_gamma_draw(random, alpha), ln_gamma_draw(random, alpha));
    1.0 / (1.0 + (b - a).exp())
}

/// The logarithm of a draw from Gamma(alpha, 1): Marsaglia and Tsang for alpha + 1, times `u^(1 / alpha)`.
fn ln_gamma_draw(random: &mut Random, alpha: f64) -> f64 {
    let d = alpha + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let above_zero = |random: &mut Random| 1.0 - random.unit();
    loop {
        let radius = (-2.0 * above_zero(random).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
        let cube = (1.0 + c * normal).powi(3);
        let u = above_zero(random);
        if cube > 0.0 && u.ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln() {
            return (d * cube).ln() + above_zero(random).ln() / alpha;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Mixing = Mixing {
        mixup: 0.8,
        cutmix: 1.0,
        probability: 0.9,
        switch: 0.5,
    };

    fn by_sample(mixing: Mixing, samples: &[u32]) -> Vec<(u32, u32, f32, Option<Cut>)> {
        let mixes = mixing.of_batch(7, 3, samples, [20, 30]);
        let rows = samples.iter().zip(mixes);
        let mut rows: Vec<_> = rows
            .map(|(sample, mix)| (*sample, samples[mix.partner], mix.lambda, mix.cut))
            .collect();
        rows.sort_by_key(|row| row.0);
        rows
    }

    #[test]
    fn neither_order_nor_split_matters() {
        let samples: Vec<u32> = (0..64).map(|at| at * 17 % 1000).collect();
        let mixed = by_sample(BOTH, &samples);
        let mut turned = samples.clone();
        turned.reverse();
        turned.rotate_left(5);
        assert_eq!(by_sample(BOTH, &turned), mixed);
        // A process with a part of the batch computes the whole batch and takes its rows.
        let whole = BOTH.of_batch(7, 3, &samples, [20, 30]);
        for rows in [0..10, 10..64] {
            let again = BOTH.of_batch(7, 3, &samples, [20, 30]);
            assert_eq!(again[rows.clone()], whole[rows]);
        }
        // A sample's lambda does not depend on the other samples.
        for row in by_sample(BOTH, &samples[..20]) {
            let same = mixed.iter().find(|other| other.0 == row.0).unwrap();
            assert_eq!((row.2, row.3), (same.2, same.3));
        }
        assert_ne!(BOTH.of_batch(7, 4, &samples, [20, 30]), whole);
        assert_ne!(BOTH.of_batch(8, 3, &samples, [20, 30]), whole);
    }

    #[test]
    fn each_is_a_partner_once_and_none_of_itself() {
        let samples: Vec<u32> = (100..200).collect();
        let all = Mixing {
            probability: 1.0,
            ..BOTH
        };
        let mixes = all.of_batch(0, 0, &samples, [8, 8]);
        let mut partners: Vec<usize> = mixes.iter().map(|mix| mix.partner).collect();
        assert!(
            partners
                .iter()
                .enumerate()
                .all(|(row, partner)| row != *partner)
        );
        partners.sort_unstable();
        assert_eq!(partners, (0..100).collect::<Vec<usize>>());
        // A batch of one sample, or of one sample twice, has no other partner.
        assert_eq!(all.of_batch(0, 0, &[3], [8, 8])[0].partner, 0);
        assert_eq!(all.of_batch(0, 0, &[3, 3], [8, 8]).len(), 2);
        assert!(
            Mixing::default()
                .of_batch(0, 0, &samples, [8, 8])
                .iter()
                .enumerate()
                .all(|(row, mix)| {
                    *mix == Mix {
                        partner: row,
                        lambda: 1.0,
                        cut: None,
                    }
                })
        );
    }

    #[test]
    fn lambdas_and_boxes_are_distributed_as_they_should() {
        let samples: Vec<u32> = (0..4000).collect();
        let mixes = BOTH.of_batch(1, 0, &samples, [20, 30]);
        let share = |count: usize| count as f64 / samples.len() as f64;
        let cut: Vec<&Mix> = mixes.iter().filter(|mix| mix.cut.is_some()).collect();
        assert!((share(cut.len()) - 0.45).abs() < 0.03, "{}", cut.len());
        for mix in &cut {
            let Cut { y0, x0, y1, x1 } = mix.cut.unwrap();
            assert!(y0 <= y1 && y1 <= 20 && x0 <= x1 && x1 <= 30);
            let area = f64::from((y1 - y0) * (x1 - x0)) / 600.0;
            assert!((f64::from(mix.lambda) - (1.0 - area)).abs() < 1e-6);
        }
        // Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
        for alpha in [0.1, 0.8, 1.0, 4.0] {
            let mut random = Random::new(DrawPurpose::Mix, &[5]);
            let draws: Vec<f64> = (0..20_000).map(|_| beta(&mut random, alpha)).collect();
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 20_000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: {mean}");
            assert!(
                (variance / expected - 1.0).abs() < 0.03,
                "{alpha}: {variance}"
            );
            assert!(draws.iter().all(|draw| (0.0..=1.0).contains(draw)));
        }
        let mut random = Random::new(DrawPurpose::Mix, &[5]);
        assert!((0..100).all(|_| (0.0..=1.0).contains(&beta(&mut random, 1e-3))));
    }

    #[test]
    fn ranges_are_checked() {
        BOTH.validate().unwrap();
        for (wrong, key) in [
            (
                Mixing {
                    mixup: -1.0,
                    ..BOTH
                },
                "mixing.mixup",
            ),
            (
                Mixing {
                    cutmix: f64::NAN,
                    ..BOTH
                },
                "mixing.cutmix",
            ),
            (
                Mixing {
                    probability: 1.1,
                    ..BOTH
                },
                "mixing.probability",
            ),
            (
                Mixing {
                    switch: -0.1,
                    ..BOTH
                },
                "mixing.switch",
            ),
        ] {
            assert!(wrong.validate().unwrap_err().to_string().contains(key));
        }
    }
}
