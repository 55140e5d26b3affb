//! Two and four processes on one card, over NCCL: the losses of one process, the same bits in every process and in every run, and
//! together no more memory than forecast.
//!
//! NCCL refuses two processes on one card unless they pretend to be on different machines; what they exchange then passes by a socket.
//! This program runs itself again for each process.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use holdall_device::{Arithmetic, Device, DeviceChoice};
use holdall_graph::ops::collective::Processes;
use holdall_models::config::ClipConfig;
use holdall_plan::{Request, Stage, StepShape, plan};
use holdall_processes::{Group, Launch};
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::step::Step;
use holdall_train::engine::step_graph::{StepConfig, write_step};
use holdall_train::engine::task::Task;
use holdall_train::tasks::clip::ClipTask;
use serde_json::{Value, json};

use crate::card::{ALL, card_or_software, drawn, is_there, say, small_model, take_turn};

/// Says which number format a process is to train in.
const FORMAT: &str = "HOLDALL_TEST_FORMAT";
const CHILD: &str = "processes::one_rank";
const SAMPLES: usize = 22;
const NUM_STEPS: u64 = 8;

/// Trains as one process of those that the environment tells of.
fn train(arithmetic: Arithmetic) -> Value {
    let launch = Launch::from_environment().unwrap();
    let group = Group::start(&launch, "test").unwrap();
    let processes = Processes {
        rank: group.rank(),
        count: group.size(),
    };
    let device = Device::open(DeviceChoice::Cuda(0), Some(2)).unwrap();
    let device = device.with_group(group).unwrap();
    if !device.supports(arithmetic) {
        return json!({ "skipped": arithmetic.name() });
    }
    let mut task = ClipTask::new(small_model(), Some(10));
    task.sorted_ids = true;
    let task = Arc::new(task);
    let config = StepConfig {
        arithmetic,
        processes,
        ..StepConfig::new(task.clone())
    };
    let request = Request {
        effective_batch: Some(SAMPLES.div_ceil(processes.count)),
        batch_size: Some(3),
        precision: arithmetic.name(),
        ..Request::default()
    };
    let build = |shape: &StepShape| write_step(&config, shape);
    let target = device.target(arithmetic, 0).unwrap();
    let made = plan(&request, &build, &*target).unwrap();
    let planned_bytes = made.step.process_bytes;
    let mut step = Step::new(&device, config.clone(), made.step, 3).unwrap();
    step.set_weights(&device, task.weights(9).unwrap()).unwrap();
    let mut losses = Vec::new();
    for number in 1..=NUM_STEPS {
        // Of the last batch some processes have nothing.
        let samples = if number == NUM_STEPS { 3 } else { SAMPLES };
        let batch = task.random_batch(samples, number % 3);
        let own = batch.part(processes.share(samples));
        let scalars = StepScalars {
            step: number,
            rates: &[1e-4, 1e-4],
            loss_scale: 1.0,
        };
        losses.push(step.run(&device, &own, &scalars).unwrap().loss);
    }
    let mut digest = holdall_files::FNV_START;
    for parameter in step.parameters() {
        let weight = step.weight(parameter).unwrap();
        for value in weight.iter() {
            digest = holdall_files::fnv1a(digest, &value.to_bits().to_le_bytes());
        }
    }
    // All are still there when the first of them looks at the card.
    device.group().share(b"done").unwrap();
    let used_bytes = used_bytes();
    device.group().share(b"looked").unwrap();
    json!({
        "losses": losses,
        "digest": format!("{digest:016x}"),
        "planned_bytes": planned_bytes,
        "used_bytes": used_bytes,
        "held_bytes": device.held_bytes(),
        "exchanges": device.exchanges_through(),
    })
}

/// What the first card has in use, as the driver counts it.
fn used_bytes() -> Option<u64> {
    let cards = holdall_device::cuda::gpus::read().ok()?;
    Some(cards.first()?.memory.as_ref()?.used_bytes)
}

