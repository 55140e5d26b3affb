//! `holdall plan`: what fits, what it costs, what is chosen and why.

use std::process::ExitCode;

use anyhow::Result;
use holdall_device::cpu::Cpu;
use holdall_plan::{Candidate, Plan};
use holdall_train::budget::{show_bytes, show_time};
use holdall_train::setup::{Setup, show_budget};
use serde::Serialize;

use crate::arguments::PlanArguments;
use crate::failure;
use crate::screen::{print_json, table};

/// Keys that others rely on.
#[derive(Serialize)]
struct PlanJson<'a> {
    device: &'static str,
    budget_bytes: Option<u64>,
    effective_batch: usize,
    chosen: &'a Candidate,
    alternatives: &'a [Candidate],
    suggestion: Option<&'a Candidate>,
    bound_bytes: u64,
}

pub fn run(arguments: PlanArguments) -> Result<ExitCode> {
    let config = arguments.options.config(&arguments.target)?;
    let setup = Setup::new(&config)?;
    let cpu = Cpu::new(config.num_threads);
    let plan = match setup.plan(&cpu, 0) {
        Ok(plan) => plan,
        Err(error) => {
            if let (true, Some(json)) = (arguments.options.json, failure::does_not_fit_json(&error))
            {
                print_json(&json)?;
            }
            return Err(error.into());
        }
    };
    for note in &setup.notes {
        eprintln!("{note}");
    }
    if arguments.options.json {
        eprintln!("{}", setup.weights.describe());
        print_json(&PlanJson {
            device: "cpu",
            budget_bytes: setup.budget_bytes,
            effective_batch: plan.effective_batch,
            chosen: &plan.chosen,
            alternatives: &plan.alternatives,
            suggestion: plan.suggestion.as_ref(),
            bound_bytes: plan.step.bound_bytes,
        })?;
    } else {
        print!("{}", teach(&config.model, &setup, &plan, cpu.num_threads()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan for people.
fn teach(model: &str, setup: &Setup, plan: &Plan, threads: usize) -> String {
    let chosen = &plan.chosen;
    let mut text = format!(
        "{model} on the CPU ({threads} thread{}), {}\n",
        if threads == 1 { "" } else { "s" },
        match setup.budget_bytes {
            Some(budget) => format!("budget {}", show_bytes(budget)),
            None => "no budget known".to_owned(),
        }
    );
    text.push_str(&format!("{}\n", setup.weights.describe()));
    text.push_str(&format!(
        "Effective batch size: {} ({} x {})\n",
        plan.effective_batch, chosen.batch_size, chosen.gradient_accumulation
    ));
    text.push_str(&format!(
        "Batch size: {} ({})\n",
        chosen.batch_size,
        match (
            setup.request.batch_size,
            setup.request.gradient_accumulation
        ) {
            (Some(_), _) => "as asked",
            (None, Some(_)) => "from the accumulation asked for",
            (None, None) => "chosen",
        }
    ));
    text.push_str(&format!("\nChosen: {}\n", sentence(chosen)));
    text.push_str(&format!(
        "Memory: {} for the process, of which the arena is {}\n\n",
        show_budget(chosen.process_bytes, setup.budget_bytes),
        show_bytes(chosen.arena_bytes)
    ));
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
        text.push_str(&format!(
            "\nhint: --batch-size {} would be {:.0}% faster in the same budget, with the same gradient ({} x {}, recompute {})\n",
            better.batch_size,
            100.0 * (chosen.step_ms / better.step_ms - 1.0),
            better.batch_size,
            better.gradient_accumulation,
            better.recompute
        ));
    }
    text
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
    format!(
        "{} x {}, recompute {}; {passes}; about {} a step",
        candidate.batch_size,
        candidate.gradient_accumulation,
        candidate.recompute,
        show_time(candidate.step_ms)
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
