//! Frozen parameters on a GPU: the certificate in every number format, and no bit of them moved by steps.

use std::sync::Arc;

use holdall_train::config::{Precision, RunConfig};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{usual_splits, verify};

use crate::card::{EIGHT_BY_FOUR, Gpu, drawn, small_setup};
use crate::support::step;

const FREEZES: [&str; 6] = [
    "vision_model",
    "vision_model,visual_projection",
    "text_model.embeddings.token_embedding",
    "text_model.embeddings.position_embedding,vision_model.embeddings.class_embedding",
    "*.weight",
    "all but heads",
];

fn setup(gpu: &Gpu, precision: Precision, freeze: &str) -> Setup {
    let mut run = RunConfig {
        precision,
        ..RunConfig::default()
    };
    run.train.freeze = freeze.parse().unwrap();
    small_setup(run, gpu.device)
}

#[test]
fn splits_are_exact_and_frozen_weights_stay_whatever_is_frozen() {
    let Some(gpu) = Gpu::open() else { return };
    for precision in gpu.supported_precisions([Precision::F32, Precision::Bf16]) {
        for freeze in drawn(&FREEZES, 2) {
            let setup = setup(&gpu, precision, freeze);
            let task = Arc::clone(&setup.step.task);
            let batch = task.random_batch(32, 1);
            let splits = drawn(&usual_splits(32), 2);
            let certificate = verify(
                &setup,
                gpu.device,
                &batch,
                &splits,
                Arc::clone(&task),
                |_| (),
            )
            .unwrap();
            println!(
                "{freeze} in {}: {:.1e}",
                precision.name(),
                certificate.max_relative_error
            );
            assert!(certificate.exact, "{freeze}: {certificate:#?}");

            let mut step = step(gpu.device, &setup.step, 32, EIGHT_BY_FOUR);
            setup.fill(gpu.device, &mut step).unwrap();
            let before = step.named_weights().unwrap();
            for count in 1..=3 {
                let scalars = StepScalars {
                    step: count,
                    rates: &[1e-3, 1e-3],
                    loss_scale: 1.0,
                };
                step.run(gpu.device, &batch, &scalars).unwrap();
            }
            for one in step.parameters() {
                let is_same = *step.weight(one).unwrap() == before[&one.name][..];
                assert!(one.trainable || is_same, "{freeze}: {} moved", one.name);
            }
        }
    }
}
