//! Evaluation's programs on the card: the CPU's features.

use holdall_device::{Arithmetic, Device};
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;

use crate::card::{ALL, EIGHT_BY_FOUR, Gpu, norm, small, small_task};
use crate::support::{draw_weights, evaluated, on_cpu, step};

const NUM_SAMPLES: usize = 21;

#[test]
fn features_and_logits_are_those_of_the_cpu() {
    let Some(gpu) = Gpu::open() else { return };
    let cpu = on_cpu(2);
    let encoded = |device: &Device, config: &StepConfig| {
        let mut step = step(device, config, 32, EIGHT_BY_FOUR);
        let task = small_task(device);
        draw_weights(device, &mut step, &task.model, 3);
        evaluated(&task, &mut step, device, &task.random_batch(NUM_SAMPLES, 4))
    };
    let expected = encoded(&cpu, &small(&cpu, Arithmetic::F32));
    for arithmetic in gpu.supported(ALL) {
        let tolerance = match arithmetic {
            Arithmetic::F32 => 1e-4,
            Arithmetic::Tf32 | Arithmetic::Bf16 | Arithmetic::F16 => 2e-2,
        };
        for evaluation_batch in [None, Some(3), Some(64)] {
            let mut config = small(gpu.device, arithmetic);
            config.evaluation_batch = evaluation_batch;
            let found = encoded(gpu.device, &config);
            let names = ["pictures", "captions", "logits"];
            for ((name, found), expected) in names.iter().zip(&found).zip(&expected) {
                assert_eq!(found.len(), expected.len());
                let pairs = found.iter().zip(expected);
                let difference = norm(pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
                let error = difference / norm(expected.iter().map(|&value| f64::from(value)));
                println!(
                    "{}, {name} in batches of {evaluation_batch:?}: {error:.1e}",
                    arithmetic.name()
                );
                // Not `>`: what is no number fails.
                assert!(error <= tolerance, "{}, {name}", arithmetic.name());
            }
        }
    }
}
