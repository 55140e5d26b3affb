//! Steps that pause and steps that are dropped; what a long step takes, told from a few micro-batches.

use std::time::Instant;

use holdall_train::config::RunConfig;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::planning::plan_race::Choosing;
use holdall_train::planning::setup::Setup;

use crate::card::{ALL, Gpu, is_left_out, say, small_model};
use crate::support::parts_case::assert_parts_are_a_step;

#[test]
fn a_pause_changes_no_bit_and_a_step_without_its_update_has_not_happened() {
    let Some(gpu) = Gpu::open() else {
        return;
    };
    for arithmetic in gpu.supported(ALL) {
        assert_parts_are_a_step(gpu.device, small_model(), arithmetic);
    }
}

/// A step of 2,048 micro-batches: planned with a race, then run once. How close the race came is a line to read: a bound would
/// depend on who else uses the machine.
#[test]
fn a_long_step_is_planned_without_running_it() {
    if is_left_out("a long step", "runs steps of 8,192 samples") {
        return;
    }
    let Some(gpu) = Gpu::open() else {
        return;
    };
    let device = gpu.device;
    let mut config = RunConfig {
        model: "small".to_owned(),
        ..RunConfig::default()
    };
    config.train.effective_batch = Some(8192);
    config.train.batch_size = Some(4);
    let setup = Setup::without_data(&config, device).unwrap();
    let began = Instant::now();
    let plan = setup
        .plan(device, 0, Choosing::Measured(&mut |line| say(line)))
        .unwrap();
    let planning = began.elapsed().as_secs_f64();
    let predicted_ms = plan.chosen.step_ms;
    assert!(plan.curve.contains(&plan.chosen));
    let batch = setup.step.task.random_batch(8192, 1);
    let (mut step, _) = setup.start(device, plan, &mut |line| say(line)).unwrap();
    let scalars = |step| StepScalars {
        step,
        rates: &[1e-5, 1e-5],
        loss_scale: 1.0,
    };
    step.run(device, &batch, &scalars(1)).unwrap();
    let began = Instant::now();
    step.run(device, &batch, &scalars(2)).unwrap();
    let step_ms = began.elapsed().as_secs_f64() * 1e3;
    say(&format!(
        "A step of 2,048 micro-batches: planned in {planning:.1} s for {predicted_ms:.0} ms, took {step_ms:.0} ms"
    ));
    assert!(predicted_ms > 0.0 && predicted_ms.is_finite());
}
