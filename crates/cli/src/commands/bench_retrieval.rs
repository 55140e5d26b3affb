//! `holdall bench retrieval`: times exact ranking of random features.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use half::{bf16, f16};
use holdall_device::cpu::{peak_resident_bytes, resident_bytes};
use holdall_files::SplitMix64;
use holdall_metrics::features::{Element, Features, Segment};
use holdall_metrics::retrieval::{Job, OnGpu, Options, Pairs, Ties};
use serde::Serialize;

use crate::commands::open_device;
use crate::commands::retrieval::{DecidedJson, rank_on};
use crate::options::{ComputeOptions, at_least_one, seed};
use crate::screen::{print_json, tell};

#[derive(Args)]
#[command(
    after_help = "Features are drawn at random and normalised, each query's match too. After a warm-up, `ms` is the best of \
                  --repeat. One JSON line on stdout.\n\n\
                  Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench retrieval --queries 2000 --gallery 500 --dim 512 --num-threads 2"
)]
pub struct BenchRetrievalArguments {
    /// Number of queries
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = at_least_one)]
    pub queries: usize,
    /// Number of gallery items
    #[arg(long, default_value_t = 5_000, value_name = "N", value_parser = at_least_one)]
    pub gallery: usize,
    /// Values per row of features
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = at_least_one)]
    pub dim: usize,
    /// Number format of the features
    #[arg(long, value_enum, default_value_t = ElementArgument::F32, value_name = "FORMAT")]
    pub element: ElementArgument,
    #[command(flatten)]
    pub compute: ComputeOptions,
    /// Seed of the random features
    #[arg(long, default_value_t = 0, value_name = "SEED", value_parser = seed)]
    pub seed: u64,
    /// Timed repetitions
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = at_least_one)]
    pub repeat: usize,
    /// One JSON object on stdout, nothing else there: so it is with or without this
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ElementArgument {
    /// 32-bit
    F32,
    /// 16-bit IEEE
    F16,
    /// 16-bit brain float
    Bf16,
}

/// JSON output; its keys are a public interface.
#[derive(Serialize)]
struct RetrievalBenchJson<'a> {
    job: &'a str,
    queries: usize,
    gallery: usize,
    dim: usize,
    ms: f64,
    all_ms: Vec<f64>,
    #[serde(flatten)]
    memory: MemoryJson,
    mean_rank: f64,
    mean_rank_to_query: f64,
    decided: DecidedJson,
    /// Milliseconds per stage of the last run.
    stages_ms: serde_json::Map<String, serde_json::Value>,
    /// On a GPU: memory for ranking beside the features.
    extra_bytes: Option<u64>,
    device: &'a str,
    threads: usize,
    element: &'a str,
}

#[derive(Serialize)]
struct MemoryJson {
    /// Peak memory of the process, features included; on a GPU, of GPU memory.
    peak_bytes: Option<u64>,
    /// Memory of the process before ranking.
    before_bytes: Option<u64>,
    host_peak_bytes: Option<u64>,
}

pub fn run(arguments: BenchRetrievalArguments) -> Result<ExitCode> {
    let device = open_device(arguments.compute.device, arguments.compute.num_threads)?;
    let (element, name) = match arguments.element {
        ElementArgument::F32 => (Element::F32, "f32"),
        ElementArgument::F16 => (Element::F16, "f16"),
        ElementArgument::Bf16 => (Element::Bf16, "bf16"),
    };
    let mut dice = Dice(SplitMix64(arguments.seed));
    let [queries, gallery] = [arguments.queries, arguments.gallery]
        .map(|num_rows| dice.features(num_rows, arguments.dim, element));
    let features = |bytes| Features::new(arguments.dim, [Segment { bytes, element }]);
    let gallery_of: Vec<u32> = (0..arguments.queries)
        .map(|_| dice.below(arguments.gallery))
        .collect();
    let pairs = Pairs::one_each(&gallery_of, arguments.gallery)?;
    let job = Job {
        queries: &features(&queries),
        gallery: &features(&gallery),
        pairs: &pairs,
    };
    let options = Options::default();
    let before_bytes = if device.is_gpu() {
        device.held_bytes()
    } else {
        resident_bytes()
    };
    // On a GPU the features are uploaded before the clock starts, as in the PyTorch script for comparison.
    let on_gpu = device.gpu().map(|card| OnGpu::new(card, &job, &options));
    let mut on_gpu = on_gpu.transpose()?;
    let mut rank = || match &mut on_gpu {
        Some(on_gpu) => device.cpu().scope(|| on_gpu.rank(&mut |_| true)),
        None => rank_on(&device, &job, &options, &mut |_| true),
    };
    if device.is_gpu() {
        tell("Once to warm up");
        rank()?;
    }
    let mut all_ms = Vec::new();
    let found = loop {
        let began = Instant::now();
        let found = rank()?;
        all_ms.push(began.elapsed().as_secs_f64() * 1e3);
        if all_ms.len() == arguments.repeat {
            break found;
        }
    };
    print_json(&RetrievalBenchJson {
        job: "retrieval",
        queries: arguments.queries,
        gallery: arguments.gallery,
        dim: arguments.dim,
        ms: all_ms.iter().copied().fold(f64::INFINITY, f64::min),
        all_ms,
        memory: MemoryJson {
            peak_bytes: device.peak_bytes(),
            before_bytes,
            host_peak_bytes: peak_resident_bytes(),
        },
        mean_rank: found.to_gallery.ranks(Ties::Mean).mean_rank,
        mean_rank_to_query: found.to_query.ranks(Ties::Mean).mean_rank,
        decided: found.decided.into(),
        stages_ms: found
            .seconds
            .iter()
            .map(|&(stage, seconds)| (stage.to_owned(), (seconds * 1e3).into()))
            .collect(),
        extra_bytes: on_gpu.as_ref().map(OnGpu::extra_bytes),
        device: device.kind(),
        threads: device.cpu().num_threads(),
        element: name,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Random source of the features.
struct Dice(SplitMix64);

impl Dice {
    fn below(&mut self, bound: usize) -> u32 {
        (self.0.bits() % bound as u64) as u32
    }

    /// Sum of four 16-bit uniform numbers: approximately normal, with mean 0 and variance 1.
    fn normal(&mut self) -> f32 {
        let bits = self.0.bits();
        let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
        const MEAN: f32 = 2.0 * 65_535.0;
        // Each summand has variance 65536^2 / 12.
        const SPREAD: f32 = 37_837.0;
        (sum as f32 - MEAN) / SPREAD
    }

    /// Rows of length 1, in the stored format.
    fn features(&mut self, num_rows: usize, dimension: usize, element: Element) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(num_rows * dimension * element.num_bytes());
        let mut row = vec![0.0; dimension];
        for _ in 0..num_rows {
            row.iter_mut().for_each(|value| *value = self.normal());
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            for value in &row {
                let value = value / length.max(f32::MIN_POSITIVE);
                match element {
                    Element::F32 => bytes.extend(value.to_le_bytes()),
                    Element::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
                    Element::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
                }
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_of_length_one_and_not_alike() {
        let bytes = Dice(SplitMix64(7)).features(20, 64, Element::F32);
        let features = Features::new(
            64,
            [Segment {
                bytes: &bytes,
                element: Element::F32,
            }],
        );
        let mut values = vec![0.0; 20 * 64];
        features.read(0, &mut values);
        for row in values.chunks(64) {
            let length: f32 = row.iter().map(|value| value * value).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.01, "{mean}");
        assert_ne!(values[..64], values[64..128]);
    }
}
