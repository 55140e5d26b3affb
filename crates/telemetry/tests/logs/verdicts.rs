//! Every verdict on hundreds of drawn logs: how often it is given where it should be, and how often where it should not.

use std::collections::BTreeMap;

use holdall_telemetry::analyze::{Analysis, AnalyzeOptions, Symptom, analyze};

use crate::draw::{Dice, Drawn, Writer};

/// Of each kind; `HOLDALL_CASES` and `HOLDALL_SEED` draw more and others.
const CASES: u64 = 240;
/// Of the logs that have it.
const DETECTED: f64 = 0.95;
/// Of the logs that do not.
const FALSE_ALARMS: f64 = 0.02;

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let first = number("HOLDALL_SEED").unwrap_or(0) << 32;
    first..first + number("HOLDALL_CASES").unwrap_or(CASES)
}

fn analysis(drawn: &Drawn) -> Analysis {
    let options = AnalyzeOptions {
        log: "drawn".to_owned(),
        ..AnalyzeOptions::default()
    };
    analyze(drawn.text().as_bytes(), &options).unwrap()
}

/// Draws logs that have it, prints how often it was found, and how often something that is not there; `beside` may be there too.
fn assert_detected(
    name: &str,
    kind: Symptom,
    beside: &[Symptom],
    draw: impl Fn(&mut Dice) -> Drawn,
) {
    let seeds = seeds();
    let num_cases = seeds.end - seeds.start;
    let mut num_found = 0;
    let mut missed = Vec::new();
    let mut alarms = Vec::new();
    for seed in seeds.clone() {
        let drawn = draw(&mut Dice::new(seed));
        let findings = analysis(&drawn).findings;
        if findings.iter().any(|finding| finding.kind == kind) {
            num_found += 1
        } else {
            missed.push((seed, drawn.writer))
        }
        let others = findings.iter().map(|finding| finding.kind);
        let wrong: Vec<Symptom> = others
            .filter(|other| *other != kind && !beside.contains(other))
            .collect();
        alarms.extend((!wrong.is_empty()).then_some((seed, drawn.writer, wrong)));
    }
    let rate = f64::from(num_found) / num_cases as f64;
    let wrong_rate = alarms.len() as f64 / num_cases as f64;
    println!(
        "detected     {name:<34} {num_found:>4} of {num_cases} ({:.1}%); something else in {} ({:.1}%)",
        100.0 * rate,
        alarms.len(),
        100.0 * wrong_rate
    );
    if !alarms.is_empty() {
        println!("             {alarms:?}");
    }
    assert!(rate >= DETECTED, "{name}: missed {missed:?}");
    assert!(
        wrong_rate <= FALSE_ALARMS,
        "{name}: false alarms {alarms:?}"
    );
}

/// Draws logs that have nothing, and asserts that (nearly) nothing is found.
fn assert_healthy(name: &str, draw: impl Fn(&mut Dice) -> Drawn) {
    let mut alarms: BTreeMap<String, Vec<(u64, Writer)>> = BTreeMap::new();
    let seeds = seeds();
    let num_cases = seeds.end - seeds.start;
    let mut num_alarmed = 0;
    for seed in seeds.clone() {
        let drawn = draw(&mut Dice::new(seed));
        let findings = analysis(&drawn).findings;
        num_alarmed += u32::from(!findings.is_empty());
        for finding in findings {
            let of_kind = alarms.entry(format!("{:?}", finding.kind)).or_default();
            of_kind.push((seed, drawn.writer));
        }
    }
    let rate = f64::from(num_alarmed) / num_cases as f64;
    println!(
        "false alarms {name:<34} {num_alarmed:>4} of {num_cases} ({:.1}%)",
        100.0 * rate
    );
    if num_alarmed > 0 {
        println!("             {alarms:?}");
    }
    assert!(rate <= FALSE_ALARMS, "{name}: {alarms:?}");
}

/// 0.1% to 2% of the card per epoch.
fn leak(dice: &mut Dice, drawn: &mut Drawn) -> f64 {
    let per_epoch = dice.factor(0.001, 0.02);
    // What would not fit would end the run.
    let room = 0.12 / drawn.num_epochs as f64;
    per_epoch.min(room.max(0.001))
}

