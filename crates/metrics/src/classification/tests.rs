//! Golden values of `tests/fixtures/make_classification.py` (scikit-learn 1.9), and oracles that look at every pair.

use proptest::prelude::*;

use super::*;
use crate::regression::Regression;

const SAMPLES: usize = 203;
const ALL_BYTES: u64 = 1 << 20;
/// Memory of one class with 4096 bins.
const BIN_BYTES: u64 = 8 * 4096;
/// Batch sizes that do not divide the number of samples.
const UNEVEN: [usize; 5] = [1, 7, 2, 64, 13];

fn value(sample: usize, class: usize) -> f32 {
    ((sample * 7919 + class * 104_729 + sample * class * 31) % 1009) as f32 / 128.0 - 4.0
}

fn near(found: Option<f64>, expected: f64) {
    let found = found.expect("defined");
    assert!(
        (found - expected).abs() < 1e-9,
        "{found}, expected {expected}"
    );
}

/// Bounds of batches of uneven sizes.
fn uneven(num_samples: usize) -> Vec<std::ops::Range<usize>> {
    let mut ranges = vec![];
    let mut start = 0;
    for size in UNEVEN.iter().cycle() {
        if start == num_samples {
            break;
        }
        let end = (start + size).min(num_samples);
        ranges.push(start..end);
        start = end;
    }
    ranges
}

fn single(
    num_classes: usize,
    logits: &[f32],
    labels: &[Option<usize>],
    bytes: u64,
) -> SingleLabelMetrics {
    let mut answers = SingleLabel::new(num_classes, labels.len(), bytes);
    for batch in uneven(labels.len()) {
        let rows = &logits[batch.start * num_classes..batch.end * num_classes];
        answers.add(rows, labels[batch].iter().copied());
    }
    answers.metrics()
}

fn multi(num_labels: usize, logits: &[f32], targets: &[f32], bytes: u64) -> MultiLabelMetrics {
    let num_samples = logits.len() / num_labels;
    let mut answers = MultiLabel::new(num_labels, num_samples, bytes);
    for batch in uneven(num_samples) {
        let cells = batch.start * num_labels..batch.end * num_labels;
        answers.add(&logits[cells.clone()], &targets[cells]);
    }
    answers.metrics()
}

fn golden_single() -> (Vec<f32>, Vec<Option<usize>>) {
    let label = |sample: usize| (sample * 5 + sample / 7) % 7;
    let logits = (0..SAMPLES).flat_map(|sample| {
        (0..7).map(move |class| {
            let is_told = class == label(sample) && sample % 3 != 0;
            value(sample, class) + if is_told { 2.0 } else { 0.0 }
        })
    });
    (
        logits.collect(),
        (0..SAMPLES).map(|sample| Some(label(sample))).collect(),
    )
}

#[test]
fn single_labels_agree_with_scikit_learn() {
    let (logits, labels) = golden_single();
    let metrics = single(7, &logits, &labels, ALL_BYTES);
    assert_eq!(
        (metrics.samples, metrics.unlabelled, metrics.not_finite),
        (203, 0, 0)
    );
    near(metrics.accuracy, 0.27586206896551724);
    near(metrics.top5, 0.8620689655172413);
    near(metrics.macro_f1, 0.26943680293433986);
    near(metrics.auroc, 0.6719749731045808);
    assert!(!metrics.auroc_is_approximate);
    let class = metrics.classes[2];
    near(class.counts.precision, 0.3793103448275862);
    near(class.counts.recall, 0.3793103448275862);
    near(class.counts.f1, 0.3793103448275862);
    near(class.auroc, 0.6920332936979786);
    assert_eq!(class.counts.support, 29);
    let row: Vec<u64> = (0..7)
        .map(|predicted| metrics.confusion.count(2, predicted))
        .collect();
    assert_eq!(row, [3, 3, 11, 4, 3, 2, 3]);
}

