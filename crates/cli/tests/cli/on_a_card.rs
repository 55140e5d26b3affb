//! Commands on a card: what the CPU finds, within a budget that a neighbour may take a part of. With `HOLDALL_TEST_DEVICE=cuda`.

use std::path::Path;

use crate::several_processes::{assert_close, children_of, signal};
use crate::training::{Home, assert_same_model};
use crate::typed::{Answer, DONE, FOUND, holdall, holdall_with, start_after, test_device};

/// Whether a card is tested; the tests of training say once for all where not.
fn has_card() -> bool {
    test_device() != "cpu"
}

/// A set of each task, and how it is trained in a few steps; CLIP with adapters and with 8-bit moments and averages too.
const RUNS: [(&str, &str, &str); 6] = [
    (
        "clip",
        "cars",
        "--model small --effective-batch 6 --batch-size 3 --gradient-accumulation 2",
    ),
    (
        "clip",
        "cars",
        "--model small --effective-batch 6 --batch-size 3 --gradient-accumulation 2 --set train.lora.rank=4 \
         --set train.lora.alpha=6",
    ),
    (
        "clip",
        "cars",
        "--model small --effective-batch 6 --batch-size 3 --gradient-accumulation 2 --set train.optimizer_state=8bit \
         --set train.ema=0.9",
    ),
    (
        "classify",
        "cars",
        "--model vit-demo --effective-batch 6 --batch-size 4 --gradient-accumulation 2",
    ),
    (
        "segment",
        "vessels",
        "--model unet-demo --effective-batch 3 --batch-size 2 --gradient-accumulation 2",
    ),
    (
        "video-text",
        "clips",
        "--model video-text-demo --effective-batch 4 --batch-size 2 --gradient-accumulation 2",
    ),
];

fn draw(home: &Home) {
    for line in [
        "cars {}/cars --count 24",
        "vessels {}/vessels --count 8 --size 64",
        "clips {}/clips --count 16",
    ] {
        let line = line.replace("{}", &home.path("").display().to_string());
        holdall(&format!("data sample {}", line.replace("//", "/"))).exits(DONE);
    }
}

fn train(home: &Home, task: &str, data: &str, options: &str, device: &str, out: &str) -> Answer {
    let [data, out] = [data, out].map(|name| home.path(name).display().to_string());
    holdall(&format!(
        "train {data} --task {task} {options} --device {device} --precision f32 --recompute none \
         --set train.max_steps=3 --out {out}"
    ))
    .exits(DONE)
}

/// Losses of the steps, then of the evaluations.
fn losses(run: &Path) -> Vec<f64> {
    let lines = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let of = |kind: &'static str| {
        let lines = lines.iter().filter(move |line| line["kind"] == kind);
        lines.map(|line| line["loss"].as_f64().unwrap())
    };
    of("step").chain(of("evaluation")).collect()
}

#[test]
fn every_task_has_the_losses_of_the_cpu() {
    if !has_card() {
        return;
    }
    let home = Home::empty();
    draw(&home);
    let device = test_device();
    for (number, (task, data, options)) in RUNS.into_iter().enumerate() {
        let [expected, found] = [("cpu", "on-cpu"), (&*device, "on-card")].map(|(device, name)| {
            let name = format!("{number}-{task}-{name}");
            train(&home, task, data, options, device, &name);
            let run = home.path(&name);
            holdall(&format!("eval {} --device {device} --json", run.display())).exits(DONE);
            losses(&run)
        });
        let task = format!("{task} {options}");
        assert_eq!(found.len(), expected.len(), "{task}");
        assert!(found.len() >= 3, "{task}: {found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            let off = (found - expected).abs() / expected.abs();
            assert!(off <= 1e-4, "{task}: {found} instead of {expected}");
        }
    }
}

