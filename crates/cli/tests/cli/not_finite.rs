//! Numbers that are infinite or not a number: weights are named where they are read, training that diverges ends at that step.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::folders::{named, save_with};
use crate::training::{Home, on, unseal};
use crate::typed::{BAD_INPUT, DONE, FOUND, holdall_words};

const TENSOR: &str = "vision_model.encoder.layers.0.mlp.fc1.weight";

/// Puts a number into a model's weights: row 3, column 7 of a matrix.
fn poison(model: &Path, value: f32) {
    save_with(model, |tensors| {
        let (_, shape, data) = named(tensors, TENSOR);
        let at = 4 * (3 * shape[1] + 7);
        data[at..at + 4].copy_from_slice(&value.to_le_bytes());
    });
}

#[test]
fn a_weight_that_is_not_finite_is_named_wherever_it_is_read() {
    let home = Home::with_cars(16);
    let options = "--effective-batch 8 --epochs 1 --set train.eval_every=none";
    let run = home.trained("run", options);
    let model = run.file("model");
    for (value, name) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        poison(&model, value);
        unseal(&model);
        let parts = ["model.safetensors", TENSOR, name, "[3, 7]", "1 of its "];
        let cars = home.path("cars");
        let picture = cars.join("images/000001.jpg");
        let more = [
            on("predict", &model, &picture.display().to_string()),
            on("eval", &model, &cars.display().to_string()),
            on(
                "train",
                &cars,
                &format!(
                    "--model {} --out {} {options}",
                    model.display(),
                    home.path(name).display()
                ),
            ),
        ];
        for answer in more {
            answer.ends_with(BAD_INPUT, &parts);
        }
    }
}

/// Every number of a safetensors file is finite.
fn is_finite(file: &Path) -> bool {
    let data = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&data).unwrap();
    let floats = |bytes: &[u8]| {
        let mut numbers = bytes.chunks_exact(4);
        numbers.all(|number| f32::from_le_bytes(number.try_into().unwrap()).is_finite())
    };
    tensors.iter().all(|(_, view)| floats(view.data()))
}

/// A learning rate that no weight survives: finite for the first step, which is saved, and gone after it.
#[test]
fn a_run_that_diverges_says_so_at_its_step() {
    let home = Home::with_cars(32);
    let good = "--effective-batch 8 --epochs 1 --lr 1e-3 --seed 4 --set data.validation=none \
                --set train.eval_every=none --set train.warmup=0";
    let run = home.trained("run", good);
    let before = fs::read(run.last()).unwrap();
    let answer = run.resume("--epochs 3 --lr 1e30 --set train.schedule=constant");
    let error = answer.stderr.clone();
    answer.ends_with(
        FOUND,
        &[
            "training diverged",
            "the gradient norm was",
            "the checkpoint of step 4 is untouched",
            "--lr",
        ],
    );
    assert!(!error.contains("loss scale"), "{error}");
    // What was good is still there, and nothing else.
    assert!(fs::read(run.last()).unwrap() == before);
    assert!(is_finite(&run.last()));
    let failure = run.json("failure.json");
    assert_eq!(failure["kind"], "diverged");
    let step = failure["step"].as_u64().unwrap();
    assert!((5..=12).contains(&step), "{step}");
    assert!(error.contains(&format!("error: step {step}: training diverged: ")));
    assert_eq!(failure["diverged"]["step"], step);
    assert_eq!(failure["diverged"]["checkpoint_step"], 4);
    // The lines end with the step before.
    let steps = run.lines("step");
    let last = steps.last().unwrap();
    assert_eq!(last["step"].as_u64(), Some(step - 1));
    let all_numbers = |line: &Value| line["loss"].is_number();
    assert!(steps.iter().all(all_numbers));
    // The report says it, and so does one that is made later.
    for _ in 0..2 {
        let report = fs::read_to_string(run.file("report.html")).unwrap();
        let said = format!("step {step}: training diverged: ");
        assert!(report.contains(&said), "not in the report");
        fs::remove_file(run.file("report.html")).unwrap();
        on("report", &run.path, "").exits(DONE);
    }
    // The hint is typed, with what it names.
    let words = run.resume_words("--epochs 2 --lr 1e-4");
    holdall_words(words).exits(DONE);
    assert!(!run.file("failure.json").exists());
}

/// At the very first step there is no checkpoint to go back to, and none is written.
#[test]
fn a_run_that_diverges_before_any_checkpoint() {
    let home = Home::with_cars(32);
    let answer = home.train(
        "--effective-batch 8 --epochs 2 --lr 1e38 --set train.warmup=0 --set train.clip_norm=none \
         --set data.validation=none --set train.eval_every=none",
    );
    answer.ends_with(FOUND, &["training diverged", "no checkpoint was written"]);
    assert!(!home.run().last().exists());
    assert!(!home.run().file("model").exists());
}
