//! What a run leaves about its memory and its failures, and what TensorBoard finds.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::training::{Home, RunFiles, on};
use crate::typed::{DONE, bytes};

const TWO_EPOCHS: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 2 --lr 1e-3";

const KEYS: [&str; 17] = [
    "time",
    "step",
    "epoch",
    "phase",
    "device",
    "used_bytes",
    "total_bytes",
    "process_bytes",
    "arena_bytes",
    "host_rss_bytes",
    "gpu_utilization",
    "samples_per_s",
    "planned_bytes",
    "batch_size",
    "waited_for_data",
    "process_peak_bytes",
    "budget_bytes",
];

/// Lines of `memory.jsonl`, every one of them whole.
#[track_caller]
fn memory(run: &RunFiles) -> Vec<Value> {
    let text = fs::read_to_string(run.file("memory.jsonl")).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Phases as they follow each other.
fn phases(lines: &[Value]) -> Vec<&str> {
    let mut phases: Vec<&str> = lines
        .iter()
        .map(|line| line["phase"].as_str().unwrap())
        .collect();
    phases.dedup();
    phases
}

#[test]
fn a_run_tells_what_its_memory_did_and_is_silent_inside_its_plan() {
    let home = Home::with_cars(24);
    let answer = home.train(TWO_EPOCHS).exits(DONE);
    for word in ["WARNING", "memory.jsonl", "failure.json"] {
        assert!(!answer.stderr.contains(word), "{}", answer.stderr);
    }
    let run = home.run();
    assert!(!run.file("failure.json").exists());
    assert!(!run.file("tensorboard").exists());
    let lines = memory(&run);
    let an_epoch = ["train", "evaluate", "train", "save"];
    let expected = ["start", "plan", "warmup"];
    assert_eq!(
        phases(&lines),
        [&expected[..], &an_epoch, &an_epoch].concat()
    );
    let planned = bytes(&run.json("summary.json"), "planned_bytes");
    let arena = bytes(&run.json("summary.json"), "arena_bytes");
    for line in &lines {
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys, KEYS);
        assert_eq!(line["device"], "cpu");
        assert!(line["time"].as_f64().unwrap() > 1.6e9, "{line}");
        assert!(line["gpu_utilization"].is_null());
    }
    assert!(lines.is_sorted_by_key(|line| line["step"].as_u64()));
    let trained: Vec<&Value> = lines
        .iter()
        .filter(|line| line["phase"] == "train")
        .collect();
    for line in &trained {
        assert_eq!(
            (&line["planned_bytes"], &line["arena_bytes"]),
            (&planned.into(), &arena.into())
        );
        assert_eq!(line["batch_size"], 4);
        if cfg!(target_os = "linux") {
            let held = bytes(line, "process_bytes");
            assert!(arena / 2 < held && held <= planned, "{line}");
            // An epoch's line has its peak.
            assert!(bytes(line, "host_rss_bytes") <= held, "{line}");
            assert!(bytes(line, "used_bytes") < bytes(line, "total_bytes"));
        }
    }
    // The first batch has a line, and its speed.
    assert_eq!(trained[0]["step"], 1);
    assert!(trained[0]["samples_per_s"].as_f64().unwrap() > 0.0);
    let waited = trained[0]["waited_for_data"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&waited), "{waited}");
    let epochs: BTreeSet<u64> = lines
        .iter()
        .filter_map(|line| line["epoch"].as_u64())
        .collect();
    assert_eq!(epochs, [0, 1, 2].into());
    // Six steps of a tiny model may wait for their pictures on a busy machine; nothing else is wrong.
    let findings = on("analyze", &run.path, "--json").json()["findings"].clone();
    let kinds = findings
        .as_array()
        .unwrap()
        .iter()
        .map(|found| &found["kind"]);
    assert!(
        kinds.clone().all(|kind| kind == "waiting_for_data"),
        "{findings}"
    );
    let page = fs::read_to_string(run.file("report.html")).unwrap();
    assert!(page.contains("process_bytes"));
}

