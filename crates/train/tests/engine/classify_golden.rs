//! Parity with `transformers` on small random classifiers: four families, and every loss.

use std::sync::Arc;

use holdall_data::samples::TargetKind;
use holdall_graph::DType;
use holdall_models::folder::ModelFolder;
use holdall_plan::Recompute;
use holdall_train::engine::batch::{Batch, Values};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::tasks::classify::{ClassifyTask, Head, Targets, batch_of};

use crate::support::{
    Split, Tensors, fixture, golden_pixels, gradient_errors, head, logits_of_step, on_cpu,
    read_tensors, read_weights, step,
};

const CASES: [(&str, &str); 7] = [
    ("classify_vit", "weighted"),
    ("classify_vit", "weighted_smoothed"),
    ("classify_vit", "multi_label"),
    ("classify_vit", "regression"),
    ("classify_deit", "smoothed"),
    ("classify_dinov2", "plain"),
    ("classify_clip", "weighted"),
];

const NUM_SAMPLES: usize = 6;

fn splits() -> [Split; 5] {
    let split = |batch_size, kept, recompute| Split {
        batch_size,
        kept,
        recompute,
    };
    [
        split(6, 0, Recompute::None),
        split(4, 0, Recompute::Cheap),
        split(1, 0, Recompute::Blocks),
        split(5, 0, Recompute::Blocks),
        // Nobody plans that for losses that need no first pass, but it computes the same.
        split(2, 2, Recompute::None),
    ]
}

/// A model with its heads, and the batch of a case.
fn read_case(variant: &str, case: &str) -> (ModelFolder, Tensors, ClassifyTask, Batch) {
    let folder = ModelFolder::open(&fixture(variant)).unwrap();
    folder.check().unwrap();
    let golden = read_tensors(&fixture(variant).join(format!("{case}.safetensors")));
    let names = folder.config().classifier().unwrap().labels.clone();
    let floats = |name: &str| -> Vec<f32> {
        let found = golden.get(name).map(|(_, values)| values.as_slice());
        let values = found.unwrap_or_default().iter();
        values.map(|&value| value as f32).collect()
    };
    let labels: Vec<i64> = match golden.get("labels") {
        Some((_, labels)) => labels.iter().map(|&label| label as i64).collect(),
        None => Vec::new(),
    };
    let numbers = floats("targets");
    let mut columns: Vec<Vec<f32>> = Vec::new();
    let heads: Vec<Head> = match case {
        "regression" => {
            let number = TargetKind::Number {
                mean: 0.0,
                std: 1.0,
            };
            let outputs = names.len();
            let mut heads = Vec::new();
            for (output, name) in names.iter().enumerate() {
                // Five numbers, of which transformers takes the mean.
                let mut head = head(name, number.clone());
                head.weight = 1.0 / outputs as f64;
                heads.push(head);
                let own = numbers.iter().skip(output).step_by(outputs);
                columns.push(own.copied().collect());
            }
            heads
        }
        "multi_label" => {
            columns.push(numbers);
            vec![head("label", TargetKind::Classes { names })]
        }
        _ => {
            let mut head = head("label", TargetKind::Class { names });
            head.class_weights = floats("class_weights");
            head.smoothing = if case.contains("smoothed") { 0.1 } else { 0.0 };
            vec![head]
        }
    };
    let mut task = ClassifyTask::new(folder.config().backbone().unwrap(), heads);
    task.pixels = DType::F32;
    let targets: Vec<Targets<'_>> = if !labels.is_empty() {
        vec![Targets::Class(&labels)]
    } else {
        columns.iter().map(|one| Targets::Numbers(one)).collect()
    };
    let batch = batch_of(&task, Values::Floats(golden_pixels(&golden)), &targets);
    (folder, golden, task, batch)
}