#[test]
fn several_labels_agree_with_scikit_learn() {
    let is_positive =
        |sample: usize, label: usize| (sample * 13 + label * 7 + sample * label) % 11 < 4;
    let (mut logits, mut targets) = (vec![], vec![]);
    for sample in 0..SAMPLES {
        for label in 0..5 {
            let is_told = is_positive(sample, label) && sample % 4 != 0;
            logits.push(value(sample, label) + if is_told { 1.5 } else { 0.0 });
            targets.push(f32::from(u8::from(is_positive(sample, label))));
        }
    }
    let metrics = multi(5, &logits, &targets, ALL_BYTES);
    near(metrics.micro_f1, 0.5217391304347826);
    near(metrics.macro_f1, 0.5214872352067148);
    near(metrics.mean_average_precision, 0.5723641620052801);
    near(metrics.auroc, 0.6529275073588549);
    near(metrics.labels[3].average_precision, 0.5549502545995464);
    near(metrics.labels[3].auroc, 0.6276080084299263);
    // Each sample fifty times: the same results, and too many scores for exact storage.
    let binned = multi(5, &logits.repeat(50), &targets.repeat(50), BIN_BYTES * 5);
    assert!(binned.ranking_is_approximate && !metrics.ranking_is_approximate);
    assert!((binned.auroc.unwrap() - metrics.auroc.unwrap()).abs() < 2e-3);
    let map = |metrics: &MultiLabelMetrics| metrics.mean_average_precision.unwrap();
    assert!((map(&binned) - map(&metrics)).abs() < 1e-2);
    assert_eq!(binned.micro_f1, metrics.micro_f1);
    // A label outside the model's classes.
    let unknown: Vec<f32> = targets
        .iter()
        .enumerate()
        .map(|(at, &target)| if at % 5 == 2 { f32::NAN } else { target })
        .collect();
    let partly = multi(5, &logits, &unknown, ALL_BYTES);
    assert_eq!(partly.unknown, SAMPLES as u64);
    assert_eq!(partly.labels[2].auroc.or(partly.labels[2].counts.f1), None);
    assert_eq!(partly.labels[3], metrics.labels[3]);
}

#[test]
fn numbers_agree_with_scikit_learn() {
    let (mut predictions, mut targets) = (vec![], vec![]);
    for sample in 0..SAMPLES {
        for output in 0..2 {
            let target = (sample * 37 % 101) as f32 / 8.0 + 1000.0 * output as f32;
            let error = ((sample * 29 + output * 11) % 17) as f32 - 8.0;
            targets.push(target);
            predictions.push(target + error / 4.0);
        }
    }
    let mut numbers = Regression::new(2);
    for batch in uneven(SAMPLES) {
        let cells = 2 * batch.start..2 * batch.end;
        numbers.add(&predictions[cells.clone()], &targets[cells]);
    }
    let metrics = numbers.metrics();
    for (output, expected) in [
        (
            0,
            [1.0603448275862069, 1.2266288055483554, 0.8877762223523123],
        ),
        (
            1,
            [1.0541871921182266, 1.219706820946755, 0.889039227830238],
        ),
    ] {
        let output = metrics.outputs[output];
        near(output.mean_absolute_error, expected[0]);
        near(output.root_mean_squared_error, expected[1]);
        near(output.r2, expected[2]);
    }
    near(metrics.mean_absolute_error, 1.0572660098522166);
    near(metrics.root_mean_squared_error, 1.2231678132475552);
    near(metrics.r2, 0.8884077250912752);
    // Unknown and non-finite values are counted, and change nothing else.
    numbers.add(&[1.0, f32::NAN], &[f32::NAN, 1.0]);
    let more = numbers.metrics();
    assert_eq!(
        (more.outputs[0].unknown, more.outputs[1].not_finite),
        (1, 1)
    );
    assert_eq!(more.r2, metrics.r2);
    let mut constant = Regression::new(1);
    constant.add(&[1.0, 2.0], &[3.0, 3.0]);
    assert_eq!(constant.metrics().r2, None);
    near(constant.metrics().mean_absolute_error, 1.5);
    assert_eq!(Regression::new(1).metrics().mean_absolute_error, None);
}

