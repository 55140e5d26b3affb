//! YAML configs: what they say is done, what they say wrongly is answered with file, place and a way out.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::folders::good_folder;
use crate::typed::{Answer, DONE, holdall_words};

const FULL: &str = "\
task: clip
model: small
labels: 7
tokens: 16
losses: {contrastive: 1.0, label: 0.25}
train:
  effective_batch: 30
  batch_size: 8
  gradient_accumulation: 4
  recompute: cheap
memory: 300MiB
precision: f32
num_threads: 2
seed: 3
";

/// A folder with this as its run.yml.
fn config_of(text: impl AsRef<[u8]>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.yml"), text).unwrap();
    folder
}

/// `holdall plan FOLDER/run.yml OPTIONS`.
fn plan(folder: &Path, options: &str) -> Answer {
    let path = folder.join("run.yml").into_os_string();
    let options = options.split_whitespace().map(Into::into);
    holdall_words(["plan".into(), path].into_iter().chain(options))
}

fn plan_json(folder: &Path, options: &str) -> Value {
    plan(folder, &format!("{options} --json"))
        .exits(DONE)
        .json()
}

#[test]
fn a_full_config_is_planned_as_it_says() {
    let folder = config_of(FULL);
    let planned = plan_json(folder.path(), "");
    assert_eq!(planned["budget_bytes"], 300 << 20);
    assert_eq!(planned["effective_batch"], 30);
    assert_eq!(planned["chosen"]["batch_size"], 8);
    assert_eq!(planned["chosen"]["gradient_accumulation"], 4);
    assert_eq!(planned["chosen"]["recompute"], "cheap");
    let shown = plan(folder.path(), "").exits(DONE).stdout;
    assert!(shown.contains("small on the CPU (2 threads), budget 300.0 MiB"));
    assert!(shown.contains("Batch size: 8 (as asked)"), "{shown}");
}

#[test]
fn flags_go_over_the_file() {
    let folder = config_of(FULL);
    let chosen =
        |options: &str, key: &str| plan_json(folder.path(), options)["chosen"][key].clone();
    assert_eq!(chosen("--recompute blocks", "recompute"), "blocks");
    let options = "--batch-size 5 --gradient-accumulation 6";
    assert_eq!(chosen(options, "batch_size"), 5);
    let planned = plan_json(folder.path(), "--memory 200MiB");
    assert_eq!(planned["budget_bytes"], 200 << 20);
    let [many, few] = ["--labels 5000", "--labels 2"]
        .map(|labels| chosen(labels, "arena_bytes").as_u64().unwrap());
    assert!(many > few);
    let [long, short] =
        ["--tokens 32", "--tokens 8"].map(|tokens| chosen(tokens, "arena_bytes").as_u64().unwrap());
    assert!(long > short);
    let shown = plan(folder.path(), "--num-threads 1").exits(DONE).stdout;
    assert!(shown.contains("1 thread"), "{shown}");
}

/// Two of the three numbers fix the third: what the file said of it gives way to what is typed.
#[test]
fn typed_batch_numbers_go_over_those_of_the_file() {
    let folder = config_of("model: small\ntrain: {batch_size: 8, gradient_accumulation: 4}\n");
    let planned = plan_json(folder.path(), "--batch-size 16");
    assert_eq!(planned["chosen"]["batch_size"], 16);
    assert_eq!(planned["effective_batch"], 64);
    let planned = plan_json(folder.path(), "--effective-batch 30");
    assert_eq!(planned["effective_batch"], 30);
    assert_eq!(planned["chosen"]["batch_size"], 8);

    let folder = config_of("model: small\ntrain: {effective_batch: 64, batch_size: 8}\n");
    let planned = plan_json(folder.path(), "--effective-batch 32");
    assert_eq!(planned["chosen"]["gradient_accumulation"], 4);
    let planned = plan_json(folder.path(), "--batch-size 4");
    assert_eq!(planned["effective_batch"], 64);
    assert_eq!(planned["chosen"]["gradient_accumulation"], 16);

    // A full file has all three: typing one must leave room in the others.
    let folder = config_of(FULL);
    let planned = plan_json(folder.path(), "--effective-batch 64");
    assert_eq!(planned["chosen"]["batch_size"], 8);
    assert_eq!(planned["effective_batch"], 64);
}

