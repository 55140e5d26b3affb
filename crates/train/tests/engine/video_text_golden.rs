//! Parity with PyTorch on small random video-text models: three poolings in four places, both text towers, decoders with and
//! without a head of their own, masked frames, two videos.

use std::sync::Arc;

use holdall_plan::Recompute;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step_graph::StepConfig;

use crate::support::video_text_case::{CASES, NUM_SAMPLES, read_case};
use crate::support::{Split, gradient_errors, on_cpu, read_weights, step};

fn splits() -> [Split; 5] {
    let split = |batch_size, kept, recompute| Split {
        batch_size,
        kept,
        recompute,
    };
    [
        split(5, 1, Recompute::None),
        split(4, 0, Recompute::Cheap),
        split(1, 2, Recompute::Blocks),
        split(3, 1, Recompute::Blocks),
        split(2, 3, Recompute::None),
    ]
}

#[test]
fn features_losses_and_every_gradient_are_those_of_pytorch() {
    let device = on_cpu(2);
    for case in CASES {
        let (folder, golden, task, batch) = read_case(case);
        let config = StepConfig::new(Arc::new(task));
        for split in splits() {
            let mut step = step(&device, &config, NUM_SAMPLES, split);
            read_weights(&device, &mut step, &folder);
            step.gradients(&device, &batch, 1.0).unwrap();
            let (loss, expected) = (step.total_loss(), golden["loss"].1[0]);
            let apart = (loss - expected).abs();
            assert!(apart < 1e-5, "{case} {split:?}: {loss} {expected}");
            for name in ["video", "text"] {
                let found = step.endpoint(&format!("{name} features")).unwrap();
                let expected = &golden[&format!("{name}_features")].1;
                // Rows of padding follow.
                assert!(found.len() >= expected.len());
                for (&found, &expected) in found.iter().zip(expected) {
                    let apart = (f64::from(found) - expected).abs();
                    assert!(apart < 1e-5, "{case} {split:?} {name}: {found} {expected}");
                }
            }
            let parameters = step.parameters().iter();
            let pairs: Vec<_> = parameters
                .map(|parameter| {
                    let name = parameter.name.clone();
                    let found = step.gradient(parameter).unwrap();
                    let found = found.unwrap_or_else(|| panic!("{case}: {name} has no gradient"));
                    let found = found.iter().map(|&value| f64::from(value)).collect();
                    let reference = golden[&format!("grad.{name}")].1.clone();
                    (name, found, reference)
                })
                .collect();
            let all = golden.keys().filter(|name| name.starts_with("grad."));
            assert_eq!(pairs.len(), all.count(), "{case}");
            for (name, error) in gradient_errors(&pairs) {
                assert!(error < 1e-4, "{case} {split:?} {name}: {error:e}");
            }
        }
    }
}

#[test]
fn ten_adamw_steps_have_the_losses_norms_and_weights_of_pytorch() {
    let device = on_cpu(2);
    for case in CASES {
        let (folder, golden, task, batch) = read_case(case);
        let config = StepConfig::new(Arc::new(task));
        for split in splits() {
            let mut step = step(&device, &config, NUM_SAMPLES, split);
            read_weights(&device, &mut step, &folder);
            for count in 0..10 {
                let scalars = StepScalars {
                    step: count as u64 + 1,
                    rates: &[1e-3, 1e-3],
                    loss_scale: 1.0,
                };
                let report = step.run(&device, &batch, &scalars).unwrap();
                let expected = golden["adamw_losses"].1[count];
                assert!(
                    (report.loss - expected).abs() < 1e-4,
                    "{case} {split:?} step {count}: {} against {expected}",
                    report.loss
                );
                let norm = golden["adamw_grad_norms"].1[count];
                let apart = (report.gradient_norm / norm - 1.0).abs();
                assert!(apart < 1e-4, "{case} step {count}: {apart:e}");
            }
            let weights = step.named_weights().unwrap();
            let finals = golden
                .iter()
                .filter_map(|(name, (_, values))| Some((name.strip_prefix("final.")?, values)));
            let finals: Vec<_> = finals.collect();
            assert!(finals.len() >= 4, "{case}: {}", finals.len());
            for (name, expected) in finals {
                for (&found, &expected) in weights[name].iter().zip(expected) {
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-4,
                        "{case} {split:?} {name}: {found} {expected}"
                    );
                }
            }
        }
    }
}
