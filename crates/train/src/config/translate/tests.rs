//! Translation of config files as PyTorch projects write them.

use holdall_data::config::{Stride, Validation};

use super::super::tests::{folder, refusal};
use super::super::{
    Freeze, FrozenShare, PoolingName, Precision, RunConfig, TaskName, Translation, Warmup,
};
use super::{TypedOption, typed_option};

const SEGMENTATION: &str = include_str!("../../../tests/fixtures/foreign/segmentation.yml");
const MULTITASK: &str = include_str!("../../../tests/fixtures/foreign/multitask_config.yaml");

fn translate(text: &str) -> (RunConfig, Translation) {
    let folder = folder(&[("run.yml", text)]);
    let path = folder.path().join("run.yml");
    let (config, mut translations) = RunConfig::load_translated(Some(&path), &[]).unwrap();
    assert_eq!(translations.len(), 1, "{text}");
    let translation = translations.remove(0);
    // The written file loads as the same config.
    let written = folder.path().join("written.yml");
    std::fs::write(&written, translation.file_text(None)).unwrap();
    assert_eq!(RunConfig::read(&written).unwrap(), config);
    let elsewhere = folder.path().join("below/written.yml");
    let below = elsewhere.parent().unwrap();
    std::fs::create_dir(below).unwrap();
    std::fs::write(&elsewhere, translation.file_text(Some(below))).unwrap();
    assert_eq!(RunConfig::read(&elsewhere).unwrap(), config);
    (config, translation)
}

fn differing(translation: &Translation) -> Vec<String> {
    let differences = translation.differences().into_iter();
    let key = |written: &str| written.split(": ").next().unwrap().to_owned();
    differences.map(|(written, _)| key(written)).collect()
}

#[test]
fn sections_of_a_script_are_read_as_one_whole() {
    let (config, translation) = translate(
        "trainer: {gradient_accumulation_steps: 4, mixed_precision: fp16}\n\
         dataset: {FIVES: {batch_size: 1, image_size: 1024, num_workers: 4}}\n",
    );
    assert!(translation.refusal().is_none());
    assert_eq!(config.train.gradient_accumulation, Some(4));
    assert_eq!(config.train.batch_size, Some(1));
    assert_eq!(config.precision, Precision::Fp16);
    assert_eq!(config.num_workers.exactly(), Some(4));
    assert!(config.data.train.unwrap().ends_with("FIVES"));
    let became = translation.became();
    let line = (
        "trainer.mixed_precision: fp16",
        "precision: fp16".to_owned(),
    );
    assert!(became.contains(&line), "{became:?}");
}

#[test]
fn a_segmentation_project_is_translated_setting_by_setting() {
    let (config, translation) = translate(SEGMENTATION);
    // The selected data set is used, and its folder is relative to the file.
    assert!(config.data.train.unwrap().ends_with("FIVES"));
    assert_eq!(config.train.batch_size, Some(1));
    assert_eq!(config.data.validation, Validation::share(0.2));
    assert_eq!(config.train.epochs, Some(200));
    assert_eq!(config.train.warmup, Warmup::Percent(2.0));
    assert_eq!((config.train.lr, config.train.lr_end), (Some(0.002), 0.001));
    assert_eq!(config.train.optimizer.weight_decay, 0.05);
    assert_eq!(config.unet.mean.as_deref(), Some(&[0.5, 0.25, 0.125][..]));
    let unneeded = translation.unneeded();
    for key in [
        "trainer.resume",
        "trainer.optimizer",
        "dataset.DRIVE",
        "models",
    ] {
        assert!(unneeded.contains(&key), "{key}: {unneeded:?}");
    }
    let expected = ["finetune.checkpoint", "finetune.model_choose"];
    assert_eq!(differing(&translation), expected);
    let refusal = translation.refusal().unwrap().to_string();
    assert!(
        refusal.contains("2 settings of this file have another effect here"),
        "{refusal}"
    );
    assert!(
        refusal.contains("model_choose: MambaNet: `model: unet`"),
        "{refusal}"
    );
}

