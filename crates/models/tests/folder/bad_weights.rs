//! Weights that are absent, damaged, hostile or of another model, each refused with its own reason.

use std::fs;

use holdall_models::ModelError;
use holdall_models::folder::{Head, ModelFolder, write_folder};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Tensors, assert_refused, folder_with, tensors_of, tiny, tiny_folder};

/// Opens the tiny model's folder after its weights were replaced by these bytes.
fn open_with(bytes: &[u8]) -> Result<ModelFolder, ModelError> {
    let folder = tiny_folder();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    ModelFolder::open(folder.path())
}

/// A safetensors file of any header, true or not.
fn file_of(header: &[u8], num_data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.resize(bytes.len() + num_data_bytes, 0);
    bytes
}

fn open_with_header(header: Value, num_data_bytes: usize) -> Result<ModelFolder, ModelError> {
    open_with(&file_of(header.to_string().as_bytes(), num_data_bytes))
}

fn entry(dtype: &str, shape: &[u64], offsets: [u64; 2]) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": offsets})
}

fn check_after(change: impl FnOnce(&mut Tensors)) -> Result<(), ModelError> {
    let mut tensors = tensors_of(&tiny());
    change(&mut tensors);
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let tensors: Vec<_> = tensors
        .into_iter()
        .map(|(n, s, v)| (n, s, bytes(&v)))
        .collect();
    ModelFolder::open(folder_with(Dtype::F32, &tensors).path())
        .unwrap()
        .check()
}

#[test]
fn a_path_that_is_no_folder_is_refused() {
    let folder = tiny_folder();
    let open = |name| ModelFolder::open(&folder.path().join(name));
    assert_refused(open("absent"), &["absent", "found nothing"]);
    assert_refused(
        open("model.safetensors"),
        &["model.safetensors", "found a file"],
    );
}

#[test]
fn a_folder_without_weights_is_refused() {
    let folder = TempDir::new().unwrap();
    assert_refused(
        ModelFolder::open(folder.path()),
        &["model.safetensors", "an empty folder"],
    );
    for number in 0..10 {
        fs::write(folder.path().join(format!("note{number}.txt")), "").unwrap();
    }
    assert_refused(
        ModelFolder::open(folder.path()),
        &["note0.txt", "and 2 more"],
    );
}

#[test]
fn pickles_are_refused_with_the_lines_that_convert_them() {
    for (name, line) in [
        ("pytorch_model.bin", ".save_pretrained("),
        ("pytorch_model-00001-of-00002.bin", ".save_pretrained("),
        ("epoch_3.pt", "safetensors.torch.save_file(torch.load("),
    ] {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join(name);
        fs::write(&file, "a pickle").unwrap();
        assert_refused(ModelFolder::open(folder.path()), &[name, "runs code", line]);
        assert_refused(ModelFolder::open(&file), &[name, "runs code", line]);
    }
    let folder = tiny_folder();
    fs::write(folder.path().join("pytorch_model.bin"), "a pickle").unwrap();
    ModelFolder::open(folder.path()).unwrap().check().unwrap();
    // The lines are for the architecture that the folder names; nothing else of its text becomes Python.
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    for (named, line) in [
        ("ViTModel", "import ViTModel\nViTModel.from_pretrained("),
        ("os; x", "import CLIPModel\nCLIPModel.from_pretrained("),
    ] {
        let config = format!("{{\"architectures\": [\"{named}\"]}}");
        fs::write(folder.path().join("config.json"), config).unwrap();
        assert_refused(ModelFolder::open(folder.path()), &["runs code", line]);
    }
}

#[test]
fn missing_unexpected_and_misshaped_tensors_are_listed_together() {
    let result = check_after(|tensors| {
        tensors[0].0 = "temperature".into();
        tensors[2].1 = vec![8, 4];
    });
    let parts = [
        "1 missing:\n    logit_scale\n",
        "1 unexpected:\n    temperature\n",
        "text_model.embeddings.position_embedding.weight: expected [4, 8], found [8, 4]",
    ];
    assert_refused(result, &parts);
}

