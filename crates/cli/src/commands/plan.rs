//! `holdall plan`: candidate plans with their costs, and the chosen one with the reason.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_data::table::is_data;
use holdall_device::cuda::cards::{self, CARDS, Card};
use holdall_plan::{Candidate, Choice, HostState, Plan, PlanError, WeightCopies, knee};
use holdall_processes::Group;
use holdall_train::TrainError;
use holdall_train::config::RunConfig;
use holdall_train::config::budget::{show_bytes, show_time};
use holdall_train::engine::frozen::ParameterCount;
use holdall_train::engine::optimizer::savings;
use holdall_train::engine::traffic::Traffic;
use holdall_train::planning::plan_race::Choosing;
use holdall_train::planning::planned_run::{PlanReport, PlannedRun};
use holdall_train::planning::prepare::Prepared;
use holdall_train::planning::setup::{Setup, limit_reading, resolve_budget, show_budget};
use holdall_train::planning::site::Site;

use crate::commands::open_device;
use crate::commands::plan_chart::{Chart, Point};
use crate::commands::train::TrainingOptions;
use crate::failure;
use crate::options::{DeviceArgument, RunOptions, is_yaml};
use crate::screen::{columns, packed, print, print_json, table, tell};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall plan small --effective-batch 128 --memory 400MiB\n  \
                  holdall plan run.yml --batch-size 8 --json\n  \
                  holdall plan photos.csv --model openai/clip-vit-base-patch32 --memory 6GiB\n  \
                  holdall plan openai/clip-vit-base-patch32 --gpu rtx-4060 --memory 6GiB\n  \
                  holdall plan unet --gpu rtx-4060 --batch-size 1 --gradient-accumulation 4\n  \
                  holdall plan run.yml --gpu h200 --processes 8 --bandwidth 450GB/s\n  \
                  holdall plan --gpu list"
)]
pub struct PlanArguments {
    /// CONFIG.yml, data such as photos.csv, a model folder, or a preset such as `small` or `openai/clip-vit-base-patch32`
    #[arg(
        value_name = "CONFIG|DATA",
        default_value = "openai/clip-vit-base-patch32"
    )]
    pub target: String,
    /// Plans for a card that is not here, such as rtx-4060, by its published rates; `list` prints every card
    #[arg(long, value_name = "CARD", conflicts_with = "device")]
    pub gpu: Option<String>,
    /// What each process sends a second, such as 50GB/s or 400Gbit/s, as published or as `holdall bench exchange` measures it: the
    /// step's time with that
    #[arg(long, value_name = "RATE", requires = "processes", value_parser = bandwidth)]
    pub bandwidth: Option<f64>,
    #[command(flatten)]
    pub training: TrainingOptions,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Parses a bandwidth into bytes per second.
fn bandwidth(text: &str) -> Result<f64, String> {
    let units = [
        ("Gbit/s", 1e9 / 8.0),
        ("GB/s", 1e9),
        ("GiB/s", (1u64 << 30) as f64),
        ("MB/s", 1e6),
    ];
    let found = units.iter().find_map(|(unit, bytes)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some(number * bytes)
    });
    found.ok_or_else(|| "expected a rate such as 50GB/s or 400Gbit/s".to_owned())
}

/// Division of a step among processes.
#[derive(Clone, Copy)]
struct Among {
    /// Samples per step, over all processes.
    effective_batch: usize,
    count: usize,
    bandwidth: Option<f64>,
}

impl Among {
    /// Reduces a setup to the share of one process.
    fn new(arguments: &PlanArguments, setup: &mut Setup) -> Result<Among> {
        let count = arguments.options.processes.processes.unwrap_or(1);
        let effective_batch = match count {
            1 => setup.request.samples_per_step().map_err(TrainError::from)?,
            _ => setup.share_among(0, count)?,
        };
        Ok(Among {
            effective_batch,
            count,
            bandwidth: arguments.bandwidth,
        })
    }
}

/// Value of `--gpu` that lists all cards.
const LIST: &str = "list";

