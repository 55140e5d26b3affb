//! What the plan says that the process holds on the card, against what the driver says, in a process per plan.
//!
//! A process's first plan is the one that counts: kernels that an earlier one loaded would hide what this one loads. So this
//! program runs itself again for each case, and the one that waits opens no card. Alone (`gpu forecast`) it has none open
//! from other tests either, and the driver's count by process is used even where it tells ids of another namespace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use holdall_device::{Arithmetic, Device, DeviceChoice};
use holdall_models::config::ClipConfig;
use holdall_models::unet::config::UnetConfig;
use holdall_plan::{HostState, Plan, Recompute, Request, StepShape, WeightCopies, plan};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;
use holdall_train::tasks::segment::SegmentTask;
use holdall_train::tasks::video_text::VideoTextTask;
use serde_json::{Value, json};

use crate::card::{is_left_out, is_there, say, take_turn};

const BASE_32: &str = "openai/clip-vit-base-patch32";
const VIDEO_TEXT: &str = "video-text";
const LARGE_14: &str = "openai/clip-vit-large-patch14-336";
const BASE_16: &str = "openai/clip-vit-base-patch16";

/// Says which case a process is to measure.
const CASE: &str = "HOLDALL_FORECAST_CASE";
const CHILD: &str = "forecast::one_case";

/// Forecasts are within this share of the process, or within three of the driver's pages of 2 MiB: what is held differs by one from
/// process to process, and below 600 MiB three of them are more than the share.
const SHARE: f64 = 0.01;
const PAGES_BYTES: u64 = 3 * (2 << 20);

/// How the plan is asked for.
#[derive(Clone, Copy)]
enum Asked {
    /// Micro-batch, recomputation, micro-batches that keep their activations.
    Split(usize, Recompute, usize),
    /// The same in one byte less than that takes: weights are narrowed at each use.
    PerUse(usize, Recompute, usize),
    /// The same with state in host memory.
    Host(usize, Recompute, usize, HostState),
    /// The planner's choice within so many bytes.
    Budget(u64),
    /// The same, with room for state in host memory.
    HostBudget(u64),
}
use Asked::{Budget, Host, HostBudget, PerUse, Split};

struct Case {
    /// A preset of CLIP or of video-text, or one of U-Nets and the side of its pictures: `unet 512`.
    model: &'static str,
    arithmetic: Arithmetic,
    effective_batch: usize,
    asked: Asked,
}

const fn case(
    model: &'static str,
    arithmetic: Arithmetic,
    effective_batch: usize,
    asked: Asked,
) -> Case {
    Case {
        model,
        arithmetic,
        effective_batch,
        asked,
    }
}

use Arithmetic::{Bf16, F16, F32, Tf32};
use HostState::{Moments, MomentsAndWeights, OneQuarter, ThreeQuarters, TwoQuarters};
use Recompute::{Blocks, Cheap, None as Nothing};