#[test]
fn each_kind_of_difference_alone_is_refused() {
    let missing = check_after(|tensors| drop(tensors.pop()));
    assert_refused(
        missing,
        &["1 missing", "text_projection.weight", "different models"],
    );
    let unexpected = check_after(|tensors| tensors.push(("extra".into(), vec![1], vec![0.0])));
    assert_refused(unexpected, &["1 unexpected", "extra"]);
    let misshaped = check_after(|tensors| tensors[0].1 = vec![1]);
    assert_refused(
        misshaped,
        &["logit_scale: expected [], found [1]", "different sizes"],
    );
}

#[test]
fn long_lists_are_cut_and_a_wrapper_is_recognised() {
    let result = check_after(|tensors| {
        for (name, _, _) in tensors {
            name.insert_str(0, "module.");
        }
    });
    let number = tiny().tensors().len();
    let counts = [
        format!("{number} missing"),
        format!("{number} unexpected"),
        format!("and {} more", number - 6),
    ];
    assert_refused(
        result,
        &[&counts[0], &counts[1], &counts[2], "starts with `module.`"],
    );
}

#[test]
fn other_types_are_refused_by_name() {
    let tensors = [("logit_scale".to_string(), vec![], vec![0; 8])];
    let folder = folder_with(Dtype::I64, &tensors);
    assert_refused(
        ModelFolder::open(folder.path()),
        &["model.safetensors", "`logit_scale`", "I64", "BF16"],
    );
    let header = json!({"logit_scale": entry("Q4_K", &[], [0, 4])});
    assert_refused(open_with_header(header, 4), &["`logit_scale`", "Q4_K"]);
}

#[test]
fn a_file_cut_short_is_refused_at_every_length() {
    let folder = tiny_folder();
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let lengths = (0..64)
        .chain((64..whole.len()).step_by(97))
        .chain([whole.len() - 1]);
    for length in lengths {
        fs::write(&path, &whole[..length]).unwrap();
        let found = format!("found {length}\n");
        assert_refused(
            ModelFolder::open(folder.path()),
            &["model.safetensors: expected", &found, "cut short"],
        );
    }
}

#[test]
fn a_file_that_goes_on_is_refused() {
    let header = json!({"a": entry("F32", &[1], [0, 4])});
    assert_refused(
        open_with_header(header, 5),
        &["model.safetensors", "to end after"],
    );
}

#[test]
fn a_header_of_absurd_length_is_refused() {
    for length in [100_000_001, u64::MAX] {
        let mut bytes = file_of(b"{}", 0);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        assert_refused(
            open_with(&bytes),
            &["model.safetensors", "100000000", &length.to_string()],
        );
    }
}

#[test]
fn a_header_that_is_no_header_is_refused() {
    assert_refused(
        open_with(&file_of(b"{\"\xff\"}", 0)),
        &["model.safetensors", "UTF-8", "2 bytes into its header"],
    );
    for header in [
        "",
        "[]",
        "{",
        "{\"a\": 1}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}",
    ] {
        assert_refused(
            open_with(&file_of(header.as_bytes(), 4)),
            &["model.safetensors", "a safetensors header"],
        );
    }
}

#[test]
fn a_header_that_lies_about_sizes_is_refused() {
    let huge = 1 << 61;
    for (header, parts) in [
        (
            json!({"a": entry("F32", &[2], [0, 4])}),
            ["`a`", "expected 8 bytes for shape [2] of F32", "4 bytes"],
        ),
        (
            json!({"a": entry("F32", &[1], [4, 0]), "b": entry("F32", &[1], [0, 4])}),
            ["`a`", "4 bytes", "-4 bytes"],
        ),
        (
            json!({"a": entry("F32", &[huge, huge], [0, 4])}),
            ["`a`", "impossibly many", "4 bytes"],
        ),
        (
            json!({"a": entry("F4", &[9], [0, 4])}),
            ["`a`", "5 bytes", "4 bytes"],
        ),
        (
            json!({"a": entry("F32", &[1], [0, 4]), "b": entry("F32", &[1], [2, 6])}),
            ["`b`", "byte 4", "at 2"],
        ),
        (
            json!({"a": entry("F32", &[1], [0, 4]), "b": entry("F32", &[1], [6, 10])}),
            ["`b`", "byte 4", "at 6"],
        ),
        (
            json!({"a": entry("F32", &[1], [0, u64::MAX])}),
            ["model.safetensors", "cut short", "found"],
        ),
        (
            json!({"a": entry("F32", &[huge], [u64::MAX - 4, u64::MAX])}),
            ["model.safetensors", "cut short", "found"],
        ),
    ] {
        let num_data_bytes = match &header {
            lie if lie["b"]["data_offsets"][1].is_u64() => {
                lie["b"]["data_offsets"][1].as_u64().unwrap()
            }
            _ => 4,
        };
        assert_refused(open_with_header(header, num_data_bytes as usize), &parts);
    }
}