#[test]
fn a_multitask_file_names_every_tower_and_loss_that_is_another() {
    let (config, translation) = translate(MULTITASK);
    assert_eq!(config.task, Some(TaskName::VideoText));
    assert_eq!(config.model, "openai/clip-vit-base-patch32");
    // Texts of 512 tokens need the project's BERT: CLIP's text tower has 77 positions.
    assert_eq!(config.tokens, Some(512));
    assert!(config.video_text.text_model.unwrap().contains("BiomedBERT"));
    assert_eq!(config.video_text.pooling, Some(PoolingName::Temporal));
    assert_eq!(config.data.caption.as_deref(), Some("Report"));
    assert_eq!(config.data.group.as_deref(), Some("StudyInstanceUID"));
    assert_eq!(config.data.stride, Stride::Spread);
    assert_eq!(config.train.batch_size, Some(4));
    assert_eq!(config.train.gradient_accumulation, Some(2));
    assert_eq!(config.train.warmup, Warmup::Percent(12.5));
    assert_eq!(config.losses.contrastive, 2.0);
    assert_eq!(config.losses.caption, Some(0.5));
    assert_eq!(config.losses.caption_smoothing, 0.08);
    assert_eq!(config.losses.label_smoothing, 0.0);
    assert_eq!(config.losses.caption_weights.get("[0-9]"), Some(&5.0));
    assert_eq!(config.train.lr_by.rate("decoder.x"), Some(0.0004));
    let names = vec![("vision_model".to_owned(), FrozenShare::AllBut(9))];
    assert_eq!(config.train.freeze, Freeze::Names(names));
    assert!(config.out.unwrap().ends_with("outputs"));
    assert_eq!(config.train.best_metric.as_deref(), Some("loss"));
    let mut differing = differing(&translation);
    differing.sort();
    let expected = [
        "aggregate_videos_tokens",
        "captioning_weight_decay",
        "contrastive_loss_type",
        "dropout",
        "loss_warmup_steps",
        "loss_weights",
        "model_name",
        "num_heads",
        "rand_augment",
        "shuffle_videos",
        "stride",
        "temperature",
        "video_freeze_ratio",
    ];
    assert_eq!(differing, expected);
    let said: Vec<_> = translation.differences();
    let of = |key: &str| {
        said.iter()
            .find(|(one, _)| one.starts_with(key))
            .unwrap()
            .1
            .clone()
    };
    assert!(of("model_name").contains("frame by frame"), "{said:?}");
    assert!(
        of("contrastive_loss_type").contains("no sigmoid loss"),
        "{said:?}"
    );
    assert!(
        of("loss_weights").contains("no losses masked_modeling"),
        "{said:?}"
    );
    // Every setting of the file is accounted for.
    let num_settings = MULTITASK
        .lines()
        .filter(|line| line.contains(": !!") || line.contains(": ["))
        .count();
    let num_told = translation.became().len() + translation.unneeded().len() + said.len();
    // The four loss weights are one setting, and an empty checkpoint is ignored.
    assert_eq!(num_told, num_settings - 4 + 1 - 1);
}

#[test]
fn without_a_line_on_its_tokenizer_such_a_project_still_has_its_bert() {
    let text = MULTITASK.replace("use_biomed_tokenizer: !!bool true\n", "");
    let (config, translation) = translate(&text);
    assert!(config.video_text.text_model.unwrap().contains("BiomedBERT"));
    let became = translation.became();
    assert!(
        became
            .iter()
            .any(|(written, _)| written.contains("text tower")),
        "{became:?}"
    );
    let text = MULTITASK.replace(
        "contrastive_loss_type: !!str sigmoid",
        "loss_name: !!str siglip_pairwise",
    );
    let (_, translation) = translate(&text);
    assert!(differing(&translation).contains(&"loss_name".to_owned()));
    let text = MULTITASK.replace("multi_video: !!bool true", "multi_video: !!bool false");
    assert_eq!(translate(&text).0.data.group, None);
}

