//! Video-text on a GPU: features, gradients and ten steps of PyTorch's, and the same twice.

use std::sync::Arc;

use holdall_device::Arithmetic;
use holdall_plan::Recompute;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;

use crate::card::{Gpu, drawn, pairs};
use crate::support::video_text_case::{CASES, NUM_SAMPLES, read_case};
use crate::support::{Split, Tensors, gradient_errors, read_weights, step};

const FORMATS: [Arithmetic; 2] = [Arithmetic::F32, Arithmetic::Bf16];

fn splits() -> [Split; 3] {
    let split = |batch_size, kept, recompute| Split {
        batch_size,
        kept,
        recompute,
    };
    [
        split(5, 1, Recompute::None),
        split(3, 1, Recompute::Cheap),
        split(2, 0, Recompute::Blocks),
    ]
}

#[test]
fn golden_gradients_and_steps_are_those_of_pytorch_and_the_same_twice() {
    let Some(gpu) = Gpu::open() else { return };
    for case in drawn(&CASES, 1) {
        let (folder, golden, mut task, batch) = read_case(case);
        task.sorted_ids = gpu.device.wants_sorted_ids();
        for (arithmetic, split) in pairs(&gpu.supported(FORMATS), &drawn(&splits(), 1)) {
            let config = StepConfig {
                arithmetic,
                ..StepConfig::new(Arc::new(task.clone()))
            };
            let start = || -> Step {
                let mut step = step(gpu.device, &config, NUM_SAMPLES, split);
                read_weights(gpu.device, &mut step, &folder);
                step
            };
            if arithmetic == Arithmetic::F32 {
                let mut step = start();
                step.gradients(gpu.device, &batch, 1.0).unwrap();
                check_gradients(case, &step, &golden);
            }
            let near = match arithmetic {
                Arithmetic::F32 => 1e-4,
                _ => 5e-2,
            };
            let losses = || -> Vec<f64> {
                let mut step = start();
                let steps = (0..10).map(|count| {
                    let scalars = StepScalars {
                        step: count + 1,
                        rates: &[1e-3, 1e-3],
                        loss_scale: 1.0,
                    };
                    step.run(gpu.device, &batch, &scalars).unwrap().loss
                });
                steps.collect()
            };
            let found = losses();
            let expected = &golden["adamw_losses"].1;
            let pairs = found.iter().zip(expected);
            let apart = pairs.map(|(found, expected)| (found / expected - 1.0).abs());
            let apart = apart.fold(0.0, |most: f64, one| if one <= most { most } else { one });
            println!("{case} in {}: off by {apart:.1e}", arithmetic.name());
            // Not `>`: what is no number fails.
            assert!(apart <= near, "{case} {split:?}: {found:?} {expected:?}");
            assert_eq!(losses(), found, "{case}");
        }
    }
}

fn check_gradients(case: &str, step: &Step, golden: &Tensors) {
    let parameters = step.parameters().iter();
    let pairs: Vec<_> = parameters
        .map(|parameter| {
            let name = parameter.name.clone();
            let found = step.gradient(parameter).unwrap().unwrap();
            let found = found.iter().map(|&value| f64::from(value)).collect();
            let reference = golden[&format!("grad.{name}")].1.clone();
            (name, found, reference)
        })
        .collect();
    for (name, error) in gradient_errors(&pairs) {
        assert!(error <= 1e-3, "{case} {name}: {error:e}");
    }
}