const CASES: [Case; 97] = [
    case("small", F32, 3, Split(1, Nothing, 3)),
    case("small", Bf16, 4, Split(1, Cheap, 0)),
    case("small", F16, 64, Split(1, Blocks, 64)),
    case("small", Bf16, 96, Split(2, Nothing, 48)),
    case("small", Tf32, 10, Split(2, Blocks, 1)),
    case("small", Bf16, 30, Split(3, Nothing, 10)),
    case("small", F32, 90, Split(3, Cheap, 30)),
    case("small", F16, 1, Split(1, Nothing, 1)),
    case(BASE_32, Bf16, 12, Split(1, Blocks, 12)),
    case(BASE_32, F16, 6, Split(3, Nothing, 0)),
    case("small", F32, 32, Split(8, Nothing, 4)),
    case("small", Bf16, 2048, Split(512, Cheap, 0)),
    case("small", F16, 1000, Split(256, Blocks, 2)),
    case("small", Tf32, 2048, Split(2048, Nothing, 1)),
    case("small", Bf16, 4096, Budget(2 << 30)),
    case(BASE_32, F32, 60, Split(16, Cheap, 1)),
    case(BASE_32, Tf32, 64, Split(32, Blocks, 0)),
    case(BASE_32, Bf16, 256, Split(64, Nothing, 0)),
    case(BASE_32, Bf16, 256, Split(64, Nothing, 4)),
    case(BASE_32, F16, 256, Split(32, Blocks, 8)),
    case(BASE_32, Bf16, 128, PerUse(128, Cheap, 1)),
    case(BASE_32, F16, 128, PerUse(16, Blocks, 3)),
    case(BASE_32, Bf16, 300, Budget(4 << 30)),
    case(BASE_16, F32, 8, Split(4, Nothing, 2)),
    case(BASE_16, F16, 22, Split(8, Blocks, 0)),
    case(BASE_16, Bf16, 32, Split(16, Cheap, 1)),
    case(BASE_16, Bf16, 96, Budget(6 << 30)),
    case("unet-small 64", F32, 3, Split(1, Nothing, 3)),
    case("unet-small 256", Bf16, 8, Split(2, Cheap, 1)),
    case("unet-small 512", F16, 5, Split(5, Blocks, 0)),
    case("unet 256", Tf32, 2, Split(1, Cheap, 2)),
    case("unet 512", F16, 4, Split(1, Cheap, 0)),
    case("unet 1024", F16, 4, Split(1, Cheap, 4)),
    case("unet 1024", Bf16, 4, Split(4, Nothing, 1)),
    case("unet 1024", F16, 4, Budget(2_500_000_000)),
    case("unet 2048", F16, 2, Split(1, Cheap, 1)),
    case("nnunet 512", Bf16, 6, Split(2, Nothing, 2)),
    case("nnunet-resenc 512", F16, 4, Split(2, Cheap, 0)),
    case("nnunet-resenc 256", F32, 2, Split(1, Blocks, 1)),
    case("unet-small 128", F16, 16, Split(4, Nothing, 4)),
    case("unet-small 320", Tf32, 6, Split(3, Cheap, 0)),
    case("unet 384", Bf16, 6, Split(2, Blocks, 1)),
    case("unet 768", F16, 4, Split(2, Cheap, 2)),
    case("unet 512", F32, 2, Split(1, Nothing, 0)),
    case("nnunet 1024", F16, 2, Split(1, Cheap, 2)),
    case("nnunet 256", F32, 8, Split(4, Cheap, 1)),
    case("nnunet-resenc 512", Bf16, 8, Budget(4 << 30)),
    case("video-text-demo", F32, 4, Split(1, Nothing, 4)),
    case("video-text-demo", F16, 32, Split(8, Cheap, 1)),
    case("video-text-demo", Bf16, 64, Split(64, Nothing, 1)),
    case("video-text-small", F32, 3, Split(1, Nothing, 3)),
    case("video-text-small", Bf16, 8, Split(2, Cheap, 0)),
    case("video-text-small", F16, 16, Split(4, Blocks, 4)),
    case("video-text-small", Tf32, 24, Split(8, Blocks, 0)),
    case("video-text-small", F32, 16, Split(8, Cheap, 1)),
    case("video-text-small", Bf16, 128, Split(32, Nothing, 2)),
    case("video-text-small", F16, 256, Split(128, Cheap, 2)),
    case("video-text-small", Bf16, 256, Budget(2 << 30)),
    case("video-text-small", Tf32, 60, Budget(1 << 30)),
    case(VIDEO_TEXT, Bf16, 8, Split(1, Blocks, 2)),
    case(VIDEO_TEXT, F16, 8, Split(2, Cheap, 0)),
    case(VIDEO_TEXT, Tf32, 8, Split(4, Nothing, 1)),
    case(VIDEO_TEXT, F32, 4, Split(2, Blocks, 1)),
    case(VIDEO_TEXT, Bf16, 32, Split(8, Nothing, 1)),
    case(VIDEO_TEXT, Bf16, 64, Split(64, Cheap, 1)),
    case(VIDEO_TEXT, F16, 16, PerUse(8, Blocks, 1)),
    case(VIDEO_TEXT, Bf16, 128, Budget(8 << 30)),
    case("small", F32, 8, Host(2, Nothing, 0, Moments)),
    case("small", Bf16, 8, Host(2, Cheap, 1, MomentsAndWeights)),
    case("small", F16, 64, Host(16, Blocks, 4, OneQuarter)),
    case("small", Tf32, 64, Host(64, Nothing, 1, Moments)),
    case("small", Bf16, 512, Host(128, Cheap, 0, TwoQuarters)),
    case("small", Bf16, 1000, Host(64, Cheap, 0, ThreeQuarters)),
    case(BASE_32, Bf16, 16, Host(4, Blocks, 0, MomentsAndWeights)),
    case(BASE_32, Bf16, 128, Host(16, Blocks, 0, MomentsAndWeights)),
    case(BASE_32, Bf16, 128, Host(64, Cheap, 2, Moments)),
    case(BASE_32, Bf16, 128, Host(128, Nothing, 1, TwoQuarters)),
    case(BASE_32, F16, 64, Host(8, Cheap, 0, MomentsAndWeights)),
    case(BASE_32, F16, 64, Host(32, Blocks, 1, ThreeQuarters)),
    case(BASE_32, F32, 32, Host(8, Cheap, 0, Moments)),
    case(BASE_32, Tf32, 32, Host(16, Blocks, 0, OneQuarter)),
    case(BASE_32, Bf16, 128, HostBudget(1_700 << 20)),
    case(BASE_32, Bf16, 128, HostBudget(2 << 30)),
    case(BASE_32, F16, 256, HostBudget(2_400 << 20)),
    case(BASE_16, Bf16, 16, Host(4, Blocks, 0, MomentsAndWeights)),
    case(BASE_16, F16, 32, Host(8, Cheap, 1, Moments)),
    case(BASE_16, Bf16, 64, HostBudget(2 << 30)),
    case(BASE_16, F32, 8, Host(2, Blocks, 0, Moments)),
    case(LARGE_14, Bf16, 16, HostBudget(4 << 30)),
    case("unet 512", F16, 4, Host(1, Cheap, 0, MomentsAndWeights)),
    case("unet 1024", Bf16, 4, Host(2, Cheap, 0, Moments)),
    case("unet-small 256", F32, 4, Host(2, Nothing, 0, Moments)),
    case("nnunet 512", F16, 4, Host(2, Blocks, 0, TwoQuarters)),
    case(
        "video-text-small",
        Bf16,
        8,
        Host(2, Cheap, 0, MomentsAndWeights),
    ),
    case("video-text-small", F32, 8, Host(4, Nothing, 1, Moments)),
    case(VIDEO_TEXT, Bf16, 16, Host(4, Blocks, 0, MomentsAndWeights)),
    case(VIDEO_TEXT, Bf16, 64, HostBudget(4 << 30)),
];

