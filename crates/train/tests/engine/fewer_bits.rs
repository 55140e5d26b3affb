//! State and gradients in fewer bits: how many bytes they take, and how far gradients are from those in f32.

use holdall_device::Arithmetic;
use holdall_graph::{Copies, Graph, Op, Role};
use holdall_models::config::ClipConfig;
use holdall_plan::{Recompute, StepShape};
use holdall_train::config::GradientFormat;
use holdall_train::engine::optimizer::{Averaging, MomentFormat, moment_bytes, savings};
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;

use crate::support::{Split, config_of, draw_weights, on_cpu, step};

fn graph_of(config: &StepConfig) -> Graph {
    let shape = StepShape {
        batch_size: 2,
        gradient_accumulation: 2,
        copies: Copies::Resident,
    };
    write_step(config, &shape)
}

fn bytes(graph: &Graph, role: Role) -> u64 {
    let storages = graph.storages().iter();
    let of_role = storages.filter(|storage| storage.role == role);
    of_role.map(|storage| storage.bytes()).sum()
}

/// CLIP ViT-B/32 with embeddings in 32 bits: at most 3.1 bytes of state a parameter.
#[test]
fn state_of_clip_in_8_bits_takes_three_bytes_a_parameter() {
    let model = ClipConfig::preset("openai/clip-vit-base-patch32").unwrap();
    let mut config = config_of(&ClipTask::new(model, None));
    config.arithmetic = Arithmetic::Bf16;
    let full = graph_of(&config);
    let parameters = full.parameters().iter();
    let elements = parameters.map(|one| full.shape(one.value).num_elements() as u64);
    let elements: u64 = elements.sum();
    assert_eq!(elements, 151_277_313);
    assert_eq!(bytes(&full, Role::Optimizer), 8 * elements);
    config.optimizer.moments = MomentFormat::EightBit;
    let coded = graph_of(&config);
    let state = bytes(&coded, Role::Optimizer);
    let each = state as f64 / elements as f64;
    assert!((3.0..3.1).contains(&each), "{each} bytes a parameter");
    assert_eq!(state, moment_bytes(&full, MomentFormat::EightBit));
    // Exactly what tokens are made of, and what is small, stays in f32.
    let Some(Op::AdamW(update)) = coded
        .nodes()
        .iter()
        .map(|node| &node.op)
        .find(|op| matches!(op, Op::AdamW(_)))
    else {
        panic!("an update");
    };
    for (parameter, update) in coded.parameters().iter().zip(&update.parameters) {
        let is_small = coded.shape(parameter.value).num_elements() < 4096;
        let is_embedding = parameter.name.contains("token_embedding")
            || parameter.name.contains("position_embedding")
            || parameter.name.contains("class_embedding");
        let expected = if is_small || is_embedding {
            MomentFormat::F32
        } else {
            MomentFormat::EightBit
        };
        assert_eq!(update.moments, expected, "{}", parameter.name);
    }
    config.optimizer.moments = MomentFormat::Bf16;
    assert_eq!(bytes(&graph_of(&config), Role::Optimizer), 4 * elements);
    for averaging in [
        Averaging::OverSteps { decay: 0.99 },
        Averaging::WithStart { share: 0.5 },
    ] {
        config.optimizer.averaging = averaging;
        assert_eq!(bytes(&graph_of(&config), Role::Optimizer), 8 * elements);
    }
    // Gradients of matrices in bf16.
    let mut rounded = config_of(&ClipTask::new(
        ClipConfig::preset("openai/clip-vit-base-patch32").unwrap(),
        None,
    ));
    rounded.arithmetic = Arithmetic::Bf16;
    rounded.gradients = GradientFormat::Bf16;
    let saved = bytes(&full, Role::Gradient) - bytes(&graph_of(&rounded), Role::Gradient);
    assert!(saved > 2 * 120_000_000, "{saved}");
    let offered: Vec<_> = savings(&full, MomentFormat::F32)
        .into_iter()
        .map(|saving| (saving.setting[1], saving.bytes))
        .collect();
    let of_state = [8 * elements - state, 4 * elements];
    let expected = [
        ("8bit", of_state[0]),
        ("bf16", of_state[1]),
        ("bf16", saved),
    ];
    assert_eq!(offered, expected);
    let left: Vec<_> = savings(&graph_of(&rounded), MomentFormat::EightBit);
    assert!(left.is_empty(), "{left:?}");
}

/// The error of a gradient that 16 micro-batches add up in bf16: 2^-9 for each rounding, and they are independent.
#[test]
fn gradients_in_bf16_are_near_those_in_f32() {
    let device = on_cpu(2);
    let task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(12));
    let batch = task.random_batch(32, 3);
    for (batch_size, kept, limit) in [(2, 16, 8e-3), (2, 3, 8e-3), (32, 1, 3e-3)] {
        let split = Split {
            batch_size,
            kept,
            recompute: Recompute::Cheap,
        };
        let gradients = |format| {
            let mut config = config_of(&task);
            config.gradients = format;
            let mut step = step(&device, &config, 32, split);
            draw_weights(&device, &mut step, &task.model, 5);
            let losses = step.gradients(&device, &batch, 1.0).unwrap().to_vec();
            let parameters = step.parameters().iter();
            let all: Vec<_> = parameters
                .map(|one| {
                    (
                        one.name.clone(),
                        step.gradient(one).unwrap().unwrap().into_owned(),
                    )
                })
                .collect();
            (losses, all)
        };
        let (expected_losses, expected) = gradients(GradientFormat::F32);
        let (losses, found) = gradients(GradientFormat::Bf16);
        assert_eq!(losses, expected_losses);
        let mut differing = 0;
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            let norm = |values: &mut dyn Iterator<Item = f32>| {
                values
                    .map(|value| f64::from(value).powi(2))
                    .sum::<f64>()
                    .sqrt()
            };
            let error = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
            let size = norm(&mut expected.iter().copied());
            assert!(
                error <= limit * size,
                "{name} at {batch_size}: {error:e} of {size:e}"
            );
            differing += usize::from(error > 0.0);
        }
        assert!(differing > 20, "matrices are rounded: {differing}");
    }
}
