//! Nothing is allocated once a step is warm: what products copy is in the arena.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up should stop

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdall_device::Device;
use holdall_device::cpu::Cpu;
use holdall_models::config::ClipConfig;
use holdall_models::unet::config::UnetKind;
use holdall_models::vit::config::VisionTransformerConfig;
use holdall_plan::{Recompute, Request, StepShape, plan};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;
use holdall_train::tasks::segment::SegmentTask;

#[allow(dead_code)] // most of it is for the engine's tests
mod support;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counter;

impl Counter {
    fn count() {
        if COUNTING.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counter::count();
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counter = Counter;

/// What a warm step allocates, by split.
fn assert_allocates_nothing(task: Arc<dyn Task>, batch: &Batch, splits: &[(usize, Recompute)]) {
    let fill_from = Arc::clone(&task);
    let config = StepConfig::new(task);
    let device = Device::on_cpu(Cpu::new(Some(2)));
    let build = |shape: &StepShape| write_step(&config, shape);
    for &(kept, recompute) in splits {
        let request = Request {
            effective_batch: Some(batch.num_samples),
            batch_size: Some(8),
            recompute: Some(recompute),
            kept: Some(kept),
            ..Request::default()
        };
        let target = device.target(config.arithmetic, 0).unwrap();
        let plan = plan(&request, &build, &*target).unwrap();
        let batch_size = plan.chosen.choice.batch_size;
        let mut step = Step::new(&device, config.clone(), plan.step, batch_size).unwrap();
        step.set_weights(&device, fill_from.weights(0).unwrap())
            .unwrap();
        let scalars = |step| StepScalars {
            step,
            rates: &[1e-4, 1e-3],
            loss_scale: 1.0,
        };
        device.cpu().scope(|| {
            for count in 1..3 {
                step.run(&device, batch, &scalars(count)).unwrap();
            }
            COUNTING.store(true, Ordering::SeqCst);
            for count in 3..8 {
                step.run(&device, batch, &scalars(count)).unwrap();
            }
            COUNTING.store(false, Ordering::SeqCst);
        });
        let allocations = ALLOCATIONS.swap(0, Ordering::SeqCst);
        let name = fill_from.name();
        assert_eq!(allocations, 0, "{name}, {recompute:?}, {kept} kept");
    }
}

/// One test: what is counted is counted for the whole process.
#[test]
fn a_warm_step_allocates_nothing() {
    COUNTING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![0u8; 64]));
    COUNTING.store(false, Ordering::SeqCst);
    assert!(
        ALLOCATIONS.swap(0, Ordering::SeqCst) > 0,
        "allocations are counted"
    );

    let task = ClipTask::new(ClipConfig::preset("small").unwrap(), Some(10));
    let batch = task.random_batch(22, 1);
    let splits = [
        (3, Recompute::None),
        (1, Recompute::Cheap),
        (0, Recompute::Blocks),
    ];
    assert_allocates_nothing(Arc::new(task), &batch, &splits);

    let task = support::mixed_task(VisionTransformerConfig::preset("vit-demo").unwrap(), 1);
    let batch = support::mixed_batch(&task, 22, 1);
    let splits = [(0, Recompute::None), (0, Recompute::Blocks)];
    assert_allocates_nothing(Arc::new(task), &batch, &splits);

    let task = SegmentTask::new(support::tiny_unet(UnetKind::Plain), [32, 32]);
    let batch = task.random_batch(22, 1);
    let splits = [(1, Recompute::Cheap), (0, Recompute::Blocks)];
    assert_allocates_nothing(Arc::new(task), &batch, &splits);

    let parts = support::VideoTextParts {
        pooling: "attention",
        has_bert: true,
        has_decoder: true,
        is_tied: false,
        num_videos: 2,
    };
    let task = support::tiny_video_text(parts, 1);
    let batch = support::varied_clips(&task, 22, 1);
    assert_allocates_nothing(Arc::new(task), &batch, &splits);
}
