//! From the card to a file and back: as if nothing had happened.

use holdall_train::engine::optimizer::{Averaging, MomentFormat};
use holdall_train::run_folder::checkpoint::{Checkpoint, Checkpoints, RunState, SplitOfBatch};
use holdall_train::run_folder::folder::RunFolder;

use crate::card::{ALL, EIGHT_BY_FOUR, Gpu, Run, assert_same_bits, drawn, pairs, small};

const NUM_STEPS: usize = 20;
const SAVED_AFTER: usize = 4;

pub fn state(run: &Run<'_>) -> RunState {
    let split = SplitOfBatch {
        effective_batch: 32,
        batch_size: EIGHT_BY_FOUR.batch_size,
        gradient_accumulation: 4,
        kept_micro_batches: EIGHT_BY_FOUR.kept,
        processes: 1,
    };
    let mut state = RunState::new(run.scaler, split, String::new());
    state.step = run.number;
    state.algorithms = run.device.algorithms();
    state
}

#[test]
fn a_restored_step_goes_on_with_the_same_bits() {
    let Some(gpu) = Gpu::open() else { return };
    let folder = tempfile::tempdir().unwrap();
    let averaging = Averaging::OverSteps { decay: 0.9 };
    let states = [
        (MomentFormat::F32, Averaging::None),
        (MomentFormat::Bf16, averaging),
        (MomentFormat::EightBit, averaging),
    ];
    let cases = pairs(&gpu.supported(ALL), &drawn(&states, 1));
    for (arithmetic, (moments, averaging)) in cases {
        let name = &format!("{}, moments in {}", arithmetic.name(), moments.name());
        let mut config = small(gpu.device, arithmetic);
        (config.optimizer.moments, config.optimizer.averaging) = (moments, averaging);
        let run = RunFolder::create(&folder.path().join(name)).unwrap();
        let mut straight = Run::begin(gpu.device, &config, NUM_STEPS);
        straight.losses(SAVED_AFTER);
        let mut checkpoints = Checkpoints::new(&run);
        checkpoints.save(&state(&straight), &straight.step).unwrap();
        let saved = straight.state();

        let checkpoint = Checkpoint::newest(&run).unwrap().unwrap();
        let mut restored = Run::begin(gpu.device, &config, NUM_STEPS);
        // Steps of its own, so that nothing is right by chance: not the copies of weights either.
        restored.losses(2);
        assert!(restored.state() != saved);
        checkpoint.restore(gpu.device, &mut restored.step).unwrap();
        assert_same_bits(&restored.state(), &saved, name);
        (restored.number, restored.scaler) = (checkpoint.state.step, checkpoint.state.scaler);
        for _ in 0..3 {
            assert_eq!(restored.step(), straight.step(), "{name}");
            assert_same_bits(&restored.state(), &straight.state(), name);
        }
    }
}
