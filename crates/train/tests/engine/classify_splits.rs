//! Classification, however its batch is split: mixed heads, mixed pictures, dropout and stochastic depth.

use std::sync::Arc;

use holdall_data::config::Mixing;
use holdall_data::samples::TargetKind;
use holdall_device::{Device, HostRow};
use holdall_graph::ops::patchify::Normalization;
use holdall_models::vit::config::VisionTransformerConfig;
use holdall_plan::{Recompute, Request, Stage, StepShape, plan};
use holdall_train::config::{RunConfig, TaskName};
use holdall_train::engine::batch::{Batch, Values};
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{Split, usual_splits, verify, verify_plain_accumulation};
use holdall_train::tasks::classify::{ClassifyTask, Targets, batch_of};
use proptest::prelude::*;

use crate::support::{
    self, draw_classifier, head, logits, logits_of_step, mixed_batch, mixed_task, names, on_cpu,
    step, tiny_vit,
};

const FAMILIES: [&str; 3] = [
    "vit-demo",
    "deit-tiny-distilled-patch16-224",
    "dinov2-small-patch14-224",
];

pub fn setup(device: &Device, task: &ClassifyTask, seed: u64) -> Setup {
    let run = RunConfig {
        task: Some(TaskName::Classify),
        model: "vit-demo".to_owned(),
        seed,
        ..RunConfig::default()
    };
    let mut setup = Setup::without_data(&run, device).unwrap();
    setup.step.task = Arc::new(task.clone());
    setup
}

#[test]
fn usual_splits_of_every_family_are_exact() {
    let device = on_cpu(2);
    for (seed, family) in FAMILIES.into_iter().enumerate() {
        let task = mixed_task(tiny_vit(family), seed as u64);
        let batch = mixed_batch(&task, 13, seed as u64);
        let setup = setup(&device, &task, seed as u64);
        let splits = usual_splits(13);
        let certificate = verify(&setup, &device, &batch, &splits, Arc::new(task), |_| ()).unwrap();
        println!(
            "{family}, {}: {:e}",
            certificate.worst_parameter, certificate.max_relative_error
        );
        assert!(certificate.exact, "{family}: {certificate:?}");
    }
}

/// Weights of classes make means of micro-batches no mean of all: the certificate says so. Without weights, and with micro-batches of one
/// size, plain accumulation is right.
#[test]
fn plain_accumulation_of_weighted_labels_is_found_out() {
    let device = on_cpu(2);
    let mut task = ClassifyTask::new(
        tiny_vit("vit-demo"),
        vec![head("make", TargetKind::Class { names: names(3) })],
    );
    let batch = |task: &ClassifyTask| {
        let random = task.random_batch(8, 5);
        let labels = [0, 0, 0, 1, 2, 1, 2, 0];
        let pixels = support::pixels(&random).to_vec();
        batch_of(task, Values::Bytes(pixels), &[Targets::Class(&labels)])
    };
    let split = Split {
        batch_size: 4,
        recompute: Recompute::None,
        kept_micro_batches: 0,
    };
    for (weights, is_exact) in [(vec![], true), (vec![0.2, 1.0, 3.0], false)] {
        task.heads[0].class_weights = weights;
        let (setup, batch) = (setup(&device, &task, 1), batch(&task));
        let exact: Arc<dyn Task> = Arc::new(task.clone());
        let certificate = verify(&setup, &device, &batch, &[split], exact, |_| ()).unwrap();
        assert!(certificate.exact, "{certificate:?}");
        let plain = verify_plain_accumulation(&setup, &device, &batch, &[split], |_| ());
        let certificate = plain.unwrap();
        assert_eq!(certificate.exact, is_exact, "{certificate:?}");
        assert!(
            is_exact || certificate.max_relative_error > 1e-2,
            "{certificate:?}"
        );
    }
}

/// Random batches are what `verify` and `bench` compute without data.
#[test]
fn splits_of_random_batches_are_exact() {
    let device = on_cpu(2);
    let task = mixed_task(tiny_vit("vit-demo"), 1);
    let batch = task.random_batch(9, 5);
    let setup = setup(&device, &task, 1);
    let splits = usual_splits(9);
    let certificate = verify(&setup, &device, &batch, &splits, Arc::new(task), |_| ()).unwrap();
    assert!(certificate.exact, "{certificate:?}");
}

