//! Frozen parameters: no bit of them changes, no gradient of others does, and nothing is run or kept for them.

use std::collections::HashSet;
use std::sync::Arc;

use holdall_device::Device;
use holdall_device::cpu::CpuTarget;
use holdall_graph::{BlockId, Copies, Graph, Node, Section};
use holdall_models::config::{Activation, ClipConfig};
use holdall_models::unet::config::UnetKind;
use holdall_plan::{
    Recompute, RecomputePolicy, Rewritten, Stage, StepShape, lifetimes_of, num_trained_blocks,
    rewrite,
};
use holdall_train::config::{Freeze, RunConfig};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::frozen::{self, Frozen};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{Split, verify};
use holdall_train::tasks::clip::ClipTask;
use holdall_train::tasks::segment::SegmentTask;
use proptest::prelude::*;

use crate::splits::tiny;
use crate::support::{
    self, VideoTextParts, mixed_task, on_cpu, tiny_unet, tiny_video_text, tiny_vit,
};

fn frozen(task: &Arc<dyn Task>, freeze: &str) -> Frozen {
    let freeze: Freeze = if freeze.starts_with('{') {
        serde_json::from_str(freeze).unwrap()
    } else {
        freeze.parse().unwrap()
    };
    frozen::resolve(&freeze, task).unwrap()
}

fn clip() -> (ClipConfig, Arc<dyn Task>) {
    let model = tiny(Activation::QuickGelu);
    let task = ClipTask::new(model.clone(), Some(4));
    (model, Arc::new(task))
}

const WHOLE_TOWER: &str = "vision_model, visual_projection";

/// Every task, with what is frozen of it.
fn cases() -> Vec<(Arc<dyn Task>, Vec<&'static str>)> {
    let parts = VideoTextParts {
        pooling: "attention",
        has_bert: true,
        has_decoder: true,
        is_tied: true,
        num_videos: 2,
    };
    vec![
        (
            clip().1,
            vec![
                "vision_model",
                WHOLE_TOWER,
                r#"{"vision_model": "all but 1", "text_model": "all but 2"}"#,
                "all but heads",
                "*.bias",
                "*.weight",
                "text_model.embeddings.token_embedding",
                "text_model.embeddings.position_embedding",
                "vision_model.embeddings.class_embedding",
                "vision_model.embeddings.position_embedding",
                "vision_model.embeddings.patch_embedding",
                "logit_scale",
            ],
        ),
        (
            Arc::new(mixed_task(tiny_vit("deit-tiny-distilled-patch16-224"), 1)),
            vec!["all but heads", r#"{"deit": "all but 1"}"#],
        ),
        (
            Arc::new(SegmentTask::new(
                tiny_unet(UnetKind::ResidualEncoder),
                [16, 16],
            )),
            vec!["encoder", r#"{"encoder": "all but 1"}"#, "decoder"],
        ),
        (
            Arc::new(tiny_video_text(parts, 3)),
            vec![
                "vision_model",
                "text_model",
                "decoder",
                "vision_model, text_model, decoder",
                "all but heads",
            ],
        ),
    ]
}

fn started(device: &Device, config: &StepConfig, samples: usize, split: support::Split) -> Step {
    let mut step = support::step(device, config, samples, split);
    let fill = config.task.weights(2).unwrap();
    step.set_weights(device, fill).unwrap();
    step
}

/// Every trained gradient and, after an update without clipping, every weight is that of the step in which all is trained; frozen
/// weights are those of before.
#[test]
fn gradients_of_what_is_trained_are_those_of_the_whole_step() {
    let device = on_cpu(2);
    let split = support::Split {
        batch_size: 3,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    for (task, freezes) in cases() {
        let batch = task.random_batch(7, 3);
        let mut config = StepConfig::new(Arc::clone(&task));
        config.optimizer.clip_norm = None;
        let rates = vec![1e-3; config.num_rates()];
        let scalars = StepScalars {
            step: 1,
            rates: &rates,
            loss_scale: 1.0,
        };
        let mut whole = started(&device, &config, 7, split);
        whole.run(&device, &batch, &scalars).unwrap();
        for freeze in freezes {
            config.frozen = frozen(&task, freeze);
            let mut step = started(&device, &config, 7, split);
            let before = step.named_weights().unwrap();
            step.run(&device, &batch, &scalars).unwrap();
            assert!(step.arena_bytes() < whole.arena_bytes(), "{freeze}");
            for (one, expected) in step.parameters().iter().zip(whole.parameters()) {
                let name = &one.name;
                let is_frozen = config.frozen.contains(name);
                assert!(one.trainable || is_frozen || !expected.trainable, "{name}");
                let gradient = step.gradient(one).unwrap();
                assert_eq!(gradient.is_some(), one.trainable, "{freeze}: {name}");
                let weight = step.weight(one).unwrap();
                if !one.trainable {
                    assert!(*weight == before[name][..], "{freeze}: {name} moved");
                    continue;
                }
                let expected_gradient = whole.gradient(expected).unwrap().unwrap();
                let pairs = gradient.as_ref().unwrap().iter().zip(&*expected_gradient);
                // Positions beside a frozen table are added up in another order.
                let is_summed_otherwise = freeze.ends_with("token_embedding");
                for (found, expected) in pairs {
                    let slack = if is_summed_otherwise { 1e-6 } else { 0.0 };
                    assert!((found - expected).abs() <= slack, "{freeze}: {name}");
                }
                if !is_summed_otherwise {
                    assert!(
                        *weight == *whole.weight(expected).unwrap(),
                        "{freeze}: {name}"
                    );
                }
            }
        }
    }
}

/// The norm that clips is that of what is trained.
#[test]
fn the_gradient_norm_is_that_of_what_is_trained() {
    let device = on_cpu(2);
    let (_, task) = clip();
    let batch = task.random_batch(5, 1);
    let split = support::Split {
        batch_size: 5,
        kept: 0,
        recompute: Recompute::None,
    };
    let mut config = StepConfig::new(Arc::clone(&task));
    config.frozen = frozen(&task, "vision_model");
    let mut step = started(&device, &config, 5, split);
    let scalars = StepScalars {
        step: 1,
        rates: &[0.0, 0.0],
        loss_scale: 1.0,
    };
    let report = step.run(&device, &batch, &scalars).unwrap();
    let parameters = step.parameters().iter();
    let gradients = parameters.filter_map(|one| step.gradient(one).unwrap());
    let square = |gradient: &[f32]| gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
    let norm = gradients
        .map(|gradient| square(&gradient))
        .sum::<f64>()
        .sqrt();
    let found = f64::from(report.gradient_norm as f32);
    assert!((found - norm).abs() <= 1e-5 * norm, "{found} {norm}");
    assert!(
        step.optimizer_state()
            .all(|(one, _, _)| !one.name.starts_with("vision_model."))
    );
}

fn written(task: &Arc<dyn Task>, freeze: &str, copies: Copies) -> Graph {
    let mut config = StepConfig::new(Arc::clone(task));
    config.frozen = frozen(task, freeze);
    let shape = StepShape {
        batch_size: 4,
        gradient_accumulation: 3,
        copies,
    };
    write_step(&config, &shape)
}

fn policies(graph: &Graph) -> Vec<RecomputePolicy> {
    let blocks = num_trained_blocks(graph);
    let uniform = |recompute| RecomputePolicy::uniform(recompute, blocks);
    let by_two = RecomputePolicy {
        group: 2,
        ..uniform(Recompute::Blocks)
    };
    let mut all: Vec<_> = [Recompute::None, Recompute::Cheap, Recompute::Blocks]
        .map(uniform)
        .into();
    all.push(by_two);
    all
}

fn in_blocks<'n>(graph: &Graph, nodes: &[&'n Node], prefix: &str) -> Vec<&'n Node> {
    let is_of = |node: &&&Node| {
        node.block
            .is_some_and(|BlockId(block)| graph.blocks()[block].starts_with(prefix))
    };
    nodes.iter().filter(is_of).copied().collect()
}

