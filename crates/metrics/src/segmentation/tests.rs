//! Golden values of `tests/fixtures/make_segmentation.py` (scikit-learn, scikit-image, scipy), and oracles that look at every pair.

use proptest::prelude::*;
use serde::Deserialize;

use super::tiles::{Mirror, Tiling};
use super::*;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
    pooled: GoldenPooled,
}

#[derive(Deserialize)]
struct Case {
    height: usize,
    width: usize,
    seed: i64,
    outputs: usize,
    sharpness: f64,
    spread: f64,
    threshold: f32,
    truth_checksum: u64,
    classes: Vec<GoldenClass>,
}

#[derive(Deserialize)]
struct GoldenClass {
    #[serde(flatten)]
    scores: MaskScores,
    skeleton_pixels: usize,
    skeleton_checksum: u64,
}

#[derive(Deserialize)]
struct GoldenPooled {
    #[serde(flatten)]
    scores: MaskScores,
    curve: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../tests/fixtures/segmentation.json")).unwrap()
}

fn checksum(values: impl Iterator<Item = u64>) -> u64 {
    let weighted = values.zip(1u64..).map(|(value, place)| value * place);
    weighted.sum::<u64>() % (1 << 32)
}

/// The pictures of the fixture script.
impl Case {
    fn size(&self) -> [usize; 2] {
        [self.height, self.width]
    }

    fn places(&self) -> impl Iterator<Item = [i64; 2]> {
        let (height, width) = (self.height as i64, self.width as i64);
        (0..height).flat_map(move |y| (0..width).map(move |x| [y, x]))
    }

    fn truth(&self) -> Vec<u8> {
        let (height, width, seed) = (self.height as i64, self.width as i64, self.seed);
        let label = |[y, x]: [i64; 2]| {
            let mut found = 0;
            for index in 0..4 {
                let cy = 37 * (index + 1) * (seed + 2) % height;
                let cx = 53 * (index + 1) * (seed + 3) % width;
                let radius = 3 + (seed + 5 * index) % 9;
                let slope = 1 + (seed + index) % 3;
                let is_disk = (y - cy).pow(2) + (x - cx).pow(2) <= radius.pow(2);
                let is_line = ((y - cy) - slope * (x - cx)).abs() <= 1 + index;
                if is_disk || is_line {
                    found = 1 + index as usize % (self.outputs.max(2) - 1);
                }
            }
            if seed % 2 == 1 && x < 1 + seed % 7 {
                IGNORED
            } else {
                found as u8
            }
        };
        self.places().map(label).collect()
    }

    fn probabilities(&self, truth: &[u8]) -> Vec<f32> {
        let width = self.width as i64;
        let logit = |[y, x]: [i64; 2], output: usize| {
            let class = if self.outputs == 1 { 1 } else { output };
            let from = truth[(y * width + (x - 2).rem_euclid(width)) as usize];
            let middle = if usize::from(from) == class {
                0.75
            } else {
                -0.75
            };
            let seed = self.seed + 11 * output as i64;
            let value = x * 7919 + y * 104_729 + x * y * 31 + seed * 613;
            let value = (value + (x * x * 17 + y * y * 29) * (seed + 1)) % 1_000_003;
            let noise = (value % 65_537) as f64 / 65_536.0;
            self.sharpness * (middle + self.spread * (noise - 0.5))
        };
        let pixel = |place| {
            let logits: Vec<f64> = (0..self.outputs)
                .map(|output| logit(place, output))
                .collect();
            match logits.as_slice() {
                [logit] => vec![(1.0 / (1.0 + (-logit).exp())) as f32],
                logits => {
                    let highest = logits.iter().fold(f64::MIN, |a, &b| a.max(b));
                    let powers = logits.iter().map(|logit| (logit - highest).exp());
                    let sum: f64 = powers.clone().sum();
                    powers.map(|power| (power / sum) as f32).collect()
                }
            }
        };
        self.places().flat_map(pixel).collect()
    }
}

/// AUC is counted in bins; all other figures are exact.
fn compare(found: &MaskScores, expected: &MaskScores, about: &str) {
    for ((name, found), expected) in METRICS.iter().zip(found.values()).zip(expected.values()) {
        let tolerance = if *name == "auc" { 1e-4 } else { 1e-9 };
        let is_near = match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < tolerance,
            (found, expected) => found == expected,
        };
        assert!(is_near, "{about}, {name}: {found:?}, expected {expected:?}");
    }
}