impl Case {
    fn task(&self, device: &Device) -> Arc<dyn Task> {
        match self.model.split_once(' ') {
            Some((model, side)) => {
                let model = UnetConfig::preset(model).unwrap();
                Arc::new(SegmentTask::new(model, [side.parse().unwrap(); 2]))
            }
            None if VideoTextTask::PRESETS.contains(&self.model) => {
                let mut task = VideoTextTask::preset(self.model).unwrap();
                task.sorted_ids = device.wants_sorted_ids();
                Arc::new(task)
            }
            None => {
                let mut task = ClipTask::new(ClipConfig::preset(self.model).unwrap(), Some(10));
                task.sorted_ids = device.wants_sorted_ids();
                Arc::new(task)
            }
        }
    }

    fn plan(&self, device: &Device, config: &StepConfig) -> Plan {
        let mut request = Request {
            effective_batch: Some(self.effective_batch),
            precision: self.arithmetic.name(),
            ..Request::default()
        };
        match self.asked {
            Split(batch_size, recompute, kept) | PerUse(batch_size, recompute, kept) => {
                request.batch_size = Some(batch_size);
                request.recompute = Some(recompute);
                request.kept = Some(kept);
            }
            Host(batch_size, recompute, kept, state) => {
                request.batch_size = Some(batch_size);
                request.recompute = Some(recompute);
                request.kept = Some(kept);
                request.host_state = Some(state);
            }
            Budget(bytes) => request.budget_bytes = Some(bytes),
            HostBudget(bytes) => {
                request.budget_bytes = Some(bytes);
                request.host_bytes = Some(64 << 30);
            }
        }
        let target = device.target(self.arithmetic, 0).unwrap();
        let build = |shape: &StepShape| write_step(config, shape);
        let planned = |request: &Request| plan(request, &build, &*target).unwrap();
        let made = planned(&request);
        let PerUse(..) = self.asked else {
            return made;
        };
        // Blocks are recomputed in groups of several sizes: smaller and smaller until no resident copies fit.
        let mut smaller = made;
        while smaller.chosen.choice.weight_copies != WeightCopies::PerUse {
            request.budget_bytes = Some(smaller.step.process_bytes - 1);
            smaller = planned(&request);
        }
        smaller
    }

