//! Histogram in a fixed amount of memory.

/// Logarithmic bins: every value from 1/1000 to 1e15 is within 0.25% of its bin's middle.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    counts: Vec<u32>,
    count: u64,
}

const BINS_PER_E: f64 = 200.0;
/// `ln(1/1000)`, rounded down.
const LOWEST: f64 = -7.0;
/// `ln(1e15)`, rounded up.
const HIGHEST: f64 = 35.0;

impl Histogram {
    pub fn add(&mut self, value: f64) {
        let bin = bin(value);
        if self.counts.len() <= bin {
            // Grows to the largest value's bin: 34 KB at most.
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] = self.counts[bin].saturating_add(1);
        self.count += 1;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value that this share of the values does not exceed.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (bin, &count) in self.counts.iter().enumerate() {
            below += u64::from(count);
            if below >= rank {
                return Some(middle(bin));
            }
        }
        None
    }

    /// Non-empty bins from the largest value down, as value and count.
    pub fn largest_first(&self) -> impl Iterator<Item = (f64, u64)> {
        let bins = self.counts.iter().enumerate().rev();
        bins.filter(|(_, count)| **count > 0)
            .map(|(bin, &count)| (middle(bin), u64::from(count)))
    }
}

fn bin(value: f64) -> usize {
    let position = (value.max(f64::MIN_POSITIVE).ln().clamp(LOWEST, HIGHEST) - LOWEST) * BINS_PER_E;
    position as usize
}

fn middle(bin: usize) -> f64 {
    ((bin as f64 + 0.5) / BINS_PER_E + LOWEST).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_within_a_bin() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for value in 1..=1000 {
            histogram.add(f64::from(value) * 1e8);
        }
        for share in [0.01, 0.5, 0.95, 1.0] {
            let found = histogram.quantile(share).unwrap() / 1e11;
            assert!((found / share - 1.0).abs() < 0.005, "{share}: {found}");
        }
        assert_eq!(
            histogram
                .largest_first()
                .map(|(_, count)| count)
                .sum::<u64>(),
            1000
        );
        for odd in [0.0, -5.0, f64::NAN, 1e300] {
            histogram.add(odd);
        }
        assert!(histogram.counts.len() <= 8_401);
    }
}
