//! What a classification refuses: each error names what was expected, and what to type instead.

use std::fs;
use std::path::Path;

use crate::classify::{predict, three_targets, tiny_vit, train, with_labels};
use crate::training::{Home, on};
use crate::typed::{DONE, holdall_words};

#[test]
fn keys_that_the_task_or_the_data_do_not_have() {
    let home = Home::with_cars(16);
    let config = three_targets(&home);
    let out = home.path("run");
    let refused = |options: &str, parts: &[&str]| {
        train(&config, &tiny_vit(), &out, options).refused_with(parts);
        assert!(!out.exists(), "{options}");
    };
    refused(
        "--set losses.targets.price=2",
        &[
            "losses.targets: `price`",
            "expected a target of the data: looks, make, year",
        ],
    );
    refused(
        "--set data.targets.loss=color",
        &[
            "data.targets: `loss`",
            "expected another name",
            "the_loss: loss",
        ],
    );
    refused(
        "--set data.mixing.mixup=-1",
        &["data.mixing.mixup: -1", "expected 0 or more"],
    );
    refused(
        "--set train.dropout=1",
        &["train.dropout=1", "from 0 to below 1"],
    );
    refused(
        "--set train.best_metric=accuracy",
        &[
            "train.best_metric: accuracy",
            "make.accuracy",
            "year.mean_absolute_error",
        ],
    );
    refused(
        "--set data.targets.age.number=color",
        &["color", "expected", "number"],
    );
    let clip = |option: &str| {
        let data = home.path("cars");
        let options = format!("--task clip --set {option}");
        train(&data, Path::new("small"), &out, &options)
            .refused_with(&["task clip", "`task: classify`"]);
    };
    clip("train.dropout=0.1");
    clip("train.stochastic_depth=0.1");
    clip("data.mixing.cutmix=1");
}

#[test]
fn a_model_of_the_other_task() {
    let (home, csv) = with_labels(16);
    let out = home.path("run");
    // Cars have captions: that is a CLIP's data.
    let parts = [
        "expected CLIPModel",
        "found ViTForImageClassification",
        "`task: classify`",
    ];
    train(&home.path("cars/image_labels.csv"), &tiny_vit(), &out, "").refused_with(&parts);
    let detection = train(&csv, &tiny_vit(), &out, "--task detection");
    detection.refused_with(&[
        "--task detection: objects are not detected here",
        "--task segment",
    ]);
    train(&csv, &tiny_vit(), &out, "--set labels=3").refused_with(&["labels: 3", "expected 8"]);
    let parts = ["absent", "expected a folder", "vit-demo", "small"];
    train(&csv, Path::new("absent"), &out, "").refused_with(&parts);
    let words = ["eval", "vit-demo"];
    holdall_words(words).refused_with(&["vit-demo", "expected a trained model", "found a preset"]);
}

#[test]
fn pictures_without_anything_to_learn() {
    let (home, csv) = with_labels(16);
    let out = home.path("run");
    let model = Path::new("vit-demo");
    let text = fs::read_to_string(&csv).unwrap();
    let images: Vec<&str> = text
        .lines()
        .map(|line| line.split(',').next().unwrap())
        .collect();
    let bare = home.path("cars/bare.csv");
    fs::write(&bare, images.join("\n")).unwrap();
    train(&bare, model, &out, "").refused_with(&[
        "bare.csv",
        "expected",
        "labels",
        "`label: COLUMN`",
    ]);
    let parts = [
        "bare.csv",
        "expected labels to learn",
        "found none",
        "data.label=COLUMN",
    ];
    train(&bare, model, &out, "--task classify").refused_with(&parts);
    train(&csv, model, &out, "--task classify --set data.label=none")
        .refused_with(&["expected labels to learn", "found none"]);
}

#[test]
fn what_a_classifier_cannot_predict() {
    let (home, csv) = with_labels(16);
    let out = home.path("run");
    train(&csv, &tiny_vit(), &out, "--effective-batch 8 --epochs 1").exits(DONE);
    let picture = home.path("cars/images/000001.jpg");
    for (option, parts) in [
        ("--labels a,b", ["--labels", "found a classifier"]),
        ("--features f.npy", ["--features", "found a classifier"]),
        ("--csv absent/p.csv", ["absent/p.csv", "--csv"]),
    ] {
        predict(&out, &picture, option).refused_with(&parts);
    }
    // Rows with a label that the model never saw.
    let text = fs::read_to_string(&csv).unwrap().replace("Halvik", "Alvik");
    let other = home.path("cars/other.csv");
    fs::write(&other, text).unwrap();
    let words = [
        "eval".into(),
        out.clone().into_os_string(),
        other.into_os_string(),
    ];
    let answer = holdall_words(words).exits(DONE);
    let said = "that was not trained on (Alvik 2, like `Halvik`): scored as wrong";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    // Heads that are not those of the weights.
    let model = home.run().file("model");
    crate::training::unseal(&model);
    fs::write(
        model.join("targets.json"),
        "[{\"kind\": \"number\", \"name\": \"age\"}]",
    )
    .unwrap();
    on("eval", &out, "").refused_with(&["targets.json", "1 outputs", "expected 8"]);
    fs::write(model.join("targets.json"), "[{\"kind\": \"mask\"}]").unwrap();
    on("eval", &out, "").refused_with(&["targets.json", "mask"]);
}