    /// Two steps; what was planned and what was held.
    fn measure(&self) -> Value {
        let device = Device::open(DeviceChoice::Cuda(0), Some(2)).unwrap();
        if !device.supports(self.arithmetic) {
            return json!({ "skipped": self.arithmetic.name() });
        }
        let task = self.task(&device);
        let config = StepConfig {
            arithmetic: self.arithmetic,
            ..StepConfig::new(Arc::clone(&task))
        };
        let Plan { chosen, step, .. } = self.plan(&device, &config);
        let (planned_bytes, before_bytes) = (step.process_bytes, device.held_bytes());
        let arena_bytes = step.arena_bytes;
        let mut by_operation: BTreeMap<&str, usize> = BTreeMap::new();
        for program in &step.programs {
            let times = if program.stage.has_slot() {
                step.kept
            } else {
                1
            };
            for instruction in &program.instructions {
                *by_operation
                    .entry(instruction.op.rules().name())
                    .or_default() += times;
            }
        }
        let choice = chosen.choice;
        let mut step = Step::new(&device, config, step, choice.batch_size).unwrap();
        step.set_weights(&device, task.weights(0).unwrap()).unwrap();
        let batch = task.random_batch(self.effective_batch, 1);
        for number in 1..=2 {
            let scalars = StepScalars {
                step: number,
                rates: &[1e-5, 1e-4],
                loss_scale: 1.0,
            };
            let report = step.run(&device, &batch, &scalars).unwrap();
            assert!(report.loss.is_finite());
        }
        json!({
            "split": format!(
                "{} x {}, recompute {}, {} kept, copies {}, on the host: {}",
                choice.batch_size,
                choice.gradient_accumulation,
                choice.recompute.label(),
                choice.kept_micro_batches,
                choice.weight_copies.name(),
                choice.host_state.name()
            ),
            "before_bytes": before_bytes,
            "arena_bytes": arena_bytes,
            "host_bytes": chosen.host_bytes,
            "captured": by_operation.values().sum::<usize>(),
            "by_operation": by_operation,
            "planned_bytes": planned_bytes,
            "peak_bytes": device.peak_bytes(),
        })
    }
}

/// Nothing by itself: what the other test runs, in a process of its own.
#[test]
fn one_case() {
    if let Ok(index) = std::env::var(CASE) {
        let index: usize = index.parse().unwrap();
        // A line of its own: the test's name is written without an end.
        println!("\n{}", CASES[index].measure());
    }
}

fn measured_elsewhere(index: usize, cache: &Path) -> Value {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--nocapture", "--test-threads", "1"])
        .env(CASE, index.to_string())
        .env("HOLDALL_CACHE", cache)
        .output()
        .unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "case {index}\n{stdout}\n{stderr}");
    let line = stdout.lines().find(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("case {index}: no result\n{stdout}\n{stderr}"));
    serde_json::from_str(line).unwrap()
}

#[test]
fn what_is_held_is_what_was_forecast() {
    let _turn = take_turn();
    if !is_there() || is_left_out("forecast", "runs full-size models") {
        return;
    }
    // Engines and algorithms that an earlier process chose are not loaded to be timed: those of this test alone count.
    let cache = tempfile::tempdir().unwrap();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    // The first process in a number format measures the card, and what that loads is counted twice: it held 4 MiB more before its plan.
    for arithmetic in [F32, Tf32, Bf16, F16] {
        let first = CASES.iter().position(|case| case.arithmetic == arithmetic);
        first.map(|index| measured_elsewhere(index, cache.path()));
    }
    let mut wrong = Vec::new();
    println!("  forecast      peak     of it  plan (MiB)");
    for (index, case) in CASES.iter().enumerate() {
        let found = measured_elsewhere(index, cache.path());
        if let Some(format) = found["skipped"].as_str() {
            say(&format!("SKIPPED: this card has no {format}"));
            continue;
        }
        let bytes = |key: &str| {
            let bytes = found[key].as_u64();
            bytes.unwrap_or_else(|| panic!("`{key}` is not told: {found}"))
        };
        let (planned, peak) = (bytes("planned_bytes"), bytes("peak_bytes"));
        let line = format!(
            "{:10.1}{:10.1}{:9.2} %  {:.1} before, arena {:.1}, {} captured: {} {} {}: {}",
            mib(planned),
            mib(peak),
            100.0 * peak as f64 / planned as f64,
            mib(bytes("before_bytes")),
            mib(bytes("arena_bytes")),
            found["captured"],
            case.model,
            case.arithmetic.name(),
            case.effective_batch,
            found["split"].as_str().unwrap()
        );
        println!("{line}");
        let is_per_use = line.contains("copies per use");
        assert!(is_per_use || !matches!(case.asked, PerUse(..)), "{line}");
        if let Budget(bytes) = case.asked {
            assert!(peak <= bytes, "{line}");
        }
        let spare = (SHARE * planned as f64).max(PAGES_BYTES as f64);
        if peak > planned || (planned - peak) as f64 > spare {
            wrong.push(line);
        }
    }
    assert!(
        wrong.is_empty(),
        "not within the forecast:\n{}",
        wrong.join("\n")
    );
}
