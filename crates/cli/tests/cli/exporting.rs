//! `holdall export`: ONNX files, half precision, adapters. What ONNX files compute is compared by docs/scripts/check_onnx.py.

use std::fs;

use safetensors::{Dtype, SafeTensors};

use crate::training::{Home, on};
use crate::typed::{DONE, holdall_words};

#[test]
fn onnx_files_lie_beside_the_run_with_what_using_them_takes() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let json = on("export", &run.path, "--onnx --json").exits(DONE).json();
    assert_eq!(
        (&json["opset"], &json["precision"]),
        (&17.into(), &"f32".into())
    );
    let files = json["files"].as_array().unwrap();
    let io: Vec<String> = files
        .iter()
        .map(|file| format!("{} -> {}", file["inputs"], file["outputs"]))
        .collect();
    let expected = [
        r#"["pixel_values"] -> ["image_embeds","logits"]"#,
        r#"["input_ids"] -> ["text_embeds"]"#,
    ];
    assert_eq!(io, expected);
    for name in [
        "image_encoder.onnx",
        "text_encoder.onnx",
        "tokenizer.json",
        "preprocessor_config.json",
        "labels.json",
    ] {
        assert!(run.file("onnx").join(name).is_file(), "{name}");
    }
    // Whoever put files there, they are replaced only by wish.
    let mine = run.file("onnx").join("image_encoder.onnx");
    fs::write(&mine, "mine").unwrap();
    let parts = ["run/onnx: expected an empty folder", "--overwrite"];
    on("export", &run.path, "--onnx").refused_with(&parts);
    assert_eq!(fs::read(&mine).unwrap(), b"mine");
    on("export", &run.path, "--onnx --overwrite").exits(DONE);
    let size = |name: &str| fs::metadata(home.path(name)).unwrap().len();
    let half = home.path("half");
    on(
        "export",
        &run.path,
        &format!("--onnx --half --out {}", half.display()),
    )
    .exits(DONE);
    let [full, half] = [
        size("run/onnx/image_encoder.onnx"),
        size("half/image_encoder.onnx"),
    ];
    assert!(half < full * 6 / 10, "{half} of {full} bytes");
    on("export", &run.file("model"), "--onnx").refused_with(&["--out"]);
    on("export", &home.path("nothing"), "--onnx --out x").refused_with(&["nothing"]);
}

#[test]
fn half_precision_halves_a_model_that_still_predicts_the_same() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let half = home.path("half");
    let words = format!("--half --out {}", half.display());
    on("export", &run.path, &words).exits(DONE);
    let bytes = fs::read(half.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert!(
        tensors
            .iter()
            .all(|(_, tensor)| tensor.dtype() == Dtype::F16)
    );
    let first = |model: &std::path::Path| {
        let words = [
            "predict".into(),
            model.as_os_str().to_owned(),
            home.path("cars/images").into(),
            "--json".into(),
        ];
        let json = holdall_words(words).exits(DONE).json();
        json["predictions"][0]["labels"][0]["label"].clone()
    };
    assert_eq!(first(&half), first(&run.path));
    on("export", &run.path, &words).refused_with(&["half", "is there already"]);
    on("export", &run.path, "--half").refused_with(&["--out"]);
}

/// The adapter merged into the model that training began with is the model that training saved.
#[test]
fn a_merged_adapter_gives_the_model_of_the_run() {
    let home = Home::with_cars(16);
    let base = home
        .trained("base", "--effective-batch 8 --epochs 1")
        .file("model");
    let options = format!(
        "--effective-batch 8 --epochs 1 --set train.lora.rank=2 --model {}",
        base.display()
    );
    let run = home.run_named("adapted");
    let mut words = home.words("adapted", "");
    words.truncate(2);
    words.extend(["--out".into(), run.path.clone().into()]);
    words.extend(options.split_whitespace().map(Into::into));
    holdall_words(words).exits(DONE);
    let (merged, adapter) = (home.path("merged"), run.file("model/adapter"));
    let words = format!("--merge {} --out {}", adapter.display(), merged.display());
    on("export", &base, &words).exits(DONE);
    let read = |folder: &std::path::Path| fs::read(folder.join("model.safetensors")).unwrap();
    let (own, other) = (read(&run.file("model")), read(&merged));
    let (own, other) = (
        SafeTensors::deserialize(&own).unwrap(),
        SafeTensors::deserialize(&other).unwrap(),
    );
    let before = read(&base);
    let before = SafeTensors::deserialize(&before).unwrap();
    let mut changed = 0;
    for (name, tensor) in own.iter() {
        assert_eq!(tensor.data(), other.tensor(name).unwrap().data(), "{name}");
        changed += usize::from(tensor.data() != before.tensor(name).unwrap().data());
    }
    assert!(changed > 0);
}
