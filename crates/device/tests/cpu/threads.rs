//! The same bits whatever the number of threads.

use holdall_device::cpu::Cpu;
use holdall_graph::DType;
use holdall_plan::{Recompute, RecomputePolicy};

use super::step::{Kept, Planned};
use super::two_branches::TwoBranches;

#[test]
fn one_two_three_and_five_threads_agree_in_every_bit() {
    let branches = TwoBranches {
        batch: 11,
        accumulation: 2,
        tokens: 31, // 341 rows
        width: 48,
        heads: 3,
        projection: 40,
        tile: 13,
        ..TwoBranches::small(DType::F32)
    };
    let step = branches.step();
    let outcome = |num_threads: usize| {
        let policy = RecomputePolicy::uniform(Recompute::Cheap, step.graph.blocks().len());
        let planned = Planned::new(&step.graph, policy, Kept::First(1), 2, num_threads);
        let outcome = step.run(&planned, &Cpu::new(Some(num_threads)));
        outcome.assert_finite(&format!("{num_threads} threads"));
        outcome
    };
    let expected = outcome(1);
    assert!(expected.of("norm")[0] > 0.0 && expected.of("norm")[1] == 1.0);
    for num_threads in [2, 3, 5] {
        expected.assert_same_bits(&outcome(num_threads), &format!("{num_threads} threads"));
    }
}
