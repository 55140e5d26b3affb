//! `holdall plan`: what fits, what it costs, what is chosen and why.

use std::process::ExitCode;

use anyhow::Result;
use holdall_device::Device;
use holdall_plan::{Candidate, Plan};
use holdall_train::TrainError;
use holdall_train::budget::{show_bytes, show_time};
use holdall_train::measure::Choosing;
use holdall_train::ready::{PlanReport, Ready};
use holdall_train::setup::{Setup, show_budget};

use crate::arguments::PlanArguments;
use crate::commands::open_device_for;
use crate::failure;
use crate::screen::{print, print_json, table, tell};

pub fn run(arguments: PlanArguments) -> Result<ExitCode> {
    let config = arguments.options.config(&arguments.target)?;
    let json = arguments.options.json;
    let device = open_device_for(&config, arguments.options.device)?;
    let kind = device.kind();
    // With data the plan is that of `train`; without, that of a model and numbers.
    if config.data.train.is_some() {
        let ready = Ready::new(config.clone(), device, None, Choosing::Predicted);
        let ready = fitting(json, kind, ready)?;
        for note in &ready.prepared.notes {
            tell(note);
        }
        let setup = &ready.prepared.setup;
        return tell_plan(json, &config.model, setup, &ready.plan, &ready.device);
    }
    let setup = Setup::new(&config, &device)?;
    let plan = fitting(json, kind, setup.plan(&device, 0, Choosing::Predicted))?;
    tell_plan(json, &config.model, &setup, &plan, &device)
}

/// What does not fit is told as JSON too, where that was asked for.
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
    device: &Device,
) -> Result<ExitCode> {
    for note in &setup.notes {
        tell(note);
    }
    if json {
        tell(&setup.weights.describe());
        print_json(&PlanReport::new(plan, device, setup.budget_bytes))?;
    } else {
        print(&teach(model, setup, plan, device))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan for people.
fn teach(model: &str, setup: &Setup, plan: &Plan, device: &Device) -> String {
    let chosen = &plan.chosen;
    let place = match (device.is_gpu(), device.cpu().num_threads()) {
        (true, _) => format!("on the GPU in {}", chosen.precision),
        (false, 1) => "on the CPU (1 thread)".to_owned(),
        (false, threads) => format!("on the CPU ({threads} threads)"),
    };
    let mut text = format!(
        "{model} {place}, {}\n",
        match setup.budget_bytes {
            Some(budget) => format!("budget {}", show_bytes(budget)),
            None => "no budget known".to_owned(),
        }
    );
    text.push_str(&batch_lines(setup, plan, false));
    text.push_str(&format!("\nChosen: {}\n", sentence(chosen)));
    text.push_str(&memory_line(setup, chosen));
    text.push('\n');
    text.push_str(&breakdown(chosen));
    if !plan.alternatives.is_empty() {
        text.push_str("\nWhat else there is, and what each knob buys:\n");
        text.push_str(&alternatives(plan, setup.budget_bytes));
        text.push_str(
            "\n  kept: micro-batches that keep their activations and run forward once; the others run it twice\n  \
             recompute: cheap makes norms and activations again, blocks 2/8 the first two of eight blocks whole\n",
        );
    }
    if let Some(better) = &plan.suggestion {
        text.push('\n');
        text.push_str(&faster(chosen, better));
    }
    text
}

/// The lines that people look for in a log.
fn batch_lines(setup: &Setup, plan: &Plan, resumed: bool) -> String {
    let chosen = &plan.chosen;
    let why = match (
        setup.request.batch_size,
        setup.request.gradient_accumulation,
    ) {
        _ if resumed => "as the run began",
        (Some(_), _) => "as asked",
        (None, Some(_)) => "from the accumulation asked for",
        (None, None) => "chosen",
    };
    format!(
        "{}\nEffective batch size: {} ({} x {})\nBatch size: {} ({why})\n",
        setup.weights.describe(),
        plan.effective_batch,
        chosen.batch_size,
        chosen.gradient_accumulation,
        chosen.batch_size,
    )
}

fn memory_line(setup: &Setup, chosen: &Candidate) -> String {
    format!(
        "Memory: {} for the process, of which the arena is {}\n",
        show_budget(chosen.process_bytes, setup.budget_bytes),
        show_bytes(chosen.arena_bytes)
    )
}

/// The plan as `train` says it before it begins.
pub fn short(ready: &Ready) -> String {
    let (setup, plan) = (&ready.prepared.setup, &ready.plan);
    let mut text = batch_lines(setup, plan, ready.is_resumed());
    text.push_str(&format!("Plan: {}\n", sentence(&plan.chosen)));
    text.push_str(&memory_line(setup, &plan.chosen));
    if let Some(better) = &plan.suggestion {
        text.push_str(&faster(&plan.chosen, better));
    }
    text.push_str(&format!(
        "Pictures: {}; steps: {} an epoch, {} in all; epochs: {}\n",
        ready.prepared.train.samples.len(),
        ready.steps_per_epoch(),
        ready.total_steps(),
        ready.config.train.epochs,
    ));
    text
}

/// A user's number is kept; a better one is suggested.
fn faster(chosen: &Candidate, better: &Candidate) -> String {
    format!(
        "hint: --batch-size {} would be {:.0}% faster in the same budget, with the same gradient ({} x {}, recompute {})\n",
        better.batch_size,
        100.0 * (chosen.step_ms / better.step_ms - 1.0),
        better.batch_size,
        better.gradient_accumulation,
        better.recompute
    )
}

fn sentence(candidate: &Candidate) -> String {
    let kept = candidate.kept_micro_batches;
    let twice = candidate.gradient_accumulation - kept;
    let count = |number: usize, one: &str, many: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    };
    let passes = match (kept, twice) {
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
    let time = match candidate.measured {
        true => format!("{time} a step, measured"),
        false => format!("about {time} a step"),
    };
    format!(
        "{} x {}, recompute {}; {passes}; {time}",
        candidate.batch_size, candidate.gradient_accumulation, candidate.recompute,
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
        ("arena", candidate.arena_bytes),
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
                100.0 * bytes as f64 / candidate.arena_bytes as f64
            ),
        ]);
    }
    table(&rows)
}

fn alternatives(plan: &Plan, budget: Option<u64>) -> String {
    let heading = [
        "batch",
        "recompute",
        "kept",
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
        if !fits {
            against.push_str(&format!(
                " (over the budget: --memory {}MiB)",
                candidate.process_bytes.div_ceil(1 << 20)
            ));
        }
        rows.push(vec![
            format!(
                "{} x {}",
                candidate.batch_size, candidate.gradient_accumulation
            ),
            candidate.recompute.clone(),
            candidate.kept_micro_batches.to_string(),
            show_bytes(candidate.process_bytes),
            show_time(candidate.step_ms),
            against,
        ]);
    }
    table(&rows)
}
