//! `holdall bench exchange`: speed of all-reduce and all-gather of host memory between processes.
//!
//! A ring all-reduce of `S` bytes sends `2 S (N - 1) / N` bytes from each of `N` processes, an all-gather half of that. Bytes over
//! seconds is the rate that `plan --bandwidth` takes.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use holdall_processes::{Group, GroupError};
use holdall_train::TrainError;
use serde::Serialize;
use serde_json::json;

use crate::options::{ProcessOptions, at_least_one};
use crate::processes::{self, Begun};
use crate::screen::{print_json, tell};

#[derive(Args)]
#[command(
    after_help = "Sums and gathers of f32 by what a run on CPUs would use: MPI under mpirun, TCP otherwise. One JSON line on stdout; \
                  sent_bytes_per_s is what `holdall plan --bandwidth` takes. Between GPUs, the bus bandwidth that all_reduce_perf of \
                  nccl-tests prints is the same figure.\n\n\
                  Examples:\n  \
                  holdall bench exchange --processes 2\n  \
                  mpirun -n 16 holdall bench exchange --mib 512"
)]
pub struct BenchExchangeArguments {
    #[command(flatten)]
    pub processes: ProcessOptions,
    /// Size of the tensor, as large as the gradients of a model are
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub mib: u32,
    /// Timed exchanges; the fastest counts
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = at_least_one)]
    pub rounds: usize,
    /// One JSON object on stdout, nothing else there: so it is with or without this
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct ExchangeBenchJson<'a> {
    job: &'a str,
    processes: usize,
    transport: &'a str,
    bytes: usize,
    sum_ms: f64,
    gather_ms: f64,
    /// All-gather of a few bytes per process.
    message_ms: f64,
    /// Bytes that each process sends during an all-reduce, per second.
    sent_bytes_per_s: f64,
}

pub fn run(arguments: BenchExchangeArguments) -> Result<ExitCode> {
    let group = match processes::begin(
        &arguments.processes,
        || json!({"command": "bench exchange"}),
    )? {
        Begun::Ended(code) => return Ok(code),
        Begun::Member(group) => group,
    };
    let count = group.size();
    if count == 1 {
        return Err(TrainError::Config(
            "bench exchange: expected several processes, found one\nhint: --processes 2, or mpirun -n 2 holdall bench exchange"
                .to_owned(),
        )
        .into());
    }
    let rounds = arguments.rounds;
    // The all-gather needs equal parts on all processes.
    let floats = ((arguments.mib as usize) << 18).next_multiple_of(count);
    let bytes = floats * size_of::<f32>();
    let mut values = vec![0.0; floats];
    let sum = fastest(&group, rounds, || group.all_reduce_f32(&mut [&mut values]))?;
    drop(values);
    let mut parts = vec![0; bytes];
    let gather = fastest(&group, rounds, || group.all_gather(&mut parts))?;
    let message = fastest(&group, rounds, || group.share(&[0; 64]).map(drop))?;
    let sent = 2.0 * bytes as f64 * (count - 1) as f64 / count as f64;
    let rate = sent / sum;
    print_json(&ExchangeBenchJson {
        job: "exchange",
        processes: count,
        transport: group.transport().unwrap_or("nothing"),
        bytes,
        sum_ms: 1e3 * sum,
        gather_ms: 1e3 * gather,
        message_ms: 1e3 * message,
        sent_bytes_per_s: rate,
    })?;
    tell(&format!(
        "For a plan: holdall plan CONFIG --processes {count} --bandwidth {:.2}GB/s",
        rate / 1e9
    ));
    Ok(ExitCode::SUCCESS)
}

/// Seconds of the fastest of several exchanges, after a warm-up that allocates staging. The slowest process counts.
fn fastest(
    group: &Group,
    rounds: usize,
    mut exchange: impl FnMut() -> Result<(), GroupError>,
) -> Result<f64, GroupError> {
    exchange()?;
    let mut fastest = f64::INFINITY;
    for _ in 0..rounds {
        group.share(&[])?;
        let began = Instant::now();
        exchange()?;
        let all = group.share(&began.elapsed().as_secs_f64().to_le_bytes())?;
        let seconds = all.iter().filter_map(|bytes| bytes[..].try_into().ok());
        let slowest = seconds.map(f64::from_le_bytes).fold(0.0, f64::max);
        fastest = fastest.min(slowest);
    }
    Ok(fastest)
}
