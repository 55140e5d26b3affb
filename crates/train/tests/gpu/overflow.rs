//! Gradients beyond the largest number of fp16: the step is left out as if it had never been.

use holdall_device::{Arithmetic, Device};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::scaler::{Gradients, LossScaler};
use holdall_train::engine::step::Step;

use crate::card::{Bits, Gpu, Run, assert_same_bits, bits, card_or_software, scaler_from, small};

const FAR_TOO_LARGE: f64 = (1u64 << 40) as f64;
const NUM_STEPS: usize = 100;

/// A scaler that was never stopped from growing.
fn grown_too_far() -> LossScaler {
    scaler_from(FAR_TOO_LARGE)
}

/// Features and gradients: products read copies of weights in fp16, and this is where those show.
fn computed(step: &mut Step, device: &Device, batch: &Batch) -> Bits {
    step.gradients(device, batch, 1024.0).unwrap();
    let features = ["image features", "text features"].into_iter();
    let features = features.zip(crate::support::features(step));
    let features = features.map(|(name, values)| (name.to_owned(), bits(&values)));
    let gradients = step.parameters().iter().map(|parameter| {
        let gradient = step.gradient(parameter).unwrap().unwrap();
        (format!("gradient of {}", parameter.name), bits(&gradient))
    });
    features.chain(gradients).collect()
}

fn assert_finite(state: &Bits, what: &str) {
    for (name, values) in state {
        let finite = |&value: &u32| f32::from_bits(value).is_finite();
        assert!(values.iter().all(finite), "{what}: {name}");
    }
}

#[test]
fn a_step_that_overflows_leaves_no_trace_and_training_goes_on() {
    let Some(gpu) = Gpu::open() else { return };
    let config = small(gpu.device, Arithmetic::F16);
    let mut run = Run::begin(gpu.device, &config, NUM_STEPS);
    let first = run.losses(6);
    let batch = run.batches[0].clone();
    let [before, computed_before] = [run.state(), computed(&mut run.step, gpu.device, &batch)];
    assert_finite(&computed_before, "before");

    run.scaler = grown_too_far();
    let mut scale = run.scaler.scale();
    let mut skipped = 0;
    loop {
        let report = run.step();
        assert!(report.loss.is_finite(), "the way forward is not scaled");
        if report.gradients == Gradients::Finite {
            break;
        }
        skipped += 1;
        scale /= 2.0;
        assert_eq!(run.scaler.scale(), scale);
        assert_eq!(run.scaler.skipped_steps(), skipped);
        assert_same_bits(&run.state(), &before, &format!("{skipped} left out"));
    }
    println!("{skipped} steps were left out, down to a scale of {scale:e}");
    assert!(skipped > 3, "2^40 was not too large");
    assert_eq!(run.scaler.scale(), scale);
    assert_finite(&run.state(), "the first step that was made");
    assert!(run.state() != before, "the update was made");

    let last = run.losses(card_or_software(60, 10));
    assert_finite(&run.state(), "afterwards");
    assert!(last.iter().all(|loss| loss.is_finite()), "{last:?}");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(
        mean(&last[last.len() - 6..]) < mean(&first),
        "{first:?} {last:?}"
    );
}

#[test]
fn copies_of_weights_are_not_touched_by_a_step_that_overflows() {
    let Some(gpu) = Gpu::open() else { return };
    let mut run = Run::begin(gpu.device, &small(gpu.device, Arithmetic::F16), NUM_STEPS);
    run.losses(2);
    let batch = run.batches[0].clone();
    let before = computed(&mut run.step, gpu.device, &batch);
    run.scaler = grown_too_far();
    assert_eq!(run.step().gradients, Gradients::Overflowed);
    let after = computed(&mut run.step, gpu.device, &batch);
    assert_same_bits(&after, &before, "after a step that was left out");
}

/// As without the steps that were left out: they do not count, not even in the corrections of the moments.
#[test]
fn a_run_with_a_step_left_out_is_the_run_without_it() {
    let Some(gpu) = Gpu::open() else { return };
    let config = small(gpu.device, Arithmetic::F16);
    let [mut plain, mut shaken] = [(); 2].map(|()| Run::begin(gpu.device, &config, NUM_STEPS));
    for run in [&mut plain, &mut shaken] {
        run.losses(3);
        assert_eq!(run.scaler.skipped_steps(), 0);
    }
    let scaler = std::mem::replace(&mut shaken.scaler, grown_too_far());
    assert_eq!(shaken.step().gradients, Gradients::Overflowed);
    (shaken.scaler, shaken.number) = (scaler, 3);
    assert_eq!(shaken.losses(5), plain.losses(5));
    assert_same_bits(&shaken.state(), &plain.state(), "five steps later");
}
