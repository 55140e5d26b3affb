//! Leaks of a known size, few epochs and many: how often the interval that is told has the truth in it, and whether per epoch, per
//! step and per minute are the same growth. And logs of few epochs without a leak.

use holdall_telemetry::analyze::{Analysis, AnalyzeOptions, Finding, Symptom, analyze};

use crate::draw::{Dice, Drawn, Writer};

const EPOCHS: [usize; 5] = [2, 3, 5, 10, 30];
/// Of each shape and each number of epochs.
const CASES: u64 = 24;

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// With every step.
    Steady,
    /// At the end of each epoch.
    PerEpoch,
    /// Steady, after a warm-up in the first tenth.
    WarmUp,
    /// Steady, under a sawtooth of one tooth per epoch.
    Sawtooth,
}

struct Leak {
    drawn: Drawn,
    per_epoch: f64,
    per_minute: f64,
    looks_per_epoch: usize,
}

fn cases() -> u64 {
    let text = std::env::var("HOLDALL_CASES").ok();
    text.map_or(CASES, |text| text.parse().unwrap())
}

fn leak(shape: Shape, epochs: usize, seed: u64) -> Leak {
    let mut dice = Dice::new(seed << 16 | (shape as u64) << 8 | epochs as u64);
    let dice = &mut dice;
    let writers = [Writer::Holdall, Writer::Torch, Writer::Smi];
    // nvidia-smi knows no epochs.
    let writer = match shape {
        Shape::PerEpoch if epochs < 10 => dice.pick(&writers[..2]),
        _ => dice.pick(&writers),
    };
    let looks_per_epoch = 24 + dice.below(40);
    let mut drawn = Drawn::healthy_for(writer, epochs, looks_per_epoch, dice);
    drawn.empty = [0, 0];
    let num_looks = drawn.looks.len() as f64;
    let per_look = dice.factor(0.02, 0.14) / num_looks;
    let per_epoch = per_look * looks_per_epoch as f64;
    let at_look = |at: f64| at * (num_looks - 1.0);
    match shape {
        Shape::PerEpoch => drawn.add(|_, look| per_epoch * look.epoch as f64),
        _ => drawn.add(|at, _| per_look * at_look(at)),
    }
    match shape {
        Shape::WarmUp => {
            let (height, tau) = (dice.between(0.02, 0.2), dice.between(0.005, 0.03));
            drawn.add(|at, _| -height * (-at / tau).exp());
        }
        Shape::Sawtooth => {
            let height = dice.between(0.02, 0.15);
            drawn.add(|at, _| height * ((at_look(at) / looks_per_epoch as f64).fract() - 1.0));
        }
        Shape::Steady | Shape::PerEpoch => {}
    }
    let seconds = drawn.looks[drawn.looks.len() - 1].time - drawn.looks[0].time;
    Leak {
        per_epoch: per_epoch * drawn.card_bytes,
        per_minute: per_look * drawn.card_bytes * (num_looks - 1.0) / seconds * 60.0,
        drawn,
        looks_per_epoch,
    }
}

fn analysis(drawn: &Drawn) -> Analysis {
    let options = AnalyzeOptions {
        log: "drawn".to_owned(),
        ..AnalyzeOptions::default()
    };
    analyze(drawn.text().as_bytes(), &options).unwrap()
}

fn growth(analysis: &Analysis) -> Option<&Finding> {
    let mut findings = analysis.findings.iter();
    findings.find(|finding| finding.kind == Symptom::Growth)
}

/// Whether it has an interval.
fn is_sure(finding: &Finding) -> bool {
    finding.message.contains("95% sure")
}

fn number(finding: &Finding, key: &str) -> Option<f64> {
    finding
        .evidence
        .get(key)
        .and_then(serde_json::Value::as_f64)
}