/// Killed, its log cut within a line, and resumed: what was seen before is still there.
#[test]
fn a_log_goes_on_after_a_kill() {
    let home = Home::with_cars(64);
    let mut running = home.start("run", TWO_EPOCHS);
    let run = home.run();
    run.wait_until(&mut running, |run| run.num_lines() >= 2);
    assert!(running.kill());
    let before = memory(&run);
    assert!(before.len() >= 4, "{before:?}");
    let mut log = fs::OpenOptions::new();
    let mut log = log.append(true).open(run.file("memory.jsonl")).unwrap();
    log.write_all(b"{\"time\":17000").unwrap();
    drop(log);
    run.resume("").exits(DONE);
    let after = memory(&run);
    assert_eq!(&after[..before.len()], before);
    let resumed = phases(&after[before.len()..]);
    assert_eq!(resumed[..4], ["start", "plan", "warmup", "train"]);
}

/// A log that cannot be written is said once, and ends no run.
#[test]
fn a_run_goes_on_without_its_log() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    fs::remove_file(run.file("memory.jsonl")).unwrap();
    fs::create_dir(run.file("memory.jsonl")).unwrap();
    let answer = run.resume("--epochs 3").exits(DONE);
    let said: Vec<&str> = answer
        .stderr
        .lines()
        .filter(|line| line.contains("memory.jsonl") && line.contains("goes on without"))
        .collect();
    assert_eq!(said.len(), 1, "{}", answer.stderr);
}

