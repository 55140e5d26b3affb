//! Training: near the CPU's in every number format, and the same bits twice.

use holdall_device::{Arithmetic, HostRow, cuda};

use crate::card::{ALL, Bits, Gpu, Run, assert_same_bits, card_or_software, small, small_task};
use crate::support::{evaluated, on_cpu, pixels};

fn num_steps() -> usize {
    card_or_software(100, 30)
}

/// Steps that a mean is of, where single ones are too uneven to compare.
const TOGETHER: usize = 10;

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

/// The largest difference in one step, and in the mean of ten.
fn differences(found: &[f64], expected: &[f64]) -> [f64; 2] {
    [1, TOGETHER].map(|together| {
        let pairs = found.chunks(together).zip(expected.chunks(together));
        pairs
            .map(|(found, expected)| (mean(found) / mean(expected) - 1.0).abs())
            .fold(0.0, f64::max)
    })
}

fn trained(run: &mut Run<'_>) -> (Vec<f64>, Bits) {
    (run.losses(num_steps()), run.state())
}

#[test]
fn steps_stay_near_those_of_the_cpu_and_are_the_same_twice() {
    let Some(gpu) = Gpu::open() else { return };
    let cpu = on_cpu(std::thread::available_parallelism().map_or(2, usize::from));
    let expected = Run::begin(&cpu, &small(&cpu, Arithmetic::F32), num_steps()).losses(num_steps());
    for arithmetic in gpu.supported(ALL) {
        let name = arithmetic.name();
        let config = small(gpu.device, arithmetic);
        let mut run = Run::begin(gpu.device, &config, num_steps());
        let (losses, state) = trained(&mut run);
        let [single, together] = differences(&losses, &expected);
        println!(
            "{name}: from {:.4} to {:.4} (CPU: {:.4}), off by {single:.1e} in a step and {together:.1e} in the mean \
             of {TOGETHER}, {} skipped",
            mean(&losses[..TOGETHER]),
            mean(&losses[num_steps() - TOGETHER..]),
            mean(&expected[num_steps() - TOGETHER..]),
            run.scaler.skipped_steps()
        );
        // Not `>`: what is no number fails.
        let near = match arithmetic {
            Arithmetic::F32 => single <= 1e-3,
            Arithmetic::Tf32 => single <= 2e-2,
            Arithmetic::Bf16 | Arithmetic::F16 => together <= 5e-2,
        };
        assert!(near, "{name}: {losses:?}\nthe CPU: {expected:?}");
        let [first, last] = [&losses[..TOGETHER], &losses[num_steps() - TOGETHER..]].map(mean);
        assert!(last < 0.8 * first, "{name}: {losses:?}");

        drop(run);
        let (again, state_again) = trained(&mut Run::begin(gpu.device, &config, num_steps()));
        assert_eq!(again, losses, "{name}");
        assert_same_bits(&state_again, &state, name);
    }
}

/// The same batches, their pictures in rows of host memory: every third row lies elsewhere, as after a broken picture.
#[test]
fn pictures_that_travel_from_their_rows_change_no_bit() {
    let Some(gpu) = Gpu::open() else { return };
    for device in [&on_cpu(2), gpu.device] {
        let config = small(device, Arithmetic::F32);
        let mut plain = Run::begin(device, &config, num_steps());
        let mut in_rows = Run::begin(device, &config, num_steps());
        let mut early = Run::begin(device, &config, num_steps());
        for batch in in_rows.batches.iter_mut().chain(&mut early.batches) {
            let pixels = pixels(batch);
            let each = pixels.len() / batch.num_samples;
            let mut rows = device.host_rows(2 * batch.num_samples, each).unwrap();
            let rows = pixels.chunks(each).enumerate().map(|(index, picture)| {
                let from = if index % 3 == 2 { 0 } else { rows.len() - 1 };
                let mut row = rows.remove(from);
                row.as_mut().copy_from_slice(picture);
                row
            });
            let rows: Vec<HostRow> = rows.collect();
            batch.set_rows("pixels", rows.iter());
        }
        for number in 1..=7 {
            let expected = plain.step();
            assert_eq!(in_rows.step(), expected, "step {number}");
            assert_eq!(early.step_and_preload(), expected, "step {number}, early");
        }
        assert_same_bits(&in_rows.state(), &plain.state(), "rows");
        assert_same_bits(&early.state(), &plain.state(), "rows, early");
    }
}

#[test]
fn inputs_that_travel_early_change_no_bit() {
    let Some(gpu) = Gpu::open() else { return };
    for arithmetic in gpu.supported([Arithmetic::F32, Arithmetic::F16]) {
        let config = small(gpu.device, arithmetic);
        let mut plain = Run::begin(gpu.device, &config, num_steps());
        let mut early = Run::begin(gpu.device, &config, num_steps());
        for number in 1..=7 {
            let what = format!("{}, step {number}", arithmetic.name());
            assert_eq!(early.step_and_preload(), plain.step(), "{what}");
        }
        assert_same_bits(&early.state(), &plain.state(), arithmetic.name());
    }
}

#[test]
fn nothing_is_allocated_after_the_first_step_and_the_first_evaluation() {
    let Some(gpu) = Gpu::open() else { return };
    for arithmetic in gpu.supported(ALL) {
        let mut config = small(gpu.device, arithmetic);
        for evaluation_batch in [None, Some(5)] {
            config.evaluation_batch = evaluation_batch;
            let mut run = Run::begin(gpu.device, &config, num_steps());
            let mut before = None;
            for number in 0..card_or_software(21, 11) {
                run.step();
                if number % 10 == 0 {
                    let batch = &run.batches[0];
                    evaluated(&small_task(gpu.device), &mut run.step, gpu.device, batch);
                }
                let before = *before.get_or_insert(cuda::allocations());
                let what = format!("{}, step {}", arithmetic.name(), number + 1);
                assert_eq!(cuda::allocations(), before, "{what}");
                assert!(before > 0, "allocations are not counted");
            }
        }
    }
}
