//! A small video-text model, and what its forward programs make of a batch.

use holdall_device::HostRow;
use holdall_models::video_text::config::{DecoderConfig, Pooling, VideoTextConfig, VisionConfig};
use holdall_train::TrainError;
use holdall_train::engine::batch::Batch;
use holdall_train::engine::forward::Forward;
use holdall_train::engine::task::Task;
use holdall_train::tasks::generation::{Generated, Generation, Method};
use holdall_train::tasks::video_text::{ClipReader, VideoTextTask};

use crate::support::pixels;

pub fn tiny() -> VideoTextTask {
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

/// Weights of the decoder that are larger than usual, so that captions are not one token over and over.
pub fn large_weights(
    task: &VideoTextTask,
) -> impl FnMut(&str, &mut [f32]) -> Result<(), TrainError> {
    let mut fill = task.weights(3).unwrap();
    move |name, values| {
        fill(name, values)?;
        if name.starts_with("decoder.") || name.starts_with("lm_head") {
            values.iter_mut().for_each(|value| *value *= 8.0);
        }
        Ok(())
    }
}

/// What the programs make of a batch: features, the sum over all captions' tokens, and captions.
pub fn read(
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
