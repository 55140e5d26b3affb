//! Model folders, good and bad, through the command line.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::typed::{Answer, DONE, holdall_words};

const WEIGHTS: &str = "model.safetensors";

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/fixtures/clip_quick")
}

/// A copy of a small model with a label head of five classes.
pub fn good_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", WEIGHTS, "head.safetensors"] {
        fs::copy(fixture().join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn run(command: &str, folder: &Path, options: &str) -> Answer {
    let options = options.split_whitespace().map(Into::into);
    let words = [command.into(), folder.as_os_str().to_owned()];
    holdall_words(words.into_iter().chain(options))
}

/// Damages a good folder; what is left must be refused by both commands, with these parts and the file's name.
#[track_caller]
fn refused_after(damage: impl FnOnce(&Path), parts: &[&str]) {
    let folder = good_folder();
    damage(folder.path());
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let mut parts = parts.to_vec();
    parts.push(name);
    run("plan", folder.path(), "").refused_with(&parts);
    run("verify", folder.path(), "--effective-batch 2").refused_with(&parts);
}

pub type Tensor = (String, Vec<usize>, Vec<u8>);

/// Saves the good tensors after a change.
pub fn save_with(folder: &Path, change: impl FnOnce(&mut Vec<Tensor>)) {
    let file = folder.join(WEIGHTS);
    let data = fs::read(&file).unwrap();
    let mut tensors: Vec<Tensor> = SafeTensors::deserialize(&data)
        .unwrap()
        .iter()
        .map(|(name, view)| (name.to_owned(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data).unwrap();
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, &file).unwrap();
}

pub fn named<'a>(tensors: &'a mut [Tensor], name: &str) -> &'a mut Tensor {
    let found = tensors.iter_mut().find(|tensor| tensor.0 == name);
    found.unwrap_or_else(|| panic!("no tensor {name}"))
}

/// Replaces the header of the weights by what `change` makes of it, the data untouched.
fn lie_in_header(folder: &Path, change: impl FnOnce(&mut Value)) {
    let file = folder.join(WEIGHTS);
    let bytes = fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let header = header.to_string();
    let mut lying = (header.len() as u64).to_le_bytes().to_vec();
    lying.extend(header.as_bytes());
    lying.extend(&bytes[8 + length..]);
    fs::write(&file, lying).unwrap();
}

fn edit_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let file = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut config);
    fs::write(&file, config.to_string()).unwrap();
}

#[test]
fn a_good_folder_is_planned_and_verified() {
    let folder = good_folder();
    for labels in ["", "--labels 5"] {
        let plan = run("plan", folder.path(), labels).exits(DONE);
        assert!(plan.stdout.contains("Weights: pretrained from "));
        let options = format!("--effective-batch 5 --json {labels}");
        let certificate = run("verify", folder.path(), &options).exits(DONE);
        assert_eq!(certificate.json()["exact"], true);
    }
}

/// The head beside the weights is what the label loss starts from: another one gives another loss.
#[test]
fn the_head_of_the_folder_is_used() {
    let folder = good_folder();
    let loss = || {
        let words = "bench clip --steps 1 --batch-size 4 --gradient-accumulation 1 --labels 5";
        let words = words.split(' ').map(Into::into);
        let model = ["--model".into(), folder.path().as_os_str().to_owned()];
        let answer = holdall_words(words.chain(model)).exits(DONE);
        answer.json()["loss"].as_f64().unwrap()
    };
    let with_head = loss();
    fs::remove_file(folder.path().join("head.safetensors")).unwrap();
    assert_ne!(loss(), with_head);
}

#[test]
fn a_head_of_other_classes_is_not_dropped_in_silence() {
    let folder = good_folder();
    let answer = run("verify", folder.path(), "--effective-batch 2 --labels 7");
    assert!(
        answer.stderr.contains("head"),
        "{}: {}",
        answer.code,
        answer.stderr
    );
}

