//! The choice among contenders with simulated times; programs run on the CPU.

use holdall_device::cpu::{Cpu, CpuTarget};
use holdall_plan::PlanError;

use super::*;
use crate::config::RunConfig;

fn setup(device: &Device) -> Setup {
    let mut config = RunConfig {
        model: "small".to_owned(),
        ..RunConfig::default()
    };
    config.train.effective_batch = Some(16);
    Setup::without_data(&config, device).unwrap()
}

fn cpu() -> Device {
    Device::on_cpu(Cpu::new(Some(2)))
}

fn target() -> CpuTarget {
    CpuTarget::new(2).with_baseline(0)
}

fn up_to(setup: &Setup, budget_bytes: Option<u64>, count: usize) -> Result<Vec<Plan>, PlanError> {
    let build = |shape: &StepShape| setup.write(shape);
    let request = Request {
        budget_bytes,
        ..setup.request.clone()
    };
    contenders(&request, &build, &target(), count)
}

fn timing(plan: &Plan, step_ms: f64) -> Timing {
    Timing {
        choice: plan.chosen.choice,
        step_ms,
    }
}

#[test]
fn contenders_are_the_fastest_of_their_kind_that_fit() {
    let setup = setup(&cpu());
    let all = up_to(&setup, None, 4).unwrap();
    assert!(all.len() > 1, "there are close ones");
    let least = all.iter().map(|plan| plan.chosen.process_bytes).min();
    for budget in [None, least, least.map(|bytes| bytes - 1)] {
        let plans = up_to(&setup, budget, 4).unwrap();
        let alone = up_to(&setup, budget, 1).unwrap();
        // Without measurements, less memory at the same time is preferred.
        let (fastest, unmeasured) = (&plans[0].chosen, &alone[0].chosen);
        assert!(unmeasured.step_ms <= 1.005 * fastest.step_ms);
        assert!(unmeasured.process_bytes <= fastest.process_bytes);
        for (index, plan) in plans.iter().enumerate() {
            let chosen = &plan.chosen;
            assert!(chosen.step_ms <= 1.15 * plans[0].chosen.step_ms);
            assert!(budget.is_none_or(|budget| chosen.process_bytes <= budget));
            assert_eq!(plan.step.process_bytes, chosen.process_bytes);
            assert_eq!(plan.step.kept, chosen.choice.kept_micro_batches);
            for other in &plans[..index] {
                let kind = |of: &Candidate| (of.choice.batch_size, of.choice.recompute);
                assert_ne!(kind(chosen), kind(&other.chosen));
                assert!(other.chosen.step_ms <= chosen.step_ms);
            }
        }
    }
    let refused = |count| up_to(&setup, Some(1), count).unwrap_err();
    assert_eq!(refused(4), refused(1));
    assert!(matches!(refused(1), PlanError::DoesNotFit { .. }));
}

#[test]
fn a_choice_is_planned_again_where_it_is_open_and_fits() {
    let setup = setup(&cpu());
    let build = |shape: &StepShape| setup.write(shape);
    let again =
        |choice: &Choice, request: &Request| plan_of(choice, request, &build, &target()).unwrap();
    let open = Request {
        budget_bytes: None,
        ..setup.request.clone()
    };
    for plan in up_to(&setup, None, 4).unwrap() {
        let choice = plan.chosen.choice;
        let found = again(&choice, &open).unwrap();
        assert_eq!(found.chosen, plan.chosen);
        assert_eq!(found.step.arena_bytes, plan.step.arena_bytes);
        let tight = Request {
            budget_bytes: Some(plan.chosen.process_bytes - 1),
            ..open.clone()
        };
        assert!(again(&choice, &tight).is_none());
        let fixed = Request {
            batch_size: Some(choice.batch_size + 1),
            ..open.clone()
        };
        // Batch sizes up to the effective batch only; a larger one is a contradiction.
        if choice.batch_size < 16 {
            assert!(again(&choice, &fixed).is_none());
        }
    }
}

#[test]
fn what_has_no_memory_is_left_out_and_other_failures_are_told() {
    let plans = up_to(&setup(&cpu()), None, 3).unwrap();
    let mut lines = Vec::new();
    let mut results = vec![Ok(30.0), Err("no memory"), Ok(20.0)].into_iter();
    let mut run = |_: &Plan| {
        let result = results.next().unwrap();
        result.map_err(|text: &str| {
            let (found, hint) = (text.to_owned(), String::new());
            DeviceError::Memory { found, hint }.into()
        })
    };
    let mut tell = |line: &str| lines.push(line.to_owned());
    let timings = race(&plans, &mut run, &|| Duration::ZERO, &mut tell).unwrap();
    assert_eq!(timings, [timing(&plans[2], 20.0), timing(&plans[0], 30.0)]);
    assert_eq!(lines.len(), 3);
    assert!(lines[1].contains("its memory is not there"), "{}", lines[1]);
    let mut fails = |_: &Plan| Err(DeviceError::Failed("broken".to_owned()).into());
    assert!(race(&plans, &mut fails, &|| Duration::ZERO, &mut |_| ()).is_err());
}