pub fn run(arguments: PlanArguments) -> Result<ExitCode> {
    let json = arguments.options.output.json;
    let card = match arguments.gpu.as_deref() {
        Some(LIST) => return list_cards(json),
        Some(name) => Some(cards::find(name).map_err(|error| {
            anyhow::anyhow!("--gpu: {error}\nhint: `holdall plan --gpu {LIST}` shows every card")
        })?),
        None => None,
    };
    let target = arguments.target.as_str();
    if let (Some(model), false) = (
        &arguments.training.model,
        is_yaml(target) || is_data(Path::new(target)),
    ) {
        return Err(TrainError::Config(format!(
            "{target}: expected a config or data beside --model {model}, found neither\n\
             hint: holdall plan {model} plans a model without data"
        ))
        .into());
    }
    let mut config = arguments.options.config(target)?;
    arguments.training.lay_over(&mut config);
    if let Some(card) = card {
        return for_card(&arguments, config, card);
    }
    // One process plans for all, with its share of threads and memory.
    config.validate()?;
    let count = arguments.options.processes.processes.unwrap_or(1);
    let wish = arguments.options.compute.device;
    let device = open_device(wish, num_threads_each(&config, count))?;
    let device = match (wish, device.is_gpu()) {
        // Each process has a card of its own, unless all are sent to the same card.
        (DeviceArgument::Auto | DeviceArgument::Cuda, true) => device,
        _ => device.with_sharers(count),
    };
    limit_reading(&device, resolve_budget(config.memory, &device)?);
    RunOptions::guess_label(target, device.group(), &mut config)?;
    let kind = device.kind();
    // With data, the plan is the one that `train` would make; without data, it is for a model and given numbers.
    if config.data.train.is_some() && count == 1 {
        let planned = PlannedRun::new(config.clone(), device, None, Choosing::Predicted);
        let planned = fitting(json, kind, planned)?;
        for note in &planned.prepared.notes {
            tell(note);
        }
        let setup = &planned.prepared.setup;
        let site = Site::Here(&planned.device);
        let among = Among {
            effective_batch: planned.plan.effective_batch,
            count: 1,
            bandwidth: None,
        };
        return tell_plan(json, &config.model, setup, &planned.plan, (site, among));
    }
    let mut setup = match config.data.train {
        Some(_) => Prepared::new(&config, &device)?.setup,
        None => Setup::without_data(&config, &device)?,
    };
    let among = Among::new(&arguments, &mut setup)?;
    let plan = fitting(json, kind, setup.plan(&device, 0, Choosing::Predicted))?;
    let site = Site::Here(&device);
    tell_plan(json, &config.model, &setup, &plan, (site, among))
}

/// Threads of each of `count` processes on this machine: from the config, or an equal share of the cores.
fn num_threads_each(config: &RunConfig, count: usize) -> Option<usize> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    config
        .num_threads
        .or_else(|| (count > 1).then(|| (cores() / count).max(1)))
}

/// Plans for a card that this machine does not have.
fn for_card(
    arguments: &PlanArguments,
    mut config: RunConfig,
    card: &'static Card,
) -> Result<ExitCode> {
    config.validate()?;
    let json = arguments.options.output.json;
    let site = Site::Card(card);
    limit_reading(site, None);
    RunOptions::guess_label(&arguments.target, &Group::alone(), &mut config)?;
    let config = &config;
    if config.data.train.is_some() {
        let mut prepared = Prepared::new(config, site)?;
        let among = Among::new(arguments, &mut prepared.setup)?;
        let planned = prepared.plan_for_card(card);
        for note in &prepared.notes {
            tell(note);
        }
        let plan = fitting(json, card.name, planned)?;
        return tell_plan(json, &config.model, &prepared.setup, &plan, (site, among));
    }
    let mut setup = Setup::without_data(config, site)?;
    let among = Among::new(arguments, &mut setup)?;
    let plan = fitting(json, card.name, setup.plan(site, 0, Choosing::Predicted))?;
    tell_plan(json, &config.model, &setup, &plan, (site, among))
}