/// Offsets, header and length field together pass 2^64: a plain sum of them would overflow.
#[test]
fn offsets_that_overflow_are_refused() {
    let mut header = serde_json::Map::new();
    let step = 1u64 << 60;
    for number in 0..15 {
        header.insert(
            format!("a{number}"),
            entry("U8", &[step], [number * step, (number + 1) * step]),
        );
    }
    let last = u64::MAX - 3;
    header.insert(
        "z".into(),
        entry("U8", &[last - 15 * step], [15 * step, last]),
    );
    assert_refused(
        open_with_header(header.into(), 4),
        &["model.safetensors", "cut short"],
    );
}

#[test]
fn a_name_that_occurs_twice_is_refused() {
    let once = entry("F32", &[1], [0, 4]);
    let header = format!("{{\"a\": {once}, \"a\": {once}}}");
    assert_refused(
        open_with(&file_of(header.as_bytes(), 4)),
        &["`a`", "expected once"],
    );
}

#[test]
fn reading_asks_for_a_known_tensor_and_its_length() {
    let folder = tiny_folder();
    let opened = ModelFolder::open(folder.path()).unwrap();
    assert_refused(
        opened.read_f32("absent", &mut []),
        &["`absent`", "none of that name"],
    );
    assert_refused(
        opened.read_f32("logit_scale", &mut [0.0; 2]),
        &["`logit_scale`", "1 values", "slice of 2"],
    );
}

#[test]
fn a_head_of_another_form_is_refused() {
    let folder = tiny_folder();
    let opened = ModelFolder::open(folder.path()).unwrap();
    let bias = entry("F32", &[1], [24, 28]);
    for (header, num_data_bytes, found) in [
        (json!({}), 0, "no tensors"),
        (
            json!({"weight": entry("F32", &[1, 6], [0, 24])}),
            24,
            "weight [1, 6]",
        ),
        (
            json!({"weight": entry("F32", &[6, 1], [0, 24]), "bias": bias}),
            28,
            "weight [6, 1], bias [1]",
        ),
        (
            json!({"weight": entry("F32", &[0, 6], [0, 0]), "bias": entry("F32", &[0], [0, 0])}),
            0,
            "[0, 6]",
        ),
        (
            json!({"weight": entry("I32", &[1, 6], [0, 24]), "bias": bias}),
            28,
            "I32",
        ),
    ] {
        let bytes = file_of(header.to_string().as_bytes(), num_data_bytes);
        fs::write(folder.path().join("head.safetensors"), bytes).unwrap();
        assert_refused(opened.read_head(), &["head.safetensors", found]);
    }
}

#[test]
fn what_would_not_be_read_back_is_not_written() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("model");
    let tensors = tensors_of(&tiny());
    let views: Vec<_> = tensors
        .iter()
        .map(|(n, s, v)| (n.clone(), s.clone(), v.as_slice()))
        .collect();
    let write = |views: &[_], head| write_folder(&target, &tiny(), views, head, None);

    assert_refused(write(&views[1..], None), &["1 missing", "logit_scale"]);
    let twice = [&views[..], &views[..1]].concat();
    assert_refused(write(&twice, None), &["`logit_scale`", "expected once"]);
    let mut short = views.clone();
    short[1].2 = &short[1].2[1..];
    assert_refused(
        write(&short, None),
        &["token_embedding.weight", "128 values", "slice of 127"],
    );
    let head = Head {
        num_labels: 2,
        weight: vec![0.0; 6],
        bias: vec![0.0; 2],
    };
    assert_refused(
        write(&views, Some(&head)),
        &["head.safetensors", "2 labels, 6 weights, 2 biases"],
    );
    let mut config = tiny();
    config.projection_dim = 0;
    assert_refused(
        write_folder(&target, &config, &views, None, None),
        &["projection_dim"],
    );
    assert!(!target.exists());
}
