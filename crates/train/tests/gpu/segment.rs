//! Segmentation on a GPU: losses near the CPU's, the same bits twice, and splits that are exact.

use std::sync::Arc;

use holdall_device::{Arithmetic, Device};
use holdall_models::unet::config::UnetConfig;
use holdall_plan::Recompute;
use holdall_train::config::{Precision, RunConfig, TaskName};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{usual_splits, verify};
use holdall_train::tasks::segment::SegmentTask;

use crate::card::{Gpu, card_or_software, drawn};
use crate::support::{Split, on_cpu, step};

const EFFECTIVE_BATCH: usize = 6;

const TWO_BY_THREE: Split = Split {
    batch_size: 2,
    kept: 1,
    recompute: Recompute::Cheap,
};

/// Each kind of network, with and without deep supervision; pictures that are not square.
fn tasks() -> Vec<(&'static str, SegmentTask)> {
    let names = drawn(&["unet-small", "nnunet", "nnunet-resenc"], 1).into_iter();
    let tasks = names.map(|name| {
        let mut model = UnetConfig::preset(name).unwrap();
        model.encoder_blocks.truncate(4);
        let (channels, blocks, size) = card_or_software(
            (vec![16, 24, 32, 40], model.encoder_blocks, [64, 48]),
            (vec![8, 8, 16, 24], vec![1, 2, 1, 1], [32, 24]),
        );
        (model.channels, model.encoder_blocks) = (channels, blocks);
        (name, SegmentTask::new(model, size))
    });
    tasks.collect()
}

fn prepared(device: &Device, task: &SegmentTask, arithmetic: Arithmetic, split: Split) -> Step {
    let config = StepConfig {
        arithmetic,
        ..StepConfig::new(Arc::new(task.clone()))
    };
    let mut step = step(device, &config, EFFECTIVE_BATCH, split);
    step.set_weights(device, task.weights(5).unwrap()).unwrap();
    step
}

fn losses(device: &Device, task: &SegmentTask, arithmetic: Arithmetic, split: Split) -> Vec<f64> {
    let mut step = prepared(device, task, arithmetic, split);
    let batches = [0, 1].map(|less| task.random_batch(EFFECTIVE_BATCH - less, less as u64));
    let losses = (0..card_or_software(8, 4)).map(|number| {
        let scalars = StepScalars {
            step: number as u64 + 1,
            rates: &[1e-3, 1e-3],
            loss_scale: 1.0,
        };
        let batch = &batches[number % batches.len()];
        step.run(device, batch, &scalars).unwrap().loss
    });
    losses.collect()
}

#[test]
fn steps_stay_near_those_of_the_cpu_and_are_the_same_twice() {
    let Some(gpu) = Gpu::open() else { return };
    let cpu = on_cpu(2);
    for (name, task) in tasks() {
        let expected = losses(&cpu, &task, Arithmetic::F32, TWO_BY_THREE);
        let all = [
            Arithmetic::F32,
            Arithmetic::Tf32,
            Arithmetic::F16,
            Arithmetic::Bf16,
        ];
        for arithmetic in gpu.supported(all) {
            let found = losses(gpu.device, &task, arithmetic, TWO_BY_THREE);
            let pairs = found.iter().zip(&expected);
            let apart = pairs.map(|(found, expected)| (found / expected - 1.0).abs());
            let apart = apart.fold(0.0, f64::max);
            println!("{name} in {}: off by {apart:.1e}", arithmetic.name());
            let near = match arithmetic {
                Arithmetic::F32 => apart <= 1e-3,
                _ => apart <= 5e-2,
            };
            // Not `>`: what is no number fails.
            assert!(near, "{name}: {found:?}\nthe CPU: {expected:?}");
            let again = losses(gpu.device, &task, arithmetic, TWO_BY_THREE);
            assert_eq!(again, found, "{name} in {}", arithmetic.name());
        }
    }
}

/// What is kept and what is recomputed changes no bit of any weight.
#[test]
fn recomputation_changes_no_bit() {
    let Some(gpu) = Gpu::open() else { return };
    let mut different = Vec::new();
    for (name, task) in tasks() {
        for arithmetic in gpu.supported([Arithmetic::F16, Arithmetic::F32]) {
            let weights = |recompute, kept| {
                let split = Split {
                    recompute,
                    kept,
                    ..TWO_BY_THREE
                };
                let mut step = prepared(gpu.device, &task, arithmetic, split);
                let batch = task.random_batch(EFFECTIVE_BATCH - 1, 3);
                for number in 1..=2 {
                    let scalars = StepScalars {
                        step: number,
                        rates: &[1e-3, 1e-3],
                        loss_scale: 1024.0,
                    };
                    step.run(gpu.device, &batch, &scalars).unwrap();
                }
                step.named_weights().unwrap()
            };
            // How many micro-batches are kept decides the order in which gradients are added.
            let expected = [0, 3].map(|kept| (kept, weights(Recompute::None, kept)));
            let cases = [
                (Recompute::Cheap, &expected[0]),
                (Recompute::Blocks, &expected[0]),
                (Recompute::Cheap, &expected[1]),
                (Recompute::Blocks, &expected[1]),
            ];
            for (recompute, (kept, expected)) in drawn(&cases, 2) {
                let kept = *kept;
                let found = weights(recompute, kept);
                let mut names: Vec<&String> = found
                    .iter()
                    .filter(|(name, values)| expected[*name] != **values)
                    .map(|(name, _)| name)
                    .collect();
                names.sort();
                if !names.is_empty() {
                    let format = arithmetic.name();
                    different.push(format!("{name} {format} {recompute:?} {kept}: {names:?}"));
                }
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

#[test]
fn usual_splits_are_exact() {
    let Some(gpu) = Gpu::open() else { return };
    for (name, task) in tasks() {
        for precision in gpu.supported_precisions([Precision::F32, Precision::Bf16]) {
            let run = RunConfig {
                task: Some(TaskName::Segment),
                model: "unet-small".to_owned(),
                precision,
                ..RunConfig::default()
            };
            let mut setup = Setup::without_data(&run, gpu.device).unwrap();
            setup.step.task = Arc::new(task.clone());
            let batch = task.random_batch(7, 2);
            let splits = drawn(&usual_splits(7), 2);
            let same = Arc::clone(&setup.step.task);
            let certificate = verify(&setup, gpu.device, &batch, &splits, same, |_| ()).unwrap();
            println!(
                "{name} in {}: {:.1e} ({}), loss {:.1e}, within {:e}",
                precision.name(),
                certificate.max_relative_error,
                certificate.worst_parameter,
                certificate.loss_difference,
                certificate.tolerance
            );
            assert!(certificate.exact, "{name}: {certificate:#?}");
        }
    }
}
