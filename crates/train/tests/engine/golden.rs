//! Parity with `transformers` on small random CLIPs, both GELUs and both ways of pooling.

use holdall_models::folder::ModelFolder;
use holdall_plan::Recompute;
use holdall_train::engine::optimizer::StepScalars;

use crate::support::{
    Split, config_of, features, fixture, golden_batch, gradient_errors, on_cpu, read_tensors,
    read_weights, step,
};

const VARIANTS: [&str; 2] = ["clip_quick", "clip_erf"];

fn splits() -> [Split; 4] {
    let split = |batch_size, kept, recompute| Split {
        batch_size,
        kept,
        recompute,
    };
    [
        split(6, 1, Recompute::None),
        split(4, 1, Recompute::Cheap),
        split(1, 0, Recompute::Blocks),
        split(5, 2, Recompute::Blocks),
    ]
}

#[test]
fn features_losses_and_every_gradient_are_those_of_transformers() {
    let device = on_cpu(2);
    for variant in VARIANTS {
        let folder = ModelFolder::open(&fixture(variant)).unwrap();
        folder.check().unwrap();
        let golden = read_tensors(&fixture(variant).join("golden.safetensors"));
        let (task, batch) = golden_batch(folder.clip_config().unwrap(), &golden);
        let config = config_of(&task);
        for split in splits() {
            let mut step = step(&device, &config, 6, split);
            read_weights(&device, &mut step, &folder);
            let losses = step.gradients(&device, &batch, 1.0).unwrap();
            let (contrastive, label) = (losses[0], losses[1]);
            let near = |found: f64, name: &str| {
                let expected = golden[name].1[0];
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{variant} {split:?} {name}: {found} {expected}"
                );
            };
            near(contrastive.mean(), "loss_contrastive");
            near(label.mean(), "loss_label");
            assert_eq!((contrastive.count, label.count), (6.0, 5.0));

            let [image, text] = features(&step);
            for (found, name) in [(&image, "image_embeds"), (&text, "text_embeds")] {
                for (&found, &expected) in found.iter().zip(&golden[name].1) {
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-5,
                        "{variant} {name}"
                    );
                }
            }
            let scale = f64::from(step.named_weights().unwrap()["logit_scale"][0]).exp();
            let width = folder.clip_config().unwrap().projection_dim;
            for i in 0..6 {
                for j in 0..6 {
                    let dot: f64 = (0..width)
                        .map(|d| f64::from(image[i * width + d]) * f64::from(text[j * width + d]))
                        .sum();
                    let expected = golden["logits_per_image"].1[i * 6 + j];
                    assert!(
                        (scale * dot - expected).abs() < 1e-4,
                        "{variant} logit {i} {j}"
                    );
                }
            }

            let pairs: Vec<_> = step
                .parameters()
                .iter()
                .map(|parameter| {
                    let found = step.gradient(parameter).unwrap().unwrap();
                    let reference = golden[&format!("grad.{}", parameter.name)].1.clone();
                    let found = found.iter().map(|&value| f64::from(value)).collect();
                    (parameter.name.clone(), found, reference)
                })
                .collect();
            assert_eq!(
                pairs.len(),
                golden
                    .keys()
                    .filter(|name| name.starts_with("grad."))
                    .count()
            );
            for (name, error) in gradient_errors(&pairs) {
                assert!(error < 1e-4, "{variant} {split:?} {name}: {error:e}");
            }
        }
    }
}

#[test]
fn ten_adamw_steps_have_the_losses_norms_and_weights_of_pytorch() {
    let device = on_cpu(2);
    for variant in VARIANTS {
        let folder = ModelFolder::open(&fixture(variant)).unwrap();
        let golden = read_tensors(&fixture(variant).join("golden.safetensors"));
        let (task, batch) = golden_batch(folder.clip_config().unwrap(), &golden);
        let config = config_of(&task);
        for split in splits() {
            let mut step = step(&device, &config, 6, split);
            read_weights(&device, &mut step, &folder);
            for count in 0..10 {
                let scalars = StepScalars {
                    step: count as u64 + 1,
                    rates: &[1e-3, 1e-3],
                    loss_scale: 1.0,
                };
                let report = step.run(&device, &batch, &scalars).unwrap();
                let expected = golden["adamw_losses"].1[count];
                assert!(
                    (report.loss - expected).abs() < 1e-4,
                    "{variant} {split:?} step {count}: {} against {expected}",
                    report.loss
                );
                let norm = golden["adamw_grad_norms"].1[count];
                assert!((report.gradient_norm / norm - 1.0).abs() < 1e-4);
            }
            let weights = step.named_weights().unwrap();
            let finals: Vec<_> = golden
                .iter()
                .filter(|(name, _)| name.starts_with("final."))
                .collect();
            assert_eq!(finals.len(), 6);
            for (name, (_, expected)) in finals {
                for (&found, &expected) in weights[&name["final.".len()..]].iter().zip(expected) {
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-4,
                        "{variant} {name}"
                    );
                }
            }
        }
    }
}