/// What a slot keeps of blocks whose name begins so.
fn kept_bytes(rewritten: &Rewritten, prefix: &str) -> u64 {
    let graph = &rewritten.graph;
    let forward: Vec<&Node> = rewritten.forward.iter().collect();
    let written: HashSet<_> = in_blocks(graph, &forward, prefix)
        .into_iter()
        .flat_map(|node| &node.outputs)
        .map(|output| graph.value(output.value).storage)
        .collect();
    let kept = rewritten.kept.iter().filter(|kept| written.contains(kept));
    kept.map(|&storage| graph.storage(storage).bytes()).sum()
}

/// A frozen tower runs forward once: no backward nodes, one row per sample kept, whatever is recomputed elsewhere.
#[test]
fn a_frozen_tower_has_no_backward_pass_and_keeps_its_output_alone() {
    let (model, task) = clip();
    let graph = written(&task, "vision_model", Copies::Resident);
    let backward: Vec<&Node> = graph
        .nodes()
        .iter()
        .filter(|node| node.section == Section::Backward)
        .collect();
    assert!(in_blocks(&graph, &backward, "vision").is_empty());
    assert!(!in_blocks(&graph, &backward, "text").is_empty());
    let whole = written(&task, "none", Copies::Resident);
    assert_eq!(num_trained_blocks(&whole), whole.blocks().len());
    assert_eq!(num_trained_blocks(&graph), model.text.num_layers);
    let of_whole: Vec<&Node> = whole
        .nodes()
        .iter()
        .filter(|node| node.section == Section::Backward)
        .collect();
    let of_tower = in_blocks(&whole, &of_whole, "vision").len();
    assert!(of_tower > 0 && backward.len() + of_tower <= of_whole.len());
    for policy in policies(&graph) {
        let rewritten = rewrite(&graph, &policy);
        let backward: Vec<&Node> = rewritten.backward.iter().collect();
        assert!(
            in_blocks(&rewritten.graph, &backward, "vision").is_empty(),
            "{policy:?}"
        );
        // The normed class token goes into the projection; its statistics and what the norm reads stay behind.
        let row = model.vision.hidden_size as u64 * 4;
        let kept = kept_bytes(&rewritten, "vision");
        assert!(kept <= 4 * row, "{policy:?}: {kept}");
    }
}

