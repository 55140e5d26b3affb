//! Moments in fewer bits and averages of weights on a GPU: near f32, the same bits twice, and places exchanged without a trace.

use holdall_train::config::GradientFormat;
use holdall_train::engine::optimizer::{Averaging, MomentFormat};

use crate::card::{
    ALL, Gpu, Run, assert_same_bits, bits, card_or_software, drawn, small, small_task,
};
use crate::support::evaluated;

const NUM_STEPS: usize = 60;
const TOGETHER: usize = 10;

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn losses_stay_near_those_with_moments_in_f32_and_are_the_same_twice() {
    let Some(gpu) = Gpu::open() else { return };
    let num_steps = card_or_software(NUM_STEPS, TOGETHER);
    for arithmetic in gpu.supported(ALL) {
        let losses = |moments, gradients| {
            let mut config = small(gpu.device, arithmetic);
            (config.optimizer.moments, config.gradients) = (moments, gradients);
            let mut run = Run::begin(gpu.device, &config, num_steps);
            (run.losses(num_steps), run.state())
        };
        let (expected, _) = losses(MomentFormat::F32, GradientFormat::F32);
        let formats = [
            (MomentFormat::Bf16, GradientFormat::F32),
            (MomentFormat::EightBit, GradientFormat::F32),
            (MomentFormat::F32, GradientFormat::Bf16),
            (MomentFormat::EightBit, GradientFormat::Bf16),
        ];
        for (moments, gradients) in drawn(&formats, 1) {
            let what = format!(
                "{}, moments in {}, gradients in {gradients:?}",
                arithmetic.name(),
                moments.name()
            );
            let (found, state) = losses(moments, gradients);
            assert_eq!(found[0], expected[0], "{what}: before any update");
            let pairs = found.chunks(TOGETHER).zip(expected.chunks(TOGETHER));
            let off = pairs.map(|(found, expected)| (mean(found) / mean(expected) - 1.0).abs());
            let off = off.fold(0.0, f64::max);
            println!("{what}: means of {TOGETHER} losses are off by {off:.1e}");
            assert!(off < 5e-2, "{what}: {found:?}, expected {expected:?}");
            let (again, state_again) = losses(moments, gradients);
            assert_eq!(again, found, "{what}");
            assert_same_bits(&state_again, &state, &what);
        }
    }
}

#[test]
fn averages_and_weights_exchange_places_and_copies_follow() {
    let Some(gpu) = Gpu::open() else { return };
    for arithmetic in gpu.supported(ALL) {
        let what = arithmetic.name();
        let mut config = small(gpu.device, arithmetic);
        config.optimizer.averaging = Averaging::OverSteps { decay: 0.5 };
        let mut run = Run::begin(gpu.device, &config, NUM_STEPS);
        run.step.restart_averages(gpu.device).unwrap();
        run.losses(5);
        let before = run.state();
        // Evaluations compute from copies in the compute format: of the weights, or of the averages in their place.
        let batch = run.batches[0].clone();
        let features = |run: &mut Run<'_>| {
            let task = small_task(gpu.device);
            evaluated(&task, &mut run.step, gpu.device, &batch).map(|values| bits(&values))
        };
        let of_weights = features(&mut run);
        run.step.exchange_averages(gpu.device).unwrap();
        let averages = run.step.named_weights().unwrap();
        let of_averages = features(&mut run);
        assert!(of_averages != of_weights, "{what}");
        run.step.exchange_averages(gpu.device).unwrap();
        assert_same_bits(&run.state(), &before, what);
        assert!(features(&mut run) == of_weights, "{what}");
        let mut other = Run::begin(gpu.device, &small(gpu.device, arithmetic), NUM_STEPS);
        let fill = |name: &str, values: &mut [f32]| {
            values.copy_from_slice(&averages[name]);
            Ok::<(), ()>(())
        };
        other.step.set_weights(gpu.device, fill).unwrap();
        assert!(features(&mut other) == of_averages, "{what}");
    }
}
