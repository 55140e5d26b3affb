//! `holdall analyze`: what it says of a log, where, and with which exit code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::typed::{Answer, BAD_INPUT, DONE, FOUND, holdall_words, program};

fn real(name: &str) -> PathBuf {
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../telemetry/tests/fixtures/real");
    logs.join(name)
}

fn analyze(log: &Path, options: &str) -> Answer {
    let words = ["analyze".into(), log.as_os_str().to_owned()];
    holdall_words(
        words
            .into_iter()
            .chain(options.split_whitespace().map(Into::into)),
    )
}

#[test]
fn a_healthy_log() {
    let answer = analyze(&real("healthy_smi.csv"), "").exits(DONE);
    assert!(
        answer
            .stdout
            .contains("nvidia-smi CSV, 333 samples over 66.6 s"),
        "{}",
        answer.stdout
    );
    assert!(
        answer
            .stdout
            .ends_with("Verdict: healthy, as far as memory goes\n"),
        "{}",
        answer.stdout
    );
    let json = analyze(&real("healthy_torch.jsonl"), "--json")
        .exits(DONE)
        .json();
    assert_eq!(json["verdict"], "healthy");
    assert_eq!(json["findings"], serde_json::json!([]));
    assert_eq!(json["log"]["samples"], 250);
}

#[test]
fn findings_say_what_to_do() {
    let answer = analyze(&real("leak_torch.jsonl"), "").exits(FOUND);
    for part in [
        ": steady growth\n  allocated memory grows by 143",
        "\n  do: keep numbers, not tensors",
        "\nWARNING: underused\n",
        "\nVerdict: warning (2 warnings)\n",
    ] {
        assert!(answer.stdout.contains(part), "{part}\n{}", answer.stdout);
    }
    assert!(
        answer.stderr.contains("note: names without a unit"),
        "{}",
        answer.stderr
    );
    let json = analyze(&real("leak_torch.jsonl"), "--json")
        .exits(FOUND)
        .json();
    assert_eq!(json["verdict"], "warning");
    let finding = json["findings"][0].as_object().unwrap();
    let keys: Vec<&str> = finding.keys().map(String::as_str).take(4).collect();
    assert_eq!(keys, ["kind", "severity", "step", "message"]);
    assert_eq!(finding["kind"], "growth");
    // On a card that is nearly full the same leak is urgent.
    let json = analyze(&real("leak_torch.jsonl"), "--json --limit 3GiB")
        .exits(FOUND)
        .json();
    assert_eq!(
        (&json["verdict"], &json["findings"][0]["kind"]),
        (&"problem".into(), &"growth".into())
    );
}

#[test]
fn a_run_folder_and_stdin() {
    let folder = TempDir::new().unwrap();
    analyze(folder.path(), "").exits(BAD_INPUT);
    fs::copy(
        real("healthy_torch.jsonl"),
        folder.path().join("memory.jsonl"),
    )
    .unwrap();
    analyze(folder.path(), "").exits(DONE);
    let mut command = Command::new(program());
    command
        .args(["analyze", "-"])
        .stdin(fs::File::open(real("waiting_smi.csv")).unwrap());
    let output = command.stderr(Stdio::null()).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(FOUND));
    assert!(
        stdout.starts_with("stdin: ") && stdout.contains("waiting for data"),
        "{stdout}"
    );
}

/// A lost GPU is a line that is no sample: it is told, and the exit code says so.
#[test]
fn a_log_that_ends_with_a_lost_gpu() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("gpu.csv");
    let healthy = fs::read_to_string(real("healthy_smi.csv")).unwrap();
    let lost = "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU";
    fs::write(&log, format!("{healthy}{lost}\n")).unwrap();
    let answer = analyze(&log, "").exits(FOUND);
    let expected = "\nPROBLEM: GPU error\n  the driver lost the GPU, or cannot read it, line 335: `Unable to determine";
    assert!(answer.stdout.contains(expected), "{}", answer.stdout);
    assert!(
        answer.stdout.ends_with("\nVerdict: problem (1 problem)\n"),
        "{}",
        answer.stdout
    );
}