/// Note on the accuracy of such a plan.
fn away_from_the_card(card: &Card) -> String {
    format!(
        "Planned for {} ({} GiB, {}): rates as published, memory of the context guessed; the card itself is measured \
         when it is there",
        card.name,
        card.memory_bytes >> 30,
        card.architecture()
    )
}

/// Prints every card that `--gpu` knows.
fn list_cards(json: bool) -> Result<ExitCode> {
    if json {
        let cards: Vec<_> = CARDS
            .iter()
            .map(|card| {
                serde_json::json!({
                    "name": card.name,
                    "memory_bytes": card.memory_bytes,
                    "usable_bytes": card.usable_bytes(),
                    "architecture": card.architecture(),
                    "multiprocessors": card.num_sms,
                    "bytes_per_second": card.bytes_per_second,
                    "f32_flops": card.f32_flops,
                    "tf32_flops": card.tf32_flops,
                    "fp16_flops": card.f16_flops,
                    "bf16_flops": card.bf16_flops,
                })
            })
            .collect();
        print_json(&serde_json::json!({ "cards": cards }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let heading = [
        "card", "memory", "usable", "for", "GB/s", "f32", "tf32", "fp16", "bf16",
    ];
    let rate =
        |flops: Option<f64>| flops.map_or("-".to_owned(), |rate| format!("{:.1}", rate / 1e12));
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for card in CARDS {
        rows.push(vec![
            card.name.to_owned(),
            format!("{} GiB", card.memory_bytes >> 30),
            show_bytes(card.usable_bytes()),
            card.architecture(),
            format!("{:.0}", card.bytes_per_second / 1e9),
            rate(Some(card.f32_flops)),
            rate(card.tf32_flops),
            rate(Some(card.f16_flops)),
            rate(card.bf16_flops),
        ]);
    }
    print(&format!(
        "Cards for --gpu, with TFLOP/s of products as published (dense, sums in f32):\n{}",
        table(&rows)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Passes a plan on; if it does not fit and `--json` is set, the error is also printed as JSON.
pub fn fitting<T>(json: bool, device: &str, planned: Result<T, TrainError>) -> Result<T> {
    if let (true, Err(error)) = (json, &planned)
        && let Some(json) = failure::does_not_fit_json(device, error)
    {
        print_json(&json)?;
    }
    Ok(planned?)
}

fn tell_plan(
    json: bool,
    model: &str,
    setup: &Setup,
    plan: &Plan,
    (site, among): (Site<'_>, Among),
) -> Result<ExitCode> {
    for note in &setup.notes {
        tell(note);
    }
    if json {
        if let Site::Card(card) = site {
            tell(&away_from_the_card(card));
        }
        tell(&setup.step.task.describe_weights());
        let report = PlanReport::new(plan, site, setup.budget_bytes);
        let mut report = serde_json::to_value(&report)?;
        let sizes = sizes_json(&setup.plan_by_image_size(site));
        if let (Some(report), Some(traffic)) = (report.as_object_mut(), Traffic::of(&plan.step)) {
            let mut exchange = serde_json::to_value(traffic)?;
            exchange["sent_bytes"] = traffic.sent_bytes().into();
            if let Some(rate) = among.bandwidth {
                exchange["bytes_per_second"] = rate.into();
                let ms = 1e3 * traffic.seconds(rate);
                exchange["ms"] = ms.into();
                exchange["step_ms"] = (plan.chosen.step_ms + ms).into();
            }
            report.insert("effective_batch".to_owned(), among.effective_batch.into());
            report.insert("exchange".to_owned(), exchange);
        }
        if let (Some(report), false) = (report.as_object_mut(), sizes.is_empty()) {
            report.insert("sizes".to_owned(), sizes.into());
        }
        let savings = savings(&plan.step.graph, setup.step.optimizer.moments);
        if let (Some(report), false) = (report.as_object_mut(), savings.is_empty()) {
            let savings: Vec<_> = savings
                .iter()
                .map(|saving| {
                    let [key, value] = saving.setting;
                    serde_json::json!({"key": key, "value": value, "saved_bytes": saving.bytes})
                })
                .collect();
            report.insert("savings".to_owned(), savings.into());
        }
        print_json(&report)?;
    } else {
        print(&teach(model, setup, plan, (site, among)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan as text for people.
fn teach(model: &str, setup: &Setup, plan: &Plan, (site, among): (Site<'_>, Among)) -> String {
    let chosen = &plan.chosen;
    let mut text = String::new();
    let place = match site {
        Site::Card(card) => {
            text.push_str(&away_from_the_card(card));
            text.push('\n');
            format!("on {} in {}", card.name, chosen.precision)
        }
        Site::Here(device) if device.is_gpu() => format!("on the GPU in {}", chosen.precision),
        Site::Here(device) => match device.cpu().num_threads() {
            1 => "on the CPU (1 thread)".to_owned(),
            threads => format!("on the CPU ({threads} threads)"),
        },
    };
    let budget = match setup.budget_bytes {
        Some(budget) => format!("budget {}", show_bytes(budget)),
        None => "no budget known".to_owned(),
    };
    text.push_str(&format!("{model} {place}, {budget}\n"));
    let divided = (among.effective_batch, among.count);
    for line in batch_lines(setup, plan, None, divided) {
        text.push_str(&format!("{line}\n"));
    }
    if setup.step.lora.is_some() || !setup.step.frozen.is_empty() {
        let count = ParameterCount::of(&plan.step.graph);
        text.push_str(&format!("{}\n", count.describe()));
    }
    text.push_str(&format!("\nChosen: {}\n", sentence(chosen)));
    text.push_str(&memory_line(setup, chosen));
    if let Some(traffic) = Traffic::of(&plan.step) {
        text.push_str(&traffic_lines(&traffic, chosen.step_ms, among.bandwidth));
    }
    text.push('\n');
    text.push_str(&breakdown(chosen));
    text.push_str(&host_line(chosen, &plan.alternatives));
    text.push_str(&memory_against_speed(plan, setup.budget_bytes));
    if !plan.alternatives.is_empty() {
        text.push_str("\nWhat else there is, and what each knob buys:\n");
        text.push_str(&alternatives(
            plan,
            setup.budget_bytes,
            site.available_bytes_each(),
        ));
        if chosen.choice.weight_copies != WeightCopies::None {
            text.push_str(&format!(
                "\n  copies: weights in {} for the products, made once a step (resident) or before each use",
                chosen.precision
            ));
        }
        if chosen.is_coupled {
            text.push_str(
                "\n  kept: micro-batches that keep their activations and run forward once; the others run it twice",
            );
        }
        text.push_str(if site.is_gpu() { "\n  on the host: optimizer state and weights that the update alone reads may lie in host memory; the same bits" } else { "\n  on the host: nothing; the CPU's memory is the host's, so there is nothing to offload to" });
        text.push_str(
            "\n  recompute: cheap recomputes norms and activations, blocks 2/8 the first two of eight blocks whole\n",
        );
    }
    let savings = savings(&plan.step.graph, setup.step.optimizer.moments);
    if !savings.is_empty() {
        text.push_str("\nWhat changes numbers, and is taken only if you name it:\n");
    }
    for saving in savings {
        let [key, value] = saving.setting;
        text.push_str(&format!(
            "  {} would save {} ({key}: {value})\n",
            saving.what,
            show_bytes(saving.bytes)
        ));
    }
    let sizes = setup.plan_by_image_size(site);
    if !sizes.is_empty() {
        text.push_str("\nWhat pictures of other sizes cost:\n");
        text.push_str(&sizes_table(&sizes));
    }
    if let Some(better) = &plan.suggestion {
        text.push('\n');
        text.push_str(&format!("hint: {}", faster(chosen, better)));
    }
    text
}

/// Line on state in host memory, with the cost of keeping it on the card instead.
fn host_line(chosen: &Candidate, alternatives: &[Candidate]) -> String {
    if chosen.host_bytes == 0 {
        return String::new();
    }
    let on_card = Choice {
        host_state: HostState::Nothing,
        ..chosen.choice
    };
    let found = alternatives.iter().find(|other| other.choice == on_card);
    let instead = found.map_or(String::new(), |other| {
        format!(
            "; on the card a step would take {} in a process of {}",
            show_time(other.step_ms),
            show_bytes(other.process_bytes)
        )
    });
    format!(
        "\n  in host memory: {} ({}){instead}\n",
        show_bytes(chosen.host_bytes),
        chosen.choice.host_state.name()
    )
}

/// Chart of budget against speed, as wide as the terminal; empty if there is only one plan.
fn memory_against_speed(plan: &Plan, budget_bytes: Option<u64>) -> String {
    let points = plan.curve.iter().map(|one| Point {
        bytes: one.process_bytes,
        step_ms: one.step_ms,
        is_measured: one.measured,
    });
    let points: Vec<Point> = points.collect();
    let mut curve = plan.curve.iter();
    let chart = Chart {
        chosen: curve.position(|one| one.choice == plan.chosen.choice),
        knee: knee(&plan.curve),
        points: &points,
        budget_bytes,
    };
    chart.draw(columns()).unwrap_or_default()
}

/// One plan or error per image size.
type Sizes = [(String, Result<Candidate, TrainError>)];

fn sizes_table(sizes: &Sizes) -> String {
    let heading = ["size", "batch", "recompute", "process", "step"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (size, plan) in sizes {
        let mut row = vec![size.clone()];
        match plan {
            Ok(chosen) => {
                let choice = &chosen.choice;
                row.extend([
                    format!("{} x {}", choice.batch_size, choice.gradient_accumulation),
                    choice.recompute.label(),
                    show_bytes(chosen.process_bytes),
                    show_time(chosen.step_ms),
                ]);
            }
            Err(TrainError::Plan(PlanError::DoesNotFit { smallest_bytes, .. })) => {
                let needs = format!("does not fit: {} at least", show_bytes(*smallest_bytes));
                row.extend(["-".to_owned(), "-".to_owned(), needs, "-".to_owned()]);
            }
            Err(error) => row.push(error.to_string()),
        }
        rows.push(row);
    }
    table(&rows)
}

fn sizes_json(sizes: &Sizes) -> Vec<serde_json::Value> {
    let of = |(size, plan): &(String, Result<Candidate, TrainError>)| match plan {
        Ok(chosen) => serde_json::json!({
            "size": size,
            "batch_size": chosen.choice.batch_size,
            "gradient_accumulation": chosen.choice.gradient_accumulation,
            "recompute": chosen.choice.recompute.label(),
            "arena_bytes": chosen.arena_bytes,
            "process_bytes": chosen.process_bytes,
            "step_ms": chosen.step_ms,
        }),
        Err(error) => serde_json::json!({ "size": size, "error": error.to_string() }),
    };
    sizes.iter().map(of).collect()
}

/// The batch lines, in the wording that people search logs for.
fn batch_lines(
    setup: &Setup,
    plan: &Plan,
    resumed_step: Option<u64>,
    processes: (usize, usize),
) -> [String; 3] {
    let chosen = &plan.chosen;
    let (effective_batch, count) = processes;
    let among = match count {
        1 => String::new(),
        _ => format!("{count} processes x "),
    };
    let why = match (
        setup.request.batch_size,
        setup.request.gradient_accumulation,
    ) {
        _ if resumed_step.is_some() => "as the run began",
        (Some(_), _) => "as asked",
        (None, Some(_)) => "from the accumulation asked for",
        (None, None) => "chosen",
    };
    let weights = match resumed_step {
        Some(step) => format!("Weights: from the run's checkpoint of step {step}"),
        None => setup.step.task.describe_weights(),
    };
    let split = &chosen.choice;
    let (size, accumulation) = (split.batch_size, split.gradient_accumulation);
    [
        weights,
        format!("Effective batch size: {effective_batch} ({among}{size} x {accumulation})"),
        format!("Batch size: {size} ({why})"),
    ]
}

/// Rates of common interconnects, per direction and process.
const USUAL_RATES: [(&str, f64); 3] = [
    ("NVLink of an H100 or H200, 450 GB/s", 450e9),
    ("400 Gbit/s for each card, 50 GB/s", 50e9),
    ("10 Gbit/s, 1.25 GB/s", 1.25e9),
];

/// Lines on the data exchanged between processes, and its cost per step.
fn traffic_lines(traffic: &Traffic, step_ms: f64, bandwidth: Option<f64>) -> String {
    let mut text = format!(
        "Exchange: {} of gradients and {} of features a step; each process sends {}\n",
        show_bytes(traffic.reduced_bytes),
        show_bytes(traffic.gathered_bytes),
        show_bytes(traffic.sent_bytes())
    );
    if traffic.owned_bytes > 0 {
        let weights = show_bytes(traffic.owned_bytes);
        text.push_str(&format!(
            "  {weights} of weights among them, from the process that has updated them\n"
        ));
    }
    let line = |what: &str, rate: f64| {
        let ms = 1e3 * traffic.seconds(rate);
        format!(
            "  at {what}: {} where nothing of it hides behind the backward pass, {} a step in all\n",
            show_time(ms),
            show_time(step_ms + ms)
        )
    };
    match bandwidth {
        Some(rate) => text.push_str(&line(&format!("{:.2} GB/s", rate / 1e9), rate)),
        None => {
            for (what, rate) in USUAL_RATES {
                text.push_str(&line(what, rate));
            }
        }
    }
    text
}

fn memory_line(setup: &Setup, chosen: &Candidate) -> String {
    let on_host = match chosen.host_bytes {
        0 => String::new(),
        bytes => format!("; {} of state in host memory", show_bytes(bytes)),
    };
    format!(
        "Memory: {} for the process, of which the arena is {}{on_host}\n",
        show_budget(chosen.process_bytes, setup.budget_bytes),
        show_bytes(chosen.arena_bytes)
    )
}

/// Short form of the plan, printed by `train` before it starts.
pub fn short(planned: &PlannedRun) -> String {
    let (setup, plan) = (&planned.prepared.setup, &planned.plan);
    let split = &planned.split;
    let among = (split.effective_batch, split.processes);
    let chosen = &plan.chosen;
    let resumed_step = planned.resumed_step();
    let [weights, effective, size] = batch_lines(setup, plan, resumed_step, among);
    let asked = setup
        .request
        .batch_size
        .or(setup.request.gradient_accumulation);
    let size = match asked {
        Some(_) => format!("; {size}"),
        None => String::new(),
    };
    let lines = packed([&*weights, &format!("{effective}{size}")]);
    let mut text = lines.join("\n") + "\n";
    let on_host = match chosen.host_bytes {
        0 => String::new(),
        bytes => format!(", {} of state in host memory", show_bytes(bytes)),
    };
    text.push_str(&format!(
        "Plan: {}; {}{on_host}\n",
        sentence(chosen),
        show_budget(chosen.process_bytes, setup.budget_bytes)
    ));
    // A resumed run keeps its original split.
    if let Some(better) = plan.suggestion.as_ref().filter(|_| !planned.is_resumed()) {
        text.push_str(&format!("hint: a new run with {}", faster(chosen, better)));
    }
    text
}

/// Hint: the user's batch size is kept, but a faster one exists.
fn faster(chosen: &Candidate, better: &Candidate) -> String {
    format!(
        "--batch-size {} --gradient-accumulation {} would be {:.0}% faster in the same budget, with the same gradient \
         (recompute {})\n",
        better.choice.batch_size,
        better.choice.gradient_accumulation,
        100.0 * (chosen.step_ms / better.step_ms - 1.0),
        better.choice.recompute.label()
    )
}

fn sentence(candidate: &Candidate) -> String {
    let kept = candidate.choice.kept_micro_batches;
    let twice = candidate.choice.gradient_accumulation - kept;
    let count = |number: usize, one: &str, many: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    };
    let passes = match (kept, twice) {
        _ if !candidate.is_coupled => "forward runs once".to_owned(),
        (_, 0) => "every micro-batch keeps its activations: forward runs once".to_owned(),
        (0, _) => "no micro-batch keeps its activations: forward runs twice".to_owned(),
        (kept, twice) => format!(
            "{}, {} forward twice",
            count(
                kept,
                "micro-batch keeps its activations",
                "micro-batches keep their activations"
            ),
            count(twice, "runs", "run")
        ),
    };
    let time = show_time(candidate.step_ms);
    let time = if candidate.measured {
        format!("{time} a step, measured")
    } else {
        format!("about {time} a step")
    };
    format!(
        "{} x {}, recompute {}; {passes}; {time}",
        candidate.choice.batch_size,
        candidate.choice.gradient_accumulation,
        candidate.choice.recompute.label(),
    )
}

fn breakdown(candidate: &Candidate) -> String {
    let parts = &candidate.breakdown;
    let mut rows = vec![vec![
        "where".to_owned(),
        "bytes".to_owned(),
        "share".to_owned(),
    ]];
    for (name, bytes) in [
        ("weights", parts.weights),
        ("gradients", parts.gradients),
        ("optimizer", parts.optimizer),
        ("activations", parts.activations),
        ("inputs", parts.inputs),
        ("features", parts.features),
        ("workspace", parts.workspace),
        (
            "beside the arena",
            candidate.process_bytes - candidate.arena_bytes,
        ),
        ("process", candidate.process_bytes),
    ] {
        rows.push(vec![
            name.to_owned(),
            show_bytes(bytes),
            format!(
                "{:.1}%",
                100.0 * bytes as f64 / candidate.process_bytes as f64
            ),
        ]);
    }
    table(&rows)
}

const KEPT_COLUMN: usize = 2;
const COPIES_COLUMN: usize = 3;
const HOST_COLUMN: usize = 4;

/// Table of alternatives to the chosen plan. A budget is suggested only if the memory is available.
fn alternatives(plan: &Plan, budget: Option<u64>, available_bytes: Option<u64>) -> String {
    let heading = [
        "batch",
        "recompute",
        "kept",
        "copies",
        "on the host",
        "process",
        "step",
        "against chosen",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for candidate in &plan.alternatives {
        let fits = budget.is_none_or(|budget| candidate.process_bytes <= budget);
        let time = 100.0 * (candidate.step_ms / plan.chosen.step_ms - 1.0);
        let memory = candidate.process_bytes as i64 - plan.chosen.process_bytes as i64;
        let sign = if memory < 0 { "-" } else { "+" };
        let mut against = format!(
            "{time:+.0}% time, {sign}{}",
            show_bytes(memory.unsigned_abs())
        );
        let is_there = available_bytes.is_none_or(|available| candidate.process_bytes <= available);
        if !fits && !is_there {
            against.push_str(" (over what can be had)");
        } else if !fits {
            against.push_str(&format!(
                " (over the budget: --memory {}MiB)",
                candidate.process_bytes.div_ceil(1 << 20)
            ));
        }
        rows.push(vec![
            format!(
                "{} x {}",
                candidate.choice.batch_size, candidate.choice.gradient_accumulation
            ),
            candidate.choice.recompute.label(),
            candidate.choice.kept_micro_batches.to_string(),
            candidate.choice.weight_copies.name().to_owned(),
            candidate.choice.host_state.name().to_owned(),
            show_bytes(candidate.process_bytes),
            show_time(candidate.step_ms),
            against,
        ]);
    }
    let mut all = plan.alternatives.iter().chain([&plan.chosen]);
    let on_host = all.any(|one| one.choice.host_state != HostState::Nothing);
    for row in &mut rows {
        if !on_host {
            row.remove(HOST_COLUMN);
        }
        if plan.chosen.choice.weight_copies == WeightCopies::None {
            row.remove(COPIES_COLUMN);
        }
        if !plan.chosen.is_coupled {
            row.remove(KEPT_COLUMN);
        }
    }
    table(&rows)
}
