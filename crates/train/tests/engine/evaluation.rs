//! Evaluation's programs: the same features as the step's, and no trace in the gradients.

use holdall_device::Device;
use holdall_models::config::ClipConfig;
use holdall_plan::Recompute;
use holdall_train::engine::batch::{Batch, Values};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::{ClipTask, batch_of};

use crate::support::{Split, config_of, draw_weights, evaluated, features, on_cpu, pixels, step};

const SPLIT: Split = Split {
    batch_size: 4,
    kept: 1,
    recompute: Recompute::Cheap,
};

fn small() -> ClipTask {
    let mut task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(5));
    task.num_tokens = 12;
    task
}

fn started(device: &Device, task: &ClipTask, config: &StepConfig) -> (Step, Batch) {
    let mut step = step(device, config, 10, SPLIT);
    draw_weights(device, &mut step, &task.model, 3);
    (step, task.random_batch(10, 4))
}

fn gradients(step: &mut Step, device: &Device, batch: &Batch) -> Vec<Vec<f32>> {
    step.gradients(device, batch, 1.0).unwrap();
    let parameters = step.parameters().iter();
    parameters
        .filter_map(|parameter| Some(step.gradient(parameter).unwrap()?.to_vec()))
        .collect()
}

#[test]
fn features_have_the_bits_of_the_step_and_gradients_do_not_notice() {
    let device = on_cpu(2);
    for evaluation_batch in [None, Some(3), Some(16)] {
        let task = small();
        let mut config = config_of(&task);
        config.evaluation_batch = evaluation_batch;
        let (mut step, batch) = started(&device, &task, &config);
        let before = gradients(&mut step, &device, &batch);
        let rows = batch.num_samples * task.model.projection_dim;
        let expected = features(&step).map(|features| features[..rows].to_vec());
        let [pictures, captions, logits] = evaluated(&task, &mut step, &device, &batch);
        assert_eq!([&pictures, &captions], [&expected[0], &expected[1]]);
        let weights = step.named_weights().unwrap();
        let (weight, bias) = (&weights["head.weight"], &weights["head.bias"]);
        let width = task.model.projection_dim;
        for (sample, feature) in pictures.chunks(width).enumerate() {
            for (label, row) in weight.chunks(width).enumerate() {
                let products = feature.iter().zip(row).map(|(a, b)| f64::from(a * b));
                let by_hand = products.sum::<f64>() + f64::from(bias[label]);
                let found = f64::from(logits[sample * 5 + label]);
                assert!((found - by_hand).abs() < 1e-5, "{found} {by_hand}");
            }
        }
        assert_eq!(gradients(&mut step, &device, &batch), before);
    }
}

#[test]
fn class_weights_are_those_of_a_weighted_mean() {
    let device = on_cpu(2);
    let mut task = small();
    task.label_smoothing = 0.1;
    let (mut step, batch) = started(&device, &task, &config_of(&task));
    // Each sample's loss by itself, then the mean that the weights ask for.
    let pixels = pixels(&batch);
    let (ids, labels) = (batch.read_indices("ids"), batch.read_indices("labels"));
    let class_weights = vec![0.5, 2.0, 1.0, 3.0, 0.25];
    let each = pixels.len() / batch.num_samples;
    let (mut sum, mut count) = (0.0, 0.0);
    for sample in 0..batch.num_samples {
        let alone = batch_of(
            &task,
            Values::Bytes(pixels[sample * each..][..each].to_vec()),
            ids[sample * task.num_tokens..][..task.num_tokens].to_vec(),
            vec![labels[sample]],
        );
        let label = step.gradients(&device, &alone, 1.0).unwrap()[1];
        let weight = f64::from(class_weights[labels[sample] as usize]);
        sum += weight * label.mean();
        count += weight;
    }
    task.class_weights = class_weights;
    let (mut weighted, batch) = started(&device, &task, &config_of(&task));
    let label = weighted.gradients(&device, &batch, 1.0).unwrap()[1];
    assert!((label.count - count).abs() < 1e-9);
    assert!(
        (label.mean() - sum / count).abs() < 1e-5,
        "{} {}",
        label.mean(),
        sum / count
    );
}

#[test]
fn a_pattern_has_a_learning_rate_of_its_own() {
    let device = on_cpu(2);
    let task = small();
    let mut config = config_of(&task);
    config.rate_patterns = vec!["vision_model.*.layers.0.*".to_owned(), "*.bias".to_owned()];
    let (mut step, batch) = started(&device, &task, &config);
    let before = step.named_weights().unwrap();
    let rates = [1e-3, 1e-3, 0.0, 1e-3];
    assert_eq!(rates.len(), config.num_rates());
    let scalars = StepScalars {
        step: 1,
        rates: &rates,
        loss_scale: 1.0,
    };
    step.run(&device, &batch, &scalars).unwrap();
    for (name, after) in step.named_weights().unwrap() {
        // Key biases have no gradient, and what is zero stays zero.
        if name.ends_with("k_proj.bias") {
            continue;
        }
        let held = name.starts_with("vision_model.encoder.layers.0.");
        assert_eq!(after == before[&name], held, "{name}");
    }
}
