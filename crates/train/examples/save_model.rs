//! Trains a model folder for a few steps on random data and saves it with the features it computes, for
//! `tests/fixtures/check_saved.py` to compare with `transformers`:
//!
//! ```text
//! cargo run --release -p holdall-train --example save_model -- OUT [MODEL] [SHARD_BYTES]
//! python crates/train/tests/fixtures/check_saved.py OUT
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use holdall_device::{Device, DeviceChoice};
use holdall_graph::DType;
use holdall_models::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::init::Draw;
use holdall_train::config::{Precision, RunConfig};
use holdall_train::engine::batch::Values;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::task::Task;
use holdall_train::planning::plan_race::Choosing;
use holdall_train::planning::setup::Setup;
use holdall_train::tasks::clip::{ClipTask, batch_of, save_weights};
use safetensors::tensor::{Dtype, TensorView};

const SAMPLES: usize = 6;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = PathBuf::from(
        arguments
            .next()
            .ok_or("usage: save_model OUT [MODEL] [SHARD_BYTES]")?,
    );
    let model = arguments.next().unwrap_or_else(|| "small".to_owned());
    let shard_bytes = arguments.next().map(|bytes| bytes.parse()).transpose()?;
    let sizes = match ClipConfig::preset(&model) {
        Some(preset) => preset,
        None => ModelFolder::open(model.as_ref())?.clip_config()?.clone(),
    };
    let mut task = ClipTask::new(sizes, Some(5));
    task.pixels = DType::F32;
    let mut config = RunConfig {
        model,
        labels: Some(5),
        // What it is compared with is computed in f32.
        precision: Precision::F32,
        ..RunConfig::default()
    };
    config.train.effective_batch = Some(SAMPLES);
    config.train.batch_size = Some(4);
    let device = Device::open(DeviceChoice::Auto, None)?;
    task.sorted_ids = device.wants_sorted_ids();
    let mut setup = Setup::without_data(&config, &device)?;
    let weights = std::mem::replace(&mut setup.step.task, Arc::new(task.clone()));
    let size = task.model.vision.image_size;
    let mut draw = Draw::new(1, "pixels");
    let floats: Vec<f32> = (0..SAMPLES * size * size * 3)
        .map(|_| draw.normal() as f32)
        .collect();
    let random = task.random_batch(SAMPLES, 1);
    let [ids, labels] = ["ids", "labels"].map(|name| random.read_indices(name).to_vec());
    let batch = batch_of(&task, Values::Floats(floats.clone()), ids, labels);
    let plan = setup.plan(&device, 0, Choosing::Predicted)?;
    let (mut step, _) = setup.start(&device, plan, &mut |text| println!("{text}"))?;
    step.set_weights(&device, weights.weights(0)?)?;
    for count in 1..=3 {
        let moment = StepScalars {
            step: count,
            rates: &[1e-3, 1e-3],
            loss_scale: 1.0,
        };
        println!("loss {:.5}", step.run(&device, &batch, &moment)?.loss);
    }
    save_weights(&task, &step, &out, shard_bytes)?;
    // Features of the weights as saved.
    step.gradients(&device, &batch, 1.0)?;
    let image = step.endpoint("image features")?;
    let text = step.endpoint("text features")?;
    let width = task.model.projection_dim;
    let mut channels_first = Vec::with_capacity(floats.len());
    for sample in floats.chunks(size * size * 3) {
        for channel in 0..3 {
            channels_first.extend(sample.iter().skip(channel).step_by(3));
        }
    }
    let bytes_of =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let pixels = bytes_of(&channels_first);
    let ids: Vec<u8> = batch
        .read_indices("ids")
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .collect();
    let (image, text) = (
        bytes_of(&image[..SAMPLES * width]),
        bytes_of(&text[..SAMPLES * width]),
    );
    let tokens = task.num_tokens;
    let tensors: HashMap<&str, TensorView<'_>> = HashMap::from([
        (
            "pixel_values",
            TensorView::new(Dtype::F32, vec![SAMPLES, 3, size, size], &pixels)?,
        ),
        (
            "input_ids",
            TensorView::new(Dtype::I64, vec![SAMPLES, tokens], &ids)?,
        ),
        (
            "image_embeds",
            TensorView::new(Dtype::F32, vec![SAMPLES, width], &image)?,
        ),
        (
            "text_embeds",
            TensorView::new(Dtype::F32, vec![SAMPLES, width], &text)?,
        ),
    ]);
    safetensors::serialize_to_file(tensors, None, &out.join("features.safetensors"))?;
    Ok(())
}