#[test]
fn scores_are_those_of_the_reference_implementations() {
    // One scorer for pictures of all sizes: no picture affects the next one.
    for (index, case) in golden().cases.iter().enumerate() {
        let truth = case.truth();
        let sum = checksum(truth.iter().map(|&class| u64::from(class)));
        assert_eq!(sum, case.truth_checksum, "case {index}: the same picture");
        let probabilities = case.probabilities(&truth);
        let mut scorer = ImageScorer::new(case.outputs, case.threshold);
        let larger = Image {
            size: [300, 310],
            truth_hw: &vec![1; 300 * 310],
            probabilities_hwk: &vec![1.0; 300 * 310 * case.outputs],
        };
        scorer.score(&larger);
        let image = Image {
            size: case.size(),
            truth_hw: &truth,
            probabilities_hwk: &probabilities,
        };
        let scores = scorer.score(&image);
        assert_eq!(scores.classes.len(), case.classes.len());
        let predicted: Vec<u8> = predict_classes(&probabilities, case.outputs, case.threshold)
            .zip(&truth)
            .map(|(class, &truth)| if truth == IGNORED { IGNORED } else { class })
            .collect();
        for (at, (class, golden)) in scores.classes.iter().zip(&case.classes).enumerate() {
            let about = format!("case {index}, class {}", at + 1);
            compare(&class.scores, &golden.scores, &about);
            let mut skeleton = SkeletonBuffer::default();
            skeleton.thin(|place| usize::from(predicted[place]) == at + 1, case.size());
            assert_eq!(skeleton.places().count(), golden.skeleton_pixels, "{about}");
            let sum = checksum(skeleton.places().map(|place| place as u64));
            assert_eq!(sum, golden.skeleton_checksum, "{about}");
        }
    }
}

#[test]
fn pooled_scores_are_those_of_all_pixels_together() {
    let golden = golden();
    let mut pooled = PooledScores::new(1);
    let mut dice = Vec::new();
    for case in &golden.cases[..4] {
        let truth = case.truth();
        let mut scorer = ImageScorer::new(1, case.threshold);
        let scores = scorer.score(&Image {
            size: case.size(),
            truth_hw: &truth,
            probabilities_hwk: &case.probabilities(&truth),
        });
        dice.push(scores.mean().dice.unwrap());
        pooled.add(&scorer, &scores);
    }
    let found = pooled.mean();
    let expected = MaskScores {
        cl_dice: found.pooled.cl_dice,
        ..golden.pooled.scores
    };
    compare(&found.pooled, &expected, "pooled");
    let mean = dice.iter().sum::<f64>() / dice.len() as f64;
    assert_eq!(found.per_image.dice, Some(mean));
    let curve = pooled.curve().unwrap();
    for (point, expected) in curve.points().iter().zip(&golden.pooled.curve) {
        let found = point.dice.unwrap();
        assert!((found - expected).abs() < 1e-9, "{point:?}: {expected}");
    }
    let best = golden.pooled.curve.iter().fold(0.0f64, |a, &b| a.max(b));
    assert!((curve.best().unwrap().dice.unwrap() - best).abs() < 1e-9);
}

fn score(size: [usize; 2], truth: &[u8], probabilities: &[f32]) -> MaskScores {
    let mut scorer = ImageScorer::new(1, 0.5);
    let scores = scorer.score(&Image {
        size,
        truth_hw: truth,
        probabilities_hwk: probabilities,
    });
    scores.mean()
}

#[test]
fn empty_masks_have_the_values_that_the_documents_name() {
    let (none, all) = ([0.0; 12], [1.0; 12]);
    let absent = score([3, 4], &[0; 12], &none);
    let expected = MaskScores {
        specificity: Some(1.0),
        accuracy: Some(1.0),
        ..MaskScores::default()
    };
    assert_eq!(absent, expected, "in neither");
    let missed = score([3, 4], &[1; 12], &none);
    let expected = MaskScores {
        dice: Some(0.0),
        iou: Some(0.0),
        sensitivity: Some(0.0),
        accuracy: Some(0.0),
        mcc: Some(0.0),
        hd95: Some(5.0),
        cl_dice: Some(0.0),
        ..MaskScores::default()
    };
    assert_eq!(missed, expected, "in the truth only");
    let invented = score([3, 4], &[0; 12], &all);
    assert_eq!((invented.dice, invented.hd95), (Some(0.0), Some(5.0)));
    assert_eq!(
        (invented.precision, invented.cl_dice),
        (Some(0.0), Some(0.0))
    );
    let nothing = score([3, 4], &[IGNORED; 12], &all);
    assert_eq!(nothing, MaskScores::default(), "no pixel counts");
}

