//! Steps for tests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdall_device::cpu::Cpu;
use holdall_device::{Device, HostRow};
use holdall_graph::DType;
use holdall_models::clip::init;
use holdall_models::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_plan::{Recompute, Request, StepShape, plan};
use holdall_train::batch::{Batch, IGNORED, Values};
use holdall_train::step::Step;
use holdall_train::step_graph::{StepConfig, write_step};
use holdall_train::tasks::clip::{ClipTask, Encoder, batch_of};

pub fn on_cpu(num_threads: usize) -> Device {
    Device::on_cpu(Cpu::new(Some(num_threads)))
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A plan's open choices, closed.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    pub batch_size: usize,
    pub kept: usize,
    pub recompute: Recompute,
}

pub fn step(device: &Device, config: &StepConfig, effective: usize, split: Split) -> Step {
    let request = Request {
        effective_batch: Some(effective),
        batch_size: Some(split.batch_size),
        recompute: Some(split.recompute),
        kept: Some(split.kept),
        ..Request::default()
    };
    let target = device.target(config.arithmetic, 0).unwrap();
    let build = |shape: &StepShape| write_step(config, shape);
    let plan = plan(&request, &build, &*target).unwrap();
    Step::new(
        device,
        config.clone(),
        plan.step,
        plan.chosen.choice.batch_size,
    )
    .unwrap()
}

/// A step of CLIP, everything trained.
pub fn config_of(task: &ClipTask) -> StepConfig {
    StepConfig::new(Arc::new(task.clone()))
}

/// Features of the last batch: pictures, captions; rows as in the batch.
pub fn features(step: &Step) -> [Vec<f32>; 2] {
    ["image features", "text features"].map(|name| step.endpoint(name).unwrap().into_owned())
}

pub fn draw_weights(device: &Device, step: &mut Step, config: &ClipConfig, seed: u64) {
    step.set_weights(device, |name, values| {
        init::fill(config, seed, name, values)
    })
    .unwrap();
}

pub fn read_weights(device: &Device, step: &mut Step, folder: &ModelFolder) {
    let head = folder.read_head().unwrap();
    step.set_weights(device, |name, values| {
        match (name, &head) {
            ("head.weight", Some(head)) => values.copy_from_slice(&head.weight),
            ("head.bias", Some(head)) => values.copy_from_slice(&head.bias),
            _ => folder.read_f32(name, values)?,
        }
        Ok::<(), holdall_models::error::ModelError>(())
    })
    .unwrap();
}

/// Tensors of a safetensors file, as f64.
pub fn read_tensors(path: &Path) -> HashMap<String, (Vec<usize>, Vec<f64>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |tensor: &safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        let data = tensor.data();
        match tensor.dtype() {
            safetensors::Dtype::F32 => data
                .chunks(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            safetensors::Dtype::F64 => data
                .chunks(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            safetensors::Dtype::I64 => data
                .chunks(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            other => panic!("{other:?} in a fixture"),
        }
    };
    file.tensors()
        .iter()
        .map(|(name, tensor)| (name.clone(), (tensor.shape().to_vec(), numbers(tensor))))
        .collect()
}

/// The fixture's batch: channels first on disk, last in a batch.
pub fn golden_batch(
    config: &ClipConfig,
    golden: &HashMap<String, (Vec<usize>, Vec<f64>)>,
) -> (ClipTask, Batch) {
    let (shape, pixels) = &golden["pixel_values"];
    let [samples, channels, height, width] = shape[..] else {
        panic!("pixel_values {shape:?}");
    };
    let mut floats = Vec::with_capacity(pixels.len());
    for sample in 0..samples {
        for place in 0..height * width {
            for channel in 0..channels {
                floats.push(pixels[(sample * channels + channel) * height * width + place] as f32);
            }
        }
    }
    let whole = |name: &str| {
        golden[name]
            .1
            .iter()
            .map(|&id| id as i64)
            .collect::<Vec<_>>()
    };
    let tokens = golden["input_ids"].0[1];
    let labels = golden["grad.head.bias"].1.len();
    let mut task = ClipTask::new(config.clone(), Some(labels));
    task.pixels = DType::F32;
    task.num_tokens = tokens;
    let batch = batch_of(
        &task,
        Values::Floats(floats),
        whole("input_ids"),
        whole("labels"),
    );
    (task, batch)
}

/// Features of all pictures and captions of a batch, and the logits, through the evaluation programs.
pub fn evaluated(
    task: &ClipTask,
    step: &mut Step,
    device: &Device,
    batch: &Batch,
) -> [Vec<f32>; 3] {
    let mut encoder = Encoder::new(task, step.forward(device));
    let (size, tokens) = (encoder.batch(), encoder.num_tokens());
    let pixels = pixels(batch);
    let each = pixels.len() / batch.num_samples;
    let [mut pictures, mut captions, mut logits] = [Vec::new(), Vec::new(), Vec::new()];
    for chosen in pixels.chunks(size * each) {
        let rows: Vec<HostRow> = chosen.chunks(each).map(HostRow::from).collect();
        let encoded = encoder.pictures(&rows).unwrap();
        pictures.extend_from_slice(&encoded.features);
        logits.extend_from_slice(&encoded.logits.unwrap());
    }
    for chosen in batch.read_indices("ids").chunks(size * tokens) {
        captions.extend_from_slice(&encoder.captions(chosen).unwrap());
    }
    [pictures, captions, logits]
}

/// The pictures of a random batch.
pub fn pixels(batch: &Batch) -> &[u8] {
    let found = batch.columns.iter().find(|one| one.endpoint == "pixels");
    match found.map(|one| &one.values) {
        Some(Values::Bytes(pixels)) => pixels,
        other => panic!("random batches are bytes: {other:?}"),
    }
}

/// Takes the label from every third sample: the label loss has a count of its own.
pub fn without_some_labels(task: &ClipTask, batch: Batch) -> Batch {
    if task.num_labels.is_none() {
        return batch;
    }
    let mut labels = batch.read_indices("labels").to_vec();
    labels
        .iter_mut()
        .step_by(3)
        .for_each(|label| *label = IGNORED);
    let ids = batch.read_indices("ids").to_vec();
    batch_of(task, Values::Bytes(pixels(&batch).to_vec()), ids, labels)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Errors of gradients as the design defines them: |g - r| / max(|r|, 1e-3 |r_all| / sqrt(P)).
pub fn gradient_errors(pairs: &[(String, Vec<f64>, Vec<f64>)]) -> Vec<(String, f64)> {
    let all = norm(
        pairs
            .iter()
            .flat_map(|(_, _, reference)| reference.iter().copied()),
    );
    let floor = 1e-3 * all / (pairs.len() as f64).sqrt();
    pairs
        .iter()
        .map(|(name, found, reference)| {
            let difference = norm(found.iter().zip(reference).map(|(a, b)| a - b));
            let scale = norm(reference.iter().copied()).max(floor);
            (name.clone(), difference / scale)
        })
        .collect()
}
