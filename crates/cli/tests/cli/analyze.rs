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
        answer.stdout.ends_with("Verdict: healthy\n"),
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