/// A setting that is exact for one value may differ for another.
#[test]
fn values_with_another_effect_are_named() {
    let with = |line: &str| {
        let key = line.split(':').next().unwrap();
        let kept = MULTITASK
            .lines()
            .filter(|known| known.split(':').next() != Some(key));
        let text = kept.chain([line]).collect::<Vec<_>>().join("\n");
        let (_, translation) = translate(&text);
        differing(&translation).contains(&key.to_owned())
    };
    for (harmless, different) in [
        ("save_best: loss", "save_best: accuracy"),
        ("run_mode: train", "run_mode: inference"),
        ("debug: false", "debug: true"),
        ("resize: 224", "resize: 112"),
        ("shuffle_videos: false", "shuffle_videos: true"),
        (
            "aggregate_videos_tokens: true",
            "aggregate_videos_tokens: false",
        ),
        ("loss_warmup_steps: 0", "loss_warmup_steps: 10"),
        ("video_pooling_mode: mean", "video_pooling_mode: attention"),
        ("stride: 1", "stride: 2"),
        ("dropout: 0.0", "dropout: 0.1"),
        ("rand_augment: false", "rand_augment: true"),
        ("device: cuda", "device: \"cuda:1\""),
        ("gpu: 0", "gpu: 1"),
        ("no_cuda: false", "no_cuda: true"),
    ] {
        assert!(!with(harmless), "{harmless}");
        assert!(with(different), "{different}");
    }
}

#[test]
fn a_warm_up_is_a_share_of_the_run_or_none() {
    let warmup = |epochs: usize| {
        let text = format!("num_epochs: 10\nlearning_rate: 1e-3\nwarmup_epochs: {epochs}\n");
        let (config, translation) = translate(&text);
        (config.train.warmup, differing(&translation))
    };
    assert_eq!(warmup(2), (Warmup::Percent(20.0), Vec::new()));
    assert_eq!(warmup(10), (Warmup::Percent(100.0), Vec::new()));
    assert_eq!(warmup(50).1, ["warmup_epochs"]);
}

#[test]
fn a_loss_may_be_a_section_with_a_name() {
    for section in ["loss: {name: dice}", "criterion: {type: DiceLoss}"] {
        let text = format!("num_epochs: 2\nlearning_rate: 1e-3\n{section}\n");
        let (config, translation) = translate(&text);
        assert!(differing(&translation).is_empty(), "{section}");
        assert_eq!(config.losses.dice, Some(1.0), "{section}");
    }
}

#[test]
fn a_section_that_stands_there_twice_is_named() {
    let found = refusal("trainer: {lr: 1e-4}\ntrainer: {batch_size: 4}\n");
    assert!(
        found.contains("the key `trainer` stands there twice"),
        "{found}"
    );
}

#[test]
fn a_flat_file_of_a_script_is_translated() {
    let (config, translation) = translate(
        "learning_rate: 2e-4\nbatch_size: 8\nnum_train_epochs: 3\nwarmup_ratio: 0.1\nfp16: True\nval_split: 0.25\n\
         optim: adamw_torch\npin_memory: True\noutput_dir: runs/x\ntrain_csv: a.csv\n",
    );
    assert!(
        translation.refusal().is_none(),
        "{:?}",
        translation.differences()
    );
    assert_eq!(
        (config.train.lr, config.train.epochs),
        (Some(2e-4), Some(3))
    );
    assert_eq!(config.train.batch_size, Some(8));
    assert_eq!(config.data.validation, Validation::share(0.25));
    assert_eq!(config.precision, Precision::Fp16);
    // An unknown setting is reported, and the run is refused.
    let (_, translation) = translate("learning_rate: 2e-4\nnum_epochs: 3\nflux_capacitor: 9\n");
    assert_eq!(differing(&translation), ["flux_capacitor"]);
    // A single foreign key in a Holdall config is an error with a hint.
    let found = refusal("model: small\ntrain: {learning_rate: 1e-3}\n");
    assert!(found.contains("unknown key `learning_rate`"), "{found}");
}