#[test]
fn a_missing_tensor() {
    let remove = |tensors: &mut Vec<Tensor>| tensors.retain(|(name, _, _)| name != "logit_scale");
    refused_after(
        |folder| save_with(folder, remove),
        &["expected", "1 missing", "logit_scale"],
    );
}

#[test]
fn an_extra_tensor() {
    let add = |tensors: &mut Vec<Tensor>| tensors.push(("adapter".into(), vec![1], vec![0; 4]));
    refused_after(
        |folder| save_with(folder, add),
        &["expected", "1 unexpected", "adapter"],
    );
}

#[test]
fn a_misshaped_tensor() {
    let transpose = |tensors: &mut Vec<Tensor>| {
        named(tensors, "text_projection.weight").1.reverse();
    };
    refused_after(
        |folder| save_with(folder, transpose),
        &["text_projection.weight: expected [16, 24], found [24, 16]"],
    );
}

#[test]
fn truncated_weights() {
    for keep in [0, 4, 100, 50_000, 188_299] {
        refused_after(
            |folder| {
                let file = folder.join(WEIGHTS);
                let bytes = fs::read(&file).unwrap();
                fs::write(&file, &bytes[..keep]).unwrap();
            },
            &[WEIGHTS, "expected", &format!("found {keep}")],
        );
    }
}

#[test]
fn a_header_that_lies_about_sizes() {
    let tensor = "text_projection.weight";
    refused_after(
        |folder| lie_in_header(folder, |header| header[tensor]["shape"] = json!([16, 2400])),
        &[
            WEIGHTS,
            tensor,
            "expected 153600 bytes",
            "found room for 1536",
        ],
    );
    refused_after(
        |folder| {
            lie_in_header(folder, |header| {
                header[tensor]["data_offsets"] = json!([0, u64::MAX]);
            });
        },
        &[WEIGHTS, "expected"],
    );
    refused_after(
        |folder| {
            let file = folder.join(WEIGHTS);
            let mut bytes = fs::read(&file).unwrap();
            bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
            fs::write(&file, bytes).unwrap();
        },
        &[WEIGHTS, "header", &u64::MAX.to_string()],
    );
}

#[test]
fn only_a_pickle() {
    refused_after(
        |folder| fs::rename(folder.join(WEIGHTS), folder.join("pytorch_model.bin")).unwrap(),
        &[
            "pytorch_model.bin",
            "expected safetensors",
            "from transformers import CLIPModel",
            ".save_pretrained(",
        ],
    );
}

#[test]
fn an_unknown_architecture() {
    refused_after(
        |folder| {
            edit_config(folder, |config| {
                config["architectures"] = json!(["SiglipModel"]);
                config["model_type"] = json!("siglip");
            });
        },
        &["config.json", "SiglipModel", "expected", "CLIPModel"],
    );
}

#[test]
fn a_config_of_another_size() {
    refused_after(
        |folder| edit_config(folder, |config| config["projection_dim"] = json!(32)),
        &["text_projection.weight: expected [32, 24], found [16, 24]"],
    );
}

#[test]
fn no_config() {
    refused_after(
        |folder| fs::remove_file(folder.join("config.json")).unwrap(),
        &["config.json", "expected a file", "found none"],
    );
}

#[test]
fn a_config_that_is_no_json() {
    refused_after(
        |folder| fs::write(folder.join("config.json"), "model_type = clip\n").unwrap(),
        &["config.json", "expected"],
    );
}

#[test]
fn an_empty_folder() {
    refused_after(
        |folder| {
            for entry in fs::read_dir(folder).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        },
        &["expected model.safetensors", "found an empty folder"],
    );
}

/// Someone names a file of the folder, or a pickle, instead of the folder.
#[test]
fn a_file_instead_of_a_folder() {
    let folder = good_folder();
    let weights = folder.path().join(WEIGHTS);
    run("plan", &weights, "").refused_with(&[WEIGHTS, "found a file"]);
    let pickle = folder.path().join("pytorch_model.bin");
    fs::write(&pickle, "a pickle").unwrap();
    run("plan", &pickle, "").refused_with(&["pytorch_model.bin", ".save_pretrained("]);
}
