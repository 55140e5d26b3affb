//! Adapters from the command line: what is trained, what is written, and going on with it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, on};
use crate::typed::{Answer, BAD_INPUT, DONE, holdall, holdall_words};

const LORA: &str = "--effective-batch 8 --set train.lora.rank=4 --set train.lora.alpha=6 --set train.lora.dropout=0.1 \
                    --set train.schedule=constant --set train.warmup=0";

/// Cars, and a model that was trained on them.
fn home() -> Home {
    let home = Home::with_cars(24);
    home.trained("base", "--effective-batch 8 --epochs 1 --lr 1e-3");
    home
}

/// `holdall train cars --model base/model --out NAME OPTIONS`.
fn train(home: &Home, name: &str, options: &str) -> Answer {
    let mut words: Vec<OsString> = vec!["train".into(), home.path("cars").into()];
    words.extend(["--model".into(), home.path("base/model").into()]);
    words.extend(["--out".into(), home.path(name).into()]);
    words.extend(options.split_whitespace().map(OsString::from));
    holdall_words(words)
}

fn tensors(path: &Path) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |data: &[u8]| -> Vec<f32> {
        let each = data.chunks_exact(4);
        each.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    };
    let tensors = file.tensors().into_iter();
    tensors
        .map(|(name, tensor)| (name, (tensor.shape().to_vec(), numbers(tensor.data()))))
        .collect()
}

/// `base + 1.5 B A` is what the merged model has, and nothing else has moved.
fn assert_merged(base: &RunFiles, run: &RunFiles) {
    let [base, merged] = [base, run].map(|run| tensors(&run.file("model/model.safetensors")));
    let adapter = tensors(&run.file("model/adapter/adapter_model.safetensors"));
    let matrix = |name: &str, kind: &str| {
        let module = name.strip_suffix(".weight")?;
        adapter.get(&format!("base_model.model.{module}.{kind}.weight"))
    };
    let mut num_adapted = 0;
    for (name, (shape, merged)) in &merged {
        let (_, base) = &base[name];
        let (Some(a), Some(b)) = (matrix(name, "lora_A"), matrix(name, "lora_B")) else {
            assert_eq!(merged, base, "{name} is frozen");
            continue;
        };
        num_adapted += 1;
        let [outputs, inputs] = shape[..] else {
            panic!("{name}: {shape:?}");
        };
        assert_eq!(
            (&a.0, &b.0),
            (&vec![4, inputs], &vec![outputs, 4]),
            "{name}"
        );
        assert!(b.1.iter().any(|&value| value != 0.0), "{name} has learnt");
        for (at, (&merged, &base)) in merged.iter().zip(base).enumerate() {
            let (output, input) = (at / inputs, at % inputs);
            let added: f32 = (0..4)
                .map(|k| b.1[4 * output + k] * a.1[k * inputs + input])
                .sum();
            assert!((merged - base - 1.5 * added).abs() < 1e-6, "{name} at {at}");
        }
    }
    assert_eq!(2 * num_adapted, adapter.len());
}

#[test]
fn adapters_are_trained_written_and_gone_on_with() {
    let home = home();
    let trained = train(&home, "run", &format!("{LORA} --lr 1e-2 --epochs 2")).exits(DONE);
    let note = "LoRA: rank 4, alpha 6 on ";
    assert!(
        trained.stderr.contains(note) && trained.stderr.contains("(q_proj, v_proj); Trains "),
        "{}",
        trained.stderr
    );
    let run = home.run_named("run");
    let config = run.json("model/adapter/adapter_config.json");
    assert_eq!(config["peft_type"], "LORA");
    assert_eq!(
        (config["r"].as_u64(), config["lora_alpha"].as_f64()),
        (Some(4), Some(6.0))
    );
    assert_eq!(
        config["target_modules"],
        serde_json::json!(["q_proj", "v_proj"])
    );
    assert_eq!(
        config["base_model_name_or_path"].as_str().map(Path::new),
        Some(home.path("base/model").as_path())
    );
    assert_merged(&home.run_named("base"), &run);
    on("eval", &run.path, "--json").exits(DONE);

    let refused = run
        .resume("--epochs 3 --set train.lora.rank=8")
        .exits(BAD_INPUT);
    assert!(
        refused
            .stderr
            .contains("cannot resume with train.lora.rank: 8; the run has 4"),
        "{}",
        refused.stderr
    );
    run.resume("--epochs 3").exits(DONE);
    train(&home, "long", &format!("{LORA} --lr 1e-2 --epochs 3")).exits(DONE);
    let long = home.run_named("long");
    assert_same_lines(&run, &long);
    assert_same_model(&run, &long);
    let [again, at_once] = [&run, &long]
        .map(|run| fs::read(run.file("model/adapter/adapter_model.safetensors")).unwrap());
    assert!(again == at_once, "adapters differ");
}