/// Of all intervals that are told, at least 95% have the truth in them, and of few epochs no fewer than of many.
#[test]
fn intervals_have_the_truth_in_them() {
    let (mut num_told, mut num_true) = (0, 0);
    for epochs in EPOCHS {
        let (mut told_of, mut true_of) = (0, 0);
        for shape in [
            Shape::Steady,
            Shape::PerEpoch,
            Shape::WarmUp,
            Shape::Sawtooth,
        ] {
            let (mut told, mut is_true, mut errors, mut wrong) = (0, 0, Vec::new(), Vec::new());
            for seed in 0..cases() {
                let leak = leak(shape, epochs, seed);
                let analysis = analysis(&leak.drawn);
                let Some(finding) = growth(&analysis).filter(|finding| is_sure(finding)) else {
                    continue;
                };
                let (key, truth) = match leak.drawn.writer {
                    Writer::Smi | Writer::Dmon => ("bytes_per_minute", leak.per_minute),
                    Writer::Holdall | Writer::Torch => ("bytes_per_epoch", leak.per_epoch),
                };
                let of = |end: &str| number(finding, &format!("{key}{end}")).unwrap();
                told += 1;
                let is_in = of("_low") <= truth && truth <= of("_high");
                is_true += usize::from(is_in);
                errors.push((of("") / truth - 1.0).abs());
                if !is_in {
                    wrong.push((
                        seed,
                        leak.drawn.writer,
                        [of("_low") / truth, of("") / truth, of("_high") / truth],
                    ));
                }
            }
            errors.sort_by(f64::total_cmp);
            println!(
                "{epochs:>2} epochs, {shape:?}: told {told} of {}, true {is_true}, median error {:.1}%; {wrong:.3?}",
                cases(),
                100.0 * errors.get(errors.len() / 2).unwrap_or(&0.0)
            );
            told_of += told;
            true_of += is_true;
        }
        println!("{epochs:>2} epochs: {true_of} of {told_of}");
        num_told += told_of;
        num_true += true_of;
    }
    assert!(num_told as f64 >= 0.5 * (cases() * 20) as f64, "{num_told}");
    assert!(
        num_true as f64 >= 0.95 * num_told as f64,
        "{num_true} of {num_told}"
    );
}

/// One rate in three units: by the steps per epoch and the seconds per step that the log has.
#[test]
fn per_epoch_per_step_and_per_minute_agree() {
    let mut num_checked = 0;
    for epochs in EPOCHS {
        for seed in 0..cases() {
            let leak = leak(Shape::Steady, epochs, seed);
            let analysis = analysis(&leak.drawn);
            let Some(finding) = growth(&analysis).filter(|finding| is_sure(finding)) else {
                continue;
            };
            if leak.drawn.writer != Writer::Holdall {
                continue;
            }
            let of = |key: &str| number(finding, key).unwrap();
            let steps_per_epoch = of("bytes_per_epoch") / of("bytes_per_step");
            let steps_per_minute = of("bytes_per_minute") / of("bytes_per_step");
            let looks = &leak.drawn.looks;
            let minutes = (looks[looks.len() - 1].time - looks[0].time) / 60.0;
            let expected = (looks.len() - 1) as f64 / minutes;
            assert!(
                (steps_per_epoch / leak.looks_per_epoch as f64 - 1.0).abs() < 1e-3,
                "{steps_per_epoch} {}",
                leak.looks_per_epoch
            );
            assert!(
                (steps_per_minute / expected - 1.0).abs() < 0.02,
                "{steps_per_minute} {expected}"
            );
            num_checked += 1;
        }
    }
    assert!(num_checked > 20, "{num_checked}");
}

/// Few epochs without a leak: warm-up, a sawtooth, or only noise.
#[test]
fn few_epochs_without_a_leak() {
    let mut alarms = Vec::new();
    let mut num_logs = 0;
    for epochs in [1, 2, 3, 4, 5, 7] {
        for seed in 0..3 * cases() {
            let dice = &mut Dice::new(seed << 16 | epochs as u64);
            let writer = dice.pick(&[Writer::Holdall, Writer::Torch, Writer::Smi]);
            let looks = 30 + dice.below(40);
            let mut drawn = Drawn::healthy_for(writer, epochs, looks, dice);
            match seed % 3 {
                0 => crate::verdicts::warm_up(dice, &mut drawn),
                1 => {
                    let num_teeth = dice.factor(1.5, 60.0);
                    crate::verdicts::sawtooth(dice, &mut drawn, num_teeth);
                }
                _ => {}
            }
            num_logs += 1;
            if let Some(finding) = growth(&analysis(&drawn)) {
                alarms.push((epochs, seed, writer, finding.message.clone()));
            }
        }
    }
    println!("{} of {num_logs}: {alarms:#?}", alarms.len());
    assert!(alarms.len() * 100 <= num_logs, "{alarms:#?}");
}
