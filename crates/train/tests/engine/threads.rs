//! The same bits whatever the number of threads, and nothing allocated once warm.

use std::sync::Arc;

use holdall_models::config::ClipConfig;
use holdall_models::unet::config::UnetKind;
use holdall_plan::Recompute;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;
use holdall_train::tasks::segment::SegmentTask;

use crate::support::{Split, VideoTextParts, on_cpu, step, tiny_unet, tiny_video_text};

#[test]
fn three_steps_have_the_same_bits_on_any_number_of_threads() {
    let clip = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10));
    assert_same_bits(Arc::new(clip));
    for kind in [UnetKind::Plain, UnetKind::ResidualEncoder] {
        assert_same_bits(Arc::new(SegmentTask::new(tiny_unet(kind), [48, 40])));
    }
    for pooling in ["projected", "attention"] {
        let parts = VideoTextParts {
            pooling,
            has_bert: pooling == "attention",
            has_decoder: true,
            is_tied: true,
            num_videos: 2,
        };
        assert_same_bits(Arc::new(tiny_video_text(parts, 1)));
    }
}

fn assert_same_bits(task: Arc<dyn Task>) {
    let config = StepConfig::new(Arc::clone(&task));
    let batch = task.random_batch(22, 5);
    let split = Split {
        batch_size: 8,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    let mut first = None;
    for threads in [1, 2, 3, 5] {
        let device = on_cpu(threads);
        let mut step = step(&device, &config, 22, split);
        step.set_weights(&device, task.weights(3).unwrap()).unwrap();
        let mut losses = Vec::new();
        for count in 0..3 {
            let scalars = StepScalars {
                step: count + 1,
                rates: &[1e-3, 1e-3],
                loss_scale: 1.0,
            };
            losses.push(step.run(&device, &batch, &scalars).unwrap().loss.to_bits());
        }
        let weights: Vec<(String, Vec<u32>)> = step
            .parameters()
            .iter()
            .map(|p| {
                (
                    p.name.clone(),
                    step.weight(p)
                        .unwrap()
                        .iter()
                        .map(|w| w.to_bits())
                        .collect(),
                )
            })
            .collect();
        let (expected_losses, expected_weights) =
            first.get_or_insert((losses.clone(), weights.clone()));
        assert_eq!(&losses, expected_losses, "{threads} threads");
        for (found, expected) in weights.iter().zip(expected_weights.iter()) {
            assert!(found == expected, "{threads} threads: {}", found.0);
        }
    }
}