/// With the projection frozen as well, its features are all that is read: a micro-batch without a slot runs it once.
#[test]
fn what_only_the_features_need_is_not_run_twice() {
    let (_, task) = clip();
    let graph = written(&task, WHOLE_TOWER, Copies::Resident);
    for policy in policies(&graph) {
        let rewritten = rewrite(&graph, &policy);
        let vision = |stage| in_blocks(&rewritten.graph, &rewritten.nodes(stage), "vision").len();
        assert!(vision(Stage::FirstPass) > 0 && vision(Stage::KeptForward) > 0);
        // The label head reads image features, so it is not left out where there is one.
        assert!(vision(Stage::ForwardBackward) > 0);
        assert_eq!(kept_bytes(&rewritten, "vision"), 0);
    }
    let unlabelled: Arc<dyn Task> = Arc::new(ClipTask::new(tiny(Activation::Gelu), None));
    let graph = written(&unlabelled, WHOLE_TOWER, Copies::Resident);
    let rewritten = rewrite(&graph, &policies(&graph)[0]);
    let nodes = rewritten.nodes(Stage::ForwardBackward);
    assert!(in_blocks(&rewritten.graph, &nodes, "vision").is_empty());
    assert!(!in_blocks(&rewritten.graph, &nodes, "text").is_empty());
}

/// Below the first trained block nothing is kept or recomputed; what enters it is kept once.
#[test]
fn frozen_blocks_below_trained_ones_are_neither_kept_nor_recomputed() {
    let (model, task) = clip();
    let target = CpuTarget::new(1).with_baseline(0);
    for copies in [Copies::Resident, Copies::PerUse] {
        let graph = written(&task, r#"{"text_model": "all but 1"}"#, copies);
        let whole = written(&task, "none", copies);
        let last = model.text.num_layers - 1;
        let cold = |node: &&Node| {
            let block = node.block.map(|BlockId(block)| &graph.blocks()[block]);
            block
                .is_some_and(|block| block.starts_with("text.") && *block != format!("text.{last}"))
        };
        for (policy, of_whole) in policies(&graph).into_iter().zip(policies(&whole)) {
            let rewritten = rewrite(&graph, &policy);
            assert_eq!(
                rewritten.backward.iter().filter(cold).count(),
                0,
                "{policy:?}"
            );
            let entering = (4 * model.text.max_positions * model.text.hidden_size * 4) as u64;
            for block in 0..last {
                let kept = kept_bytes(&rewritten, &format!("text.{block}"));
                let expected = if block + 1 == last { entering } else { 0 };
                assert_eq!(kept, expected, "{policy:?}: block {block}");
            }
            let [arena, whole_arena] =
                [(&graph, &policy), (&whole, &of_whole)].map(|(graph, policy)| {
                    lifetimes_of(graph, policy, &target)
                        .pack()
                        .arena_bytes(3, 3)
                });
            assert!(arena < whole_arena, "{policy:?}: {arena} {whole_arena}");
        }
    }
}

fn setup(device: &Device, task: &Arc<dyn Task>, freeze: &str, seed: u64) -> Setup {
    let run = RunConfig {
        model: "small".to_owned(),
        seed,
        ..RunConfig::default()
    };
    let mut setup = Setup::without_data(&run, device).unwrap();
    setup.step.task = Arc::clone(task);
    setup.step.frozen = frozen(task, freeze);
    setup
}

fn exact(device: &Device, setup: &Setup, batch: &Batch, split: Split) -> Result<(), TestCaseError> {
    let task = Arc::clone(&setup.step.task);
    let certificate = verify(setup, device, batch, &[split], task, |_| ()).unwrap();
    prop_assert!(certificate.exact, "{:?}", certificate);
    Ok(())
}

proptest! {
    #![proptest_config(crate::support::same_cases(24))]

    #[test]
    fn any_split_is_exact_whatever_is_frozen(
        case in 0usize..4,
        freeze in 0usize..16,
        samples in 2usize..14,
        batch_size in 1usize..14,
        kept in 0usize..14,
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Cheap, Recompute::Blocks]),
        seed in any::<u64>(),
    ) {
        let device = on_cpu(2);
        let (task, freezes) = cases().swap_remove(case);
        let freeze = freezes[freeze % freezes.len()];
        let setup = setup(&device, &task, freeze, seed);
        let batch_size = batch_size.min(samples);
        let split = Split {
            batch_size,
            recompute,
            kept_micro_batches: kept.min(samples.div_ceil(batch_size)),
        };
        exact(&device, &setup, &task.random_batch(samples, seed), split)?;
    }
}
