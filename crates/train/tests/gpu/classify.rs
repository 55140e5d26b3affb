//! Classification on a GPU: losses, splits and evaluation near the CPU's, with mixed pictures and dropout.

use std::sync::Arc;

use holdall_device::{Arithmetic, Device, HostRow};
use holdall_models::vit::config::VisionTransformerConfig;
use holdall_train::config::{Precision, RunConfig, TaskName};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{usual_splits, verify};
use holdall_train::tasks::classify::ClassifyTask;

use crate::card::{EIGHT_BY_FOUR, Gpu, card_or_software, drawn, norm};
use crate::support::{
    draw_classifier, logits, mixed_batch, mixed_task, on_cpu, pixels, step, tiny_vit,
};

const EFFECTIVE_BATCH: usize = 32;
const FORMATS: [Arithmetic; 2] = [Arithmetic::F32, Arithmetic::Bf16];

/// Both kinds of pooling, with and without layer scales; heads as wide as those of real models.
fn tasks() -> [(&'static str, ClassifyTask); 2] {
    let mut dinov2 = tiny_vit("dinov2-small-patch14-224");
    dinov2.vision.image_size = 28;
    dinov2.vision.patch_size = 14;
    dinov2.vision.hidden_size = 128;
    dinov2.vision.intermediate_size = 256;
    dinov2.vision.num_heads = 2;
    let mut smaller = tiny_vit("vit-demo");
    smaller.vision.hidden_size = 64;
    smaller.vision.num_heads = 2;
    let vit = VisionTransformerConfig::preset("vit-demo").unwrap();
    let vit = card_or_software(vit, smaller);
    [("ViT", vit), ("DINOv2", dinov2)].map(|(name, backbone)| (name, mixed_task(backbone, 4)))
}

fn started(device: &Device, task: &ClassifyTask, arithmetic: Arithmetic) -> Step {
    let config = StepConfig {
        arithmetic,
        ..StepConfig::new(Arc::new(task.clone()))
    };
    let mut step = step(device, &config, EFFECTIVE_BATCH, EIGHT_BY_FOUR);
    draw_classifier(device, &mut step, task, 5);
    step
}

/// Whole batches and one with a tail.
fn batches(task: &ClassifyTask) -> [Batch; 3] {
    [(0, 1), (0, 2), (3, 3)].map(|(less, seed)| mixed_batch(task, EFFECTIVE_BATCH - less, seed))
}

fn num_steps() -> usize {
    card_or_software(20, 8)
}

fn losses(device: &Device, task: &ClassifyTask, arithmetic: Arithmetic) -> Vec<f64> {
    let mut step = started(device, task, arithmetic);
    let batches = batches(task);
    let losses = (0..num_steps()).map(|number| {
        let scalars = StepScalars {
            step: number as u64 + 1,
            rates: &[1e-4, 1e-3],
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
        let expected = losses(&cpu, &task, Arithmetic::F32);
        assert!(
            expected[num_steps() - 1] < 0.95 * expected[0],
            "{expected:?}"
        );
        for arithmetic in gpu.supported(FORMATS) {
            let found = losses(gpu.device, &task, arithmetic);
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
            assert_eq!(losses(gpu.device, &task, arithmetic), found, "{name}");
        }
    }
}

#[test]
fn usual_splits_are_exact() {
    let Some(gpu) = Gpu::open() else { return };
    for (name, task) in tasks() {
        for precision in gpu.supported_precisions([Precision::F32, Precision::Bf16]) {
            let run = RunConfig {
                task: Some(TaskName::Classify),
                model: "vit-demo".to_owned(),
                precision,
                ..RunConfig::default()
            };
            let mut setup = Setup::without_data(&run, gpu.device).unwrap();
            setup.step.task = Arc::new(task.clone());
            let batch = mixed_batch(&task, 13, 2);
            let splits = drawn(&usual_splits(13), 2);
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

#[test]
fn logits_are_those_of_the_cpu() {
    let Some(gpu) = Gpu::open() else { return };
    let cpu = on_cpu(2);
    for (name, task) in tasks() {
        let batch = mixed_batch(&task, 21, 6);
        let evaluated = |device: &Device, arithmetic: Arithmetic| {
            let mut step = started(device, &task, arithmetic);
            let pixels = pixels(&batch);
            let each = pixels.len() / batch.num_samples;
            let mut rows = device.host_rows(batch.num_samples, each).unwrap();
            for (row, picture) in rows.iter_mut().zip(pixels.chunks(each)) {
                row.as_mut().copy_from_slice(picture);
            }
            let rows: Vec<HostRow> = rows;
            logits(&mut step, device, &rows)
        };
        let expected = evaluated(&cpu, Arithmetic::F32);
        for arithmetic in gpu.supported(FORMATS) {
            let found = evaluated(gpu.device, arithmetic);
            assert_eq!(found.len(), expected.len());
            let pairs = found.iter().zip(&expected);
            let difference = norm(pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
            let error = difference / norm(expected.iter().map(|&value| f64::from(value)));
            println!("{name} in {}: {error:.1e}", arithmetic.name());
            let tolerance = match arithmetic {
                Arithmetic::F32 => 1e-4,
                _ => 3e-2,
            };
            assert!(error <= tolerance, "{name} in {}", arithmetic.name());
        }
    }
}
