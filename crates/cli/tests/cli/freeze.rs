//! Runs that train a part of a model: what is frozen leaves as it came, and a run keeps to what it began with.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model};
use crate::typed::{BAD_INPUT, DONE, holdall, holdall_words, test_device};

const CONSTANT: &str =
    "--effective-batch 8 --lr 1e-3 --set train.schedule=constant --set train.warmup=0";

fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter();
    tensors
        .map(|(name, tensor)| (name, tensor.data().to_vec()))
        .collect()
}

fn model(run: &RunFiles) -> BTreeMap<String, Vec<u8>> {
    tensors(&run.file("model/model.safetensors"))
}

#[test]
fn a_frozen_tower_leaves_as_it_came_and_the_run_goes_on() {
    let home = Home::with_cars(24);
    let first = home.trained("first", &format!("{CONSTANT} --epochs 1"));
    let from = first.file("model");
    let train = |name: &str, epochs: usize| {
        let mut words: Vec<OsString> = vec!["train".into(), home.path("cars").into()];
        words.extend(["--model".into(), from.clone().into()]);
        words.extend(["--out".into(), home.path(name).into()]);
        words.extend(["--device".into(), test_device().into()]);
        let options = format!("{CONSTANT} --epochs {epochs} --freeze vision_model");
        words.extend(options.split_whitespace().map(OsString::from));
        holdall_words(words).exits(DONE).stderr
    };
    let run = home.run_named("run");
    let told = train("run", 1);
    assert!(
        told.contains("Trains ") && told.contains(" parameters\n"),
        "{told}"
    );

    let (before, after) = (model(&first), model(&run));
    assert_eq!(before.len(), after.len());
    for (name, values) in &before {
        let is_frozen = name.starts_with("vision_model.");
        // A bias of keys has no gradient.
        if is_frozen || !name.ends_with("k_proj.bias") {
            assert_eq!(after[name] == *values, is_frozen, "{name}");
        }
    }
    let summary = run.json("summary.json");
    let [trained, all] =
        ["trained_parameters", "parameters"].map(|key| summary[key].as_u64().unwrap());
    assert!(0 < trained && trained < all, "{trained} {all}");
    let state = tensors(&run.last());
    assert!(state.contains_key("vision_model.post_layernorm.weight"));
    let has_moments = |prefix: &str| {
        let prefix = format!("optimizer.m.{prefix}");
        state.keys().any(|name| name.starts_with(&prefix))
    };
    assert!(has_moments("text_model.") && !has_moments("vision_model."));

    for other in [
        "--freeze text_model",
        "--freeze none",
        "--freeze vision_model,text_model",
    ] {
        let parts = ["cannot resume with train.freeze", "--out"];
        run.resume(&format!("--epochs 2 {other}"))
            .refused_with(&parts);
    }
    let device = test_device();
    run.resume(&format!(
        "--epochs 2 --freeze vision_model --device {device}"
    ))
    .exits(DONE);
    train("long", 2);
    let long = home.run_named("long");
    assert_same_lines(&run, &long);
    assert_same_model(&run, &long);
}

#[test]
fn what_is_frozen_is_planned_and_verified() {
    let bytes = |freeze: &str| {
        let line = "plan small --effective-batch 32 --batch-size 8 --labels 4 --json";
        let words = line.split(' ').chain(["--freeze", freeze]);
        let plan = holdall_words(words).exits(DONE);
        let report: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
        let optimizer = report["chosen"]["breakdown"]["optimizer"].as_u64().unwrap();
        (optimizer, plan.stderr)
    };
    let (all, told) = bytes("none");
    assert!(!told.contains("Trains "), "{told}");
    let (half, told) = bytes("vision_model");
    assert!(told.contains("Trains "), "{told}");
    let (head, _) = bytes("all but heads");
    assert!(head < half && half < all, "{head} {half} {all}");
    let verified =
        "verify small --labels 4 --effective-batch 12 --freeze vision_model,text_model.embeddings";
    assert!(holdall(verified).exits(DONE).stdout.contains("EXACT"));
}

#[test]
fn bad_values_are_answered() {
    for (freeze, parts) in [
        (
            "vision_modle",
            ["`vision_modle`", "did you mean `vision_model`"],
        ),
        ("all", ["`all`", "`all but heads`"]),
        ("*", ["parameters would be frozen", "all but 2"]),
        ("all but heads", ["heads' learning rate", "`freeze: ["]),
        ("*.k_proj.*", ["both or neither", "k_proj"]),
    ] {
        let words = ["plan", "small", "--freeze", freeze];
        let answer = holdall_words(words).exits(BAD_INPUT);
        for part in parts {
            assert!(answer.stderr.contains(part), "{freeze}: {}", answer.stderr);
        }
    }
    let set = "train.freeze={vision_model: all but 99}";
    let answer = holdall_words(["plan", "small", "--set", set]).exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("as many blocks as there are"),
        "{}",
        answer.stderr
    );
}
