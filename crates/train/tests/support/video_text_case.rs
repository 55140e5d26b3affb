//! Small random video-text models and what PyTorch computes with them: fixtures/make_video_text.py.

use holdall_models::folder::ModelFolder;
use holdall_models::model_config::ModelConfig;
use holdall_train::engine::batch::Batch;
use holdall_train::tasks::video_text::{Texts, VideoTextTask, batch_of};

use crate::support::{Tensors, fixture, read_tensors};

pub const CASES: [&str; 5] = ["hidden", "mean", "projected", "attention", "bert"];

pub const NUM_SAMPLES: usize = 5;

/// A model, and the batch of a case.
pub fn read_case(case: &str) -> (ModelFolder, Tensors, VideoTextTask, Batch) {
    let path = fixture(&format!("video_text_{case}"));
    let folder = ModelFolder::open(&path).unwrap();
    folder.check().unwrap();
    let golden = read_tensors(&path.join("golden.safetensors"));
    let ModelConfig::VideoText(model) = folder.config() else {
        panic!("{case}: {}", folder.config().describe());
    };
    let whole = |name: &str| -> Vec<i64> {
        let found = golden.get(name).map(|(_, values)| values.as_slice());
        let values = found.unwrap_or_default().iter();
        values.map(|&id| id as i64).collect()
    };
    let mut task = VideoTextTask::new(model.clone(), Vec::new());
    task.num_text_tokens = golden["input_ids"].0[1];
    task.num_caption_tokens = golden.get("caption_ids").map_or(0, |(shape, _)| shape[1]);
    task.masks_frames = golden.contains_key("frame_counts");
    task.loss.caption_smoothing = if case == "projected" { 0.1 } else { 0.0 };
    if let Some((_, weights)) = golden.get("token_weights") {
        task.loss.token_weights = weights.iter().map(|&weight| weight as f32).collect();
    }
    let ids = whole("input_ids");
    // The end token of the fixture's texts is 61.
    let rows = ids.chunks(task.num_text_tokens);
    let lengths = rows.map(|row| row.iter().position(|&id| id == 61).unwrap() as i64 + 1);
    let texts = Texts {
        lengths: lengths.collect(),
        ids,
        caption_ids: whole("caption_ids"),
        caption_labels: whole("caption_labels"),
        groups: (0..NUM_SAMPLES as i64).collect(),
    };
    let pixels: Vec<u8> = golden["pixels"].1.iter().map(|&byte| byte as u8).collect();
    let batch = batch_of(&task, &pixels, &whole("frame_counts"), &texts, &[]);
    (folder, golden, task, batch)
}
