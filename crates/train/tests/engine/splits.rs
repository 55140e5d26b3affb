//! However the batch is split, whatever is recomputed or kept: the gradient of the whole batch.

use std::sync::Arc;

use holdall_device::Device;
use holdall_models::config::{Activation, ClipConfig, TextPooling};
use holdall_plan::Recompute;
use holdall_train::config::RunConfig;
use holdall_train::engine::batch::Batch;
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{Split, usual_splits, verify, verify_plain_accumulation};
use holdall_train::tasks::clip::ClipTask;
use proptest::prelude::*;

use crate::support::{self, on_cpu};

/// A model that trains in milliseconds.
pub fn tiny(activation: Activation) -> ClipConfig {
    let mut config = ClipConfig::preset("small").unwrap();
    config.vision.image_size = 16;
    config.vision.hidden_size = 32;
    config.vision.intermediate_size = 64;
    config.vision.num_layers = 2;
    config.vision.activation = activation;
    config.text.hidden_size = 24;
    config.text.intermediate_size = 48;
    config.text.num_layers = 3;
    config.text.num_heads = 3;
    config.text.vocab_size = 40;
    config.text.max_positions = 9;
    config.text.activation = activation;
    config.text.pooling = TextPooling::FirstEos(39);
    config.projection_dim = 16;
    config
}

pub fn setup(
    device: &Device,
    activation: Activation,
    labels: Option<usize>,
    seed: u64,
) -> (Setup, ClipTask) {
    let run = RunConfig {
        model: "small".to_owned(),
        labels,
        seed,
        ..RunConfig::default()
    };
    let mut setup = Setup::without_data(&run, device).unwrap();
    let task = ClipTask::new(tiny(activation), labels);
    setup.step.task = Arc::new(task.clone());
    (setup, task)
}

pub fn batch(task: &ClipTask, samples: usize, seed: u64) -> Batch {
    support::without_some_labels(task, task.random_batch(samples, seed))
}

#[test]
fn usual_splits_of_the_small_preset_are_exact() {
    let device = on_cpu(2);
    for seed in 0..3 {
        let run = RunConfig {
            model: "small".to_owned(),
            labels: Some(12),
            seed,
            ..RunConfig::default()
        };
        let setup = Setup::without_data(&run, &device).unwrap();
        let model = ClipConfig::preset("small").unwrap();
        let batch = batch(&ClipTask::new(model, Some(12)), 13, seed);
        let splits = usual_splits(13);
        let certificate = verify(
            &setup,
            &device,
            &batch,
            &splits,
            Arc::clone(&setup.step.task),
            |_| (),
        )
        .unwrap();
        println!(
            "{}: {:e}",
            certificate.worst_parameter, certificate.max_relative_error
        );
        assert!(certificate.exact, "{certificate:?}");
    }
}

#[test]
fn a_single_sample_has_no_negatives_and_no_gradient_to_disagree_on() {
    let device = on_cpu(2);
    let (setup, task) = setup(&device, Activation::Gelu, Some(3), 4);
    let batch = task.random_batch(1, 4);
    let certificate = verify(
        &setup,
        &device,
        &batch,
        &usual_splits(1),
        Arc::clone(&setup.step.task),
        |_| (),
    )
    .unwrap();
    assert!(certificate.exact, "{certificate:?}");
}

/// Products take the same path whatever the number of rows, so a sample's features do not know their neighbours.
#[test]
fn features_have_the_same_bits_under_every_split() {
    let device = on_cpu(2);
    let model = ClipConfig::preset("small").unwrap();
    let task = ClipTask::new(model.clone(), Some(4));
    let config = support::config_of(&task);
    let batch = task.random_batch(11, 8);
    let mut first: Option<[Vec<u32>; 2]> = None;
    for batch_size in [11, 1, 2, 3, 5, 7] {
        let split = support::Split {
            batch_size,
            kept: 1,
            recompute: Recompute::Cheap,
        };
        let mut step = support::step(&device, &config, 11, split);
        support::draw_weights(&device, &mut step, &model, 6);
        step.gradients(&device, &batch, 1.0).unwrap();
        let bits = support::features(&step).map(|features| {
            let samples = &features[..11 * model.projection_dim];
            samples.iter().map(|value| value.to_bits()).collect()
        });
        let first = first.get_or_insert_with(|| bits.clone());
        assert!(bits == *first, "micro-batches of {batch_size}");
    }
}

/// The order is for devices that add many rows at a time; whoever does not need it computes the same without.
#[test]
fn an_order_of_ids_changes_no_gradient() {
    let device = on_cpu(2);
    let model = tiny(Activation::Gelu);
    let mut task = ClipTask::new(model.clone(), Some(4));
    let batch = task.random_batch(7, 3);
    let split = support::Split {
        batch_size: 4,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    let mut gradients = |sorted_ids: bool| -> Vec<Vec<f32>> {
        task.sorted_ids = sorted_ids;
        let config = support::config_of(&task);
        let mut step = support::step(&device, &config, 7, split);
        support::draw_weights(&device, &mut step, &model, 2);
        step.gradients(&device, &batch, 1.0).unwrap();
        let parameters = step.parameters().iter();
        parameters
            .map(|parameter| step.gradient(parameter).unwrap().unwrap().into_owned())
            .collect()
    };
    assert_eq!(gradients(true), gradients(false));
}

#[test]
fn plain_accumulation_is_found_out() {
    let device = on_cpu(2);
    let (setup, task) = setup(&device, Activation::QuickGelu, Some(5), 1);
    let batch = batch(&task, 12, 1);
    let split = Split {
        batch_size: 4,
        recompute: Recompute::None,
        kept_micro_batches: 0,
    };
    let plain = |split| verify_plain_accumulation(&setup, &device, &batch, &[split], |_| ());
    let certificate = plain(split).unwrap();
    assert!(!certificate.exact);
    assert!(certificate.max_relative_error > 0.01, "{certificate:?}");
    // With one micro-batch there is nothing to lose: it is exact.
    let whole = Split {
        batch_size: 12,
        recompute: Recompute::None,
        kept_micro_batches: 0,
    };
    let certificate = plain(whole).unwrap();
    assert!(certificate.exact, "{certificate:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_is_exact(
        samples in 2usize..24,
        batch_size in 1usize..24,
        kept in 0usize..24,
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Cheap, Recompute::Blocks]),
        activation in prop::sample::select(vec![Activation::QuickGelu, Activation::Gelu]),
        labels in prop::option::of(1usize..9),
        seed in any::<u64>(),
    ) {
        let device = on_cpu(2);
        let (setup, task) = setup(&device, activation, labels, seed);
        let batch = batch(&task, samples, seed);
        let batch_size = batch_size.min(samples);
        let kept_micro_batches = kept.min(samples.div_ceil(batch_size));
        let split = Split { batch_size, recompute, kept_micro_batches };
        let certificate = verify(&setup, &device, &batch, &[split], Arc::new(task), |_| ()).unwrap();
        prop_assert!(certificate.max_relative_error <= certificate.tolerance, "{:?}", certificate);
        prop_assert!(certificate.loss_difference <= certificate.tolerance, "{:?}", certificate);
    }
}