/// A batch whose every target is unknown teaches nothing, and is no division by zero.
#[test]
fn unknown_targets_have_no_gradient() {
    let device = on_cpu(2);
    let kinds = [
        TargetKind::Class { names: names(3) },
        TargetKind::Number {
            mean: 1.0,
            std: 2.0,
        },
    ];
    let heads = ["make", "age"].iter().zip(kinds);
    let heads = heads.map(|(name, kind)| head(name, kind)).collect();
    let task = ClassifyTask::new(tiny_vit("vit-demo"), heads);
    let pixels = Values::Bytes(vec![7; 4 * task.picture_bytes()]);
    let numbers = [f32::NAN; 4];
    let targets = [Targets::Class(&[-1; 4]), Targets::Numbers(&numbers)];
    let batch = batch_of(&task, pixels, &targets);
    let split = support::Split {
        batch_size: 3,
        kept: 0,
        recompute: Recompute::None,
    };
    let mut step = step(&device, &StepConfig::new(Arc::new(task.clone())), 4, split);
    draw_classifier(&device, &mut step, &task, 1);
    step.gradients(&device, &batch, 1.0).unwrap();
    for parameter in step.parameters() {
        let gradient = step.gradient(parameter).unwrap().unwrap();
        assert!(
            gradient.iter().all(|&value| value == 0.0),
            "{}",
            parameter.name
        );
    }
    assert!(
        step.losses()
            .iter()
            .all(|loss| loss.sum == 0.0 && loss.count == 0.0)
    );
}

/// Every loss is separable: a micro-batch runs forward and backward at once, and nothing is kept for later.
#[test]
fn a_step_has_one_forward_pass() {
    let device = on_cpu(2);
    let config = StepConfig::new(Arc::new(mixed_task(tiny_vit("vit-demo"), 0)));
    let build = |shape: &StepShape| write_step(&config, shape);
    for budget_bytes in [None, Some(256 << 20)] {
        let request = Request {
            effective_batch: Some(16),
            budget_bytes,
            ..Request::default()
        };
        let target = device.target(config.arithmetic, 0).unwrap();
        let plan = plan(&request, &build, &*target).unwrap();
        assert_eq!(plan.chosen.choice.kept_micro_batches, 0);
        let alternatives = plan.alternatives.iter();
        let kept = alternatives.map(|one| one.choice.kept_micro_batches);
        assert_eq!(kept.sum::<usize>(), 0);
        let stages: Vec<Stage> = plan.step.passes().map(|run| run.stage).collect();
        let (once, micro_batches) = stages.split_at(2);
        assert_eq!(once, [Stage::Begin, Stage::Loss]);
        assert_eq!(
            micro_batches.len(),
            plan.chosen.choice.gradient_accumulation
        );
        assert!(
            micro_batches
                .iter()
                .all(|&stage| stage == Stage::ForwardBackward)
        );
    }
}

fn losses(device: &Device, task: &ClassifyTask, batch: &Batch) -> Vec<f64> {
    let split = support::Split {
        batch_size: 4,
        kept: 0,
        recompute: Recompute::Cheap,
    };
    let config = StepConfig::new(Arc::new(task.clone()));
    let mut step = step(device, &config, batch.num_samples, split);
    draw_classifier(device, &mut step, task, 3);
    let losses = step.gradients(device, batch, 1.0).unwrap();
    losses.iter().map(|loss| loss.mean()).collect()
}

/// What is to be exact under every split must be there first: each switch changes the losses, and so does the epoch.
#[test]
fn mixing_dropout_and_stochastic_depth_are_at_work() {
    let device = on_cpu(2);
    let all = mixed_task(tiny_vit("vit-demo"), 2);
    let expected = losses(&device, &all, &mixed_batch(&all, 10, 6));
    let others: [fn(&mut ClassifyTask); 4] = [
        |task| task.mixing = Mixing::default(),
        |task| task.dropout = 0.0,
        |task| task.stochastic_depth = 0.0,
        |task| task.seed += 1,
    ];
    for (index, change) in others.iter().enumerate() {
        let mut other = all.clone();
        change(&mut other);
        let found = losses(&device, &other, &mixed_batch(&other, 10, 6));
        assert_ne!(found, expected, "switch {index}");
    }
    let mut batch = mixed_batch(&all, 10, 6);
    batch.indices("stream", holdall_train::engine::batch::Scope::OwnBatch)[1] += 1;
    assert_ne!(losses(&device, &all, &batch), expected, "another epoch");
}

/// A byte as the model sees it, by its place in a picture.
fn normalized(backbone: &VisionTransformerConfig, byte: u8, at: usize) -> f32 {
    let Normalization { mean, std } = backbone.vision.normalization;
    (f32::from(byte) / 255.0 - mean[at % 3]) / std[at % 3]
}

