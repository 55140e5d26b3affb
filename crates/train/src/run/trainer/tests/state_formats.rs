//! Tests of moments in fewer bits and of averaged weights: resuming, evaluation and export.

use holdall_models::folder::{Elements, ModelFolder};
use holdall_models::state_file::StateFile;

use super::*;
use crate::config::OptimizerState;
use crate::engine::optimizer::StatePart;
use crate::run_folder::folder::RunFolder;

/// Bits of weights and state.
fn bits(trainer: &Trainer) -> Vec<(String, Vec<u32>)> {
    let step = &trainer.step;
    let floats = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let weights = step.parameters().iter();
    let weights = weights.map(|one| (one.name.clone(), floats(&step.weight(one).unwrap())));
    let state = step.optimizer_state().map(|(parameter, part, stored)| {
        let bits = match stored.elements().unwrap() {
            Elements::F32(values) => floats(&values),
            Elements::Bf16(values) | Elements::F16(values) => {
                values.iter().map(|&bits| u32::from(bits)).collect()
            }
            Elements::U8(values) => values.iter().map(|&bits| u32::from(bits)).collect(),
        };
        (part.checkpoint_name(&parameter.name), bits)
    });
    weights.chain(state).collect()
}

fn model(trainer: &Trainer) -> Vec<u8> {
    std::fs::read(trainer.files().folder.model().join("model.safetensors")).unwrap()
}

fn evaluated(config: &mut RunConfig) {
    config.train.eval_every = EvalEvery::Epoch;
    config.train.eval_on = vec![Subset::Train];
}

fn again(folder: &std::path::Path, trainer: Trainer, change: impl Fn(&mut RunConfig)) -> Trainer {
    let path = trainer.files().folder.path().to_owned();
    drop(trainer);
    trainer_in(folder, RunFolder::open(&path).unwrap(), change)
}

#[test]
fn runs_with_state_in_fewer_bits_go_on_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut full = trainer(folder.path(), "f32", |_| ());
    let (full_steps, ..) = run(&mut full);
    let optimizer_bytes = |trainer: &Trainer| trainer.planned.plan.chosen.breakdown.optimizer;
    for (state, name, format) in [
        (OptimizerState::Bf16, "bf16", "BF16"),
        (OptimizerState::EightBit, "8bit", "U8"),
    ] {
        let change = |config: &mut RunConfig| config.train.optimizer_state = state;
        let mut whole = trainer(folder.path(), &format!("{name} whole"), change);
        assert_eq!(whole.planned.plan.chosen.optimizer_state, name);
        assert!(2 * optimizer_bytes(&whole) < optimizer_bytes(&full) + 4096);
        let (steps, _, outcome) = run(&mut whole);
        outcome.unwrap();
        // The first loss precedes all updates, the last one follows updates with rounded moments.
        assert_eq!(steps[0], full_steps[0]);
        assert_ne!(steps[5].3, full_steps[5].3, "{name} rounds");
        let mut cut = trainer(folder.path(), &format!("{name} cut"), change);
        run_until(&mut cut, 4);
        let saved = std::fs::read(cut.files().folder.last()).unwrap();
        let header = String::from_utf8_lossy(&saved[8..saved.len().min(200_000)]);
        assert!(
            header.contains(&format!("\"dtype\":\"{format}\"")),
            "{name}"
        );
        let mut cut = again(folder.path(), cut, change);
        let (rest, _, outcome) = run(&mut cut);
        outcome.unwrap();
        assert_eq!(rest, steps[4..], "{name}");
        assert!(bits(&cut) == bits(&whole), "{name}: weights and state");
        assert!(model(&cut) == model(&whole), "{name}");
    }
}

/// State in another format is refused, even if the configs were not compared.
#[test]
fn a_state_of_another_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let eight_bit = |config: &mut RunConfig| {
        config.train.optimizer_state = OptimizerState::EightBit;
    };
    let mut trainer = trainer(folder.path(), "run", eight_bit);
    run_until(&mut trainer, 1);
    let begun = trainer.planned.config.clone();
    drop(trainer);
    let (refused, _) = resumed(folder.path(), |_| ());
    let error = refused.err().unwrap().to_string();
    assert!(
        error.contains("does not fit the model of this run"),
        "{error}"
    );
    let mut now = begun.clone();
    now.train.optimizer_state = OptimizerState::F32;
    let error = crate::run::resume::changes(&begun, &now)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot resume with train.optimizer_state: f32; the run has 8bit\nhint:"),
        "{error}"
    );
}

/// Averages of the trained parameters by name.
fn averages(trainer: &Trainer) -> Vec<(String, Vec<f32>)> {
    let state = trainer.step.optimizer_state();
    let averages = state.filter(|(_, part, _)| *part == StatePart::Average);
    averages
        .map(|(parameter, _, stored)| (parameter.name.clone(), stored.read().unwrap().into_owned()))
        .collect()
}

