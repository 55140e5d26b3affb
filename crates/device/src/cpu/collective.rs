//! Exchanges between processes, through their [`Group`]. The group stores an error; the machine returns it from its wait.

use holdall_graph::DType;
use holdall_graph::ops::collective::{Collective, Exchange};
use holdall_processes::Group;

use super::operands::{Operands, Rows};

pub(super) fn run(group: &Group, op: &Collective, o: &Operands<'_>) {
    assert_eq!(
        (op.processes.rank, op.processes.count),
        (group.rank(), group.size()),
        "a program is of the process that runs it"
    );
    // The group keeps its first error, and every later call returns that error at once.
    let _ = match &op.exchange {
        Exchange::AllGather => (0..o.num_inputs()).try_for_each(|index| {
            assert_eq!(
                o.input_place(index).dtype,
                DType::F32,
                "features are in f32"
            );
            group.all_gather(as_bytes(o.input::<f32>(index).flat()))
        }),
        Exchange::AllReduce => group.all_reduce_f32(&mut slices(o)),
        Exchange::FromOwners(owners) => group.take_from_owners(&mut slices(o), owners),
    };
}

fn slices<'a>(o: &Operands<'_>) -> Vec<&'a mut [f32]> {
    let slice = |index: usize| {
        let flat = o.input::<f32>(index).flat();
        // SAFETY: operands of a collective are contiguous, do not overlap, and belong to this instruction alone.
        unsafe { std::slice::from_raw_parts_mut(flat.pointer(), flat.width) }
    };
    (0..o.num_inputs()).map(slice).collect()
}

#[allow(clippy::mut_from_ref)] // the arena is shared memory; the instruction owns its outputs
fn as_bytes<'a>(flat: Rows<f32>) -> &'a mut [u8] {
    // SAFETY: within the arena for as long as the instruction runs, and written by nothing else; any bytes are valid floats.
    unsafe { std::slice::from_raw_parts_mut(flat.pointer().cast(), flat.width * size_of::<f32>()) }
}