#[test]
fn what_is_set_goes_over_the_file_and_flags_over_that() {
    let folder = config_of(FULL);
    let planned = plan_json(
        folder.path(),
        "--set train.recompute=blocks --set memory=200MiB",
    );
    assert_eq!(planned["chosen"]["recompute"], "blocks");
    assert_eq!(planned["budget_bytes"], 200 << 20);
    let planned = plan_json(folder.path(), "--set train.batch_size=5 --batch-size 6");
    assert_eq!(planned["chosen"]["batch_size"], 6);
    assert_eq!(planned["effective_batch"], 30);
    let words = "plan small --set train={effective_batch:\u{a0}6} --json";
    let words = words.split(' ').map(|word| word.replace('\u{a0}', " "));
    let planned = holdall_words(words).exits(DONE).json();
    assert_eq!(planned["effective_batch"], 6);
}

#[test]
fn what_is_set_wrongly_is_refused_as_typed() {
    let folder = config_of(FULL);
    for (set, parts) in [
        ("seed=abc", ["--set seed=abc", "a whole number"].as_slice()),
        ("train.lr", &["--set train.lr", "KEY=VALUE"]),
        (
            "train.bach_size=8",
            &["bach_size", "did you mean `batch_size`?"],
        ),
        ("learning_rate=1", &["learning_rate", "`train: {lr: 2e-5}`"]),
        ("train.epochs=0", &["--set train.epochs=0", "at least 1"]),
    ] {
        plan(folder.path(), &format!("--set {set}")).refused_with(parts);
    }
}

#[test]
fn a_config_builds_on_another() {
    let folder = config_of("base: bases/small.yml\ntrain: {batch_size: 4}\n");
    fs::create_dir(folder.path().join("bases")).unwrap();
    let base = folder.path().join("bases/small.yml");
    fs::write(&base, FULL).unwrap();
    let planned = plan_json(folder.path(), "");
    assert_eq!(planned["chosen"]["batch_size"], 4);
    assert_eq!(planned["effective_batch"], 30);
    fs::write(&base, "base: ../run.yml\n").unwrap();
    plan(folder.path(), "").refused_with(&["small.yml", "line 1", "builds on itself"]);
    fs::remove_file(&base).unwrap();
    plan(folder.path(), "").refused_with(&["run.yml", "line 1", "small.yml", "cannot be read"]);
}

#[test]
fn an_empty_config_is_all_defaults() {
    for text in ["", "# nothing yet\n", "{}\n", "train: {}\n"] {
        let folder = config_of(text);
        let planned = plan_json(folder.path(), "--effective-batch 2");
        assert_eq!(planned["effective_batch"], 2, "{text:?}");
    }
}

#[test]
fn a_model_folder_is_found_beside_its_config() {
    let folder = config_of("model: models/clip\nlabels: 5\n");
    let model = good_folder();
    fs::create_dir(folder.path().join("models")).unwrap();
    fs::rename(model.path(), folder.path().join("models/clip")).unwrap();
    let shown = plan(folder.path(), "--effective-batch 4")
        .exits(DONE)
        .stdout;
    let line = shown.lines().find(|line| line.starts_with("Weights: "));
    let line = line.unwrap();
    assert!(line.starts_with("Weights: pretrained from "), "{line}");
    assert!(line.ends_with("clip"), "{line}");
}

#[test]
fn both_endings_are_configs() {
    let folder = config_of("model: small\n");
    let yaml = folder.path().join("run.yaml");
    fs::rename(folder.path().join("run.yml"), &yaml).unwrap();
    holdall_words(["plan".into(), yaml.into_os_string()]).exits(DONE);
}