#[test]
fn the_average_over_steps_is_what_is_evaluated_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let change = |config: &mut RunConfig| {
        evaluated(config);
        config.train.ema = Some(0.5);
    };
    let mut plain = trainer(folder.path(), "plain", evaluated);
    let (plain_steps, ..) = run(&mut plain);
    let mut whole = trainer(folder.path(), "whole", change);
    // The average starts at the weights.
    for (name, average) in averages(&whole) {
        let mut parameters = whole.step.parameters().iter();
        let parameter = parameters.find(|one| one.name == name).unwrap();
        assert_eq!(*whole.step.weight(parameter).unwrap(), average, "{name}");
    }
    let (steps, _, outcome) = run(&mut whole);
    outcome.unwrap();
    assert_eq!(steps, plain_steps, "training does not see the average");
    let scores = |trainer: &Trainer| format!("{:?}", trainer.state.last_scores);
    assert_ne!(scores(&whole), scores(&plain), "evaluations do");
    // Without an evaluation, the model of the last step is exported.
    let unchosen = |config: &mut RunConfig| config.train.ema = Some(0.5);
    let mut last = trainer(folder.path(), "last", unchosen);
    run(&mut last).2.unwrap();
    let exported = ModelFolder::open(&last.files().folder.model()).unwrap();
    for (name, average) in averages(&last) {
        if name.starts_with("head.") {
            continue;
        }
        let mut values = vec![0.0; average.len()];
        exported.read_f32(&name, &mut values).unwrap();
        assert_eq!(values, average, "{name}");
    }
    // Training continues from the weights, not from the averages.
    assert!(bits(&last)[..] == bits(&whole)[..]);
    // Interrupted between steps, and in the middle of an evaluation.
    let mut cut = trainer(folder.path(), "cut", change);
    run_until(&mut cut, 2);
    let mut cut = again(folder.path(), cut, change);
    let requests = Requests::new();
    let outcome = cut.run(&requests, &mut |event| {
        if let Event::Evaluating { .. } = event {
            requests.stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(outcome, Ok(Outcome::Interrupted { step: 3, .. })));
    assert!(!cut.step.is_averaged());
    let file = StateFile::open(&cut.files().folder.last()).unwrap();
    let weight = &cut.step.parameters()[0];
    let mut saved = cut.step.weight(weight).unwrap().into_owned();
    saved.fill(0.0);
    file.read(&weight.name, &mut saved).unwrap();
    let average = &averages(&cut)[0].1;
    assert!(saved != *average, "checkpoints hold the weights");
    let mut cut = again(folder.path(), cut, change);
    let (rest, _, outcome) = run(&mut cut);
    outcome.unwrap();
    assert_eq!(rest, steps[3..]);
    assert!(bits(&cut) == bits(&whole));
    assert!(model(&cut) == model(&whole));
    assert_eq!(lines(&cut.files().folder), lines(&whole.files().folder));
}

#[test]
fn weights_between_start_and_end_are_what_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    // A model folder to start from.
    let mut first = trainer(folder.path(), "first", |_| ());
    run(&mut first).2.unwrap();
    let start = folder.path().join("start");
    std::fs::rename(first.files().folder.model(), &start).unwrap();
    drop(first);
    let share = 0.25;
    let begin = |config: &mut RunConfig| {
        config.model = start.to_string_lossy().into_owned();
        evaluated(config);
        config.train.lr = Some(1e-3);
    };
    let change = |config: &mut RunConfig| {
        begin(config);
        config.train.interpolate = Some(share);
    };
    let mut plain = trainer(folder.path(), "plain", begin);
    let (plain_steps, ..) = run(&mut plain);
    let mut whole = trainer(folder.path(), "whole", |config| {
        change(config);
        config.train.eval_every = EvalEvery::Never;
    });
    let (steps, _, outcome) = run(&mut whole);
    outcome.unwrap();
    assert_eq!(steps, plain_steps, "training does not see the average");
    let exported = ModelFolder::open(&whole.files().folder.model()).unwrap();
    let started = ModelFolder::open(&start).unwrap();
    let mut moved = 0;
    for parameter in whole.step.parameters() {
        let weight = whole.step.weight(parameter).unwrap();
        if parameter.name.starts_with("head.") {
            continue;
        }
        let [mut from, mut found] = [(); 2].map(|()| vec![0.0; weight.len()]);
        started.read_f32(&parameter.name, &mut from).unwrap();
        exported.read_f32(&parameter.name, &mut found).unwrap();
        let between = from.iter().zip(weight.iter());
        let between = between.map(|(start, weight)| start + share as f32 * (weight - start));
        assert!(between.eq(found.iter().copied()), "{}", parameter.name);
        moved += usize::from(found != from);
    }
    assert!(moved > 10);
    // The checkpoint has no average, because it is computed from the start.
    assert_eq!(averages(&whole).len(), 0);
    // Interrupted between steps: the starting weights are those of the first start, not those of the checkpoint.
    let mut evaluated_whole = trainer(folder.path(), "evaluated", change);
    run(&mut evaluated_whole).2.unwrap();
    let mut cut = trainer(folder.path(), "cut", change);
    run_until(&mut cut, 2);
    let mut cut = again(folder.path(), cut, change);
    run(&mut cut).2.unwrap();
    assert!(model(&cut) == model(&evaluated_whole));
    assert_eq!(
        lines(&cut.files().folder),
        lines(&evaluated_whole.files().folder)
    );
    // A model folder that changed meanwhile is noticed, and nothing is overwritten.
    let mut cut = trainer(folder.path(), "other start", change);
    run_until(&mut cut, 2);
    let other = folder.path().join("plain/model/model.safetensors");
    std::fs::copy(&other, start.join("model.safetensors")).unwrap();
    let _ = std::fs::remove_file(start.join("holdall.json"));
    let mut cut = again(folder.path(), cut, change);
    let error = run(&mut cut).2.unwrap_err().to_string();
    assert!(
        error.contains("not those that the run began with") && error.contains("hint:"),
        "{error}"
    );
    assert!(!cut.step.is_averaged());
    assert_eq!(cut.steps_done(), 3);
}