#[test]
fn a_base_of_another_tool_is_translated_too() {
    let folder = folder(&[
        ("base.yml", "learning_rate: 2e-4\nnum_epochs: 3\n"),
        ("run.yml", "base_config: base.yml\nmax_grad_norm: 0.5\n"),
    ]);
    let path = folder.path().join("run.yml");
    let (config, translations) = RunConfig::load_translated(Some(&path), &[]).unwrap();
    assert_eq!(translations.len(), 2);
    assert_eq!(
        (config.train.lr, config.train.clip_norm),
        (Some(2e-4), Some(0.5))
    );
    // By itself this base could be a config of Holdall with keys in the wrong place.
    let base = folder.path().join("base.yml");
    std::fs::write(&base, "epochs: 3\n").unwrap();
    let (config, _) = RunConfig::load_translated(Some(&path), &[]).unwrap();
    assert_eq!(config.train.epochs, Some(3));
    let alone = RunConfig::load_translated(Some(&base), &[]).unwrap_err();
    assert!(
        alone
            .to_string()
            .contains("`epochs` belongs under `train:`"),
        "{alone}"
    );
}

#[test]
fn options_of_scripts_mean_keys() {
    let means = |option: &str, next: Option<&str>| match typed_option(option, next) {
        Some(TypedOption::Means { words, takes_value }) => (words.join(" "), takes_value),
        Some(TypedOption::Answer(answer)) => (format!("answer: {answer}"), false),
        None => panic!("{option}"),
    };
    for (option, next, words, takes_value) in [
        (
            "--mixed_precision",
            Some("fp16"),
            "--set precision=fp16",
            true,
        ),
        (
            "--weight_decay",
            Some("0.05"),
            "--set train.optimizer.weight_decay=0.05",
            true,
        ),
        (
            "--weight-decay",
            Some("0.05"),
            "--set train.optimizer.weight_decay=0.05",
            true,
        ),
        ("--patience", Some("5"), "--set train.early_stop=5", true),
        ("--warmup", Some("500"), "--set train.warmup=500", true),
        (
            "--warmup_ratio",
            Some("0.1"),
            "--set train.warmup=10%",
            true,
        ),
        (
            "--gradient_checkpointing",
            None,
            "--set train.recompute=blocks",
            false,
        ),
        (
            "--gradient_checkpointing",
            Some("photos.csv"),
            "--set train.recompute=blocks",
            false,
        ),
        ("--fp16", Some("photos.csv"), "--set precision=fp16", false),
        ("--fp16", Some("True"), "--set precision=fp16", true),
        ("--pin_memory", None, "", false),
        ("--base_config", Some("old.yml"), "old.yml", true),
        (
            "--accum-freq",
            Some("4"),
            "--set train.gradient_accumulation=4",
            true,
        ),
        ("--optim", Some("adamw_torch"), "", true),
    ] {
        let (found, takes) = means(option, next);
        assert_eq!((found.as_str(), takes), (words, takes_value), "{option}");
        for set in found.split("--set ").skip(1) {
            RunConfig::load(None, &[set.trim().to_owned()]).unwrap();
        }
    }
    for (option, next, answer) in [
        ("--optim", "sgd", "the optimizer is AdamW"),
        ("--resume_from_checkpoint", "runs/1", "`--resume`"),
        ("--max_memory", "8192", "a number needs its unit"),
    ] {
        let (found, _) = means(option, Some(next));
        assert!(
            found.contains(answer) && found.starts_with("answer"),
            "{found}"
        );
    }
    assert!(typed_option("--flux", Some("9")).is_none());
}
