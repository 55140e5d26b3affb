//! Captions on the card: the CPU's.

use holdall_device::{Arithmetic, Device};
use holdall_train::engine::forward::ForwardModel;
use holdall_train::engine::task::Task;
use holdall_train::tasks::generation::Generated;

use crate::card::{ALL, Gpu, norm};
use crate::support::caption_case::{large_weights, read, tiny};
use crate::support::on_cpu;

const SAMPLES: usize = 21;

#[test]
fn captions_are_those_of_the_cpu() {
    let Some(gpu) = Gpu::open() else { return };
    let task = tiny();
    let batch = task.random_batch(SAMPLES, 4);
    let captioned = |device: &Device, arithmetic: Arithmetic| -> (Vec<f32>, f64, Vec<Generated>) {
        let mut model = ForwardModel::with_arithmetic(device, &task, arithmetic, 8).unwrap();
        model.set_weights(device, large_weights(&task)).unwrap();
        read(&task, model.forward(device), &batch)
    };
    let expected = captioned(&on_cpu(2), Arithmetic::F32);
    for arithmetic in gpu.supported(ALL) {
        let found = captioned(gpu.device, arithmetic);
        let same = found.2.iter().zip(&expected.2);
        let same = same.filter(|(a, b)| a.tokens == b.tokens).count();
        let pairs = found.0.iter().zip(&expected.0);
        let difference = norm(pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
        let error = difference / norm(expected.0.iter().map(|&value| f64::from(value)));
        let sum_error = (found.1 - expected.1).abs() / expected.1;
        println!(
            "{}: {same} of {SAMPLES} captions are the same; features {error:.1e}, caption loss {sum_error:.1e}",
            arithmetic.name()
        );
        let tolerance = match arithmetic {
            Arithmetic::F32 => 1e-4,
            Arithmetic::Tf32 | Arithmetic::Bf16 | Arithmetic::F16 => 5e-2,
        };
        // Not `>`: what is no number fails.
        assert!(
            error <= tolerance && sum_error <= tolerance,
            "{}",
            arithmetic.name()
        );
        assert!(arithmetic != Arithmetic::F32 || same == SAMPLES);
    }
}
