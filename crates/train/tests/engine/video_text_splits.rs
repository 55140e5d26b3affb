//! Clips, texts and captions, however their batch is split: every pooling, either text tower, texts and captions of every length,
//! masked frames, equal texts, weighted tokens, heads beside them.

use std::sync::Arc;

use holdall_device::Device;
use holdall_plan::Recompute;
use holdall_train::config::{RunConfig, TaskName};
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{Split, usual_splits, verify, verify_plain_accumulation};
use holdall_train::tasks::video_text::{Padding, VideoTextTask};
use proptest::prelude::*;

use crate::support::{self, VideoTextParts, on_cpu, step, tiny_video_text, varied_clips};

pub const ALL: VideoTextParts = VideoTextParts {
    pooling: "projected",
    has_bert: false,
    has_decoder: true,
    is_tied: false,
    num_videos: 2,
};

pub fn setup(device: &Device, task: &VideoTextTask, seed: u64) -> Setup {
    let run = RunConfig {
        task: Some(TaskName::VideoText),
        model: "video-text-demo".to_owned(),
        seed,
        ..RunConfig::default()
    };
    let mut setup = Setup::without_data(&run, device).unwrap();
    setup.step.task = Arc::new(task.clone());
    setup
}

/// Negatives within the micro-batch, and means over its own tokens, are where plain accumulation goes wrong; the certificate says
/// so of each.
#[test]
fn usual_splits_are_exact_and_plain_accumulation_is_found_out() {
    let device = on_cpu(2);
    let task = tiny_video_text(ALL, 1);
    let batch = varied_clips(&task, 7, 3);
    let splits = usual_splits(7);
    for (contrastive, caption) in [(1.0, 0.5), (1.0, 0.0), (0.0, 1.0)] {
        let mut task = task.clone();
        (task.loss.contrastive_weight, task.loss.caption_weight) = (contrastive, caption);
        let setup = setup(&device, &task, 1);
        let exact: Arc<dyn Task> = Arc::new(task.clone());
        let certificate = verify(&setup, &device, &batch, &splits, exact, |_| ()).unwrap();
        assert!(certificate.exact, "{certificate:?}");

        let plain = verify_plain_accumulation(&setup, &device, &batch, &splits, |_| ());
        let certificate = plain.unwrap();
        assert!(!certificate.exact);
        assert!(certificate.max_relative_error > 1e-3, "{certificate:?}");
        // One micro-batch has every equal text, and is right even so.
        let mut results = certificate.splits.iter();
        let whole = results.find(|one| one.split.batch_size == 7).unwrap();
        assert!(whole.max_relative_error <= 1e-5, "{whole:?}");
    }
}

fn losses(device: &Device, task: &VideoTextTask, samples: usize, batch_size: usize) -> Vec<f64> {
    let batch = varied_clips(task, samples, 5);
    let split = support::Split {
        batch_size,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    let config = StepConfig::new(Arc::new(task.clone()));
    let mut step = step(device, &config, samples, split);
    step.set_weights(device, task.weights(3).unwrap()).unwrap();
    let losses = step.gradients(device, &batch, 1.0).unwrap();
    losses.iter().map(|loss| loss.mean()).collect()
}

/// What is to be exact under every split must be there first: each switch changes a loss.
#[test]
fn every_switch_is_at_work() {
    let device = on_cpu(2);
    let parts = VideoTextParts {
        has_bert: true,
        ..ALL
    };
    let all = tiny_video_text(parts, 2);
    let expected = losses(&device, &all, 9, 4);
    assert_eq!(expected.len(), 4);
    let others: [fn(&mut VideoTextTask); 5] = [
        |task| task.loss.caption_smoothing = 0.0,
        |task| task.loss.token_weights.clear(),
        |task| task.masks_frames = false,
        |task| task.loss.same_text = holdall_train::config::SameText::Negative,
        |task| task.dropout = 0.0,
    ];
    for (index, change) in others.iter().enumerate() {
        let mut other = all.clone();
        change(&mut other);
        assert_ne!(losses(&device, &other, 9, 4), expected, "switch {index}");
    }
}

/// Texts padded to a few lengths have the losses of texts padded to the longest of all.
#[test]
fn shorter_padding_changes_nothing() {
    let device = on_cpu(2);
    for has_bert in [false, true] {
        let task = tiny_video_text(VideoTextParts { has_bert, ..ALL }, 4);
        assert!(task.lengths().len() > 1, "{:?}", task.lengths());
        let mut full = task.clone();
        full.padding = Padding::Full;
        let [short, long] = [&task, &full].map(|task| losses(&device, task, 12, 2));
        for (short, long) in short.iter().zip(&long) {
            assert!((short - long).abs() <= 1e-6 * long.abs(), "{short} {long}");
        }
    }
}

/// A caption without a word to say, and targets that nobody knows, teach nothing, and are no division by zero.
#[test]
fn what_does_not_count_has_no_gradient() {
    let device = on_cpu(2);
    let mut task = tiny_video_text(ALL, 0);
    task.loss.token_weights = vec![0.0; 23];
    task.loss.contrastive_weight = 0.0;
    task.heads.clear();
    let batch = varied_clips(&task, 4, 2);
    let split = support::Split {
        batch_size: 3,
        kept: 0,
        recompute: Recompute::None,
    };
    let mut step = step(&device, &StepConfig::new(Arc::new(task.clone())), 4, split);
    step.set_weights(&device, task.weights(1).unwrap()).unwrap();
    step.gradients(&device, &batch, 1.0).unwrap();
    for parameter in step.parameters() {
        let gradient = step.gradient(parameter).unwrap().unwrap();
        let is_zero = gradient.iter().all(|&value| value == 0.0);
        assert!(is_zero, "{}", parameter.name);
    }
}

fn any_parts() -> impl Strategy<Value = VideoTextParts> {
    let poolings = prop::sample::select(vec!["mean", "projected", "hidden", "attention"]);
    (poolings, any::<[bool; 3]>(), 1usize..3).prop_map(
        |(pooling, [has_bert, has_decoder, is_tied], num_videos)| VideoTextParts {
            pooling,
            has_bert,
            has_decoder,
            is_tied,
            num_videos,
        },
    )
}

proptest! {
    #![proptest_config(support::same_cases(200))]

    #[test]
    fn any_split_is_exact(
        samples in 2usize..12,
        batch_size in 1usize..12,
        kept in 0usize..3,
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Cheap, Recompute::Blocks]),
        parts in any_parts(),
        seed in any::<u64>(),
    ) {
        let device = on_cpu(2);
        let task = tiny_video_text(parts, seed);
        let batch = varied_clips(&task, samples, seed);
        let setup = setup(&device, &task, seed);
        let batch_size = batch_size.min(samples);
        let kept_micro_batches = kept.min(samples.div_ceil(batch_size));
        let split = Split { batch_size, recompute, kept_micro_batches };
        let certificate = verify(&setup, &device, &batch, &[split], Arc::new(task), |_| ()).unwrap();
        prop_assert!(certificate.max_relative_error <= certificate.tolerance, "{:?}", certificate);
        prop_assert!(certificate.loss_difference <= certificate.tolerance, "{:?}", certificate);
    }
}