#[test]
fn what_has_no_label_is_left_out_and_what_is_no_number_is_wrong() {
    let (nan, labels) = (f32::NAN, [Some(0), None, Some(9), Some(1), Some(2)]);
    let logits = [
        [2.0, 1.0, 0.0],
        [0.0; 3],
        [0.0; 3],
        [0.0, nan, 1.0],
        [0.0, 0.0, 0.0],
    ]
    .concat();
    let metrics = single(3, &logits, &labels, ALL_BYTES);
    assert_eq!(
        (metrics.samples, metrics.unlabelled, metrics.not_finite),
        (3, 2, 1)
    );
    // The first of equal logits is the prediction.
    near(metrics.accuracy, 1.0 / 3.0);
    assert_eq!(metrics.confusion.mistakes(5), [(2, 0, 1)]);
    assert_eq!(metrics.classes[1].counts.recall, Some(0.0));
    assert_eq!(metrics.classes[1].counts.precision, None);
    assert_eq!(metrics.classes[1].auroc, None);
    assert_eq!(metrics.top5, None);
    let nothing = single(3, &[], &[], ALL_BYTES);
    assert_eq!(
        (nothing.accuracy, nothing.macro_f1, nothing.auroc),
        (None, None, None)
    );
    let wrong = multi(1, &[nan, nan], &[1.0, 0.0], ALL_BYTES);
    assert_eq!((wrong.not_finite, wrong.micro_f1), (2, Some(0.0)));
}

/// The class predicted for a sample of an unseen class gets a false positive: scikit-learn has 0.5, and macro F1 over the two classes 2/3.
#[test]
fn a_class_that_was_never_trained_is_wrong_whatever_is_said() {
    let mut answers = SingleLabel::new(2, 4, 1 << 20);
    answers.add(&[2.0, 1.0, 0.0, 1.0], [Some(0), Some(1)]);
    answers.add_unseen(&[3.0, 1.0]);
    answers.add_unseen(&[0.0, 1.0]);
    let metrics = answers.metrics();
    assert_eq!((metrics.samples, metrics.unseen), (4, 2));
    near(metrics.accuracy, 0.5);
    near(metrics.macro_f1, 2.0 / 3.0);
    assert_eq!(metrics.classes[0].counts.support, 1);
}

#[test]
fn results_are_json() {
    let metrics = single(2, &[1.0, 0.0, 0.0, 1.0], &[Some(0), Some(0)], ALL_BYTES);
    assert_eq!(
        serde_json::to_string(&metrics).unwrap(),
        r#"{"samples":2,"unlabelled":0,"unseen":0,"not_finite":0,"accuracy":0.5,"top5":null,"macro_f1":0.3333333333333333,"auroc":null,"auroc_is_approximate":false,"classes":[{"precision":1.0,"recall":0.5,"f1":0.6666666666666666,"support":2,"auroc":null},{"precision":0.0,"recall":null,"f1":0.0,"support":0,"auroc":null}],"confusion":[[0,0,1],[0,1,1]]}"#
    );
}

#[test]
fn the_best_come_first_with_their_softmax() {
    let best = top_k(&[0.0f32, 2f32.ln(), 0.0], 2);
    assert_eq!((best[0].0, best[1].0), (1, 0));
    assert!((best[0].1 - 0.5).abs() < 1e-6 && (best[1].1 - 0.25).abs() < 1e-6);
    assert_eq!(
        top_k(&[1.0f64, 3.0, 3.0], 9)
            .iter()
            .map(|best| best.0)
            .collect::<Vec<_>>(),
        [1, 2, 0]
    );
    assert!(top_k::<f32>(&[], 3).is_empty());
}

