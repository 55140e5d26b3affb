//! Low-rank adapters: parity with peft on a small CLIP, exact under any split, and what they save.

use std::sync::Arc;

use holdall_device::Device;
use holdall_graph::Parameter;
use holdall_graph::adapters::adapted_module;
use holdall_models::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::init::Start;
use holdall_plan::Recompute;
use holdall_train::TrainError;
use holdall_train::config::{LoraSection, LoraTargets};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::lora::Lora;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;

use crate::support::{
    Split, Tensors, VideoTextParts, config_of, features, fixture, golden_batch, gradient_errors,
    mixed_batch, mixed_task, on_cpu, read_tensors, step, tiny_video_text, tiny_vit, varied_clips,
};

/// Name, rank and targets of what make_lora.py made; alpha is 6.
fn golden_sections() -> [(&'static str, LoraSection); 2] {
    let section = |rank, targets| LoraSection {
        rank,
        alpha: Some(6.0),
        targets,
        ..LoraSection::default()
    };
    [
        ("query_value", section(4, None)),
        ("all", section(3, Some(LoraTargets::One("all".to_owned())))),
    ]
}

fn with_lora(config: StepConfig, section: &LoraSection) -> StepConfig {
    let lora = Lora::resolve(section, &config, "base", 5).unwrap();
    StepConfig {
        lora: Some(lora),
        ..config
    }
}

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

struct Golden {
    config: StepConfig,
    batch: Batch,
    folder: ModelFolder,
    expected: Tensors,
}

fn golden(name: &str, section: &LoraSection) -> Golden {
    let folder = ModelFolder::open(&fixture("clip_quick")).unwrap();
    let inputs = read_tensors(&fixture("clip_quick").join("golden.safetensors"));
    let (task, batch) = golden_batch(folder.clip_config().unwrap(), &inputs);
    Golden {
        config: with_lora(config_of(&task), section),
        batch,
        folder,
        expected: read_tensors(&fixture("lora").join(format!("{name}.safetensors"))),
    }
}

impl Golden {
    fn step(&self, device: &Device, split: Split) -> Step {
        let mut step = step(device, &self.config, 6, split);
        let head = self.folder.read_head().unwrap().unwrap();
        step.set_weights(device, |name, values| {
            match (name, adapted_module(name)) {
                ("head.weight", _) => values.copy_from_slice(&head.weight),
                ("head.bias", _) => values.copy_from_slice(&head.bias),
                (_, Some(_)) => {
                    let start = &self.expected[&format!("start.{name}")].1;
                    for (value, &start) in values.iter_mut().zip(start) {
                        *value = start as f32;
                    }
                }
                _ => self.folder.read_f32(name, values)?,
            }
            Ok::<(), holdall_models::ModelError>(())
        })
        .unwrap();
        step
    }
}

#[test]
fn gradients_of_adapters_are_those_of_peft() {
    let device = on_cpu(2);
    for (name, section) in golden_sections() {
        let golden = golden(name, &section);
        for split in splits() {
            let mut step = golden.step(&device, split);
            step.gradients(&device, &golden.batch, 1.0).unwrap();
            let (found, expected) = (step.total_loss(), golden.expected["loss"].1[0]);
            assert!(
                (found - expected).abs() < 1e-5,
                "{name}: {found} {expected}"
            );
            let mut pairs = Vec::new();
            for parameter in step.parameters() {
                let reference = golden.expected.get(&format!("grad.{}", parameter.name));
                let found = step.gradient(parameter).unwrap();
                assert_eq!(
                    found.is_some(),
                    reference.is_some(),
                    "{name} {}",
                    parameter.name
                );
                if let (Some(found), Some((_, reference))) = (found, reference) {
                    let found = found.iter().map(|&value| f64::from(value)).collect();
                    pairs.push((parameter.name.clone(), found, reference.clone()));
                }
            }
            let gradients = golden
                .expected
                .keys()
                .filter(|key| key.starts_with("grad."));
            assert_eq!(pairs.len(), gradients.count());
            for (parameter, error) in gradient_errors(&pairs) {
                assert!(error < 1e-4, "{name} {split:?} {parameter}: {error:e}");
            }
        }
    }
}

#[test]
fn ten_steps_of_adapters_and_the_merged_model_are_those_of_peft() {
    let device = on_cpu(2);
    for (name, section) in golden_sections() {
        let golden = golden(name, &section);
        for split in [splits()[0], splits()[3]] {
            let mut step = golden.step(&device, split);
            for count in 0..10 {
                let scalars = StepScalars {
                    step: count as u64 + 1,
                    rates: &[1e-3, 1e-3],
                    loss_scale: 1.0,
                };
                let report = step.run(&device, &golden.batch, &scalars).unwrap();
                let loss = golden.expected["adamw_losses"].1[count];
                assert!((report.loss - loss).abs() < 1e-4, "{name} step {count}");
                let norm = golden.expected["adamw_grad_norms"].1[count];
                assert!(
                    (report.gradient_norm / norm - 1.0).abs() < 1e-4,
                    "{name} step {count}"
                );
            }
            for parameter in step.parameters() {
                let near = |kind: &str, found: &[f32]| {
                    let expected = golden.expected.get(&format!("{kind}.{}", parameter.name));
                    for (&found, &expected) in
                        found.iter().zip(expected.iter().flat_map(|one| &one.1))
                    {
                        let error = (f64::from(found) - expected).abs();
                        assert!(error < 1e-4, "{name} {kind} {}: {error:e}", parameter.name);
                    }
                    expected.is_some()
                };
                let trained = near("final", &step.weight(parameter).unwrap());
                assert_eq!(trained, parameter.trainable, "{name} {}", parameter.name);
                near("merged", &step.exported_weight(parameter).read().unwrap());
            }
        }
    }
}

/// A step with every adapter drawn, `B` too.
fn drawn_step(device: &Device, config: &StepConfig, samples: usize, split: Split) -> Step {
    let mut step = step(device, config, samples, split);
    let mut fill = config.weights(3).unwrap();
    let drawn = |name: &str, values: &mut [f32]| {
        fill(name, values)?;
        if name.ends_with("lora_B.weight") {
            Start::Normal(0.1).fill(3, name, values);
        }
        Ok::<(), holdall_train::TrainError>(())
    };
    step.set_weights(device, drawn).unwrap();
    step
}

fn gradients(device: &Device, step: &mut Step, batch: &Batch) -> Vec<(String, Vec<f64>)> {
    step.gradients(device, batch, 1.0).unwrap();
    let gradient = |parameter: &Parameter| {
        let found = step.gradient(parameter).unwrap()?;
        let found = found.iter().map(|&value| f64::from(value)).collect();
        Some((parameter.name.clone(), found))
    };
    step.parameters().iter().filter_map(gradient).collect()
}

/// Every task that has a transformer, each with a batch of seven: adapters on all linear layers, dropout before them.
fn tasks() -> Vec<(StepConfig, Batch)> {
    let folder = ModelFolder::open(&fixture("clip_quick")).unwrap();
    let clip = ClipTask::new(folder.clip_config().unwrap().clone(), Some(5));
    let clip_batch = clip.random_batch(7, 3);
    let mut all = vec![(Arc::new(clip) as Arc<dyn Task>, clip_batch)];
    for preset in ["vit-demo", "dinov2-small-patch14-224"] {
        let task = mixed_task(tiny_vit(preset), 2);
        let batch = mixed_batch(&task, 7, 4);
        all.push((Arc::new(task), batch));
    }
    for (pooling, has_bert) in [("hidden", false), ("attention", true)] {
        let parts = VideoTextParts {
            pooling,
            has_bert,
            has_decoder: true,
            is_tied: false,
            num_videos: 2,
        };
        let task = tiny_video_text(parts, 1);
        let batch = varied_clips(&task, 7, 3);
        all.push((Arc::new(task), batch));
    }
    let section = LoraSection {
        rank: 2,
        targets: Some(LoraTargets::One("all-linear".to_owned())),
        dropout: 0.2,
        ..LoraSection::default()
    };
    all.into_iter()
        .map(|(task, mut batch)| {
            let config = with_lora(StepConfig::new(task), &section);
            let lora = config.lora.as_ref().unwrap();
            lora.set_stream(&mut batch, [9, 4, 2, 7, 1, 30, 5].into_iter(), 1);
            (config, batch)
        })
        .collect()
}

#[test]
fn adapters_of_every_task_are_exact_under_every_split() {
    let device = on_cpu(2);
    for (config, batch) in tasks() {
        let name = config.task.name();
        let split = |batch_size, kept, recompute| Split {
            batch_size,
            kept,
            recompute,
        };
        let whole = split(7, 1, Recompute::None);
        let expected = gradients(&device, &mut drawn_step(&device, &config, 7, whole), &batch);
        let is_moved =
            |(_, gradient): &(String, Vec<f64>)| gradient.iter().any(|&value| value != 0.0);
        let adapters = expected
            .iter()
            .filter(|(name, _)| adapted_module(name).is_some());
        assert!(adapters.clone().count() > 10, "{name}");
        for adapter in adapters {
            assert!(is_moved(adapter), "{name}: {} has no gradient", adapter.0);
        }
        for split in [
            split(4, 2, Recompute::Cheap),
            split(3, 1, Recompute::Blocks),
            split(1, 0, Recompute::None),
        ] {
            let found = gradients(&device, &mut drawn_step(&device, &config, 7, split), &batch);
            assert_eq!(found.len(), expected.len());
            let pairs: Vec<_> = found
                .into_iter()
                .zip(&expected)
                .map(|((name, found), (_, expected))| (name, found, expected.clone()))
                .collect();
            for (parameter, error) in gradient_errors(&pairs) {
                assert!(error < 1e-4, "{name} {split:?} {parameter}: {error:e}");
            }
        }
    }
}

#[test]
fn new_adapters_change_no_bit_and_take_less_memory() {
    let device = on_cpu(2);
    let folder = ModelFolder::open(&fixture("clip_quick")).unwrap();
    let task = ClipTask::new(folder.clip_config().unwrap().clone(), Some(5));
    let whole = config_of(&task);
    let section = LoraSection {
        rank: 2,
        ..LoraSection::default()
    };
    let adapted = with_lora(whole.clone(), &section);
    let split = Split {
        batch_size: 3,
        kept: 2,
        recompute: Recompute::None,
    };
    let batch = task.random_batch(6, 3);
    let run = |config: &StepConfig| {
        let mut step = step(&device, config, 6, split);
        step.set_weights(&device, config.weights(3).unwrap())
            .unwrap();
        step.gradients(&device, &batch, 1.0).unwrap();
        step
    };
    let (whole, adapted) = (run(&whole), run(&adapted));
    assert_eq!(features(&whole), features(&adapted));
    let [whole_bytes, adapted_bytes] = [&whole, &adapted].map(|step| &step.plan().breakdown);
    for (less, more) in [
        (adapted_bytes.gradients, whole_bytes.gradients),
        (adapted_bytes.optimizer, whole_bytes.optimizer),
        // What a frozen layer reads is not kept for its gradient.
        (adapted_bytes.activations, whole_bytes.activations),
    ] {
        assert!(less < more, "{adapted_bytes:?} {whole_bytes:?}");
    }
    for parameter in adapted.parameters() {
        let name = &parameter.name;
        let is_trained = adapted_module(name).is_some() || name.starts_with("head.");
        assert_eq!(parameter.trainable, is_trained, "{name}");
    }
}

/// Adapters leave biases and norms as they were: two models may differ by a matrix alone.
#[test]
fn models_that_differ_by_a_matrix_have_other_checksums() {
    let device = on_cpu(2);
    let task = ClipTask::new(ClipConfig::preset("small").unwrap(), None);
    let split = Split {
        batch_size: 1,
        kept: 1,
        recompute: Recompute::None,
    };
    let checksum = |added: f32| {
        let mut step = step(&device, &config_of(&task), 1, split);
        let mut start = task.weights(0).unwrap();
        step.set_weights(&device, |name, values| {
            start(name, values)?;
            if name == "vision_model.encoder.layers.0.mlp.fc1.weight" {
                values[0] += added;
            }
            Ok::<(), TrainError>(())
        })
        .unwrap();
        step.sampled_checksum().unwrap()
    };
    assert_eq!(checksum(0.0), checksum(0.0));
    assert_ne!(checksum(0.0), checksum(1.0));
}

fn refusal(section: &LoraSection) -> String {
    let folder = ModelFolder::open(&fixture("clip_quick")).unwrap();
    let task = ClipTask::new(folder.clip_config().unwrap().clone(), Some(5));
    let refused = Lora::resolve(section, &config_of(&task), "base", 0);
    refused.unwrap_err().to_string()
}

fn targets(names: &[&str]) -> LoraSection {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    LoraSection {
        rank: 2,
        targets: Some(LoraTargets::List(names)),
        ..LoraSection::default()
    }
}

#[test]
fn what_matches_no_layer_and_ranks_beyond_a_matrix_are_refused() {
    // Embeddings and convolutions are no linear layers; a head is trained as it is.
    for name in [
        "query",
        "token_embedding",
        "patch_embedding",
        "head",
        "vision_model.*.q_prok",
    ] {
        let found = refusal(&targets(&["q_proj", name]));
        assert!(
            found.starts_with(&format!("train.lora.targets: `{name}`, expected")),
            "{found}"
        );
        assert!(
            found.contains(
                "fc1, fc2, k_proj, out_proj, q_proj, text_projection, v_proj, visual_projection"
            ),
            "{found}"
        );
    }
    let section = LoraSection {
        rank: 25,
        ..LoraSection::default()
    };
    let found = refusal(&section);
    assert!(
        found.starts_with("train.lora.rank: 25, expected at most 24"),
        "{found}"
    );
}

#[test]
fn targets_are_names_ends_of_names_and_patterns() {
    let folder = ModelFolder::open(&fixture("clip_quick")).unwrap();
    let task = ClipTask::new(folder.clip_config().unwrap().clone(), None);
    let whole = "text_model.encoder.layers.1.mlp.fc2";
    for (names, count, first_target) in [
        (&["q_proj"][..], 5, "q_proj"),
        (&["self_attn.q_proj", "fc1"], 10, "fc1"),
        (
            &["vision_model.*_proj"],
            12,
            "vision_model.encoder.layers.0.self_attn.k_proj",
        ),
        (&[whole], 1, whole),
    ] {
        let mut config = config_of(&task);
        let lora = Lora::resolve(&targets(names), &config, "base", 0).unwrap();
        assert_eq!(
            (lora.modules.len(), lora.target_modules[0].as_str()),
            (count, first_target)
        );
        // What is frozen by name has no adapter.
        let names_of_vision = task.parameter_names().into_iter();
        config.frozen = std::sync::Arc::new(
            names_of_vision
                .filter(|name| name.starts_with("vision_model."))
                .collect(),
        );
        if let Ok(lora) = Lora::resolve(&targets(names), &config, "base", 0) {
            assert!(
                lora.modules
                    .iter()
                    .all(|module| module.starts_with("text_model."))
            );
        }
    }
}
