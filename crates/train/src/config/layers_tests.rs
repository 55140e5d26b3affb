use holdall_data::config::{TokenizerChoice, Validation};

use super::tests::folder;
use super::*;

fn load(folder: &tempfile::TempDir, sets: &[&str]) -> Result<RunConfig, TrainError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    RunConfig::load(Some(&folder.path().join("run.yml")), &sets)
}

fn set(sets: &[&str]) -> Result<RunConfig, TrainError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    RunConfig::load(None, &sets)
}

fn refusal(result: Result<RunConfig, TrainError>) -> String {
    result.expect_err("to be refused").to_string()
}

#[test]
fn the_base_the_file_and_what_is_set_in_that_order() {
    let folder = folder(&[
        ("bases/low.yml", "seed: 1\ntrain: {lr: 1e-3, epochs: 2}\n"),
        (
            "bases/high.yml",
            "base: low.yml\nseed: 2\ntrain: {lr: 1e-4, optimizer: {eps: 1e-8}}\n",
        ),
        (
            "run.yml",
            "base: bases/high.yml\nseed: 3\ntrain:\n  optimizer: {beta1: 0.8}\n",
        ),
    ]);
    let config = load(&folder, &["seed=4", "train.optimizer.weight_decay=0"]).unwrap();
    assert_eq!(config.base, None);
    assert_eq!(config.seed, 4);
    assert_eq!(config.train.epochs, Some(2));
    assert_eq!(config.train.lr, Some(1e-4));
    let optimizer = &config.train.optimizer;
    assert_eq!((optimizer.beta1, optimizer.eps), (0.8, 1e-8));
    assert_eq!(optimizer.weight_decay, 0.0);
    assert_eq!(load(&folder, &[]).unwrap().seed, 3);
}

#[test]
fn what_is_set_may_be_all_that_yaml_has() {
    let config = set(&[
        "train.lr=1e-4",
        "data.label=make",
        "losses={label: 1.0}",
        "data.caption=a photo of a {make}, {year}",
        "train.eval_on=[train]",
        "train.lr_by.vision_model.*.bias=1e-6",
        "labels=7",
        "labels=",
        "memory = 8GiB",
        "train.clip_norm=none",
    ])
    .unwrap();
    assert_eq!(config.train.lr, Some(1e-4));
    assert_eq!(config.data.label, Some("make".into()));
    assert_eq!((config.losses.label, config.losses.contrastive), (1.0, 1.0));
    let caption = config.data.caption.as_deref();
    assert_eq!(caption, Some("a photo of a {make}, {year}"));
    assert_eq!(config.train.eval_on, [Subset::Train]);
    let rates = [("vision_model.*.bias".to_owned(), 1e-6)];
    assert_eq!(config.train.lr_by.0, rates);
    assert_eq!(config.labels, None);
    assert_eq!(config.memory, Memory::Bytes(8 << 30));
    assert_eq!(config.train.clip_norm, None);
    assert_eq!(set(&[]).unwrap(), RunConfig::default());
}

#[test]
fn what_is_set_wrongly_is_answered_as_typed() {
    for (typed, what) in [
        (
            "seed=abc",
            "expected a whole number of at least 0\nhint: by default it is `seed: 0`",
        ),
        (
            "losses={label: x}",
            "losses.label: expected a number\nhint: by default it is `label: 0.5`",
        ),
        (
            "train.lr=-1",
            "-1, expected a number above 0\nhint: `lr: 1e-3`; without it, task and weights decide",
        ),
        (
            "train.bach_size=8",
            "unknown key `bach_size` under `train:`\nhint: did you mean `batch_size`?",
        ),
        (
            "learning_rate=1",
            "unknown key `learning_rate`\nhint: `train: {lr: 2e-5}`; the label head has `lr_head`, parameters by name have `lr_by`",
        ),
        (
            "data=photos",
            "expected keys with values, `key: value`\nhint: `data: {train: photos}` names what to train on",
        ),
        (
            "unet=photos",
            "expected keys with values, `key: value`\nhint: --set unet.KEY=VALUE",
        ),
        (
            "seed.x=1",
            "seed: expected a single value\nhint: by default it is `seed: 0`",
        ),
        (
            "seed",
            "expected KEY=VALUE\nhint: --set train.lr=1e-4, or --set 'losses={label: 1.0}'",
        ),
        (
            "train..lr=1",
            "expected a key such as train.lr before the `=`\nhint: --set train.lr=1e-4, or --set 'losses={label: 1.0}'",
        ),
        (
            "=1",
            "expected a key such as train.lr before the `=`\nhint: --set train.lr=1e-4, or --set 'losses={label: 1.0}'",
        ),
        (
            "base=a.yml",
            "expected a key of a run; `base` is for files\nhint: --set train.lr=1e-4, or --set 'losses={label: 1.0}'",
        ),
        (
            "losses={label: 1",
            "is not YAML: unclosed bracket '{'\nhint: brackets are closed, lines of a section are indented alike, text with `: ` or `#` is in quotes",
        ),
    ] {
        assert_eq!(refusal(set(&[typed])), format!("--set {typed}: {what}"));
    }
}

