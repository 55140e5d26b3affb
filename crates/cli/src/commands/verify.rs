//! `holdall verify`: certifies that splitting a batch does not change the gradient.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use holdall_files::show_bytes;
use holdall_plan::Recompute;
use holdall_train::TrainError;
use holdall_train::config::Precision;
use holdall_train::planning::prepare::Prepared;
use holdall_train::planning::setup::Setup;
use holdall_train::run::verify::{
    Certificate, Split, SplitResult, usual_splits, verify, verify_plain_accumulation,
};

use crate::commands::{Opened, open_device_for};
use crate::failure;
use crate::options::RunOptions;
use crate::screen::{print, print_json, progress, table, tell};

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| argument.help("Samples in the batch [default: 24]")),
    after_help = "Examples:\n  holdall verify small --effective-batch 24 --labels 10\n  \
                  holdall verify small --split 5 --recompute blocks --json\n\n\
                  Exit code 0: exact; 1: a split changed the gradient."
)]
pub struct VerifyArguments {
    /// CONFIG.yml, a model folder, or a preset
    #[arg(value_name = "CONFIG", default_value = "small")]
    pub target: String,
    /// Only micro-batches of these sizes, instead of the usual choice of splits
    #[arg(long = "split", value_name = "N", value_delimiter = ',')]
    pub splits: Vec<usize>,
    /// Wrong on purpose: the mean over micro-batches, each with its own contrast, Dice and means, to see that the certificate can say no
    #[arg(long)]
    pub plain_accumulation: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Default effective batch: large enough for every kind of split, fast on a CPU.
const DEFAULT_EFFECTIVE_BATCH: usize = 24;

pub fn run(arguments: VerifyArguments) -> Result<ExitCode> {
    let mut config = arguments.options.config(&arguments.target)?;
    // f32 shows the smallest errors; other formats are certified only if named.
    if config.precision == Precision::Auto {
        config.precision = Precision::F32;
    }
    let train = &mut config.train;
    if train.effective_batch.is_none()
        && train.batch_size.is_none()
        && train.gradient_accumulation.is_none()
    {
        train.effective_batch = Some(DEFAULT_EFFECTIVE_BATCH);
    }
    let device = match open_device_for("verify", &config, &arguments.options)? {
        Opened::Here(device) => device,
        Opened::Elsewhere(code) => return Ok(code),
    };
    RunOptions::guess_label(&arguments.target, device.group(), &mut config)?;
    // With data, the certificate covers the heads and tokens that `train` computes.
    let setup = match config.data.train {
        Some(_) => Prepared::new(&config, &device)?.setup,
        None => Setup::without_data(&config, &device)?,
    };
    let request = &setup.request;
    let num_processes = device.group().size();
    let is_of_each = request.effective_batch.is_none()
        && request.batch_size.is_some()
        && request.gradient_accumulation.is_some();
    let effective_batch = request.samples_per_step().map_err(TrainError::from)?
        * if is_of_each { num_processes } else { 1 };
    let task = &setup.step.task;
    let host_bytes = task.batch_bytes(effective_batch);
    if let Some(budget) = setup.budget_bytes.filter(|&budget| host_bytes > budget) {
        return Err(TrainError::Config(format!(
            "the batch of {effective_batch} alone takes {}, the budget is {}\nhint: a smaller --effective-batch",
            show_bytes(host_bytes),
            show_bytes(budget)
        ))
        .into());
    }
    // Each process splits its own share.
    let share = effective_batch.div_ceil(num_processes);
    let splits = splits(&arguments, &setup, share);
    let batch = setup.step.random_batch(effective_batch, setup.seed);
    for note in &setup.notes {
        tell(note);
    }
    tell(&task.describe_weights());
    let bar = progress(splits.len() as u64, "Verifying splits");
    let told = |_: &SplitResult| bar.inc(1);
    let verified = if arguments.plain_accumulation {
        verify_plain_accumulation(&setup, &device, &batch, &splits, told)
    } else {
        verify(&setup, &device, &batch, &splits, Arc::clone(task), told)
    };
    bar.finish_and_clear();
    if let (true, Err(error)) = (arguments.options.output.json, &verified)
        && let Some(json) = failure::does_not_fit_json(device.kind(), error)
    {
        print_json(&json)?;
    }
    let certificate = verified?;
    if device.group().rank() > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.options.output.json {
        print_json(&certificate)?;
    } else {
        print(&show(&certificate, effective_batch))?;
    }
    Ok(if certificate.exact {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(failure::FOUND)
    })
}

/// The requested splits, or the default ones, under the requested recomputation policy.
fn splits(arguments: &VerifyArguments, setup: &Setup, effective_batch: usize) -> Vec<Split> {
    let fixed = setup.request.recompute;
    let mut sizes = arguments.splits.clone();
    let accumulation = setup.request.gradient_accumulation;
    let asked = setup.request.batch_size;
    sizes.extend(asked.or(accumulation.map(|parts| effective_batch.div_ceil(parts))));
    if sizes.is_empty() {
        let mut splits = usual_splits(effective_batch);
        if let Some(recompute) = fixed {
            for split in &mut splits {
                split.recompute = recompute;
            }
        }
        return splits;
    }
    let policies = match fixed {
        Some(recompute) => vec![recompute],
        None => vec![Recompute::None, Recompute::Cheap, Recompute::Blocks],
    };
    let mut splits = Vec::new();
    for batch_size in sizes {
        let accumulation = effective_batch.div_ceil(batch_size.max(1));
        for &recompute in &policies {
            for kept_micro_batches in [0, accumulation / 2, accumulation] {
                let split = Split {
                    batch_size,
                    recompute,
                    kept_micro_batches,
                };
                if !splits.contains(&split) {
                    splits.push(split);
                }
            }
        }
    }
    splits
}

fn show(certificate: &Certificate, effective_batch: usize) -> String {
    let heading = ["split", "recompute", "kept", "largest error", "parameter"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for result in &certificate.splits {
        rows.push(vec![
            format!(
                "{} x {}",
                result.split.batch_size, result.gradient_accumulation
            ),
            format!("{:?}", result.split.recompute).to_lowercase(),
            result.split.kept_micro_batches.to_string(),
            match result.max_relative_error {
                0.0 => "0".to_owned(),
                error => format!("{error:.1e}"),
            },
            result.worst_parameter.clone(),
        ]);
    }
    let tolerance = certificate.tolerance;
    let verdict = if certificate.exact {
        format!(
            "EXACT: every split of {effective_batch} has the full-batch gradient within {tolerance:.0e}\n"
        )
    } else {
        format!(
            "NOT EXACT: {} is off by {:.1e} (tolerance {tolerance:.0e}), the loss by {:.1e}\n",
            certificate.worst_parameter,
            certificate.max_relative_error,
            certificate.loss_difference
        )
    };
    format!("{}\n{verdict}", table(&rows))
}