#[test]
fn logits_losses_and_every_gradient_are_those_of_transformers() {
    let device = on_cpu(2);
    for (variant, case) in CASES {
        let (folder, golden, task, batch) = read_case(variant, case);
        let config = StepConfig::new(Arc::new(task.clone()));
        for split in splits() {
            let mut step = step(&device, &config, NUM_SAMPLES, split);
            read_weights(&device, &mut step, &folder);
            step.gradients(&device, &batch, 1.0).unwrap();
            let (loss, expected) = (step.total_loss(), golden["loss"].1[0]);
            assert!(
                (loss - expected).abs() < 1e-5,
                "{variant} {case} {split:?}: {loss} {expected}"
            );
            let counts: f64 = step.losses().iter().map(|loss| loss.count).sum();
            let expected = match case {
                // Labels 3, 0, none, 4, 1, 3.
                "weighted" | "weighted_smoothed" => 1.25 + 0.5 + 0.75 + 1.0 + 1.25,
                "multi_label" | "regression" => 30.0,
                _ => 5.0,
            };
            assert_eq!(counts, expected, "{variant} {case}");

            let parameters = step.parameters().iter();
            let pairs: Vec<_> = parameters
                .filter_map(|parameter| {
                    let name = parameter.name.clone();
                    let Some(found) = step.gradient(parameter).unwrap() else {
                        // The logits do not depend on it.
                        assert!(name.contains("post_layernorm"), "{variant} {name}");
                        return None;
                    };
                    let found = found.iter().map(|&value| f64::from(value)).collect();
                    let reference = golden[&format!("grad.{name}")].1.clone();
                    Some((name, found, reference))
                })
                .collect();
            let all = golden.keys().filter(|name| name.starts_with("grad."));
            assert_eq!(pairs.len(), all.count(), "{variant}");
            for (name, error) in gradient_errors(&pairs) {
                assert!(error < 1e-4, "{variant} {case} {split:?} {name}: {error:e}");
            }
        }
        let fill = |step: &mut Step| read_weights(&device, step, &folder);
        let pixels = golden_pixels(&golden);
        let found = logits_of_step(&device, &task, fill, &pixels, NUM_SAMPLES);
        let expected = &golden["logits"].1;
        assert_eq!(found.len(), expected.len());
        for (&found, &expected) in found.iter().zip(expected) {
            let apart = (f64::from(found) - expected).abs();
            assert!(apart < 1e-5, "{variant} {case}: {found} {expected}");
        }
    }
}

#[test]
fn ten_adamw_steps_have_the_losses_norms_and_weights_of_pytorch() {
    let device = on_cpu(2);
    for (variant, case) in CASES {
        let (folder, golden, task, batch) = read_case(variant, case);
        let config = StepConfig::new(Arc::new(task));
        for split in splits() {
            let mut step = step(&device, &config, NUM_SAMPLES, split);
            read_weights(&device, &mut step, &folder);
            for count in 0..10 {
                let moment = StepScalars {
                    step: count as u64 + 1,
                    rates: &[1e-3, 1e-3],
                    loss_scale: 1.0,
                };
                let report = step.run(&device, &batch, &moment).unwrap();
                let expected = golden["adamw_losses"].1[count];
                assert!(
                    (report.loss - expected).abs() < 1e-4,
                    "{variant} {case} {split:?} step {count}: {} against {expected}",
                    report.loss
                );
                let norm = golden["adamw_grad_norms"].1[count];
                let apart = (report.gradient_norm / norm - 1.0).abs();
                assert!(apart < 1e-4, "{variant} {case} step {count}: {apart:e}");
            }
            let weights = step.named_weights().unwrap();
            let finals = golden
                .iter()
                .filter_map(|(name, (_, values))| Some((name.strip_prefix("final.")?, values)));
            let finals: Vec<_> = finals.collect();
            assert!(finals.len() >= 4, "{variant}: {}", finals.len());
            for (name, expected) in finals {
                for (&found, &expected) in weights[name].iter().zip(expected) {
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-4,
                        "{variant} {case} {name}: {found} {expected}"
                    );
                }
            }
        }
    }
}
