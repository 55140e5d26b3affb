//! Forward programs of video-text: in a step's arena and in one of their own, and no trace in the gradients.

use std::sync::Arc;

use holdall_device::{Device, HostRow};
use holdall_models::video_text::config::{DecoderConfig, Pooling, VideoTextConfig, VisionConfig};
use holdall_plan::Recompute;
use holdall_train::batch::Batch;
use holdall_train::forward::{Forward, ForwardModel};
use holdall_train::generation::{Generated, Generation, Method};
use holdall_train::step::Step;
use holdall_train::step_graph::StepConfig;
use holdall_train::task::Task;
use holdall_train::tasks::video_text::{ClipReader, VideoTextTask};

use crate::support::{Split, on_cpu, pixels, step};

const SPLIT: Split = Split {
    batch_size: 4,
    kept: 1,
    recompute: Recompute::Cheap,
};
const SAMPLES: usize = 10;

fn tiny() -> VideoTextTask {
    let demo = VideoTextConfig::preset("video-text-demo").unwrap();
    let model = VideoTextConfig {
        vision: VisionConfig {
            image_size: 32,
            num_layers: 1,
            ..demo.vision
        },
        num_frames: 2,
        pooling: Pooling::Mean,
        decoder: demo.decoder.map(|decoder| DecoderConfig {
            max_positions: 7,
            ..decoder
        }),
        ..demo
    };
    let mut task = VideoTextTask::new(model, Vec::new());
    task.num_text_tokens = 9;
    task.generation = Generation {
        method: Method::Beam,
        beams: 3,
        no_repeat_ngram: 2,
        ..Generation::default()
    };
    task
}

fn gradients(step: &mut Step, device: &Device, batch: &Batch) -> Vec<Vec<f32>> {
    step.gradients(device, batch, 1.0).unwrap();
    let parameters = step.parameters().iter();
    parameters
        .filter_map(|parameter| Some(step.gradient(parameter).unwrap()?.to_vec()))
        .collect()
}

/// What the programs make of a batch: features, the sum over all captions' tokens, and captions.
fn read(
    task: &VideoTextTask,
    forward: Forward<'_>,
    batch: &Batch,
) -> (Vec<f32>, f64, Vec<Generated>) {
    let mut reader = ClipReader::new(task, forward);
    let (at_a_time, tokens) = (reader.batch(), task.num_caption_tokens);
    let rows: Vec<HostRow> = pixels(batch)
        .chunks(task.picture_bytes())
        .map(HostRow::from)
        .collect();
    let (ids, labels) = (
        batch.read_indices("caption ids"),
        batch.read_indices("caption labels"),
    );
    let (mut features, mut sum, mut captions) = (Vec::new(), 0.0, Vec::new());
    for first in (0..rows.len()).step_by(at_a_time) {
        let clips = first..rows.len().min(first + at_a_time);
        let encoded = reader.frames(&rows[clips.clone()], &[]).unwrap();
        features.extend_from_slice(&encoded.features);
        let of_clips = clips.start * tokens..clips.end * tokens;
        let mut said = labels[of_clips.clone()].to_vec();
        said.resize(at_a_time * tokens, -1);
        sum += reader.caption_sum(&ids[of_clips], &said).unwrap();
        let numbers: Vec<u64> = clips.map(|clip| clip as u64).collect();
        captions.extend(reader.captions(&numbers).unwrap());
    }
    (features, sum, captions)
}

#[test]
fn captions_are_the_same_in_any_arena_and_gradients_do_not_notice() {
    let device = on_cpu(2);
    let task = tiny();
    let batch = task.random_batch(SAMPLES, 4);
    let mut own = ForwardModel::new(&device, &task, Some(3), None, 0).unwrap();
    let mut fill = task.weights(3).unwrap();
    // Larger than usual, so that captions are not one token over and over.
    let mut large = |name: &str, values: &mut [f32]| {
        fill(name, values)?;
        if name.starts_with("decoder.") || name.starts_with("lm_head") {
            values.iter_mut().for_each(|value| *value *= 8.0);
        }
        Ok::<(), holdall_train::TrainError>(())
    };
    own.set_weights(&device, &mut large).unwrap();
    let (features, sum, captions) = read(&task, own.forward(&device), &batch);
    let mut seen: Vec<&[i64]> = captions.iter().map(|one| one.tokens.as_slice()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 3, "{seen:?}");
    for evaluation_batch in [None, Some(3), Some(16)] {
        let mut config = StepConfig::new(Arc::new(task.clone()));
        config.evaluation_batch = evaluation_batch;
        let mut step = step(&device, &config, SAMPLES, SPLIT);
        step.set_weights(&device, &mut large).unwrap();
        let before = gradients(&mut step, &device, &batch);
        let losses = step.gradients(&device, &batch, 1.0).unwrap().to_vec();
        let found = read(&task, step.forward(&device), &batch);
        let errors = found.0.iter().zip(&features).map(|(a, b)| (a - b).abs());
        assert!(errors.fold(0.0, f32::max) < 1e-5);
        for (found, expected) in found.2.iter().zip(&captions) {
            assert_eq!(found.tokens, expected.tokens);
        }
        // Rounding aside: sums over other groups of clips.
        for other in [sum, losses[1].mean() * losses[1].count] {
            assert!(
                (found.1 - other).abs() < 1e-4 * other,
                "{} {other}",
                found.1
            );
        }
        assert_eq!(gradients(&mut step, &device, &batch), before);
    }
}
