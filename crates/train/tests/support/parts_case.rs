//! A step that pauses gives the bits of one that does not, and one that is dropped before its update has not happened: on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdall_device::{Arithmetic, Device};
use holdall_models::config::ClipConfig;
use holdall_plan::Recompute;
use holdall_train::engine::batch::Batch;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::{Advance, Step};
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;

use crate::support::{Split, step};

const SAMPLES: usize = 10;

fn scalars(step: u64) -> StepScalars<'static> {
    StepScalars {
        step,
        rates: &[1e-3, 1e-3],
        loss_scale: 1.0,
    }
}

/// Weights and optimizer state, bit by bit.
fn state(step: &Step) -> Vec<Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let parameters = step.parameters().iter();
    let weights = parameters.map(|one| bits(&step.weight(one).unwrap()));
    let moments = step.optimizer_state().map(|(_, _, values)| values);
    weights
        .chain(moments.map(|moment| bits(&moment.read().unwrap())))
        .collect()
}

/// Advances until so many micro-batches have been run, or to the end.
fn advance(step: &mut Step, device: &Device, batch: &Batch, runs: usize) -> Advance {
    let left = AtomicUsize::new(runs);
    step.advance(device, batch, &|| {
        let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        left.is_err()
    })
}

pub fn assert_parts_are_a_step(device: &Device, model: ClipConfig, arithmetic: Arithmetic) {
    let mut task = ClipTask::new(model, Some(10));
    task.sorted_ids = device.wants_sorted_ids();
    let config = StepConfig {
        arithmetic,
        ..StepConfig::new(Arc::new(task.clone()))
    };
    let batch = task.random_batch(SAMPLES, 5);
    let other = task.random_batch(SAMPLES, 6);
    for kept in [0, 2, 5] {
        let split = Split {
            batch_size: 2,
            kept,
            recompute: Recompute::Cheap,
        };
        let fresh = || {
            let mut step = step(device, &config, SAMPLES, split);
            step.set_weights(device, task.weights(3).unwrap()).unwrap();
            step.run(device, &other, &scalars(1)).unwrap();
            step
        };
        let mut undisturbed = fresh();
        let before = state(&undisturbed);
        let loss = undisturbed.run(device, &batch, &scalars(2)).unwrap().loss;
        let after = state(&undisturbed);
        assert_ne!(before, after);
        let mut disturbed = fresh();
        // Every micro-batch but one runs forward and backward: five of each at most.
        for runs in 0..10 {
            disturbed.start(&other, &scalars(2));
            let came = advance(&mut disturbed, device, &other, runs);
            assert_eq!(came, Advance::Paused, "{kept} kept, {runs} runs");
            disturbed.abandon().unwrap();
            assert_eq!(state(&disturbed), before, "{kept} kept, {runs} runs");
        }
        disturbed.start(&batch, &scalars(2));
        let mut pauses = 0;
        while advance(&mut disturbed, device, &batch, 1) == Advance::Paused {
            pauses += 1;
            assert_eq!(state(&disturbed), before);
        }
        assert_eq!(pauses, 9, "between ten runs");
        assert_eq!(disturbed.finish().unwrap().loss.to_bits(), loss.to_bits());
        assert_eq!(state(&disturbed), after, "{kept} kept");
    }
}