/// Training goes on with an adapter beside the model that it belongs to: the first loss is the trained one's, not the base's.
#[test]
fn an_adapter_is_gone_on_with() {
    let home = home();
    train(&home, "run", &format!("{LORA} --lr 1e-2 --epochs 3")).exits(DONE);
    let adapter = home.path("run/model/adapter");
    let set = format!("--set train.lora.adapter={}", adapter.display());
    let refused = train(
        &home,
        "no",
        &format!("{LORA} {set} --set train.lora.rank=8"),
    );
    let refused = refused.exits(BAD_INPUT).stderr;
    assert!(
        refused.contains("train.lora.rank: 8, expected 4, that of the adapter"),
        "{refused}"
    );

    let still = "--epochs 1 --lr 1e-12 --set train.lr_head=1e-12 --set train.lora.dropout=0";
    train(&home, "again", &format!("{LORA} {set} {still}")).exits(DONE);
    let [run, again] = ["run", "again"].map(|name| home.run_named(name));
    let [before, after] =
        [&run, &again].map(|run| tensors(&run.file("model/adapter/adapter_model.safetensors")));
    assert_eq!(before.len(), after.len());
    for (name, (_, before)) in before {
        let near = before
            .iter()
            .zip(&after[&name].1)
            .all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near, "{name}");
    }
}

#[test]
fn a_plan_says_what_is_trained_and_targets_that_match_nothing_are_refused() {
    let plan = |options: &str| holdall(&format!("plan small --effective-batch 16 {options}"));
    let whole = plan("--json").exits(DONE).json();
    let adapted = plan("--set train.lora.rank=4 --json").exits(DONE).json();
    assert_eq!(whole["trained_parameters"], whole["parameters"]);
    let [all, trained] =
        ["parameters", "trained_parameters"].map(|key| adapted[key].as_u64().unwrap());
    assert!(trained * 20 < all, "{trained} of {all}");
    for key in ["gradients", "optimizer"] {
        let [adapted, whole] =
            [&adapted, &whole].map(|plan| plan["chosen"]["breakdown"][key].as_u64().unwrap());
        assert!(adapted * 10 < whole, "{key}: {adapted} {whole}");
    }
    let shown = plan("--set train.lora.rank=4").exits(DONE).stdout;
    assert!(shown.contains("\nTrains "), "{shown}");

    for (set, parts) in [
        (
            "train.lora.targets=[query]",
            ["`query`", "hint: layers are fc1, fc2, k_proj"],
        ),
        (
            "train.lora.rank=4000",
            ["train.lora.rank: 4000", "expected at most"],
        ),
        (
            "train.lora.rang=4",
            ["unknown key `rang`", "did you mean `rank`?"],
        ),
    ] {
        let refused = plan(&format!("--set {set}")).exits(BAD_INPUT);
        for part in parts {
            assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
        }
    }
    let refused = holdall("plan unet-demo --set train.lora.rank=4").exits(BAD_INPUT);
    assert!(refused.stderr.contains("train.lora"), "{}", refused.stderr);
}