/// Nothing by itself: what the other test runs, in processes of their own.
#[test]
fn one_rank() {
    if let Ok(name) = std::env::var(FORMAT) {
        let arithmetic = ALL.into_iter().find(|one| one.name() == name).unwrap();
        // A line of its own: the test's name is written without an end.
        println!("\n{}", train(arithmetic));
    }
}

/// What each of so many processes found.
fn elsewhere(count: usize, arithmetic: Arithmetic, port: u16) -> Vec<Value> {
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--nocapture", "--test-threads", "1"])
            .env(FORMAT, arithmetic.name())
            .env("HOLDALL_RANK", rank.to_string())
            .env("HOLDALL_SIZE", count.to_string())
            .env("HOLDALL_ADDRESS", "127.0.0.1")
            .env("HOLDALL_PORT", port.to_string())
            .env("HOLDALL_TOKEN", "several processes on one card")
            .env("NCCL_HOSTID", format!("machine {rank}"))
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_MAX_CTAS", "4")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..count).map(start).collect();
    let outputs = children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap());
    let outputs: Vec<_> = outputs.collect();
    let result = |output: std::process::Output| {
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let line = stdout.lines().find(|line| line.starts_with('{'));
        let line = line.unwrap_or_else(|| panic!("no result\n{stdout}\n{stderr}"));
        serde_json::from_str(line).unwrap()
    };
    outputs.into_iter().map(result).collect()
}

