//! Forward programs of video-text: in a step's arena and in one of their own, and no trace in the gradients.

use std::sync::Arc;

use holdall_device::Device;
use holdall_plan::Recompute;
use holdall_train::engine::batch::Batch;
use holdall_train::engine::forward::ForwardModel;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;

use crate::support::caption_case::{large_weights, read, tiny};
use crate::support::{Split, on_cpu, step};

const SPLIT: Split = Split {
    batch_size: 4,
    kept: 1,
    recompute: Recompute::Cheap,
};
const SAMPLES: usize = 10;

fn gradients(step: &mut Step, device: &Device, batch: &Batch) -> Vec<Vec<f32>> {
    step.gradients(device, batch, 1.0).unwrap();
    let parameters = step.parameters().iter();
    parameters
        .filter_map(|parameter| Some(step.gradient(parameter).unwrap()?.to_vec()))
        .collect()
}

#[test]
fn captions_are_the_same_in_any_arena_and_gradients_do_not_notice() {
    let device = on_cpu(2);
    let task = tiny();
    let batch = task.random_batch(SAMPLES, 4);
    let mut own = ForwardModel::new(&device, &task, Some(3), None, 0).unwrap();
    let mut large = large_weights(&task);
    own.set_weights(&device, &mut large).unwrap();
    let (features, sum, captions) = read(&task, own.forward(&device), &batch);
    let mut seen: Vec<&[i64]> = captions.iter().map(|one| one.tokens.as_slice()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 3, "{seen:?}");
    for evaluation_batch in [None, Some(3), Some(16)] {
        let mut config = StepConfig::new(Arc::new(task.clone()));
        config.evaluation_batch = evaluation_batch;
        let mut step = step(&device, &config, SAMPLES, SPLIT);
        step.set_weights(&device, &mut large).unwrap();
        let before = gradients(&mut step, &device, &batch);
        let caption = step.gradients(&device, &batch, 1.0).unwrap()[1];
        let found = read(&task, step.forward(&device), &batch);
        let errors = found.0.iter().zip(&features).map(|(a, b)| (a - b).abs());
        assert!(errors.fold(0.0, f32::max) < 1e-5);
        for (found, expected) in found.2.iter().zip(&captions) {
            assert_eq!(found.tokens, expected.tokens);
        }
        // Rounding aside: sums over other groups of clips.
        for other in [sum, caption.mean() * caption.count] {
            assert!(
                (found.1 - other).abs() < 1e-4 * other,
                "{} {other}",
                found.1
            );
        }
        assert_eq!(gradients(&mut step, &device, &batch), before);
    }
}