/// File, line, and the key or value that is wrong.
#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (text, parts) in [
        ("modell: small\n", ["line 1", "modell"].as_slice()),
        ("model: small\ntrian: {}\n", &["line 2", "trian"]),
        (
            "model: small\ntrain:\n  batch_sise: 8\n",
            &["line 3", "batch_sise", "batch_size"],
        ),
        (
            "model: small\nlosses: {contrast: 1}\n",
            &["line 2", "contrast", "contrastive"],
        ),
        (
            "model: small\ntrain:\n  batch_size: eight\n",
            &["line 3", "eight"],
        ),
        (
            "model: small\ntrain:\n  batch_size: -1\n",
            &["line 3", "-1"],
        ),
        (
            "model: small\ntrain:\n  batch_size: 2.5\n",
            &["line 3", "2.5"],
        ),
        ("model: small\ntrain: 8\n", &["line 2"]),
        ("model: [small]\n", &["line 1"]),
        ("labels: [1, 2]\n", &["line 1"]),
        (
            "model: small\nmemory: 8 gallons\n",
            &["line 2", "8 gallons", "8GiB", "80%", "auto"],
        ),
        (
            "model: small\nmemory: 8\n",
            &["line 2", "a size needs its unit", "8GiB"],
        ),
        ("memory: -1GiB\n", &["line 1", "-1GiB"]),
        (
            "train: {recompute: everything}\n",
            &["line 1", "everything", "none", "cheap", "blocks"],
        ),
        ("precision: f8\n", &["line 1", "f8", "f32"]),
        ("task: poetry\n", &["line 1", "poetry", "clip"]),
        ("model: small\nmodel: small\n", &["line 2", "model"]),
        ("- model\n- small\n", &["line 1"]),
        ("train: {batch_size: 8\n", &["line"]),
    ] {
        let folder = config_of(text);
        let mut parts = parts.to_vec();
        parts.push("run.yml");
        plan(folder.path(), "").refused_with(&parts);
    }
}

/// Keys of PyTorch scripts are accepted or answered with the right one.
#[test]
fn keys_of_other_tools_are_accepted_or_answered() {
    for (text, answer) in [
        (
            "train: {batch_size: 4, gradient_accumulation_steps: 2}\n",
            "gradient_accumulation",
        ),
        ("train: {use_gradient_checkpointing: true}\n", "recompute"),
        ("train: {mixed_precision: fp16}\n", "precision"),
        ("learning_rate: 1e-4\n", "`train: {lr: 2e-5}`"),
        ("pin_memory: true\n", "nothing to do"),
        ("PYTORCH_CUDA_ALLOC_CONF: x\n", "cannot fragment"),
        ("batch_size: 4\n", "belongs under `train:`"),
    ] {
        let folder = config_of(format!("model: small\n{text}"));
        let result = plan(folder.path(), "");
        if result.code != DONE {
            let without_echo = result.stderr.replace("gradient_accumulation_steps", "");
            assert!(without_echo.contains(answer), "{text}\n{}", result.stderr);
            result.refused_with(&["run.yml"]);
        }
    }
}

/// The library that reads YAML speaks to programmers; users hear of their file.
#[test]
fn messages_are_for_the_person_who_wrote_the_file() {
    for text in [
        "model: small\nmodel: small\n",
        "model: small\n---\nmodel: small\n",
        "model: small\nmemory: 8\n",
        "model: small\ntrain: {batch_size: -1}\n",
    ] {
        let folder = config_of(text);
        let stderr = plan(folder.path(), "").stderr;
        for talk in ["Options", "from_str", "<input>", "\\n", "u64", "usize"] {
            assert!(!stderr.contains(talk), "{text:?} has `{talk}`:\n{stderr}");
        }
    }
}

#[test]
fn unknown_models_are_answered_with_the_presets() {
    for model in ["openai/clip-vit-huge", "smalll", "models/absent"] {
        let folder = config_of(format!("model: {model}\n"));
        plan(folder.path(), "").refused_with(&[model, "small", "openai/clip-vit-base-patch32"]);
        holdall_words(["plan", model]).refused_with(&[model, "small"]);
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for (text, part) in [
        ("labels: 0\n", "labels"),
        ("tokens: 0\n", "tokens"),
        ("tokens: 33\n", "tokens"),
        ("num_threads: 0\n", "threads"),
        ("losses: {contrastive: .nan}\n", "contrastive"),
        ("losses: {label: -0.5}\n", "label"),
        ("losses: {contrastive: 0, label: 0}\n", "losses"),
    ] {
        let folder = config_of(format!("model: small\n{text}"));
        plan(folder.path(), "").refused_with(&[part]);
    }
}

#[test]
fn a_config_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    plan(folder.path(), "").refused_with(&["run.yml", "cannot be read"]);
    fs::create_dir(folder.path().join("run.yml")).unwrap();
    plan(folder.path(), "").refused_with(&["run.yml", "found a folder"]);
    let folder = config_of(b"model: caf\xe9\n");
    plan(folder.path(), "").refused_with(&["run.yml", "UTF-8"]);
}
