//! Segmentation, however its batch is split: every kind of U-Net, every loss, pixels and whole pictures that do not count.

use std::sync::Arc;

use holdall_data::segmentation::IGNORED;
use holdall_device::Device;
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::normalize_pixels::PixelDepth;
use holdall_models::unet::config::{Down, Norm, PictureInput, UnetConfig, UnetKind, Up};
use holdall_plan::Recompute;
use holdall_train::config::{DiceOver, RunConfig, TaskName};
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{Split, usual_splits, verify, verify_plain_accumulation};
use holdall_train::tasks::segment::{LossTerm, SegmentTask, TermKind, batch_of};
use proptest::prelude::*;

use crate::support::{self, on_cpu, step, tiny_unet};

pub fn setup(device: &Device, task: &SegmentTask, seed: u64) -> Setup {
    let run = RunConfig {
        task: Some(TaskName::Segment),
        model: "unet-demo".to_owned(),
        seed,
        ..RunConfig::default()
    };
    let mut setup = Setup::without_data(&run, device).unwrap();
    setup.step.task = Arc::new(task.clone());
    setup
}

/// All losses there are.
pub fn all_terms() -> Vec<LossTerm> {
    let term = |name, weight, kind| LossTerm { name, weight, kind };
    let overlap = |alpha, beta, over| TermKind::Overlap { alpha, beta, over };
    vec![
        term("bce", 1.0, TermKind::Pixels { focal: None }),
        term("focal", 0.5, TermKind::Pixels { focal: Some(2.0) }),
        term("dice", 1.0, overlap(0.5, 0.5, DiceOver::Batch)),
        term("tversky", 0.25, overlap(0.3, 0.7, DiceOver::Batch)),
        term("dice of images", 0.75, overlap(0.5, 0.5, DiceOver::Image)),
    ]
}

/// Dice over the batch is where plain accumulation goes wrong, and the certificate says so.
#[test]
fn usual_splits_are_exact_and_plain_accumulation_is_found_out() {
    let device = on_cpu(2);
    for kind in [UnetKind::Plain, UnetKind::ResidualEncoder] {
        let mut task = SegmentTask::new(tiny_unet(kind), [16, 16]);
        task.terms = all_terms();
        task.class_weights = vec![0.5, 2.0];
        let batch = task.random_batch(7, 3);
        let setup = setup(&device, &task, 1);
        let exact: Arc<dyn Task> = Arc::new(task.clone());
        let splits = usual_splits(7);
        let certificate = verify(&setup, &device, &batch, &splits, exact, |_| ()).unwrap();
        assert!(certificate.exact, "{kind:?}: {certificate:?}");

        let plain = verify_plain_accumulation(&setup, &device, &batch, &splits, |_| ());
        let certificate = plain.unwrap();
        assert!(!certificate.exact, "{kind:?}");
        assert!(certificate.max_relative_error > 1e-4, "{certificate:?}");
        // One pass over all is right even so.
        let whole = certificate
            .splits
            .iter()
            .filter(|one| one.split.batch_size == 7);
        assert!(whole.clone().count() > 0);
        for result in whole {
            assert!(result.max_relative_error < 1e-5, "{result:?}");
        }
    }
}

