//! Tests of configs and of the messages about their errors.

use std::fs;

use super::*;

pub(super) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

pub(super) fn parse(text: &str) -> Result<RunConfig, TrainError> {
    RunConfig::read(&folder(&[("run.yml", text)]).path().join("run.yml"))
}

/// Error message of a config, from the name of the file on.
pub(super) fn refusal(text: &str) -> String {
    let error = parse(text).expect_err(text).to_string();
    error[error.find("run.yml").unwrap()..].to_owned()
}

#[test]
fn a_config_says_only_what_differs() {
    let config =
        parse("model: small\ntrain:\n  batch_size: 8\n  recompute: blocks\nmemory: 2GiB\n")
            .unwrap();
    assert_eq!(config.train.batch_size, Some(8));
    assert_eq!(config.train.recompute, RecomputeChoice::Blocks);
    assert_eq!(config.memory, Memory::Bytes(2 << 30));
    assert_eq!(config.losses, Losses::default());
    for empty in ["", "# nothing\n", "{}", "train:\nlosses:\ndata:\n"] {
        assert_eq!(parse(empty).unwrap(), RunConfig::default(), "{empty:?}");
    }
}

#[test]
fn every_key_means_what_it_says() {
    let config = parse(
        "data: {train: cars.csv, validation: none, label: make}
losses: {label_smoothing: 0.1, class_weights: balanced}
train:
  epochs: 3
  lr: 2e-5
  lr_head: 1e-3
  lr_by: {\"*.bias\": 0, \"vision_model.*\": 1e-6}
  schedule: constant
  warmup: 7%
  lr_end: 0.1
  clip_norm: none
  optimizer: {weight_decay: 0.2}
  sampling: balanced
  eval_every: 50
  eval_on: [validation, train]
  eval_batch_size: 64
  save_every: 100
  early_stop: 3
  best_metric: mean_r1
host_memory: 4GiB
num_workers: 3
prefetch: 2
out: runs/cars
",
    )
    .unwrap();
    assert_eq!(config.losses.class_weights, ClassWeights::Balanced);
    let train = &config.train;
    assert_eq!(
        (train.epochs, train.lr, train.lr_head),
        (Some(3), Some(2e-5), Some(1e-3))
    );
    assert_eq!(train.lr_by.rate("vision_model.bias"), Some(0.0));
    assert_eq!(train.lr_by.rate("vision_model.weight"), Some(1e-6));
    assert_eq!(train.schedule, Schedule::Constant);
    assert_eq!(train.warmup, Warmup::Percent(7.0));
    assert_eq!(train.warmup.steps(1000), 70);
    assert_eq!(train.clip_norm, None);
    assert_eq!(train.optimizer_config().weight_decay, 0.2);
    assert_eq!(train.optimizer_config().clip_norm, None);
    assert_eq!(train.sampling, Sampling::Balanced);
    assert_eq!(train.eval_every, EvalEvery::Steps(50));
    assert_eq!(train.eval_on, [Subset::Validation, Subset::Train]);
    assert_eq!(train.save_every, SaveEvery::Steps(100));
    assert_eq!(train.early_stop, Some(3));
    assert_eq!(config.num_workers, Count::Exactly(3));
    assert_eq!(config.prefetch.exactly(), Some(2));
    // Relative to the config file.
    let out = config.out.expect("the config names a folder");
    assert!(out.is_absolute() && out.ends_with("runs/cars"), "{out:?}");
    for (written, meant) in [
        ("fp32", Precision::F32),
        ("float16", Precision::Fp16),
        ("bfloat16", Precision::Bf16),
    ] {
        let config = parse(&format!("precision: {written}")).unwrap();
        assert_eq!(config.precision, meant);
    }
    let never = parse("train: {eval_every: none, warmup: 20, clip_norm: 1e-3}").unwrap();
    assert_eq!(never.train.eval_every, EvalEvery::Never);
    assert_eq!(never.train.warmup.steps(1000), 20);
    assert_eq!(never.train.clip_norm, Some(1e-3));
}

#[test]
fn an_unknown_key_is_answered_with_its_line_and_the_nearest() {
    assert_eq!(
        refusal("model: small\ntrain:\n  batch_sise: 8\n"),
        "run.yml: line 3: unknown key `batch_sise` under `train:`: found `batch_sise: 8`\n\
         hint: did you mean `batch_size`?"
    );
    assert_eq!(
        refusal("train: {weight_decay: 0.1}"),
        "run.yml: line 1: unknown key `weight_decay` under `train:`: found `train: {weight_decay: 0.1}`\n\
         hint: `weight_decay` belongs under `train: optimizer:`"
    );
    assert_eq!(
        refusal("batch_size: 8"),
        "run.yml: line 1: unknown key `batch_size`: found `batch_size: 8`\n\
         hint: `batch_size` belongs under `train:`"
    );
    assert_eq!(
        refusal("data: {augment: {use_amp: true}}"),
        "run.yml: line 1: unknown key `use_amp` under `data: augment:`: found `data: {augment: {use_amp: true}}`\n\
         hint: `precision: fp16`, or bf16, tf32, f32, auto; fp16 scales its loss by itself, and the CPU computes in f32"
    );
}

#[test]
fn a_wrong_value_is_answered_with_its_place_and_what_was_expected() {
    for (text, what, hint) in [
        (
            "seed: 8.0",
            "line 1: seed: expected a whole number of at least 0: found `seed: 8.0`",
            "by default it is `seed: 0`",
        ),
        (
            "model: small\nseed: \"8\"",
            "line 2: seed: a word in quotes, expected a number: found `seed: \"8\"`",
            "numbers are written without quotes",
        ),
        (
            "train:\n  lr: fast",
            "line 2: train.lr: expected a number: found `lr: fast`",
            "`lr: 1e-3`; without it, task and weights decide",
        ),
        (
            "train:\n  optimizer: adamw",
            "line 2: train.optimizer: expected keys with values, `key: value`: found `optimizer: adamw`",
            "the optimizer is AdamW; its numbers stand under `train: optimizer:` (beta1, beta2, eps, weight_decay)",
        ),
        (
            "train: 8",
            "line 1: train: expected keys with values, `key: value`: found `train: 8`",
            "`train` is a section: its keys go below it, indented",
        ),
        (
            "train: {lr_by: 1e-6}",
            "line 1: train.lr_by: expected keys with values, `key: value`: found `train: {lr_by: 1e-6}`",
            "`lr_by: {\"vision_model.*\": 1e-6}`",
        ),
        (
            "train: {eval_on: train}",
            "line 1: train.eval_on: expected a list in brackets, `[one, another]`: found `train: {eval_on: train}`",
            "by default it is `eval_on: [validation]`",
        ),
        (
            "train: {eval_on: [dev]}",
            "line 1: train.eval_on: `dev`, expected one of validation, train: found `train: {eval_on: [dev]}`",
            "by default it is `eval_on: [validation]`",
        ),
        (
            "train: {optimizer_state: 4bit}",
            "line 1: train.optimizer_state: `4bit`, expected one of f32, float32, fp32, bf16, bfloat16, 8-bit, 8bit, int8: found `train: {optimizer_state: 4bit}`",
            "by default it is `optimizer_state: f32`",
        ),
        (
            "precision: fp61",
            "line 1: precision: `fp61`, expected one of auto, f32, float32, fp32, float16, fp16, bf16, bfloat16, tf32: found `precision: fp61`",
            "did you mean `fp16`?",
        ),
        (
            "task: poetry",
            "line 1: task: `poetry`, expected one of clip, classify, segment, video-text: found `task: poetry`",
            "leave `task` out, and the data says what it is: captions (clip), labels or numbers (classify), masks (segment; boxes are not detected), clips (video-text)",
        ),
        (
            "train: {warmup: 0.05}",
            "line 1: train.warmup: `0.05`, expected steps such as 500, or a share of all such as 5%: found `train: {warmup: 0.05}`",
            "`warmup: 5%`",
        ),
        (
            "train: {eval_every: 0}",
            "line 1: train.eval_every: `0`, expected epoch, a number of steps of at least 1, or none: found `train: {eval_every: 0}`",
            "by default it is `eval_every: epoch`",
        ),
        (
            "train: {save_every: none}",
            "line 1: train.save_every: `none`, expected epoch, or a number of steps of at least 1: found `train: {save_every: none}`",
            "by default it is `save_every: epoch`",
        ),
        (
            "train: {early_stop: 1.5}",
            "line 1: train.early_stop: `1.5`, expected a whole number of at least 0, or none: found `train: {early_stop: 1.5}`",
            "by default it is `early_stop: none`",
        ),
        (
            "train: {clip_norm: tight}",
            "line 1: train.clip_norm: `tight`, expected a number, or none: found `train: {clip_norm: tight}`",
            "by default it is `clip_norm: 1.0`",
        ),
        (
            "num_workers: many",
            "line 1: num_workers: `many`, expected auto, or a whole number of at least 0: found `num_workers: many`",
            "by default it is `num_workers: auto`",
        ),
        (
            "memory: 8",
            "line 1: memory: a size needs its unit: found `memory: 8`",
            "`memory: 8GiB`, 8GB, 8%",
        ),
        (
            "memory: 8192",
            "line 1: memory: a size needs its unit: found `memory: 8192`",
            "`memory: 8192MiB`, 8192MB",
        ),
        (
            "model: small\ndata: {train: \"C:\\Users\\me\"}",
            "line 2: a backslash in double quotes begins an escape such as \\n: found `data: {train: \"C:\\Users\\me\"}`",
            "in single quotes it stands for itself, 'C:\\Users'; C:/Users works too",
        ),
        (
            "data: {train: \"C:\\new\"}",
            "line 1: data.train: a backslash in double quotes begins an escape such as \\n: found `data: {train: \"C:\\new\"}`",
            "in single quotes it stands for itself, 'C:\\Users'; C:/Users works too",
        ),
        (
            "host_memory: 8 gallons",
            "line 1: host_memory: memory `8 gallons`: expected a size such as 8GiB or 8GB, a share such as 80%, or auto: found `host_memory: 8 gallons`",
            "`host_memory: 8GiB`, 8GB, 80% or auto",
        ),
        (
            "data: {validation: 300%}",
            "line 1: validation `300%`: expected more than 0% and less than 100%, or `none`: found `data: {validation: 300%}`",
            "`validation: 10%`, a CSV, {column: split}, {column: fold, value: 3}, {group: patient}, or none",
        ),
        (
            "data: {augment: {flip: yes}}",
            "line 1: data.augment.flip: expected true or false: found `data: {augment: {flip: yes}}`",
            "by default it is `flip: false`",
        ),
        (
            "data: {label: 2020}",
            "line 1: data.label: `2020`, expected text: found `data: {label: 2020}`",
            "leave `label` out; text that looks like a number goes in quotes",
        ),
        (
            "model: null",
            "line 1: model: expected text, found nothing: found `model: null`",
            "by default it is `model: auto`",
        ),
        (
            "model: [small]",
            "line 1: model: expected a single value: found `model: [small]`",
            "by default it is `model: auto`",
        ),
        (
            "model: a\nmodel: b",
            "line 2: the key `model` stands there twice: found `model: b`",
            "keep one of them",
        ),
        (
            "model: a\n---\nmodel: b",
            "line 3: `---` begins a second document, expected one: found `model: b`",
            "one file for each config; `base: other.yml` builds on another",
        ),
        (
            "train: {lr: 1",
            "line 1: is not YAML: unclosed bracket '{': found `train: {lr: 1`",
            "brackets are closed, lines of a section are indented alike, text with `: ` or `#` is in quotes",
        ),
    ] {
        assert_eq!(refusal(text), format!("run.yml: {what}\nhint: {hint}"));
    }
}

/// Typed mistakes and their hints.
#[test]
fn what_was_meant_is_offered() {
    for (set, hint) in [
        ("train=path", "what to train on is `data: {train: path}`"),
        (
            "data=pair_augment:",
            "--set 'data.pair_augment={flip: VALUE}'",
        ),
        ("data=label: make", "--set data.label=VALUE"),
        ("train.warmup=0.1", "`warmup: 10%`"),
        ("train.warmup=-3", "by default it is `warmup: 5%`"),
    ] {
        let error = RunConfig::load(None, &[set.to_owned()])
            .unwrap_err()
            .to_string();
        let (_, found) = error.rsplit_once("\nhint: ").unwrap();
        assert!(found.contains(hint), "{set}: {error}");
    }
    let found = refusal("task: detection");
    assert!(
        found.contains("`detection`: objects are not detected here"),
        "{found}"
    );
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (text, what) in [
        ("labels: 0", "labels: 0, expected 1 to 16777216"),
        ("num_threads: 0", "num_threads: 0, expected 1 to 1024"),
        (
            "num_workers: 9999",
            "num_workers: 9999, expected auto, or 0 to 1024",
        ),
        ("prefetch: 0", "prefetch: 0, expected auto, or at least 1"),
        (
            "losses: {contrastive: .nan}",
            "losses.contrastive: NaN, expected a number of at least 0",
        ),
        (
            "losses: {label: -0.5}",
            "losses.label: -0.5, expected a number of at least 0",
        ),
        (
            "losses: {label_smoothing: 1}",
            "losses.label_smoothing: 1, expected at least 0 and less than 1",
        ),
        ("train: {lr: -1}", "train.lr: -1, expected a number above 0"),
        (
            "train: {lr: .inf}",
            "train.lr: inf, expected a number above 0",
        ),
        (
            "train: {lr_head: 0}",
            "train.lr_head: 0, expected a number above 0",
        ),
        (
            "train: {lr_by: {head.*: -1}}",
            "train.lr_by.head.*: -1, expected a number of at least 0",
        ),
        (
            "train: {ema: 1}",
            "train.ema: 1, expected a decay above 0 and below 1, or none",
        ),
        (
            "train: {interpolate: 1.5}",
            "train.interpolate: 1.5, expected a share above 0 and below 1, or none",
        ),
        (
            "train: {lr_end: 2}",
            "train.lr_end: 2, expected 0 to 1, a share of the learning rate",
        ),
        (
            "train: {clip_norm: 0}",
            "train.clip_norm: 0, expected a number above 0, or none",
        ),
        (
            "train: {clip_norm: .inf}",
            "train.clip_norm: inf, expected a number above 0, or none",
        ),
        (
            "train: {optimizer: {beta1: 1}}",
            "train.optimizer.beta1: 1, expected at least 0 and less than 1",
        ),
        (
            "train: {optimizer: {beta2: -0.1}}",
            "train.optimizer.beta2: -0.1, expected at least 0 and less than 1",
        ),
        (
            "train: {optimizer: {eps: 0}}",
            "train.optimizer.eps: 0, expected a number above 0",
        ),
        (
            "train: {optimizer: {weight_decay: -1}}",
            "train.optimizer.weight_decay: -1, expected a number of at least 0",
        ),
        (
            "train: {lora: {rank: 0}}",
            "train.lora.rank: 0, expected at least 1",
        ),
        (
            "train: {lora: {alpha: 0}}",
            "train.lora.alpha: 0, expected a number above 0",
        ),
        (
            "train: {lora: {dropout: 1}}",
            "train.lora.dropout: 1, expected at least 0 and less than 1",
        ),
        (
            "train: {lora: {targets: []}}",
            "train.lora.targets: an empty list, expected names of layers",
        ),
        ("train: {epochs: 0}", "train.epochs: 0, expected at least 1"),
        (
            "train: {eval_batch_size: 0}",
            "train.eval_batch_size: 0, expected at least 1",
        ),
        (
            "train: {early_stop: 0}",
            "train.early_stop: 0, expected at least 1 evaluation, or none",
        ),
        (
            "train: {eval_on: []}",
            "train.eval_on: [], expected validation, train or both",
        ),
        (
            "train: {eval_on: [train, train]}",
            "train.eval_on: [train, train], expected each split once",
        ),
        (
            "data: {augment: {crop: 0}}",
            "data.augment.crop: 0, expected above 0, at most 1",
        ),
    ] {
        let expected = format!("run.yml: line 2: {what}: found `{text}`\nhint: ");
        let refusal = refusal(&format!("model: small\n{text}"));
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
    for (text, what) in [
        (
            "train: {interpolate: 0.5, ema: 0.9}",
            "train.interpolate: 0.5, expected no `ema` beside it: one kind of average is evaluated and exported",
        ),
        (
            "losses: {contrastive: 0, label: 0}",
            "losses: contrastive 0, label 0, expected contrastive, label or both above 0",
        ),
        (
            "train: {interpolate: 0.5, lora: {}}",
            "train.interpolate: 0.5, expected no `lora` beside it: the middle between two adapters is not that of two models",
        ),
        (
            "train: {early_stop: 2, eval_every: none}",
            "train.early_stop: 2, expected evaluations to judge by, but `eval_every` is none",
        ),
    ] {
        let refusal = refusal(text);
        assert!(
            refusal.starts_with(&format!("run.yml: {what}\nhint: ")),
            "{refusal}"
        );
    }
}