#[test]
fn a_race_ends_when_its_time_is_up() {
    let plans = up_to(&setup(&cpu()), None, 4).unwrap();
    assert!(plans.len() >= 3, "there are enough of them");
    // Seconds that each plan takes to measure -> number of measured plans.
    let half = TIME_OF_RACE.as_secs_f64() / 2.0;
    let cases = [
        (0.1, plans.len()),
        (half - 0.1, 2),
        (half + 0.1, 1),
        (60.0, 1),
    ];
    for (seconds, measured) in cases {
        let clock = std::cell::Cell::new(0.0);
        let mut lines = Vec::new();
        let timings = race(
            &plans,
            &mut |_| {
                clock.set(clock.get() + seconds);
                Ok(5.0)
            },
            &|| Duration::from_secs_f64(clock.get()),
            &mut |line| lines.push(line.to_owned()),
        )
        .unwrap();
        assert_eq!(timings.len(), measured, "{seconds} s each");
        let told = format!("Measured {measured} of {} plans", plans.len());
        let is_cut_short = measured < plans.len();
        let is_told = lines.iter().any(|line| line.starts_with(&told));
        assert_eq!(is_told, is_cut_short, "{lines:?}");
    }
}

#[test]
fn the_fastest_measured_wins_and_knows_what_else_there_is() {
    let plans = up_to(&setup(&cpu()), None, 3).unwrap();
    let timings = [timing(&plans[1], 10.0), timing(&plans[0], 12.0)];
    // A thousand bytes more than the second plan expects beside its arena.
    let held = plans[1].step.process_bytes - plans[1].step.arena_bytes + 1000;
    let won = winner(plans.clone(), &timings, held, None).unwrap();
    assert_eq!(won.chosen.choice, plans[1].chosen.choice);
    assert_eq!(won.chosen.step_ms, 10.0);
    assert!(won.chosen.measured);
    assert_eq!(
        won.step.process_bytes,
        plans[1].chosen.process_bytes + 1000,
        "what grew is counted"
    );
    let foreseen = winner(plans.clone(), &timings, 1000, None).unwrap();
    assert_eq!(
        foreseen.step.process_bytes, plans[1].chosen.process_bytes,
        "what was foreseen is not counted twice"
    );
    let beaten = &won.alternatives[0];
    assert_eq!(beaten.choice, plans[0].chosen.choice);
    assert!(beaten.measured && beaten.step_ms == 12.0);
    let scale = 10.0 / plans[1].chosen.step_ms;
    for other in &won.alternatives[1..] {
        let was = plans[0].alternatives.iter();
        let was = was.clone().find(|was| was.choice == other.choice);
        assert!(!other.measured);
        assert_eq!(other.step_ms, scale * was.unwrap().step_ms);
    }
    let none = winner(plans.clone(), &[], 0, None);
    assert!(none.is_none(), "nothing could be run");
    let smallest = plans.iter().map(|plan| plan.chosen.process_bytes).min();
    assert!(winner(plans, &timings, held + (1 << 40), smallest).is_none());
}

#[test]
fn a_plan_runs_for_real() {
    let device = cpu();
    let setup = setup(&device);
    let plan = up_to(&setup, None, 1).unwrap().remove(0);
    // Fewer samples than the effective batch: the rest is padding.
    let batch = setup.step.task.random_batch(3, 1);
    let step_ms = run_for_real(&setup, &device, &plan, &batch).unwrap();
    assert!(step_ms.is_finite() && step_ms > 0.0, "{step_ms}");
}

/// The time of a step with hundreds of micro-batches is estimated from a few, for all kinds of programs.
#[test]
fn a_long_step_is_told_from_a_few_micro_batches() {
    let device = cpu();
    let mut setup = setup(&device);
    let batch = setup.step.task.random_batch(3, 1);
    for kept in [0, 12, 300] {
        setup.request.effective_batch = Some(300);
        setup.request.batch_size = Some(1);
        setup.request.kept = Some(kept);
        let plan = up_to(&setup, None, 1).unwrap().remove(0);
        assert_eq!((plan.step.accumulation, plan.step.kept), (300, kept));
        let step_ms = run_for_real(&setup, &device, &plan, &batch).unwrap();
        assert!(step_ms.is_finite() && step_ms > 0.0, "{step_ms}");
    }
}

#[test]
fn times_are_remembered_for_the_same_question_alone() {
    let folder = tempfile::tempdir().unwrap();
    let plans = up_to(&setup(&cpu()), None, 2).unwrap();
    let timings = vec![timing(&plans[1], 1.5), timing(&plans[0], 2.5)];
    let within = |key: &str| Remembered::within(folder.path(), key.to_owned());
    let one = within("one");
    assert_eq!(one.read(), None);
    one.write(&timings);
    assert_eq!(one.read(), Some(timings.clone()));
    assert_eq!(within("two").read(), None);
    let files = fs::read_dir(folder.path().join("plans")).unwrap();
    assert_eq!(files.count(), 1, "nothing half written stays");
    // A file with another key, and broken files.
    fs::copy(&one.file, &within("two").file).unwrap();
    assert_eq!(within("two").read(), None);
    let sound = fs::read_to_string(&one.file).unwrap();
    for broken in [
        sound[..sound.len() / 2].to_owned(),
        sound.replace("1.5", "-1.5"),
        r#"{"key": "one", "timings": []}"#.to_owned(),
        String::new(),
    ] {
        fs::write(&one.file, broken).unwrap();
        assert_eq!(one.read(), None);
    }
    one.write(&timings);
    assert_eq!(one.read(), Some(timings));
}

#[test]
fn a_key_tells_apart_what_takes_other_times() {
    let setup = setup(&cpu());
    let (asked, step) = (&setup.asked, &setup.step);
    let mut keys = vec![
        key("card", asked, step),
        key("other card", asked, step),
        key(
            "card",
            &Request {
                batch_size: Some(4),
                ..asked.clone()
            },
            step,
        ),
        key(
            "card",
            asked,
            &StepConfig {
                evaluation_batch: Some(5),
                ..step.clone()
            },
        ),
    ];
    let num_keys = keys.len();
    let mut decays = step.clone();
    decays.optimizer.weight_decay = 0.5;
    assert_eq!(key("card", asked, &decays), keys[0]);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), num_keys);
}