#[test]
fn auc_stays_exact_for_a_model_that_is_sure() {
    // Half of the probabilities are within 1e-6 of 0 or of 1.
    let value = |at: usize| ((at * 7919 + 13) % 10_007) as f64 / 10_007.0;
    let probability = |at: usize| {
        let logit = 60.0 * (value(at) - 0.5) + if at.is_multiple_of(3) { 2.0 } else { -2.0 };
        (1.0 / (1.0 + (-logit).exp())) as f32
    };
    let mut histogram = OddsHistogram::new();
    let mut pixels: Vec<(f32, bool)> = Vec::new();
    for at in 0..10_007 {
        histogram.add(probability(at), at % 3 == 0);
        pixels.push((probability(at), at % 3 == 0));
    }
    let (of_class, others): (Vec<_>, Vec<_>) = pixels.into_iter().partition(|pixel| pixel.1);
    let mut above = 0.0;
    for (p, _) in &of_class {
        for (q, _) in &others {
            above += f64::from(u8::from(p > q)) + 0.5 * f64::from(u8::from(p == q));
        }
    }
    let exact = above / (of_class.len() * others.len()) as f64;
    let found = histogram.auc().unwrap();
    assert!((found - exact).abs() < 1e-4, "{found}, expected {exact}");
}

fn brute_force_hd95(a: &[bool], b: &[bool], [height, width]: [usize; 2]) -> Option<f64> {
    let outline = |mask: &[bool]| -> Vec<[i64; 2]> {
        let inside = |y: i64, x: i64| {
            (0..height as i64).contains(&y)
                && (0..width as i64).contains(&x)
                && mask[y as usize * width + x as usize]
        };
        let mut found = Vec::new();
        for y in 0..height as i64 {
            for x in 0..width as i64 {
                let around = [[y - 1, x], [y + 1, x], [y, x - 1], [y, x + 1]];
                if inside(y, x) && !around.iter().all(|&[y, x]| inside(y, x)) {
                    found.push([y, x]);
                }
            }
        }
        found
    };
    let (a, b) = (outline(a), outline(b));
    if a.is_empty() || b.is_empty() {
        let diagonal = (height as f64).hypot(width as f64);
        return (!a.is_empty() || !b.is_empty()).then_some(diagonal);
    }
    let percentile = |from: &[[i64; 2]], to: &[[i64; 2]]| {
        let nearest = |[y, x]: [i64; 2]| {
            let squares = to.iter().map(|[v, u]| (y - v).pow(2) + (x - u).pow(2));
            (squares.min().unwrap() as f64).sqrt()
        };
        let mut distances: Vec<f64> = from.iter().map(|&place| nearest(place)).collect();
        distances.sort_by(f64::total_cmp);
        let rank = 0.95 * (distances.len() - 1) as f64;
        let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
        distances[low] + rank.fract() * (distances[high] - distances[low])
    };
    Some(percentile(&a, &b).max(percentile(&b, &a)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn distances_of_outlines_are_those_of_all_pairs(
        height in 1usize..18, width in 1usize..18, seed in 0u64..1000, rare in 2u64..40,
    ) {
        let mut random = holdall_files::SplitMix64(seed);
        let mut mask = || -> Vec<bool> {
            (0..height * width).map(|_| random.bits().is_multiple_of(rare)).collect()
        };
        let (a, b) = (mask(), mask());
        let size = [height, width];
        let found = hausdorff95(|at| a[at], |at| b[at], size, &mut HausdorffBuffer::default());
        let expected = brute_force_hd95(&a, &b, size);
        prop_assert_eq!(found.is_some(), expected.is_some());
        let difference = found.unwrap_or(0.0) - expected.unwrap_or(0.0);
        prop_assert!(difference.abs() < 1e-9, "{:?} {:?}", found, expected);
    }

    #[test]
    fn tiles_of_a_function_of_pixels_give_it_back(
        height in 1usize..70, width in 1usize..70, tile_height in 1usize..40, tile_width in 1usize..40,
        outputs in 1usize..3,
    ) {
        let picture: Vec<u8> = (0..height * width).map(|at| (at * 37 % 251) as u8).collect();
        let tiling = Tiling::new([height, width], [tile_height, tile_width]);
        let mut sums = vec![0.0; height * width * outputs];
        let mut cut = vec![0; tile_height * tile_width];
        for tile in 0..tiling.num_tiles() {
            for mirror in Mirror::ALL {
                tiling.cut(tile, mirror, &picture, 1, &mut cut);
                let said: Vec<f32> = cut
                    .iter()
                    .flat_map(|&pixel| (0..outputs).map(move |k| f32::from(pixel) / (251 + k) as f32))
                    .collect();
                tiling.add(tile, mirror, &said, outputs, &mut sums);
            }
        }
        tiling.finish(Mirror::ALL.len(), outputs, &mut sums);
        for (at, found) in sums.iter().enumerate() {
            let expected = f32::from(picture[at / outputs]) / (251 + at % outputs) as f32;
            prop_assert!((found - expected).abs() < 1e-5, "{} {}", found, expected);
        }
    }
}

#[test]
fn tiles_overlap_by_half_and_cover_the_picture() {
    for (size, tile) in [
        (1, 8),
        (8, 8),
        (9, 8),
        (100, 8),
        (2048, 512),
        (2049, 512),
        (77, 5),
        (3, 1),
    ] {
        let tiling = Tiling::new([size, tile], [tile, tile]);
        let starts: Vec<usize> = (0..tiling.num_tiles())
            .map(|at| tiling.position(at)[0])
            .collect();
        assert_eq!(starts[0], 0);
        assert_eq!(
            starts[starts.len() - 1],
            size.saturating_sub(tile),
            "{size} {tile}"
        );
        let step = (tile / 2).max(1);
        assert!(
            starts
                .windows(2)
                .all(|pair| (1..=step).contains(&(pair[1] - pair[0])))
        );
    }
    assert_eq!(Tiling::new([2048, 2048], [1024, 1024]).num_tiles(), 9);
}

#[test]
fn a_picture_of_one_tile_comes_out_bit_for_bit() {
    let tiling = Tiling::new([3, 5], [4, 8]);
    let mut cut = vec![0; 32];
    let picture: Vec<u8> = (0..15).collect();
    tiling.cut(0, Mirror::NONE[0], &picture, 1, &mut cut);
    assert_eq!(cut[..8], [0, 1, 2, 3, 4, 4, 3, 2]);
    assert_eq!(cut[24..], [10, 11, 12, 13, 14, 14, 13, 12]);
    tiling.cut(0, Mirror::ALL[3], &picture, 1, &mut cut);
    assert_eq!(cut[..8], [12, 13, 14, 14, 13, 12, 11, 10]);
    let said: Vec<f32> = (0..32).map(|at| 1.0 / (3 + at) as f32).collect();
    let mut sums = vec![0.0; 15];
    tiling.add(0, Mirror::NONE[0], &said, 1, &mut sums);
    tiling.finish(1, 1, &mut sums);
    assert_eq!(sums[..5], said[..5]);
    assert_eq!(sums[10..], said[16..21]);
}

#[test]
fn the_middle_of_a_tile_weighs_more_than_its_edge() {
    // Two tiles with different outputs: at the end of one, the other has nearly all the weight.
    let tiling = Tiling::new([8, 12], [8, 8]);
    assert_eq!(tiling.num_tiles(), 2);
    let mut sums = vec![0.0; 8 * 12];
    tiling.add(0, Mirror::NONE[0], &[0.0; 64], 1, &mut sums);
    tiling.add(1, Mirror::NONE[0], &[1.0; 64], 1, &mut sums);
    tiling.finish(1, 1, &mut sums);
    assert_eq!((sums[0], sums[11]), (0.0, 1.0));
    assert!(sums[4] < 0.01 && sums[7] > 0.99, "{sums:?}");
    assert!((sums[5] + sums[6] - 1.0).abs() < 1e-6, "{sums:?}");
}
