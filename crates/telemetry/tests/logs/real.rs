//! Logs of real runs on an H200, made by `fixtures/real/make_logs.py`: PyTorch's JSON lines, and nvidia-smi beside it.

use std::fs::File;
use std::path::PathBuf;

use holdall_telemetry::analyze::{Analysis, AnalyzeOptions, Format, Symptom, analyze};

pub const NAMES: [&str; 7] = [
    "healthy_torch.jsonl",
    "healthy_smi.csv",
    "leak_torch.jsonl",
    "leak_smi.csv",
    "waiting_torch.jsonl",
    "waiting_smi.csv",
    "fragmented_torch.jsonl",
];

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/real")
        .join(name)
}

fn analysis(name: &str) -> Analysis {
    let options = AnalyzeOptions {
        log: name.to_owned(),
        ..AnalyzeOptions::default()
    };
    let analysis = analyze(File::open(path(name)).unwrap(), &options).unwrap();
    for finding in &analysis.findings {
        println!("{name}: {:?} {}", finding.kind, finding.message);
    }
    for note in &analysis.log.notes {
        println!("{name}: note: {note}");
    }
    analysis
}

fn kinds(name: &str) -> Vec<Symptom> {
    analysis(name)
        .findings
        .iter()
        .map(|finding| finding.kind)
        .collect()
}

#[test]
fn a_healthy_run() {
    assert_eq!(kinds("healthy_torch.jsonl"), []);
    assert_eq!(kinds("healthy_smi.csv"), []);
    let log = analysis("healthy_smi.csv").log;
    assert_eq!((log.format, log.samples), (Format::NvidiaSmi, 333));
}

/// 0.1% of the card per epoch, on a card of which 5% is used.
#[test]
fn a_leak() {
    assert_eq!(
        kinds("leak_torch.jsonl"),
        [Symptom::Growth, Symptom::Underused]
    );
    let growth = &analysis("leak_torch.jsonl").findings[0];
    let per_epoch = growth.evidence["bytes_per_epoch"].as_f64().unwrap();
    let card = 150_109_880_320.0;
    assert!(
        (per_epoch / card / 0.001 - 1.0).abs() < 0.2,
        "{}",
        per_epoch / card
    );
}

#[test]
fn a_run_that_waits() {
    // 95% of the card is free, and no larger batch would make data come faster.
    let analysis = analysis("waiting_smi.csv");
    let [found] = &analysis.findings[..] else {
        panic!("{:?}", analysis.findings);
    };
    assert_eq!(found.kind, Symptom::WaitingForData);
    assert!(found.advice.contains("workers"), "{}", found.advice);
    assert!(!found.advice.contains("batch size"), "{}", found.advice);
    assert_eq!(kinds("waiting_torch.jsonl"), []);
}

#[test]
fn fragments() {
    assert!(kinds("fragmented_torch.jsonl").contains(&Symptom::Fragmentation));
}