#[test]
fn a_wrong_line_is_found_in_the_layer_that_says_it() {
    let folder = folder(&[
        ("low.yml", "seed: 1\ntrain:\n  lr: -1\n"),
        ("run.yml", "base: low.yml\ntrain: {lr: 1e-4}\n"),
    ]);
    let refused = refusal(load(&folder, &[]));
    assert!(
        refused.contains("low.yml: line 3: train.lr: -1, expected a number above 0"),
        "{refused}"
    );
}

#[test]
fn only_all_layers_together_must_go_together() {
    let folder = folder(&[("run.yml", "losses: {contrastive: 0, label: 0}\n")]);
    load(&folder, &["losses.label=1"]).unwrap();
    let refused = refusal(load(&folder, &[]));
    assert!(refused.contains("run.yml: losses: "), "{refused}");
    assert!(refusal(set(&["losses={contrastive: 0, label: 0}"])).starts_with("losses: "));
}

#[test]
fn a_base_that_is_not_there_is_named() {
    let folder = folder(&[("run.yml", "seed: 1\nbase: gone.yml\n")]);
    let refused = refusal(load(&folder, &[]));
    let gone = folder.path().join("gone.yml").display().to_string();
    assert!(
        refused.contains(&format!("run.yml: line 2: base: {gone} cannot be read: ")),
        "{refused}"
    );
    let hint = "\nhint: `base` is relative to the file that says it";
    assert!(refused.ends_with(hint), "{refused}");
}

#[test]
fn a_config_that_builds_on_itself_is_refused_with_the_chain() {
    let chain = folder(&[
        ("run.yml", "base: a.yml\n"),
        ("a.yml", "base: b.yml\n"),
        ("b.yml", "base: ./a.yml\n"),
    ]);
    let refused = refusal(load(&chain, &[]));
    let path = chain.path().canonicalize().unwrap();
    let [a, b] = ["a.yml", "b.yml"].map(|name| path.join(name).display().to_string());
    let around = format!("base: a config that builds on itself: {a} -> {b} -> {a}");
    assert!(refused.contains(&around), "{refused}");
    let own = folder(&[("run.yml", "base: run.yml\n")]);
    assert!(refusal(load(&own, &[])).contains("builds on itself"));
}

#[test]
fn paths_start_where_they_are_said() {
    let folder = folder(&[
        ("bases/clip/config.json", "{}"),
        (
            "bases/low.yml",
            "model: clip\ndata: {train: a.csv, image_root: pictures, tokenizer: t.json, validation: v.csv}\n",
        ),
        ("run.yml", "base: bases/low.yml\ndata: {train: b.csv}\n"),
    ]);
    let at = |path: &str| folder.path().join(path);
    let config = load(&folder, &["data.validation=w.csv"]).unwrap();
    let data = &config.data;
    assert_eq!(config.model, at("bases/clip").display().to_string());
    assert_eq!(data.train, Some(at("b.csv")));
    assert_eq!(data.image_root, Some(at("bases/pictures")));
    assert_eq!(data.tokenizer, TokenizerChoice::File(at("bases/t.json")));
    assert_eq!(data.validation, Validation::file("w.csv"));
    let config = load(
        &folder,
        &["data={validation: 20%, tokenizer: train}", "model=small"],
    );
    let config = config.unwrap();
    assert_eq!(config.data.validation, Validation::share(0.2));
    assert_eq!(config.data.tokenizer, TokenizerChoice::Train);
    assert_eq!(config.model, "small");
}

#[test]
fn batch_numbers_make_room_for_what_is_laid_over_them() {
    let folder = folder(&[
        (
            "low.yml",
            "train: {effective_batch: 128, batch_size: 8, gradient_accumulation_steps: 16}\n",
        ),
        ("run.yml", "base: low.yml\ntrain: {batch_size: 32}\n"),
    ]);
    let numbers = |sets: &[&str]| {
        let train = load(&folder, sets).unwrap().train;
        let TrainSection {
            effective_batch,
            batch_size,
            gradient_accumulation,
            ..
        } = train;
        [effective_batch, batch_size, gradient_accumulation]
    };
    assert_eq!(numbers(&[]), [Some(128), Some(32), None]);
    assert_eq!(
        numbers(&["train.gradient_accumulation=2"]),
        [Some(128), None, Some(2)]
    );
    assert_eq!(
        numbers(&["train={batch_size: 4, gradient_accumulation_steps: 2}"]),
        [None, Some(4), Some(2)]
    );
    // Several on the command line are one layer, in any order: none of them gives way to another.
    assert_eq!(
        numbers(&["train.batch_size=4", "train.gradient_accumulation=2"]),
        [None, Some(4), Some(2)]
    );
    let all = [
        "train.batch_size=8",
        "train.gradient_accumulation=2",
        "train.effective_batch=32",
    ];
    assert_eq!(numbers(&all), [Some(32), Some(8), Some(2)]);
}

#[test]
fn rates_laid_over_others_come_first() {
    let folder = folder(&[("run.yml", "train: {lr_by: {\"*\": 1e-3, head.*: 1e-2}}\n")]);
    let rates = load(
        &folder,
        &["train.lr_by.vision.*=1e-6", "train.lr_by.head.*=1"],
    );
    let rates = rates.unwrap().train.lr_by;
    assert_eq!(rates.rate("vision.bias"), Some(1e-6));
    assert_eq!(rates.rate("head.bias"), Some(1.0));
    assert_eq!(rates.rate("text.bias"), Some(1e-3));
}
