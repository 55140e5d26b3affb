//! Twenty plans run for real: the arena to the byte; the process within 0.5% or 2 MiB, whichever is larger, and never
//! above what was forecast.

use holdall_models::clip::init;
use holdall_models::config::ClipConfig;
use holdall_models::folder::write_folder;
use serde_json::Value;

use crate::typed::{DONE, bytes, holdall_with, holdall_words};

const MIB: u64 = 1 << 20;

/// Batch sizes 1 to 128, accumulation, uneven tails, every policy, budgets, 1 to 16 threads, lengths of captions, heads, sizes
/// of model.
const PLANS: [&str; 20] = [
    "--small --batch-size 1 --gradient-accumulation 1",
    "--small --batch-size 2 --gradient-accumulation 3 --num-threads 1",
    "--small --batch-size 4 --effective-batch 15 --recompute cheap --num-threads 16",
    "--small --batch-size 8 --gradient-accumulation 2 --recompute none --num-threads 4",
    "--small --batch-size 8 --effective-batch 30 --recompute blocks --num-threads 3",
    "--small --batch-size 16 --gradient-accumulation 2 --recompute auto --tokens 8 --num-threads 8",
    "--small --batch-size 32 --gradient-accumulation 1 --labels 2 --num-threads 6",
    "--small --batch-size 32 --effective-batch 40 --labels 5000",
    "--small --batch-size 64 --gradient-accumulation 1 --recompute blocks --tokens 16 --num-threads 12",
    "--small --batch-size 128 --gradient-accumulation 1 --recompute none --tokens 8",
    "--small --effective-batch 64 --memory 60MiB",
    "--small --effective-batch 48 --memory 80MiB --num-threads 1",
    "--small --effective-batch 50 --memory 120MiB --num-threads 3",
    "--small --effective-batch 64 --memory 200MiB --num-threads 16",
    "--small --effective-batch 100 --memory 500MiB --tokens 16",
    "--small --effective-batch 33 --memory 100MiB --recompute none --num-threads 5",
    "--small --batch-size 5 --effective-batch 32 --memory 70MiB --num-threads 8",
    "--small --gradient-accumulation 5 --effective-batch 33 --memory 150MiB --labels 5000",
    "--small --batch-size 1 --effective-batch 24 --memory 90MiB --recompute cheap --num-threads 10",
    "--model openai/clip-vit-base-patch32 --batch-size 1 --gradient-accumulation 2 --tokens 16 --num-threads 4",
];

/// What people set for other programs, one plan after the other.
const ENVIRONMENTS: [&[(&str, &str)]; 4] = [
    &[],
    &[("MALLOC_ARENA_MAX", "1")],
    &[
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("MALLOC_TRIM_THRESHOLD_", "134217728"),
    ],
    &[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")],
];

/// One line of the table: what was forecast and what came, and whether that will do.
struct Comparison {
    line: String,
    faults: Vec<String>,
}

fn compare(plan: &str, measured: &Value) -> Comparison {
    let arena = bytes(measured, "arena_bytes");
    let forecast_arena = bytes(measured, "planned_arena_bytes");
    let forecast = bytes(measured, "planned_bytes");
    // Null where the system does not tell; on Linux it does.
    let process = match measured["process_bytes"].as_u64() {
        None if !cfg!(target_os = "linux") => forecast,
        process => process.unwrap(),
    };
    let in_mib = |bytes: u64| bytes as f64 / MIB as f64;
    let over = in_mib(forecast) - in_mib(process);
    let line = format!(
        "{arena:>13} {:>13} {:>12.1} {:>12.1} {over:>+8.2} {:>7.2}%  {plan}",
        forecast_arena as i64 - arena as i64,
        in_mib(forecast),
        in_mib(process),
        100.0 * over / in_mib(forecast)
    );
    let mut faults = Vec::new();
    if arena != forecast_arena {
        faults.push("the arena is not what was planned".to_owned());
    }
    if process > forecast {
        faults.push("the process exceeds its forecast".to_owned());
    } else if forecast - process > (forecast / 200).max(2 * MIB) {
        faults.push("the forecast is further off than 0.5% and 2 MiB".to_owned());
    }
    let words: Vec<&str> = plan.split_whitespace().collect();
    let budget = words.windows(2).find(|pair| pair[0] == "--memory");
    if let Some(budget) = budget.and_then(|pair| pair[1].strip_suffix("MiB")) {
        let budget = budget.parse::<u64>().unwrap() * MIB;
        if process > budget || forecast > budget {
            faults.push("the process exceeds its budget".to_owned());
        }
    }
    Comparison { line, faults }
}

fn heading() -> String {
    format!(
        "{:>13} {:>13} {:>12} {:>12} {:>8} {:>8}  plan",
        "arena bytes", "off by", "forecast MiB", "measured MiB", "over", "over"
    )
}

#[test]
fn twenty_plans_come_true() {
    println!("{}", heading());
    let mut faults = Vec::new();
    for (plan, variables) in PLANS.into_iter().zip(ENVIRONMENTS.into_iter().cycle()) {
        let typed = format!("bench clip --steps 1 --json {plan}");
        let answer = holdall_with(variables, &typed).exits(DONE);
        let comparison = compare(plan, &answer.json());
        println!("{}", comparison.line);
        let of_plan = |fault| format!("{plan}: {fault}");
        faults.extend(comparison.faults.into_iter().map(of_plan));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Weights that come from a file pass through the process too.
#[test]
fn a_plan_with_weights_from_a_folder_comes_true() {
    let config = ClipConfig::preset("small").unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let mut values = vec![0.0; shape.iter().product()];
            init::fill(&config, 0, &name, &mut values).unwrap();
            (name, shape, values)
        })
        .collect();
    let views: Vec<(String, Vec<usize>, &[f32])> = tensors
        .iter()
        .map(|(name, shape, values)| (name.clone(), shape.clone(), values.as_slice()))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &config, &views, None, None).unwrap();
    println!("{}", heading());
    for options in [
        "--batch-size 4 --gradient-accumulation 1",
        "--effective-batch 8 --memory 60MiB",
    ] {
        let options = format!("{options} --steps 1 --json --model");
        let words = ["bench", "clip"].into_iter().chain(options.split(' '));
        let words = words.map(Into::into).chain([folder.path().to_owned()]);
        let comparison = compare(&options, &holdall_words(words).exits(DONE).json());
        println!("{}", comparison.line);
        assert!(comparison.faults.is_empty(), "{:?}", comparison.faults);
    }
}