/// Another process takes most of the card, early and late, and a card as Windows runs it lends host memory instead of refusing: the run
/// stays within its budget, planned again where that helps, or ends with a sentence.
#[test]
fn a_neighbour_that_takes_memory_is_named() {
    let Ok(card) = std::env::var("HOLDALL_SOFTWARE_GPU") else {
        return;
    };
    let home = Home::with_cars(24);
    // Whether a run must end well; how often it asks what is free depends on what earlier runs have cached, so later neighbours are open.
    for (differs, ends_well) in [
        ("neighbour=7950@1", Some(false)),
        ("neighbour=7000@8", None),
        ("neighbour=7800@12", None),
        ("wddm", Some(true)),
        ("wddm,neighbour=7950@0", Some(false)),
        ("wddm,pinned=1", Some(false)),
    ] {
        // A machine of its own: where the driver does not report memory per process, that of other tests would count as this run's.
        let card = format!("{card},machine=neighbour,{differs}");
        let out = home.path(&format!("run-{differs}"));
        let line = format!(
            "train {} --task clip --model small --effective-batch 8 --device {} --precision f32 --memory 600MiB \
             --set train.max_steps=2 --out {}",
            home.csv().display(),
            test_device(),
            out.display()
        );
        let answer = holdall_with(&[("HOLDALL_SOFTWARE_GPU", &card)], &line);
        if answer.code == DONE {
            let summary: serde_json::Value =
                serde_json::from_slice(&std::fs::read(out.join("summary.json")).unwrap()).unwrap();
            let [held, planned] = ["process_bytes", "planned_bytes"].map(|key| {
                summary[key]
                    .as_u64()
                    .unwrap_or_else(|| panic!("{key}: {summary}"))
            });
            assert!(held > 100 << 20 && held <= planned, "{differs}: {summary}");
            assert!(planned <= 600 << 20, "{differs}: {summary}");
        } else {
            let said = &answer.stderr;
            assert!(
                said.contains("error: ") && said.contains("hint: "),
                "{differs}: {said}"
            );
            assert!(!said.contains("panicked"), "{differs}: {said}");
            assert_eq!(
                said.contains("could not be pinned"),
                differs.contains("pinned"),
                "{differs}: {said}"
            );
        }
        if let Some(ends_well) = ends_well {
            assert_eq!(
                answer.code == DONE,
                ends_well,
                "{differs}: {}",
                answer.stderr
            );
        }
    }
}

/// NCCL between two processes with a card each: the losses of one process. If one is killed, the other ends with a sentence, and the run
/// can be resumed.
#[test]
fn two_cards_train_as_one_and_a_lost_process_ends_both() {
    let Ok(card) = std::env::var("HOLDALL_SOFTWARE_GPU") else {
        return;
    };
    let home = Home::with_cars(24);
    let two_cards = format!("export HOLDALL_SOFTWARE_GPU={card},count=2");
    let device = test_device();
    let options = format!(
        "--effective-batch 8 --batch-size 2 --epochs 2 --device {device} --precision f32 --recompute none \
         --set train.save_every=2 --set data.validation=none"
    );
    let [one, two] = [("one", ""), ("two", " --processes 2")].map(|(name, processes)| {
        let words = home.words(name, &format!("{options}{processes}"));
        start_after(&two_cards, words).answer().exits(DONE);
        home.run_named(name)
    });
    assert_close(&two, &one);

    let run = home.run_named("killed");
    let words = home.words("killed", &format!("{options} --processes 2"));
    let mut running = start_after(&two_cards, words);
    run.wait_until(&mut running, |run| run.num_lines() >= 3);
    let processes = children_of(running.id());
    assert_eq!(processes.len(), 2, "{}", running.said());
    signal(processes[1], "KILL");
    let answer = running.answer().exits(FOUND);
    assert!(answer.stderr.contains("rank 1"), "{}", answer.stderr);
    let words = run.resume_words(&format!("--processes 2 --device {device}"));
    start_after(&two_cards, words).answer().exits(DONE);
    assert_eq!(run.of_steps("loss"), two.of_steps("loss"));
    assert_same_model(&run, &two);
}
