//! Retrieval ranks of pictures against captions, both ways, without holding the similarities.
//!
//! A picture's positive is its caption. A caption's positives are all pictures that have it; the best of them counts. A
//! rank is one, plus those ahead, plus half of those level (ties share their places), so features that are all alike
//! rank in the middle and not on top. Each similarity is a sum in f64 whose order depends on nothing but the
//! dimension: ranks are the same for any number of threads.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// One direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranks {
    /// Share of queries whose positive came first.
    pub r1: f64,
    /// Share whose positive was among the first five.
    pub r5: f64,
    /// Share whose positive was among the first ten.
    pub r10: f64,
    /// Half of the ranks are at most this.
    pub median_rank: f64,
    /// Mean of the ranks.
    pub mean_rank: f64,
    /// Mean of one over the rank.
    pub mrr: f64,
}

/// Both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// Pictures.
    pub pictures: usize,
    /// Different captions.
    pub captions: usize,
    /// Pictures looking for their caption.
    pub image_to_text: Ranks,
    /// Captions looking for a picture of theirs.
    pub text_to_image: Ranks,
}

/// Independent sums, so that the compiler may use vectors.
const LANES: usize = 8;

fn score(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += f64::from(a) * f64::from(b);
        }
    }
    lanes.iter().sum()
}

/// Twice the places lost to `other`: two when it is ahead (or not a number), one when it is level.
fn places_lost(other: f64, own: f64) -> u64 {
    match other.partial_cmp(&own) {
        Some(std::cmp::Ordering::Less) => 0,
        Some(std::cmp::Ordering::Equal) => 1,
        _ => 2,
    }
}

/// Ranks of `pictures` against `captions`, rows of `dimension` values; `caption_of` names each picture's caption.
///
/// Captions that no picture has are in everyone's way, and have no rank themselves.
pub fn retrieval(
    pictures: &[f32],
    captions: &[f32],
    dimension: usize,
    caption_of: &[u32],
) -> Retrieval {
    let num_captions = captions.len() / dimension;
    let caption = |index: usize| &captions[index * dimension..][..dimension];
    let picture = |index: usize| &pictures[index * dimension..][..dimension];
    let own: Vec<f64> = (0..caption_of.len())
        .into_par_iter()
        .map(|index| score(picture(index), caption(caption_of[index] as usize)))
        .collect();
    let mut best = vec![None::<f64>; num_captions];
    for (&own, &caption) in own.iter().zip(caption_of) {
        let best = &mut best[caption as usize];
        if best.is_none_or(|best| own > best || best.is_nan()) {
            *best = Some(own);
        }
    }
    // Whole numbers: the order of additions does not matter.
    let lost_by_caption: Vec<AtomicU64> = (0..num_captions).map(|_| AtomicU64::new(0)).collect();
    let lost_by_picture: Vec<u64> = (0..caption_of.len())
        .into_par_iter()
        .map(|index| {
            let mut lost = 0;
            for other in (0..num_captions).filter(|&other| other != caption_of[index] as usize) {
                let found = score(picture(index), caption(other));
                lost += places_lost(found, own[index]);
                if let Some(best) = best[other] {
                    lost_by_caption[other].fetch_add(places_lost(found, best), Ordering::Relaxed);
                }
            }
            lost
        })
        .collect();
    let lost_by_caption = lost_by_caption.iter().zip(&best);
    let lost_by_caption = lost_by_caption.filter(|(_, best)| best.is_some());
    let lost_by_caption = lost_by_caption.map(|(lost, _)| lost.load(Ordering::Relaxed));
    Retrieval {
        pictures: caption_of.len(),
        captions: num_captions,
        image_to_text: ranks(lost_by_picture),
        text_to_image: ranks(lost_by_caption.collect()),
    }
}