/// Log odds distinguish samples whose probabilities round to 1.
#[test]
fn sure_answers_are_not_ties() {
    let logits = [[60.0, 0.0], [50.0, 0.0], [45.0, 0.0]].concat();
    let metrics = single(2, &logits, &[Some(0), Some(0), Some(1)], ALL_BYTES);
    near(metrics.classes[0].auroc, 1.0);
}

#[test]
fn what_does_not_fit_is_counted_in_bins() {
    let (logits, labels) = golden_single();
    let exact = single(7, &logits, &labels, ALL_BYTES);
    let binned = single(7, &logits.repeat(50), &labels.repeat(50), BIN_BYTES * 7);
    assert!(binned.auroc_is_approximate);
    assert!((binned.auroc.unwrap() - exact.auroc.unwrap()).abs() < 2e-3);
    assert_eq!(
        (binned.accuracy, binned.macro_f1),
        (exact.accuracy, exact.macro_f1)
    );
    // The smallest memory still gives a result; a score far out of range still has a bin.
    let coarse = multi(
        1,
        &[-1e9, -40.0, 0.1, 40.0, 1e9, f32::INFINITY],
        &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0],
        0,
    );
    assert_eq!(
        (coarse.auroc, coarse.ranking_is_approximate),
        (Some(1.0), true)
    );
}

/// Reference AUROC: every positive against every negative.
fn auroc_oracle(scores: &[f32], positives: &[bool]) -> Option<f64> {
    let (mut won, mut pairs) = (0.0, 0.0);
    for (&score, _) in scores
        .iter()
        .zip(positives)
        .filter(|(_, positive)| **positive)
    {
        for (&other, _) in scores
            .iter()
            .zip(positives)
            .filter(|(_, positive)| !**positive)
        {
            pairs += 1.0;
            won += if score > other {
                1.0
            } else if score == other {
                0.5
            } else {
                0.0
            };
        }
    }
    (pairs > 0.0).then(|| won / pairs)
}

/// Reference average precision: at each positive, the share of positives among all scores not below it.
fn average_precision_oracle(scores: &[f32], positives: &[bool]) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for (&score, _) in scores
        .iter()
        .zip(positives)
        .filter(|(_, positive)| **positive)
    {
        let at_least = || {
            scores
                .iter()
                .zip(positives)
                .filter(|(other, _)| **other >= score)
        };
        sum += at_least().filter(|(_, positive)| **positive).count() as f64
            / at_least().count() as f64;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

fn same(found: Option<f64>, expected: Option<f64>) -> bool {
    match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
        (found, expected) => found == expected,
    }
}