#[test]
fn processes_on_one_card_train_as_one() {
    let _turn = take_turn();
    if !is_there() {
        return;
    }
    if holdall_device::cuda::libraries::find_nccl().is_err() {
        say("SKIPPED: NCCL is not here");
        return;
    }
    let free_port = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let idle = used_bytes().unwrap();
    let mut wrong = Vec::new();
    for arithmetic in drawn(&ALL, 1) {
        let name = arithmetic.name();
        let alone = elsewhere(1, arithmetic, free_port()).remove(0);
        if alone["skipped"].is_string() {
            say(&format!("SKIPPED: this card has no {name}"));
            continue;
        }
        let losses = |found: &Value| -> Vec<f64> {
            let losses = found["losses"].as_array().unwrap().iter();
            losses.map(|loss| loss.as_f64().unwrap()).collect()
        };
        let expected = losses(&alone);
        // What the driver has in use beside processes once there is one, and not before.
        let bytes = |key: &str| alone[key].as_u64().unwrap();
        let beside = bytes("used_bytes") - idle - bytes("held_bytes");
        println!(
            "{name}, 1 process: forecast {:.1} MiB, held {:.1} MiB, {:.1} MiB in use beside",
            bytes("planned_bytes") as f64 / f64::from(1 << 20),
            bytes("held_bytes") as f64 / f64::from(1 << 20),
            beside as f64 / f64::from(1 << 20)
        );
        for count in drawn(&[2, 4], 1) {
            // A run sends the first process's algorithms to all (`PlannedRun::reserve`). Here each chooses for itself where the cache has none, so
            // the cache gets them before bits are compared.
            elsewhere(count, arithmetic, free_port());
            let [first, again] = [(); 2].map(|()| elsewhere(count, arithmetic, free_port()));
            for one in first.iter().chain(&again) {
                assert_eq!(one["digest"], first[0]["digest"], "{name}, {count}");
                assert_eq!(one["losses"], first[0]["losses"], "{name}, {count}");
            }
            let pairs = losses(&first[0]);
            let pairs = pairs.iter().zip(&expected);
            let off = pairs.map(|(a, b)| (a - b).abs() / b.abs());
            let off = off.fold(0.0, f64::max);
            // As a step of other splits is: `verify::tolerance`, and what eight updates make of it.
            let most = match arithmetic {
                Arithmetic::F32 => 1e-4,
                Arithmetic::Tf32 => 1e-2,
                Arithmetic::Bf16 | Arithmetic::F16 => 3e-2,
            };
            let planned: u64 = first
                .iter()
                .map(|one| one["planned_bytes"].as_u64().unwrap())
                .sum();
            let used = first[0]["used_bytes"].as_u64().unwrap() - idle - beside;
            println!(
                "{name}, {count} processes by {}: losses off by {off:.1e}; forecast {:.1} MiB together, the card has {:.1} MiB in use",
                first[0]["exchanges"],
                planned as f64 / f64::from(1 << 20),
                used as f64 / f64::from(1 << 20),
            );
            // Not `>`: what is no number fails.
            assert!(
                off <= most,
                "{name}, {count}: {first:?}\none process: {expected:?}"
            );
            // The forecast leaves room for what a driver loads later and for whole pages. The software card loads nothing later: there up to
            // four pages of each process are not used.
            const FOUR_PAGES: f64 = 4.0 * (2 << 20) as f64;
            let unused = (planned as f64) - used as f64;
            let spare = card_or_software(0.01 * planned as f64, FOUR_PAGES * count as f64);
            if unused < 0.0 || unused > spare {
                wrong.push(format!(
                    "{name}, {count}: forecast {planned}, in use {used}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not within the forecast:\n{}",
        wrong.join("\n")
    );
}

/// How much of the gradients is final how long before the last backward pass ends: what an exchange can hide behind. B/32, 1,024
/// samples on a card, bf16. Run by name; the figures are in docs/clusters.md.
#[test]
#[ignore = "measures"]
fn when_gradients_are_final() {
    let Some(gpu) = crate::card::Gpu::open() else {
        return;
    };
    let config = ClipConfig::preset("openai/clip-vit-base-patch32").unwrap();
    let mut task = ClipTask::new(config, Some(196));
    task.sorted_ids = true;
    let task = Arc::new(task);
    let config = StepConfig {
        arithmetic: Arithmetic::Bf16,
        ..StepConfig::new(task.clone())
    };
    let samples = 1024;
    let request = Request {
        effective_batch: Some(samples),
        batch_size: Some(samples),
        precision: "bf16",
        ..Request::default()
    };
    let build = |shape: &StepShape| write_step(&config, shape);
    let target = gpu.device.target(Arithmetic::Bf16, 0).unwrap();
    let made = plan(&request, &build, &*target).unwrap();
    let mut step = Step::new(gpu.device, config.clone(), made.step, samples).unwrap();
    step.set_weights(gpu.device, task.weights(9).unwrap())
        .unwrap();
    let batch = task.random_batch(samples, 1);
    let stage = match step.plan().kept {
        0 => Stage::ForwardBackward,
        _ => Stage::KeptBackward,
    };
    let seconds = step.stage_seconds(gpu.device, &batch, stage).unwrap();
    let total: f64 = seconds.iter().sum();
    let plan = step.plan();
    let program = plan.program(stage);
    let mut ready: Vec<(f64, u64)> = Vec::new();
    for parameter in step.parameters() {
        let Some(gradient) = plan.graph.parameter_gradient(parameter) else {
            continue;
        };
        let place = plan.place_of(&gradient);
        let bytes = (place.shape.num_elements() * place.dtype.bytes()) as u64;
        let own = place.offset..place.offset + bytes;
        let last = program.instructions.iter().rposition(|one| {
            let mut outputs = one.outputs.iter().flatten();
            outputs.any(|(place, _)| own.contains(&place.offset))
        });
        let until = last.map_or(0.0, |last| seconds[..=last].iter().sum());
        ready.push((total - until, bytes));
    }
    let all: u64 = ready.iter().map(|(_, bytes)| bytes).sum();
    println!(
        "{stage:?}: {:.1} ms one after the other, {:.1} MiB of gradients",
        1e3 * total,
        all as f64 / f64::from(1 << 20)
    );
    for share in [0.75, 0.5, 0.25, 0.1, 0.05, 0.02, 0.0] {
        let left = ready.iter().filter(|(before, _)| *before < share * total);
        let left: u64 = left.map(|(_, bytes)| bytes).sum();
        println!(
            "{:5.1} ms before its end: {:6.1} MiB are not final ({:.1}%)",
            1e3 * share * total,
            left as f64 / f64::from(1 << 20),
            100.0 * left as f64 / all as f64
        );
    }
}