/// From twice the places lost to ranks.
fn ranks(mut lost: Vec<u64>) -> Ranks {
    lost.sort_unstable();
    let count = lost.len().max(1) as f64;
    let rank = |lost: u64| 1.0 + lost as f64 / 2.0;
    let within = |k: f64| lost.partition_point(|&lost| rank(lost) <= k) as f64 / count;
    let middle = |index: usize| lost.get(index).map_or(f64::NAN, |&lost| rank(lost));
    Ranks {
        r1: within(1.0),
        r5: within(5.0),
        r10: within(10.0),
        median_rank: (middle(lost.len().saturating_sub(1) / 2) + middle(lost.len() / 2)) / 2.0,
        mean_rank: lost.iter().map(|&lost| rank(lost)).sum::<f64>() / count,
        mrr: lost.iter().map(|&lost| 1.0 / rank(lost)).sum::<f64>() / count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By sorting whole rows of similarities.
    fn dense(pictures: &[f32], captions: &[f32], d: usize, caption_of: &[u32]) -> [Vec<f64>; 2] {
        let (n, m) = (caption_of.len(), captions.len() / d);
        let dot = |i: usize, j: usize| -> f64 {
            (0..d)
                .map(|k| f64::from(pictures[i * d + k]) * f64::from(captions[j * d + k]))
                .sum()
        };
        let rank = |own: f64, others: &mut dyn Iterator<Item = f64>| {
            1.0 + others
                .map(|other| {
                    if other > own {
                        1.0
                    } else if other == own {
                        0.5
                    } else {
                        0.0
                    }
                })
                .sum::<f64>()
        };
        let to_text = (0..n).map(|i| {
            let positive = caption_of[i] as usize;
            rank(
                dot(i, positive),
                &mut (0..m).filter(|&j| j != positive).map(|j| dot(i, j)),
            )
        });
        let to_image = (0..m)
            .filter(|&j| caption_of.contains(&(j as u32)))
            .map(|j| {
                let has = |i: &usize| caption_of[*i] as usize == j;
                let best = (0..n)
                    .filter(has)
                    .map(|i| dot(i, j))
                    .fold(f64::NEG_INFINITY, f64::max);
                rank(best, &mut (0..n).filter(|i| !has(i)).map(|i| dot(i, j)))
            });
        [to_text.collect(), to_image.collect()]
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    proptest! {
        // Small whole numbers: similarities are exact, and ties are many.
        #[test]
        fn equals_a_dense_oracle(
            d in 1usize..12, m in 1usize..9,
            owners in prop::collection::vec(any::<u32>(), 1..14),
            values in prop::collection::vec(-2i8..=2, 12 * 24),
        ) {
            let n = owners.len();
            let caption_of: Vec<u32> = owners.iter().map(|owner| owner % m as u32).collect();
            let number = |index: usize| f32::from(values[index % values.len()]);
            let pictures: Vec<f32> = (0..n * d).map(number).collect();
            let captions: Vec<f32> = (0..m * d).map(|index| number(index + 137)).collect();
            let found = retrieval(&pictures, &captions, d, &caption_of);
            let expected = dense(&pictures, &captions, d, &caption_of);
            for (found, expected) in [found.image_to_text, found.text_to_image].iter().zip(&expected) {
                prop_assert!((found.mean_rank - mean(expected)).abs() < 1e-9);
                for (found, k) in [(found.r1, 1.0), (found.r5, 5.0), (found.r10, 10.0)] {
                    let within = expected.iter().filter(|&&rank| rank <= k).count();
                    prop_assert_eq!(found, within as f64 / expected.len() as f64);
                }
                let reciprocal: Vec<f64> = expected.iter().map(|rank| 1.0 / rank).collect();
                prop_assert!((found.mrr - mean(&reciprocal)).abs() < 1e-9);
                let mut sorted = expected.clone();
                sorted.sort_by(f64::total_cmp);
                let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
                prop_assert_eq!(found.median_rank, median);
            }
        }
    }

    #[test]
    fn features_that_are_all_alike_or_not_numbers_rank_low() {
        let caption_of = [0, 1, 2, 3];
        let alike = retrieval(&[1.0; 4], &[1.0; 4], 1, &caption_of);
        assert_eq!(alike.image_to_text.mean_rank, 2.5);
        assert_eq!(alike.text_to_image.r1, 0.0);
        let broken = retrieval(&[f32::NAN; 4], &[1.0; 4], 1, &caption_of);
        assert_eq!(broken.image_to_text.mean_rank, 4.0);
        assert_eq!(broken.text_to_image.mean_rank, 4.0);
    }
}
