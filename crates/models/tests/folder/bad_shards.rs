//! An index and its shards that do not belong together, or not in this folder.

use std::fs;
use std::path::Path;

use holdall_models::folder::ModelFolder;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{assert_refused, tensors_of, tiny, tiny_folder, write};

fn sharded() -> (TempDir, Value) {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &tensors_of(&tiny()), None, Some(4096));
    let index = fs::read_to_string(folder.path().join("model.safetensors.index.json")).unwrap();
    (folder, serde_json::from_str(&index).unwrap())
}

fn shards_of(index: &Value) -> Vec<String> {
    let names = index["weight_map"].as_object().unwrap().values();
    let mut shards: Vec<String> = names
        .map(|name| name.as_str().unwrap().to_string())
        .collect();
    shards.dedup();
    shards
}

fn write_index(folder: &Path, index: &Value) {
    fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

#[test]
fn an_index_that_points_elsewhere_is_refused() {
    let (folder, mut index) = sharded();
    let elsewhere = tiny_folder();
    let absolute = elsewhere.path().join("model.safetensors");
    for name in [
        absolute.to_str().unwrap(),
        "../model.safetensors",
        "..\\model.safetensors",
        "below/model.safetensors",
        "c:model.safetensors",
        "..",
        "",
        "pytorch_model.bin",
    ] {
        index["weight_map"]["logit_scale"] = json!(name);
        write_index(folder.path(), &index);
        let shown = format!("\"{}\"", name.escape_debug());
        assert_refused(
            ModelFolder::open(folder.path()),
            &["index.json", &shown, "plain file name"],
        );
    }
}

#[test]
fn an_index_of_another_form_is_refused() {
    let (folder, mut index) = sharded();
    let path = folder.path().join("model.safetensors.index.json");
    index["weight_map"]["logit_scale"] = json!(1);
    for text in [
        "",
        "[]",
        "{}",
        "{\"weight_map\": {}}",
        "{\"weight_map\": []}",
        &index.to_string(),
    ] {
        fs::write(&path, text).unwrap();
        assert_refused(
            ModelFolder::open(folder.path()),
            &["index.json", "`weight_map`"],
        );
    }
}

#[test]
fn shards_that_are_absent_or_of_another_save_are_refused() {
    let (folder, mut index) = sharded();
    let shards = shards_of(&index);
    index["weight_map"]["logit_scale"] = json!(shards[1]);
    write_index(folder.path(), &index);
    assert_refused(
        ModelFolder::open(folder.path()),
        &[&shards[1], "`logit_scale`", "other tensors"],
    );

    fs::remove_file(folder.path().join(&shards[1])).unwrap();
    let number = format!("all {} shards", shards.len());
    assert_refused(
        ModelFolder::open(folder.path()),
        &[&shards[1], "found none", &number],
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let (folder, mut index) = sharded();
    let shards = shards_of(&index);
    fs::copy(
        folder.path().join(&shards[0]),
        folder.path().join("model-copy.safetensors"),
    )
    .unwrap();
    let first = index["weight_map"]
        .as_object()
        .unwrap()
        .keys()
        .next()
        .unwrap()
        .clone();
    index["weight_map"][first.as_str()] = json!("model-copy.safetensors");
    write_index(folder.path(), &index);
    let parts = ["expected once", &shards[0], "model-copy.safetensors"];
    assert_refused(ModelFolder::open(folder.path()), &parts);
}