/// Few distinct values, so that ties occur.
fn grid() -> impl Strategy<Value = f32> {
    (-8..8i32).prop_map(|value| value as f32 / 2.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn several_labels_are_those_of_an_oracle(
        cells in prop::collection::vec((grid(), 0..3u8), 0..40),
        num_labels in 1..4usize,
    ) {
        let cells = &cells[..cells.len() / num_labels * num_labels];
        let logits: Vec<f32> = cells.iter().map(|cell| cell.0).collect();
        let target = |&(_, kind): &(f32, u8)| if kind == 2 { f32::NAN } else { f32::from(kind) };
        let targets: Vec<f32> = cells.iter().map(target).collect();
        let metrics = multi(num_labels, &logits, &targets, ALL_BYTES);
        let mut all = [0, 0, 0];
        for label in 0..num_labels {
            let known = || cells.iter().skip(label).step_by(num_labels).filter(|cell| cell.1 < 2);
            let scores: Vec<f32> = known().map(|cell| cell.0).collect();
            let positives: Vec<bool> = known().map(|cell| cell.1 == 1).collect();
            let found = metrics.labels[label];
            prop_assert!(same(found.auroc, auroc_oracle(&scores, &positives)));
            prop_assert!(same(found.average_precision, average_precision_oracle(&scores, &positives)));
            let count = |of: fn(f32, bool) -> bool| {
                scores.iter().zip(&positives).filter(|(score, positive)| of(**score, **positive)).count()
            };
            let counts = [
                count(|score, positive| score >= 0.0 && positive),
                count(|score, positive| score >= 0.0 && !positive),
                count(|score, positive| score < 0.0 && positive),
            ];
            let f1 = |[tp, fp, fn_]: [usize; 3]| {
                let all = 2 * tp + fp + fn_;
                (all > 0).then(|| 2.0 * tp as f64 / all as f64)
            };
            prop_assert!(same(found.counts.f1, f1(counts)));
            all = std::array::from_fn(|at| all[at] + counts[at]);
            if label + 1 == num_labels {
                prop_assert!(same(metrics.micro_f1, f1(all)));
            }
        }
    }

    #[test]
    fn single_labels_are_those_of_an_oracle(
        rows in prop::collection::vec((prop::array::uniform7(grid()), prop::option::of(0..7usize)), 0..40),
    ) {
        let logits: Vec<f32> = rows.iter().flat_map(|row| row.0).collect();
        let labels: Vec<Option<usize>> = rows.iter().map(|row| row.1).collect();
        let metrics = single(7, &logits, &labels, ALL_BYTES);
        let known: Vec<(&[f32; 7], usize)> = rows.iter().filter_map(|(row, label)| Some((row, (*label)?))).collect();
        prop_assert_eq!(metrics.samples as usize, known.len());
        prop_assert_eq!(metrics.unlabelled as usize, rows.len() - known.len());
        let best = |row: &[f32; 7]| top_k(row, 7).iter().map(|best| best.0).collect::<Vec<_>>();
        let share = |of: &dyn Fn(&[f32; 7], usize) -> bool| {
            let right = known.iter().filter(|(row, label)| of(row, *label)).count();
            (!known.is_empty()).then(|| right as f64 / known.len() as f64)
        };
        prop_assert!(same(metrics.accuracy, share(&|row, label| best(row)[0] == label)));
        prop_assert!(same(metrics.top5, share(&|row, label| best(row)[..5].contains(&label))));
        for class in 0..7 {
            let positives: Vec<bool> = known.iter().map(|(_, label)| *label == class).collect();
            let scores: Vec<f64> = known.iter().map(|(row, _)| {
                let total: f64 = row.iter().map(|&logit| f64::from(logit - row[class]).exp()).sum();
                -(total - 1.0).ln()
            }).collect();
            let found = metrics.classes[class];
            // Nearly equal scores may or may not share a bin: their pair counts 0, 1 or one half.
            let [mut least, mut most, mut pairs] = [0.0; 3];
            for (positive, _) in scores.iter().zip(&positives).filter(|(_, is)| **is) {
                for (negative, _) in scores.iter().zip(&positives).filter(|(_, is)| !**is) {
                    pairs += 1.0;
                    least += f64::from(u8::from(positive - negative > 1e-4));
                    most += f64::from(u8::from(positive - negative > -1e-4));
                }
            }
            prop_assert_eq!(found.auroc.is_some(), pairs > 0.0);
            if let Some(found) = found.auroc {
                let (least, most) = (least / pairs, most / pairs);
                prop_assert!(least - 1e-9 <= found && found <= most + 1e-9, "{found}: {least} to {most}");
            }
            let count = |of: &dyn Fn(usize, usize) -> bool| {
                known.iter().filter(|(row, label)| of(*label, best(row)[0])).count() as u64
            };
            prop_assert_eq!(found.counts.support, count(&|label, _| label == class));
            prop_assert!(same(found.counts.recall, super::share(count(&|label, predicted| label == class && predicted == class), found.counts.support)));
            for other in 0..7 {
                prop_assert_eq!(
                    metrics.confusion.count(class as u32, other as u32),
                    count(&|label, predicted| label == class && predicted == other)
                );
            }
        }
    }
}