/// A batch without a pixel that counts teaches nothing, and is no division by zero.
#[test]
fn pixels_that_do_not_count_have_no_gradient() {
    let device = on_cpu(2);
    let mut task = SegmentTask::new(tiny_unet(UnetKind::Plain), [16, 16]);
    task.terms = all_terms();
    let pixels = vec![100; 3 * task.row.pixels().len()];
    let batch = batch_of(&task, &pixels, &vec![IGNORED; 3 * 256]);
    let split = support::Split {
        batch_size: 2,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    let mut step = step(&device, &StepConfig::new(Arc::new(task.clone())), 3, split);
    step.set_weights(&device, task.weights(1).unwrap()).unwrap();
    step.gradients(&device, &batch, 1.0).unwrap();
    for parameter in step.parameters() {
        let gradient = step.gradient(parameter).unwrap().unwrap();
        assert!(
            gradient.iter().all(|&value| value == 0.0),
            "{}",
            parameter.name
        );
    }
    assert!(step.losses().iter().all(|loss| loss.sum.abs() < 1e-6));
}

/// With recompute `cheap`, what a micro-batch keeps is raw outputs of convolutions, and statistics that are tiny.
#[test]
fn only_raw_convolution_outputs_are_kept() {
    use holdall_graph::{Copies, Op, Role, Section};
    use holdall_plan::{RecomputePolicy, StepShape, rewrite};
    use holdall_train::engine::step_graph::write_step;
    for kind in [UnetKind::Plain, UnetKind::ResidualEncoder] {
        let config = StepConfig::new(Arc::new(SegmentTask::new(tiny_unet(kind), [16, 16])));
        let shape = StepShape {
            batch_size: 2,
            gradient_accumulation: 2,
            copies: Copies::default(),
        };
        let graph = write_step(&config, &shape);
        let policy = RecomputePolicy::uniform(Recompute::Cheap, graph.blocks().len());
        let rewritten = rewrite(&graph, &policy);
        let mut num_convolutions = 0;
        for &storage in &rewritten.kept {
            assert_eq!(graph.storage(storage).role, Role::Activation);
            let writes = |op: &Op| matches!(op, Op::Conv2d(_));
            let mut nodes = graph.nodes().iter();
            let writer = nodes.find(|node| {
                let mut outputs = node.outputs.iter();
                node.section == Section::Forward
                    && outputs.any(|output| graph.value(output.value).storage == storage)
            });
            let is_convolution = writer.is_some_and(|node| writes(&node.op));
            num_convolutions += usize::from(is_convolution);
            let name = &graph.storage(storage).name;
            let is_tiny = graph.storage(storage).num_elements <= 2 * 64;
            assert!(is_convolution || is_tiny, "{kind:?} keeps {name}");
        }
        assert!(num_convolutions > 5, "{kind:?}: {num_convolutions}");
    }
}

fn any_unet() -> impl Strategy<Value = UnetConfig> {
    let kinds = prop::sample::select(vec![UnetKind::Plain, UnetKind::ResidualEncoder]);
    let norms = prop::sample::select(vec![Norm::Instance, Norm::Group { groups: 2 }]);
    let activations = vec![Activation::Relu, Activation::LeakyRelu, Activation::Gelu];
    let activations = prop::sample::select(activations);
    let ups = prop::sample::select(vec![Up::Transposed, Up::Nearest, Up::Bilinear]);
    let downs = prop::sample::select(vec![Down::MaxPool, Down::Strided]);
    let depths = prop::sample::select(vec![PixelDepth::Eight, PixelDepth::Sixteen]);
    let shapes = (2usize..4, 1usize..3, 1usize..3, any::<bool>());
    let inputs = (1usize..5, depths, 1usize..4);
    ((kinds, norms, activations), (ups, downs), shapes, inputs).prop_map(
        |((kind, norm, activation), (up, down), shape, (channels, depth, classes))| {
            let (stages, blocks, decoder_blocks, deep_supervision) = shape;
            UnetConfig {
                kind,
                norm,
                activation,
                up,
                down,
                input: PictureInput::of(channels, depth),
                channels: [4, 6, 8][..stages].to_vec(),
                encoder_blocks: vec![blocks; stages],
                decoder_blocks,
                deep_supervision,
                classes: support::names(classes),
                ..tiny_unet(kind)
            }
        },
    )
}

proptest! {
    #![proptest_config(support::same_cases(200))]

    #[test]
    fn any_split_is_exact(
        samples in 2usize..7,
        batch_size in 1usize..7,
        kept in 0usize..3,
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Cheap, Recompute::Blocks]),
        model in any_unet(),
        chosen in prop::collection::vec(any::<bool>(), 5),
        seed in any::<u64>(),
    ) {
        let device = on_cpu(1);
        let mut task = SegmentTask::new(model, [8, 12]);
        let mut terms: Vec<LossTerm> = all_terms();
        let mut chosen = chosen.into_iter();
        terms.retain(|_| chosen.next() == Some(true));
        if !terms.is_empty() {
            task.terms = terms;
        }
        for (value, weight) in task.class_weights.iter_mut().enumerate() {
            *weight = 0.5 + value as f32;
        }
        let batch = task.random_batch(samples, seed);
        let setup = setup(&device, &task, seed);
        let batch_size = batch_size.min(samples);
        let kept_micro_batches = kept.min(samples.div_ceil(batch_size));
        let split = Split { batch_size, recompute, kept_micro_batches };
        let certificate = verify(&setup, &device, &batch, &[split], Arc::new(task), |_| ()).unwrap();
        prop_assert!(certificate.max_relative_error <= 1e-5, "{:?}", certificate);
        prop_assert!(certificate.loss_difference <= 1e-5, "{:?}", certificate);
    }
}
