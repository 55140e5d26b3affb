//! Several processes give the gradient of one: each a thread here, with a group over loopback.

use std::sync::Arc;

use holdall_device::Device;
use holdall_graph::ops::collective::Processes;
use holdall_graph::{Copies, Role};
use holdall_models::config::Activation;
use holdall_models::unet::config::UnetKind;
use holdall_plan::{Recompute, Request, StepShape, plan};
use holdall_processes::{Group, testing};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{Certificate, Split, verify};
use holdall_train::tasks::segment::SegmentTask;
use proptest::prelude::*;

use crate::support::{self, mixed_batch, mixed_task, on_cpu, tiny_unet, tiny_vit};
use crate::{classify_splits, segment_splits, splits, video_text_splits};

/// What every process does, as rank 0 sees it.
fn together<R: Send>(count: usize, work: impl Fn(Device, Processes) -> R + Sync) -> R {
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = testing::loopback(count)
            .into_iter()
            .map(|group: Group| {
                let work = &work;
                scope.spawn(move || {
                    let processes = Processes {
                        rank: group.rank(),
                        count: group.size(),
                    };
                    work(on_cpu(1).with_group(group).unwrap(), processes)
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let results: Vec<R> = joined.map(|result| result.unwrap()).collect();
        results
    });
    results.into_iter().next().unwrap()
}

fn certified(
    count: usize,
    batch: &Batch,
    split: Split,
    task: &Arc<dyn Task>,
    setup: &(dyn Fn(&Device) -> Setup + Sync),
) -> Certificate {
    together(count, |device, _| {
        let setup = setup(&device);
        verify(&setup, &device, batch, &[split], Arc::clone(task), |_| ()).unwrap()
    })
}

fn split_of(samples: usize, count: usize, batch_size: usize, kept: usize) -> Split {
    let own = samples.div_ceil(count);
    let batch_size = batch_size.min(own);
    Split {
        batch_size,
        recompute: [Recompute::None, Recompute::Cheap, Recompute::Blocks][kept % 3],
        kept_micro_batches: kept.min(own.div_ceil(batch_size)),
    }
}

proptest! {
    #![proptest_config(crate::support::same_cases(12))]

    #[test]
    fn contrastive_and_labels(
        count in 1usize..5, samples in 1usize..23, batch_size in 1usize..9, kept in 0usize..4, seed in 0u64..100,
    ) {
        let (_, task) = splits::setup(&on_cpu(1), Activation::QuickGelu, Some(5), seed);
        let batch = splits::batch(&task, samples, seed);
        let split = split_of(samples, count, batch_size, kept);
        let task: Arc<dyn Task> = Arc::new(task);
        let certificate = certified(count, &batch, split, &task, &|device| {
            splits::setup(device, Activation::QuickGelu, Some(5), seed).0
        });
        prop_assert!(certificate.exact, "{certificate:?}");
    }

    #[test]
    fn overlap_and_pixels(
        count in 1usize..5, samples in 1usize..11, batch_size in 1usize..5, kept in 0usize..4, seed in 0u64..100,
    ) {
        let mut task = SegmentTask::new(tiny_unet(UnetKind::Plain), [16, 16]);
        task.terms = segment_splits::all_terms();
        task.class_weights = vec![0.5, 2.0];
        let batch = task.random_batch(samples, seed);
        let split = split_of(samples, count, batch_size, kept);
        let exact: Arc<dyn Task> = Arc::new(task.clone());
        let certificate = certified(count, &batch, split, &exact, &|device| segment_splits::setup(device, &task, seed));
        prop_assert!(certificate.exact, "{certificate:?}");
    }

    #[test]
    fn clips_texts_and_captions(
        count in 1usize..5, samples in 1usize..11, batch_size in 1usize..5, kept in 0usize..4, seed in 0u64..100,
    ) {
        let task = support::tiny_video_text(video_text_splits::ALL, 1);
        let batch = support::varied_clips(&task, samples, seed);
        let split = split_of(samples, count, batch_size, kept);
        let exact: Arc<dyn Task> = Arc::new(task.clone());
        let certificate = certified(count, &batch, split, &exact, &|device| video_text_splits::setup(device, &task, seed));
        prop_assert!(certificate.exact, "{certificate:?}");
    }

    #[test]
    fn heads_of_pictures(
        count in 1usize..5, samples in 1usize..11, batch_size in 1usize..5, kept in 0usize..4, seed in 0u64..100,
    ) {
        let task = mixed_task(tiny_vit("vit-demo"), seed);
        let batch = mixed_batch(&task, samples, seed);
        let split = split_of(samples, count, batch_size, kept);
        let exact: Arc<dyn Task> = Arc::new(task.clone());
        let certificate = certified(count, &batch, split, &exact, &|device| classify_splits::setup(device, &task, seed));
        prop_assert!(certificate.exact, "{certificate:?}");
    }
}

/// Weights of every process after some steps, and the losses.
fn trained(count: usize, num_steps: u64, is_sharded: bool) -> Vec<(Vec<f64>, Vec<Vec<f32>>)> {
    let (_, task) = splits::setup(&on_cpu(1), Activation::Gelu, Some(3), 4);
    let task = Arc::new(task);
    let results = std::sync::Mutex::new(vec![None; count]);
    together(count, |device, processes| {
        let config = StepConfig {
            processes,
            is_sharded,
            ..StepConfig::new(task.clone())
        };
        let request = Request {
            effective_batch: Some(11usize.div_ceil(count)),
            batch_size: Some(2),
            precision: "f32",
            ..Request::default()
        };
        let build = |shape: &StepShape| write_step(&config, shape);
        let target = device.target(config.arithmetic, 0).unwrap();
        let plan = plan(&request, &build, &*target).unwrap();
        let mut step = Step::new(&device, config.clone(), plan.step, 2).unwrap();
        step.set_weights(&device, task.weights(9).unwrap()).unwrap();
        let mut losses = Vec::new();
        for number in 1..=num_steps {
            // Of the last batch some processes have nothing.
            let samples = if number == num_steps { 2 } else { 11 };
            let batch = splits::batch(&task, samples, number);
            let own = batch.part(processes.share(samples));
            let scalars = StepScalars {
                step: number,
                rates: &[1e-3, 1e-3],
                loss_scale: 1.0,
            };
            losses.push(step.run(&device, &own, &scalars).unwrap().loss);
        }
        let weights = step.parameters().iter();
        let weights = weights.map(|one| step.weight(one).unwrap().into_owned());
        results.lock().unwrap()[processes.rank] = Some((losses, weights.collect()));
    });
    let results = results.into_inner().unwrap();
    results.into_iter().map(Option::unwrap).collect()
}

/// Two runs of several processes give the same bits, and so does every process of a run.
#[test]
fn every_process_has_the_same_bits_in_every_run() {
    let alone = trained(1, 4, false).remove(0);
    for count in [2, 3, 4] {
        let runs = [trained(count, 4, false), trained(count, 4, false)];
        let first = &runs[0][0];
        for one in runs.iter().flatten() {
            assert!(one == first, "{count} processes");
        }
        for (a, b) in first.0.iter().zip(&alone.0) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{count}: {a} and {b}");
        }
    }
}

/// State that each process has a part of takes less room, and changes no bit.
#[test]
fn sharded_state_changes_no_bit() {
    for count in [2, 3] {
        let [sharded, whole] = [true, false].map(|is_sharded| trained(count, 4, is_sharded));
        assert!(sharded == whole, "{count} processes");
    }
    let state_bytes = |processes: Processes| {
        let (_, task) = splits::setup(&on_cpu(1), Activation::Gelu, Some(3), 4);
        let config = StepConfig {
            processes,
            is_sharded: true,
            ..StepConfig::new(Arc::new(task))
        };
        let shape = StepShape {
            batch_size: 2,
            gradient_accumulation: 1,
            copies: Copies::default(),
        };
        let graph = write_step(&config, &shape);
        let state = graph.storages().iter();
        let state = state.filter(|one| one.role == Role::Optimizer);
        state.map(|one| one.num_elements).sum::<usize>()
    };
    let alone = state_bytes(Processes::default());
    let parts: Vec<usize> = (0..3)
        .map(|rank| state_bytes(Processes { rank, count: 3 }))
        .collect();
    assert_eq!(parts.iter().sum::<usize>(), alone);
    assert!(
        parts.iter().all(|&part| part < alone / 2),
        "{parts:?} of {alone}"
    );
}