#[test]
fn a_limit_below_what_was_used() {
    let answer = analyze(&real("healthy_smi.csv"), "--limit 8GiB").exits(FOUND);
    assert!(
        answer
            .stdout
            .contains("PROBLEM: over the budget\n  held 43.53 GiB 7.7 s into the log: "),
        "{}",
        answer.stdout
    );
    assert!(
        answer.stdout.contains("over the --limit of 8.00 GiB"),
        "{}",
        answer.stdout
    );
    let note = "note: --limit: 8.00 GiB counts as full, not the 140.40 GiB that the log says the device has";
    assert!(answer.stderr.contains(note), "{}", answer.stderr);
}

#[test]
fn dmon() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("dmon.txt");
    let header = "#Time        gpu    pwr     sm    mem     fb\n#HH:MM:SS    Idx      W      %      %     MB\n";
    let rows: String = (10..60)
        .map(|at| format!(" 10:00:{at}      0    297     98     72  18000\n"))
        .collect();
    fs::write(&log, format!("{header}{rows}")).unwrap();
    let answer = analyze(&log, "--limit 24GiB").exits(DONE);
    let expected = "dmon.txt: nvidia-smi dmon, 50 samples over 49.0 s\nVerdict: healthy, as far as memory goes\n";
    assert!(answer.stdout.ends_with(expected), "{}", answer.stdout);
}

/// What a run's other files say: its wait, step by step, its budget, and that it diverged.
#[test]
fn a_run_that_waited_diverged_and_went_over_its_budget() {
    let folder = TempDir::new().unwrap();
    let sample = "{\"time\":1.0,\"step\":1,\"epoch\":0,\"phase\":\"train\",\"device\":\"cpu\",\"used_bytes\":3000000000,\
                  \"total_bytes\":25000000000,\"process_bytes\":130000000,\"arena_bytes\":1}\n";
    fs::write(folder.path().join("memory.jsonl"), sample.repeat(4)).unwrap();
    analyze(folder.path(), "").exits(DONE);
    let step = |loss: &str| {
        format!(
            "{{\"kind\":\"step\",\"step\":1,\"loss\":{loss},\"seconds\":1.0,\"waited_for_data\":0.63}}\n"
        )
    };
    fs::write(
        folder.path().join("metrics.jsonl"),
        step("2.5").repeat(3) + &step("null"),
    )
    .unwrap();
    let summary = "{\"budget_bytes\": 146800640, \"process_bytes\": 236978176}";
    fs::write(folder.path().join("summary.json"), summary).unwrap();
    let json = analyze(folder.path(), "--json").exits(FOUND).json();
    let findings = json["findings"].as_array().unwrap();
    let mut kinds: Vec<&str> = findings
        .iter()
        .map(|found| found["kind"].as_str().unwrap())
        .collect();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        ["diverged", "over_budget", "waiting_for_data"],
        "{json}"
    );
    assert!(
        findings.iter().all(|found| found["severity"] == "problem"),
        "{json}"
    );
    assert_eq!(json["verdict"], "problem");
}

#[test]
fn logs_that_cannot_be_read() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("gpu.csv");
    analyze(&log, "").refused_with(&["gpu.csv: expected a log of memory"]);
    for (text, found) in [
        ("", "found an empty file"),
        ("12, 3000, 24000\n", "found `12, 3000, 24000`"),
        ("{\"loss\": 1}\n", "line 1: no memory"),
    ] {
        fs::write(&log, text).unwrap();
        analyze(&log, "").refused_with(&["gpu.csv: expected", found]);
    }
    fs::write(&log, "12, 3000, 24000\n".repeat(40)).unwrap();
    analyze(&log, "--columns step,memory.used,memory.total").exits(FOUND);
    analyze(&log, "--columns a,b,c").refused_with(&["--columns: expected"]);
    analyze(&log, "--limit lots").exits(BAD_INPUT);
}