fn drifting(dice: &mut Dice, drawn: &mut Drawn, per_epoch: f64) {
    let epochs = drawn.num_epochs as f64;
    if dice.chance(0.3) {
        // Something is kept at the end of each epoch.
        drawn.add(|_, look| per_epoch * look.epoch as f64)
    } else {
        drawn.add(|at, _| per_epoch * epochs * at)
    }
}

/// Up within each of `num_teeth`, back down at its end.
pub fn sawtooth(dice: &mut Dice, drawn: &mut Drawn, num_teeth: f64) {
    let height = dice.between(0.02, 0.2);
    drawn.each(|_, look| look.held -= height);
    drawn.add(|at, _| height * (at * num_teeth).fract());
}

pub fn warm_up(dice: &mut Dice, drawn: &mut Drawn) {
    let height = dice.between(0.02, 0.4);
    match dice.below(5) {
        // The largest batch until now, of batches of many sizes: records get rarer, and never end.
        4 => {
            let mut most = 0.0f64;
            let mut sizes = Dice::new(dice.bits());
            drawn.add(|_, _| {
                most = most.max(sizes.between(0.0, 1.0).powi(3));
                height * (most - 1.0)
            });
        }
        // Caches that fill.
        0 => {
            let tau = dice.between(0.005, 0.15);
            drawn.add(|at, _| -height * (-at / tau).exp());
        }
        // A few larger batches, each rarer than the one before.
        1 => {
            let times = [
                dice.between(0.0, 0.05),
                dice.between(0.05, 0.15),
                dice.between(0.15, 0.4),
            ];
            drawn.add(|at, _| {
                -height / 3.0 * times.iter().filter(|time| at < **time).count() as f64
            });
        }
        // A straight line that ends.
        2 => {
            let end = dice.between(0.02, 0.3);
            drawn.add(|at, _| -height * (1.0 - at / end).max(0.0));
        }
        // One step: another stage of the run.
        3 => {
            let step = dice.between(0.05, 0.7);
            drawn.add(|at, _| if at < step { -height } else { 0.0 });
        }
        _ => unreachable!(),
    }
}

#[test]
fn growth() {
    assert_detected(
        "growth: leak in noise",
        Symptom::Growth,
        &[Symptom::NearLimit],
        |dice| {
            let mut drawn = Drawn::healthy(dice);
            let per_epoch = leak(dice, &mut drawn);
            drifting(dice, &mut drawn, per_epoch);
            drawn
        },
    );
}

#[test]
fn growth_of_the_least_that_counts() {
    assert_detected(
        "growth: 0.1% of the card per epoch",
        Symptom::Growth,
        &[Symptom::NearLimit],
        |dice| {
            let mut drawn = Drawn::healthy(dice);
            drifting(dice, &mut drawn, 0.001);
            drawn
        },
    );
}

#[test]
fn growth_under_a_sawtooth() {
    assert_detected(
        "growth: under a sawtooth",
        Symptom::Growth,
        &[Symptom::NearLimit],
        |dice| {
            let mut drawn = Drawn::healthy(dice);
            let per_epoch = leak(dice, &mut drawn).max(0.002);
            let num_teeth = drawn.num_epochs as f64;
            sawtooth(dice, &mut drawn, num_teeth);
            drifting(dice, &mut drawn, per_epoch);
            drawn
        },
    );
}

#[test]
fn growth_after_warm_up() {
    assert_detected(
        "growth: after warm-up",
        Symptom::Growth,
        &[Symptom::NearLimit],
        |dice| {
            let mut drawn = Drawn::healthy(dice);
            let per_epoch = leak(dice, &mut drawn);
            let (height, tau) = (dice.between(0.02, 0.3), dice.between(0.005, 0.08));
            drawn.add(|at, _| -height * (-at / tau).exp());
            drifting(dice, &mut drawn, per_epoch);
            drawn
        },
    );
}

#[test]
fn healthy() {
    assert_healthy("healthy", Drawn::healthy);
}

#[test]
fn healthy_sawtooth() {
    assert_healthy("sawtooth, any number of teeth", |dice| {
        let mut drawn = Drawn::healthy(dice);
        let num_teeth = dice.factor(1.5, 200.0);
        sawtooth(dice, &mut drawn, num_teeth);
        drawn
    });
}

#[test]
fn healthy_warm_up() {
    assert_healthy("warm-up", |dice| {
        let mut drawn = Drawn::healthy(dice);
        warm_up(dice, &mut drawn);
        drawn
    });
}

