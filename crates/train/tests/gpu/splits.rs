//! The certificate on a GPU: every usual split within its format's rounding, and plain accumulation found out.

use std::sync::Arc;

use holdall_plan::Recompute;
use holdall_train::config::{LoraSection, LoraTargets, Precision, RunConfig};
use holdall_train::engine::batch::Batch;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{
    Split, tolerance, usual_splits, verify, verify_plain_accumulation,
};

use crate::card::{Gpu, drawn, small_setup, small_task};
use crate::support::without_some_labels;

const PRECISIONS: [Precision; 4] = [
    Precision::F32,
    Precision::Tf32,
    Precision::Bf16,
    Precision::Fp16,
];

/// A setup and a batch of this many samples.
fn setup(gpu: &Gpu, precision: Precision, samples: usize, seed: u64) -> (Setup, Batch) {
    let run = RunConfig {
        precision,
        seed,
        ..RunConfig::default()
    };
    let setup = small_setup(run, gpu.device);
    let batch = setup.step.task.random_batch(samples, seed);
    (setup, without_some_labels(&small_task(gpu.device), batch))
}

#[test]
fn usual_splits_are_exact_in_every_number_format() {
    let Some(gpu) = Gpu::open() else { return };
    for precision in gpu.supported_precisions(PRECISIONS) {
        for (seed, samples) in drawn(&[(0, 13), (1, 32)], 1) {
            let (setup, batch) = setup(&gpu, precision, samples, seed);
            let splits = drawn(&usual_splits(samples), 2);
            let task = Arc::clone(&setup.step.task);
            let certificate = verify(&setup, gpu.device, &batch, &splits, task, |_| ()).unwrap();
            println!(
                "{}, {samples} samples: {:.1e} ({}), loss {:.1e}, within {:e}",
                precision.name(),
                certificate.max_relative_error,
                certificate.worst_parameter,
                certificate.loss_difference,
                certificate.tolerance
            );
            let expected = tolerance(gpu.device, precision.arithmetic().unwrap());
            assert_eq!(certificate.tolerance, expected);
            assert!(certificate.exact, "{certificate:#?}");
        }
    }
}

/// Adapters on all linear layers, with dropout before them.
#[test]
fn usual_splits_of_adapters_are_exact_in_every_number_format() {
    let Some(gpu) = Gpu::open() else { return };
    for precision in gpu.supported_precisions(PRECISIONS) {
        let mut run = RunConfig {
            precision,
            ..RunConfig::default()
        };
        run.train.lora = Some(LoraSection {
            rank: 8,
            targets: Some(LoraTargets::One("all".to_owned())),
            dropout: 0.1,
            ..LoraSection::default()
        });
        let setup = small_setup(run, gpu.device);
        let batch = setup.step.random_batch(13, 2);
        let splits = drawn(&usual_splits(13), 2);
        let task = Arc::clone(&setup.step.task);
        let certificate = verify(&setup, gpu.device, &batch, &splits, task, |_| ()).unwrap();
        assert!(certificate.exact, "{}: {certificate:#?}", precision.name());
    }
}

#[test]
fn plain_accumulation_is_found_out() {
    let Some(gpu) = Gpu::open() else { return };
    for precision in gpu.supported_precisions(PRECISIONS) {
        let (setup, batch) = setup(&gpu, precision, 12, 1);
        let certificate = |batch_size| {
            let split = Split {
                batch_size,
                recompute: Recompute::None,
                kept_micro_batches: 0,
            };
            verify_plain_accumulation(&setup, gpu.device, &batch, &[split], |_| ()).unwrap()
        };
        let (split, whole) = (certificate(4), certificate(12));
        println!(
            "{}: {:.1e} in three, {:.1e} in one",
            precision.name(),
            split.max_relative_error,
            whole.max_relative_error
        );
        assert!(!split.exact, "{split:#?}");
        // By more than a bound that is a little off would explain.
        assert!(
            split.max_relative_error > 2.0 * split.tolerance,
            "{split:#?}"
        );
        // With one micro-batch there is nothing to lose: it is exact.
        assert!(whole.exact, "{whole:#?}");
    }
}
