//! `preprocessor_config.json` of a model folder: used, written back, refused by name.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::training::{Home, RunFiles, on, unseal};
use crate::typed::{Answer, DONE, holdall_words};

const FILE: &str = "preprocessor_config.json";

/// Changes keys of a model's image processor; gives the file as it is then.
fn change(model: &Path, changes: Value) -> Vec<u8> {
    let file = model.join(FILE);
    let mut json: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let Value::Object(changes) = changes else {
        panic!("keys and values");
    };
    json.as_object_mut().unwrap().extend(changes);
    // Not as Holdall writes it: what is written back is what was there.
    let text = json.to_string().replace(',', " ,\t");
    fs::write(&file, &text).unwrap();
    unseal(model);
    text.into_bytes()
}

fn features(home: &Home, model: &Path) -> (Vec<f32>, Answer) {
    let file = home.path("features.safetensors");
    let words = ["predict".as_ref(), model.as_os_str()];
    let images = home.path("cars/images");
    let rest = [
        images.as_os_str(),
        "--overwrite".as_ref(),
        "--features".as_ref(),
        file.as_os_str(),
    ];
    let answer = holdall_words(words.into_iter().chain(rest)).exits(DONE);
    let bytes = fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = tensors.tensor("image_features").unwrap();
    let values = values.data().as_chunks::<4>().0;
    let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes));
    (values.collect(), answer)
}

/// Of rows of unit length.
fn mean_cosine(a: &[f32], b: &[f32], num_rows: usize) -> f32 {
    let products = a.iter().zip(b).map(|(a, b)| a * b);
    products.sum::<f32>() / num_rows as f32
}

/// `holdall train cars --model FOLDER --out NAME`, one epoch.
fn train_from(home: &Home, model: &Path, name: &str) -> (RunFiles, Answer) {
    let options = format!(
        "--model {} --out {} --effective-batch 8 --epochs 1",
        model.display(),
        home.path(name).display()
    );
    (
        home.run_named(name),
        on("train", &home.path("cars"), &options),
    )
}

#[test]
fn it_is_used_and_written_back() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let model = run.file("model");
    let (before, answer) = features(&home, &model);
    assert!(
        answer.stderr.contains(
            "Pictures: shorter side to 64 (bicubic), middle 64 x 64, mean 0.4815 0.4578 0.4082"
        ),
        "{}",
        answer.stderr
    );
    // A key that changes no pixels changes no bit.
    change(
        &model,
        json!({"processor_class": "CLIPProcessor", "device": null}),
    );
    assert_eq!(features(&home, &model).0, before);
    let written = change(
        &model,
        json!({"image_mean": [0.1, 0.9, 0.5], "image_std": [0.9, 0.2, 0.6], "resample": 2, "size": {"shortest_edge": 80}}),
    );
    let (after, answer) = features(&home, &model);
    let says = "Pictures: shorter side to 80 (bilinear), middle 64 x 64, mean 0.1000 0.9000 0.5000, std 0.9000 0.2000 0.6000";
    assert!(answer.stderr.contains(says), "{}", answer.stderr);
    let cosine = mean_cosine(&before, &after, 16);
    assert!(cosine < 0.99, "{cosine}");
    // What is trained from it means what it meant.
    let (trained, answer) = train_from(&home, &model, "second");
    let answer = answer.exits(DONE);
    assert!(answer.stderr.contains(says), "{}", answer.stderr);
    assert_eq!(fs::read(trained.file("model").join(FILE)).unwrap(), written);
    // A run that goes on with other pixels would be another run.
    let of_first = fs::read(model.join(FILE)).unwrap();
    change(&model, json!({"image_std": [0.5, 0.5, 0.5]}));
    let refused = trained.resume("--epochs 2");
    refused.refused_with(&[
        "preprocessor_config.json",
        "not those that the run began with",
    ]);
    fs::write(model.join(FILE), of_first).unwrap();
    trained.resume("--epochs 2").exits(DONE);
    // Without one there are OpenAI's numbers, and a word on that.
    fs::remove_file(model.join(FILE)).unwrap();
    let (without, answer) = features(&home, &model);
    assert_eq!(without, before);
    assert!(
        answer
            .stderr
            .contains("the model has no preprocessor_config.json"),
        "{}",
        answer.stderr
    );
}

#[test]
fn what_is_unknown_is_refused_by_every_command() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let model = run.file("model");
    for (changes, key) in [
        (
            json!({"crop_size": {"height": 32, "width": 32}}),
            "crop_size",
        ),
        (json!({"size_divisor": 14}), "size_divisor"),
    ] {
        let good = fs::read(model.join(FILE)).unwrap();
        change(&model, changes);
        let named = [FILE, key, "expected"];
        on("plan", &model, "").refused_with(&named);
        on("verify", &model, "--effective-batch 2").refused_with(&named);
        on("eval", &run.path, "").refused_with(&named);
        let images = home.path("cars/images").display().to_string();
        on("predict", &model, &images).refused_with(&named);
        train_from(&home, &model, "refused").1.refused_with(&named);
        assert!(!home.path("refused").exists());
        fs::write(model.join(FILE), good).unwrap();
    }
}