#[test]
fn spike() {
    assert_detected("spike", Symptom::Spike, &[Symptom::NearLimit], |dice| {
        let mut drawn = Drawn::healthy(dice);
        let top = drawn.looks.iter().map(|look| look.held).fold(0.0, f64::max);
        let height = dice.between(0.07, (0.99 - top).max(0.08));
        let [before, after] = drawn.empty;
        let num_looks = drawn.looks.len() - before - after;
        for _ in 0..1 + dice.below(4) {
            let at = before + dice.below(num_looks);
            let look = &mut drawn.looks[at];
            look.held = top + height * dice.between(0.9, 1.0);
            look.reserved = look.reserved.max(look.held);
        }
        drawn
    });
}

#[test]
fn fragmentation() {
    assert_detected("fragmentation", Symptom::Fragmentation, &[], |dice| {
        let mut drawn = Drawn::healthy_of(Writer::Torch, dice);
        // Looked at within steps, or at their ends while what is reserved creeps up.
        let is_within = dice.chance(0.5);
        let level = dice.between(0.2, 0.5);
        let swing = dice.between(0.05, 0.3) * level;
        let over = dice.between(1.5, 1.9);
        let mut within = Vec::new();
        for _ in 0..drawn.looks.len() {
            within.push(dice.between(-1.0, 1.0));
        }
        let mut at_look = within.into_iter();
        drawn.each(|at, look| {
            let wobble = at_look.next().unwrap();
            look.held = if is_within {
                level + swing * wobble
            } else {
                level
            };
            let grown = if is_within { 1.0 } else { 0.75 + 0.25 * at };
            look.reserved = (level + swing) * over * grown;
        });
        drawn
    });
}

#[test]
fn near_the_limit() {
    assert_detected("near the limit", Symptom::NearLimit, &[], |dice| {
        let mut drawn = Drawn::healthy(dice);
        let most = drawn.looks.iter().map(|look| look.held).fold(0.0, f64::max);
        let goal = dice.between(0.965, 0.995);
        drawn.add(|_, _| goal - most);
        drawn
    });
}

#[test]
fn underused() {
    assert_detected("underused", Symptom::Underused, &[], |dice| {
        // Where the GPU is not busy, only a log that says it did not wait for data tells that batches are too small.
        let writer = dice.pick(&[Writer::Holdall, Writer::Torch]);
        let mut drawn = Drawn::healthy_of(writer, dice);
        scaled_down(dice, &mut drawn);
        drawn.each(|_, look| look.waited = Some(0.02));
        drawn
    });
}

fn scaled_down(dice: &mut Dice, drawn: &mut Drawn) {
    let goal = dice.between(0.03, 0.2);
    let busy = dice.between(10.0, 60.0);
    drawn.each(|_, look| {
        look.reserved *= goal / 0.9;
        look.held *= goal / 0.9;
        look.utilization *= busy / 100.0;
    });
}

/// Most of the memory is free and the GPU is not busy: a larger batch may only wait longer, so none is suggested.
#[test]
fn a_gpu_that_waits_is_not_told_to_take_larger_batches() {
    assert_detected("starved", Symptom::WaitingForData, &[], |dice| {
        let writer = dice.pick(&[Writer::Holdall, Writer::Smi, Writer::Dmon]);
        let mut drawn = Drawn::healthy_of(writer, dice);
        scaled_down(dice, &mut drawn);
        drawn
    });
}

#[test]
fn idle() {
    assert_detected("idle", Symptom::WaitingForData, &[], |dice| {
        let writer = dice.pick(&[Writer::Holdall, Writer::Smi]);
        let mut drawn = Drawn::healthy_of(writer, dice);
        drawn.empty = [0, 0];
        let (from, length) = if dice.chance(0.5) {
            (0.0, 1.0)
        } else {
            (dice.between(0.0, 0.6), dice.between(0.15, 0.35))
        };
        drawn.each(|at, look| {
            if (from..=from + length).contains(&at) {
                look.utilization = 0.0;
                look.phase = "train";
            }
        });
        drawn
    });
}