/// Nothing is dropped or mixed where a model is evaluated, and padding changes nothing.
#[test]
fn evaluation_has_the_logits_of_a_plain_step() {
    let device = on_cpu(2);
    for family in FAMILIES {
        let task = mixed_task(tiny_vit(family), 7);
        let batch = task.random_batch(7, 4);
        let bytes = support::pixels(&batch);
        let split = support::Split {
            batch_size: 4,
            kept: 0,
            recompute: Recompute::Blocks,
        };
        let mut config = StepConfig::new(Arc::new(task.clone()));
        let backbone = &task.model.backbone;
        let pixels = bytes.iter().enumerate();
        let pixels: Vec<f32> = pixels
            .map(|(at, &byte)| normalized(backbone, byte, at))
            .collect();
        let fill = |step: &mut Step| draw_classifier(&device, step, &task, 3);
        let expected = logits_of_step(&device, &task, fill, &pixels, 7);
        let rows: Vec<HostRow> = bytes
            .chunks(task.picture_bytes())
            .map(HostRow::from)
            .collect();
        for evaluation_batch in [None, Some(1), Some(16)] {
            config.evaluation_batch = evaluation_batch;
            let mut step = step(&device, &config, 7, split);
            fill(&mut step);
            let found = logits(&mut step, &device, &rows);
            assert_eq!(found.len(), 7 * 13);
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{family}: {found} {expected}"
                );
            }
        }
    }
}

/// A mixed picture through the plain model, its cross-entropy by hand: what a step with mixing has computed.
#[test]
fn mixed_pictures_have_mixed_labels() {
    let device = on_cpu(2);
    let backbone = tiny_vit("vit-demo");
    let num_labels = 5;
    let make = head(
        "make",
        TargetKind::Class {
            names: names(num_labels),
        },
    );
    for mixing in [
        Mixing {
            mixup: 0.8,
            ..Mixing::default()
        },
        Mixing {
            cutmix: 0.8,
            ..Mixing::default()
        },
    ] {
        let mut task = ClassifyTask::new(backbone.clone(), vec![make.clone()]);
        task.mixing = mixing;
        let samples = 7;
        let labels: Vec<i64> = (0..samples as i64).map(|row| row % 5).collect();
        let random = task.random_batch(samples, 4);
        let bytes = support::pixels(&random).to_vec();
        let batch = batch_of(
            &task,
            Values::Bytes(bytes.clone()),
            &[Targets::Class(&labels)],
        );
        let found = losses(&device, &task, &batch)[0];

        let mixes = task
            .mixing
            .of_batch(task.seed, 0, &[0, 1, 2, 3, 4, 5, 6], [16, 16]);
        assert!(mixes.iter().any(|mix| mix.lambda < 0.9));
        let each = task.picture_bytes();
        let mixed = mixes.iter().enumerate().flat_map(|(row, mix)| {
            let pairs = (0..each).map(move |at| {
                let is_cut = mix.cut.map(|cut| {
                    let (y, x) = ((at / 3 / 16) as u32, (at / 3 % 16) as u32);
                    (cut.y0..cut.y1).contains(&y) && (cut.x0..cut.x1).contains(&x)
                });
                let own = match is_cut {
                    Some(true) => 0.0,
                    Some(false) => 1.0,
                    None => mix.lambda,
                };
                (row * each + at, mix.partner * each + at, own)
            });
            pairs.collect::<Vec<_>>()
        });
        let pixels: Vec<f32> = mixed
            .map(|(own, partner, share)| {
                let [own, partner] = [own, partner].map(|at| normalized(&backbone, bytes[at], at));
                share * own + (1.0 - share) * partner
            })
            .collect();
        let fill = |step: &mut Step| draw_classifier(&device, step, &task, 3);
        let outputs = logits_of_step(&device, &task, fill, &pixels, samples);
        let mut sum = 0.0;
        for (row, (mix, own)) in mixes.iter().zip(outputs.chunks(num_labels)).enumerate() {
            let total: f64 = own.iter().map(|&logit| f64::from(logit).exp()).sum();
            let entropy = |row: usize| total.ln() - f64::from(own[labels[row] as usize]);
            let lambda = f64::from(mix.lambda);
            sum += lambda * entropy(row) + (1.0 - lambda) * entropy(mix.partner);
        }
        let expected = sum / samples as f64;
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

fn any_family() -> impl Strategy<Value = VisionTransformerConfig> {
    prop::sample::select(FAMILIES.to_vec()).prop_map(tiny_vit)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_split_is_exact(
        samples in 2usize..24,
        batch_size in 1usize..24,
        kept in 0usize..3,
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Cheap, Recompute::Blocks]),
        backbone in any_family(),
        seed in any::<u64>(),
    ) {
        let device = on_cpu(2);
        let task = mixed_task(backbone, seed);
        let batch = mixed_batch(&task, samples, seed);
        let setup = setup(&device, &task, seed);
        let batch_size = batch_size.min(samples);
        let kept_micro_batches = kept.min(samples.div_ceil(batch_size));
        let split = Split { batch_size, recompute, kept_micro_batches };
        let certificate = verify(&setup, &device, &batch, &[split], Arc::new(task), |_| ()).unwrap();
        prop_assert!(certificate.max_relative_error <= certificate.tolerance, "{:?}", certificate);
        prop_assert!(certificate.loss_difference <= certificate.tolerance, "{:?}", certificate);
    }
}
