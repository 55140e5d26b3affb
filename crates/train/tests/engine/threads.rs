//! The same bits whatever the number of threads, and nothing allocated once warm.

use holdall_models::config::ClipConfig;
use holdall_plan::Recompute;
use holdall_train::optimizer::StepScalars;
use holdall_train::task::Task;
use holdall_train::tasks::clip::ClipTask;

use crate::support::{Split, config_of, draw_weights, on_cpu, step};

#[test]
fn three_steps_have_the_same_bits_on_any_number_of_threads() {
    let model = ClipConfig::preset("small").unwrap();
    let task = ClipTask::new(model.clone(), Some(10));
    let (config, batch) = (config_of(&task), task.random_batch(22, 5));
    let split = Split {
        batch_size: 8,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    let mut first = None;
    for threads in [1, 2, 3, 5] {
        let device = on_cpu(threads);
        let mut step = step(&device, &config, 22, split);
        draw_weights(&device, &mut step, &model, 3);
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