#[test]
fn waiting_for_data() {
    assert_detected("waiting for data", Symptom::WaitingForData, &[], |dice| {
        let writer = dice.pick(&[Writer::Holdall, Writer::Smi, Writer::Dmon]);
        let mut drawn = Drawn::healthy_of(writer, dice);
        let share = dice.between(0.35, 0.8);
        let says_so = dice.chance(0.5) && writer == Writer::Holdall;
        let comes_in_gaps = dice.chance(0.5);
        let mut gaps = Dice::new(dice.bits());
        drawn.each(|_, look| {
            if !comes_in_gaps {
                look.utilization *= 1.0 - share;
            } else if gaps.chance(share) {
                look.utilization = 0.0;
            }
            look.waited = says_so.then(|| (share + 0.05 * gaps.normal()).clamp(0.0, 1.0));
        });
        drawn
    });
}

#[test]
fn other_processes() {
    assert_detected(
        "other processes",
        Symptom::OtherProcesses,
        &[Symptom::NearLimit],
        |dice| {
            let mut drawn = Drawn::healthy_of(Writer::Holdall, dice);
            let others = dice.between(0.06, 0.15);
            let from = dice.between(-0.2, 0.9);
            drawn.each(|at, look| {
                look.held -= 0.05;
                if at >= from {
                    look.others = others;
                }
            });
            drawn
        },
    );
}

/// A host always has other processes, and a run on the CPU that fills a corner of it is well.
#[test]
fn a_run_on_a_shared_host_is_healthy() {
    let mut text = String::new();
    for step in 0..100u64 {
        text.push_str(&format!(
            "{{\"time\":{step}.5,\"step\":{step},\"epoch\":{},\"phase\":\"train\",\"device\":\"cpu\",\
             \"used_bytes\":{},\"total_bytes\":25000000000,\"process_bytes\":350000000,\"arena_bytes\":320000000,\
             \"host_rss_bytes\":350000000,\"gpu_utilization\":null,\"samples_per_s\":190.0,\
             \"planned_bytes\":356000000,\"batch_size\":128,\"waited_for_data\":0.02}}\n",
            step / 20,
            // Others come, and take nearly all there is.
            2_000_000_000 + 220_000_000 * step
        ));
    }
    let options = AnalyzeOptions {
        log: "host".to_owned(),
        ..AnalyzeOptions::default()
    };
    let analysis = analyze(text.as_bytes(), &options).unwrap();
    assert!(analysis.findings.is_empty(), "{:?}", analysis.findings);
}

#[test]
fn spill() {
    assert_detected(
        "spill to host memory",
        Symptom::Spill,
        &[Symptom::NearLimit],
        |dice| {
            let mut drawn = Drawn::healthy(dice);
            drawn.writer = dice.pick(&[Writer::Holdall, Writer::Torch]);
            let from = dice.between(0.1, 0.9);
            let slower = dice.between(1.8, 8.0);
            drawn.each(|at, look| {
                if at >= from {
                    look.phase = "train";
                    look.held = 0.975;
                    look.reserved = 0.985;
                    look.step_seconds *= slower;
                }
            });
            drawn
        },
    );
}

/// JSON lines of a script, as `of` makes each from its step.
fn of_script(of: impl Fn(u32) -> String) -> Analysis {
    let text: String = (0..200).map(|step| of(step) + "\n").collect();
    let options = AnalyzeOptions {
        log: "script".to_owned(),
        ..AnalyzeOptions::default()
    };
    analyze(text.as_bytes(), &options).unwrap()
}

#[test]
fn without_a_peak_no_larger_batch_is_advised() {
    let analysis = of_script(|step| {
        format!(r#"{{"step": {step}, "allocated_mib": 2000, "total_mib": 81920, "batch_size": 8}}"#)
    });
    let found = &analysis.findings[0];
    assert_eq!(found.kind, Symptom::Underused);
    assert!(
        found.advice.contains("max_memory_allocated()"),
        "{}",
        found.advice
    );
}

#[test]
fn reserved_memory_that_jumps_at_the_end_of_an_epoch_is_a_spike() {
    let analysis = of_script(|step| {
        let (epoch, reserved) = (step / 100, if step < 100 { 32_000 } else { 61_000 });
        format!(
            r#"{{"step": {step}, "epoch": {epoch}, "allocated_mib": 20000, "reserved_mib": {reserved}, "total_mib": 81920}}"#
        )
    });
    let spike = analysis
        .findings
        .iter()
        .find(|one| one.kind == Symptom::Spike);
    let message = &spike.unwrap().message;
    assert!(
        message.starts_with("reserved memory rose to ")
            && message.contains("at the end of an epoch"),
        "{message}"
    );
}
