//! State in pinned host memory: the same bits as on the card, from step to step, into a file and back.

use holdall_device::{Arithmetic, cuda};
use holdall_plan::HostState;
use holdall_train::run_folder::checkpoint::{Checkpoint, Checkpoints};
use holdall_train::run_folder::folder::RunFolder;

use crate::card::{ALL, Gpu, Run, assert_same_bits, card_or_software, drawn, small};
use crate::restored::state;

const NUM_STEPS: usize = 20;

#[test]
fn state_on_the_host_changes_no_bit() {
    let Some(gpu) = Gpu::open() else { return };
    let num_steps = card_or_software(NUM_STEPS, 6);
    for arithmetic in gpu.supported(ALL) {
        let config = small(gpu.device, arithmetic);
        let mut plain = Run::begin(gpu.device, &config, NUM_STEPS);
        let losses = plain.losses(num_steps);
        let expected = plain.state();
        let arena_bytes = plain.step.arena_bytes();
        drop(plain);
        for host_state in drawn(&HostState::ALL, 2) {
            let what = format!("{}, {}", arithmetic.name(), host_state.name());
            let mut run = Run::with_host_state(gpu.device, &config, NUM_STEPS, host_state);
            let mut found = run.losses(3);
            let allocations = cuda::allocations();
            found.extend(run.losses(num_steps - 3));
            assert_eq!(cuda::allocations(), allocations, "{what}");
            assert_eq!(found, losses, "{what}");
            assert_same_bits(&run.state(), &expected, &what);
            let (on_host, arena) = (run.step.plan().host_bytes, run.step.arena_bytes());
            assert_eq!(on_host > 0, host_state.costs_time(), "{what}");
            assert!(
                arena + on_host >= arena_bytes && arena <= arena_bytes,
                "{what}"
            );
        }
    }
}

/// A checkpoint does not know where state lies: it goes on anywhere.
#[test]
fn a_checkpoint_goes_from_the_host_to_the_card_and_back() {
    let Some(gpu) = Gpu::open() else { return };
    let folder = tempfile::tempdir().unwrap();
    for arithmetic in gpu.supported([Arithmetic::F32, Arithmetic::Bf16, Arithmetic::F16]) {
        let name = arithmetic.name();
        let config = small(gpu.device, arithmetic);
        let begin = |state| Run::with_host_state(gpu.device, &config, NUM_STEPS, state);
        let mut straight = begin(HostState::MomentsAndWeights);
        straight.losses(4);
        let run = RunFolder::create(&folder.path().join(name)).unwrap();
        Checkpoints::new(&run)
            .save(&state(&straight), &straight.step)
            .unwrap();
        let checkpoint = Checkpoint::newest(&run).unwrap().unwrap();
        let expected = [straight.step(), straight.step()];
        for host_state in [
            HostState::Nothing,
            HostState::TwoQuarters,
            HostState::MomentsAndWeights,
        ] {
            let mut restored = begin(host_state);
            restored.losses(2);
            checkpoint.restore(gpu.device, &mut restored.step).unwrap();
            (restored.number, restored.scaler) = (checkpoint.state.step, checkpoint.state.scaler);
            let what = format!("{name}, {}", host_state.name());
            assert_eq!([restored.step(), restored.step()], expected, "{what}");
            assert_same_bits(&restored.state(), &straight.state(), &what);
        }
    }
}