#[test]
fn a_failure_leaves_what_led_to_it_until_the_run_has_finished() {
    let home = Home::with_cars(40);
    let picture = home.path("cars/images/000021.jpg");
    let whole = fs::read(&picture).unwrap();
    fs::write(&picture, "no picture").unwrap();
    let options = "--effective-batch 4 --epochs 1 --set data.bad_pictures=fail \
                   --set data.validation=none --seed 3";
    let answer = home.train(options);
    assert_ne!(answer.code, DONE);
    let run = home.run();
    let path = run.file("failure.json");
    let told = answer.stderr.find(&path.display().to_string()).unwrap();
    assert!(told < answer.stderr.find("error: ").unwrap());
    let failure = run.json("failure.json");
    let error = failure["error"].as_str().unwrap();
    assert!(
        error.contains("000021.jpg") && error.contains("\nhint: "),
        "{error}"
    );
    assert!(answer.stderr.contains(error), "{}", answer.stderr);
    assert_eq!(failure["config"]["train"]["effective_batch"], 4);
    assert_eq!(failure["config"]["seed"], 3);
    assert_eq!(failure["plan"], run.json("plan.json"));
    assert_eq!(failure["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(failure["device"][0], "Device: CPU, 2 threads");
    let command = failure["command"].as_array().unwrap();
    assert_eq!(command[1], "train");
    assert_eq!(failure["memory"], Value::Array(memory(&run)));
    assert_eq!(failure["metrics"], Value::Array(run.lines("step")));
    // It fails again: the file is of the second time.
    assert_ne!(run.resume("").code, DONE);
    let again = run.json("failure.json");
    assert_eq!(again["command"][2], "--resume");
    fs::write(&picture, whole).unwrap();
    run.resume("").exits(DONE);
    assert!(!path.exists());
}

/// What cannot be had is no failure: nothing is left that a new run would stumble over.
#[test]
fn a_refusal_leaves_no_failure() {
    let home = Home::with_cars(16);
    home.train("--effective-batch 8 --epochs 1 --memory 20MiB")
        .exits(3);
    assert!(!home.path("run").exists());
    let run = home.trained("run", "--effective-batch 8 --epochs 2");
    run.resume("--epochs 1").refused_with(&["train.epochs"]);
    assert!(!run.file("failure.json").exists());
}

/// Where writing failed before the run had begun, the same command begins it.
#[test]
fn a_failure_before_the_beginning_is_not_in_the_way() {
    let home = Home::with_cars(16);
    fs::create_dir_all(home.path("run/checkpoints")).unwrap();
    fs::write(home.path("run/failure.json"), "{}").unwrap();
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    assert!(!run.file("failure.json").exists());
}

#[test]
fn tensorboard_finds_every_number_of_both_processes() {
    let home = Home::with_cars(24);
    let options = "--effective-batch 8 --epochs 1 --tensorboard";
    let run = home.trained("run", options);
    let first = event_files(&run.file("tensorboard"));
    assert_eq!(first.len(), 1);
    let before = fs::read(&first[0]).unwrap();
    run.resume("--epochs 2 --tensorboard").exits(DONE);
    let files = event_files(&run.file("tensorboard"));
    assert_eq!(files.len(), 2);
    assert!(fs::read(&first[0]).unwrap() == before);
    let events: Vec<Scalar> = files.iter().flat_map(|path| scalars(path)).collect();
    let of = |tag: &str| -> Vec<(u64, f32)> {
        let found = events.iter().filter(|scalar| scalar.tag == tag);
        found.map(|scalar| (scalar.step, scalar.value)).collect()
    };
    for (kind, name, key) in [
        ("step", "train", "loss"),
        ("step", "train", "gradient_norm"),
        ("evaluation", "validation", "label_top1"),
    ] {
        let lines = run.lines(kind);
        // A short last step has another contrastive loss: its curve leaves it out.
        let largest = lines
            .iter()
            .filter_map(|line| line["samples"].as_u64())
            .max();
        let is_drawn =
            |line: &&serde_json::Value| key != "loss" || line["samples"].as_u64() == largest;
        let expected: Vec<(u64, f32)> = lines
            .iter()
            .filter(is_drawn)
            .map(|line| {
                let value = line[key].as_f64().unwrap() as f32;
                (line["step"].as_u64().unwrap(), value)
            })
            .collect();
        assert_eq!(of(&format!("{name}/{key}")), expected);
    }
    assert_eq!(of("validation/image_to_text/r1").len(), 2);
    assert!(!of("memory/process_bytes").is_empty() || !cfg!(target_os = "linux"));
    assert!(of("train/step").is_empty());
}

/// In the order of their names: first the older one, which may be of the same second.
fn event_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    paths
}

struct Scalar {
    step: u64,
    tag: String,
    value: f32,
}

/// Reads an event file, every sum checked.
fn scalars(path: &Path) -> Vec<Scalar> {
    let file = fs::read(path).unwrap();
    let mut rest = &file[..];
    let mut found = Vec::new();
    let mut is_first = true;
    while !rest.is_empty() {
        let (length, behind) = rest.split_at(8);
        let (sum, behind) = behind.split_at(4);
        assert_eq!(sum, masked_sum(length).to_le_bytes());
        let length = u64::from_le_bytes(length.try_into().unwrap());
        let (event, behind) = behind.split_at(length as usize);
        let (sum, behind) = behind.split_at(4);
        assert_eq!(sum, masked_sum(event).to_le_bytes());
        rest = behind;
        let fields = fields(event);
        if std::mem::take(&mut is_first) {
            assert_eq!(fields[1], (3, Field::Bytes(b"brain.Event:2")));
            continue;
        }
        let step = fields.iter().find_map(|field| match field {
            (2, Field::Number(step)) => Some(*step),
            _ => None,
        });
        let Some((5, Field::Bytes(summary))) = fields.last() else {
            panic!("{fields:?}")
        };
        for (_, value) in self::fields(summary) {
            let Field::Bytes(value) = value else {
                panic!("{value:?}")
            };
            let [(1, Field::Bytes(tag)), (2, Field::Four(value))] = self::fields(value)[..] else {
                panic!("{value:?}")
            };
            found.push(Scalar {
                step: step.unwrap_or(0),
                tag: String::from_utf8(tag.to_vec()).unwrap(),
                value: f32::from_le_bytes(value),
            });
        }
    }
    found
}

#[derive(Debug, PartialEq)]
enum Field<'a> {
    Number(u64),
    Eight,
    Bytes(&'a [u8]),
    Four([u8; 4]),
}

/// A protobuf message's.
fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut message)),
            1 => {
                take(&mut message, 8);
                Field::Eight
            }
            2 => {
                let length = varint(&mut message) as usize;
                Field::Bytes(take(&mut message, length))
            }
            5 => Field::Four(take(&mut message, 4).try_into().unwrap()),
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = from.split_at(length);
    *from = rest;
    taken
}

fn varint(from: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(from, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// CRC-32C bit by bit, masked.
fn masked_sum(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for &byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
        }
    }
    (!sum).rotate_right(15).wrapping_add(0xa282_ead8)
}
